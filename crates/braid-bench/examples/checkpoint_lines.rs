//! Measures what checkpoints write to a data file in persistent memory: whole pages, or the cache
//! lines that changed.
//!
//! ```text
//! cargo run --release -p braid-bench --example checkpoint_lines /dev/shm pmem-emulated
//! ```
//!
//! The arguments are a directory for two temporary databases, and a device. Transactions replace
//! one record of 100 bytes out of 200,000, chosen at random, as in U-1. Both databases get the same
//! transactions in turns. Each line of the output is the mean of several checkpoints, with another
//! number of transactions before each.

use std::error::Error;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid::{Database, Table};

const RECORDS: u64 = 200_000;

const MEASURED: u32 = 5;

struct Subject {
    db: Database,
    table: Table<u64, [u8; 100]>,
    bytes: u64,
    time: Duration,
}

impl Subject {
    fn update(&self, keys: impl Iterator<Item = u64>, value: &[u8; 100]) -> braid::Result<()> {
        for key in keys {
            let mut tx = self.db.begin();
            tx.insert(&self.table, &key, value)?;
            tx.commit()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> braid::Result<()> {
        let before = self.db.stats().store.block_bytes_written;
        let began = Instant::now();
        self.db.checkpoint()?;
        self.time += began.elapsed();
        self.bytes += self.db.stats().store.block_bytes_written - before;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let parent = args
        .next()
        .ok_or("usage: checkpoint_lines DIRECTORY [DEVICE]")?;
    let device: DeviceChoice = args.next().as_deref().unwrap_or("pmem").parse()?;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut subjects = Vec::new();
    let directories = [
        tempfile::tempdir_in(&parent)?,
        tempfile::tempdir_in(&parent)?,
    ];
    for (directory, by_line) in directories.iter().zip([false, true]) {
        let db = Database::builder()
            .device(device)
            .pmem_lines(by_line)
            .open(directory.path())?;
        let table = db.open_table("records")?;
        let (bytes, time) = (0, Duration::ZERO);
        let subject = Subject {
            db,
            table,
            bytes,
            time,
        };
        subject.update(0..RECORDS, &[0; 100])?;
        subjects.push(subject);
    }
    let pages = subjects[0].db.stats().store.pages;
    println!("{RECORDS} records in {pages} pages");
    println!("transactions | of whole pages, KiB | ms | of lines, KiB | ms | ratio");
    for transactions in [
        pages / 8,
        pages / 2,
        pages,
        2 * pages,
        4 * pages,
        16 * pages,
    ] {
        // Until nearly all pages were written twice at this rate.
        let warm_up = 3 + 5 * pages / transactions;
        for round in 0..warm_up + u64::from(MEASURED) {
            let mut value = [0; 100];
            rng.fill(&mut value);
            let keys: Vec<u64> = (0..transactions).map(|_| rng.u64(..RECORDS)).collect();
            for subject in &mut subjects {
                subject.update(keys.iter().copied(), &value)?;
                if round == warm_up {
                    (subject.bytes, subject.time) = (0, Duration::ZERO);
                }
                subject.checkpoint()?;
            }
        }
        let mean = |subject: &Subject| {
            let kib = subject.bytes / u64::from(MEASURED) / 1024;
            (kib, (subject.time / MEASURED).as_secs_f64() * 1000.0)
        };
        let [(whole, whole_ms), (lines, lines_ms)] = [mean(&subjects[0]), mean(&subjects[1])];
        let ratio = whole as f64 / lines as f64;
        println!("{transactions} | {whole} | {whole_ms:.1} | {lines} | {lines_ms:.1} | {ratio:.1}");
    }
    Ok(())
}
