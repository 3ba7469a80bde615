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

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ffi::{c_int, c_ulong};
    use std::ptr;

    /// Nodes in a mask; the kernel has at most 1,024.
    const NODES: usize = 1_024;
    const BITS: usize = c_ulong::BITS as usize;
    /// Moves pages that only this process uses (`linux/mempolicy.h`).
    const MPOL_MF_MOVE: c_int = 1 << 1;
    /// Pages of which the node is asked at once.
    const BATCH: usize = 1_024;

    type Mask = [c_ulong; NODES / BITS];

    fn mask(ids: &[usize]) -> Mask {
        let mut mask = [0; NODES / BITS];
        for id in ids.iter().filter(|id| **id < NODES) {
            mask[id / BITS] |= 1 << (id % BITS);
        }
        mask
    }

    /// The size of the system's pages.
    pub(super) fn page() -> usize {
        // SAFETY: reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(page).expect("the system has pages")
    }

    /// The node on which the calling thread runs; 0 if the system does not tell.
    pub(super) fn current() -> usize {
        let mut node = 0_u32;
        // SAFETY: the system writes one number; null pointers are not written to.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_getcpu,
                ptr::null_mut::<u32>(),
                &raw mut node,
                ptr::null_mut::<u8>(),
            )
        };
        if outcome == 0 { node as usize } else { 0 }
    }

    pub(super) fn run_on(cpus: &[usize]) {
        const CPUS: usize = 8 * size_of::<libc::cpu_set_t>();
        // SAFETY: a set consists of integers.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for cpu in cpus.iter().filter(|cpu| **cpu < CPUS) {
            // SAFETY: the number is one of the set.
            unsafe { libc::CPU_SET(*cpu, &mut set) };
        }
        // SAFETY: the system reads the set. The result does not matter: it is a hint.
        let _ = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    }

    /// The whole pages in a part of memory: their start and length.
    fn whole_pages(start: *const u8, len: usize) -> (*const u8, usize) {
        let page = page();
        let before = start.align_offset(page).min(len);
        (start.wrapping_add(before), (len - before) / page * page)
    }

    /// Sets the policy of whole pages.
    fn bind(policy: c_int, ids: &[usize], start: *const u8, len: usize, flags: c_int) {
        let (start, len) = whole_pages(start, len);
        if len == 0 {
            return;
        }
        let mask = mask(ids);
        let (mask, bits) = if ids.is_empty() {
            (ptr::null(), 0)
        } else {
            (mask.as_ptr(), NODES)
        };
        // SAFETY: the call changes where pages lie, and not what they contain. The mask has as many
        // bits. The result does not matter: it is a hint.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start,
                len,
                c_ulong::try_from(policy).expect("a small number"),
                mask,
                c_ulong::try_from(bits).expect("a small number"),
                flags,
            )
        };
    }

    pub(super) fn move_to(id: usize, memory: &mut [u8]) {
        let (start, len) = (memory.as_ptr(), memory.len());
        bind(libc::MPOL_PREFERRED, &[id], start, len, MPOL_MF_MOVE);
        // A page is given to a node when it is first written.
        for byte in memory.iter_mut().step_by(page()) {
            let value = std::hint::black_box(*byte);
            *byte = std::hint::black_box(value);
        }
    }

    pub(super) fn spread(ids: &[usize], start: *const u8, len: usize) {
        bind(libc::MPOL_INTERLEAVE, ids, start, len, 0);
    }

    pub(super) fn forget(start: *const u8, len: usize) {
        bind(libc::MPOL_DEFAULT, &[], start, len, 0);
    }

    /// Calls `found` with the node of each page that is in use.
    pub(super) fn count(start: *const u8, len: usize, mut found: impl FnMut(usize)) -> bool {
        let (start, len) = whole_pages(start, len);
        let pages: Vec<*const u8> = (0..len)
            .step_by(page())
            .map(|at| start.wrapping_add(at))
            .collect();
        let mut nodes = [0 as c_int; BATCH];
        for batch in pages.chunks(BATCH) {
            // SAFETY: without target nodes, the system only writes the node of each of these pages,
            // or a negative error number. It does not access the pages.
            let outcome = unsafe {
                libc::syscall(
                    libc::SYS_move_pages,
                    0,
                    batch.len(),
                    batch.as_ptr(),
                    ptr::null::<c_int>(),
                    nodes.as_mut_ptr(),
                    0,
                )
            };
            if outcome != 0 {
                return false;
            }
            let told = nodes[..batch.len()].iter();
            told.filter_map(|node| usize::try_from(*node).ok())
                .for_each(&mut found);
        }
        true
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) fn page() -> usize {
        0
    }

    pub(super) fn current() -> usize {
        0
    }

    pub(super) fn run_on(_cpus: &[usize]) {}

    pub(super) fn move_to(_id: usize, _memory: &mut [u8]) {}

    pub(super) fn spread(_ids: &[usize], _start: *const u8, _len: usize) {}

    pub(super) fn forget(_start: *const u8, _len: usize) {}

    pub(super) fn count(_start: *const u8, _len: usize, _found: impl FnMut(usize)) -> bool {
        false
    }
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
        // From the system, so that no page is in use yet. Huge pages are spread as a whole.
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
