//! Memory nodes: which node memory lies on, and which node's processors a thread runs on.
//!
//! On a machine with several nodes, memory of another node takes longer to reach. Structures that
//! are divided among threads have a part for each [`thread::index`](crate::thread::index), and
//! these numbers say on which node a thread began to use the engine: number `i` belongs to the node
//! with the number `i` modulo [`nodes`]. So a structure of which the number of parts is a multiple
//! of the number of nodes is divided among the nodes, too, and choosing a part costs nothing.
//!
//! A machine with one node, an operating system other than Linux, and a simulation have one node.
//! There, nothing here has an effect.

#[cfg(all(target_os = "linux", not(miri)))]
#[path = "linux.rs"]
mod system;
#[cfg(not(all(target_os = "linux", not(miri))))]
#[path = "other.rs"]
mod system;

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::simulation;
use crate::topology::Topology;

/// The number of the first thread of the engine itself. No process starts that many others.
const OWN_THREADS: usize = 1 << 31;

/// A node with memory, and with processors that this process may use.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    /// Number in the system.
    id: usize,
    /// Its processors that this process may use.
    cpus: Vec<usize>,
}

/// Returns the nodes that have memory, and processors that this process may use: at least one.
fn usable(topology: &Topology) -> Vec<Node> {
    let of = |id: usize| Node {
        id,
        cpus: topology
            .allowed_cpus()
            .filter(|cpu| cpu.node == id)
            .map(|cpu| cpu.id)
            .collect(),
    };
    let has_memory = |id: &usize| {
        let node = topology.nodes().iter().find(|node| node.id == *id);
        // A single node need not report its memory.
        topology.nodes().len() == 1 || node.is_some_and(|node| node.memory_bytes > 0)
    };
    let ids = topology.nodes().iter().map(|node| node.id);
    let mut nodes: Vec<Node> = ids
        .filter(has_memory)
        .map(of)
        .filter(|node| !node.cpus.is_empty())
        .collect();
    if nodes.is_empty() {
        nodes.push(of(topology.nodes()[0].id));
    }
    nodes
}

fn all() -> &'static [Node] {
    static ALL: OnceLock<Vec<Node>> = OnceLock::new();
    ALL.get_or_init(|| usable(&Topology::read()))
}

/// Number of nodes, of those that have memory, and processors that this process may use. The other
/// functions count them from 0.
pub fn nodes() -> usize {
    if simulation::is_on() { 1 } else { all().len() }
}

/// The system's number of a node.
///
/// # Panics
/// If there is no such node.
pub fn system_id(node: usize) -> usize {
    all()[node].id
}

/// The node with this number in the system, if there is one that counts.
pub fn with_system_id(id: usize) -> Option<usize> {
    (0..nodes()).find(|node| system_id(*node) == id)
}

/// Rounds a number of parts up to a multiple of the number of nodes, so that each part belongs to a
/// node: part `i` to node `i` modulo [`nodes`].
pub fn whole(parts: usize) -> usize {
    parts.next_multiple_of(nodes())
}

/// The node of a part, if the number of parts is a [multiple](whole) of the number of nodes, of
/// which there are several.
pub fn node_of(part: usize, parts: usize) -> Option<usize> {
    let nodes = nodes();
    (nodes > 1 && parts.is_multiple_of(nodes)).then(|| part % nodes)
}

/// Numbers for threads, dense over the threads of each node that the user of the engine started; see
/// the module's documentation. The engine's own threads have numbers from [`OWN_THREADS`] on.
pub(crate) struct Numbering {
    own: AtomicUsize,
    users: OnceLock<Vec<AtomicUsize>>,
}

impl Numbering {
    pub(crate) const fn new() -> Self {
        Self {
            own: AtomicUsize::new(OWN_THREADS),
            users: OnceLock::new(),
        }
    }

    /// Returns a number for the calling thread that no other thread has.
    #[cold]
    pub(crate) fn next(&self, is_own: bool) -> usize {
        if is_own {
            // Relaxed: only uniqueness matters.
            return self.own.fetch_add(1, Ordering::Relaxed);
        }
        let nodes = all();
        let node = match nodes {
            [_] => 0,
            nodes => {
                let id = system::current();
                // A thread on a node without memory counts to the first one.
                nodes.iter().position(|node| node.id == id).unwrap_or(0)
            }
        };
        let counts = || nodes.iter().map(|_| AtomicUsize::new(0)).collect();
        let users = self.users.get_or_init(counts);
        // Relaxed: as above.
        users[node].fetch_add(1, Ordering::Relaxed) * nodes.len() + node
    }
}

/// Lets the calling thread, and the threads that it starts, run on a node's processors only. Has no
/// effect if the system refuses it.
pub fn run_on(node: usize) {
    if nodes() > 1 {
        system::run_on(&all()[node].cpus);
    }
}

/// Lets the calling thread run on a node's processors only, until the result is dropped: then it may
/// run again where it did before. Has no effect if the system refuses it.
pub fn visit(node: Option<usize>) -> Visit {
    let node = node.filter(|_| nodes() > 1);
    let home = node.and_then(|_| system::affinity());
    if let (Some(node), Some(_)) = (node, &home) {
        system::run_on(&all()[node].cpus);
    }
    Visit {
        home,
        _of_thread: PhantomData,
    }
}

/// The stay of a thread on a node; from [`visit`].
#[must_use]
#[derive(Debug)]
pub struct Visit {
    /// The processors on which the thread could run before, if it moved.
    home: Option<system::Affinity>,
    /// Only that thread can return.
    _of_thread: PhantomData<*const ()>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            system::set_affinity(home);
        }
    }
}

/// Where memory is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the system puts it: on the node of the thread that first writes to it.
    System,
    /// Spread over all nodes.
    Spread,
    /// On this node.
    Node(usize),
}

impl Place {
    /// Says where memory that is not in use yet is to lie, until [`forget`]. Returns whether there is
    /// anything to forget. A hint as [`move_to`].
    pub fn keep(self, start: *const u8, len: usize) -> bool {
        if nodes() > 1 {
            match self {
                Self::System => return false,
                Self::Spread => spread(start, len),
                Self::Node(node) => system::keep_on(all()[node].id, start, len),
            }
        }
        nodes() > 1 && self != Self::System
    }

    /// The node, if it is one.
    pub fn node(self) -> Option<usize> {
        match self {
            Self::Node(node) => Some(node),
            _ => None,
        }
    }
}

/// Moves the whole pages of the system that lie in `memory` to a node, also those that were not in
/// use yet, and keeps them there until [`forget`]. A hint that changes no contents: a full node or a
/// refusal costs only speed.
///
/// Without the policy that keeps them, a kernel that balances pages by itself would move them to
/// other nodes again.
pub fn move_to(node: usize, memory: &mut [u8]) {
    if nodes() > 1 {
        system::move_to(all()[node].id, memory);
    }
}

/// Spreads the pages of memory that is not in use yet over all nodes, for what threads of all of
/// them use alike, and keeps them there until [`forget`]. A hint as [`move_to`].
pub fn spread(start: *const u8, len: usize) {
    if nodes() > 1 {
        let ids = all().iter().map(|node| node.id);
        system::spread(&ids.collect::<Vec<_>>(), start, len);
    }
}

/// Ends the effect of [`move_to`] or [`spread`], before the memory is freed: it may be the
/// allocator's, and serve other purposes later.
pub fn forget(start: *const u8, len: usize) {
    if nodes() > 1 {
        system::forget(start, len);
    }
}

/// Adds to `bytes`, which has an element for each node, how many bytes of the system's pages
/// between `start` and `start + len` lie on it. Pages that are not in use, and pages of nodes that
/// do not [count](nodes), are left out. So are pages that the kernel balances by itself and has
/// marked to find out who uses them (Linux before 6.5), which leaves those alone that this module
/// placed. Returns whether the system told it.
pub fn count(start: *const u8, len: usize, bytes: &mut [u64]) -> bool {
    let ids: Vec<usize> = all().iter().map(|node| node.id).collect();
    system::count(start, len, |id| {
        let node = ids.iter().position(|known| *known == id);
        if let Some(bytes) = node.and_then(|node| bytes.get_mut(node)) {
            *bytes += system::page() as u64;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::machine;

    /// Node 0 has both threads of a core, of which this process may use one; node 2 another core;
    /// node 3 only memory.
    #[test]
    fn nodes_have_memory_and_processors() {
        let node = |id, cpus: &[usize]| Node {
            id,
            cpus: cpus.to_vec(),
        };
        let (_dir, topology) = machine(&|cpu| cpu != 0);
        assert_eq!(usable(&topology), [node(0, &[2]), node(2, &[1, 3])]);
        let (_dir, topology) = machine(&|cpu| cpu % 2 == 1);
        assert_eq!(usable(&topology), [node(2, &[1, 3])]);
    }

    #[test]
    fn the_engines_threads_take_no_numbers_of_others() {
        let own = crate::thread::scatter(2, |_| crate::thread::index());
        assert!(own.iter().all(|index| *index >= OWN_THREADS), "{own:?}");
        assert_ne!(own[0], own[1]);
        assert!(crate::thread::index() < OWN_THREADS);
    }

    /// Otherwise two committing threads could share a strand while another one is free.
    #[test]
    fn a_node_numbers_users_threads_without_gaps() {
        let numbers = Numbering::new();
        std::thread::scope(|scope| {
            let draw = || {
                run_on(0);
                [false, true, false, true, false].map(|is_own| numbers.next(is_own))
            };
            let drawn = scope.spawn(draw).join().unwrap();
            let expected = [0, OWN_THREADS, nodes(), OWN_THREADS + 1, 2 * nodes()];
            assert_eq!(drawn, expected);
        });
    }

    #[test]
    fn threads_of_a_node_have_its_numbers() {
        let number = || {
            run_on(0);
            assert_eq!(crate::thread::committer() % nodes(), 0);
            (crate::thread::index(), crate::thread::index())
        };
        let indexes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(number)).collect();
            let numbers = threads.into_iter().map(|thread| thread.join().unwrap());
            numbers.collect()
        });
        let mut unique: Vec<usize> = indexes.iter().map(|(index, _)| *index).collect();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), 16);
        for (index, again) in indexes {
            assert_eq!((index, index % nodes()), (again, 0));
        }
    }

    #[test]
    fn a_visitor_returns() {
        std::thread::scope(|scope| {
            let visitor = scope.spawn(|| {
                let home = system::affinity();
                drop(visit(None));
                for node in 0..nodes() {
                    let there = visit(Some(node));
                    if nodes() > 1 {
                        assert_eq!(system::current(), system_id(node));
                    }
                    drop(there);
                    assert_eq!(system::affinity(), home);
                }
            });
            visitor.join().unwrap();
        });
    }

    #[test]
    fn nodes_are_found_by_the_systems_numbers() {
        for node in 0..nodes() {
            assert_eq!(with_system_id(system_id(node)), Some(node));
        }
        assert_eq!(with_system_id(9_999), None);
    }

    #[test]
    fn parts_belong_to_nodes() {
        let nodes = nodes();
        assert_eq!(
            (whole(1), whole(nodes), whole(nodes + 1)),
            (nodes, nodes, 2 * nodes)
        );
        assert_eq!(node_of(nodes + 1, 2 * nodes), (nodes > 1).then_some(1));
        assert_eq!(node_of(0, 2 * nodes + 1), None);
    }

    /// On a machine with one node, the pages are there anyway; `scripts/guest-numa.sh` runs this on
    /// machines with several.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn memory_lies_where_it_was_moved_or_spread() {
        let (page, nodes) = (system::page(), nodes());
        let mut memory = vec![1_u8; 64 * page];
        let on = |memory: &[u8]| {
            let mut bytes = vec![0; nodes];
            count(memory.as_ptr(), memory.len(), &mut bytes).then_some(bytes)
        };
        if on(&memory).is_none() {
            eprintln!("skipped: the system does not tell where memory lies");
            return;
        }
        for node in 0..nodes {
            move_to(node, &mut memory);
            let bytes = on(&memory).unwrap();
            let all: u64 = bytes.iter().sum();
            assert!(all >= 63 * page as u64, "{bytes:?}");
            assert_eq!(bytes[node], all, "node {node}: {bytes:?}");
        }
        assert!(
            memory.iter().all(|byte| *byte == 1),
            "moved with its contents"
        );
        forget(memory.as_ptr(), memory.len());
        // From the system, so that no page is in use yet.
        for node in 0..nodes {
            let mut fresh = Vec::<u8>::with_capacity(64 << 20);
            let keeps = Place::Node(node).keep(fresh.as_ptr(), fresh.capacity());
            assert_eq!(keeps, nodes > 1);
            fresh.resize(4 << 20, 1);
            let bytes = on(&fresh).unwrap();
            let all: u64 = bytes.iter().sum();
            assert!(all > 3 << 20, "{bytes:?}");
            assert_eq!(bytes[node], all, "node {node}: {bytes:?}");
            forget(fresh.as_ptr(), fresh.capacity());
        }
        // Huge pages are spread as a whole.
        let len = 4 * nodes * crate::HUGE_PAGE;
        let mut fresh = Vec::<u8>::with_capacity(64 << 20);
        spread(fresh.as_ptr(), fresh.capacity());
        fresh.resize(len, 1);
        let bytes = on(&fresh).unwrap();
        let least = bytes.iter().min().copied().unwrap_or(0);
        assert!(least >= 2 * crate::HUGE_PAGE as u64, "{bytes:?}");
        forget(fresh.as_ptr(), fresh.capacity());
    }
}
