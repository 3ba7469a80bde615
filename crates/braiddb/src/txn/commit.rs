//! From private writes to an acknowledged transaction.
//!
//! The precommit's order is what makes the log's order a serial order, read-only snapshots included:
//!
//! 1. reserve space in the data file and in the log (so that nothing can fail for space once a
//!    number is assigned);
//! 2. mark the write locks as committing;
//! 3. assign the sequence number;
//! 4. validate the reads (Silo, Tu et al. 2013 §4.4, with 3 before 4 instead of after);
//! 5. append the redo records to the strand, or an abort record if the validation failed;
//! 6. apply the writes to the trees, keeping what they replace for snapshots;
//! 7. release the locks (early lock release; `serial` waits for the flush);
//! 8. leave the commit slot, and wait for the number to be durable.
//!
//! If T reads x and W writes x, and T's validation did not see W's mark, then W marked after T had
//! its number, so W's number is larger: reads-before-overwrites agrees with the numbers.
//! Writes-before-reads and writes-before-writes do because the later one assigns after it saw the
//! earlier one's write. So a prefix of the numbers is a prefix of a serial order (I3, I7), and a
//! snapshot at any number is consistent.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task;

use braid_log::LockRelease;
use braid_rt::narrow;
use braid_store::{Change, Direction, SHORT_KEY_MAX};

use crate::engine::context::{Context, signature_of};
use crate::engine::{Inner, PooledContext};
use crate::error::{ConflictKind, Error, Result};
use crate::mvcc::gc::Retired;
use crate::mvcc::range_reads::{Fingerprint, RangeRead};
use crate::observe::trace::{CommitClock, call_user};
use crate::options::{Durability, Isolation, TransactionOptions};

/// How long a validation waits for another transaction that is committing a key it read, before it
/// gives up: a commit takes about a microsecond unless its thread lost the processor.
const MARK_SPINS: u32 = 200;
const MARK_YIELDS: u32 = 50;

/// Result of a commit.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// let mut tx = db.begin();
/// tx.insert(&t, &1, "one")?;
/// let first = tx.commit()?;
/// let mut tx = db.begin();
/// tx.insert(&t, &2, "two")?;
/// assert!(tx.commit()?.seqno() > first.seqno());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    seqno: u64,
}

impl Commit {
    /// Returns the transaction's sequence number, its position in the serial order; for a
    /// transaction without writes, that of the newest transaction that it read.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let commit = tx.commit()?;
    /// assert!(db.snapshot().seqno() >= commit.seqno());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seqno(&self) -> u64 {
        self.seqno
    }
}

/// Handle for the durability of a committed transaction: poll it, block on it, await it, or set a
/// callback.
///
/// Dropping the ticket has no effect: the transaction becomes durable anyway.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// let mut tickets = Vec::new();
/// for i in 0..100 {
///     let mut tx = db.begin();
///     tx.insert(&t, &i, "x")?;
///     tickets.push(tx.commit_async()?); // many transactions, few flushes
/// }
/// for ticket in tickets {
///     ticket.wait()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the transaction is durable only once the ticket says so"]
pub struct Ticket {
    seqno: u64,
    log: braid_log::Ticket,
}

impl Ticket {
    /// Returns the transaction's sequence number, its position in the serial order.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// assert_eq!(ticket.wait()?.seqno(), ticket.seqno());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seqno(&self) -> u64 {
        self.seqno
    }

    /// Converts the ticket to the transaction's sequence number, for
    /// [`Database::wait_durable`](crate::Database::wait_durable): eight bytes that can be stored or
    /// sent.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let seqno = tx.commit_async()?.into_seqno();
    /// db.wait_durable(seqno)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_seqno(self) -> u64 {
        // The flush was asked for by the commit.
        self.log.detach();
        self.seqno
    }

    /// Returns whether the transaction is durable.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// db.sync()?;
    /// assert!(ticket.is_durable());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_durable(&self) -> bool {
        self.log.is_durable()
    }

    /// Returns the outcome if it is known, without blocking.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// match ticket.try_wait() {
    ///     Some(outcome) => println!("durable: {:?}", outcome?),
    ///     None => println!("not yet"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_wait(&self) -> Option<Result<Commit>> {
        let seqno = self.seqno;
        self.log
            .try_wait()
            .map(|r| r.map(|()| Commit { seqno }).map_err(Error::from))
    }

    /// Blocks until the transaction is durable.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?;
    /// ticket.wait()?;
    /// assert!(ticket.is_durable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the log failed.
    pub fn wait(&self) -> Result<Commit> {
        self.log.wait()?;
        Ok(Commit { seqno: self.seqno })
    }

    /// Calls `callback` once the outcome is known: at once on this thread if it is known, otherwise
    /// on the thread that completes the flush, which the callback must not block. If it panics, the
    /// process's panic hook reports the panic, and the database continues with the other callbacks.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let (sender, done) = std::sync::mpsc::channel();
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// tx.commit_async()?.on_durable(move |outcome| {
    ///     let _ = sender.send(outcome.is_ok());
    /// });
    /// assert_eq!(done.recv(), Ok(true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_durable(self, callback: impl FnOnce(Result<Commit>) + Send + 'static) {
        let seqno = self.seqno;
        self.log.on_durable(move |r| {
            let outcome = r.map(|()| Commit { seqno }).map_err(Error::from);
            call_user("an on_durable callback", || callback(outcome));
        });
    }
}

impl Future for Ticket {
    type Output = Result<Commit>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        let seqno = self.seqno;
        Pin::new(&mut self.log)
            .poll(cx)
            .map(|r| r.map(|()| Commit { seqno }).map_err(Error::from))
    }
}

/// A transaction that is visible and on its way to the device.
struct Precommitted {
    seqno: u64,
    ticket: braid_log::Ticket,
}

impl PooledContext {
    pub(crate) fn commit(mut self, options: TransactionOptions) -> Result<Commit> {
        let clock = CommitClock::start(self.inner.slow_commit);
        let pre = self.precommit(options, true);
        let pre = match pre {
            Ok(pre) => pre,
            Err(error) => {
                self.fail(&error);
                return Err(error);
            }
        };
        let waits = options.durability == Durability::Immediate;
        if waits && self.inner.lock_release == LockRelease::Durable {
            // Who waits for the flush needs nobody else to release the locks after it.
            let outcome = pre.ticket.wait();
            self.abort();
            outcome?;
        } else {
            self.end(&pre.ticket, options.durability);
            if waits {
                pre.ticket.wait()?;
            } else {
                pre.ticket.detach();
            }
        }
        clock.stop(pre.seqno);
        Ok(Commit { seqno: pre.seqno })
    }

    pub(crate) fn commit_async(mut self, options: TransactionOptions) -> Result<Ticket> {
        let clock = CommitClock::start(self.inner.slow_commit);
        match self.precommit(options, false) {
            Ok(pre) => {
                self.end(&pre.ticket, options.durability);
                clock.stop(pre.seqno);
                Ok(Ticket {
                    seqno: pre.seqno,
                    log: pre.ticket,
                })
            }
            Err(error) => {
                self.fail(&error);
                Err(error)
            }
        }
    }

    /// Ends a transaction that could not be committed.
    #[cold]
    fn fail(mut self, error: &Error) {
        self.inner.store.trim_room(&mut self.state.get_mut().room);
        // A conflict says nothing of the database, and whoever has many should not meet at a shared count.
        if error.is_retryable() || self.inner.is_inherited() {
            return self.abort();
        }
        let inner = self.inner.clone();
        self.abort();
        inner.note_failure(error);
    }

    /// Gives the context back after the precommit. Locks that the protocol still needs are held on.
    #[inline(always)]
    fn end(self, ticket: &braid_log::Ticket, durability: Durability) {
        if let Durability::Buffered(bound) = durability
            && !braid_rt::mutant!("buffered_for_ever")
        {
            self.inner.flush_within(bound);
        }
        {
            let state = &mut *self.state.borrow_mut();
            if !state.locks.is_empty() {
                self.inner.defer_unlocks(state, ticket.unlock_point());
                if durability == Durability::None && !braid_rt::mutant!("hold_without_flush") {
                    self.inner.flush_for_locks();
                }
            }
            self.inner.close_snapshot(state);
        }
        Inner::recycle(self);
    }

    /// Releases what the transaction holds and gives the context back.
    pub(crate) fn abort(self) {
        if self.inner.is_inherited() {
            // Its locks are the parent's, who has the same transaction.
            return std::mem::forget(self);
        }
        {
            let mut state = self.state.borrow_mut();
            self.inner.unlock_all(&mut state);
            self.inner.close_snapshot(&mut state);
        }
        if self.inner.log.is_poisoned() {
            // What ended the transaction, perhaps at a write. The listener is told without locks.
            self.inner.tell_health();
        }
        Inner::recycle(self);
    }

    fn precommit(&mut self, options: TransactionOptions, waits: bool) -> Result<Precommitted> {
        let inner = &*self.inner;
        let state = &mut **self.state.get_mut();
        let ranges = self.ranges.get_mut();
        state.reads.add_ranges(ranges, || inner.log.last_seqno());
        if state.writes.is_empty() {
            return inner.precommit_reads(state, options);
        }
        inner.check_writable()?;
        if state.locks_in_commit {
            inner.lock_for_commit(state)?;
        }
        state.user.ends();
        let records = narrow(state.writes.live_len());
        let bytes = state.writes.log_payload().len();
        inner.admit(state, bytes)?;
        let mut pending = inner.log.enter(bytes)?;
        for &stripe in &state.locks {
            inner.locks.mark_committing(stripe);
        }
        pending.set_signature(state.writes.signature());
        let seqno = pending.assign(records);
        if let Err(error) = inner.check_tables(state).and_then(|()| {
            if options.isolation == Isolation::Serializable && !state.reads.is_empty() {
                // Its first number: the others are its own.
                inner.validate(state, pending.first_seqno())?;
            }
            // After the validation, which may have passed the locks of a transaction that could not be applied:
            // that one poisons the log before it releases them.
            match inner.log.is_poisoned() && !braid_rt::mutant!("commit_after_failure") {
                true => inner.check_not_poisoned(),
                false => Ok(()),
            }
        }) {
            pending.abort();
            inner.unlock_all(state);
            drop(pending.finish());
            return Err(error);
        }
        if inner.wants_dependencies {
            match inner.dependencies(state) {
                Ok(on) => pending.depends_on(&on, bytes),
                Err(error) => {
                    pending.abort();
                    inner.unlock_all(state);
                    drop(pending.finish());
                    return Err(error);
                }
            }
        }
        pending.append(&[state.writes.log_payload()]);
        if braid_rt::mutant!("unlock_before_apply") {
            inner.unlock_all(state);
        }
        if let Err(error) = inner.apply(state, seqno) {
            braid_rt::coverage_point("commit: a logged transaction can't be applied");
            // The transaction is logged but not fully in memory: only a recovery can tell the truth now. The
            // error says so too, since that of the store would promise that nothing was written.
            let cause = format!("cannot apply a logged transaction: {error}");
            pending.fail(&cause);
            inner.poisoned();
            return Err(Error::Poisoned { cause });
        }
        inner.store.trim_room(&mut state.room);
        if inner.lock_release == LockRelease::Precommit {
            inner.unlock_all(state);
        } else {
            state
                .locks
                .iter()
                .for_each(|&stripe| inner.locks.unmark_committing(stripe));
        }
        // A waiting commit flushes on its own thread; others need the flush to be asked for, unless they
        // were told not to care.
        let ticket = match (options.durability, waits) {
            (Durability::Immediate, false) => pending.finish_async(),
            _ => pending.finish(),
        };
        inner.counters.commit();
        inner.collect_versions();
        Ok(Precommitted { seqno, ticket })
    }
}

impl Inner {
    /// Makes sure that the data file has room for what the transaction changes. Once it is logged, nobody can refuse it.
    #[inline(always)]
    fn admit(&self, state: &mut Context, bytes: usize) -> Result<()> {
        match bytes > SHORT_KEY_MAX {
            true => self.admit_large(state, bytes),
            false => self.admit_entries(state, 0, bytes),
        }
    }

    /// Admits a transaction that may have written long keys.
    #[cold]
    #[inline(never)]
    fn admit_large(&self, state: &mut Context, bytes: usize) -> Result<()> {
        let mut entries = state.writes.layer_entries();
        if entries > 0 {
            self.store.expect_long_keys();
        }
        if braid_rt::mutant!("admit_long_keys_as_short_ones") {
            entries = 0;
        }
        self.admit_entries(state, entries, bytes)
    }

    /// Admits a transaction whose long keys add at most so many entries to the layers.
    #[inline(always)]
    fn admit_entries(&self, state: &mut Context, entries: usize, bytes: usize) -> Result<()> {
        let writes = &state.writes;
        let size = (writes.len() + entries, bytes);
        let removes_only = || writes.live().all(|write| write.removes);
        Ok(self.store.admit(&mut state.room, size, removes_only)?)
    }

    /// The commit of a transaction that wrote nothing: it belongs right behind the newest number, and
    /// what it read must last (I4).
    fn precommit_reads(
        &self,
        state: &mut Context,
        options: TransactionOptions,
    ) -> Result<Precommitted> {
        self.check_open()?;
        if options.isolation == Isolation::Serializable {
            self.validate(state, self.log.last_seqno() + 1)?;
        }
        self.check_shown(|| state.reads.newest)?;
        self.unlock_all(state);
        self.counters.commit();
        let seqno = state.reads.newest;
        Ok(Precommitted {
            seqno,
            ticket: self.log.ticket(seqno),
        })
    }

    /// Sees to a flush that nobody asked for, since locks wait for it: who waits for one of them would wait
    /// for ever.
    #[cold]
    fn flush_for_locks(&self) {
        if self.background {
            self.log.request_flush();
        } else {
            // An error shows up at the next commit.
            let _ = self.log.sync();
        }
    }

    fn check_tables(&self, state: &Context) -> Result<()> {
        state
            .writes
            .live()
            .try_for_each(|w| state.tables[w.table as usize].check_alive())
    }

    pub(crate) fn close_snapshot(&self, state: &mut Context) {
        if let Some(snapshot) = state.snapshot.take() {
            self.snapshots.close(&snapshot);
        }
    }

    pub(crate) fn unlock_all(&self, state: &mut Context) {
        let owner = state.owner;
        state
            .locks
            .drain(..)
            .for_each(|stripe| self.locks.unlock(stripe, owner));
    }

    /// Checks that what the transaction read is still what a transaction of this number would read.
    fn validate(&self, state: &Context, seqno: u64) -> Result<()> {
        for read in &state.reads.points {
            if braid_rt::mutant!("skip_validation") {
                continue;
            }
            if !self.wait_for_mark(read.stripe(), state.owner) {
                return Err(self.conflict(ConflictKind::Read));
            }
            let tree = &state.tables[read.table as usize].tree;
            if tree.is_current(read.stamp) {
                continue;
            }
            let found = tree.get(state.reads.key(read), |_| false)?;
            let holds = match found.map(|found| found.meta) {
                Some(meta) if meta.version == read.version => true,
                // Absent now, as it was; but has it been so all the time, at this number too? A removal of
                // a greater number comes from behind, and what it removed may have come before.
                Some(meta) => {
                    let before = meta.version < seqno || braid_rt::mutant!("believe_absence");
                    if read.absent && meta.tombstone && !before {
                        braid_rt::coverage_point("validation: an absence of a greater number");
                    }
                    read.absent && meta.tombstone && before
                }
                None => read.absent && self.gc.none_purged_from(seqno),
            };
            if !holds {
                return Err(self.conflict(ConflictKind::Read));
            }
        }
        if !state.reads.ranges.is_empty() && !braid_rt::mutant!("ranges_do_not_wait") {
            // A smaller number may be about to insert into the range. Waiting follows the numbers
            // downwards, so nobody waits in a circle.
            let read = state.reads.ranges.iter();
            let tables = read.map(|read| signature_of(state.tables[read.table as usize].id));
            let tables = match braid_rt::mutant!("ranges_wait_for_one_table") {
                true => tables.last().unwrap_or_default(),
                false => tables.fold(0, |all, table| all | table),
            };
            self.log.wait_applied(seqno, tables);
        }
        for read in state.reads.ranges.iter() {
            let tree = &state.tables[read.table as usize].tree;
            if tree.is_current(read.stamp) {
                continue;
            }
            if read.fingerprint.is_none() && !braid_rt::mutant!("forget_forgotten_scans") {
                return Err(self.conflict(ConflictKind::Range));
            }
            let now = self.fingerprint(state, read, seqno)?;
            if braid_rt::mutant!("skip_range_validation") || read.fingerprint.is_none() {
                continue;
            }
            // Two transactions behind the reads may have put a key into the range and taken it out again, the first
            // before this number and the second behind it. A transaction that has assigned its
            // number keeps the second's tombstone. One without writes has not: it validates at a
            // number that others may get, and a tombstone of theirs may be gone by now (see the
            // test `a_purged_removal_behind_the_number_is_a_conflict`).
            let purged =
                !self.gc.none_purged_from(seqno) && !braid_rt::mutant!("forget_purges_in_ranges");
            if now != read.fingerprint || purged {
                return Err(self.conflict(ConflictKind::Range));
            }
        }
        Ok(())
    }

    /// The versions that may not be durable yet among those that the transaction read or overwrites, for a
    /// protocol that wants to know. Where locks are held on, what is overwritten need not be waited for: its
    /// writer's lock went when it could be.
    fn dependencies(&self, state: &Context) -> Result<Vec<u64>> {
        let durable_seqno = self.log.durable_seqno();
        let mut on = Vec::new();
        if state.reads.newest > durable_seqno {
            let points = state.reads.points.iter();
            let points =
                points.filter(|read| !(read.absent && braid_rt::mutant!("forget_absence")));
            on.extend(points.map(|read| read.version));
            if !braid_rt::mutant!("forget_locked_reads") {
                on.extend_from_slice(&state.reads.locked);
            }
            if !state.reads.ranges.is_empty() || state.snapshot.is_some() {
                // Neither says which versions were read.
                self.log.ticket(state.reads.newest).wait()?;
            }
        }
        if self.lock_release == LockRelease::Precommit {
            for write in state.writes.live() {
                let tree = &state.tables[write.table as usize].tree;
                // Locked since before it was assigned: this is what `apply` will replace.
                let found = tree.get(state.writes.key(write), |_| false)?;
                on.extend(found.map(|found| found.meta.version));
            }
        }
        on.retain(|&version| version > durable_seqno);
        Ok(on)
    }

    /// The error of a transaction that has to begin anew, counted.
    #[cold]
    pub(crate) fn conflict(&self, kind: ConflictKind) -> Error {
        self.counters.conflict();
        Error::Conflict(kind)
    }

    /// Waits until nobody else is about to write in the stripe; gives up after a while, since two
    /// transactions could wait for each other.
    fn wait_for_mark(&self, stripe: usize, owner: u64) -> bool {
        for round in 0..MARK_SPINS + MARK_YIELDS {
            if !self.locks.is_committing_by_other(stripe, owner) {
                return true;
            }
            if round < MARK_SPINS {
                braid_rt::thread::spin_loop();
            } else {
                braid_rt::thread::yield_now();
            }
        }
        false
    }

    /// What the range holds now; `None` if something was removed from it at this number or a greater one, so that
    /// it may have held more before.
    fn fingerprint(
        &self,
        state: &Context,
        read: &RangeRead,
        seqno: u64,
    ) -> Result<Option<Fingerprint>> {
        let tree = &state.tables[read.table as usize].tree;
        let mut fingerprint = Fingerprint::default();
        let (mut lower, upper) = state.reads.ranges.bounds(read);
        let mut next;
        let mut position = None;
        loop {
            let leaf = tree.scan_leaf(position, lower, upper, Direction::Forward, usize::MAX)?;
            for record in leaf.records() {
                match record.meta.tombstone {
                    // At this number, too: a transaction without writes has no number of its own, so that of the
                    // removal may be the one that it validates at.
                    true if record.meta.version > seqno => return Ok(None),
                    true if record.meta.version == seqno
                        && !braid_rt::mutant!("share_a_number_with_a_removal") =>
                    {
                        return Ok(None);
                    }
                    true => {}
                    false => fingerprint.add(record.key, record.meta.version),
                }
            }
            match leaf.next {
                None => return Ok(Some(fingerprint)),
                Some(bound) => (next, position) = (bound, leaf.position),
            }
            lower = next.as_ref().map(|key| &key[..]);
        }
    }

    /// Puts the writes into the trees and keeps what they replace for snapshots.
    #[inline(never)]
    fn apply(&self, state: &mut Context, seqno: u64) -> Result<()> {
        let mut shard = self.gc.lock_shard();
        let Context {
            writes,
            tables,
            hints,
            ..
        } = state;
        for write in writes.live() {
            let table = &tables[write.table as usize];
            let key = writes.key(write);
            let value = writes.value(write);
            let hint = hints.of_write(write.hash, key, write.table, &table.tree);
            let stripe = self.locks.stripe_of(write.hash);
            let mut kept = false;
            // Beside the result, which the tree would move about.
            let mut failed = None;
            table.tree.modify_at(hint, key, |old| {
                let keep = (Change::Keep, ());
                if let Some(old) = old {
                    let meta = old.meta();
                    // Of no transaction of this log: the page was damaged before its checksum was made.
                    if meta.version >= seqno && meta.version > self.log.last_seqno() {
                        failed = Some(from_nowhere(table.id, meta.version));
                        return keep;
                    }
                    // I7: a key's versions follow the numbers, because its lock is held from before
                    // the assignment until now.
                    if meta.version >= seqno {
                        disordered(meta.version, seqno);
                    }
                    if !meta.tombstone {
                        let mut replaced = shard.spare.take();
                        let (len, before) = (old.inline_len(), meta.version);
                        let bytes = replaced.begin(table.id, key, len, before, seqno);
                        match old.keep_value(bytes) {
                            Ok(None) => {}
                            Ok(Some(large)) => replaced.set_large(large),
                            Err(error) => {
                                failed = Some(error.into());
                                return keep;
                            }
                        }
                        // Before the new version is in place, so that a snapshot which finds that one
                        // too new finds this one here.
                        self.locks.versions(stripe).lock().push(replaced);
                        kept = true;
                    }
                } else if value.is_none() {
                    return keep;
                }
                let change = match value {
                    Some(value) => Change::Put {
                        version: seqno,
                        value,
                    },
                    None => Change::Tombstone { version: seqno },
                };
                (change, ())
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            if kept {
                shard.retire(Retired::version(seqno, stripe));
            }
            if value.is_none() {
                shard.retire(Retired::tombstone(seqno, stripe, Arc::clone(table), key));
            }
        }
        Ok(())
    }
}

#[cold]
fn disordered(version: u64, seqno: u64) -> ! {
    panic!("version {version} after {seqno}");
}

#[cold]
fn from_nowhere(table: u32, version: u64) -> Error {
    Error::Corrupted {
        what: format!("a record has version {version}, which was assigned to no transaction"),
        location: format!("data.braid, table {table}"),
    }
}

/// The state of a running transaction and the database it runs in; see [`crate::context`].
impl std::fmt::Debug for PooledContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledContext").finish_non_exhaustive()
    }
}

/// Wraps a context for one transaction's single thread.
pub(crate) fn cell(context: Context) -> RefCell<Box<Context>> {
    RefCell::new(Box::new(context))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use crate::engine::context::hash_key;
    use crate::{ConflictKind, Database, Error, MemoryDevice, Readable, Table};

    fn open() -> (Database, Table<u64, u64>) {
        let builder = Database::builder().strands(2).pool_bytes(1 << 20);
        let device = Arc::new(MemoryDevice::new());
        let db = builder.segment_bytes(64 << 10).open_on(device).unwrap();
        let t = db.open_table("t").unwrap();
        (db, t)
    }

    /// T reads that the range is empty, V puts a key into it, T's validation begins at the number behind V, W takes the key
    /// out with that number and is purged, and T's validation comes to the range. In between T has found that what it read
    /// elsewhere is the state behind V, so the range must be, too.
    #[test]
    fn a_purged_removal_behind_the_number_is_a_conflict() {
        let (db, t) = open();
        let inner = db.inner();
        let mut tx = db.begin();
        assert_eq!(tx.range(&t, 1..3).unwrap().count(), 0);
        db.transact(|v| v.insert(&t, &2, &2)).unwrap();
        let seqno = inner.log.last_seqno() + 1;
        db.transact(|w| w.remove(&t, &2)).unwrap();
        inner.collect_all_versions();
        assert!(!inner.gc.none_purged_from(seqno));
        let context = tx.context.as_mut().unwrap();
        let state = &mut **context.state.get_mut();
        state.reads.add_ranges(context.ranges.get_mut(), || 0);
        let validated = context.inner.validate(state, seqno);
        assert!(matches!(
            validated,
            Err(Error::Conflict(ConflictKind::Range))
        ));
    }

    /// The same, but the removal is still in the leaf when the validation gets there.
    #[test]
    fn a_removal_at_the_number_of_a_reader_is_a_conflict() {
        let (db, t) = open();
        let inner = db.inner();
        let mut tx = db.begin();
        assert_eq!(tx.range(&t, 1..3).unwrap().count(), 0);
        // Keeps the tombstone.
        let snapshot = db.snapshot();
        db.transact(|v| v.insert(&t, &2, &2)).unwrap();
        let seqno = inner.log.last_seqno() + 1;
        db.transact(|w| w.remove(&t, &2)).unwrap();
        assert!(inner.gc.none_purged_from(seqno));
        let context = tx.context.as_mut().unwrap();
        let state = &mut **context.state.get_mut();
        state.reads.add_ranges(context.ranges.get_mut(), || 0);
        let validated = context.inner.validate(state, seqno);
        assert!(matches!(
            validated,
            Err(Error::Conflict(ConflictKind::Range))
        ));
        drop(snapshot);
    }

    /// No panic is known, but one would leave every lock to nobody.
    #[test]
    fn a_commit_that_panics_releases_its_locks() {
        let (db, t) = open();
        let locks = &db.inner().locks;
        let mut tx = db.begin();
        tx.get(&t, &1).unwrap();
        tx.insert(&t, &2, &2).unwrap();
        let stripe = locks.stripe_of(hash_key(t.core.id, &2u64.to_be_bytes()));
        assert!(locks.is_held_by_other(stripe, 0));
        // Others changed the leaf, so that the read is looked at, and finds no table.
        db.transact(|other| other.insert(&t, &3, &3)).unwrap();
        tx.state().borrow_mut().reads.points[0].table = u32::MAX;
        assert!(catch_unwind(AssertUnwindSafe(|| tx.commit())).is_err());
        assert!(!locks.is_held_by_other(stripe, 0));
        db.transact(|tx| tx.insert(&t, &2, &4)).unwrap();
        assert_eq!(db.get(&t, &2).unwrap(), Some(4));
    }
}
