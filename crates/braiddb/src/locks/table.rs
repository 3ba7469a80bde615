//! Lock table: write locks and old versions, both found by the hash of a key.
//!
//! The table is a hash table with a fixed number of *buckets*, each a cache line. A lock belongs to
//! one key, known by the hash of table and key, so transactions that write different keys do not
//! wait for each other. Two keys have the same lock only if 61 bits of their hashes are equal. The
//! hash has a random seed, so nobody can choose such keys.
//!
//! The first lock of a bucket is its *inline* lock: one compare-and-swap acquires it, another one
//! releases it. More locks of the bucket *overflow* to a list under a mutex, so their number has no
//! limit. The bucket's word is `hash << 3 | CROWDED | COMMITTING | HELD`:
//!
//! - `HELD`: a transaction holds the inline lock, for the key with this hash. Its number is in
//!   `owner`, which its thread sets next.
//! - `COMMITTING` is set before the transaction assigns its sequence number, so that a transaction
//!   that validates its reads later in the order sees the pending write (Silo's phase 1, Tu et al.
//!   2013 §4.4). An overflowed lock has a flag of its own.
//! - `CROWDED`: the bucket has overflowed locks, or transactions that wait for a lock, or a thread
//!   is looking for them. All locks of the bucket are then acquired and released under the mutex:
//!   a lock has one place at a time, and no waiter is overlooked.
//!
//! [`super::wait_graph`] finds deadlocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_rt::{HugeSlice, to_usize};
use hashbrown::HashTable;

use super::wait_graph::{Grace, NOBODY, Outlook, Owner, User, WaitGraph};
use crate::base::sync::{AtomicU64, Backoff, Condvar, Latch, Mutex, MutexGuard, spin_loop};
use crate::mvcc::versions::VersionChain;

const HELD: u64 = 1;
const COMMITTING: u64 = 2;
const CROWDED: u64 = 4;
const HASH_SHIFT: u32 = 3;

/// Number of spins before a locker sleeps: a holder that is committing is done within a
/// microsecond, while a sleep and a wake-up cost about ten.
const SPINS: u32 = if cfg!(all(test, loom)) { 0 } else { 64 };

/// Maximum number of buckets: 4 MiB of memory. While 650 locks are held, 1 % of others overflow.
const BUCKETS_MAX: usize = 1 << if cfg!(miri) { 8 } else { 16 };
const BUCKETS_MIN: usize = 1 << if cfg!(miri) { 8 } else { 11 };

/// Bytes of buffer pool for each bucket, so that a small database has a small lock table.
const POOL_BYTES_PER_BUCKET: usize = 1024;

/// Maximum number of buckets in a simulation, so that locks overflow.
const BUCKETS_MAX_SIMULATED_LOG2: u64 = 6;

/// The lock of a key: the word of a bucket whose inline lock it is, without the other flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lock(u64);

impl Lock {
    fn of(hash: u64) -> Self {
        Self(hash << HASH_SHIFT | HELD)
    }

    /// Returns whether this is the inline lock of a bucket with this word.
    fn is_inline(self, word: u64) -> bool {
        word & !(COMMITTING | CROWDED) == self.0
    }

    /// Returns the hash for a bucket's table of overflowed locks. The low bits of the word are the
    /// same for all locks of the bucket.
    fn spread(self) -> u64 {
        self.0.rotate_left(32)
    }
}

/// A lock that is not the inline lock of its bucket.
#[derive(Debug)]
struct Overflowed {
    lock: Lock,
    owner: Owner,
    committing: bool,
}

#[derive(Debug)]
struct Waiter {
    lock: Lock,
    owner: Owner,
    wake: Condvar,
}

/// The locks and waiters of a bucket that has no room for them.
#[derive(Debug, Default)]
struct Crowd {
    locks: HashTable<Overflowed>,
    /// Sleeping transactions, in order of arrival.
    waiters: VecDeque<Arc<Waiter>>,
}

impl Crowd {
    fn find(&self, lock: Lock) -> Option<&Overflowed> {
        self.locks.find(lock.spread(), |held| held.lock == lock)
    }

    fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.waiters.is_empty()
    }
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket {
    word: AtomicU64,
    /// The holder of the inline lock. While the lock is not held, and for a moment after it is
    /// acquired and before it is released, `NOBODY`.
    owner: AtomicU64,
    crowd: Mutex<Option<Box<Crowd>>>,
    versions: Latch<VersionChain>,
}

impl Bucket {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            owner: AtomicU64::new(NOBODY),
            crowd: Mutex::default(),
            versions: Latch::default(),
        }
    }

    /// Excludes all other threads from acquiring and releasing locks of the bucket.
    fn enter(&self) -> Entered<'_> {
        let crowd = self.crowd.lock();
        // Acquire: pairs with the Release of the last owner's unlock.
        self.word.fetch_or(CROWDED, Ordering::Acquire);
        Entered {
            bucket: self,
            crowd,
        }
    }
}

/// A bucket in which only this thread acquires and releases locks.
struct Entered<'b> {
    bucket: &'b Bucket,
    crowd: MutexGuard<'b, Option<Box<Crowd>>>,
}

impl Entered<'_> {
    fn is_inline(&self, lock: Lock) -> bool {
        // Relaxed: `enter` has acquired.
        lock.is_inline(self.bucket.word.load(Ordering::Relaxed))
    }

    /// Returns the holder of a lock.
    fn holder(&self, lock: Lock) -> Owner {
        if self.is_inline(lock) {
            let mut backoff = Backoff::default();
            loop {
                // Relaxed: `enter` has acquired, so this is `NOBODY` or the current holder.
                match self.bucket.owner.load(Ordering::Relaxed) {
                    NOBODY => backoff.wait(),
                    holder => return holder,
                }
            }
        }
        let found = self.crowd.as_ref().and_then(|crowd| crowd.find(lock));
        found
            .filter(|_| !braid_rt::mutant!("forget_overflowed_locks"))
            .map_or(NOBODY, |held| held.owner)
    }

    /// Acquires a lock that nobody holds.
    fn acquire(&mut self, lock: Lock, owner: Owner) {
        let word = &self.bucket.word;
        if word.load(Ordering::Relaxed) & HELD == 0 {
            // Release, as in all changes under the mutex: a validator that finds this lock must see
            // what the bucket's earlier owners wrote.
            word.fetch_or(lock.0, Ordering::Release);
            self.bucket.owner.store(owner, Ordering::Relaxed);
            return;
        }
        braid_rt::coverage_point("locks: a lock overflows");
        let held = Overflowed {
            lock,
            owner,
            committing: false,
        };
        let locks = &mut self.crowd.get_or_insert_default().locks;
        locks.insert_unique(lock.spread(), held, |held| held.lock.spread());
    }

    /// Adds a transaction that is about to sleep until a lock is released.
    fn add_waiter(&mut self, lock: Lock, owner: Owner) -> Arc<Waiter> {
        if !self.is_inline(lock) {
            braid_rt::coverage_point("locks: a transaction waits for an overflowed lock");
        }
        let waiter = Arc::new(Waiter {
            lock,
            owner,
            wake: Condvar::new(),
        });
        let crowd = self.crowd.get_or_insert_default();
        crowd.waiters.push_back(waiter.clone());
        waiter
    }

    /// Releases a lock, and wakes the first transaction that waits for it.
    fn release(&mut self, lock: Lock, owner: Owner, graph: &WaitGraph) {
        let is_inline = self.is_inline(lock);
        if is_inline {
            self.bucket.owner.store(NOBODY, Ordering::Relaxed);
            // Release: pairs with the Acquire of the next locker and validator.
            self.bucket.word.fetch_and(CROWDED, Ordering::Release);
        } else {
            let locks = self.crowd.as_mut().map(|crowd| &mut crowd.locks);
            let found = locks.and_then(|locks| {
                let entry = locks.find_entry(lock.spread(), |held| held.lock == lock);
                entry.ok().map(|entry| entry.remove().0)
            });
            let holder = found.map(|held| held.owner);
            debug_assert_eq!(holder, Some(owner), "a lock is released by its owner");
        }
        if !is_inline && braid_rt::mutant!("wake_none_of_the_overflowed") {
            return;
        }
        let Some(crowd) = &*self.crowd else {
            return;
        };
        let for_any = braid_rt::mutant!("wake_for_any_key");
        let mut waiters = crowd.waiters.iter().filter(|w| w.lock == lock || for_any);
        // The waiter leaves the queue after it has acquired the lock. If another transaction
        // acquires the lock first, its release wakes the waiter again.
        if let Some(first) = waiters.next() {
            self.set_holder(lock, NOBODY, graph);
            first.wake.notify_one();
        }
    }

    /// Records the holder of a lock for the transactions that wait for it.
    fn set_holder(&self, lock: Lock, holder: Owner, graph: &WaitGraph) {
        let Some(crowd) = &*self.crowd else {
            return;
        };
        let waiters = crowd.waiters.iter().filter(|w| w.lock == lock);
        let mut owners = waiters.map(|w| w.owner).filter(|o| *o != holder).peekable();
        if owners.peek().is_some() && !braid_rt::mutant!("wait_for_an_earlier_holder") {
            graph.set_holder(owners, holder);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.crowd.as_ref().is_none_or(|crowd| crowd.is_empty()) {
            *self.crowd = None;
            // Release: a locker or validator that finds the bucket free must see what the owners of
            // overflowed locks wrote.
            self.bucket.word.fetch_and(!CROWDED, Ordering::Release);
        }
    }
}

/// Error of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// A cycle of waiting transactions; it ends when one of them aborts.
    Cycle,
    /// A cycle through a transaction that this thread has open and cannot continue during the wait.
    OwnThread,
    /// Another transaction held the lock for as long as this one was willing to wait.
    Timeout,
}

/// Outcome of a lock request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    Now,
    Already,
}

/// Returns the end of a wait of at most `timeout`; `None` if it has no end.
fn deadline_after(timeout: Duration) -> Option<Instant> {
    if timeout == Duration::MAX {
        return None;
    }
    braid_rt::now_plus(timeout)
}

/// Sleeps until notified or until the deadline, or wakes spuriously.
fn sleep<T>(wake: &Condvar, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) {
    #[cfg(not(all(test, loom)))]
    wake.wait_until_or_forever(guard, deadline);
    // Loom's clock does not advance, and no loom test has a deadline.
    #[cfg(all(test, loom))]
    {
        assert!(deadline.is_none());
        wake.wait(guard);
    }
}

#[derive(Debug)]
pub(crate) struct LockTable {
    buckets: HugeSlice<Bucket>,
    graph: WaitGraph,
}

impl LockTable {
    /// Creates a lock table for a database with a buffer pool of `bytes` bytes.
    /// Its buckets are spread over the machine's memory nodes if `numa` says so.
    pub(crate) fn for_pool(bytes: usize, numa: bool) -> Self {
        if braid_rt::simulation::is_on() {
            return Self::new(1 << (braid_rt::entropy() % (BUCKETS_MAX_SIMULATED_LOG2 + 1)));
        }
        let buckets = (bytes / POOL_BYTES_PER_BUCKET).next_power_of_two();
        let buckets = buckets.clamp(BUCKETS_MIN, BUCKETS_MAX);
        if !numa {
            return Self::new(buckets);
        }
        Self {
            buckets: HugeSlice::spread(buckets, |_| Bucket::new()),
            graph: WaitGraph::default(),
        }
    }

    /// Adds the bytes of the buckets on each memory node. Returns whether the system told it.
    pub(crate) fn count(&self, bytes: &mut [u64]) -> bool {
        let start = self.buckets.as_ptr().cast();
        braid_rt::numa::count(start, size_of_val(&*self.buckets), bytes)
    }

    /// Creates a lock table with `buckets` buckets, a power of two.
    pub(crate) fn new(buckets: usize) -> Self {
        debug_assert!(buckets.is_power_of_two());
        Self {
            buckets: HugeSlice::from_fn(buckets, |_| Bucket::new()),
            graph: WaitGraph::default(),
        }
    }

    /// Creates the user of a new context with this first owner number.
    pub(crate) fn user(&self, owner: Owner) -> Arc<User> {
        self.graph.user(owner)
    }

    /// Returns the bucket of a key with this hash.
    #[inline]
    pub(crate) fn bucket_of(&self, hash: u64) -> usize {
        to_usize(hash & (self.buckets.len() as u64 - 1))
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[self.bucket_of(hash)]
    }

    /// Prefetches a bucket that is about to be changed.
    #[inline]
    pub(crate) fn prefetch_for_write(&self, bucket: usize) {
        braid_rt::prefetch_for_write(&raw const self.buckets[bucket]);
    }

    /// Returns the old versions of the keys of a bucket.
    pub(crate) fn versions(&self, bucket: usize) -> &Latch<VersionChain> {
        &self.buckets[bucket].versions
    }

    /// Acquires the write lock of a key, sleeping while another owner holds it, for at most
    /// `timeout`; `Duration::MAX` is forever.
    #[inline]
    pub(crate) fn lock(
        &self,
        hash: u64,
        owner: Owner,
        timeout: Duration,
    ) -> Result<Locked, LockError> {
        braid_rt::yield_point();
        let bucket = self.bucket(hash);
        let lock = Lock::of(hash);
        let mut spins = 0;
        loop {
            // Acquire: pairs with the Release in `unlock`, so that the last owner's writes are
            // visible.
            let word = &bucket.word;
            match word.compare_exchange(0, lock.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    bucket.owner.store(owner, Ordering::Relaxed);
                    return Ok(Locked::Now);
                }
                Err(word) if lock.is_inline(word) => {
                    // Relaxed: a thread sees its own store. After a release by this transaction it
                    // sees `NOBODY`, or the next owner.
                    if bucket.owner.load(Ordering::Relaxed) == owner {
                        return Ok(Locked::Already);
                    }
                    if spins == SPINS {
                        return self.lock_crowded(bucket, lock, owner, timeout);
                    }
                    spins += 1;
                    spin_loop();
                }
                Err(_) => return self.lock_crowded(bucket, lock, owner, timeout),
            }
        }
    }

    /// Acquires the write lock of a key unless another owner holds it.
    pub(crate) fn try_lock(&self, hash: u64, owner: Owner) -> Option<Locked> {
        let (mut entered, lock) = (self.bucket(hash).enter(), Lock::of(hash));
        match entered.holder(lock) {
            NOBODY => {
                entered.acquire(lock, owner);
                entered.set_holder(lock, owner, &self.graph);
                Some(Locked::Now)
            }
            holder if holder == owner => Some(Locked::Already),
            _ => None,
        }
    }

    #[cold]
    fn lock_crowded(
        &self,
        bucket: &Bucket,
        lock: Lock,
        owner: Owner,
        timeout: Duration,
    ) -> Result<Locked, LockError> {
        let deadline = deadline_after(timeout);
        let mut entered = bucket.enter();
        let mut me: Option<Arc<Waiter>> = None;
        let mut grace: Option<Grace> = None;
        let result = loop {
            let holder = entered.holder(lock);
            if holder == NOBODY {
                entered.acquire(lock, owner);
                entered.set_holder(lock, owner, &self.graph);
                break Ok(Locked::Now);
            }
            if holder == owner {
                break Ok(Locked::Already);
            }
            if me.is_none() {
                match self.graph.begin_to_wait(owner, holder) {
                    Outlook::Open => {}
                    Outlook::Cycle => break Err(LockError::Cycle),
                    Outlook::OwnThread { uses } => grace = Some(Grace::new(uses)),
                }
                me = Some(entered.add_waiter(lock, owner));
            }
            if grace.is_some_and(|grace| braid_rt::now() >= grace.until) {
                grace = match self.graph.outlook(owner, holder) {
                    Outlook::OwnThread { uses } if grace.is_some_and(|g| g.uses == uses) => {
                        braid_rt::coverage_point(
                            "a transaction waits for another one of its thread",
                        );
                        break Err(LockError::OwnThread);
                    }
                    Outlook::OwnThread { uses } => Some(Grace::new(uses)),
                    // The transactions of a cycle without this one detect the cycle themselves.
                    Outlook::Open | Outlook::Cycle => None,
                };
            }
            if deadline.is_some_and(|deadline| braid_rt::now() >= deadline)
                && !braid_rt::mutant!("wait_past_the_timeout")
            {
                braid_rt::coverage_point("locks: a wait takes too long");
                break Err(LockError::Timeout);
            }
            if let Some(waiter) = &me {
                let until = grace
                    .map(|grace| grace.until)
                    .into_iter()
                    .chain(deadline)
                    .min();
                sleep(&waiter.wake, &mut entered.crowd, until);
            }
        };
        if me.is_some() {
            let crowd = entered.crowd.get_or_insert_default();
            crowd.waiters.retain(|w| w.owner != owner);
            self.graph.end_wait(owner);
        }
        result
    }

    /// Marks that the owner of a lock is about to assign its sequence number and to write.
    #[inline]
    pub(crate) fn mark_committing(&self, hash: u64) {
        braid_rt::yield_point();
        if braid_rt::mutant!("no_marks") {
            return;
        }
        let bucket = self.bucket(hash);
        if Lock::of(hash).is_inline(bucket.word.load(Ordering::Relaxed)) {
            // Relaxed: the later assignment of the sequence number (`PendingCommit::assign`, a
            // read-modify-write of one counter with Release and Acquire) publishes the mark to
            // every validator that assigns its own later, or that finds this sequence number
            // assigned. A validator that does not see the mark precedes this owner in the order.
            // The same holds for the mark of an overflowed lock, and for the flag `CROWDED`.
            bucket.word.fetch_or(COMMITTING, Ordering::Relaxed);
        } else {
            Self::mark_overflowed(bucket, Lock::of(hash), true);
        }
    }

    /// Clears the mark after the writes are in place, if the lock stays held.
    pub(crate) fn unmark_committing(&self, hash: u64) {
        let bucket = self.bucket(hash);
        if Lock::of(hash).is_inline(bucket.word.load(Ordering::Relaxed)) {
            // Release: pairs with the Acquire of a validator, which then sees the new version.
            bucket.word.fetch_and(!COMMITTING, Ordering::Release);
        } else {
            Self::mark_overflowed(bucket, Lock::of(hash), false);
        }
    }

    #[cold]
    fn mark_overflowed(bucket: &Bucket, lock: Lock, committing: bool) {
        let mut crowd = bucket.crowd.lock();
        let locks = crowd.as_mut().map(|crowd| &mut crowd.locks);
        let found = locks.and_then(|l| l.find_mut(lock.spread(), |held| held.lock == lock));
        debug_assert!(found.is_some(), "a transaction marks its own locks");
        if let Some(held) = found {
            held.committing = committing;
        }
    }

    /// Returns whether an owner other than `owner` is about to write the key.
    #[inline]
    pub(crate) fn is_committing_by_other(&self, hash: u64, owner: Owner) -> bool {
        braid_rt::yield_point();
        let (bucket, lock) = (self.bucket(hash), Lock::of(hash));
        // Acquire: pairs with the Release of `unmark_committing` and of each unlock. The
        // validator's own assignment makes the mark visible, see `mark_committing`.
        let word = bucket.word.load(Ordering::Acquire);
        if lock.is_inline(word) {
            return word & COMMITTING != 0 && bucket.owner.load(Ordering::Relaxed) != owner;
        }
        word & CROWDED != 0
            && !braid_rt::mutant!("validate_without_overflowed_locks")
            && Self::overflowed(bucket, lock, |held| {
                let is_marked = held.committing && held.owner != owner;
                if is_marked {
                    braid_rt::coverage_point("validation: the mark of an overflowed lock");
                }
                is_marked
            })
    }

    /// Returns whether another owner currently holds the lock of the key.
    pub(crate) fn is_held_by_other(&self, hash: u64, owner: Owner) -> bool {
        let (bucket, lock) = (self.bucket(hash), Lock::of(hash));
        // Relaxed: a hint; only an attempt to lock decides.
        let word = bucket.word.load(Ordering::Relaxed);
        if lock.is_inline(word) {
            return bucket.owner.load(Ordering::Relaxed) != owner;
        }
        word & CROWDED != 0 && Self::overflowed(bucket, lock, |held| held.owner != owner)
    }

    /// Returns whether the lock is held as an overflowed one, and `is_it` holds.
    #[cold]
    fn overflowed(bucket: &Bucket, lock: Lock, is_it: impl FnOnce(&Overflowed) -> bool) -> bool {
        let crowd = bucket.crowd.lock();
        let found = crowd.as_ref().and_then(|crowd| crowd.find(lock));
        found.is_some_and(is_it)
    }

    /// Returns whether no lock is held, and nothing is left of earlier ones.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.buckets.iter().all(|bucket| {
            let is_free = bucket.word.load(Ordering::Acquire) == 0;
            is_free && bucket.crowd.lock().is_none()
        })
    }

    /// Releases the lock of a key.
    #[inline]
    pub(crate) fn unlock(&self, hash: u64, owner: Owner) {
        braid_rt::yield_point();
        let (bucket, lock) = (self.bucket(hash), Lock::of(hash));
        let word = bucket.word.load(Ordering::Relaxed);
        if word & CROWDED == 0 {
            debug_assert!(lock.is_inline(word), "a lock is released while it is held");
            debug_assert_eq!(bucket.owner.load(Ordering::Relaxed), owner);
            // Before the release: the next owner stores its own number.
            bucket.owner.store(NOBODY, Ordering::Relaxed);
            // Release: pairs with the Acquire of the next locker and validator.
            let free = bucket
                .word
                .compare_exchange(word, 0, Ordering::Release, Ordering::Relaxed);
            if free.is_ok() {
                return;
            }
            // A thread has entered the bucket since. It waits for the number of the holder.
            bucket.owner.store(owner, Ordering::Relaxed);
        }
        self.unlock_crowded(bucket, lock, owner);
    }

    #[cold]
    fn unlock_crowded(&self, bucket: &Bucket, lock: Lock, owner: Owner) {
        bucket.enter().release(lock, owner, &self.graph);
    }
}
