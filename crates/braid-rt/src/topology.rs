//! The machine's processors and memory nodes, as reported by the system.

use std::fs;
use std::io;
use std::path::Path;

/// One processor that the system schedules on: a hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Number in the system.
    pub id: usize,
    /// Number of the core, counted over the whole machine from 0. Hardware threads of one core
    /// share it.
    pub core: usize,
    /// Number of the socket.
    pub package: usize,
    /// Number of the NUMA node.
    pub node: usize,
    /// Whether this process may run on the processor.
    pub allowed: bool,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number in the system. Numbers may have gaps.
    pub id: usize,
    /// Memory of the node in bytes; 0 if the system does not report it.
    pub memory_bytes: u64,
    /// Relative cost of accessing each node's memory from here, in the order of
    /// [`Topology::nodes`]; 10 is local (ACPI SLIT). Empty if the system does not report it.
    pub distances: Vec<u32>,
}

/// The processors and NUMA nodes of this machine.
///
/// If the system does not report it (or is not Linux), it is one node with as many cores as
/// [`std::thread::available_parallelism`] counts.
///
/// ```
/// let topology = braid_rt::Topology::read();
/// assert!(topology.allowed_cpus().count() >= 1);
/// println!("{topology}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
    nodes: Vec<Node>,
}

impl Topology {
    /// Reads the topology of this machine, with the processors that this process may use.
    #[must_use]
    pub fn read() -> Self {
        let read = Self::read_from(Path::new("/sys/devices/system"), &is_allowed);
        read.unwrap_or_else(|_| Self::flat())
    }

    /// Returns one node with one core for each processor.
    fn flat() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let cpu = |id| Cpu {
            id,
            core: id,
            package: 0,
            node: 0,
            allowed: true,
        };
        Self {
            cpus: (0..count).map(cpu).collect(),
            nodes: vec![Node {
                id: 0,
                memory_bytes: 0,
                distances: vec![10],
            }],
        }
    }

    /// Reads a directory tree in the format of Linux's `/sys/devices/system`.
    fn read_from(root: &Path, allowed: &dyn Fn(usize) -> bool) -> io::Result<Self> {
        let online = read_list(&root.join("cpu/online"))?;
        let mut nodes = Vec::new();
        let mut node_of = Vec::new();
        // A kernel without NUMA has no such directory; everything is node 0 then.
        for id in read_list(&root.join("node/online")).unwrap_or_default() {
            let at = root.join(format!("node/node{id}"));
            let distances = fs::read_to_string(at.join("distance")).unwrap_or_default();
            let distances = distances.split_whitespace().map(str::parse);
            let memory = fs::read_to_string(at.join("meminfo")).unwrap_or_default();
            nodes.push(Node {
                id,
                memory_bytes: mem_total(&memory).unwrap_or(0),
                distances: distances.collect::<Result<_, _>>().unwrap_or_default(),
            });
            // A node with memory only has an empty list.
            let cpus = read_list(&at.join("cpulist")).unwrap_or_default();
            node_of.extend(cpus.into_iter().map(|cpu| (cpu, id)));
        }
        if nodes.is_empty() {
            nodes = Self::flat().nodes;
        }
        let mut cores: Vec<(usize, usize)> = Vec::new();
        let mut cpus = Vec::new();
        for id in online {
            let at = root.join(format!("cpu/cpu{id}/topology"));
            let package = read_number(&at.join("physical_package_id")).unwrap_or(0);
            // Core numbers start again in each package.
            let core = (package, read_number(&at.join("core_id")).unwrap_or(id));
            let core = cores.iter().position(|&c| c == core).unwrap_or_else(|| {
                cores.push(core);
                cores.len() - 1
            });
            let node = node_of.iter().find(|(cpu, _)| *cpu == id);
            cpus.push(Cpu {
                id,
                core,
                package,
                node: node.map_or(nodes[0].id, |&(_, node)| node),
                allowed: allowed(id),
            });
        }
        if !cpus.iter().any(|cpu| cpu.allowed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { cpus, nodes })
    }

    /// Returns all processors that are online, in ascending order.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the processors that this process may run on.
    pub fn allowed_cpus(&self) -> impl Iterator<Item = &Cpu> {
        self.cpus.iter().filter(|cpu| cpu.allowed)
    }

    /// Returns all NUMA nodes that are online, in ascending order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the number of different cores that this process may run on.
    #[must_use]
    pub fn allowed_cores(&self) -> usize {
        let mut cores: Vec<usize> = self.allowed_cpus().map(|cpu| cpu.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }

    /// Returns the relative cost of accessing node `to`'s memory from node `from`; `None` if
    /// unknown.
    #[must_use]
    pub fn distance(&self, from: usize, to: usize) -> Option<u32> {
        let to = self.nodes.iter().position(|node| node.id == to)?;
        let from = self.nodes.iter().find(|node| node.id == from)?;
        from.distances.get(to).copied()
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |n: usize, what: &str| match n {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        write!(
            f,
            "{} on {}, {}",
            plural(self.allowed_cpus().count(), "processor"),
            plural(self.allowed_cores(), "core"),
            plural(self.nodes.len(), "NUMA node"),
        )
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn is_allowed(cpu: usize) -> bool {
    const CPUS: usize = 8 * size_of::<libc::cpu_set_t>();
    static ALLOWED: std::sync::OnceLock<Option<libc::cpu_set_t>> = std::sync::OnceLock::new();
    let set = ALLOWED.get_or_init(|| {
        // SAFETY: a set consists of integers.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the system writes at most the size of the set.
        let outcome = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        (outcome == 0).then_some(set)
    });
    match set {
        // SAFETY: the number is one of the set.
        Some(set) => cpu < CPUS && unsafe { libc::CPU_ISSET(cpu, set) },
        // If the set cannot be read (the machine has more processors than it contains), all are
        // allowed.
        None => true,
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn is_allowed(_: usize) -> bool {
    true
}

fn read_number(path: &Path) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_list(path: &Path) -> io::Result<Vec<usize>> {
    parse_list(fs::read_to_string(path)?.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses numbers such as `0-3,8,10-11`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No machine has a million processors; a list that says so is damaged.
        if first > last || last >= 1 << 20 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Returns the bytes in a line such as `Node 0 MemTotal:  24661724 kB`.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    /// Two sockets of one core with two hardware threads each, one node for each socket, and a node
    /// with memory only.
    pub(crate) fn machine(allowed: &dyn Fn(usize) -> bool) -> (tempfile::TempDir, Topology) {
        let mut files = vec![
            ("cpu/online", "0-3\n"),
            ("node/online", "0,2-3\n"),
            ("node/node0/cpulist", "0,2\n"),
            ("node/node0/distance", "10 21 30\n"),
            (
                "node/node0/meminfo",
                "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 5 kB\n",
            ),
            ("node/node2/cpulist", "1,3\n"),
            ("node/node2/meminfo", "Node 2 MemTotal: 1024 kB\n"),
            ("node/node3/meminfo", "Node 3 MemTotal: 1024 kB\n"),
            ("node/node2/distance", "21 10 40\n"),
            ("node/node3/cpulist", "\n"),
            ("node/node3/distance", "30 40 10\n"),
        ];
        for (core, package) in [
            (
                "cpu/cpu0/topology/core_id",
                "cpu/cpu0/topology/physical_package_id",
            ),
            (
                "cpu/cpu2/topology/core_id",
                "cpu/cpu2/topology/physical_package_id",
            ),
        ] {
            files.extend([(core, "5\n"), (package, "0\n")]);
        }
        for (core, package) in [
            (
                "cpu/cpu1/topology/core_id",
                "cpu/cpu1/topology/physical_package_id",
            ),
            (
                "cpu/cpu3/topology/core_id",
                "cpu/cpu3/topology/physical_package_id",
            ),
        ] {
            files.extend([(core, "5\n"), (package, "1\n")]);
        }
        let dir = tree(&files);
        let topology = Topology::read_from(dir.path(), allowed).unwrap();
        (dir, topology)
    }

    #[test]
    fn a_machine_of_several_nodes() {
        let (_dir, topology) = machine(&|cpu| cpu != 0);
        let of = |id: usize| topology.cpus()[id];
        assert_eq!((of(0).core, of(0).package, of(0).node), (0, 0, 0));
        assert_eq!((of(1).core, of(1).package, of(1).node), (1, 1, 2));
        assert_eq!((of(2).core, of(3).core), (0, 1));
        assert_eq!(
            topology.allowed_cpus().map(|c| c.id).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(topology.allowed_cores(), 2);
        assert_eq!(topology.nodes()[0].memory_bytes, 1 << 20);
        assert_eq!(topology.distance(2, 3), Some(40));
        assert_eq!(topology.distance(1, 0), None);
        assert_eq!(
            topology.to_string(),
            "3 processors on 2 cores, 3 NUMA nodes"
        );
    }

    #[test]
    fn a_kernel_without_numa_has_one_node() {
        let dir = tree(&[("cpu/online", "0-1")]);
        let topology = Topology::read_from(dir.path(), &|_| true).unwrap();
        assert_eq!((topology.cpus().len(), topology.nodes().len()), (2, 1));
        assert_eq!(topology.allowed_cores(), 2);
        assert_eq!(topology.distance(0, 0), Some(10));
    }

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list(""), Some(vec![]));
        for bad in ["x", "3-1", "1-", "0-99999999999", "-"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_machine_has_processors() {
        let topology = Topology::read();
        assert!(topology.allowed_cores() >= 1);
        let nodes: Vec<usize> = topology.nodes().iter().map(|node| node.id).collect();
        assert!(topology.cpus().iter().all(|cpu| nodes.contains(&cpu.node)));
        let counted = std::thread::available_parallelism().unwrap().get();
        assert!(topology.allowed_cpus().count() >= counted);
    }
}
