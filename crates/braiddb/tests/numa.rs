//! Memory nodes. On a machine with one node, everything lies there; `scripts/guest-numa.sh` runs
//! these tests on machines with several. A process of their own, whose threads they look at.

use std::sync::{Arc, Mutex};

use braid::device::{Device, Layer, LayeredDevice, MemoryDevice};
use braid::stats::NodePlacement;
use braid::tablespace::{TablespaceError, TablespaceOptions};
use braid::{Bytes, Database, Error, Table};
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

/// Notes on which processors the threads run that write a tablespace's data file.
#[derive(Clone, Debug, Default)]
struct Writers(Arc<Mutex<Vec<Option<String>>>>);

impl Layer for Writers {
    fn before_write(&self, name: &str, _range: std::ops::Range<u64>) {
        if name == "data.braid" {
            self.0.lock().unwrap().push(cpus::of_this_thread());
        }
    }
}

/// A tablespace on each node, with a log of its own, that all threads use alike.
#[test]
fn a_tablespace_lies_on_its_node() {
    let main = Arc::new(MemoryDevice::new());
    let names: Vec<String> = (0..numa::nodes())
        .map(|node| format!("on {node}"))
        .collect();
    let writers: Vec<Writers> = names.iter().map(|_| Writers::default()).collect();
    let layered = |writers: &Writers| -> Arc<dyn Device> {
        Arc::new(LayeredDevice::over(
            Arc::new(MemoryDevice::new()),
            writers.clone(),
        ))
    };
    let devices: Vec<Arc<dyn Device>> = writers.iter().map(layered).collect();
    // The log of a tablespace begins with the second opening.
    for opening in 0..2 {
        let builder = Database::builder().pool_bytes(1 << 20);
        // Without threads, which the other test would take for those of its database.
        let mut builder = builder.background_threads(false).strands(numa::whole(2));
        for (name, device) in names.iter().zip(&devices).filter(|_| opening > 0) {
            builder = builder.tablespace_device(name, device.clone());
        }
        let db = builder.open_on(main.clone()).unwrap();
        if opening == 0 {
            for (node, (name, device)) in names.iter().zip(&devices).enumerate() {
                let options = TablespaceOptions::on_device(device.clone()).pool_bytes(8 << 20);
                let options = options.own_log(true).memory_node(numa::system_id(node));
                db.create_tablespace(name, options).unwrap();
            }
            db.close().unwrap();
            continue;
        }
        fill_tablespaces(&db, &names);
        check_tablespaces(&db, &names);
        writers
            .iter()
            .for_each(|writers| writers.0.lock().unwrap().clear());
        db.checkpoint().unwrap();
        for (node, writers) in writers.iter().enumerate() {
            let found = writers.0.lock().unwrap();
            assert!(!found.is_empty(), "the checkpoint writes");
            let expected = (numa::nodes() > 1).then(|| cpus::of_node(node));
            let is_there = |cpus: &Option<String>| expected.is_none() || *cpus == expected;
            assert!(found.iter().all(is_there), "node {node}: {found:?}");
        }
        db.close().unwrap();
    }
}

/// Writes to all tablespaces in each transaction, from threads of all nodes.
fn fill_tablespaces(db: &Database, names: &[String]) {
    let open = |name: &String| -> Table<u64, Bytes> {
        db.open_table_in(name, &format!("table {name}"), Default::default())
            .unwrap()
    };
    let tables: Vec<_> = names.iter().map(open).collect();
    let work = |node: usize| {
        numa::run_on(node);
        for key in (node as u64..)
            .step_by(numa::nodes())
            .take(3_000 / numa::nodes())
        {
            let put = |tx: &mut braid::Transaction| {
                tables
                    .iter()
                    .try_for_each(|table| tx.insert(table, &key, &[7; 1_500]))
            };
            db.transact(put).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        (0..numa::nodes()).for_each(|node| drop(scope.spawn(move || work(node))));
    });
}

/// Checks that at least 99 % of the memory of each tablespace is on its node.
fn check_tablespaces(db: &Database, names: &[String]) {
    let stats = db.stats().tablespaces;
    assert!(
        stats
            .iter()
            .all(|space| space.is_on_node && space.log_bytes > 0)
    );
    let placement = db.placement();
    if placement.is_empty() {
        eprintln!("skipped: the system does not tell where memory lies");
        return;
    }
    println!("{placement:?}");
    for (node, name) in names.iter().enumerate() {
        let of = |part: &NodePlacement| {
            let mut parts = part.tablespaces.iter();
            let part = parts.find(|part| part.name == *name).unwrap();
            (part.pool_bytes, part.strand_bytes)
        };
        let (pool, strands) = of(&placement[node]);
        let all_pool = sum(&placement, |part| of(part).0);
        let all_strands = sum(&placement, |part| of(part).1);
        assert!(all_pool >= 4 << 20, "the pool is in use: {placement:?}");
        assert!(pool >= all_pool / 100 * 99, "{name}: {placement:?}");
        assert!(all_strands >= 2 << 20, "the log is in use: {placement:?}");
        assert!(strands >= all_strands / 100 * 99, "{name}: {placement:?}");
    }
}

/// Tablespaces in mapped files on a file system in memory.
#[test]
#[cfg(target_os = "linux")]
fn mapped_files_lie_on_the_node_of_their_tablespace() {
    use braid::device::DeviceChoice;

    if numa::nodes() == 1 {
        eprintln!("skipped: the machine has one memory node");
        return;
    }
    let in_memory = std::path::Path::new("/dev/shm");
    let temporary = if in_memory.is_dir() {
        tempfile::tempdir_in(in_memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    let names: Vec<String> = (0..numa::nodes())
        .map(|node| format!("on-{node}"))
        .collect();
    let open = || {
        let builder = Database::builder().pool_bytes(1 << 20);
        let builder = builder.device(DeviceChoice::PmemEmulated { line_latency: 0 });
        // Without threads, which the other test would take for those of its database.
        let builder = builder.background_threads(false).strands(numa::whole(2));
        let builder = builder.segment_bytes(1 << 20);
        builder.open(temporary.path().join("main")).unwrap()
    };
    let db = open();
    for (node, name) in names.iter().enumerate() {
        let directory = temporary.path().join(name);
        let options = TablespaceOptions::in_directory(directory).pool_bytes(1 << 20);
        let options = options.own_log(true).memory_node(numa::system_id(node));
        db.create_tablespace(name, options).unwrap();
    }
    db.close().unwrap();
    let db = open();
    fill_tablespaces(&db, &names);
    db.checkpoint().unwrap();
    let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
    for (node, name) in names.iter().enumerate() {
        let file = format!("file={}/", temporary.path().join(name).display());
        let (mut all, mut there) = (0, 0);
        for line in maps.lines().filter(|line| line.contains(&file)) {
            for (id, pages) in line.split(' ').filter_map(pages_of_node) {
                all += pages;
                there += if id == numa::system_id(node) {
                    pages
                } else {
                    0
                };
            }
        }
        println!("{name}: {there} of {all} pages");
        assert!(all >= 1_000, "{name}: {all} pages are in use");
        assert!(there >= all / 100 * 99, "{name}: {there} of {all} pages");
    }
    db.close().unwrap();
}

/// Reads `N<node>=<pages>`.
#[cfg(target_os = "linux")]
fn pages_of_node(word: &str) -> Option<(usize, u64)> {
    let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
    Some((node.parse().ok()?, pages.parse().ok()?))
}

#[test]
fn a_node_that_the_machine_lacks_is_refused_by_its_number() {
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .background_threads(false);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let create = |node| {
        let options = TablespaceOptions::on_device(Arc::new(MemoryDevice::new()));
        db.create_tablespace("far", options.pool_bytes(1 << 20).memory_node(node))
    };
    for node in [777, usize::MAX] {
        let error = create(node).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Tablespace(TablespaceError::NoSuchNode { name, node: found, existing })
                    if name == "far" && *found == node && existing.len() == numa::nodes()
            ),
            "{error}"
        );
    }
    assert!(db.tablespace_names().is_empty());
    create(numa::system_id(0)).unwrap();
    let space = &db.stats().tablespaces[0];
    assert_eq!(
        (space.memory_node, space.is_on_node),
        (Some(numa::system_id(0)), true)
    );
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

/// The processors on which threads may run, as the system lists them.
mod cpus {
    use std::fs;

    use super::numa;

    pub(super) fn of(status: &str) -> Option<String> {
        let mut lines = status.lines();
        let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(cpus.trim().to_owned())
    }

    pub(super) fn of_this_thread() -> Option<String> {
        of(&fs::read_to_string("/proc/thread-self/status").ok()?)
    }

    /// Those of a node, of which this process may use all.
    pub(super) fn of_node(node: usize) -> String {
        let id = numa::system_id(node);
        let cpus = fs::read_to_string(format!("/sys/devices/system/node/node{id}/cpulist"));
        cpus.unwrap().trim().to_owned()
    }
}

#[cfg(target_os = "linux")]
mod flushers {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::{cpus, numa};

    /// Names and allowed processors of this process's flushers, by lane.
    fn all() -> Vec<(usize, String)> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let lane_and_cpus = |task: fs::DirEntry| {
            // A thread may end meanwhile.
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let lane = name.trim_end().strip_prefix("braid-log-")?.parse().ok()?;
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            Some((lane, cpus::of(&status)?))
        };
        let found = tasks.filter_map(|task| lane_and_cpus(task.unwrap()));
        found.collect()
    }

    /// The processors of a lane's node.
    fn expected(lane: usize) -> Option<String> {
        numa::node_of(lane, numa::whole(2)).map(cpus::of_node)
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
