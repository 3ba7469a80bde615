//! `braid bench`: measures a workload, the device, recovery, or stalls.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid::{PmemCommit, Protocol};
use braid_bench::engines::{self, KvEngine};
use braid_bench::{BareLogReport, Driver, Engine, Report, Spec, Workload};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::bench_compare::{self, CompareArgs};
use super::bench_connect;
use super::bench_device::{self, DeviceArgs};
use super::bench_kill;
use super::bench_paper::{self, PaperArgs};
use super::bench_recovery::{self, RecoveryArgs};
use super::bench_stalls::{self, StallsArgs};
use super::bench_tablespaces::{self, TablespacesArgs};
use crate::failure::Failure;
use crate::numbers::{grouped, parse, parse_ratio, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

/// Measure a workload with every commit durable, a device, recovery, or stalls
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    target: Option<Target>,

    #[command(flatten)]
    workload: Option<WorkloadArgs>,
}

#[derive(Debug, clap::Subcommand)]
enum Target {
    /// Measure the device itself, and a bare group-commit log on it
    Device(DeviceArgs),
    /// Compare Braid with other engines in one run: a table, and in builds with the feature plots
    /// also plots and a report
    Compare(CompareArgs),
    /// Repeat a measurement of the papers: a table, and in builds with the feature plots a plot
    Paper(PaperArgs),
    /// Fill the log, kill the process, and measure the time of recovery
    Recovery(RecoveryArgs),
    /// Measure the stalls of a steady load while checkpoints, backups and other work run next to it
    ///
    /// Threads update random records at half of the rate that the machine reaches, at times fixed
    /// in advance, from which latencies count. Meanwhile one scenario after the other runs, each on
    /// a new database. For each, the command prints the latencies of the load, the longest time
    /// without a commit, and whether both are within the limits: a gap of at most 100 ms, a p99.9
    /// of at most three times that of the quiet run plus 2 ms. A figure that a bare log on the same
    /// device also reaches while the same bytes are written next to it is within the limits.
    /// Exceeded limits do not change the exit status.
    Stalls(StallsArgs),
    /// Measure what a transaction across tablespaces costs, and how much log two devices take
    ///
    /// The tablespaces have logs of their own. One thread updates a record of each of two tables per
    /// transaction: of one tablespace, and of two on the same device. Then two threads write large
    /// values to tablespaces on devices of a limited bandwidth: both to one, and each to its own.
    Tablespaces(TablespacesArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// Workload to run
    #[arg(value_parser = workload_parser())]
    workload: Workload,

    /// Engine to run on: Braid, or another that this build includes (docs/peers.md); the options of
    /// protocol, device and log apply to Braid
    #[arg(long, value_name = "NAME", default_value = BRAID)]
    pub(super) engine: String,

    /// Run ycsb, u1 or u10 over a socket instead, on a server for Redis clients: HOST:PORT, the path of a Unix
    /// socket, or a URL such as redis://USER:PASSWORD@HOST:PORT. Each thread is a client. The options
    /// of the engine do not apply, and the records stay in the server
    #[arg(long, value_name = "ADDRESS",
          conflicts_with_all = ["engine", "dir", "kill", "feed", "with_limit", "check"])]
    pub(super) connect: Option<String>,

    /// Operations per second of all clients of --connect together, begun at fixed times, from which
    /// latencies count [default: each client begins an operation when its last one has ended]
    #[arg(long, value_name = "N", requires = "connect")]
    pub(super) rate: Option<f64>,

    /// Commit protocol: serial, aether, epoch, glsn, gwsn-strict, gwsn or gsn; an existing database
    /// is switched to it
    #[arg(long, value_name = "NAME", default_value_t, value_parser = parse::<Protocol>)]
    pub(super) protocol: Protocol,

    /// Number of threads that run transactions
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,

    /// Number of durable commits that each thread keeps in flight; with 1 it waits for each
    #[arg(long, value_name = "N", default_value_t = 1)]
    in_flight: usize,

    /// Duration of the measurement
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,

    /// Duration of the run before the measurement [default: a tenth of it, at most 2]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    warm_up: Option<Duration>,

    /// Directory of the database; existing data of the same shape is reused [default: a new one in
    /// TMPDIR or here, removed afterwards]
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,

    /// Device to store on: auto, uring, file, memory, pmem, pmem-file or pmem-emulated
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    pub(super) device: DeviceChoice,

    /// Directory of the log, for a new database [default: that of the database]
    #[arg(long, value_name = "DIR")]
    log_directory: Option<PathBuf>,

    /// Device of --log-directory: auto, uring, file, pmem, pmem-file or pmem-emulated [default: that
    /// of the data]
    #[arg(long, value_name = "KIND", value_parser = parse::<DeviceChoice>)]
    log_device: Option<DeviceChoice>,

    /// Time for which a thread polls the NVMe drive of a volume before it sleeps; 0 to sleep at once
    /// [default: 20]
    #[arg(long, value_name = "MICROSECONDS")]
    nvme_idle_us: Option<u32>,

    /// Number of records to load; accounts of a branch for tpcb; items for tpcc, where fewer than
    /// the standard's make all data smaller in proportion [default: 65536 for u1 and u10, 2048 for
    /// large, 1000000 for inserts, ycsb, scan and load, 100000 for bank, tpcb and tpcc]
    #[arg(long, value_name = "N")]
    records: Option<u64>,

    /// Size of each value [default: 100 for u1, u10 and inserts, 65536 for large, 1000 for ycsb,
    /// scan and load]
    #[arg(long, value_name = "BYTES")]
    value_size: Option<usize>,

    /// Number of warehouses of tpcc, of branches of tpcb
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        visible_alias = "warehouses"
    )]
    scale: u32,

    /// Let each thread of tpcc use all warehouses, not only its own
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true",
          require_equals = true)]
    pub(super) roam: bool,

    /// Number of accounts of the bank that take part in transfers [default: all]
    #[arg(long, value_name = "N")]
    hot: Option<u64>,

    /// Number of records in each scan of the workload scan
    #[arg(long, value_name = "N", default_value_t = 100)]
    scan_length: u64,

    /// Skew of the Zipfian distribution of ycsb, scan and bank, between 0 and 1 [default: 0.99]
    #[arg(long, value_name = "THETA")]
    zipf: Option<f64>,

    /// Extra latency of each durable write, in addition to the device's own
    #[arg(long, value_name = "NS")]
    pub(super) persist_ns: Option<u64>,

    /// Number of log strands [default: the engine's]
    #[arg(long, value_name = "N")]
    pub(super) strands: Option<usize>,

    /// Number of log lanes, each with its own flushes [default: the engine's]
    #[arg(long, value_name = "N")]
    pub(super) lanes: Option<usize>,

    /// Maximum number of flushes in flight in each lane [default: the engine's]
    #[arg(long, value_name = "N")]
    pub(super) flushes: Option<usize>,

    /// Number of asynchronous commits of a strand that are flushed together [default: no groups]
    #[arg(long, value_name = "N")]
    pub(super) group_size: Option<u32>,

    /// Nanoseconds that flushing each cache line takes on --device pmem-emulated [default: 0]
    #[arg(long, value_name = "NS")]
    pub(super) pmem_latency: Option<u32>,

    /// How a commit in persistent memory becomes durable: eager, lazy or checksum [default: lazy]
    #[arg(long, value_name = "MODE", value_parser = parse::<PmemCommit>)]
    pub(super) pmem_commit: Option<PmemCommit>,

    /// Size of the buffer pool [default: three times the data, at least 256]
    #[arg(long, value_name = "MIB")]
    pub(super) pool_mib: Option<usize>,

    /// Size the buffer pool so that the data are this many times larger; 3 for a cache that misses
    #[arg(long, value_name = "RATIO", conflicts_with = "pool_mib", value_parser = parse_ratio)]
    pub(super) data_over_pool: Option<f64>,

    /// Amount of log after which a checkpoint begins [default: the engine's]
    #[arg(long, value_name = "MIB")]
    pub(super) checkpoint_mib: Option<u64>,

    /// Size of the log files to create in advance
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub(super) preallocated_log_mib: u64,

    /// Check the data after the run: TPC-C's conditions, sums, and that every acknowledged
    /// transaction is there
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    check: bool,

    /// Instead of measuring, kill the process during the run, recover and check, this many times;
    /// for bank, tpcb, tpcc and tpcc-no
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "1")]
    kill: Option<u32>,

    /// Print acknowledged transactions on standard output, for the process that kills this one
    #[arg(long, hide = true)]
    feed: bool,

    /// Also run a bare group-commit log with the same threads, and print the ratio
    #[arg(long)]
    with_limit: bool,

    /// Print one JSON object on one line
    #[arg(long)]
    pub(super) json: bool,
}

/// The name that YCSB has for the workload of inserts.
const YCSB_LOAD: &str = "ycsb-load";

/// Name of the engine in every build.
const BRAID: &str = "braid";

pub(super) fn workload_parser() -> impl TypedValueParser<Value = Workload> {
    let values = Workload::ALL.map(|w| {
        let value = PossibleValue::new(w.name()).help(w.description());
        match w {
            Workload::YcsbInsert => value.alias(YCSB_LOAD),
            _ => value,
        }
    });
    PossibleValuesParser::new(values).try_map(|name| match name.as_str() {
        YCSB_LOAD => Ok(Workload::YcsbInsert),
        name => name.parse::<Workload>(),
    })
}

impl WorkloadArgs {
    pub(super) fn spec(&self) -> Spec {
        let defaults = Spec::new(self.workload);
        Spec {
            threads: self.threads,
            in_flight: self.in_flight,
            warm_up: self
                .warm_up
                .unwrap_or_else(|| (self.seconds / 10).min(Duration::from_secs(2))),
            measure: self.seconds,
            records: self.records.unwrap_or(defaults.records),
            value_size: self.value_size.unwrap_or(defaults.value_size),
            zipf: self.zipf.unwrap_or(defaults.zipf),
            scale: self.scale,
            roams: self.roam,
            hot: self.hot,
            scan_length: self.scan_length,
            ..defaults
        }
    }

    /// Opens the engine with the tables of a workload; it closes when it is dropped.
    pub(super) fn open(
        &self,
        dir: &Path,
        spec: &Spec,
        driver: &dyn Driver,
    ) -> Result<Box<dyn KvEngine>, Failure> {
        let tables = driver.tables();
        let braid = self.braid(dir, spec);
        if self.engine == BRAID {
            return Ok(Box::new(braid.open_tables(&tables)?));
        }
        let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
        Ok(engines::open(&self.engine, dir, &tables, braid.pool_bytes)?)
    }

    /// The device, with its latency.
    pub(super) fn device(&self) -> DeviceChoice {
        match (self.device, self.pmem_latency) {
            (DeviceChoice::PmemEmulated { .. }, Some(line_latency)) => {
                DeviceChoice::PmemEmulated { line_latency }
            }
            (device, _) => device,
        }
    }

    /// Refuses a latency for a device that has its own.
    fn check_latency(&self) -> Result<(), Failure> {
        let is_emulated = matches!(self.device, DeviceChoice::PmemEmulated { .. });
        if self.pmem_latency.is_some() && !is_emulated {
            return Err(Failure::Usage(format!(
                "--pmem-latency applies to --device pmem-emulated, not to {}",
                self.device
            )));
        }
        Ok(())
    }

    fn braid(&self, dir: &Path, spec: &Spec) -> Engine {
        let mut engine = Engine::new(dir, spec);
        engine.protocol = self.protocol;
        engine.device = self.device();
        engine.log_directory.clone_from(&self.log_directory);
        engine.log_device = self.log_device;
        engine.nvme_idle_us = self.nvme_idle_us;
        engine.persist_latency = self.persist_ns.map(Duration::from_nanos);
        engine.strands = self.strands;
        engine.lanes = self.lanes;
        engine.flushes = self.flushes;
        engine.group_size = self.group_size;
        engine.pmem_commit = self.pmem_commit;
        engine.preallocated_log_bytes = self.preallocated_log_mib.saturating_mul(1 << 20);
        engine.checkpoint_log_bytes = self.checkpoint_mib.map(|mib| mib.saturating_mul(1 << 20));
        if let Some(mib) = self.pool_mib {
            engine.pool_bytes = mib.saturating_mul(1 << 20);
        }
        if let Some(ratio) = self.data_over_pool {
            engine.set_data_over_pool(spec, ratio);
        }
        engine
    }
}

pub(crate) fn run(args: &BenchArgs, output: &mut Output) -> Result<(), Failure> {
    match (&args.target, &args.workload) {
        (Some(Target::Device(device)), _) => bench_device::run(device, output),
        (Some(Target::Compare(compare)), _) => bench_compare::run(compare, output),
        (Some(Target::Paper(paper)), _) => bench_paper::run(paper, output),
        (Some(Target::Recovery(recovery)), _) => bench_recovery::run(recovery, output),
        (Some(Target::Stalls(stalls)), _) => bench_stalls::run(stalls, output),
        (Some(Target::Tablespaces(args)), _) => bench_tablespaces::run(args, output),
        (None, Some(workload)) => run_workload(workload, output),
        (None, None) => Err(Failure::Usage(
            "cannot measure without a workload; `braid bench --help` lists the workloads".into(),
        )),
    }
}

fn run_workload(args: &WorkloadArgs, output: &mut Output) -> Result<(), Failure> {
    if let Some(address) = &args.connect {
        return bench_connect::run(args, address, output);
    }
    let spec = args.spec();
    spec.check()?;
    args.check_latency()?;
    if args.with_limit && spec.workload.is_read_only() {
        return Err(Failure::Usage(
            "cannot use --with-limit with a workload that only reads".into(),
        ));
    }
    if let Some(kills) = args.kill {
        return bench_kill::run(args, kills, output);
    }
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    let mut report = measure(args, scratch.path(), &spec)?;
    if args.with_limit {
        report.set_limit(&measure_limit(scratch.path(), args, &spec)?);
    }
    if args.json {
        let json = report
            .to_json()
            .map_err(|error| Failure::Failed(error.to_string()))?;
        output.line(json)?;
    } else {
        output.line(report.to_string().trim_end())?;
    }
    if !report.violations.is_empty() {
        let n = report.violations.len();
        return Err(Failure::Failed(format!("{n} conditions are violated")));
    }
    scratch.remove()
}

fn measure(args: &WorkloadArgs, dir: &Path, spec: &Spec) -> Result<Report, Failure> {
    let driver = spec.driver()?;
    let driver = driver.as_ref();
    let engine = args.open(dir, spec, driver)?;
    let engine = engine.as_ref();
    load(engine, driver, spec)?;
    let before = driver.present(engine)?;
    let stop = AtomicBool::new(false);
    let mut report = thread::scope(|scope| {
        if args.feed {
            scope.spawn(|| bench_kill::feed(driver, &stop));
        }
        let report = run_bar(engine, driver, spec);
        // Relaxed: only ends the feed.
        stop.store(true, Ordering::Relaxed);
        report
    })?;
    if args.check {
        report.set_checks(&braid_bench::check(engine, driver, before)?);
    }
    Ok(report)
}

/// Loads the data of the workload, with a progress bar.
pub(super) fn load(engine: &dyn KvEngine, driver: &dyn Driver, spec: &Spec) -> Result<(), Failure> {
    let loading = output::bar(spec.records, "loading");
    driver.load(engine, &mut |p| {
        loading.set_length(p.records);
        loading.set_position(p.loaded);
    })?;
    loading.finish_and_clear();
    Ok(())
}

/// Runs the workload, with a progress bar.
fn run_bar(engine: &dyn KvEngine, driver: &dyn Driver, spec: &Spec) -> Result<Report, Failure> {
    let total = (spec.warm_up + spec.measure).as_millis();
    let running = output::bar(u64::try_from(total).unwrap_or(u64::MAX), "running");
    let report = braid_bench::run(engine, driver, spec, &mut |p| {
        running.set_position(u64::try_from(p.elapsed.as_millis()).unwrap_or(u64::MAX));
        let rate = p.operations as f64 / p.elapsed.as_secs_f64().max(1e-3);
        let warming = if p.warming_up { " (warming up)" } else { "" };
        running.set_message(format!("{} tx/s{warming}", grouped(rate as u64)));
    })?;
    running.finish_and_clear();
    Ok(report)
}

/// Measures the bare log on the same device.
fn measure_limit(dir: &Path, args: &WorkloadArgs, spec: &Spec) -> Result<BareLogReport, Failure> {
    let is_directory = !braid_io::is_volume_name(dir);
    let place = if is_directory {
        dir.join("bare-log")
    } else {
        format!("{}-bare-log", dir.display()).into()
    };
    braid_io::create_directory(&place)
        .map_err(|error| Failure::io(format_args!("cannot create {}", place.display()), &error))?;
    let device = braid_io::open_directory(&place, args.device())
        .map_err(|error| Failure::io(format_args!("cannot open {}", place.display()), &error))?;
    let report = braid_bench::bare_log(
        &device,
        spec.threads,
        spec.in_flight,
        spec.log_record_bytes(),
        spec.measure,
    )?;
    let removing = |error| Failure::io(format_args!("cannot remove {}", place.display()), &error);
    for entry in device.list().map_err(removing)? {
        device.remove(&entry.name).map_err(removing)?;
    }
    device.sync_directory().map_err(removing)?;
    drop(device);
    if is_directory {
        fs::remove_dir_all(&place).map_err(removing)?;
    }
    Ok(report)
}
