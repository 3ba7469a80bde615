//! `braid bench`: measures a workload, the device, or recovery.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::{DeviceChoice, Protocol};
use braid_bench::{BareLogReport, Engine, Report, Spec, Workload};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::bench_compare::{self, CompareArgs};
use super::bench_device::{self, DeviceArgs};
use super::bench_paper::{self, PaperArgs};
use super::bench_recovery::{self, RecoveryArgs};
use crate::failure::Failure;
use crate::numbers::{grouped, parse, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

/// Measure a workload with every commit durable, the device itself, or recovery
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
    /// Measure what the disk itself can do, and a bare group-commit log on it
    Device(DeviceArgs),
    /// Measure Braid beside other engines, in one run: a table, plots and a report
    Compare(CompareArgs),
    /// Make a measurement of the papers again: a table and a plot
    Paper(PaperArgs),
    /// Fill the log, kill the process, and measure how fast the database opens again
    Recovery(RecoveryArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// What to run
    #[arg(value_parser = workload_parser())]
    workload: Workload,

    /// Commit protocol: serial, aether, epoch, glsn, gwsn-strict, gwsn or gsn; an existing database is
    /// switched to it
    #[arg(long, default_value_t, value_parser = parse::<Protocol>)]
    protocol: Protocol,

    /// Threads that issue transactions
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,

    /// Durable commits that each thread keeps outstanding; with 1 it waits for each
    #[arg(long, value_name = "K", default_value_t = 1)]
    in_flight: usize,

    /// Seconds to measure
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,

    /// Seconds to run before that [default: a tenth of it, at most 2]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    warm_up: Option<Duration>,

    /// Database directory; data of the same shape in it is used again [default: a fresh one in
    /// TMPDIR or here, removed afterwards]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// What to store on: auto, uring, file or memory
    #[arg(long, default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// Records to load [default: 65536 for u1 and u10, 1000000 for ycsb]
    #[arg(long, value_name = "R")]
    records: Option<u64>,

    /// Bytes of each value [default: 100 for u1 and u10, 1000 for ycsb]
    #[arg(long, value_name = "B")]
    value_size: Option<usize>,

    /// Skew of the Zipfian draws of the ycsb workloads, between 0 and 1 [default: 0.99]
    #[arg(long, value_name = "THETA")]
    zipf: Option<f64>,

    /// Nanoseconds that each durable write takes at least, on top of the device's own time
    #[arg(long, value_name = "NS")]
    persist_ns: Option<u64>,

    /// Log strands [default: the engine's]
    #[arg(long, value_name = "N")]
    strands: Option<usize>,

    /// Log lanes, each with its own flushes [default: the engine's]
    #[arg(long, value_name = "N")]
    lanes: Option<usize>,

    /// Flushes of a lane that may be in flight at once [default: the engine's]
    #[arg(long, value_name = "N")]
    flushes: Option<usize>,

    /// Asynchronous commits of a strand that go to the device together [default: no groups]
    #[arg(long, value_name = "N")]
    group_size: Option<u32>,

    /// Buffer pool in MiB [default: three times the data, at least 256]
    #[arg(long, value_name = "M")]
    pool_mib: Option<usize>,

    /// Log in MiB after which a checkpoint begins [default: the engine's]
    #[arg(long, value_name = "M")]
    checkpoint_mib: Option<u64>,

    /// Also run a bare group-commit log with the same threads and print the ratio to it
    #[arg(long)]
    with_limit: bool,

    /// Print one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(super) fn workload_parser() -> impl TypedValueParser<Value = Workload> {
    let values = Workload::ALL.map(|w| PossibleValue::new(w.name()).help(w.description()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Workload>())
}

impl WorkloadArgs {
    fn spec(&self) -> Spec {
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
            ..defaults
        }
    }

    fn engine(&self, dir: PathBuf, spec: &Spec) -> Engine {
        let mut engine = Engine::new(dir, spec);
        engine.protocol = self.protocol;
        engine.device = self.device;
        engine.persist_latency = self.persist_ns.map(Duration::from_nanos);
        engine.strands = self.strands;
        engine.lanes = self.lanes;
        engine.flushes = self.flushes;
        engine.group_size = self.group_size;
        engine.checkpoint_log_bytes = self.checkpoint_mib.map(|mib| mib.saturating_mul(1 << 20));
        if let Some(mib) = self.pool_mib {
            engine.pool_bytes = mib.saturating_mul(1 << 20);
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
        (None, Some(workload)) => run_workload(workload, output),
        (None, None) => Err(Failure::Usage(
            "a workload is missing; see braid bench --help".into(),
        )),
    }
}

fn run_workload(args: &WorkloadArgs, output: &mut Output) -> Result<(), Failure> {
    let spec = args.spec();
    spec.check()?;
    if args.with_limit && spec.workload.is_read_only() {
        return Err(Failure::Usage(
            "--with-limit needs a workload that writes".into(),
        ));
    }
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    let engine = args.engine(scratch.path().to_owned(), &spec);
    let mut report = measure(&engine, &spec)?;
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
    scratch.remove()
}

fn measure(engine: &Engine, spec: &Spec) -> Result<Report, Failure> {
    let driver = spec.driver()?;
    let engine = engine.open_tables(&driver.tables())?;
    let loading = output::bar(spec.records, "loading");
    driver.load(&engine, &mut |p| {
        loading.set_length(p.records);
        loading.set_position(p.loaded);
    })?;
    loading.finish_and_clear();
    let total = (spec.warm_up + spec.measure).as_millis();
    let running = output::bar(u64::try_from(total).unwrap_or(u64::MAX), "running");
    let report = braid_bench::run(&engine, driver.as_ref(), spec, &mut |p| {
        running.set_position(u64::try_from(p.elapsed.as_millis()).unwrap_or(u64::MAX));
        let rate = p.operations as f64 / p.elapsed.as_secs_f64().max(1e-3);
        let warming = if p.warming_up { " (warming up)" } else { "" };
        running.set_message(format!("{} tx/s{warming}", grouped(rate as u64)));
    })?;
    running.finish_and_clear();
    engine.close()?;
    Ok(report)
}

/// Measures the bare log beside the database, on the same device.
fn measure_limit(dir: &Path, args: &WorkloadArgs, spec: &Spec) -> Result<BareLogReport, Failure> {
    let place = dir.join("bare-log");
    fs::create_dir_all(&place)
        .map_err(|error| Failure::io(format_args!("cannot create {}", place.display()), &error))?;
    let device = braid_io::open_directory(&place, args.device)
        .map_err(|error| Failure::io(format_args!("cannot open {}", place.display()), &error))?;
    let report = braid_bench::bare_log(
        &device,
        spec.threads,
        spec.in_flight,
        spec.log_record_bytes(),
        spec.measure,
    )?;
    drop(device);
    fs::remove_dir_all(&place)
        .map_err(|error| Failure::io(format_args!("cannot remove {}", place.display()), &error))?;
    Ok(report)
}
