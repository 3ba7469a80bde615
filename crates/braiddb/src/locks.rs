//! Write locks and old versions, both found by the hash of a key.
//!
//! The table has a fixed number of *stripes*. A stripe holds the write lock of all keys that hash to it
//! and the old versions of their values. Two keys of one stripe conflict falsely; with as few locks held
//! at a time as a running system has, that is rare, and it costs no allocation and no lookup.
//!
//! The lock word is `owner << 2 | WAITERS | COMMITTING`:
//!
//! - the owner is the transaction context's number, 0 for nobody;
//! - `COMMITTING` is set before the owner draws its order number, so that a transaction that validates
//!   its reads later in the order sees a write that is on its way (Silo's phase 1, Tu et al. 2013 §4.4);
//! - `WAITERS` sends the unlocking owner to the waiting room.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicU64, Condvar, Mutex, spin_loop};
use crate::versions::VersionChain;

const COMMITTING: u64 = 1;
const WAITERS: u64 = 2;
const OWNER_SHIFT: u32 = 2;

/// How often a locker looks again before it goes to sleep: a holder in its commit is done within a
/// microsecond, while a sleep and a wake-up cost about ten.
const SPINS: u32 = if cfg!(all(test, loom)) { 0 } else { 64 };

/// Most stripes: 2 MiB of memory, and 1 % false conflicts while 650 other locks are held.
const STRIPES_MAX: usize = 1 << if cfg!(miri) { 8 } else { 16 };
const STRIPES_MIN: usize = 1 << if cfg!(miri) { 8 } else { 12 };

/// A stripe for so many bytes of buffer pool, so that a small database stays small.
const POOL_BYTES_PER_STRIPE: usize = 512;

const ROOMS: usize = if cfg!(all(test, loom)) { 1 } else { 64 };

/// Identifies a transaction context; never 0.
pub(crate) type Owner = u64;

#[derive(Debug)]
struct Stripe {
    word: AtomicU64,
    versions: Mutex<VersionChain>,
}

/// A lock could not be taken because waiting for it would close a cycle.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Deadlock;

/// What a lock request found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    Now,
    Already,
}

#[derive(Debug)]
struct Waiter {
    stripe: usize,
    owner: Owner,
    wake: Condvar,
}

type Room = Mutex<VecDeque<Arc<Waiter>>>;

#[derive(Debug)]
pub(crate) struct LockTable {
    stripes: Box<[Stripe]>,
    /// Sleeping lockers, by stripe modulo `ROOMS`, in order of arrival.
    rooms: Box<[Room]>,
    /// Which stripe each sleeping owner waits for: the wait-for graph, touched only by sleepers.
    /// Lock order: a room before this.
    waiting: Mutex<HashMap<Owner, usize>>,
}

impl LockTable {
    /// A table for a database with a buffer pool of this size.
    pub(crate) fn for_pool(bytes: usize) -> Self {
        let stripes = (bytes / POOL_BYTES_PER_STRIPE).next_power_of_two();
        Self::new(stripes.clamp(STRIPES_MIN, STRIPES_MAX))
    }

    /// `stripes` is a power of two.
    pub(crate) fn new(stripes: usize) -> Self {
        debug_assert!(stripes.is_power_of_two());
        let stripe = || Stripe {
            word: AtomicU64::new(0),
            versions: Mutex::default(),
        };
        Self {
            stripes: (0..stripes).map(|_| stripe()).collect(),
            rooms: (0..ROOMS).map(|_| Mutex::default()).collect(),
            waiting: Mutex::default(),
        }
    }

    /// The stripe of a key with this hash.
    pub(crate) fn stripe_of(&self, hash: u64) -> usize {
        hash as usize & (self.stripes.len() - 1)
    }

    /// Asks the processor for a stripe.
    #[inline]
    pub(crate) fn prefetch(&self, stripe: usize) {
        braid_rt::prefetch(&raw const self.stripes[stripe]);
    }

    /// The old versions of the keys of a stripe.
    pub(crate) fn versions(&self, stripe: usize) -> &Mutex<VersionChain> {
        &self.stripes[stripe].versions
    }

    /// Takes the write lock of a stripe, sleeping while another owner has it.
    pub(crate) fn lock(&self, stripe: usize, owner: Owner) -> Result<Locked, Deadlock> {
        braid_rt::point();
        let word = &self.stripes[stripe].word;
        let mut spins = 0;
        loop {
            // Acquire: pairs with the Release in `unlock`, so that the last owner's writes are seen.
            match word.compare_exchange_weak(
                0,
                owner << OWNER_SHIFT,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(Locked::Now),
                Err(found) if found >> OWNER_SHIFT == owner => return Ok(Locked::Already),
                Err(_) if spins < SPINS => {
                    spins += 1;
                    spin_loop();
                }
                Err(_) => return self.lock_asleep(stripe, owner),
            }
        }
    }

    /// Takes the write lock of a stripe unless another owner has it.
    pub(crate) fn try_lock(&self, stripe: usize, owner: Owner) -> Option<Locked> {
        let word = &self.stripes[stripe].word;
        // Acquire: as in `lock`.
        let mine = owner << OWNER_SHIFT;
        match word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Locked::Now),
            Err(found) if found >> OWNER_SHIFT == owner => Some(Locked::Already),
            Err(_) => None,
        }
    }

    #[cold]
    fn lock_asleep(&self, stripe: usize, owner: Owner) -> Result<Locked, Deadlock> {
        let word = &self.stripes[stripe].word;
        let mut room = self.rooms[stripe % ROOMS].lock();
        let mut me: Option<Arc<Waiter>> = None;
        let result = loop {
            let found = word.load(Ordering::Relaxed);
            if found >> OWNER_SHIFT == 0 {
                let others = room.iter().any(|w| w.stripe == stripe && w.owner != owner);
                let mine = owner << OWNER_SHIFT | if others { WAITERS } else { 0 };
                // Acquire: as in `lock`.
                if word
                    .compare_exchange(found, mine, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    break Ok(Locked::Now);
                }
                continue;
            }
            // Relaxed: the room's mutex orders this against the unlocker, which takes it when it sees
            // the bit.
            if found & WAITERS == 0
                && word
                    .compare_exchange(found, found | WAITERS, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            if me.is_none() {
                if self.would_deadlock(stripe, owner) {
                    break Err(Deadlock);
                }
                let waiter = Arc::new(Waiter {
                    stripe,
                    owner,
                    wake: Condvar::new(),
                });
                room.push_back(waiter.clone());
                me = Some(waiter);
            }
            if let Some(waiter) = &me {
                waiter.wake.wait(&mut room);
            }
        };
        if me.is_some() {
            room.retain(|w| w.owner != owner);
            self.waiting.lock().remove(&owner);
        }
        result
    }

    /// Registers that `owner` waits for `stripe`, unless that closes a cycle. Every cycle is closed by
    /// somebody who begins to wait, and they register one after the other, so the last one sees it.
    fn would_deadlock(&self, stripe: usize, owner: Owner) -> bool {
        let mut waiting = self.waiting.lock();
        let mut at = stripe;
        // A chain of distinct owners can't be longer than the number of waiters.
        for _ in 0..=waiting.len() {
            let holder = self.stripes[at].word.load(Ordering::Relaxed) >> OWNER_SHIFT;
            if holder == owner {
                return true;
            }
            match waiting.get(&holder) {
                Some(&next) => at = next,
                None => break,
            }
        }
        waiting.insert(owner, stripe);
        false
    }

    /// Announces that the owner of a stripe is about to draw its number and to write.
    pub(crate) fn mark_committing(&self, stripe: usize) {
        braid_rt::point();
        if braid_rt::mutant!("no_marks") {
            return;
        }
        // Relaxed: the draw of the number behind it (`InFlight::draw`, a read-modify-write of one counter
        // with Release and Acquire) carries it to every validator that draws later, or that finds this number
        // drawn. One that does not see the mark comes before this owner in the order.
        self.stripes[stripe]
            .word
            .fetch_or(COMMITTING, Ordering::Relaxed);
    }

    /// Takes the announcement back after the writes are in place, where the lock is held on.
    pub(crate) fn unmark_committing(&self, stripe: usize) {
        // Release: pairs with the Acquire of a validator, which then sees the new version.
        self.stripes[stripe]
            .word
            .fetch_and(!COMMITTING, Ordering::Release);
    }

    /// Whether somebody other than `owner` is about to write a key of the stripe.
    pub(crate) fn is_committing_by_other(&self, stripe: usize, owner: Owner) -> bool {
        braid_rt::point();
        // Acquire: pairs with the Release of `unmark_committing` and `unlock`. The mark itself comes with
        // the validator's own draw, see `mark_committing`.
        let word = self.stripes[stripe].word.load(Ordering::Acquire);
        word & COMMITTING != 0 && word >> OWNER_SHIFT != owner
    }

    /// Whether somebody else has the lock just now.
    pub(crate) fn is_held_by_other(&self, stripe: usize, owner: Owner) -> bool {
        // Relaxed: a hint; taking the lock decides.
        let holder = self.stripes[stripe].word.load(Ordering::Relaxed) >> OWNER_SHIFT;
        holder != 0 && holder != owner
    }

    /// Gives a stripe back.
    pub(crate) fn unlock(&self, stripe: usize, owner: Owner) {
        braid_rt::point();
        // Release: pairs with the Acquire of the next locker and validator.
        let word = self.stripes[stripe].word.swap(0, Ordering::Release);
        debug_assert_eq!(
            word >> OWNER_SHIFT,
            owner,
            "a lock is given back by its owner"
        );
        if word & WAITERS != 0 {
            // The first waiter takes itself off the queue once it has the lock; a thread that barges in
            // before it makes it announce itself again.
            let room = self.rooms[stripe % ROOMS].lock();
            if let Some(waiter) = room.iter().find(|w| w.stripe == stripe) {
                waiter.wake.notify_one();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_reentrant_and_exclusive() {
        let locks = LockTable::new(16);
        assert_eq!(locks.lock(7, 1), Ok(Locked::Now));
        assert_eq!(locks.lock(7, 1), Ok(Locked::Already));
        locks.mark_committing(7);
        assert!(locks.is_committing_by_other(7, 2));
        assert!(!locks.is_committing_by_other(7, 1));
        locks.unlock(7, 1);
        assert!(!locks.is_committing_by_other(7, 2));
        assert_eq!(locks.lock(7, 2), Ok(Locked::Now));
    }

    #[test]
    fn contended_counters_lose_no_increment() {
        let locks = LockTable::new(16);
        let counters = [Mutex::new(0u64), Mutex::new(0)];
        let rounds = if cfg!(miri) { 10 } else { 2_000 };
        std::thread::scope(|scope| {
            for owner in 1..=8 {
                let (locks, counters) = (&locks, &counters);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let stripe = round % 2;
                        locks.lock(stripe, owner).unwrap();
                        let seen = *counters[stripe].lock();
                        std::thread::yield_now();
                        *counters[stripe].lock() = seen + 1;
                        locks.unlock(stripe, owner);
                    }
                });
            }
        });
        assert_eq!(counters.map(Mutex::into_inner), [4 * rounds as u64; 2]);
    }

    #[test]
    fn a_cycle_ends_one_side() {
        let locks = LockTable::new(16);
        let barrier = std::sync::Barrier::new(2);
        let deadlocks = std::thread::scope(|scope| {
            let sides = [(1, 0, 1), (2, 1, 0)].map(|(owner, first, second)| {
                let (locks, barrier) = (&locks, &barrier);
                scope.spawn(move || {
                    locks.lock(first, owner).unwrap();
                    barrier.wait();
                    let second_taken = locks.lock(second, owner).is_ok();
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
    }
}
