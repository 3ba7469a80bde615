//! Memory nodes. On a machine with one node, everything lies there; `scripts/guest-numa.sh` runs
//! these tests on machines with several. A process of their own, whose threads they look at.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::stats::NodePlacement;
use braid::{Bytes, Database, Table};
use braid_rt::numa;

/// Bytes of a pool of which each node has the same number of huge pages.
fn pool() -> usize {
    numa::nodes() * (8 << 20)
}

fn open(numa: bool) -> Database {
    let builder = Database::builder().pool_bytes(pool()).numa(numa);
    let builder = builder.strands(numa::whole(2)).lanes(numa::whole(2));
    builder.open_on(Arc::new(MemoryDevice::new())).unwrap()
}

/// Fills the pool with pages, from threads of all nodes.
fn fill(db: &Database) {
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    let work = |thread: usize| {
        let node = thread % numa::nodes();
        numa::run_on(node);
        let numbers = [braid_rt::thread::index(), braid_rt::thread::committer()];
        for number in numbers {
            let told = number % numa::nodes();
            assert_eq!(told, node, "the numbers of a thread tell its node");
        }
        for key in (thread as u64..).step_by(2 * numa::nodes()).take(2_500) {
            let put = |tx: &mut braid::Transaction| tx.insert(&table, &key, &[7; 1_500]);
            db.transact(put).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        (0..2 * numa::nodes()).for_each(|thread| drop(scope.spawn(move || work(thread))));
    });
}

fn sum(placement: &[NodePlacement], part: impl Fn(&NodePlacement) -> u64) -> u64 {
    placement.iter().map(part).sum()
}

#[test]
fn memory_and_threads_lie_on_their_nodes() {
    let db = open(true);
    fill(&db);
    let placement = db.placement();
    if placement.is_empty() {
        eprintln!("skipped: the system does not tell where memory lies");
        return;
    }
    println!("{placement:?}");
    assert_eq!(placement.len(), numa::nodes());
    let nodes = placement.len() as u64;
    // Each strand has four buffers. Those of a node lie there; see also braid-log's own test.
    let strands = numa::whole(2) as u64 / nodes * (4 * (512 << 10));
    let pool = pool() as u64 / nodes;
    let locks = sum(&placement, |node| node.lock_bytes) / nodes;
    assert!(locks > 0, "{placement:?}");
    for node in &placement {
        assert!(node.strand_bytes <= strands, "{placement:?}");
        assert!(node.strand_bytes >= strands / 100 * 99, "{placement:?}");
        assert!(node.pool_bytes <= pool, "{placement:?}");
        assert!(node.pool_bytes >= pool / 100 * 99, "{placement:?}");
    }
    #[cfg(target_os = "linux")]
    flushers::run_on_their_nodes();
    db.close().unwrap();
}

#[test]
fn a_database_can_leave_its_memory_to_the_system() {
    let builder = Database::builder().pool_bytes(1 << 20).numa(false);
    // Without threads, which the other test would take for those of its database.
    let builder = builder.background_threads(false);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table: Table<u64, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &7, &[7; 1_500]))
        .unwrap();
    assert_eq!(db.get(&table, &7).unwrap().unwrap().len(), 1_500);
    db.close().unwrap();
}

#[cfg(target_os = "linux")]
mod flushers {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::numa;

    /// Names and allowed processors of this process's flushers, by lane.
    fn all() -> Vec<(usize, String)> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let lane_and_cpus = |task: fs::DirEntry| {
            // A thread may end meanwhile.
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let lane = name.trim_end().strip_prefix("braid-log-")?.parse().ok()?;
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let mut lines = status.lines();
            let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some((lane, cpus.trim().to_owned()))
        };
        let found = tasks.filter_map(|task| lane_and_cpus(task.unwrap()));
        found.collect()
    }

    /// The processors of a lane's node; this process may use all of the machine.
    fn expected(lane: usize) -> Option<String> {
        let node = numa::system_id(numa::node_of(lane, numa::whole(2))?);
        let cpus = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
        Some(cpus.unwrap().trim().to_owned())
    }

    pub(super) fn run_on_their_nodes() {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let found = all();
            assert_eq!(found.len(), numa::whole(2), "a flusher for each lane");
            let mut found_on = found.iter();
            // A new thread needs a moment until it has told the system where it runs.
            if found_on.all(|(lane, cpus)| expected(*lane).is_none_or(|node| node == *cpus)) {
                return;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            std::thread::yield_now();
        }
    }
}
