//! `braid bench stalls`: what a steady load notices of everything else that a database does.

use std::path::PathBuf;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid_bench::engines;
use braid_bench::{Scenario, StallsReport, StallsSpec};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::failure::Failure;
use crate::numbers::{parse, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

#[derive(Debug, clap::Args)]
pub(crate) struct StallsArgs {
    /// Engines to measure, one after the other
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "braid"
    )]
    engine: Vec<String>,

    /// Scenarios to measure after the quiet run [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = scenario_parser())]
    scenario: Vec<Scenario>,

    /// Factor of all amounts of data, and of the default pool; 0.1 for a short run
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,

    /// Duration of each repeated disturbance, and of the load after the end of each single one
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,

    /// Number of threads of the load
    #[arg(long, value_name = "N", default_value_t = 8)]
    threads: usize,

    /// Commits per second of the load [default: half of what its threads reach without a pause]
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,

    /// Size of the buffer pool [default: 256 times the scale, at least 32]
    #[arg(long, value_name = "MIB")]
    pool_mib: Option<usize>,

    /// Directory for the databases, which are removed [default: a new one in TMPDIR or here]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Device to store on: auto, uring or file
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,

    /// File for a figure of the result, as SVG
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,

    /// Print one JSON object on one line
    #[arg(long)]
    json: bool,
}

fn scenario_parser() -> impl TypedValueParser<Value = Scenario> {
    let values = Scenario::ALL.map(|s| PossibleValue::new(s.name()).help(s.description()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Scenario>())
}

pub(crate) fn run(args: &StallsArgs, output: &mut Output) -> Result<(), Failure> {
    if let Some(path) = &args.figure {
        braid_bench::check_plots(path)?;
    }
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    let mut spec = StallsSpec {
        device: args.device,
        scale: args.scale,
        seconds: args.seconds,
        threads: args.threads,
        rate: args.rate,
        pool_bytes: args.pool_mib.map(|mib| mib.saturating_mul(1 << 20)),
        ..StallsSpec::new(scratch.path())
    };
    if !args.scenario.is_empty() {
        spec.scenarios.clone_from(&args.scenario);
    }
    for engine in &args.engine {
        engines::find(engine)?;
    }
    let mut reports = Vec::new();
    for engine in &args.engine {
        spec.engine.clone_from(engine);
        let report = measure(&spec)?;
        if args.json {
            let json = report
                .to_json()
                .map_err(|error| Failure::Failed(error.to_string()))?;
            output.line(json)?;
        } else {
            output.line(format_args!("{report}"))?;
        }
        reports.push(report);
    }
    if !args.json && reports.len() > 1 {
        output.line(braid_bench::stalls_side_by_side(&reports).trim_end())?;
    }
    if let Some(path) = &args.figure {
        let figure = braid_bench::stalls_figure(&reports, path)?;
        std::fs::write(path, figure).map_err(|error| {
            Failure::io(format_args!("cannot write {}", path.display()), &error)
        })?;
    }
    scratch.remove()
}

fn measure(spec: &StallsSpec) -> Result<StallsReport, Failure> {
    let bar = output::bar(0, "measuring");
    let report = braid_bench::measure_stalls(spec, &mut |what, step, steps| {
        bar.set_length(steps as u64);
        bar.set_position(step as u64);
        bar.set_message(format!("{}: {what}", spec.engine));
        bar.tick();
    });
    bar.finish_and_clear();
    Ok(report?)
}
