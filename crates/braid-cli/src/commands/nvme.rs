//! `braid nvme`: lists drives, and creates, shows and checks volumes.

use std::collections::BTreeMap;

use braid_nvme::volume::{Contents, FormatOptions, Report, contents, fsck};
use braid_nvme::{Blocking, DriveClaim, DriveError, DriveName, Machine, Volume, VolumeError};

use crate::failure::Failure;
use crate::numbers::{grouped, mib, parse};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct NvmeArgs {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NvmeCommand {
    /// List the NVMe controllers of this machine, their drivers and namespaces
    List(ListArgs),
    /// Show a drive, and the volume and databases on it
    ///
    /// Changes nothing. No other process may have the drive open.
    Info(InfoArgs),
    /// Create an empty volume on a drive; everything on the drive is lost
    ///
    /// Refuses a drive that contains partitions, a file system, another volume or unknown bytes,
    /// unless forced. Always refuses a drive that is mounted or otherwise in use, and the drive with
    /// the root file system.
    Format(FormatArgs),
    /// Check the superblocks, the journal and the directory of a volume
    ///
    /// Changes nothing. Exits with 1 and lists the faults if there are any. `braid verify` checks
    /// the databases themselves.
    Fsck(DriveArgs),
    /// Remove a database from a volume
    Remove(RemoveArgs),
    /// Give a controller to the driver vfio-pci, for databases named vfio:ADDRESS/NAME
    ///
    /// Refuses a controller whose namespaces are in use. Needs root, an IOMMU, and the module
    /// vfio-pci.
    Bind(ControllerArgs),
    /// Return a controller to the kernel's driver
    Unbind(ControllerArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct DriveArgs {
    /// Drive: /dev/nvme0n1, /dev/ng0n1, vfio:0000:00:04.0, or a file of fixed length
    #[arg(value_parser = parse::<DriveName>)]
    drive: DriveName,
}

#[derive(Debug, clap::Args)]
struct InfoArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct FormatArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// Overwrite what the drive contains
    #[arg(long)]
    force: bool,
    /// Size of an allocation unit: a power of two from 4096 to 2^30 [default: 1 MiB, or 64 KiB on a
    /// drive of less than 4 GiB]
    #[arg(long, value_name = "BYTES")]
    unit: Option<u64>,
    /// Size of each half of the directory's journal: a multiple of 4096 up to 2^30 [default: 256
    /// KiB, more on a drive of more than 1 GiB]
    #[arg(long, value_name = "BYTES")]
    journal: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct RemoveArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// Name of the database, as info shows it
    name: String,
}

#[derive(Debug, clap::Args)]
struct ControllerArgs {
    /// PCI address of the controller, such as 0000:00:04.0
    address: String,
}

pub(crate) fn run(args: &NvmeArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        NvmeCommand::List(args) => list(args, output),
        NvmeCommand::Info(args) => info(args, output),
        NvmeCommand::Format(args) => format(args, output),
        NvmeCommand::Fsck(args) => check(args, output),
        NvmeCommand::Remove(args) => remove(args, output),
        NvmeCommand::Bind(args) => {
            Machine::default().bind(&args.address)?;
            output.line(format_args!("{}: bound to vfio-pci", args.address))
        }
        NvmeCommand::Unbind(args) => {
            Machine::default().unbind(&args.address)?;
            output.line(format_args!(
                "{}: returned to the kernel's driver",
                args.address
            ))
        }
    }
}

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// Names the drive in the error of a volume.
fn on(drive: &DriveName) -> impl Fn(VolumeError) -> Failure {
    move |error| match error {
        VolumeError::NotAVolume { found } => Failure::Failed(format!(
            "{drive}: no Braid volume ({found}); check the name, or create a volume (braid nvme \
             format)"
        )),
        VolumeError::Damaged { what } => Failure::Failed(format!(
            "{drive}: the volume is damaged: {what}; run `braid nvme fsck`, and restore the \
             databases from backups"
        )),
        error => Failure::Failed(format!("{drive}: {error}")),
    }
}

fn list(args: &ListArgs, output: &mut Output) -> Result<(), Failure> {
    let controllers = Machine::default().controllers();
    if args.json {
        let rows: Vec<serde_json::Value> = controllers
            .iter()
            .map(|controller| {
                let namespaces = controller.namespaces.iter().map(|namespace| {
                    serde_json::json!({
                        "block": namespace.block,
                        "passthrough": namespace.passthrough,
                        "bytes": namespace.bytes,
                    })
                });
                serde_json::json!({
                    "address": controller.address,
                    "driver": controller.driver,
                    "iommu_group": controller.iommu_group,
                    "model": controller.model,
                    "serial": controller.serial,
                    "namespaces": namespaces.collect::<Vec<_>>(),
                })
            })
            .collect();
        return output.line(serde_json::json!({ "controllers": rows }));
    }
    if controllers.is_empty() {
        return output.line("no NVMe controller");
    }
    for controller in controllers {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".into());
        output.line(format_args!(
            "{}  driver {}, IOMMU group {}  {}",
            controller.address,
            or_none(controller.driver.clone()),
            or_none(controller.iommu_group.clone()),
            controller.model
        ))?;
        if controller.driver.as_deref() == Some("vfio-pci") {
            output.line(format_args!("    vfio:{}/NAME", controller.address))?;
        }
        for namespace in &controller.namespaces {
            let size = mib(namespace.bytes);
            output.line(format_args!(
                "    nvme:{}/NAME  {size}",
                namespace.block.display()
            ))?;
            if let Some(passthrough) = &namespace.passthrough {
                output.line(format_args!(
                    "    nvme:{}/NAME  {size}",
                    passthrough.display()
                ))?;
            }
        }
    }
    Ok(())
}

fn open(drive: &DriveName) -> Result<(Blocking, DriveClaim), Failure> {
    let opened = drive.open()?;
    Ok((Blocking::new(opened.drive), opened.claim))
}

/// A row of `info`.
type Row = (&'static str, String);

fn drive_rows(name: &DriveName, drive: &Blocking) -> Vec<Row> {
    let info = drive.info();
    let mut rows = vec![
        ("drive", name.to_string()),
        ("path", info.path.to_string()),
        (
            "size",
            format!(
                "{}, in blocks of {} bytes",
                mib(info.blocks.saturating_mul(info.block_size as u64)),
                info.block_size
            ),
        ),
        (
            "durable",
            if info.volatile_cache {
                "volatile cache: durable writes force unit access (FUA)".into()
            } else {
                "no volatile cache: every completed write is durable".into()
            },
        ),
        (
            "atomic",
            format!("{} blocks in a power failure", info.atomic_write_blocks),
        ),
        (
            "transfers",
            format!(
                "at most {} bytes, {} in flight in a queue",
                grouped(info.max_transfer as u64),
                info.queue_depth
            ),
        ),
    ];
    if !info.model.is_empty() {
        rows.push(("model", format!("{} ({})", info.model, info.serial)));
    }
    rows
}

/// Number of files and bytes of each database.
fn databases(report: &Report) -> BTreeMap<&str, (u64, u64)> {
    let mut all: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, len) in &report.files {
        let database = name
            .split_once('/')
            .map_or(&**name, |(database, _)| database);
        let entry = all.entry(database).or_default();
        entry.0 += 1;
        entry.1 += len;
    }
    all
}

fn info(args: &InfoArgs, output: &mut Output) -> Result<(), Failure> {
    let name = &args.drive.drive;
    let (drive, _claim) = open(name)?;
    let found = contents(&drive).map_err(on(name))?;
    let report = match found {
        Contents::Volume => Some(fsck(&drive).map_err(on(name))?),
        _ => None,
    };
    if args.json {
        return output.line(json(name, &drive, &found, report.as_ref()));
    }
    let mut rows = drive_rows(name, &drive);
    match &report {
        None => rows.push(("volume", format!("none: {}", describe(&found)))),
        Some(report) => rows.extend(volume_rows(report)),
    }
    for (name, value) in rows {
        output.line(format_args!("{name:<14}{value}"))?;
    }
    Ok(())
}

fn volume_rows(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(info) = &report.info {
        rows.push(("volume", format!("{:032x}", info.identity)));
        rows.push((
            "space",
            format!(
                "{} free of {}, in units of {} bytes",
                mib(info.free),
                mib(info.capacity),
                grouped(info.unit)
            ),
        ));
        rows.push((
            "directory",
            format!(
                "{} files; {} of {} bytes of the journal in use",
                grouped(info.files),
                grouped(info.journal_used),
                grouped(info.journal)
            ),
        ));
    }
    if !report.faults.is_empty() {
        let count = report.faults.len();
        rows.push(("damage", format!("{count} faults; see braid nvme fsck")));
    }
    for (database, (files, bytes)) in databases(report) {
        rows.push((
            "database",
            format!("{database}: {files} files, {}", mib(bytes)),
        ));
    }
    rows
}

fn json(
    name: &DriveName,
    drive: &Blocking,
    found: &Contents,
    report: Option<&Report>,
) -> serde_json::Value {
    let info = drive.info();
    let volume = report.map(|report| {
        let rows = databases(report).into_iter().map(|(name, (files, bytes))| {
            serde_json::json!({ "name": name, "files": files, "bytes": bytes })
        });
        let rows: Vec<serde_json::Value> = rows.collect();
        let volume = report.info.as_ref().map(|info| {
            serde_json::json!({
                "identity": format!("{:032x}", info.identity),
                "bytes": info.bytes,
                "unit_bytes": info.unit,
                "capacity": info.capacity,
                "free": info.free,
                "journal_bytes": info.journal,
                "journal_used": info.journal_used,
                "generation": info.generation,
            })
        });
        serde_json::json!({
            "volume": volume,
            "databases": rows,
            "faults": report.faults,
            "notes": report.notes,
        })
    });
    serde_json::json!({
        "drive": name.to_string(),
        "path": info.path.to_string(),
        "model": info.model,
        "serial": info.serial,
        "blocks": info.blocks,
        "block_bytes": info.block_size,
        "volatile_cache": info.volatile_cache,
        "atomic_write_blocks": info.atomic_write_blocks,
        "max_transfer": info.max_transfer,
        "queue_depth": info.queue_depth,
        "contents": describe(found),
        "volume": volume,
    })
}

fn describe(found: &Contents) -> String {
    match found {
        Contents::Volume => "a Braid volume".into(),
        Contents::Foreign(what) => (*what).into(),
        Contents::Nothing => "nothing".into(),
        _ => "bytes of an unknown kind".into(),
    }
}

fn format(args: &FormatArgs, output: &mut Output) -> Result<(), Failure> {
    let name = &args.drive.drive;
    let refuse = |reason: String| Err(Failure::Failed(format!("cannot format {name}: {reason}")));
    if name.has_root() {
        return refuse("it is the drive with the root file system; choose another drive".into());
    }
    if let Some(by) = name.uses().into_iter().next() {
        return refuse(format!(
            "{by}; end that use first, which --force does not do"
        ));
    }
    let (drive, _claim) = open(name)?;
    let found = contents(&drive).map_err(on(name))?;
    if found != Contents::Nothing && !args.force {
        let found = describe(&found);
        return refuse(format!(
            "it contains {found}, which would be lost; choose another drive, or add --force"
        ));
    }
    let mut options = FormatOptions::default();
    options.unit = args.unit;
    options.journal = args.journal;
    let volume = Volume::format(drive, options).map_err(on(name))?;
    let info = volume.info();
    output.line(format_args!(
        "{name}: formatted, {} for databases, in units of {} bytes",
        mib(info.capacity),
        grouped(info.unit)
    ))
}

fn check(args: &DriveArgs, output: &mut Output) -> Result<(), Failure> {
    let name = &args.drive;
    let (drive, _claim) = open(name)?;
    let report = fsck(&drive).map_err(on(name))?;
    for note in &report.notes {
        output.line(format_args!("note: {note}"))?;
    }
    for fault in &report.faults {
        output.line(format_args!("damaged: {fault}"))?;
    }
    if !report.faults.is_empty() {
        let plural = if report.faults.len() == 1 { "" } else { "s" };
        let count = grouped(report.faults.len() as u64);
        return Err(Failure::Failed(format!("{name}: {count} fault{plural}")));
    }
    let count = grouped(report.files.len() as u64);
    output.line(format_args!("{name}: sound ({count} files)"))
}

fn remove(args: &RemoveArgs, output: &mut Output) -> Result<(), Failure> {
    let name = &args.drive.drive;
    let (drive, _claim) = open(name)?;
    let volume = Volume::open(drive).map_err(on(name))?;
    let prefix = format!("{}/", args.name);
    let files = volume.list().into_iter().map(|(file, _)| file);
    let files: Vec<String> = files.filter(|file| file.starts_with(&prefix)).collect();
    if files.is_empty() {
        return Err(Failure::Failed(format!(
            "{name}: there is no database {:?}; see braid nvme info",
            args.name
        )));
    }
    for file in &files {
        volume.remove(file).map_err(on(name))?;
    }
    volume.commit().map_err(on(name))?;
    output.line(format_args!("{name}/{}: removed", args.name))
}
