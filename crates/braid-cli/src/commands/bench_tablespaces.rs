//! `braid bench tablespaces`: transactions across tablespaces, and logs on several devices.

use std::path::PathBuf;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid_bench::TablespacesSpec;

use crate::failure::Failure;
use crate::numbers::{parse, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

#[derive(Debug, clap::Args)]
pub(crate) struct TablespacesArgs {
    /// Duration of each run
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,

    /// Number of runs of each row, which alternate; each figure is their median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    repeat: u8,

    /// Bandwidth of each device in the measurement of the log's bandwidth
    #[arg(long, value_name = "MIB_PER_SECOND", default_value_t = 32,
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    bandwidth: u64,

    /// Directory for the databases, which are removed [default: a new one in TMPDIR or here]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Device to store on: auto, uring, file or memory
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// Print one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TablespacesArgs, output: &mut Output) -> Result<(), Failure> {
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    let spec = TablespacesSpec {
        dir: scratch.path().to_owned(),
        device: args.device,
        each: args.seconds,
        repeats: args.repeat.into(),
        bytes_per_s: args.bandwidth << 20,
    };
    let spinner = output::spinner();
    let report = braid_bench::measure_tablespaces(&spec, &mut |what| {
        spinner.set_message(what.to_owned());
        spinner.tick();
    })?;
    spinner.finish_and_clear();
    if args.json {
        let json = report
            .to_json()
            .map_err(|error| Failure::Failed(error.to_string()))?;
        output.line(json)?;
    } else {
        output.line(report)?;
    }
    scratch.remove()
}
