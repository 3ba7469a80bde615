//! Tests of the lock table.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::table::{LockError, LockTable, Locked};
use super::wait_graph::Owner;
use crate::base::sync::Mutex;

const FOREVER: Duration = Duration::MAX;

/// Lock tables in which keys share no bucket, some buckets, and the only one.
fn tables() -> impl Iterator<Item = LockTable> {
    [16, 2, 1].into_iter().map(LockTable::new)
}

#[test]
fn a_lock_is_reentrant_and_exclusive() {
    for locks in tables() {
        // The lock of key 7 overflows if the bucket is the same.
        assert_eq!(locks.lock(3, 1, FOREVER), Ok(Locked::Now));
        assert_eq!(locks.lock(7, 1, FOREVER), Ok(Locked::Now));
        assert_eq!(locks.lock(7, 1, FOREVER), Ok(Locked::Already));
        locks.mark_committing(7);
        assert!(locks.is_committing_by_other(7, 2));
        assert!(!locks.is_committing_by_other(7, 1));
        assert!(!locks.is_committing_by_other(3, 2));
        locks.unlock(7, 1);
        assert!(!locks.is_committing_by_other(7, 2));
        assert_eq!(locks.lock(7, 2, FOREVER), Ok(Locked::Now));
    }
}

#[test]
fn an_attempt_to_lock_does_not_wait() {
    for locks in tables() {
        assert_eq!(locks.try_lock(3, 1), Some(Locked::Now));
        assert_eq!(locks.try_lock(7, 1), Some(Locked::Now));
        assert_eq!(locks.try_lock(7, 1), Some(Locked::Already));
        assert_eq!(locks.try_lock(7, 2), None);
        locks.mark_committing(7);
        assert_eq!(locks.try_lock(7, 1), Some(Locked::Already));
        assert!(locks.is_held_by_other(7, 2));
        assert!(!locks.is_held_by_other(7, 1));
        assert!(!locks.is_held_by_other(6, 2));
        locks.unmark_committing(7);
        assert!(!locks.is_committing_by_other(7, 2));
        assert!(locks.is_held_by_other(7, 2), "the lock stays held");
        assert_eq!(locks.try_lock(7, 2), None);
        locks.unlock(7, 1);
        assert_eq!(locks.try_lock(7, 2), Some(Locked::Now));
    }
}

/// Two owners of 500 keys each, in one bucket: no key of one is held by the other, in whatever
/// order they are released.
#[test]
fn a_bucket_has_room_for_any_number_of_locks() {
    let locks = LockTable::new(1);
    let count = if cfg!(miri) { 40 } else { 1_000 };
    let owner_of = |hash: u64| 1 + hash % 2;
    let other_of = |hash: u64| 3 - owner_of(hash);
    for hash in 0..count {
        assert_eq!(locks.lock(hash, owner_of(hash), FOREVER), Ok(Locked::Now));
    }
    for hash in 0..count {
        assert_eq!(
            locks.lock(hash, owner_of(hash), FOREVER),
            Ok(Locked::Already)
        );
        assert_eq!(locks.try_lock(hash, other_of(hash)), None);
        assert!(locks.is_held_by_other(hash, other_of(hash)));
        locks.mark_committing(hash);
    }
    let mut order: Vec<u64> = (0..count).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    for (released, &hash) in order.iter().enumerate() {
        assert!(locks.is_committing_by_other(hash, other_of(hash)));
        locks.unlock(hash, owner_of(hash));
        assert!(!locks.is_committing_by_other(hash, other_of(hash)));
        assert!(!locks.is_held_by_other(hash, other_of(hash)));
        // The next owner's lock is the inline one if that was released.
        if released % 3 == 0 {
            assert_eq!(locks.lock(hash, other_of(hash), FOREVER), Ok(Locked::Now));
            locks.unlock(hash, other_of(hash));
        }
    }
    assert!(locks.is_unused());
}

/// Contended locks exclude each other and lose no waiter, in a bucket for all and in one for each.
#[test]
fn contended_counters_lose_no_increment() {
    const KEYS: usize = 3;
    for locks in tables() {
        let counters: [Mutex<u64>; KEYS] = Default::default();
        let rounds = if cfg!(miri) { 9 } else { 1_500 };
        std::thread::scope(|scope| {
            for owner in 1..=8 {
                let (locks, counters) = (&locks, &counters);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let key = (round + owner as usize) % KEYS;
                        locks.lock(key as u64, owner, FOREVER).unwrap();
                        let seen = *counters[key].lock();
                        std::thread::yield_now();
                        *counters[key].lock() = seen + 1;
                        locks.unlock(key as u64, owner);
                    }
                });
            }
        });
        let sum = counters.map(Mutex::into_inner).iter().sum::<u64>();
        assert_eq!(sum, 8 * rounds as u64);
        assert!(locks.is_unused());
    }
}

/// Owners of different keys of one bucket never wait, even while all others hold theirs.
#[test]
fn different_keys_of_a_bucket_do_not_conflict() {
    let locks = LockTable::new(1);
    let (all_hold, arrived) = (Barrier::new(4), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for owner in 1..=4u64 {
            let (locks, all_hold, arrived) = (&locks, &all_hold, &arrived);
            scope.spawn(move || {
                assert_eq!(locks.lock(owner, owner, FOREVER), Ok(Locked::Now));
                arrived.fetch_add(1, Ordering::Relaxed);
                all_hold.wait();
                locks.unlock(owner, owner);
            });
        }
    });
    assert_eq!(arrived.into_inner(), 4);
    assert!(locks.is_unused());
}

#[test]
fn a_cycle_ends_one_side() {
    for locks in tables() {
        let barrier = Barrier::new(2);
        let deadlocks = std::thread::scope(|scope| {
            let sides = [(1, 0, 1), (2, 1, 0)].map(|(owner, first, second): (Owner, _, _)| {
                let (locks, barrier) = (&locks, &barrier);
                scope.spawn(move || {
                    locks.lock(first, owner, FOREVER).unwrap();
                    barrier.wait();
                    let second_taken = match locks.lock(second, owner, FOREVER) {
                        Ok(_) => true,
                        Err(error) => {
                            assert_eq!(error, LockError::Cycle);
                            false
                        }
                    };
                    if second_taken {
                        locks.unlock(second, owner);
                    }
                    locks.unlock(first, owner);
                    usize::from(!second_taken)
                })
            });
            sides
                .into_iter()
                .map(|side| side.join().unwrap())
                .sum::<usize>()
        });
        assert_eq!(deadlocks, 1);
        assert!(locks.is_unused());
    }
}

/// A wait ends at its time-out and leaves nothing; the lock can be acquired later.
#[test]
fn a_wait_ends_at_its_timeout() {
    for locks in tables() {
        locks.lock(3, 1, FOREVER).unwrap();
        locks.lock(7, 1, FOREVER).unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(20)] {
            let begun = Instant::now();
            assert_eq!(locks.lock(7, 2, timeout), Err(LockError::Timeout));
            assert!(begun.elapsed() >= timeout);
        }
        locks.unlock(3, 1);
        locks.unlock(7, 1);
        assert!(locks.is_unused());
        assert_eq!(locks.lock(7, 2, Duration::ZERO), Ok(Locked::Now));
    }
}

#[test]
fn the_hash_chooses_the_bucket() {
    let locks = LockTable::new(16);
    let buckets = [0, 1, 15, 16, 33].map(|hash| locks.bucket_of(hash));
    assert_eq!(buckets, [0, 1, 15, 0, 1]);
}
