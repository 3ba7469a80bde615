//! Systems on which memory has no nodes.

pub(super) fn page() -> usize {
    0
}

pub(super) fn current() -> usize {
    0
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Affinity;

pub(super) fn affinity() -> Option<Affinity> {
    None
}

pub(super) fn set_affinity(_affinity: &Affinity) {}

pub(super) fn run_on(_cpus: &[usize]) {}

pub(super) fn move_to(_id: usize, _memory: &mut [u8]) {}

pub(super) fn spread(_ids: &[usize], _start: *const u8, _len: usize) {}

pub(super) fn keep_on(_id: usize, _start: *const u8, _len: usize) {}

pub(super) fn forget(_start: *const u8, _len: usize) {}

pub(super) fn count(_start: *const u8, _len: usize, _found: impl FnMut(usize)) -> bool {
    false
}
