//! Write locks and old versions, both found by the hash of a key.
//!
//! The table has a fixed number of *stripes*. A stripe holds the write lock of all keys that hash to it
//! and the old versions of their values. Two keys of one stripe conflict falsely; with as few locks held
//! at a time as a running system has, that is rare, and it costs no allocation and no lookup.
//!
//! The lock word is `owner << 2 | WAITERS | COMMITTING`:
//!
//! - the owner is the transaction context's number, 0 for nobody;
//! - `COMMITTING` is set before the owner assigns its sequence number, so that a transaction that
//!   validates its reads later in the order sees a write that is on its way (Silo's phase 1, Tu et
//!   al. 2013 §4.4);
//! - `WAITERS` sends the unlocking owner to the waiting room.
//!
//! A waiter looks for a cycle in the wait-for graph before it sleeps. A transaction that waits has one edge, to the owner
//! of its stripe. A transaction that does not wait is run by a thread, and if that thread is the one that waits, or waits
//! in another of its transactions, nobody may ever end it: the caller has two transactions open at once. Only the
//! thread that used a transaction last is known, though, and a transaction can move: to another thread, or with its task to
//! another worker. So such a cycle is an error only after a grace period in which no other thread used
//! the transaction.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use braid_rt::to_usize;

use crate::base::sync::{AtomicU64, Condvar, Mutex, MutexGuard, spin_loop};
use crate::mvcc::versions::VersionChain;

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

/// Identifies a transaction context and its present use; never 0.
pub(crate) type Owner = u64;

/// A context's owner numbers differ in the lowest bits; locks never outlive so many transactions.
const OWNER_USES_BITS: u32 = 32;

/// The first owner number of the context of this number, from 1.
pub(crate) fn first_owner(context: u64) -> Owner {
    context << OWNER_USES_BITS
}

/// The context's owner number behind this one.
pub(crate) fn next_owner(owner: Owner) -> Owner {
    let uses = owner.wrapping_add(1) & ((1 << OWNER_USES_BITS) - 1);
    first_owner(context_of(owner)) | uses
}

fn context_of(owner: Owner) -> u64 {
    owner >> OWNER_USES_BITS
}

#[derive(Debug)]
struct Stripe {
    word: AtomicU64,
    versions: Mutex<VersionChain>,
}

/// How long a thread waits for a transaction that it used last itself, and that another thread may have got since.
const GRACE: Duration = Duration::from_millis(100);

/// A lock could not be taken because waiting for it would close a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadlock {
    /// Of transactions that all wait: it is over once one of them gives way.
    Cycle,
    /// Through a transaction that this thread has open and could go on with only after this wait.
    OwnThread,
}

/// Who runs a transaction context, for those who wait for its locks.
#[derive(Debug)]
pub(crate) struct User {
    owner: AtomicU64,
    /// The thread that took a lock for it last; `ENDING` from the commit on.
    thread: AtomicU64,
    /// How often it was used. Only its own thread writes it.
    uses: AtomicU64,
}

const ENDING: u64 = u64::MAX;

impl User {
    /// One that no waiter finds.
    pub(crate) fn of_nobody(owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            owner: AtomicU64::new(owner),
            thread: AtomicU64::new(ENDING),
            uses: AtomicU64::new(0),
        })
    }

    /// The transaction reads.
    #[inline(always)]
    pub(crate) fn reads(&self) {
        // Relaxed, as everything here: only waiters look, and theirs is a guess that the grace period makes good.
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
    }

    /// The transaction takes a lock on this thread.
    #[inline(always)]
    pub(crate) fn locks(&self) {
        let thread = braid_rt::thread::index() as u64;
        self.thread.store(thread, Ordering::Relaxed);
        self.reads();
    }

    /// The transaction is being committed: its locks go without anybody's help.
    #[inline(always)]
    pub(crate) fn ends(&self) {
        self.thread.store(ENDING, Ordering::Relaxed);
    }

    pub(crate) fn set_owner(&self, owner: Owner) {
        self.owner.store(owner, Ordering::Relaxed);
    }
}

/// Contexts with their users, by the contexts' numbers.
#[derive(Debug, Default)]
struct Users {
    by_context: HashMap<u64, Weak<User>>,
    /// At this length those whose context is gone are taken out.
    sweep_at: usize,
}

impl Users {
    fn add(&mut self, context: u64, user: &Arc<User>) {
        if self.by_context.len() >= self.sweep_at {
            self.by_context.retain(|_, user| user.strong_count() > 0);
            self.sweep_at = 2 * self.by_context.len() + 16;
        }
        self.by_context.insert(context, Arc::downgrade(user));
    }

    /// The thread that used an open transaction last, and how often it was used.
    fn last_use(&self, owner: Owner) -> Option<(u64, u64)> {
        let user = self.by_context.get(&context_of(owner))?.upgrade()?;
        let thread = user.thread.load(Ordering::Relaxed);
        // Locks that outlive their transaction have the owner number of before.
        let is_open = user.owner.load(Ordering::Relaxed) == owner && thread != ENDING;
        is_open.then(|| (thread, user.uses.load(Ordering::Relaxed)))
    }
}

/// What a wait would lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Somebody runs who may release the lock.
    Open,
    Cycle,
    /// A cycle if no other thread has got one of its transactions; how often they were used.
    OwnThread {
        uses: u64,
    },
}

/// A sleeper in the wait-for graph.
#[derive(Clone, Copy, Debug)]
struct Edge {
    stripe: usize,
    thread: u64,
}

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

/// The time that a wait on a transaction of the same thread has.
#[derive(Clone, Copy, Debug)]
struct Grace {
    uses: u64,
    until: Instant,
}

impl Grace {
    fn new(uses: u64) -> Self {
        let until = braid_rt::now() + GRACE;
        Self { uses, until }
    }
}

/// Sleeps until notified, or for no reason at all; `false` if the grace is over.
fn wait(
    wake: &Condvar,
    room: &mut MutexGuard<'_, VecDeque<Arc<Waiter>>>,
    grace: Option<&Grace>,
) -> bool {
    #[cfg(not(all(test, loom)))]
    if let Some(grace) = grace {
        return !wake.wait_until(room, grace.until).timed_out();
    }
    // Loom's clock stands still, and nobody has two transactions there.
    let _ = grace;
    wake.wait(room);
    true
}

#[derive(Debug)]
pub(crate) struct LockTable {
    stripes: Box<[Stripe]>,
    /// Sleeping lockers, by stripe modulo `ROOMS`, in order of arrival.
    rooms: Box<[Room]>,
    /// Which stripe each sleeping owner waits for: the wait-for graph, touched only by sleepers.
    /// Lock order: a room before this, this before `users`.
    waiting: Mutex<HashMap<Owner, Edge>>,
    /// Touched by sleepers, and where a context is made.
    users: Mutex<Users>,
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
            users: Mutex::default(),
        }
    }

    /// Makes the user of a new context, whose first owner number this is.
    pub(crate) fn user(&self, owner: Owner) -> Arc<User> {
        let user = User::of_nobody(owner);
        self.users.lock().add(context_of(owner), &user);
        user
    }

    /// The stripe of a key with this hash.
    pub(crate) fn stripe_of(&self, hash: u64) -> usize {
        to_usize(hash & (self.stripes.len() as u64 - 1))
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
        braid_rt::yield_point();
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
        let mut grace = None;
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
                match self.begin_to_wait(stripe, owner) {
                    Outlook::Open => {}
                    Outlook::Cycle => break Err(Deadlock::Cycle),
                    Outlook::OwnThread { uses } => grace = Some(Grace::new(uses)),
                }
                let waiter = Arc::new(Waiter {
                    stripe,
                    owner,
                    wake: Condvar::new(),
                });
                room.push_back(waiter.clone());
                me = Some(waiter);
            }
            if let Some(waiter) = &me
                && !wait(&waiter.wake, &mut room, grace.as_ref())
            {
                grace = match self.outlook(&self.waiting.lock(), stripe, owner) {
                    Outlook::OwnThread { uses } if grace.is_some_and(|g| g.uses == uses) => {
                        braid_rt::coverage_point(
                            "a transaction waits for another one of its thread",
                        );
                        break Err(Deadlock::OwnThread);
                    }
                    Outlook::OwnThread { uses } => Some(Grace::new(uses)),
                    // The others see a cycle, of which this is a part, themselves.
                    Outlook::Open | Outlook::Cycle => None,
                };
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
    fn begin_to_wait(&self, stripe: usize, owner: Owner) -> Outlook {
        let mut waiting = self.waiting.lock();
        let outlook = self.outlook(&waiting, stripe, owner);
        if outlook != Outlook::Cycle {
            let thread = braid_rt::thread::index() as u64;
            waiting.insert(owner, Edge { stripe, thread });
        }
        outlook
    }

    /// Follows the graph from a stripe that `owner` waits for on this thread.
    fn outlook(&self, waiting: &HashMap<Owner, Edge>, stripe: usize, owner: Owner) -> Outlook {
        let own_thread = braid_rt::thread::index() as u64;
        let mut at = stripe;
        // Of the transactions that do not wait, on the way.
        let mut uses = None;
        // A chain of distinct owners can't be longer than the number of waiters.
        for _ in 0..=waiting.len() {
            let holder = self.stripes[at].word.load(Ordering::Relaxed) >> OWNER_SHIFT;
            if holder == owner {
                return uses.map_or(Outlook::Cycle, |uses| Outlook::OwnThread { uses });
            }
            if let Some(edge) = waiting.get(&holder) {
                at = edge.stripe;
                continue;
            }
            let Some((thread, used)) = self.users.lock().last_use(holder) else {
                break;
            };
            let sum = uses.unwrap_or(0u64).wrapping_add(used);
            uses = Some(sum);
            if thread == own_thread && !braid_rt::mutant!("wait_for_oneself") {
                return Outlook::OwnThread { uses: sum };
            }
            match waiting.values().find(|edge| edge.thread == thread) {
                Some(edge) => at = edge.stripe,
                None => break,
            }
        }
        Outlook::Open
    }

    /// Announces that the owner of a stripe is about to assign its number and to write.
    pub(crate) fn mark_committing(&self, stripe: usize) {
        braid_rt::yield_point();
        if braid_rt::mutant!("no_marks") {
            return;
        }
        // Relaxed: the assignment of the number behind it (`PendingCommit::assign`, a
        // read-modify-write of one counter with Release and Acquire) carries it to every validator
        // that assigns later, or that finds this number assigned. One that does not see the mark
        // comes before this owner in the order.
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
        braid_rt::yield_point();
        // Acquire: pairs with the Release of `unmark_committing` and `unlock`. The mark itself comes with
        // the validator's own assignment, see `mark_committing`.
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
        braid_rt::yield_point();
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
