//! Measures small durable records in a region: 200 bytes, then a mark, each flushed and fenced.
//!
//! ```text
//! cargo run --release -p braid-pmem --example durable_records /dev/shm/region emulated 437
//! ```
//!
//! The arguments are a path, a kind (`auto`, `dax`, `file`, `emulated`) and for `emulated` the
//! latency of a line in nanoseconds. The file is created, and removed at the end.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_pmem::{MapAs, Region, RegionOptions};

/// Bytes of a record, in four lines of 64.
const RECORD: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(
        args.next()
            .ok_or("usage: durable_records PATH [KIND] [NS]")?,
    );
    let mut map_as: MapAs = args.next().as_deref().unwrap_or("auto").parse()?;
    if let MapAs::Emulated { line_latency } = &mut map_as {
        *line_latency = args.next().as_deref().unwrap_or("0").parse()?;
    }

    let options = RegionOptions::default().map_as(map_as);
    let region = Region::create(&path, 4 << 20, &options)?;
    let mapping = region.mapping();
    let records = match map_as {
        MapAs::Emulated { .. } | MapAs::Dax => 200_000,
        _ => 2_000,
    };
    let start = Region::DATA_START;
    let room = (region.len() - start) / 256;
    let begun = Instant::now();
    for number in 0..records {
        let at = start + number % room * 256;
        mapping.write(at, &[number as u8; RECORD as usize]);
        mapping.persist(at..at + RECORD)?;
        // The mark makes the record count, so it follows in a fence of its own.
        mapping.store_u64(at + 248, number, Ordering::Release);
        mapping.persist(at + 248..at + 256)?;
    }
    let nanos = begun.elapsed().as_nanos() as u64 / records;
    let stats = mapping.stats();
    println!(
        "{} with {}: {nanos} ns for each record, {} lines and {} fences",
        mapping.kind(),
        mapping.flush_method(),
        stats.lines_flushed / records,
        stats.fences / records,
    );
    region.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
