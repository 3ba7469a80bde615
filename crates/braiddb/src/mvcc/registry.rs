//! The snapshot registry: open snapshots, and the bound below which no new snapshot can begin.
//!
//! A snapshot reads at the log's visible seqno (I4: what a snapshot returns is durable, so it cannot
//! vanish in a crash). Old versions are retained while a snapshot may need them. Versions that end
//! at or below the *watermark* are collected.
//!
//! Two rules make this race-free without a lock when a snapshot is opened:
//!
//! - The collector publishes the sequence number up to which it wants to trim (`intent`) *before*
//!   it examines the open snapshots, and trims only below the oldest of them.
//! - A snapshot publishes its sequence number *before* it loads `intent`, and retries with a newer
//!   sequence number if its own is older.
//!
//! Both sides use SeqCst, so that at least one of them sees the other.
//!
//! The limit on the memory of old versions ends the oldest snapshots (see
//! `engine::version_limit`): an *ended* snapshot retains nothing, and its reads fail. Again one rule
//! replaces a lock: the registry marks snapshots as ended *before* the collector leaves them out of
//! account, and a snapshot checks the mark *after* it has read. A reader that misses a version that
//! was collected has synchronized with the collector, so it sees the mark.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use braid_log::SeqNo;
use crossbeam_utils::CachePadded;

use crate::base::sync::{AtomicU64, AtomicUsize, Mutex};

const SLOTS: usize = match (cfg!(all(test, loom)), cfg!(miri)) {
    (true, _) => 1,
    // Interpreted by Miri, each pass over the slots is slow.
    (_, true) => 4,
    _ => 128,
};
const FREE: u64 = u64::MAX;

/// The open snapshots of a database.
#[derive(Debug)]
pub(crate) struct SnapshotRegistry {
    slots: Box<[CachePadded<AtomicU64>]>,
    /// Slots from this index on were never used.
    used: CachePadded<AtomicUsize>,
    /// Snapshots beyond the slots: the number of open snapshots at each sequence number.
    more: Mutex<BTreeMap<SeqNo, usize>>,
    /// Number of snapshots in `more`; while it is 0, the collector does not lock `more`.
    more_open: AtomicUsize,
    bounds: CachePadded<Bounds>,
    /// Snapshots below this sequence number have ended. At most the intent, so that no snapshot
    /// that is opened later is below it. Readers load it, and only an ending snapshot changes it.
    ended_below: CachePadded<AtomicU64>,
}

/// What the collector changes. In one cache line, since a thread that raises the watermark changes
/// all of it.
#[derive(Debug, Default)]
struct Bounds {
    intent: AtomicU64,
    watermark: AtomicU64,
    /// Held while the open snapshots are examined.
    collecting: Mutex<()>,
}

/// Registration of an open snapshot; release it with [`SnapshotRegistry::close`].
#[derive(Debug)]
pub(crate) struct Registration {
    seqno: SeqNo,
    slot: Option<usize>,
}

impl Registration {
    /// Returns the sequence number up to which commits are visible.
    pub(crate) fn seqno(&self) -> SeqNo {
        self.seqno
    }
}

impl Registration {
    /// Creates a registration that is in no registry. Do not pass it to
    /// [`SnapshotRegistry::close`].
    pub(crate) fn unregistered(seqno: SeqNo) -> Self {
        Self { seqno, slot: None }
    }
}

/// The snapshots that were open at one moment.
#[derive(Debug)]
pub(crate) struct OpenSnapshots {
    /// Their sequence numbers, in ascending order.
    seqnos: Vec<SeqNo>,
    /// No snapshot that is opened later has a lower sequence number.
    next: SeqNo,
}

impl OpenSnapshots {
    #[cfg(test)]
    pub(crate) fn new(seqnos: &[u64], next: u64) -> Self {
        let seqnos = seqnos.iter().copied().map(SeqNo::new).collect();
        let next = SeqNo::new(next);
        Self { seqnos, next }
    }

    /// Returns whether a snapshot, open or future, can see a version that was written by commit
    /// `begin` and replaced by commit `end`.
    pub(crate) fn can_see(&self, begin: SeqNo, end: SeqNo) -> bool {
        let first = self.seqnos.partition_point(|&seqno| seqno < begin);
        let is_open = self.seqnos.get(first).is_some_and(|&seqno| seqno < end);
        (is_open && !braid_rt::mutant!("prune_what_is_seen")) || end > self.next
    }

    /// Returns the number of open snapshots, the oldest ones, that retain what commit `end` replaced
    /// or removed. 0 if that commit is not visible yet: what it replaced is retained without them.
    pub(crate) fn retaining(&self, end: SeqNo) -> usize {
        if end > self.next {
            return 0;
        }
        self.seqnos.partition_point(|&seqno| seqno < end)
    }

    /// Returns the sequence numbers of the snapshots, in ascending order.
    pub(crate) fn seqnos(&self) -> &[SeqNo] {
        &self.seqnos
    }
}

impl SnapshotRegistry {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS)
                .map(|_| CachePadded::new(AtomicU64::new(FREE)))
                .collect(),
            used: CachePadded::new(AtomicUsize::new(0)),
            more: Mutex::default(),
            more_open: AtomicUsize::new(0),
            bounds: CachePadded::default(),
            ended_below: CachePadded::default(),
        }
    }

    /// Opens a snapshot at the result of `visible_seqno`; `hint` spreads threads over the slots.
    pub(crate) fn open(&self, hint: usize, visible_seqno: impl Fn() -> SeqNo) -> Registration {
        for step in 0..SLOTS {
            let slot = (hint + step) % SLOTS;
            let seqno = visible_seqno();
            braid_rt::yield_point();
            // SeqCst, here and below: see the rules in the module documentation. A collector that
            // misses this slot has published its intent before.
            if slot >= self.used.load(Ordering::SeqCst) {
                self.used.fetch_max(slot + 1, Ordering::SeqCst);
            }
            if self.slots[slot]
                .compare_exchange(FREE, seqno.get(), Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            braid_rt::yield_point();
            let mut seqno = seqno;
            while self.intent() > seqno {
                seqno = visible_seqno();
                self.slots[slot].store(seqno.get(), Ordering::SeqCst);
            }
            return Registration {
                seqno,
                slot: Some(slot),
            };
        }
        self.more_open.fetch_add(1, Ordering::SeqCst);
        let mut more = self.more.lock();
        // No retry is needed under the mutex, which the collector locks after publishing its
        // intent: either the collector sees this entry, or this thread sees the intent.
        let seqno = visible_seqno().max(self.intent());
        *more.entry(seqno).or_default() += 1;
        Registration { seqno, slot: None }
    }

    pub(crate) fn close(&self, registration: &Registration) {
        match registration.slot {
            // Release: the snapshot's reads happen before the collector sees the slot free.
            Some(slot) => self.slots[slot].store(FREE, Ordering::Release),
            None => {
                let mut more = self.more.lock();
                if let Some(count) = more.get_mut(&registration.seqno) {
                    *count -= 1;
                    if *count == 0 {
                        more.remove(&registration.seqno);
                    }
                }
                self.more_open.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// `SeqCst`: see the rules in the module documentation.
    fn intent(&self) -> SeqNo {
        SeqNo::new(self.bounds.intent.load(Ordering::SeqCst))
    }

    /// Returns the watermark: no current or future snapshot is below it, so versions that end at or
    /// below it can be collected.
    pub(crate) fn watermark(&self) -> SeqNo {
        // Acquire: pairs with the Release in `advance`; trimming happens after the slots were
        // examined.
        SeqNo::new(self.bounds.watermark.load(Ordering::Acquire))
    }

    /// Returns whether a snapshot has ended. Call after reading: if this returns `false`, what the
    /// caller has read is what the snapshot shows.
    #[inline]
    pub(crate) fn is_ended(&self, seqno: SeqNo) -> bool {
        seqno < self.ended_below()
    }

    fn ended_below(&self) -> SeqNo {
        // Acquire: pairs with the Release in `end_through`, so that the collector's watermark, and
        // what it collects, follow the mark.
        SeqNo::new(self.ended_below.load(Ordering::Acquire))
    }

    /// Ends the snapshots up to and including `last`, one of the open snapshots. Returns how many
    /// ended.
    pub(crate) fn end_through(&self, last: SeqNo) -> usize {
        let _collecting = self.bounds.collecting.lock();
        let before = self.ended_below();
        debug_assert!(last < self.intent(), "a later snapshot never begins ended");
        let mut ended = 0;
        let mut count = |seqno, count| {
            if before <= seqno && seqno <= last {
                ended += count;
            }
        };
        self.for_each_slot(|seqno| count(seqno, 1));
        let more = self.more.lock();
        more.iter().for_each(|(&seqno, &open)| count(seqno, open));
        drop(more);
        // Release: see `ended_below`.
        self.ended_below
            .fetch_max(last.next().get(), Ordering::Release);
        ended
    }

    /// Raises the watermark towards `visible_seqno` as far as the open snapshots allow.
    #[inline(never)]
    pub(crate) fn advance(&self, visible_seqno: SeqNo) {
        let intent = SeqNo::new(self.bounds.intent.load(Ordering::Relaxed));
        if intent >= visible_seqno && self.watermark() >= visible_seqno {
            return;
        }
        let Some(_collecting) = self.bounds.collecting.try_lock() else {
            return;
        };
        let mut oldest = self.raise_intent(visible_seqno);
        self.for_each_open(|seqno| oldest = oldest.min(seqno));
        // A snapshot below the intent may be moving up at this moment; the watermark never
        // decreases.
        self.bounds
            .watermark
            .fetch_max(oldest.get(), Ordering::Release);
    }

    /// Lists the open snapshots, and the bound below which no other snapshot begins. Returns `None`
    /// if another thread examines the snapshots.
    pub(crate) fn survey(&self, visible_seqno: SeqNo) -> Option<OpenSnapshots> {
        let collecting = self.bounds.collecting.try_lock()?;
        let open = self.open_snapshots(visible_seqno);
        drop(collecting);
        Some(open)
    }

    /// As [`SnapshotRegistry::survey`], but waits for another thread that examines the snapshots.
    pub(crate) fn wait_survey(&self, visible_seqno: SeqNo) -> OpenSnapshots {
        let _collecting = self.bounds.collecting.lock();
        self.open_snapshots(visible_seqno)
    }

    /// The caller holds the lock of the examination.
    fn open_snapshots(&self, visible_seqno: SeqNo) -> OpenSnapshots {
        let next = self.raise_intent(visible_seqno);
        let mut seqnos = Vec::new();
        self.for_each_open(|seqno| seqnos.push(seqno));
        seqnos.sort_unstable();
        OpenSnapshots { seqnos, next }
    }

    /// Publishes the intent to trim up to `visible_seqno`. Returns the intent.
    fn raise_intent(&self, visible_seqno: SeqNo) -> SeqNo {
        self.bounds
            .intent
            .fetch_max(visible_seqno.get(), Ordering::SeqCst);
        braid_rt::yield_point();
        self.intent()
    }

    /// Calls `examine` with the sequence number of each open snapshot that has not ended, once or
    /// more. The caller has published its intent.
    fn for_each_open(&self, mut examine: impl FnMut(SeqNo)) {
        let ended_below = self.ended_below();
        self.for_each_slot(|seqno| {
            if seqno >= ended_below {
                examine(seqno);
            }
        });
        if self.more_open.load(Ordering::SeqCst) > 0 {
            let more = self.more.lock();
            more.range(ended_below..)
                .for_each(|(&seqno, _)| examine(seqno));
        }
    }

    /// Calls `examine` with the sequence number of each snapshot in a slot. The caller has published
    /// its intent, so a snapshot that is missed here begins at the intent or later.
    fn for_each_slot(&self, mut examine: impl FnMut(SeqNo)) {
        for slot in &self.slots[..self.used.load(Ordering::SeqCst)] {
            if braid_rt::mutant!("forget_snapshots") {
                break;
            }
            let seqno = slot.load(Ordering::SeqCst);
            if seqno != FREE {
                examine(SeqNo::new(seqno));
            }
        }
    }

    /// Returns the number of open snapshots that have not ended, and the sequence number of the
    /// oldest.
    pub(crate) fn census(&self) -> (usize, Option<SeqNo>) {
        let ended_below = self.ended_below();
        let open = self
            .slots
            .iter()
            .map(|s| s.load(Ordering::Relaxed))
            .filter(|&n| n != FREE)
            .map(SeqNo::new)
            .filter(|&seqno| seqno >= ended_below);
        let mut numbers: Vec<SeqNo> = open.collect();
        let more = self.more.lock();
        let more = more.range(ended_below..);
        let count = numbers.len() + more.clone().map(|(_, count)| count).sum::<usize>();
        numbers.extend(more.map(|(seqno, _)| seqno));
        (count, numbers.into_iter().min())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl SnapshotRegistry {
        fn open_at(&self, hint: usize, seqno: u64) -> Registration {
            self.open(hint, || SeqNo::new(seqno))
        }

        fn advance_to(&self, seqno: u64) -> u64 {
            self.advance(SeqNo::new(seqno));
            self.watermark().get()
        }
    }

    #[test]
    fn an_open_snapshot_holds_the_watermark_back() {
        let snapshots = SnapshotRegistry::new();
        let ten = snapshots.open_at(3, 10);
        assert_eq!(snapshots.advance_to(20), 10);
        assert_eq!(snapshots.census(), (1, Some(SeqNo::new(10))));
        snapshots.close(&ten);
        assert_eq!(snapshots.advance_to(20), 20);
    }

    #[test]
    fn a_snapshot_never_begins_below_the_intent() {
        let snapshots = SnapshotRegistry::new();
        snapshots.advance_to(20);
        // A stale first load of the visible seqno is repeated.
        let looks = std::cell::Cell::new(0);
        let registration = snapshots.open(0, || {
            looks.set(looks.get() + 1);
            SeqNo::new(if looks.get() == 1 { 10 } else { 20 })
        });
        assert_eq!(registration.seqno().get(), 20);
    }

    #[test]
    fn an_ended_snapshot_retains_nothing() {
        let snapshots = SnapshotRegistry::new();
        let open: Vec<_> = [10, 12, 12, 15]
            .iter()
            .map(|&seqno| snapshots.open_at(3, seqno))
            .collect();
        assert_eq!(snapshots.advance_to(20), 10);
        assert_eq!(snapshots.end_through(SeqNo::new(12)), 3);
        assert_eq!(snapshots.end_through(SeqNo::new(12)), 0);
        let is_ended = |registration: &Registration| snapshots.is_ended(registration.seqno());
        assert_eq!(
            open.iter().map(is_ended).collect::<Vec<_>>(),
            [true, true, true, false]
        );
        assert_eq!(snapshots.census(), (1, Some(SeqNo::new(15))));
        assert_eq!(snapshots.advance_to(20), 15);
        let surveyed = snapshots.wait_survey(SeqNo::new(20));
        assert_eq!(surveyed.seqnos(), [SeqNo::new(15)]);
        assert!(!snapshots.is_ended(snapshots.open_at(9, 20).seqno()));
        open.iter().for_each(|r| snapshots.close(r));
        assert_eq!(snapshots.advance_to(20), 20);
    }

    #[test]
    fn snapshots_beyond_the_slots_end_too() {
        let snapshots = SnapshotRegistry::new();
        let slotted: Vec<_> = (0..SLOTS).map(|_| snapshots.open_at(0, 20)).collect();
        let beyond = [10, 10, 15].map(|seqno| snapshots.open_at(0, seqno));
        assert_eq!(snapshots.advance_to(30), 10);
        assert_eq!(snapshots.end_through(SeqNo::new(10)), 2);
        assert_eq!(snapshots.census(), (SLOTS + 1, Some(SeqNo::new(15))));
        assert_eq!(snapshots.advance_to(30), 15);
        beyond.iter().for_each(|r| snapshots.close(r));
        assert_eq!(snapshots.advance_to(30), 20);
        slotted.iter().for_each(|r| snapshots.close(r));
    }

    #[test]
    fn more_snapshots_than_slots() {
        let snapshots = SnapshotRegistry::new();
        let open: Vec<_> = (0..3 * SLOTS as u64)
            .map(|n| snapshots.open_at(0, 5 + n))
            .collect();
        assert_eq!(snapshots.census(), (3 * SLOTS, Some(SeqNo::new(5))));
        assert_eq!(snapshots.advance_to(1_000), 5);
        open.iter().for_each(|r| snapshots.close(r));
        assert_eq!(snapshots.advance_to(1_000), 1_000);
    }

    #[test]
    fn snapshots_beyond_the_slots_hold_the_watermark_back() {
        let snapshots = SnapshotRegistry::new();
        let slotted: Vec<_> = (0..SLOTS).map(|_| snapshots.open_at(0, 20)).collect();
        let oldest = snapshots.open_at(0, 10);
        assert_eq!(snapshots.advance_to(30), 10);
        // A load of the visible seqno from before the collector's intent.
        let late = snapshots.open_at(0, 15);
        assert_eq!(late.seqno().get(), 30);
        snapshots.close(&oldest);
        assert_eq!(snapshots.advance_to(30), 20);
        slotted.iter().for_each(|r| snapshots.close(r));
        assert_eq!(snapshots.advance_to(40), 30);
        snapshots.close(&late);
        assert_eq!(snapshots.advance_to(40), 40);
    }
}
