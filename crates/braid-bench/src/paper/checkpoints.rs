//! GoldenX, cache-line areas: what checkpoints write to data in persistent memory, as whole pages or
//! as the cache lines that changed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid::{Database, Table};
use fastrand::Rng;

use super::{Diagram, PaperSpec, RECORDS, new_directory, remove_directory};
use crate::BenchError;

/// Nanoseconds for each flushed line: none, and those of NVWAL's memory.
const LATENCIES: [u32; 2] = [0, 437];

/// Transactions between two checkpoints for each page of the database.
const UPDATES_PER_PAGE: [f64; 6] = [0.125, 0.5, 1.0, 2.0, 4.0, 16.0];

/// Measured checkpoints of each point.
const MEASURED: u32 = 5;

type Value = [u8; 100];

/// KiB and time of a checkpoint by the number of updates before it.
pub(super) fn by_updates(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let diagram = |name, what: &str, y| {
        let title = format!("GoldenX: checkpoints by cache line, {what}");
        Diagram::new(name, &title, "updates of each page", y)
    };
    let mut bytes = diagram("goldenx-cla-bytes", "bytes", "KiB");
    let mut times = diagram("goldenx-cla-time", "time", "ms");
    for latency in LATENCIES {
        let mut subjects = [
            Subject::new(spec, latency, false)?,
            Subject::new(spec, latency, true)?,
        ];
        let pages = subjects[0].db.stats().store.pages;
        for updates in UPDATES_PER_PAGE {
            progress(&format!(
                "checkpoints, {latency} ns, {updates} updates of each page"
            ));
            measure(&mut subjects, pages, updates)?;
            for subject in &subjects {
                if latency == 0 {
                    bytes.add(
                        subject.name(),
                        updates,
                        subject.bytes as f64 / f64::from(MEASURED * 1024),
                    );
                }
                let ms = (subject.time / MEASURED).as_secs_f64() * 1e3;
                times.add(format!("{}, {latency} ns", subject.name()), updates, ms);
            }
        }
        for subject in subjects {
            subject.db.close()?;
            remove_directory(&subject.directory)?;
        }
    }
    Ok(vec![bytes, times])
}

/// Gives both databases the same updates in turns, and measures their checkpoints.
fn measure(subjects: &mut [Subject], pages: u64, updates: f64) -> Result<(), BenchError> {
    let transactions = ((pages as f64 * updates) as u64).max(1);
    // Until nearly all pages were written twice at this rate.
    let warm_up = 3 + 5 * pages / transactions;
    let records = subjects[0].records;
    let mut rng = Rng::with_seed(1);
    for round in 0..warm_up + u64::from(MEASURED) {
        let mut value = [0; 100];
        rng.fill(&mut value);
        let keys: Vec<u64> = (0..transactions).map(|_| rng.u64(..records)).collect();
        for subject in &mut *subjects {
            subject.update(keys.iter().copied(), &value)?;
            if round == warm_up {
                (subject.bytes, subject.time) = (0, Duration::ZERO);
            }
            subject.checkpoint()?;
        }
    }
    Ok(())
}

struct Subject {
    directory: PathBuf,
    db: Database,
    table: Table<u64, Value>,
    records: u64,
    by_line: bool,
    bytes: u64,
    time: Duration,
}

impl Subject {
    fn new(spec: &PaperSpec, line_latency: u32, by_line: bool) -> Result<Self, BenchError> {
        let directory = spec
            .memory_dir
            .join(if by_line { "lines" } else { "pages" });
        new_directory(&directory)?;
        let db = Database::builder()
            .device(DeviceChoice::PmemEmulated { line_latency })
            .pmem_lines(by_line)
            .open(&directory)?;
        let table = db.open_table("records")?;
        let records = spec.records.unwrap_or(RECORDS);
        let subject = Self {
            directory,
            db,
            table,
            records,
            by_line,
            bytes: 0,
            time: Duration::ZERO,
        };
        subject.update(0..records, &[0; 100])?;
        Ok(subject)
    }

    fn name(&self) -> &'static str {
        if self.by_line {
            "changed lines"
        } else {
            "whole pages"
        }
    }

    fn update(&self, keys: impl Iterator<Item = u64>, value: &Value) -> Result<(), BenchError> {
        for key in keys {
            let mut tx = self.db.begin();
            tx.insert(&self.table, &key, value)?;
            tx.commit()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), BenchError> {
        let before = self.db.stats().store.block_bytes_written;
        let began = Instant::now();
        self.db.checkpoint()?;
        self.time += began.elapsed();
        self.bytes += self.db.stats().store.block_bytes_written - before;
        Ok(())
    }
}
