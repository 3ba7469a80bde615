//! Commits small changes of pages to a log, checkpoints it into a file, and prints what it cost.
//!
//! ```text
//! cargo run --release -p braid-nvwal --example page_log /dev/shm/log emulated 437 lazy
//! ```
//!
//! The arguments are a path, a kind (`auto`, `dax`, `file`, `emulated`), for `emulated` the latency
//! of a line in nanoseconds, and a commit mode (`lazy`, `checksum`, `eager`). The file is created,
//! and removed at the end.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use braid_nvwal::{CommitMode, LogError, LogOptions, Writer, WriterOptions};
use braid_pmem::{MapAs, Region, RegionOptions};

const PAGE: usize = 4096;
const PAGES: u64 = 500;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(
        args.next()
            .ok_or("usage: page_log PATH [KIND] [NS] [MODE]")?,
    );
    let mut map_as: MapAs = args.next().as_deref().unwrap_or("auto").parse()?;
    let latency = args.next();
    if let MapAs::Emulated { line_latency } = &mut map_as {
        *line_latency = latency.as_deref().unwrap_or("0").parse()?;
    }
    let mode: CommitMode = args.next().as_deref().unwrap_or("lazy").parse()?;
    let commits = match map_as {
        MapAs::Emulated { .. } | MapAs::Dax => 100_000,
        _ => 2_000,
    };

    let region = RegionOptions::default().map_as(map_as);
    let region = Arc::new(Region::create(&path, Region::MIN_LEN, &region)?);
    let log = LogOptions::default().max_bytes(16 << 20);
    let options = WriterOptions::default().mode(mode);
    let mut writer = Writer::create(Arc::clone(&region), Region::DATA_START, &log, &options)?;
    let mut pages = vec![vec![0; PAGE]; PAGES as usize];
    let mut database = vec![vec![0; PAGE]; PAGES as usize];
    let begun = Instant::now();
    for number in 0..commits {
        let page = number * 7919 % PAGES;
        let image = &mut pages[page as usize];
        let at = number as usize * 31 % (PAGE - 100);
        image[at..at + 100].fill(number as u8 | 1);
        if let Err(error) = commit(&mut writer, page, image, number) {
            let LogError::Full { .. } = error else {
                return Err(error.into());
            };
            writer.roll_back();
            let checkpoint = writer.checkpoint()?;
            let mark = checkpoint.mark();
            for page in checkpoint {
                let (page, image) = page?;
                database[page as usize] = image;
            }
            writer.new_generation(mark)?;
            commit(&mut writer, page, image, number)?;
        }
    }
    let nanos = begun.elapsed().as_nanos() as u64 / commits;
    let stats = writer.stats();
    println!(
        "{} with {mode} commits: {nanos} ns and {} bytes of log for each commit, {} generations",
        region.mapping().kind(),
        stats.bytes / commits,
        stats.generations + 1,
    );
    for page in writer.checkpoint()? {
        let (page, image) = page?;
        database[page as usize] = image;
    }
    assert!(database == pages, "the database has the newest images");
    drop(writer);
    std::fs::remove_file(&path)?;
    Ok(())
}

fn commit(writer: &mut Writer, page: u64, image: &[u8], number: u64) -> Result<(), LogError> {
    writer.append(page, image)?;
    writer.commit(number).map(|_| ())
}
