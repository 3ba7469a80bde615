//! Commit slots: one padded slot for each thread that is committing, and the gate in front of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

use crate::base::event::Event;
use crate::base::numbers::{AtomicSeqNo, LaneId, SeqNo, StrandId};
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Backoff, fence, spin_loop};

/// The value of a free slot.
const FREE: SeqNo = SeqNo::MAX;

/// The value of the slot of a commit that is logged and takes long to be applied: it no longer holds
/// back what is acknowledged, only what is visible.
const LOGGED: SeqNo = SeqNo::new(SeqNo::MAX.get() - 1);

/// Commits that can be in flight at once; more wait for a slot.
pub(crate) const MAX_COMMIT_SLOTS: usize = match (cfg!(all(test, loom)), cfg!(miri)) {
    (true, _) => 3,
    // Miri is slow, and the tests scan all slots repeatedly.
    (_, true) => 16,
    _ => 256,
};

/// How often a thread that closes the gate looks for commits in flight before it opens the gate again:
/// for some microseconds, in which a commit on another processor ends.
const LOOKS: u32 = if cfg!(all(test, loom)) { 1 } else { 256 };

/// The order counter and the commit slots.
///
/// A slot's number is a lower bound of the number that its commit will assign, then the first
/// number assigned. To compute the number up to which everything is finished, a thread reads the
/// counter first and the slots afterwards: a commit whose slot was seen free assigns after the read
/// of the counter, so its number is greater.
///
/// A commit is *logged* once its log record is in a buffer, and *finished* once its writes are
/// applied, too. Most commits become both at once, when they leave their slots. A commit that takes
/// long to be applied says when it is logged ([`CommitSlots::note_logged`]).
#[derive(Debug)]
pub(crate) struct CommitSlots {
    /// The newest number assigned; with a stride, no number assigned is greater.
    counter: CachePadded<AtomicSeqNo>,
    /// Numbers taken by one assignment, so that every remainder occurs once; 0 if numbers are
    /// dense.
    stride: u64,
    /// As many as there are strands, at least [`MAX_COMMIT_SLOTS`]; commits use that many.
    slots: Arc<[CachePadded<Slot>]>,
    /// Index of the first slot that was never used.
    used: CachePadded<AtomicUsize>,
    closed: AtomicBool,
    /// Whether the gate is closed permanently.
    sealed: AtomicBool,
    gate: Event,
    /// Commits that wait for a slot, while all are taken.
    freed: Event,
}

/// The smallest numbers of pending commits; [`SeqNo::MAX`] if no commit is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The least number that a commit which is not logged has or may assign.
    pub(crate) unlogged: SeqNo,
    /// The least number that a commit which is not finished has or may assign.
    pub(crate) unfinished: SeqNo,
}

#[derive(Debug)]
struct Slot {
    seqno: AtomicSeqNo,
    /// The first number of a commit that is logged and not finished, while `seqno` is [`LOGGED`].
    applying: AtomicSeqNo,
    /// The commit's write-set signature, see
    /// [`PendingCommit::set_signature`](crate::PendingCommit::set_signature).
    signature: AtomicU64,
    /// The least number in the strand with this index that is not durable. Of a strand, and not of
    /// the slot: here, a thread that computes what is durable finds both in one cache line, if the
    /// strand's thread commits in this slot.
    unflushed: AtomicSeqNo,
}

/// The least number in a strand that is not durable; [`SeqNo::MAX`] if there is none.
#[derive(Debug)]
pub(crate) struct Unflushed {
    slots: Arc<[CachePadded<Slot>]>,
    strand: StrandId,
}

impl Unflushed {
    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> SeqNo {
        self.slots[self.strand.get()].unflushed.load(order)
    }

    #[cfg_attr(braid_counts, track_caller)]
    #[inline]
    pub(crate) fn store(&self, seqno: SeqNo, order: Ordering) {
        self.slots[self.strand.get()].unflushed.store(seqno, order);
    }
}

/// A commit slot in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitSlot(usize);

impl CommitSlot {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

impl CommitSlots {
    /// Creates the slots. `lanes` is the number of lanes if numbers are assigned by lane.
    pub(crate) fn new(last_seqno: SeqNo, strands: usize, lanes: Option<usize>) -> Self {
        Self {
            stride: lanes.map_or(0, |lanes| lanes as u64),
            counter: CachePadded::new(AtomicSeqNo::new(last_seqno)),
            slots: (0..MAX_COMMIT_SLOTS.max(strands))
                .map(|_| Slot {
                    seqno: AtomicSeqNo::new(FREE),
                    applying: AtomicSeqNo::new(FREE),
                    signature: AtomicU64::new(0),
                    unflushed: AtomicSeqNo::new(SeqNo::MAX),
                })
                .map(CachePadded::new)
                .collect(),
            used: CachePadded::new(AtomicUsize::new(0)),
            closed: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            gate: Event::default(),
            freed: Event::default(),
        }
    }

    /// The place of a strand's least number that is not durable.
    pub(crate) fn unflushed(&self, strand: StrandId) -> Unflushed {
        Unflushed {
            slots: Arc::clone(&self.slots),
            strand,
        }
    }

    /// Prefetches the counter, for a commit that is about to enter. Otherwise it would fetch the
    /// counter's cache line twice: to read the counter, and to change it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        braid_rt::prefetch_for_write(&raw const self.counter);
    }

    /// The newest number assigned.
    pub(crate) fn last_seqno(&self) -> SeqNo {
        // SeqCst: the first step of every frontier computation, see the type.
        self.counter.load(Ordering::SeqCst)
    }

    /// Takes a slot and passes the gate, waiting while the gate is closed or all slots are taken.
    /// Returns `None` once the gate is closed permanently. `thread` spreads threads over the slots.
    #[inline(always)]
    pub(crate) fn enter(&self, thread: usize) -> Option<CommitSlot> {
        let slot = self.take_slot(thread);
        // SeqCst: pairs with `quiesce`. Either this thread sees the gate closed, or `quiesce` sees
        // this thread's slot.
        if !self.closed.load(Ordering::SeqCst) {
            Some(slot)
        } else {
            self.wait_for_the_gate(slot, thread)
        }
    }

    #[cold]
    fn wait_for_the_gate(&self, mut slot: CommitSlot, thread: usize) -> Option<CommitSlot> {
        loop {
            self.leave(slot);
            let listener = self.gate.listen();
            // SeqCst: the condition of the event, as `closed`.
            if self.sealed.load(Ordering::SeqCst) {
                return None;
            }
            if self.closed.load(Ordering::SeqCst) {
                listener.wait();
            }
            slot = self.take_slot(thread);
            // SeqCst: as in `enter`.
            if !self.closed.load(Ordering::SeqCst) {
                return Some(slot);
            }
        }
    }

    #[inline]
    fn take_slot(&self, thread: usize) -> CommitSlot {
        match self.try_take_slot(thread) {
            Some(slot) => slot,
            None => self.wait_for_a_slot(thread),
        }
    }

    #[cold]
    fn wait_for_a_slot(&self, thread: usize) -> CommitSlot {
        loop {
            let listener = self.freed.listen();
            // Orders the loads of slots that are in use, which are relaxed, after `listen`: pairs
            // with the SeqCst store in `leave`.
            fence(Ordering::SeqCst);
            if let Some(slot) = self.try_take_slot(thread) {
                return slot;
            }
            listener.wait();
        }
    }

    /// Takes a free slot; returns `None` if there was none.
    #[inline]
    fn try_take_slot(&self, thread: usize) -> Option<CommitSlot> {
        let first = thread % MAX_COMMIT_SLOTS;
        // Nearly always the first one: a thread commits one transaction at a time.
        if self.try_take(first) {
            return Some(CommitSlot(first));
        }
        let mut others = (first + 1..MAX_COMMIT_SLOTS).chain(0..first);
        let found = others.find(|&index| self.try_take(index));
        found.map(CommitSlot)
    }

    /// Takes a slot, if it is free.
    #[inline]
    fn try_take(&self, index: usize) -> bool {
        // Relaxed: only grows, and a stale value only repeats the `fetch_max`.
        if index >= self.used.load(Ordering::Relaxed) {
            // SeqCst: before the slot is taken, so before the assignment; a scan that misses this
            // has read the counter before this commit's assignment.
            self.used.fetch_max(index + 1, Ordering::SeqCst);
        }
        let bound = self.last_seqno().next();
        // SeqCst: pairs with `oldest`, see the type.
        let seqno = &self.slots[index].seqno;
        seqno.replace(FREE, bound, Ordering::SeqCst, Ordering::Relaxed)
    }

    /// Assigns `count` consecutive numbers, or, where they are assigned by lane, one whose
    /// remainder is `lane`; returns the first and the last.
    pub(crate) fn assign(
        &self,
        slot: CommitSlot,
        count: u64,
        lane: LaneId,
        signature: u64,
    ) -> (SeqNo, SeqNo) {
        let slot = &self.slots[slot.0];
        // Release: pairs with `are_finished`. Stored before the assignment, so that every commit
        // with a later assignment sees it.
        slot.signature.store(signature, Ordering::Release);
        braid_rt::yield_point();
        // SeqCst: pairs with `last_seqno` as the first read of a frontier, see the type.
        let (first, last) = match self.stride {
            0 => {
                let before = self.counter.fetch_add(count, Ordering::SeqCst);
                (before.next(), SeqNo::new(before.get() + count))
            }
            stride => {
                let before = self.counter.fetch_add(stride, Ordering::SeqCst);
                let least = before.next().get();
                let rest = (lane.get() as u64 + stride - least % stride) % stride;
                let seqno = SeqNo::new(least + rest);
                (seqno, seqno)
            }
        };
        braid_rt::yield_point();
        // Release: raises this commit's bound; a reader of the old value is only more conservative.
        slot.seqno.store(first, Ordering::Release);
        (first, last)
    }

    /// Records that the commit with this first number is logged, though not finished. A thread that
    /// sees it logged also sees its log record in the buffer.
    pub(crate) fn note_logged(&self, slot: CommitSlot, first: SeqNo) {
        let slot = &self.slots[slot.0];
        // SeqCst: stored before the slot's number changes, so that a thread always finds one of
        // the two.
        if !braid_rt::mutant!("show_before_applied") {
            slot.applying.store(first, Ordering::SeqCst);
        }
        braid_rt::yield_point();
        // SeqCst: at least Release for `pending`, and ordered before the caller's load of
        // `stalled`.
        slot.seqno.store(LOGGED, Ordering::SeqCst);
    }

    /// Records that a commit which was logged is finished. The slot is released afterwards.
    pub(crate) fn note_finished(&self, slot: CommitSlot) {
        braid_rt::yield_point();
        // SeqCst: at least Release for `pending`.
        self.slots[slot.0].applying.store(FREE, Ordering::SeqCst);
    }

    /// Releases the slot. A thread that sees the slot free also sees the commit's effects.
    pub(crate) fn leave(&self, slot: CommitSlot) {
        braid_rt::yield_point();
        // SeqCst: at least Release for `pending`, and ordered before the caller's load of `stalled`.
        self.slots[slot.0].seqno.store(FREE, Ordering::SeqCst);
        // Every slot that becomes free wakes one: a commit that takes the slot before that one does
        // wakes it when it leaves.
        self.freed.notify_one();
    }

    /// The smallest numbers of pending commits. The caller must read [`CommitSlots::last_seqno`]
    /// first.
    pub(crate) fn pending(&self) -> Pending {
        braid_rt::yield_point();
        let used = self.used.load(Ordering::SeqCst);
        let mut pending = Pending {
            unlogged: FREE,
            unfinished: FREE,
        };
        for slot in &self.slots[..used] {
            // SeqCst: pairs with `take_slot` and, as Acquire, with `note_logged` and `leave`.
            let seqno = slot.seqno.load(Ordering::SeqCst);
            if seqno == LOGGED {
                // SeqCst: as Acquire, pairs with `note_finished`. If another commit has taken the
                // slot since, it assigns its number after the caller read the counter.
                let applying = slot.applying.load(Ordering::SeqCst);
                pending.unfinished = pending.unfinished.min(applying);
            } else {
                pending.unlogged = pending.unlogged.min(seqno);
            }
        }
        pending.unfinished = pending.unfinished.min(pending.unlogged);
        pending
    }

    /// Whether all slots are free.
    fn are_free(&self) -> bool {
        braid_rt::yield_point();
        let used = self.used.load(Ordering::SeqCst);
        // SeqCst: pairs with `take_slot` and, as Acquire, with `leave`.
        let is_free = |slot: &CachePadded<Slot>| slot.seqno.load(Ordering::SeqCst) == FREE;
        self.slots[..used].iter().all(is_free)
    }

    /// Whether all commits with a number below `below` whose write-set signature matches have
    /// finished. If so, their effects are visible. The caller was assigned `below`, or read it from
    /// the counter.
    pub(crate) fn are_finished(&self, below: SeqNo, signature: u64) -> bool {
        let is_finished = |slot: &CachePadded<Slot>| {
            braid_rt::yield_point();
            // SeqCst, as in `pending`.
            let seqno = match slot.seqno.load(Ordering::SeqCst) {
                LOGGED => slot.applying.load(Ordering::SeqCst),
                seqno => seqno,
            };
            seqno >= below
                // Acquire: pairs with `assign`. A commit with a smaller number stored its signature
                // before, so this is that signature, or the signature of a later commit in the
                // slot, which implies that the earlier commit has left.
                || slot.signature.load(Ordering::Acquire) & signature == 0
        };
        // SeqCst, as in `pending`.
        let used = self.used.load(Ordering::SeqCst);
        self.slots[..used].iter().all(is_finished)
    }

    /// Whether a commit that is logged and not finished matches this write-set signature.
    pub(crate) fn is_applying(&self, signature: u64) -> bool {
        // SeqCst, as in `pending`.
        let used = self.used.load(Ordering::SeqCst);
        self.slots[..used].iter().any(|slot| {
            slot.seqno.load(Ordering::SeqCst) == LOGGED
                && slot.applying.load(Ordering::SeqCst) != FREE
                // Acquire, as in `are_finished`.
                && slot.signature.load(Ordering::Acquire) & signature != 0
        })
    }

    /// Closes the gate permanently and waits until no pending commit is in flight.
    ///
    /// The caller ensures that no thread quiesces meanwhile.
    pub(crate) fn seal(&self) {
        self.quiesce(|| self.sealed.store(true, Ordering::SeqCst));
    }

    /// Whether the gate is closed permanently.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::SeqCst)
    }

    /// Closes the gate, waits until no pending commit is in flight, runs `f`, and opens the gate
    /// unless it is closed permanently.
    ///
    /// If `insists` is `false`, a commit that does not end at once, because its thread has no
    /// processor or waits for a buffer, opens the gate again, so that the others do not wait for it
    /// too: then the result is `None`.
    ///
    /// The caller ensures that only one thread calls this at a time.
    pub(crate) fn try_quiesce<R>(&self, insists: bool, f: impl FnOnce() -> R) -> Option<R> {
        struct Open<'a>(&'a CommitSlots);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                if !self.0.sealed.load(Ordering::SeqCst) {
                    self.0.closed.store(false, Ordering::SeqCst);
                }
                self.0.gate.notify();
            }
        }
        // SeqCst: pairs with `enter`.
        self.closed.store(true, Ordering::SeqCst);
        let open = Open(self);
        let mut backoff = Backoff::default();
        let mut looks = 0;
        while !self.are_free() {
            looks += 1;
            if insists {
                backoff.wait();
            } else if looks < LOOKS {
                spin_loop();
            } else {
                if braid_rt::mutant!("leave_the_gate_closed") {
                    std::mem::forget(open);
                }
                return None;
            }
        }
        Some(f())
    }

    /// As [`CommitSlots::try_quiesce`], and insists.
    pub(crate) fn quiesce<R>(&self, f: impl FnOnce() -> R) -> R {
        self.try_quiesce(true, f).expect("it insists")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slots(last_seqno: u64, lanes: Option<usize>) -> CommitSlots {
        CommitSlots::new(SeqNo::new(last_seqno), 1, lanes)
    }

    #[test]
    fn oldest_follows_the_commits() {
        let commit_slots = slots(10, None);
        assert_eq!(commit_slots.pending().unfinished, FREE);
        let a = commit_slots.enter(3).unwrap();
        assert_eq!(commit_slots.pending().unfinished.get(), 11);
        let b = commit_slots.enter(3).unwrap();
        let assign = |slot, count| {
            let (first, last) = commit_slots.assign(slot, count, LaneId::new(0), 1);
            (first.get(), last.get())
        };
        assert_eq!(assign(b, 2), (11, 12));
        assert_eq!(assign(a, 1), (13, 13));
        assert_eq!(commit_slots.pending().unfinished.get(), 11);
        commit_slots.leave(b);
        assert_eq!(commit_slots.pending().unfinished.get(), 13);
        commit_slots.leave(a);
        assert_eq!(
            (commit_slots.pending().unfinished, commit_slots.last_seqno()),
            (FREE, SeqNo::new(13))
        );
    }

    #[test]
    fn a_logged_commit_holds_back_what_is_visible_alone() {
        let commit_slots = slots(10, None);
        let assigned = |thread| {
            let slot = commit_slots.enter(thread).unwrap();
            let (first, _) = commit_slots.assign(slot, 1, LaneId::new(0), 0b01);
            (slot, first)
        };
        let (large, first) = assigned(0);
        let (small, _) = assigned(1);
        let pending = |unlogged, unfinished| Pending {
            unlogged: SeqNo::new(unlogged),
            unfinished: SeqNo::new(unfinished),
        };
        assert_eq!(commit_slots.pending(), pending(11, 11));
        commit_slots.note_logged(large, first);
        assert_eq!(commit_slots.pending(), pending(12, 11));
        commit_slots.leave(small);
        assert_eq!(commit_slots.pending(), pending(u64::MAX, 11));
        assert!(!commit_slots.are_finished(SeqNo::new(12), 0b01));
        assert!(commit_slots.are_finished(SeqNo::new(12), 0b10), "elsewhere");
        assert!(commit_slots.is_applying(0b01) && !commit_slots.is_applying(0b10));
        assert!(!commit_slots.are_free());
        // The slot is not free for another commit.
        assert_ne!(commit_slots.enter(0).unwrap().index(), large.index());
        commit_slots.note_finished(large);
        assert!(!commit_slots.is_applying(0b01));
        assert_eq!(commit_slots.pending().unfinished.get(), 13);
        commit_slots.leave(large);
        assert_eq!(commit_slots.enter(0).unwrap().index(), large.index());
    }

    #[test]
    fn more_commits_than_slots_wait_asleep() {
        let commit_slots = &slots(0, None);
        let enter = |thread| commit_slots.enter(thread).unwrap();
        let taken: Vec<_> = (0..MAX_COMMIT_SLOTS).map(enter).collect();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3)
                .map(|thread| scope.spawn(move || commit_slots.leave(enter(thread))))
                .collect();
            while commit_slots.freed.sleepers() < waiters.len() {
                std::thread::yield_now();
            }
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
            // The others follow: each wakes the next one.
            commit_slots.leave(taken[7]);
        });
        assert_eq!(commit_slots.pending().unfinished, SeqNo::new(1));
    }

    #[test]
    fn a_number_by_lane_contains_the_lane() {
        let commit_slots = slots(7, Some(3));
        let mut before = SeqNo::new(7);
        for lane in [0, 2, 1, 1, 0] {
            let slot = commit_slots.enter(lane).unwrap();
            let (first, last) = commit_slots.assign(slot, 5, LaneId::new(lane), 1);
            assert!(first == last && last > before && last <= commit_slots.last_seqno());
            assert_eq!(last.get() % 3, lane as u64);
            before = last;
            commit_slots.leave(slot);
        }
    }

    #[test]
    fn a_commit_that_does_not_end_does_not_close_the_gate() {
        let commit_slots = slots(0, None);
        let slow = commit_slots.enter(0).unwrap();
        // Without insisting, this returns although the commit never ends.
        assert_eq!(commit_slots.try_quiesce(false, || 7), None);
        assert!(!commit_slots.closed.load(Ordering::SeqCst), "it is open");
        let other = commit_slots.enter(1).unwrap();
        commit_slots.leave(other);
        commit_slots.leave(slow);
        assert_eq!(commit_slots.try_quiesce(false, || 7), Some(7));
    }

    #[test]
    fn no_thread_enters_a_closed_gate() {
        let commit_slots = slots(0, None);
        let entered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            commit_slots.quiesce(|| {
                scope.spawn(|| {
                    let slot = commit_slots.enter(0).unwrap();
                    entered.store(true, Ordering::SeqCst);
                    commit_slots.leave(slot);
                });
                while !commit_slots.gate.has_listeners() && !entered.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                assert!(!entered.load(Ordering::SeqCst));
            });
        });
        assert!(entered.load(Ordering::SeqCst));
    }

    #[test]
    fn quiesce_sees_no_commit() {
        let commit_slots = slots(0, None);
        let busy = AtomicUsize::new(0);
        let (each, times) = if cfg!(miri) { (20, 3) } else { (5_000, 50) };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (commit_slots, busy) = (&commit_slots, &busy);
                scope.spawn(move || {
                    for _ in 0..each {
                        let slot = commit_slots.enter(thread).unwrap();
                        busy.fetch_add(1, Ordering::SeqCst);
                        commit_slots.assign(slot, 1, LaneId::new(0), 1);
                        busy.fetch_sub(1, Ordering::SeqCst);
                        commit_slots.leave(slot);
                    }
                });
            }
            for _ in 0..times {
                commit_slots.quiesce(|| {
                    let last = commit_slots.last_seqno();
                    assert_eq!(busy.load(Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    assert_eq!(commit_slots.last_seqno(), last);
                });
            }
        });
        assert_eq!(commit_slots.last_seqno().get(), 4 * each);
    }
}
