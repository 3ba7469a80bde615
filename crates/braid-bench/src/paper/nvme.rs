//! User-level NVMe: YCSB on a file system and on each path to a drive, by clients.

use std::fs;
use std::path::{Path, PathBuf};

use braid::device::DeviceChoice;
use braid_nvme::volume::FormatOptions;
use braid_nvme::{Blocking, DriveName, Volume};

use super::{Diagram, PaperSpec, RECORDS, new_directory, remove_directory};
use crate::engines::BraidEngine;
use crate::{BenchError, Engine, Report, Spec, Workload};

/// YCSB's load, each record in a transaction of its own, comes last because it takes space.
const WORKLOADS: [(Workload, &str); 5] = [
    (Workload::YcsbA, "ycsb-a"),
    (Workload::YcsbB, "ycsb-b"),
    (Workload::YcsbC, "ycsb-c"),
    (Workload::YcsbD, "ycsb-d"),
    (Workload::YcsbInsert, "load"),
];

/// What is measured: ending of the diagram's name, unit, value.
type Quantity = (&'static str, &'static str, fn(&Report) -> f64);

const QUANTITIES: [Quantity; 3] = [
    ("", "transactions/s", |report| report.tx_per_s),
    ("-latency", "mean latency, us", mean_latency),
    ("-cpu", "processor time of a transaction, us", |report| {
        report.cpu_us_per_tx
    }),
];

/// The data are this many times larger than the buffer pool, so that reads reach the drive.
const DATA_OVER_POOL: f64 = 4.0;

/// The smallest pool: enough for the pages that 64 clients use at once.
const LEAST_POOL: usize = 8 << 20;

/// Name of the database on a drive.
const DATABASE: &str = "braid-paper-nvme";

/// Bytes of a file that stands in for a drive, most of which are never written.
const STAND_IN: u64 = 16 << 30;

/// A place of the database.
struct Place {
    series: String,
    path: PathBuf,
}

/// Mean time of all transactions, reads included: each client waits for its own.
fn mean_latency(report: &Report) -> f64 {
    if report.tx_per_s > 0.0 {
        report.threads as f64 * 1e6 / report.tx_per_s
    } else {
        0.0
    }
}

/// Throughput, latency and processor time of the paper's workloads.
pub(super) fn by_clients(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    new_directory(&spec.dir)?;
    let (places, note) = places(spec)?;
    let mut diagrams = Vec::new();
    for (workload, short) in WORKLOADS {
        for (ending, unit, _) in QUANTITIES {
            let title = format!("User-level NVMe: {}{note}", name(workload));
            let diagram = Diagram::new(&format!("nvme-{short}{ending}"), &title, "clients", unit);
            diagrams.push(diagram.with_log_y());
        }
    }
    for place in &places {
        let measured = measure(spec, place, &mut diagrams, progress);
        let removed = remove(&place.path);
        measured.and(removed)?;
    }
    remove_directory(&spec.dir)?;
    diagrams.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(diagrams)
}

fn name(workload: Workload) -> String {
    match workload {
        Workload::YcsbInsert => "YCSB load".into(),
        other => other.to_string(),
    }
}

/// Returns the places to measure, and what the titles say about drives that are missing.
fn places(spec: &PaperSpec) -> Result<(Vec<Place>, String), BenchError> {
    let mut places = vec![Place {
        series: "file system".into(),
        path: spec.dir.join("database"),
    }];
    let mut note = String::new();
    for drive in &spec.drives {
        let Ok(name) = drive.parse::<DriveName>();
        let kind = kind(&name);
        let is_other = places.iter().all(|place| place.series != kind);
        places.push(Place {
            series: if is_other {
                kind.into()
            } else {
                format!("{kind}, {name}")
            },
            path: format!("{name}/{DATABASE}").into(),
        });
    }
    for place in &places[1..] {
        refuse_existing(&place.path)?;
    }
    if spec.drives.is_empty() {
        match stand_in(spec) {
            Ok(place) => {
                places.push(place);
                note = " (no drive given: a file stands in for it)".into();
            }
            Err(reason) => note = format!(" (no drive given, and none made: {reason})"),
        }
    }
    Ok((places, note))
}

/// How a drive is reached.
fn kind(name: &DriveName) -> &'static str {
    let path = match name {
        DriveName::Vfio(_) => return "VFIO",
        DriveName::Path(path) => path,
    };
    if path.is_file() {
        return "io_uring on a file";
    }
    let file = path.file_name().unwrap_or_default();
    if file.as_encoded_bytes().starts_with(b"ng") {
        "passthrough"
    } else {
        "io_uring"
    }
}

/// Refuses a drive that has the database, which would be lost at the end.
fn refuse_existing(path: &Path) -> Result<(), BenchError> {
    let files = braid_io::list_directory(path)
        .map_err(|error| BenchError::io("cannot open a drive (see braid nvme info)", error))?;
    if files.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{} exists; remove it (braid nvme remove DRIVE {DATABASE})",
        path.display()
    );
    let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, what);
    Err(BenchError::io("cannot measure on a drive", error))
}

/// Creates a volume in a file.
fn stand_in(spec: &PaperSpec) -> Result<Place, Box<dyn std::error::Error>> {
    let file = spec.dir.join("drive");
    fs::File::create(&file)?.set_len(STAND_IN)?;
    // A relative path would change its meaning with the directory.
    let name = DriveName::Path(file.canonicalize()?);
    let opened = name.open()?;
    Volume::format(Blocking::new(opened.drive), FormatOptions::default())?;
    Ok(Place {
        series: kind(&name).into(),
        path: format!("{name}/{DATABASE}").into(),
    })
}

/// Runs the workloads, one after the other, on one database.
fn measure(
    paper: &PaperSpec,
    place: &Place,
    diagrams: &mut [Diagram],
    progress: &mut dyn FnMut(&str),
) -> Result<(), BenchError> {
    let first = spec(paper, WORKLOADS[0].0, 1);
    let mut engine = Engine::new(&place.path, &first);
    if !braid_io::is_volume_name(&place.path) {
        engine.device = paper.device;
    }
    engine.set_data_over_pool(&first, DATA_OVER_POOL);
    engine.pool_bytes = engine.pool_bytes.max(LEAST_POOL);
    let db = engine.open()?;
    for ((workload, _), diagrams) in WORKLOADS
        .into_iter()
        .zip(diagrams.chunks_mut(QUANTITIES.len()))
    {
        for &clients in &paper.threads {
            let what = name(workload);
            progress(&format!("{}, {what}, {clients} clients", place.series));
            let spec = spec(paper, workload, clients);
            let driver = spec.driver()?;
            let engine = BraidEngine::new(db.clone(), &driver.tables())?;
            if workload != Workload::YcsbInsert {
                driver.load(&engine, &mut |_| ())?;
            }
            let report = crate::run(&engine, driver.as_ref(), &spec, &mut |_| ())?;
            for (diagram, (_, _, value)) in diagrams.iter_mut().zip(QUANTITIES) {
                diagram.add(&place.series, clients as f64, value(&report));
            }
        }
    }
    db.close()?;
    Ok(())
}

fn spec(paper: &PaperSpec, workload: Workload, clients: usize) -> Spec {
    // The number is part of the table's name: each load has an empty table.
    let records = match workload {
        Workload::YcsbInsert => clients as u64,
        _ => paper.records.unwrap_or(RECORDS),
    };
    Spec {
        threads: clients,
        warm_up: paper.each / 4,
        measure: paper.each,
        records,
        ..Spec::new(workload)
    }
}

/// Removes the database.
fn remove(path: &Path) -> Result<(), BenchError> {
    if !braid_io::is_volume_name(path) {
        return new_directory(path);
    }
    let remove = || -> std::io::Result<()> {
        let device = braid_io::open_directory(path, DeviceChoice::Auto)?;
        for entry in device.list()? {
            device.remove(&entry.name)?;
        }
        device.sync_directory()
    };
    remove().map_err(|error| BenchError::io("cannot remove the database from the drive", error))
}
