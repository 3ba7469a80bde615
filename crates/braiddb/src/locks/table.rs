//! Lock table: write locks and old versions, both found by the hash of a key.
//!
//! The table has a fixed number of *stripes*. A stripe holds the write lock of all keys that hash
//! to it and the old versions of their values. Two keys of one stripe conflict falsely. With the
//! few locks that a running system holds at a time, false conflicts are rare, and locking needs no
//! allocation and no lookup.
//!
//! The lock word is `owner << 2 | WAITERS | COMMITTING`:
//!
//! - The owner is the number of the transaction context and its use, 0 if the stripe is unlocked.
//! - `COMMITTING` is set before the owner assigns its sequence number, so that a transaction that
//!   validates its reads later in the order sees the pending write (Silo's phase 1, Tu et al. 2013
//!   §4.4).
//! - `WAITERS` makes the unlocking owner wake a waiter.
//!
//! A waiter looks for a cycle in the wait-for graph before it sleeps. A waiting transaction has one
//! edge, to the owner of its stripe. A transaction that does not wait depends on the thread that
//! runs it. If that thread is the waiter itself, or waits in another of its transactions, then
//! nothing may ever end the transaction: the caller has two transactions open at once. But the lock
//! table knows only the thread that used a transaction last, and a transaction can move to another
//! thread, or with its task to another worker. So such a cycle is an error only after a grace
//! period in which no other thread used the transaction.

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

/// Number of spins before a locker sleeps: a holder that is committing is done within a
/// microsecond, while a sleep and a wake-up cost about ten.
const SPINS: u32 = if cfg!(all(test, loom)) { 0 } else { 64 };

/// Maximum number of stripes: 2 MiB of memory, and 1 % false conflicts while 650 other locks are
/// held.
const STRIPES_MAX: usize = 1 << if cfg!(miri) { 8 } else { 16 };
const STRIPES_MIN: usize = 1 << if cfg!(miri) { 8 } else { 12 };

/// Bytes of buffer pool for each stripe, so that a small database has a small lock table.
const POOL_BYTES_PER_STRIPE: usize = 512;

const ROOMS: usize = if cfg!(all(test, loom)) { 1 } else { 64 };

/// Identifies a transaction context and its current use; never 0.
pub(crate) type Owner = u64;

/// Bits of an owner number that count a context's uses; no lock outlives so many transactions.
const OWNER_USES_BITS: u32 = 32;

/// Returns the first owner number of a context, whose number is at least 1.
pub(crate) fn first_owner(context: u64) -> Owner {
    context << OWNER_USES_BITS
}

/// Returns the context's next owner number.
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

/// Grace period for a cycle through a transaction that the waiting thread used last: another thread
/// may have received the transaction since.
const GRACE: Duration = Duration::from_millis(100);

/// Error of a lock request: waiting for the lock would close a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadlock {
    /// A cycle of waiting transactions; it ends when one of them aborts.
    Cycle,
    /// A cycle through a transaction that this thread has open and cannot continue during the wait.
    OwnThread,
}

/// The thread that runs a transaction context, for transactions that wait for its locks.
#[derive(Debug)]
pub(crate) struct User {
    owner: AtomicU64,
    /// The thread that last acquired a lock for the transaction; `ENDING` once the commit has
    /// begun.
    thread: AtomicU64,
    /// Number of reads and lock acquisitions. Only the transaction's own thread writes it.
    uses: AtomicU64,
}

const ENDING: u64 = u64::MAX;

impl User {
    /// Creates a user that no waiter finds.
    pub(crate) fn unregistered(owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            owner: AtomicU64::new(owner),
            thread: AtomicU64::new(ENDING),
            uses: AtomicU64::new(0),
        })
    }

    /// Records a read of the transaction.
    #[inline(always)]
    pub(crate) fn reads(&self) {
        // Relaxed, like all accesses here: only waiters load these values, as a guess that the
        // grace period corrects.
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
    }

    /// Records that the transaction acquires a lock on this thread.
    #[inline(always)]
    pub(crate) fn locks(&self) {
        let thread = braid_rt::thread::index() as u64;
        self.thread.store(thread, Ordering::Relaxed);
        self.reads();
    }

    /// Records that the commit has begun: it releases the transaction's locks without further
    /// calls.
    #[inline(always)]
    pub(crate) fn ends(&self) {
        self.thread.store(ENDING, Ordering::Relaxed);
    }

    pub(crate) fn set_owner(&self, owner: Owner) {
        self.owner.store(owner, Ordering::Relaxed);
    }
}

/// The users of contexts, by context number.
#[derive(Debug, Default)]
struct Users {
    by_context: HashMap<u64, Weak<User>>,
    /// Length at which entries of freed contexts are removed.
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

    /// Returns the thread that last used an open transaction, and the number of its uses.
    fn last_use(&self, owner: Owner) -> Option<(u64, u64)> {
        let user = self.by_context.get(&context_of(owner))?.upgrade()?;
        let thread = user.thread.load(Ordering::Relaxed);
        // Locks that outlive their transaction have an earlier owner number.
        let is_open = user.owner.load(Ordering::Relaxed) == owner && thread != ENDING;
        is_open.then(|| (thread, user.uses.load(Ordering::Relaxed)))
    }
}

/// Possible outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// A running thread may release the lock.
    Open,
    Cycle,
    /// A cycle, unless another thread has received one of the transactions; `uses` counts their
    /// uses.
    OwnThread {
        uses: u64,
    },
}

/// Edge of a sleeping transaction in the wait-for graph.
#[derive(Clone, Copy, Debug)]
struct Edge {
    stripe: usize,
    thread: u64,
}

/// Outcome of a lock request.
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

/// Grace period of a wait for a transaction of the same thread.
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

/// Sleeps until notified, or wakes spuriously. Returns `false` once the grace period is over.
fn wait(
    wake: &Condvar,
    room: &mut MutexGuard<'_, VecDeque<Arc<Waiter>>>,
    grace: Option<&Grace>,
) -> bool {
    #[cfg(not(all(test, loom)))]
    if let Some(grace) = grace {
        return !wake.wait_until(room, grace.until).timed_out();
    }
    // Loom's clock does not advance, and no loom test has two transactions on a thread.
    let _ = grace;
    wake.wait(room);
    true
}

#[derive(Debug)]
pub(crate) struct LockTable {
    stripes: Box<[Stripe]>,
    /// Sleeping lockers, by stripe modulo `ROOMS`, in order of arrival.
    rooms: Box<[Room]>,
    /// The wait-for graph: which stripe each sleeping owner waits for. Only sleepers access it.
    /// Lock order: a room, then `waiting`, then `users`.
    waiting: Mutex<HashMap<Owner, Edge>>,
    /// Accessed by sleepers, and when a context is created.
    users: Mutex<Users>,
}

impl LockTable {
    /// Creates a lock table for a database with a buffer pool of `bytes` bytes.
    pub(crate) fn for_pool(bytes: usize) -> Self {
        let stripes = (bytes / POOL_BYTES_PER_STRIPE).next_power_of_two();
        Self::new(stripes.clamp(STRIPES_MIN, STRIPES_MAX))
    }

    /// Creates a lock table with `stripes` stripes, a power of two.
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

    /// Creates the user of a new context with this first owner number.
    pub(crate) fn user(&self, owner: Owner) -> Arc<User> {
        let user = User::unregistered(owner);
        self.users.lock().add(context_of(owner), &user);
        user
    }

    /// Returns the stripe of a key with this hash.
    pub(crate) fn stripe_of(&self, hash: u64) -> usize {
        to_usize(hash & (self.stripes.len() as u64 - 1))
    }

    /// Prefetches a stripe into the processor's cache.
    #[inline]
    pub(crate) fn prefetch(&self, stripe: usize) {
        braid_rt::prefetch(&raw const self.stripes[stripe]);
    }

    /// Returns the old versions of the keys of a stripe.
    pub(crate) fn versions(&self, stripe: usize) -> &Mutex<VersionChain> {
        &self.stripes[stripe].versions
    }

    /// Acquires the write lock of a stripe, sleeping while another owner holds it.
    pub(crate) fn lock(&self, stripe: usize, owner: Owner) -> Result<Locked, Deadlock> {
        braid_rt::yield_point();
        let word = &self.stripes[stripe].word;
        let mut spins = 0;
        loop {
            // Acquire: pairs with the Release in `unlock`, so that the last owner's writes are
            // visible.
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

    /// Acquires the write lock of a stripe unless another owner holds it.
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
            // Relaxed: the room's mutex orders this against the unlocker, which locks the room when
            // it sees the bit.
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
                    // The transactions of a cycle without this one detect the cycle themselves.
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

    /// Registers that `owner` waits for `stripe`, unless the wait closes a cycle. The last
    /// transaction that begins to wait closes a cycle; registrations are serialized, so that
    /// transaction detects it.
    fn begin_to_wait(&self, stripe: usize, owner: Owner) -> Outlook {
        let mut waiting = self.waiting.lock();
        let outlook = self.outlook(&waiting, stripe, owner);
        if outlook != Outlook::Cycle {
            let thread = braid_rt::thread::index() as u64;
            waiting.insert(owner, Edge { stripe, thread });
        }
        outlook
    }

    /// Follows the wait-for graph from the stripe that `owner` waits for on this thread.
    fn outlook(&self, waiting: &HashMap<Owner, Edge>, stripe: usize, owner: Owner) -> Outlook {
        let own_thread = braid_rt::thread::index() as u64;
        let mut at = stripe;
        // Sum of the uses of the running transactions on the path.
        let mut uses = None;
        // A chain of distinct owners cannot be longer than the number of waiters.
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
            if thread == own_thread && !braid_rt::mutant!("wait_for_own_thread") {
                return Outlook::OwnThread { uses: sum };
            }
            match waiting.values().find(|edge| edge.thread == thread) {
                Some(edge) => at = edge.stripe,
                None => break,
            }
        }
        Outlook::Open
    }

    /// Marks that the owner of a stripe is about to assign its sequence number and to write.
    pub(crate) fn mark_committing(&self, stripe: usize) {
        braid_rt::yield_point();
        if braid_rt::mutant!("no_marks") {
            return;
        }
        // Relaxed: the later assignment of the sequence number (`PendingCommit::assign`, a
        // read-modify-write of one counter with Release and Acquire) publishes the mark to every
        // validator that assigns its own later, or that finds this sequence number assigned. A
        // validator that does not see the mark precedes this owner in the order.
        self.stripes[stripe]
            .word
            .fetch_or(COMMITTING, Ordering::Relaxed);
    }

    /// Clears the mark after the writes are in place, if the lock stays held.
    pub(crate) fn unmark_committing(&self, stripe: usize) {
        // Release: pairs with the Acquire of a validator, which then sees the new version.
        self.stripes[stripe]
            .word
            .fetch_and(!COMMITTING, Ordering::Release);
    }

    /// Returns whether an owner other than `owner` is about to write a key of the stripe.
    pub(crate) fn is_committing_by_other(&self, stripe: usize, owner: Owner) -> bool {
        braid_rt::yield_point();
        // Acquire: pairs with the Release of `unmark_committing` and `unlock`. The validator's own
        // assignment makes the mark visible, see `mark_committing`.
        let word = self.stripes[stripe].word.load(Ordering::Acquire);
        word & COMMITTING != 0 && word >> OWNER_SHIFT != owner
    }

    /// Returns whether another owner currently holds the lock.
    pub(crate) fn is_held_by_other(&self, stripe: usize, owner: Owner) -> bool {
        // Relaxed: a hint; only an attempt to lock decides.
        let holder = self.stripes[stripe].word.load(Ordering::Relaxed) >> OWNER_SHIFT;
        holder != 0 && holder != owner
    }

    /// Releases a stripe.
    pub(crate) fn unlock(&self, stripe: usize, owner: Owner) {
        braid_rt::yield_point();
        // Release: pairs with the Acquire of the next locker and validator.
        let word = self.stripes[stripe].word.swap(0, Ordering::Release);
        debug_assert_eq!(
            word >> OWNER_SHIFT,
            owner,
            "a lock is released by its owner"
        );
        if word & WAITERS != 0 {
            // The first waiter leaves the queue after it acquires the lock. If another thread
            // acquires the lock first, the waiter sets `WAITERS` again.
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

    #[test]
    fn each_use_of_a_context_has_its_own_number() {
        let first = first_owner(3);
        let second = next_owner(first);
        let third = next_owner(second);
        assert_eq!([second, third], [first + 1, first + 2]);
        let last = first_owner(4) - 1;
        assert_eq!([second, last].map(context_of), [3, 3]);
        assert_eq!(next_owner(last), first, "the uses start again");
    }

    #[test]
    fn an_attempt_to_lock_does_not_wait() {
        let locks = LockTable::new(16);
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

    #[test]
    fn the_hash_chooses_the_stripe() {
        let locks = LockTable::new(16);
        let stripes = [0, 1, 15, 16, 33].map(|hash| locks.stripe_of(hash));
        assert_eq!(stripes, [0, 1, 15, 0, 1]);
    }

    /// A waiter must not believe that a transaction waits for its own thread after it moved on.
    #[test]
    fn the_last_use_belongs_to_an_open_transaction() {
        let locks = LockTable::new(16);
        let owner = first_owner(3);
        let user = locks.user(owner);
        let last_use = |owner| locks.users.lock().last_use(owner);
        let own_thread = braid_rt::thread::index() as u64;
        assert_eq!(last_use(owner), None, "it has no thread yet");
        user.locks();
        assert_eq!(last_use(owner), Some((own_thread, 1)));
        user.reads();
        assert_eq!(last_use(owner), Some((own_thread, 2)));
        assert_eq!(last_use(next_owner(owner)), None);
        user.ends();
        assert_eq!(last_use(owner), None);
        user.set_owner(next_owner(owner));
        user.locks();
        assert_eq!(last_use(owner), None, "its locks outlived it");
        assert_eq!(last_use(next_owner(owner)), Some((own_thread, 3)));
        drop(user);
        assert_eq!(last_use(next_owner(owner)), None);
    }

    #[test]
    fn users_of_freed_contexts_are_forgotten() {
        let mut users = Users::default();
        let kept: Vec<_> = (1..=40)
            .map(|context| {
                let user = User::unregistered(first_owner(context));
                users.add(context, &user);
                user
            })
            .collect();
        for context in 41..=1000 {
            users.add(context, &User::unregistered(first_owner(context)));
        }
        let is_known = |context: u64| users.by_context.contains_key(&context);
        assert!((1..=40).all(is_known));
        // Twice the contexts in use, and a few, at the last sweep.
        assert!(users.by_context.len() <= 2 * kept.len() + 20);
        assert!(users.sweep_at > kept.len());
    }

    #[test]
    fn a_grace_period_lies_ahead() {
        let before = braid_rt::now();
        assert!(Grace::new(0).until >= before + GRACE);
    }

    /// Registers waits without sleeping, as the owners' threads would.
    fn wait_for(locks: &LockTable, owner: Owner, stripe: usize, thread: u64) {
        let edge = Edge { stripe, thread };
        locks.waiting.lock().insert(owner, edge);
    }

    #[test]
    fn the_outlook_of_a_wait_follows_stripes_and_threads() {
        let locks = LockTable::new(16);
        let own_thread = braid_rt::thread::index() as u64;
        let [one, two, three] = [1, 2, 3].map(first_owner);
        let users = [one, two, three].map(|owner| locks.user(owner));
        let outlook = |stripe| locks.outlook(&locks.waiting.lock(), stripe, one);
        for (stripe, owner) in [(1, one), (2, two), (3, three)] {
            assert_eq!(locks.lock(stripe, owner), Ok(Locked::Now));
        }
        // Nobody has used the holder: its commit runs.
        assert_eq!(outlook(2), Outlook::Open);
        // Two waits for three, which runs on another thread.
        let elsewhere = own_thread + 1;
        users[2].thread.store(elsewhere, Ordering::Relaxed);
        users[2].reads();
        wait_for(&locks, two, 3, elsewhere + 1);
        assert_eq!(outlook(2), Outlook::Open);
        // That thread waits for a lock of one.
        wait_for(&locks, first_owner(9), 1, elsewhere);
        assert_eq!(outlook(2), Outlook::OwnThread { uses: 1 });
        locks.waiting.lock().remove(&first_owner(9));
        assert_eq!(outlook(2), Outlook::Open);
        // This thread used three last.
        users[2].locks();
        assert_eq!(outlook(2), Outlook::OwnThread { uses: 2 });
        assert_eq!(outlook(3), Outlook::OwnThread { uses: 2 });
        // Three waits for one.
        wait_for(&locks, three, 1, own_thread);
        assert_eq!(outlook(2), Outlook::Cycle);
        assert_eq!(outlook(3), Outlook::Cycle);
    }

    /// A request that would close a cycle is not registered; any other one is.
    #[test]
    fn a_wait_is_registered_unless_it_closes_a_cycle() {
        let locks = LockTable::new(16);
        for (stripe, owner) in [(1, 1), (2, 2)] {
            assert_eq!(locks.lock(stripe, owner), Ok(Locked::Now));
        }
        assert_eq!(locks.begin_to_wait(2, 1), Outlook::Open);
        assert_eq!(locks.begin_to_wait(1, 2), Outlook::Cycle);
        let waiting: Vec<Owner> = locks.waiting.lock().keys().copied().collect();
        assert_eq!(waiting, [1]);
    }
}
