//! Loom tests: locks and snapshots in every order that the memory model allows, up to a number of
//! preemptions.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p braiddb --lib --profile loom loom`; see
//! docs/testing.md.
//! Each test names the orderings that it was seen to need: the test fails if one of them is
//! weakened, `SeqCst` to acquire and release, others to `Relaxed`.

#![allow(
    clippy::arc_with_non_send_sync,
    reason = "loom's cells are not Sync: loom itself checks who touches them"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use braid_io::{Device, MemoryDevice};
use braid_log::{Announcer, SeqNo};
use braid_loom::{AtomicBool, AtomicU64, UnsafeCell, explore, spawn};

use crate::locks::table::LockTable;
use crate::mvcc::registry::SnapshotRegistry;
use crate::services::readers::{Announcements, Commits, FlushAnnouncer};

const FOREVER: Duration = Duration::MAX;

/// One thread at a time holds a lock, and a thread that sleeps for the lock acquires it.
///
/// `overflows` says that another lock of the bucket is held, so that this one overflows.
fn hand_over(preemptions: usize, overflows: bool) {
    explore(preemptions, move || {
        let shared = Arc::new((LockTable::new(1), UnsafeCell::new(0)));
        if overflows {
            shared.0.lock(7, 4, FOREVER).unwrap();
        }
        let lock_and_add = |owner, shared: &(LockTable, UnsafeCell<u32>)| {
            let (locks, value) = shared;
            locks.lock(0, owner, FOREVER).unwrap();
            // SAFETY: exclusive if the lock works, which loom checks.
            value.with_mut(|value| unsafe { *value += 1 });
            locks.unlock(0, owner);
        };
        let others = [2, 3].map(|owner| {
            let shared = shared.clone();
            spawn(move || lock_and_add(owner, &shared))
        });
        lock_and_add(1, &shared);
        for other in others {
            other.join().unwrap();
        }
        // SAFETY: all threads are joined.
        assert_eq!(shared.1.with(|value| unsafe { *value }), 3);
        if overflows {
            shared.0.unlock(7, 4);
        }
        assert!(shared.0.is_unused());
    });
}

/// Needs Acquire in `lock` and in `enter`, Release in `unlock` and when a bucket is left.
#[test]
fn a_lock_is_handed_over() {
    hand_over(3, false);
}

#[test]
fn an_overflowed_lock_is_handed_over() {
    hand_over(2, true);
}

/// A lock has one place at a time, although another lock of its bucket comes and goes.
#[test]
fn a_lock_is_inline_or_overflows() {
    explore(3, || {
        let shared = Arc::new((LockTable::new(1), UnsafeCell::new(0)));
        let add = |key, owner, shared: &(LockTable, UnsafeCell<u32>)| {
            let (locks, value) = shared;
            locks.lock(key, owner, FOREVER).unwrap();
            if key == 0 {
                // SAFETY: exclusive if the lock works, which loom checks.
                value.with_mut(|value| unsafe { *value += 1 });
            }
            locks.unlock(key, owner);
        };
        let others = [(0, 2), (7, 3)].map(|(key, owner)| {
            let shared = shared.clone();
            spawn(move || add(key, owner, &shared))
        });
        add(0, 1, &shared);
        for other in others {
            other.join().unwrap();
        }
        // SAFETY: all threads are joined.
        assert_eq!(shared.1.with(|value| unsafe { *value }), 2);
        assert!(shared.0.is_unused());
    });
}

/// Two threads that lock in opposite orders never sleep forever: the one that closes the cycle gets
/// an error.
#[test]
fn a_circle_is_found() {
    for buckets in [2, 1] {
        explore(3, move || {
            let locks = Arc::new(LockTable::new(buckets));
            let lock_both = |owner, first, second, locks: &LockTable| {
                locks.lock(first, owner, FOREVER).unwrap();
                let both = locks.lock(second, owner, FOREVER).is_ok();
                if both {
                    locks.unlock(second, owner);
                }
                locks.unlock(first, owner);
                both
            };
            let other = {
                let locks = locks.clone();
                spawn(move || lock_both(2, 1, 0, &locks))
            };
            let mine = lock_both(1, 0, 1, &locks);
            assert!(other.join().unwrap() || mine);
        });
    }
}

/// A validator that sees no mark precedes the writer in the order, or sees the writer's version.
///
/// The validator's position is that of its own assignment, like a writer's, or that of the newest
/// sequence number.
///
/// Needs Release in `unmark_committing` and `unlock`, Acquire in `is_committing_by_other`. The mark
/// itself needs only the assignment that follows it: in all orders.
#[test]
fn a_validator_sees_the_mark_or_the_write() {
    let assign: fn(&AtomicU64) -> u64 = |counter| counter.fetch_add(1, SeqCst);
    let look: fn(&AtomicU64) -> u64 = |counter| counter.load(SeqCst);
    let unlock: fn(&LockTable) = |locks| locks.unlock(0, 1);
    let unmark: fn(&LockTable) = |locks| locks.unmark_committing(0);
    for place in [assign, look] {
        for release in [unlock, unmark] {
            for overflows in [false, true] {
                explore(usize::MAX, move || {
                    validate_alongside_a_writer(place, release, overflows)
                });
            }
        }
    }
}

fn validate_alongside_a_writer(
    place: fn(&AtomicU64) -> u64,
    release: fn(&LockTable),
    overflows: bool,
) {
    let shared = Arc::new((LockTable::new(1), AtomicU64::new(0), AtomicBool::new(false)));
    if overflows {
        shared.0.lock(7, 4, FOREVER).unwrap();
    }
    let writer = {
        let shared = shared.clone();
        spawn(move || {
            let (locks, counter, written) = &*shared;
            locks.lock(0, 1, FOREVER).unwrap();
            locks.mark_committing(0);
            // As the log assigns sequence numbers.
            let seqno = counter.fetch_add(1, SeqCst);
            written.store(true, Relaxed);
            release(locks);
            seqno
        })
    };
    let (locks, counter, written) = &*shared;
    let seqno = place(counter);
    let is_clear = !locks.is_committing_by_other(0, 2);
    let saw = written.load(Relaxed);
    let writers = writer.join().unwrap();
    assert!(!is_clear || seqno <= writers || saw);
}

struct Collected {
    snapshots: SnapshotRegistry,
    durable_seqno: AtomicU64,
    /// The versions that ended with commits 1 and 2, and whether each was trimmed.
    versions: [(UnsafeCell<()>, AtomicBool); 2],
}

impl Collected {
    fn new(snapshots: SnapshotRegistry) -> Arc<Self> {
        let version = |_| (UnsafeCell::new(()), AtomicBool::new(false));
        Arc::new(Self {
            snapshots,
            durable_seqno: AtomicU64::new(0),
            versions: [1, 2].map(version),
        })
    }

    /// Relaxed: the snapshots do not rely on the ordering of the durable seqno.
    fn durable_seqno(&self) -> SeqNo {
        SeqNo::new(self.durable_seqno.load(Relaxed))
    }

    fn collect(&self) {
        self.snapshots.advance(self.durable_seqno());
        let watermark = self.snapshots.watermark();
        for (end, (version, trimmed)) in (1..).zip(&self.versions) {
            if watermark.get() >= end && !trimmed.swap(true, Relaxed) {
                // SAFETY: no snapshot reads the version, which loom checks.
                version.with_mut(|version| unsafe { *version = () });
            }
        }
    }

    /// Makes commits 1 to `durable_seqno` durable, and collects.
    fn move_and_collect(&self, durable_seqno: u64) {
        for durable_seqno in 1..=durable_seqno {
            self.durable_seqno.fetch_max(durable_seqno, Relaxed);
            self.collect();
        }
    }

    fn read(&self) {
        let snapshot = self.snapshots.open(0, || self.durable_seqno());
        for (end, (version, _)) in (1..).zip(&self.versions) {
            if snapshot.seqno().get() < end {
                // SAFETY: the collector does not trim the version, which loom checks.
                version.with(|version| unsafe { *version });
            }
        }
        self.snapshots.close(&snapshot);
    }
}

/// Checks that no snapshot, whether already open or just being opened, reads what a collector
/// trims.
fn trims_nothing_that_is_read(snapshots: SnapshotRegistry) {
    let collected = Collected::new(snapshots);
    let movers = [true, false].map(|moves| {
        let collected = collected.clone();
        spawn(move || match moves {
            true => collected.move_and_collect(1),
            false => collected.collect(),
        })
    });
    collected.read();
    for mover in movers {
        mover.join().unwrap();
    }
}

/// A snapshot that began too low moves up, and may be overtaken again.
///
/// Needs SeqCst for the slot in `open` and `advance`, and for the intent in both; Release in
/// `close`.
#[test]
fn a_snapshot_that_moves_up_is_safe_from_the_collector() {
    explore(3, || {
        let collected = Collected::new(SnapshotRegistry::new());
        let mover = {
            let collected = collected.clone();
            spawn(move || collected.move_and_collect(2))
        };
        collected.read();
        mover.join().unwrap();
    });
}

/// Needs what the test above needs, and Acquire and Release for the watermark.
#[test]
fn a_snapshot_in_a_slot_is_safe_from_the_collector() {
    explore(2, || trims_nothing_that_is_read(SnapshotRegistry::new()));
}

/// Needs SeqCst for `more_open` and the intent in `open` and `advance`, Release (as part of SeqCst)
/// for `more_open` in `close`, and Acquire and Release for the watermark.
#[test]
fn a_snapshot_beyond_the_slots_is_safe_from_the_collector() {
    explore(2, || {
        let snapshots = SnapshotRegistry::new();
        // Occupies the only slot, without holding the watermark back.
        let _ = snapshots.open(0, || SeqNo::new(100));
        trims_nothing_that_is_read(snapshots);
    });
}

/// A reader in another process that asks after an acknowledgement finds it in the announcement, or
/// finds that the announcement is not exact: also if the flush has overlooked that it must withdraw
/// an exact one, and if another flush has published for it.
///
/// Needs SeqCst for the word that asks flushes to announce, in the flush and in `write_round`, after
/// which the numbers are read.
#[test]
fn no_exact_announcement_lacks_what_was_acknowledged() {
    explore(3, || {
        let table = MemoryDevice::new().reader_table(true).unwrap().unwrap();
        let announcements = Arc::new(Announcements::new(table.clone(), true));
        announcements.begin(SeqNo::NONE);
        // The numbers of a log without buffers: what is assigned is durable once it is published.
        let numbers = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let flushes: Vec<_> = (0..2)
            .map(|_| {
                let (numbers, table) = (numbers.clone(), table.clone());
                let flush = FlushAnnouncer(announcements.clone());
                spawn(move || {
                    let (assigned, durable) = &*numbers;
                    let own = assigned.fetch_add(1, SeqCst) + 1;
                    let newest = assigned.load(SeqCst);
                    flush.announce(SeqNo::new(newest)).unwrap();
                    durable.fetch_max(newest, SeqCst);
                    let announced = table.announcement().unwrap().unwrap();
                    assert!(
                        !announced.exact || announced.durable >= own,
                        "{announced:?}"
                    );
                })
            })
            .collect();
        let commits = || {
            let assigned = SeqNo::new(numbers.0.load(SeqCst));
            let durable = SeqNo::new(numbers.1.load(SeqCst));
            Commits {
                assigned,
                acknowledged: durable,
                durable,
            }
        };
        announcements.watch(true, commits);
        announcements.announce_round(commits, || ());
        for flush in flushes {
            flush.join().unwrap();
        }
        while announcements.announce_round(commits, || ()).is_some() {}
        let announced = table.announcement().unwrap().unwrap();
        assert!(announced.exact && announced.durable == 2, "{announced:?}");
    });
}
