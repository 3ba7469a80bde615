//! Memory nodes on Linux: `mbind`, `move_pages`, `getcpu` and processor affinity.

use std::ffi::{c_int, c_ulong};
use std::ptr;

/// Numbers of nodes or processors in a mask. The kernel has at most 1,024 nodes.
const NUMBERS: usize = 1_024;
const BITS: usize = c_ulong::BITS as usize;
/// Moves pages that only this process uses (`linux/mempolicy.h`).
const MPOL_MF_MOVE: c_int = 1 << 1;
/// Pages of which the node is asked at once.
const BATCH: usize = 1_024;

type Mask = [c_ulong; NUMBERS / BITS];

fn mask(ids: &[usize]) -> Mask {
    let mut mask = [0; NUMBERS / BITS];
    for id in ids.iter().filter(|id| **id < NUMBERS) {
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

/// The processors on which a thread may run, of the first [`NUMBERS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Affinity(Mask);

/// The processors on which the calling thread may run; `None` if the system does not tell.
pub(super) fn affinity() -> Option<Affinity> {
    let mut set = mask(&[]);
    // SAFETY: the system writes at most so many bytes.
    let outcome = unsafe { libc::sched_getaffinity(0, size_of::<Mask>(), set.as_mut_ptr().cast()) };
    (outcome == 0).then_some(Affinity(set))
}

/// Lets the calling thread run on these processors only.
pub(super) fn set_affinity(Affinity(set): &Affinity) {
    // SAFETY: the system reads so many bytes. The result does not matter: it is a hint.
    let _ = unsafe { libc::sched_setaffinity(0, size_of::<Mask>(), set.as_ptr().cast()) };
}

pub(super) fn run_on(cpus: &[usize]) {
    set_affinity(&Affinity(mask(cpus)));
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
        (mask.as_ptr(), NUMBERS)
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

pub(super) fn keep_on(id: usize, start: *const u8, len: usize) {
    bind(libc::MPOL_PREFERRED, &[id], start, len, 0);
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
