//! GoldenX: data and logs on the memory nodes of a machine, in the paper's placements.
//!
//! On a machine with several memory nodes, tablespaces are bound to nodes and threads run on them. With
//! a [`Model`], a machine with one node takes the time of [persistent memory on two](model).

mod handover;
mod model;
mod placed;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use braid::Bytes;
use braid::device::DeviceChoice;
use braid::tablespace::{RemoteAccess, TablespaceOptions};
use braid_rt::numa;

use self::model::{Agents, Memory};
use self::placed::{Modelled, Nodes, PARTS, Placed};
use super::{Diagram, PaperSpec, RECORDS, new_directory, remove_directory};
use crate::engines::BraidEngine;
use crate::{BenchError, Driver, Engine, Spec, Workload};

/// A model of a machine that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Model {
    /// Persistent memory on two memory nodes, with the times of GoldenX.
    RemoteLatency,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("remote-latency")
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "remote-latency" => Ok(Self::RemoteLatency),
            _ => Err("must be remote-latency".to_owned()),
        }
    }
}

/// YCSB in the order of its own recommendation, inserts last; then the others.
const WORKLOADS: [&[Workload]; 3] = [
    &[
        Workload::YcsbA,
        Workload::YcsbB,
        Workload::YcsbC,
        Workload::YcsbF,
        Workload::YcsbE,
        Workload::YcsbInsert,
    ],
    &[Workload::Tpcb],
    &[Workload::Tpcc],
];

/// Records of a part, of workloads without a size of their own in the figure.
const TPCC_ITEMS: u64 = 1_000;
const TPCB_ACCOUNTS: u64 = 10_000;

/// Where data and logs are.
#[derive(Clone, Copy)]
struct Placement {
    name: &'static str,
    nodes: Nodes,
    /// Whether each tablespace has its own log.
    own_logs: bool,
    /// Who accesses the memory of other nodes.
    agents: Agents,
}

const EACH: Placement = Placement {
    name: "each with its own log",
    nodes: Nodes {
        data: [0, 1],
        log: [0, 1],
    },
    own_logs: true,
    agents: Agents::None,
};

const PLACEMENTS: [Placement; 6] = [
    Placement {
        name: "all on one node",
        nodes: Nodes {
            data: [0, 0],
            log: [0, 0],
        },
        own_logs: false,
        agents: Agents::None,
    },
    Placement {
        name: "data and log apart",
        nodes: Nodes {
            data: [0, 0],
            log: [1, 1],
        },
        own_logs: false,
        agents: Agents::None,
    },
    Placement {
        name: "data split, one log",
        nodes: Nodes {
            data: [0, 1],
            log: [0, 0],
        },
        own_logs: false,
        agents: Agents::None,
    },
    EACH,
    Placement {
        name: "the same, by agents",
        agents: Agents::Real,
        ..EACH
    },
    Placement {
        name: "the same, by free agents",
        agents: Agents::Free,
        ..EACH
    },
];

/// Transactions per second of each workload by threads, and the hand-over to an agent.
pub(super) fn figures(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let is_modelled = spec.model == Some(Model::RemoteLatency);
    if !is_modelled && numa::nodes() < PARTS {
        return Err(BenchError::Option {
            option: "--model",
            wanted: "remote-latency on a machine with one memory node".to_owned(),
            given: "left out".to_owned(),
        });
    }
    let how = if is_modelled {
        format!("modelled: remote latency, {} ns a unit", spec.unit_nanos)
    } else {
        format!("measured on {PARTS} of {} memory nodes", numa::nodes())
    };
    let mut diagrams = vec![handover::by_size(spec.each, progress)];
    for workloads in WORKLOADS {
        let of_these = diagrams.len();
        diagrams.extend(workloads.iter().map(|workload| {
            let title = format!("GoldenX: placements, {workload} ({how})");
            let name = format!("goldenx-nodes-{workload}");
            Diagram::new(&name, &title, "threads", "transactions/s").with_log_y()
        }));
        for placement in PLACEMENTS {
            if is_modelled || placement.agents != Agents::Free {
                measure(
                    spec,
                    workloads,
                    placement,
                    &mut diagrams[of_these..],
                    progress,
                )?;
            }
        }
    }
    Ok(diagrams)
}

/// Runs the workloads, one after the other, on one database.
fn measure(
    paper: &PaperSpec,
    workloads: &[Workload],
    placement: Placement,
    diagrams: &mut [Diagram],
    progress: &mut dyn FnMut(&str),
) -> Result<(), BenchError> {
    new_directory(&paper.memory_dir)?;
    let most_threads = paper.threads.iter().copied().max().unwrap_or(1);
    let first = spec(paper, workloads[0], most_threads);
    let tables = first.driver()?.tables();
    let memory = paper
        .model
        .map(|_| Arc::new(Memory::new(placement.agents, paper.unit_nanos)));
    let engine = open(paper, placement, memory.as_ref(), &first, &tables)?;
    for (workload, diagram) in workloads.iter().zip(diagrams) {
        for &threads in &paper.threads {
            progress(&format!(
                "{}, {workload}, {threads} threads",
                placement.name
            ));
            let spec = Spec {
                threads,
                ..spec(paper, *workload, most_threads)
            };
            let driver = spec.driver()?;
            // Counts the threads of a run from the first node on.
            let placed = Placed::new(&engine, tables.len(), placement.nodes, memory.as_deref());
            load(&placed, driver.as_ref())?;
            let report = crate::run(&placed, driver.as_ref(), &spec, &mut |_| ())?;
            diagram.add(placement.name, threads as f64, report.tx_per_s);
        }
    }
    engine.close()?;
    remove_directory(&paper.memory_dir)
}

fn load(placed: &Placed<'_>, driver: &dyn Driver) -> Result<(), BenchError> {
    (0..PARTS).try_for_each(|part| driver.load(&placed.of_part(part), &mut |_| ()).map(drop))
}

/// Creates a database with a tablespace for each part, and the tables of the workload in each.
fn open(
    paper: &PaperSpec,
    placement: Placement,
    memory: Option<&Arc<Memory>>,
    spec: &Spec,
    tables: &[String],
) -> Result<BraidEngine, BenchError> {
    let engine = Engine {
        device: DeviceChoice::PmemEmulated { line_latency: 0 },
        pool_bytes: 64 << 20,
        ..Engine::new(paper.memory_dir.join("main"), spec)
    };
    // Pages are in the pool, which is on the tablespace's node.
    let builder = || {
        let builder = engine.builder().pmem_in_place(false);
        if placement.agents != Agents::Real {
            return builder;
        }
        let builder = builder.remote_access(RemoteAccess::Agent);
        match memory {
            Some(memory) => builder.agent_hook(Modelled::new(memory, placement.nodes)),
            None => builder,
        }
    };
    let space = |part: usize| format!("part {part}");
    let mut db = builder().open(&engine.dir)?;
    let pool = usize::try_from(spec.data_bytes().saturating_mul(3)).unwrap_or(usize::MAX);
    for (part, node) in placement.nodes.data.into_iter().enumerate() {
        let directory = paper.memory_dir.join(format!("part-{part}"));
        let mut options = TablespaceOptions::in_directory(directory)
            .pool_bytes(pool.max(64 << 20))
            .own_log(placement.own_logs);
        if paper.model.is_none() {
            options = options.memory_node(numa::system_id(node));
        }
        db.create_tablespace(&space(part), options)?;
    }
    if placement.own_logs {
        db.close()?;
        db = builder().open(&engine.dir)?;
    }
    let mut names = Vec::new();
    for part in 0..PARTS {
        for table in tables {
            let name = format!("{table} of part {part}");
            db.open_table_in::<Bytes, Bytes>(&space(part), &name, Default::default())?;
            names.push(name);
        }
    }
    BraidEngine::new(db, &names)
}

fn spec(paper: &PaperSpec, workload: Workload, most_threads: usize) -> Spec {
    let records = match workload {
        Workload::Tpcb => paper.records.unwrap_or(TPCB_ACCOUNTS),
        Workload::Tpcc => paper
            .records
            .map_or(TPCC_ITEMS, |records| records.clamp(100, TPCC_ITEMS)),
        _ => paper.records.unwrap_or(RECORDS / PARTS as u64),
    };
    Spec {
        warm_up: paper.each / 4,
        measure: paper.each,
        records,
        // A branch or warehouse for each thread, which would otherwise wait for each other.
        scale: u32::try_from(most_threads).unwrap_or(1),
        ..Spec::new(workload)
    }
}
