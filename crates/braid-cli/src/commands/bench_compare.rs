//! `braid bench compare`: compares Braid with other engines.

use std::path::PathBuf;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid_bench::Workload;
use braid_bench::compare::{self, CompareSpec, Event};
use indicatif::ProgressBar;

use super::bench::workload_parser;
use crate::failure::Failure;
use crate::numbers::{grouped, parse, parse_ratio, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Directory for the measurements and, in builds with the feature plots, plots and a report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Workloads to run
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "u1,u10,ycsb-a,ycsb-c,ycsb-e",
        value_parser = workload_parser()
    )]
    workloads: Vec<Workload>,

    /// Engines to measure [default: all that this build and this machine have; build with
    /// `--features peers` for more than Braid]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    engines: Vec<String>,

    /// Numbers of threads to measure with
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32"
    )]
    threads: Vec<usize>,

    /// Numbers of durable commits that each thread keeps in flight; engines that always wait take
    /// part with 1 only
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    in_flight: Vec<usize>,

    /// Number of repetitions of each measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,

    /// Duration of each measurement; `load` runs to its end
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,

    /// Duration of the run before each measurement [default: a fifth of it, at most 2]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    warm_up: Option<Duration>,

    /// Number of records to load [default: 65536 for u1 and u10, 1000000 for load and ycsb]
    #[arg(long, value_name = "N")]
    records: Option<u64>,

    /// Size the engines' caches so that the data are this many times larger; does not limit the
    /// system's page cache, which some peers use
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    data_over_pool: Option<f64>,

    /// Directory for the databases [default: a new one in TMPDIR or here, removed afterwards]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Device for Braid and the bare log: auto, uring, file, memory, pmem, pmem-file or pmem-emulated
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// Measure nothing; redraw the plots and the report from the measurements in --out
    #[arg(long)]
    redraw: bool,
}

pub(crate) fn run(args: &CompareArgs, output: &mut Output) -> Result<(), Failure> {
    let violations = if args.redraw {
        braid_bench::check_plots(&args.out)?;
        0
    } else {
        measure(args, output)?
    };
    if !braid_bench::PLOTS {
        output.line(format_args!(
            "the measurements are in {}; to plot them, build with --features plots and use --redraw",
            args.out.display()
        ))?;
    } else if let [report, plots @ ..] = &compare::draw(&args.out)?[..] {
        output.line(format_args!(
            "{}, and {} plots next to it as SVG and PNG",
            report.display(),
            plots.len() / 2
        ))?;
    }
    if violations > 0 {
        return Err(Failure::Failed(format!(
            "{violations} checks of the data failed"
        )));
    }
    Ok(())
}

/// Measures the engines; returns the number of failed checks of the data.
fn measure(args: &CompareArgs, output: &mut Output) -> Result<usize, Failure> {
    let mut spec = CompareSpec {
        workloads: args.workloads.clone(),
        engines: args.engines.clone(),
        threads: args.threads.clone(),
        in_flight: args.in_flight.clone(),
        repeats: args.repeat,
        each: args.seconds,
        warm_up: args
            .warm_up
            .unwrap_or_else(|| (args.seconds / 5).min(Duration::from_secs(2))),
        records: args.records,
        data_over_pool: args.data_over_pool,
        device: args.device,
        ..CompareSpec::new("", &args.out)
    };
    // Check before any directory is created.
    spec.check()?;
    let scratch = Scratch::new(args.dir.as_deref(), "braid-compare-")?;
    spec.dir = scratch.path().to_owned();
    let bar = output::bar_with_time(0, "comparing");
    let mut result = Ok(());
    let run = compare::compare(&spec, &mut |event| {
        if result.is_ok() {
            result = tell(&event, &bar, output);
        }
    })?;
    bar.finish_and_clear();
    result?;
    scratch.remove()?;
    for violation in &run.violations {
        output.line(format_args!("VIOLATED {violation}"))?;
    }
    Ok(run.violations.len())
}

/// Reports an event. The bar counts thousandths of measurements, so that it also moves within one.
fn tell(event: &Event<'_>, bar: &ProgressBar, output: &mut Output) -> Result<(), Failure> {
    match event {
        Event::Device(what, step, steps) => {
            bar.set_message(format!("the device: {what}, {} of {steps}", step + 1));
            bar.tick();
        }
        Event::Loading(engine, workload, loaded, records) => {
            let percent = loaded * 100 / records.max(&1);
            bar.set_message(format!("{workload}, {engine}: loading, {percent} %"));
        }
        Event::Warming(engine, workload) => {
            bar.set_message(format!("{workload}, {engine}: reading everything once"));
        }
        Event::Measuring {
            engine,
            workload,
            threads,
            done,
            total,
        } => {
            bar.set_length(*total as u64 * 1_000);
            bar.set_position((done * 1e3) as u64);
            bar.set_message(format!("{workload}, {engine}, {threads} threads"));
        }
        Event::Measured(row) => {
            let (rate, unit) = match row.records_per_s {
                Some(records) => (records, "rec/s"),
                None => (row.tx_per_s, "tx/s"),
            };
            let line = format!(
                "{:<8} {:>2}  {:<18} {:>4} threads {:>5} in flight {:>12} {unit:<5}  p50 {:>8.1} us  p99 {:>9.1} us",
                row.workload,
                row.repeat,
                row.engine,
                row.threads,
                row.in_flight,
                grouped(rate as u64),
                row.p50_us,
                row.p99_us
            );
            return bar.suspend(|| output.line_now(line));
        }
        Event::LeftOut(left_out) => {
            let line = format!(
                "left out: {}, {}: {}",
                left_out.engine, left_out.workload, left_out.why
            );
            return bar.suspend(|| output.line_now(line));
        }
        _ => {}
    }
    Ok(())
}
