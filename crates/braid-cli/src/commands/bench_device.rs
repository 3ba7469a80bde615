//! `braid bench device`: measures the disk without an engine.

use std::path::PathBuf;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid_bench::{BareLogReport, DeviceReport, DeviceRow};

use crate::failure::Failure;
use crate::numbers::{grouped, parse, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Directory to measure in [default: a new one in TMPDIR or here, removed afterwards]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Kind of device: auto, uring, file, memory, pmem, pmem-file or pmem-emulated
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// Duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,

    /// Print one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DeviceArgs, output: &mut Output) -> Result<(), Failure> {
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    let dir = scratch.path();
    let device = braid_io::open_directory(dir, args.device)
        .map_err(|error| Failure::io(format_args!("cannot open {}", dir.display()), &error))?;
    let bar = output::bar(0, "measuring");
    let report = braid_bench::measure_device(&device, args.seconds, &mut |what, step, steps| {
        bar.set_length(steps as u64);
        bar.set_position(step as u64);
        bar.set_message(what.to_owned());
        bar.tick();
    })?;
    bar.finish_and_clear();
    drop(device);
    if args.json {
        output.line(
            report
                .to_json()
                .map_err(|error| Failure::Failed(error.to_string()))?,
        )?;
    } else {
        print(&report, output)?;
    }
    scratch.remove()
}

fn print(report: &DeviceReport, output: &mut Output) -> Result<(), Failure> {
    let exchange = report.exchange_ns.map_or_else(String::new, |ns| {
        format!("; a cache line goes to another processor in {ns:.0} ns")
    });
    output.line(format_args!(
        "machine: {}{exchange}\ndevice: {}; {} durable 4 KiB writes a second, one at a time",
        report.machine,
        report.device,
        grouped(report.durable_4k_per_s as u64)
    ))?;
    output.line("")?;
    output.line(format_args!(
        "{:<28}{:>6}{:>10}{:>12}{:>12}{:>12}{:>12}",
        "test", "depth", "bytes", "per second", "MiB/s", "p50 us", "p99 us"
    ))?;
    for row in &report.rows {
        output.line(device_line(row))?;
    }
    output.line("")?;
    output.line(format_args!(
        "{:<28}{:>6}{:>10}{:>12}{:>12}{:>12}{:>12}",
        "bare group-commit log", "thr", "in flight", "per second", "CPU us", "p50 us", "p99 us"
    ))?;
    report
        .bare_log
        .iter()
        .try_for_each(|log| output.line(log_line(log)))
}

fn device_line(row: &DeviceRow) -> String {
    format!(
        "{:<28}{:>6}{:>10}{:>12}{:>12.1}{:>12.1}{:>12.1}",
        row.test,
        row.depth,
        row.bytes,
        grouped(row.ops_per_s as u64),
        row.mib_per_s(),
        row.p50_us,
        row.p99_us
    )
}

fn log_line(log: &BareLogReport) -> String {
    format!(
        "{:<28}{:>6}{:>10}{:>12}{:>12.2}{:>12.1}{:>12.1}",
        "",
        log.threads,
        log.in_flight,
        grouped(log.tx_per_s as u64),
        log.cpu_us_per_tx,
        log.p50_us,
        log.p99_us
    )
}
