//! `braid bench paper`: repeats the measurements of the papers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::device::DeviceChoice;
use braid_bench::{Diagram, Figure, Model, PaperSpec};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::failure::Failure;
use crate::numbers::{grouped, parse, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

#[derive(Debug, clap::Args)]
pub(crate) struct PaperArgs {
    /// Figure to measure
    #[arg(value_parser = figures_parser())]
    figure: Figures,

    /// Directory for the tables and, in builds with the feature plots, the plots
    #[arg(long, value_name = "DIR", default_value = "paper-figures")]
    out: PathBuf,

    /// Duration of the measurement of each point
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,

    /// Numbers of threads to measure with [default: 1,2,4,8,16, or 1,8,16,32,64 clients of nvme
    /// and server]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    threads: Vec<usize>,

    /// Number of records of the engine's workloads [default: 65536, as in the papers], or of rows
    /// between two checkpoints of nvwal, and of the table of nvwal-sqlite [default: 10000]
    #[arg(long, value_name = "N")]
    records: Option<u64>,

    /// Number of commits that each thread keeps in flight
    #[arg(long, value_name = "N", default_value_t = 100)]
    in_flight: usize,

    /// Number of log lanes of the protocols with several strands; 0 for one per thread, as in the
    /// papers
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: usize,

    /// Number of measurements of each figure; each point is their median
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..))]
    repeat: u8,

    /// Drive for nvme, with a volume on it (braid nvme format): nvme:PATH or vfio:ADDRESS; repeat
    /// the option for several [default: a file stands in for a drive]
    #[arg(long = "drive", value_name = "DRIVE")]
    drives: Vec<String>,

    /// Server to measure for the figure server: HOST:PORT, the path of a Unix socket, or a URL, after
    /// the name that it has in the figure; repeat the option for several
    #[arg(long = "server", value_name = "NAME=ADDRESS", value_parser = parse_server)]
    servers: Vec<(String, String)>,

    /// Model of a machine for goldenx: remote-latency takes the paper's times of persistent memory on two
    /// memory nodes [default: the machine's own nodes, of which there must be two]
    #[arg(long, value_name = "MODEL", value_parser = parse::<Model>)]
    model: Option<Model>,

    /// Nanoseconds of a unit of the model's time, in which a read of 256 bytes on the own node takes 100:
    /// 3 for Optane
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    unit_nanos: u64,

    /// Directory to measure in [default: a new one in TMPDIR or here, removed afterwards]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Directory in memory for emulated persistent memory [default: a new one in /dev/shm, removed
    /// afterwards; the directory of --dir on systems without /dev/shm]
    #[arg(long, value_name = "DIR")]
    memory_dir: Option<PathBuf>,

    /// Kind of device: auto, uring, file, memory, pmem, pmem-file or pmem-emulated
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse::<DeviceChoice>)]
    device: DeviceChoice,
}

/// One figure, or all.
#[derive(Clone, Debug)]
struct Figures(Vec<Figure>);

fn figures_parser() -> impl TypedValueParser<Value = Figures> {
    let all = PossibleValue::new("all")
        .help("all of them that this build has, except server and goldenx");
    let one = Figure::ALL.map(|f| PossibleValue::new(f.name()).help(f.description()));
    PossibleValuesParser::new(one.into_iter().chain([all])).map(|name| {
        let chosen = Figure::ALL.into_iter();
        // Servers run elsewhere, and a machine with one memory node needs a model, so that one command
        // cannot measure them along with the rest.
        let is_apart = |f: &Figure| matches!(f, Figure::Server | Figure::Goldenx);
        let is_of_all = |f: &Figure| f.is_available() && !is_apart(f);
        Figures(
            chosen
                .filter(|f| (name == "all" && is_of_all(f)) || name == f.name())
                .collect(),
        )
    })
}

fn parse_server(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, address)) if !name.is_empty() && !address.is_empty() => {
            Ok((name.to_owned(), address.to_owned()))
        }
        _ => Err("must be a name and an address, like braid=localhost:6379".to_owned()),
    }
}

pub(crate) fn run(args: &PaperArgs, output: &mut Output) -> Result<(), Failure> {
    if args.threads.iter().any(|n| !(1..=256).contains(n)) {
        return Err(Failure::Usage(
            "invalid --threads: must be numbers from 1 to 256".into(),
        ));
    }
    if args.in_flight == 0 {
        return Err(Failure::Usage(
            "invalid --in-flight: must be at least 1".into(),
        ));
    }
    if args.lanes > *args.threads.iter().min().unwrap_or(&1) {
        return Err(Failure::Usage(
            "invalid --lanes: must be at most the smallest number of threads; 0 takes one per thread".into(),
        ));
    }
    if args.threads.iter().any(|&n| n > 32) && args.lanes == 0 {
        return Err(Failure::Usage(
            "invalid --lanes: 0 works with at most 32 threads".into(),
        ));
    }
    std::fs::create_dir_all(&args.out).map_err(|error| {
        Failure::io(format_args!("cannot create {}", args.out.display()), &error)
    })?;
    let scratch = Scratch::new(args.dir.as_deref(), "braid-paper-")?;
    let memory = match &args.memory_dir {
        None if Path::new(MEMORY).is_dir() => Scratch::new_in(Path::new(MEMORY), "braid-paper-")?,
        None => Scratch::new(Some(&scratch.path().join("memory")), "")?,
        named => Scratch::new(named.as_deref(), "")?,
    };
    let mut spec = PaperSpec {
        dir: scratch.path().join("run"),
        memory_dir: memory.path().join("run"),
        device: args.device,
        each: args.seconds,
        drives: args.drives.clone(),
        servers: args.servers.clone(),
        model: args.model,
        unit_nanos: args.unit_nanos,
        threads: args.threads.clone(),
        records: args.records,
        in_flight: args.in_flight,
        lanes: args.lanes,
        repeat: usize::from(args.repeat),
    };
    for &figure in &args.figure.0 {
        if args.threads.is_empty() {
            spec.threads = figure.default_threads().to_vec();
        }
        let bar = output::bar(0, "measuring");
        let diagrams = braid_bench::measure_figure(figure, &spec, &mut |what| {
            bar.set_message(what.to_owned());
            bar.tick();
        })?;
        bar.finish_and_clear();
        for diagram in &diagrams {
            let written = diagram.write(&args.out)?;
            print(diagram, output)?;
            for path in written {
                output.line(format_args!("  {}", path.display()))?;
            }
            output.line("")?;
        }
    }
    memory.remove()?;
    scratch.remove()
}

/// Prints a row for each series and a column for each place on the horizontal axis.
fn print(diagram: &Diagram, output: &mut Output) -> Result<(), Failure> {
    output.line(format_args!(
        "{} ({}, by {})",
        diagram.title, diagram.y, diagram.x
    ))?;
    let mut places: Vec<f64> = Vec::new();
    let mut series: Vec<&str> = Vec::new();
    for point in &diagram.points {
        if !places.contains(&point.x) {
            places.push(point.x);
        }
        if !series.contains(&point.series.as_str()) {
            series.push(&point.series);
        }
    }
    if places.len() > 8 {
        // For a curve over time, print only both ends.
        places.drain(4..places.len() - 4);
    }
    let head = places
        .iter()
        .map(|x| format!("{x:>16.2}"))
        .collect::<String>();
    output.line(format_args!("  {:<16}{head}", ""))?;
    for name in series {
        let value = |x: &f64| {
            let found = diagram
                .points
                .iter()
                .find(|p| p.series == name && p.x == *x);
            let text = found.map(|p| match p.y {
                y if y >= 1e3 => grouped(y as u64),
                y => format!("{y:.1}"),
            });
            format!("{:>16}", text.unwrap_or_default())
        };
        let row = places.iter().map(value).collect::<String>();
        output.line(format_args!("  {name:<16}{row}"))?;
    }
    Ok(())
}
