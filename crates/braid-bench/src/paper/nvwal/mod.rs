//! NVWAL: what a log of page differences in persistent memory costs, and which of its parts save
//! what.
//!
//! Only the log is measured, with the pages of a table in the place of a database's. A transaction
//! of the paper also parses and runs a statement of SQL.

mod table;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_io::{File, OpenMode};
use braid_nvwal::{CommitMode, LogError, LogOptions, Writer, WriterOptions};
use braid_pmem::{MapAs, Region, RegionError, RegionOptions};
use fastrand::Rng;

use self::table::{FRAME_OF_SQLITE, Operation, PAGE, Table};
use super::{Diagram, PaperSpec};
use crate::BenchError;

/// Rows that are changed in one generation of the log, unless the spec says otherwise.
const ROWS: u64 = 10_000;

/// Nanoseconds for each flushed line: none, two of a fast device, and those of the paper.
const LATENCIES: [u32; 5] = [0, 100, 437, 942, 1_942];

/// Latency of the comparisons over the size of a transaction.
const LATENCY: u32 = 437;

/// Rows of a transaction.
const ROWS_PER_TRANSACTION: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// How the log is written.
#[derive(Clone, Copy)]
struct Scheme {
    name: &'static str,
    whole_pages: bool,
    /// Whether each frame has a block of its own, as without the paper's user-level heap.
    block_per_frame: bool,
    mode: CommitMode,
}

const WHOLE_PAGES: Scheme = Scheme {
    name: "whole pages",
    whole_pages: true,
    block_per_frame: false,
    mode: CommitMode::Lazy,
};

const DIFFERENCES: Scheme = Scheme {
    name: "differences",
    whole_pages: false,
    ..WHOLE_PAGES
};

const SCHEMES: [Scheme; 7] = [
    Scheme {
        name: "whole pages, a block each",
        block_per_frame: true,
        ..WHOLE_PAGES
    },
    Scheme {
        name: "whole pages, eager",
        mode: CommitMode::Eager,
        ..WHOLE_PAGES
    },
    WHOLE_PAGES,
    Scheme {
        name: "differences, a block each",
        block_per_frame: true,
        ..DIFFERENCES
    },
    Scheme {
        name: "differences, eager",
        mode: CommitMode::Eager,
        ..DIFFERENCES
    },
    DIFFERENCES,
    Scheme {
        name: "differences, checksum",
        mode: CommitMode::Checksum,
        ..DIFFERENCES
    },
];

impl Scheme {
    /// Bytes of a block of the log: many frames, or a frame and the commit record.
    fn block_size(self) -> u64 {
        match (self.block_per_frame, self.whole_pages) {
            (false, _) => 64 << 10,
            (true, true) => PAGE as u64 + 192,
            (true, false) => 256,
        }
    }
}

/// Bytes of log, transactions per second by latency, and the cost of order by size of transactions.
pub(super) fn figures(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let rows = spec.records.unwrap_or(ROWS) as usize;
    let traces = Operation::ALL.map(|operation| Trace::new(operation, rows));
    let mut diagrams = vec![
        bytes(spec, &traces, progress)?,
        order(spec, &traces[0], progress)?,
    ];
    for trace in &traces {
        diagrams.push(by_latency(spec, trace, progress)?);
    }
    Ok(diagrams)
}

/// Bytes of log by the number of rows that a transaction changes.
fn bytes(
    spec: &PaperSpec,
    traces: &[Trace],
    progress: &mut dyn FnMut(&str),
) -> Result<Diagram, BenchError> {
    let title = "NVWAL: differential logging, bytes of log";
    let mut diagram = Diagram::new("nvwal-bytes", title, "rows a transaction", "bytes");
    let once = PaperSpec {
        each: Duration::ZERO,
        ..spec.clone()
    };
    for trace in traces {
        for scheme in [WHOLE_PAGES, DIFFERENCES] {
            let series = format!("{}, {}", trace.operation.name(), scheme.name);
            progress(&series);
            for rows in ROWS_PER_TRANSACTION {
                let replayed = replay(&once, scheme, 0, trace, rows)?;
                diagram.add(&series, rows as f64, replayed.bytes_per_transaction());
            }
        }
    }
    Ok(diagram)
}

/// Time of a transaction by the number of rows that it inserts, with more or less order.
fn order(
    spec: &PaperSpec,
    inserts: &Trace,
    progress: &mut dyn FnMut(&str),
) -> Result<Diagram, BenchError> {
    let title = format!("NVWAL: overhead of ordering constraints, {LATENCY} ns a line");
    let mut diagram = Diagram::new("nvwal-order", &title, "inserts a transaction", "us");
    for base in [WHOLE_PAGES, DIFFERENCES] {
        for mode in [CommitMode::Eager, CommitMode::Lazy, CommitMode::Checksum] {
            let series = format!("{}, {mode}", base.name);
            progress(&series);
            for rows in ROWS_PER_TRANSACTION {
                let scheme = Scheme { mode, ..base };
                let replayed = replay(spec, scheme, LATENCY, inserts, rows)?;
                diagram.add(
                    &series,
                    rows as f64,
                    1e6 / replayed.transactions_per_second(),
                );
            }
        }
    }
    Ok(diagram)
}

/// Transactions of one row per second by the latency of a line.
fn by_latency(
    spec: &PaperSpec,
    trace: &Trace,
    progress: &mut dyn FnMut(&str),
) -> Result<Diagram, BenchError> {
    let operation = trace.operation.name();
    let title = format!("NVWAL: throughput and memory latency, {operation}");
    let name = format!("nvwal-{operation}");
    let mut diagram = Diagram::new(&name, &title, "ns a line", "transactions/s").with_log_y();
    for scheme in SCHEMES {
        for latency in LATENCIES {
            progress(&format!("{operation}, {}, {latency} ns", scheme.name));
            let replayed = replay(spec, scheme, latency, trace, 1)?;
            let rate = replayed.transactions_per_second();
            diagram.add(scheme.name, f64::from(latency), rate);
        }
    }
    progress(&format!("{operation}, on the disk"));
    let rate = on_disk(spec, trace)?.transactions_per_second();
    for latency in LATENCIES {
        // A disk does not depend on the latency: a line to compare with.
        diagram.add("whole pages on the disk", f64::from(latency), rate);
    }
    Ok(diagram)
}

/// The changes of a generation, and the table before them.
struct Trace {
    operation: Operation,
    table: Table,
    rows: Vec<usize>,
}

impl Trace {
    fn new(operation: Operation, rows: usize) -> Self {
        let present = match operation {
            Operation::Insert => 0,
            Operation::Update | Operation::Delete => 2 * rows,
        };
        let mut order: Vec<usize> = (0..present.max(rows)).collect();
        Rng::with_seed(1).shuffle(&mut order);
        order.truncate(rows);
        Self {
            operation,
            table: Table::new(present, 1),
            rows: order,
        }
    }

    /// Makes all changes, in transactions of some rows each, and calls `each` after those of each
    /// transaction.
    fn run<E>(
        &self,
        table: &mut Table,
        rows: usize,
        mut each: impl FnMut(&mut Table) -> Result<(), E>,
    ) -> Result<(), E> {
        for changes in self.rows.chunks(rows) {
            for &row in changes {
                match self.operation {
                    Operation::Insert => table.insert(),
                    Operation::Update => table.update(row),
                    Operation::Delete => table.delete(row),
                }
            }
            each(table)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Replayed {
    transactions: u64,
    bytes: u64,
    time: Duration,
}

impl Replayed {
    fn transactions_per_second(&self) -> f64 {
        self.transactions as f64 / self.time.as_secs_f64()
    }

    fn bytes_per_transaction(&self) -> f64 {
        self.bytes as f64 / self.transactions as f64
    }
}

/// Logs all changes of a trace, and again from the beginning until the time of a point is over.
fn replay(
    spec: &PaperSpec,
    scheme: Scheme,
    latency: u32,
    trace: &Trace,
    rows: usize,
) -> Result<Replayed, BenchError> {
    std::fs::create_dir_all(&spec.memory_dir)
        .map_err(|e| BenchError::io("cannot create the directory of the memory", e))?;
    let path = spec.memory_dir.join("nvwal");
    let replayed = replay_in(&path, spec.each, scheme, latency, trace, rows);
    match std::fs::remove_file(&path) {
        Err(error) if replayed.is_ok() => Err(BenchError::io("cannot remove a region", error)),
        _ => replayed,
    }
}

fn replay_in(
    path: &Path,
    each: Duration,
    scheme: Scheme,
    latency: u32,
    trace: &Trace,
    rows: usize,
) -> Result<Replayed, BenchError> {
    let of = |line_latency| RegionOptions::default().map_as(MapAs::Emulated { line_latency });
    let options = WriterOptions::default()
        .mode(scheme.mode)
        .whole_pages(scheme.whole_pages);
    // The region grows, and its memory is allocated, before anything is measured.
    let region = Region::create(path, Region::MIN_LEN, &of(0)).map_err(region_failed)?;
    let log = LogOptions::default()
        .page_size(PAGE as u32)
        .block_size(scheme.block_size())
        .max_bytes((64 << 20) + trace.rows.len() as u64 * 4 * PAGE as u64);
    let start = Region::DATA_START;
    let mut writer = Writer::create(Arc::new(region), start, &log, &options).map_err(log_failed)?;
    replay_once(&mut writer, trace, rows).map_err(log_failed)?;
    drop(writer);

    let region = Region::open(path, &of(latency)).map_err(region_failed)?;
    let (mut writer, _) = Writer::open(Arc::new(region), start, &options).map_err(log_failed)?;
    let mut replayed = Replayed::default();
    loop {
        replayed.time += replay_once(&mut writer, trace, rows).map_err(log_failed)?;
        let stats = writer.stats();
        (replayed.transactions, replayed.bytes) = (stats.commits, stats.bytes);
        if replayed.time >= each {
            return Ok(replayed);
        }
    }
}

/// Logs all changes of a trace, then empties the log. Returns the time without that of the emptying,
/// which a checkpoint of the database would take.
fn replay_once(writer: &mut Writer, trace: &Trace, rows: usize) -> Result<Duration, LogError> {
    let mut table = trace.table.clone();
    let begun = Instant::now();
    trace.run(&mut table, rows, |table| {
        table.take_changed(|page, image| writer.append(page, image).map(|_| ()))?;
        writer.commit(0).map(|_| ())
    })?;
    let time = begun.elapsed();
    writer.new_generation(writer.mark())?;
    Ok(time)
}

/// Writes the frames that SQLite's own log would have to the disk, durably for each transaction.
fn on_disk(spec: &PaperSpec, trace: &Trace) -> Result<Replayed, BenchError> {
    const FILE: u64 = 16 << 20;
    const NAME: &str = "frames";
    let failed = |error| BenchError::io("cannot write frames to the disk", error);
    std::fs::create_dir_all(&spec.dir).map_err(failed)?;
    let device = braid_io::open_directory(&spec.dir, spec.disk()).map_err(failed)?;
    let file: Arc<dyn File> = device.open(NAME, OpenMode::CreateNew).map_err(failed)?;
    file.fill_zero(0..FILE).map_err(failed)?;
    file.sync().map_err(failed)?;
    let mut replayed = Replayed::default();
    let mut table = trace.table.clone();
    let mut at = 0;
    let begun = Instant::now();
    let written: std::io::Result<()> = trace.run(&mut table, 1, |table| {
        let mut frames = 0;
        table.take_changed(|_, _| {
            frames += 1;
            std::io::Result::Ok(())
        })?;
        // Whole blocks, as a file system writes them.
        let buffer = device.allocate((frames * FRAME_OF_SQLITE).next_multiple_of(PAGE));
        if at + buffer.len() as u64 > FILE {
            at = 0;
        }
        file.write_durable_at(&[&buffer], at)?;
        at += buffer.len() as u64;
        replayed.transactions += 1;
        replayed.time = begun.elapsed();
        if replayed.time >= spec.each {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(())
    });
    match written {
        // The time of the point is over.
        Err(error) if error.kind() != std::io::ErrorKind::TimedOut => return Err(failed(error)),
        _ => {}
    }
    drop(file);
    device.remove(NAME).map_err(failed)?;
    Ok(replayed)
}

fn region_failed(error: RegionError) -> BenchError {
    BenchError::io("cannot use a region", std::io::Error::other(error))
}

fn log_failed(error: LogError) -> BenchError {
    BenchError::io(
        "cannot use a log of page differences",
        std::io::Error::other(error),
    )
}
