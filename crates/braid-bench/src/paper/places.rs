//! GoldenX: log and data on a disk or in persistent memory, in all four combinations.

use std::path::{Path, PathBuf};

use braid::device::DeviceChoice;

use super::{Diagram, PaperSpec, RECORDS, new_directory, remove_directory};
use crate::{BenchError, Engine, Spec, Workload};

/// The data are this many times larger than the buffer pool, as in the paper (130 GB and 8 GB).
const DATA_OVER_POOL: f64 = 16.0;

/// The smallest pool, for small runs.
const LEAST_POOL: usize = 1 << 20;

/// Accounts of a branch of TPC-B: enough that its data, like those of YCSB, are far larger than the
/// pool.
const ACCOUNTS: u64 = 100_000;

/// In the order of YCSB's own recommendation: inserts come last.
const YCSB: [Workload; 6] = [
    Workload::YcsbA,
    Workload::YcsbB,
    Workload::YcsbC,
    Workload::YcsbF,
    Workload::YcsbD,
    Workload::YcsbE,
];

/// Where log and data are.
#[derive(Clone, Copy)]
struct Places {
    name: &'static str,
    log_in_memory: bool,
    data_in_memory: bool,
}

const COMBINATIONS: [Places; 4] = [
    Places {
        name: "log and data on disk",
        log_in_memory: false,
        data_in_memory: false,
    },
    Places {
        name: "data in memory",
        log_in_memory: false,
        data_in_memory: true,
    },
    Places {
        name: "log in memory",
        log_in_memory: true,
        data_in_memory: false,
    },
    Places {
        name: "log and data in memory",
        log_in_memory: true,
        data_in_memory: true,
    },
];

/// Transactions per second of YCSB A to F and TPC-B by threads, each commit waited for.
pub(super) fn by_threads(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let mut diagrams = Vec::new();
    for workloads in [&YCSB[..], &[Workload::Tpcb]] {
        let of_these = diagrams.len();
        diagrams.extend(workloads.iter().map(|workload| {
            let title = format!("GoldenX: places of log and data, {workload}");
            let name = format!("goldenx-{workload}");
            Diagram::new(&name, &title, "threads", "transactions/s").with_log_y()
        }));
        for places in COMBINATIONS {
            measure(spec, workloads, places, &mut diagrams[of_these..], progress)?;
        }
    }
    diagrams.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(diagrams)
}

/// Runs the workloads, one after the other, on one database.
fn measure(
    paper: &PaperSpec,
    workloads: &[Workload],
    places: Places,
    diagrams: &mut [Diagram],
    progress: &mut dyn FnMut(&str),
) -> Result<(), BenchError> {
    let place = |in_memory: bool, what: &str| -> (PathBuf, DeviceChoice) {
        if in_memory {
            let memory = DeviceChoice::PmemEmulated { line_latency: 0 };
            (paper.memory_dir.join(what), memory)
        } else {
            (paper.dir.join(what), paper.disk())
        }
    };
    let (data, data_device) = place(places.data_in_memory, "data");
    let (log, log_device) = place(places.log_in_memory, "log");
    let directories: [&Path; 2] = [&data, &log];
    for directory in directories {
        new_directory(directory)?;
    }
    let most_threads = paper.threads.iter().copied().max().unwrap_or(1);
    let first = spec(paper, workloads[0], most_threads);
    let mut engine = Engine::new(&data, &first);
    engine.device = data_device;
    engine.set_data_over_pool(&first, DATA_OVER_POOL);
    engine.pool_bytes = engine.pool_bytes.max(LEAST_POOL);
    if places.log_in_memory != places.data_in_memory {
        engine.log_directory = Some(log.clone());
        engine.log_device = Some(log_device);
    }
    let tables = first.driver()?.tables();
    let engine = engine.open_tables(&tables)?;
    for (workload, diagram) in workloads.iter().zip(diagrams) {
        for &threads in &paper.threads {
            progress(&format!("{}, {workload}, {threads} threads", places.name));
            let spec = Spec {
                threads,
                ..spec(paper, *workload, most_threads)
            };
            let driver = spec.driver()?;
            driver.load(&engine, &mut |_| ())?;
            let report = crate::run(&engine, driver.as_ref(), &spec, &mut |_| ())?;
            diagram.add(places.name, threads as f64, report.tx_per_s);
        }
    }
    engine.close()?;
    directories.into_iter().try_for_each(remove_directory)
}

fn spec(paper: &PaperSpec, workload: Workload, most_threads: usize) -> Spec {
    let records = match workload {
        Workload::Tpcb => ACCOUNTS,
        _ => RECORDS,
    };
    Spec {
        warm_up: paper.each / 4,
        measure: paper.each,
        records: paper.records.unwrap_or(records),
        // A branch for each thread, which would otherwise wait for each other.
        scale: u32::try_from(most_threads).unwrap_or(1),
        ..Spec::new(workload)
    }
}
