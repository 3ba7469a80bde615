//! Tablespaces with logs of their own: what a transaction across two costs against one within one, and
//! how much log two devices take against one.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid::tablespace::TablespaceOptions;
use braid::{Bytes, Database, Table, Ticket};
use braid_io::{BandwidthDevice, Device};
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::tally::{histogram, nanos};
use crate::usage::Usage;
use crate::{BenchError, PROFILE};

/// Records of each table, and the size of their values.
const RECORDS: u64 = 16_384;
const VALUE: [u8; 100] = [7; 100];

/// Commits in flight of the measurements of processor time.
const IN_FLIGHT: usize = 1_000;

/// Values of the measurement of bandwidth: as many records, of this size, and commits in flight.
const LARGE_RECORDS: u64 = 256;
const LARGE: usize = 16 << 10;
const LARGE_IN_FLIGHT: usize = 64;

/// Names of the tablespaces.
const SPACES: [&str; 2] = ["one", "two"];

/// What [`measure_tablespaces`] measures.
#[derive(Clone, Debug)]
pub struct TablespacesSpec {
    /// Directory of the databases, which are removed.
    pub dir: PathBuf,
    /// Device of all files.
    pub device: DeviceChoice,
    /// Duration of each run.
    pub each: Duration,
    /// Number of runs of each row, which alternate. Each figure is their median.
    pub repeats: usize,
    /// Bytes that a device takes per second in the measurement of bandwidth.
    pub bytes_per_s: u64,
}

/// Transactions that update a record of each of two tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CrossingRow {
    /// Number of tablespaces to which the two tables belong, each with a log of its own.
    pub tablespaces: usize,
    /// Number of commits that the thread keeps in flight.
    pub in_flight: usize,
    /// Transactions per second.
    pub tx_per_s: f64,
    /// Processor time of the whole process per transaction, in microseconds.
    pub cpu_us_per_tx: f64,
    /// Median time from the call of `commit` to durability, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
}

/// Result of [`measure_tablespaces`].
#[derive(Clone, Debug, Serialize)]
pub struct TablespacesReport {
    /// Profile of the build; see [`PROFILE`].
    pub profile: &'static str,
    /// Transactions within a tablespace and across two, one at a time and with many in flight.
    pub rows: Vec<CrossingRow>,
    /// MiB that each device takes per second.
    pub limit_mib_per_s: f64,
    /// MiB of log per second of one tablespace on one such device.
    pub one_mib_per_s: f64,
    /// MiB of log per second of two tablespaces on two such devices.
    pub two_mib_per_s: f64,
}

impl TablespacesReport {
    /// Returns one JSON object on one line, without a line break.
    ///
    /// # Errors
    ///
    /// None in practice: every field can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl fmt::Display for TablespacesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "two updates a transaction, tablespaces with logs of their own (profile {})\n\n\
             {:<12}{:>10}{:>12}{:>10}{:>10}{:>10}",
            self.profile, "tablespaces", "in flight", "tx/s", "CPU us", "p50 us", "p99 us"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<12}{:>10}{:>12.0}{:>10.2}{:>10.0}{:>10.0}",
                row.tablespaces,
                row.in_flight,
                row.tx_per_s,
                row.cpu_us_per_tx,
                row.p50_us,
                row.p99_us
            )?;
        }
        for pair in self.rows.chunks_exact(2) {
            writeln!(
                f,
                "across two against within one, {} in flight: CPU {:.2} x, p50 {:.2} x",
                pair[0].in_flight,
                pair[1].cpu_us_per_tx / pair[0].cpu_us_per_tx,
                pair[1].p50_us / pair[0].p50_us
            )?;
        }
        write!(
            f,
            "log on devices of {:.0} MiB/s: {:.1} MiB/s on one, {:.1} MiB/s of two tablespaces on two: {:.2} x",
            self.limit_mib_per_s,
            self.one_mib_per_s,
            self.two_mib_per_s,
            self.two_mib_per_s / self.one_mib_per_s
        )
    }
}

/// Measures tablespaces. Calls `progress` before each run.
///
/// # Errors
/// The database's own, or that of a directory.
pub fn measure_tablespaces(
    spec: &TablespacesSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<TablespacesReport, BenchError> {
    let rows = crossings(spec, progress)?;
    let [one_mib_per_s, two_mib_per_s] = bandwidths(spec, progress)?;
    Ok(TablespacesReport {
        profile: PROFILE,
        rows,
        limit_mib_per_s: spec.bytes_per_s as f64 / f64::from(1 << 20),
        one_mib_per_s,
        two_mib_per_s,
    })
}

/// A database with two tables in the first tablespace and one in the second.
struct Spaces {
    db: Database,
    first: [Table<u64, Bytes>; 2],
    second: Table<u64, Bytes>,
}

impl Spaces {
    /// Creates the database. `wrap` is applied to the device of each tablespace.
    fn create(
        spec: &TablespacesSpec,
        wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device>,
    ) -> Result<Self, BenchError> {
        let device = |name: &str| {
            let dir = spec.dir.join(name);
            let opened = braid_io::create_directory(&dir)
                .and_then(|()| braid_io::open_directory(&dir, spec.device));
            opened.map_err(|error| BenchError::io("cannot open a tablespace's directory", error))
        };
        let main = device("main")?;
        // No checkpoint takes a part of the bandwidth.
        let mut builder = Database::builder()
            .pool_bytes(64 << 20)
            .max_log_bytes(4 << 30)
            .checkpoint_log_bytes(2 << 30);
        let db = builder.clone().open_on(main.clone())?;
        for name in SPACES {
            let device = wrap(device(name)?);
            let options = TablespaceOptions::on_device(device.clone());
            db.create_tablespace(name, options.own_log(true))?;
            builder = builder.tablespace_device(name, device);
        }
        db.close()?;
        // Logs of tablespaces begin with the next opening.
        let db = builder.open_on(main)?;
        let table = |space, name| db.open_table_in(space, name, Default::default());
        Ok(Self {
            first: [table(SPACES[0], "a")?, table(SPACES[0], "b")?],
            second: table(SPACES[1], "c")?,
            db,
        })
    }

    fn fill(&self, records: u64, value: &[u8]) -> Result<(), BenchError> {
        for table in self.first.iter().chain([&self.second]) {
            for first in (0..records).step_by(256) {
                self.db.transact(|tx| {
                    (first..records.min(first + 256))
                        .try_for_each(|key| tx.insert(table, &key, value))
                })?;
            }
        }
        Ok(())
    }

    fn remove(self, spec: &TablespacesSpec) -> Result<(), BenchError> {
        let Self { db, first, second } = self;
        drop((first, second));
        db.close()?;
        ["main"].iter().chain(&SPACES).try_for_each(|name| {
            let dir = spec.dir.join(name);
            std::fs::remove_dir_all(&dir).map_err(|error| BenchError::file("remove", &dir, error))
        })
    }
}

/// Measures transactions within a tablespace and across two.
fn crossings(
    spec: &TablespacesSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<CrossingRow>, BenchError> {
    let spaces = Spaces::create(spec, |device| device)?;
    spaces.fill(RECORDS, &VALUE)?;
    let [a, b] = &spaces.first;
    let kinds = [(1, [a, b]), (2, [a, &spaces.second])];
    let mut rows = Vec::new();
    for in_flight in [1, IN_FLIGHT] {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..spec.repeats.max(1) {
            for ((tablespaces, tables), runs) in kinds.into_iter().zip(&mut runs) {
                progress(&format!("{tablespaces} tablespaces, {in_flight} in flight"));
                runs.push(cross(
                    &spaces.db,
                    tables,
                    tablespaces,
                    in_flight,
                    spec.each,
                )?);
            }
        }
        rows.extend(runs.map(|runs| median(&runs)));
    }
    spaces.remove(spec)?;
    Ok(rows)
}

/// Returns the median of each figure.
fn median(runs: &[CrossingRow]) -> CrossingRow {
    let of = |figure: fn(&CrossingRow) -> f64| middle(runs.iter().map(figure).collect());
    CrossingRow {
        tx_per_s: of(|row| row.tx_per_s),
        cpu_us_per_tx: of(|row| row.cpu_us_per_tx),
        p50_us: of(|row| row.p50_us),
        p99_us: of(|row| row.p99_us),
        ..runs[0]
    }
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Updates a record of each of two tables per transaction, for a time.
fn cross(
    db: &Database,
    tables: [&Table<u64, Bytes>; 2],
    tablespaces: usize,
    in_flight: usize,
    time: Duration,
) -> Result<CrossingRow, BenchError> {
    let (mut rng, mut commits, before) = (Rng::with_seed(1), 0, Usage::now());
    let mut waiting = Outstanding::new(in_flight);
    let begun = Instant::now();
    while begun.elapsed() < time {
        let mut tx = db.begin();
        for table in tables {
            tx.insert(table, &rng.u64(..RECORDS), &VALUE)?;
        }
        let called = Instant::now();
        if in_flight == 1 {
            tx.commit()?;
            waiting.latency.saturating_record(nanos(called.elapsed()));
        } else {
            waiting.add(tx.commit_async()?, called)?;
        }
        commits += 1;
    }
    waiting.finish()?;
    let (seconds, used) = (begun.elapsed().as_secs_f64(), Usage::now().cpu - before.cpu);
    let micros = |quantile: f64| waiting.latency.value_at_quantile(quantile) as f64 / 1_000.0;
    Ok(CrossingRow {
        tablespaces,
        in_flight,
        tx_per_s: f64::from(commits) / seconds,
        cpu_us_per_tx: used.as_secs_f64() * 1e6 / f64::from(commits),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
    })
}

/// The commits in flight of a thread.
struct Outstanding {
    most: usize,
    tickets: VecDeque<(Ticket, Instant)>,
    latency: Histogram<u64>,
}

impl Outstanding {
    fn new(most: usize) -> Self {
        Self {
            most,
            tickets: VecDeque::with_capacity(most),
            latency: histogram(),
        }
    }

    /// Adds a commit that was called at `called`, and waits for the oldest if there are too many.
    fn add(&mut self, ticket: Ticket, called: Instant) -> Result<(), BenchError> {
        self.tickets.push_back((ticket, called));
        self.wait(self.most - 1)
    }

    fn wait(&mut self, left: usize) -> Result<(), BenchError> {
        while self.tickets.len() > left
            && let Some((ticket, called)) = self.tickets.pop_front()
        {
            ticket.wait()?;
            self.latency.saturating_record(nanos(called.elapsed()));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), BenchError> {
        self.wait(0)
    }
}

/// Measures the MiB of log per second of one tablespace on one device, and of two on two.
fn bandwidths(
    spec: &TablespacesSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<[f64; 2], BenchError> {
    let limit =
        |device| Arc::new(BandwidthDevice::new(device, spec.bytes_per_s)) as Arc<dyn Device>;
    let spaces = Spaces::create(spec, limit)?;
    let value = vec![7; LARGE];
    spaces.fill(LARGE_RECORDS, &value)?;
    let [a, b] = &spaces.first;
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..spec.repeats.max(1) {
        for (tables, runs) in [[a, b], [a, &spaces.second]].into_iter().zip(&mut runs) {
            progress("log on devices with a limit");
            runs.push(bandwidth(&spaces.db, tables, &value, spec.each)?);
        }
    }
    spaces.remove(spec)?;
    Ok(runs.map(middle))
}

/// Writes large values with a thread for each table, and returns the MiB of log per second.
fn bandwidth(
    db: &Database,
    tables: [&Table<u64, Bytes>; 2],
    value: &[u8],
    time: Duration,
) -> Result<f64, BenchError> {
    let written = || {
        let stats = db.stats();
        stats
            .tablespaces
            .iter()
            .map(|space| space.log_bytes)
            .sum::<u64>()
    };
    let (before, begun) = (written(), Instant::now());
    let write = |seed: u64, table: &Table<u64, Bytes>| -> Result<(), BenchError> {
        let mut rng = Rng::with_seed(seed);
        let mut waiting = Outstanding::new(LARGE_IN_FLIGHT);
        while begun.elapsed() < time {
            let mut tx = db.begin();
            tx.insert(table, &rng.u64(..LARGE_RECORDS), value)?;
            waiting.add(tx.commit_async()?, Instant::now())?;
        }
        waiting.finish()
    };
    thread::scope(|scope| {
        let write = &write;
        let threads = [1, 2].into_iter().zip(tables);
        let threads = threads.map(|(seed, table)| scope.spawn(move || write(seed, table)));
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)))
    })?;
    let bytes = written() - before;
    Ok(bytes as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64())
}
