//! `braid pmem`: creates and examines regions of persistent memory.

use std::fmt;
use std::path::{Path, PathBuf};

use braid_pmem::{
    Heap, HeapError, HeapReport, MapAs, MapError, MappingKind, PersistenceDomain, Region,
    RegionError, RegionOptions,
};

use crate::failure::Failure;
use crate::numbers::{grouped, mib, parse};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct PmemArgs {
    #[command(subcommand)]
    command: PmemCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PmemCommand {
    /// Show what a region is, and how this machine makes its stores durable
    ///
    /// Reads only, so it works while another process has the region open.
    Info(InfoArgs),
    /// Create a region in a new file
    ///
    /// Never overwrites a file.
    Create(CreateArgs),
    /// Read every byte of a region, and check its header and heaps
    ///
    /// Changes nothing. Exits with 1 and lists the damage if there is any.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
struct InfoArgs {
    /// File of the region
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// File of the region, which must not exist
    file: PathBuf,
    /// Length of the region in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    size: u64,
    /// Kind of memory: auto, dax, file or emulated
    ///
    /// auto is dax where the file system offers direct access, and otherwise file. emulated loses
    /// its bytes with the power, and is for measurements.
    #[arg(long, default_value = "auto", value_parser = parse::<MapAs>)]
    kind: MapAs,
    /// Size of the pages that the region will contain
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = parse_page_size)]
    page_size: u32,
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// File of the region
    file: PathBuf,
}

/// Parses a power of two from 512 to 1 MiB.
fn parse_page_size(text: &str) -> Result<u32, String> {
    let bytes: u32 = text
        .parse()
        .map_err(|_| "must be a number of bytes, like 4096".to_owned())?;
    if bytes.is_power_of_two() && (512..=1 << 20).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("must be a power of two from 512 to 1048576".to_owned())
    }
}

pub(crate) fn run(args: &PmemArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        PmemCommand::Info(args) => info(args, output),
        PmemCommand::Create(args) => create(args, output),
        PmemCommand::Check(args) => check(args, output),
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<HeapError> for Failure {
    fn from(error: HeapError) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// Opens a region for reading, whatever its memory is.
fn open(file: &Path) -> Result<Region, RegionError> {
    let options = RegionOptions::default();
    match Region::open_read_only(file, &options) {
        // Reading makes nothing durable, so it need not be asked for by name.
        Err(RegionError::Map {
            source: MapError::Volatile,
            ..
        }) => {
            let emulated = MapAs::Emulated { line_latency: 0 };
            Region::open_read_only(file, &options.map_as(emulated))
        }
        result => result,
    }
}

/// A row of `info`.
type Row = (&'static str, String);

/// Says what a kind of memory means for durability.
fn memory(kind: MappingKind) -> &'static str {
    match kind {
        MappingKind::Dax => "dax: persistent memory, accessed directly",
        MappingKind::File => "file: each fence is a system call that writes pages, which is slow",
        MappingKind::Emulated => "emulated: ordinary memory, which loses its bytes with the power",
        _ => "simulated",
    }
}

/// Describes the persistence domain, which only persistent memory has.
fn domain(kind: MappingKind) -> Option<&'static str> {
    (kind == MappingKind::Dax).then(|| match PersistenceDomain::read() {
        PersistenceDomain::Memory => "memory: lines are flushed",
        PersistenceDomain::Caches => "caches: no line needs a flush",
    })
}

/// The heaps of a region: at the first free byte, and where roots point.
fn heaps(region: &Region) -> Vec<(u64, Result<HeapReport, HeapError>)> {
    let roots = (0..Region::ROOTS).filter_map(|index| region.root(index).ok());
    let mut offsets: Vec<u64> = std::iter::once(Region::DATA_START).chain(roots).collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
        .into_iter()
        .map(|offset| (offset, Heap::inspect(region, offset)))
        .filter(|(_, report)| !matches!(report, Err(HeapError::NotAHeap { .. })))
        .collect()
}

fn heap_line(offset: u64, report: &HeapReport) -> String {
    let used: u64 = report.in_use.iter().map(|block| block.len).sum();
    format!(
        "at offset {}: {} blocks with {} in use, {} pending, {} free",
        grouped(offset),
        grouped(report.in_use.len() as u64),
        mib(used),
        grouped(report.pending.len() as u64),
        grouped(report.free)
    )
}

fn info(args: &InfoArgs, output: &mut Output) -> Result<(), Failure> {
    let region = open(&args.file)?;
    if args.json {
        return output.line(json(&region, &args.file)?);
    }
    for (name, value) in rows(&region, &args.file)? {
        output.line(format_args!("{name:<14}{value}"))?;
    }
    Ok(())
}

fn rows(region: &Region, file: &Path) -> Result<Vec<Row>, Failure> {
    let kind = region.mapping().kind();
    let mut rows = vec![
        ("region", file.display().to_string()),
        ("identity", format!("{:032x}", region.identity())),
        (
            "length",
            format!(
                "{}, in pages of {} bytes",
                mib(region.len()),
                grouped(u64::from(region.page_size()))
            ),
        ),
        ("state", state(region).to_owned()),
        ("memory", memory(kind).to_owned()),
    ];
    rows.extend(domain(kind).map(|domain| ("persistent", domain.to_owned())));
    let method = region.mapping().flush_method();
    let lines = region.mapping().line_size();
    rows.push(("flush", format!("{method}, for lines of {lines} bytes")));
    let previous = region.previous_flush_method();
    if previous != Some(method) {
        let previous = previous.map_or("unknown".to_owned(), |method| method.to_string());
        rows.push(("last flush", format!("{previous}, by the newest writer")));
    }
    for index in 0..Region::ROOTS {
        let root = region.root(index).map_err(|error| failed(file, error))?;
        if root != 0 {
            rows.push(("root", format!("{index}: {}", grouped(root))));
        }
    }
    for (offset, report) in heaps(region) {
        rows.push(("heap", heap_line(offset, &report?)));
    }
    Ok(rows)
}

fn state(region: &Region) -> &'static str {
    if region.was_closed() {
        "closed"
    } else {
        "open in another process, or left by a crash"
    }
}

fn json(region: &Region, file: &Path) -> Result<serde_json::Value, Failure> {
    let mapping = region.mapping();
    let roots: Result<Vec<u64>, _> = (0..Region::ROOTS).map(|index| region.root(index)).collect();
    let mut heap_rows = Vec::new();
    for (offset, report) in heaps(region) {
        let report = report?;
        heap_rows.push(serde_json::json!({
            "offset": offset,
            "blocks_in_use": report.in_use.len(),
            "bytes_in_use": report.in_use.iter().map(|block| block.len).sum::<u64>(),
            "blocks_pending": report.pending.len(),
            "blocks_free": report.free,
        }));
    }
    Ok(serde_json::json!({
        "region": file.display().to_string(),
        "identity": format!("{:032x}", region.identity()),
        "bytes": region.len(),
        "page_bytes": region.page_size(),
        "line_bytes": mapping.line_size(),
        "closed": region.was_closed(),
        "memory": mapping.kind().to_string(),
        "flush": mapping.flush_method().to_string(),
        "last_flush": region.previous_flush_method().map(|method| method.to_string()),
        "roots": roots.map_err(|error| failed(file, error))?,
        "heaps": heap_rows,
    }))
}

fn failed(file: &Path, error: impl fmt::Display) -> Failure {
    Failure::Failed(format!("region {}: {error}", file.display()))
}

fn create(args: &CreateArgs, output: &mut Output) -> Result<(), Failure> {
    let options = RegionOptions::default()
        .map_as(args.kind)
        .page_size(args.page_size);
    let region = Region::create(&args.file, args.size << 20, &options)?;
    let kind = region.mapping().kind();
    let len = mib(region.len());
    region.close()?;
    output.line(format_args!(
        "{}: created, {len} ({})",
        args.file.display(),
        memory(kind)
    ))
}

fn check(args: &CheckArgs, output: &mut Output) -> Result<(), Failure> {
    let region = open(&args.file)?;
    let mut damaged = Vec::new();
    region.check(&mut |damage| damaged.push(damage.to_string()));
    let mut heap_lines = Vec::new();
    for (offset, report) in heaps(&region) {
        match report {
            Ok(report) => heap_lines.push(heap_line(offset, &report)),
            Err(error) => damaged.push(error.to_string()),
        }
    }
    for damage in &damaged {
        output.line(format_args!("damaged: {damage}"))?;
    }
    let file = args.file.display();
    if !damaged.is_empty() {
        let plural = if damaged.len() == 1 { "" } else { "s" };
        let count = grouped(damaged.len() as u64);
        return Err(Failure::Failed(format!(
            "{file}: {count} place{plural} damaged"
        )));
    }
    output.line(format_args!(
        "{file}: sound ({}, {})",
        mib(region.len()),
        state(&region)
    ))?;
    for line in heap_lines {
        output.line(format_args!("heap {line}"))?;
    }
    Ok(())
}
