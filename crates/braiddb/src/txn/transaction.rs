//! Read-write transactions: private writes under key locks, optimistic reads.

use std::cell::RefCell;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use braid_log::SeqNo;
use bytes::Bytes;

use crate::MAX_KEY_LEN;
use braid_store::{LoadRefusal, ValueRef};

use crate::base::written::Written;
use crate::engine::context::Context;
use crate::engine::hint_cache::{HintTag, LOCATED_MAX};
use crate::engine::{Engine, PooledContext};
use crate::error::{Error, Result};
use crate::format::redo;
use crate::locks::table::Locked;
use crate::options::{Durability, Isolation, TransactionOptions};
use crate::read::scan::{Range, RawRange, View};
use crate::read::snapshot::Readable;
use crate::schema::table::{Table, TableCore};
use crate::schema::value_format::ValueFormat;
use crate::txn::commit::{Commit, Ticket};
use crate::txn::read_ahead::{Use, read_ahead_or_now};
use crate::types::tuples::KeyPrefix;
use crate::types::{AsKey, AsValue, Key, KeyRange, Value, prefix_bounds};

/// Read-write transaction; see [`crate::Database::begin`].
///
/// Writes are private until the commit and visible to the transaction's own reads. A write locks
/// its key at once, so two transactions that write the same key run one after the other; plain
/// reads acquire no locks and are validated at commit. A transaction with more than 64 writes
/// acquires its locks only during its commit, unless it reads under a lock first
/// ([`Transaction::get_for_update`] and functions that use it). Dropping a transaction aborts it.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// use braid::Readable;
/// let mut tx = db.begin();
/// tx.insert(&t, &1, "one")?;
/// assert_eq!(tx.get(&t, &1)?.as_deref(), Some("one")); // its own write
/// assert_eq!(db.get(&t, &1)?, None); // invisible to others until the commit
/// tx.commit()?;
/// assert_eq!(db.get(&t, &1)?.as_deref(), Some("one"));
/// # Ok(())
/// # }
/// ```
#[must_use = "what a transaction wrote is gone unless it is committed"]
pub struct Transaction {
    /// Present until the transaction ends.
    pub(crate) context: Option<PooledContext>,
    pub(crate) options: TransactionOptions,
    is_nonblocking: bool,
}

impl Transaction {
    #[inline]
    fn new(mut context: PooledContext, options: TransactionOptions) -> Self {
        let default = context.engine.settings.lock_timeout;
        context.state.get_mut().lock_timeout = options.lock_timeout.unwrap_or(default);
        if options.isolation == Isolation::Snapshot {
            let registration = context.engine.open_applied_snapshot();
            context.state.borrow_mut().snapshot = Some(registration);
        }
        Self {
            context: Some(context),
            options,
            is_nonblocking: false,
        }
    }

    /// Begins a transaction.
    #[inline]
    pub(crate) fn begin(engine: &Arc<Engine>, options: TransactionOptions) -> Self {
        Self::new(engine.context(), options)
    }

    fn context(&self) -> &PooledContext {
        self.context
            .as_ref()
            .expect("only the transaction's end takes its context")
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.context().engine
    }

    pub(crate) fn state(&self) -> &RefCell<Box<Context>> {
        &self.context().state
    }

    /// Sets the durability of the commit; see [`Durability`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// tx.set_durability(braid::Durability::None);
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_durability(&mut self, durability: Durability) {
        self.options.durability = durability;
    }

    /// Sets whether reads and the commit fail instead of waiting for pages from the medium; see
    /// [`Snapshot::set_nonblocking`](crate::Snapshot::set_nonblocking). By default they wait.
    ///
    /// After a read that failed so, the transaction continues; a read that [locks](
    /// Transaction::get_for_update) its key has locked it, so a program should abort the transaction, load
    /// the pages and begin again. A commit that fails so has left no trace: a page that it changes, or from which
    /// it read, is not in memory. It may still wait for locks and for room, and, when it has begun, for a page that
    /// another thread has just evicted. A transaction that needs more pages than the pool holds never succeeds
    /// so: after some attempts, let it wait.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, u64> = db.open_table("t")?;
    /// use braid::{Error, Readable};
    /// let add = || {
    ///     let mut tx = db.begin();
    ///     tx.set_nonblocking(true);
    ///     let before = tx.get_for_update(&t, &1)?.unwrap_or(0);
    ///     tx.insert(&t, &1, &(before + 1))?;
    ///     tx.commit()
    /// };
    /// let commit = loop {
    ///     match add() {
    ///         Err(Error::NotInMemory(pages)) => {
    ///             std::thread::scope(|scope| scope.spawn(|| db.load_pages(&pages)).join().unwrap())?;
    ///         }
    ///         added => break added?,
    ///     }
    /// };
    /// println!("committed with sequence number {}", commit.seqno());
    /// # assert_eq!(db.get(&t, &1)?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nonblocking(&mut self, is_nonblocking: bool) {
        self.is_nonblocking = is_nonblocking;
    }

    /// Refuses to load pages while the result exists, if the transaction is nonblocking.
    #[inline]
    fn refusal(&self) -> Option<LoadRefusal> {
        let refuses = self.is_nonblocking && !braid_rt::mutant!("block_in_transactions");
        refuses.then(LoadRefusal::new)
    }

    // Reading -----------------------------------------------------------------------------------

    fn read(&self, core: &Arc<TableCore>, key: &[u8]) -> Result<Option<Bytes>> {
        let stored = self.read_stored(core, key, |value| value.to_bytes())?;
        core.open(stored, || self.time(&mut self.state().borrow_mut()))
    }

    /// Reads a key and calls `take` with its stored value.
    fn read_stored<T>(
        &self,
        core: &Arc<TableCore>,
        key: &[u8],
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        let _refusal = self.refusal();
        let engine = self.engine();
        let core = engine.table_here(core)?;
        let hash = core.hash(key);
        let mut state = self.state().borrow_mut();
        let state = &mut **state;
        state.user.reads();
        let table = state.table_index(core);
        if let Some(own) = state.writes.find(hash, table, key) {
            return Ok(own.map(|own| take(ValueRef::from(own))));
        }
        if let Some(snapshot) = &state.snapshot {
            state.reads.newest = state.reads.newest.max(snapshot.seqno());
            return engine.read_at(core, key, snapshot.seqno(), take);
        }
        let hint = state.hints.of_read(hash, key, table, &core.tree);
        let found = match engine.agent_for(core) {
            None => core.tree.read_at(hint, key, |_| true, take)?,
            Some(agent) => {
                let ahead = (&mut state.ahead, &state.tables[..]);
                read_ahead_or_now(agent, hint, (table, key), ahead, Use::Validated, take)?
            }
        };
        let meta = found.as_ref().map(|(meta, _)| *meta);
        let stamp = hint.stamp();
        state.hints.note_read(hash, table);
        if !braid_rt::mutant!("believe_reads_of_agents") || engine.agent_for(core).is_none() {
            state.reads.add_point(table, hash, key, meta, stamp);
        }
        engine.check_shown(|| state.reads.newest)?;
        Ok(found.and_then(|(_, value)| value))
    }

    /// Locks a key and returns its newest value, which stays the newest until this transaction
    /// ends.
    pub(crate) fn read_locked(
        &mut self,
        core: &Arc<TableCore>,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        let stored = self.take_locked(core, key, |value| value.to_bytes())?;
        core.open(stored, || self.time(&mut self.state().borrow_mut()))
    }

    /// Locks and reads a key, and calls `take` with its stored value.
    pub(crate) fn take_locked<T>(
        &self,
        core: &Arc<TableCore>,
        key: &[u8],
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        check_key(key)?;
        let _refusal = self.refusal();
        let engine = self.engine();
        // Before hints: a table of another database has other leaves.
        let core = engine.table_to_write(core)?;
        let hash = core.hash(key);
        let state = &mut **self.state().borrow_mut();
        let table = state.table_index(core);
        // The lock's cache line and the record arrive at the same time.
        let bucket = engine.locks.bucket_of(hash);
        engine.locks.prefetch_for_write(bucket);
        let hint = state.hints.of_read(hash, key, table, &core.tree);
        if engine.agent_for(core).is_none() {
            core.tree.seek(hint, key);
        }
        engine.lock_read(state, core, key, hash)?;
        state.note_locked(table);
        if let Some(own) = state.writes.find(hash, table, key) {
            return Ok(own.map(|own| take(ValueRef::from(own))));
        }
        let hint = state.hints.of_key(hash);
        let found = match engine.agent_for(core) {
            None => core.tree.read_at(hint, key, |_| true, take)?,
            Some(agent) => {
                let ahead = (&mut state.ahead, &state.tables[..]);
                read_ahead_or_now(agent, hint, (table, key), ahead, Use::Newest, take)?
            }
        };
        state.hints.note_read(hash, table);
        let Some((meta, value)) = found else {
            return Ok(None);
        };
        state.reads.newest = state.reads.newest.max(meta.seqno());
        if self.engine().settings.wants_dependencies {
            state.reads.locked.push(meta.seqno());
        }
        self.engine().check_shown(|| state.reads.newest)?;
        Ok(value)
    }

    /// Calls `take` with a key's encoded value in place, and returns its result. If a concurrent
    /// write changes the bytes during the call, `take` is called again, and only its last result
    /// counts. For bindings to other languages, which copy the value to memory of their own.
    #[doc(hidden)]
    #[inline(always)]
    pub fn get_by<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: &[u8],
        take: impl FnMut(ValueRef<'_>) -> R,
    ) -> Result<Option<R>> {
        let core = &table.core;
        match core.value_format {
            None => self.read_stored(core, key, take),
            Some(_) => core.take_opened(
                self.read_stored(core, key, |value| value.to_bytes())?,
                || self.time(&mut self.state().borrow_mut()),
                take,
            ),
        }
    }

    // Writing -----------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn write(
        &mut self,
        core: &Arc<TableCore>,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        check_key(key)?;
        core.check_value_len(value.map_or(0, <[u8]>::len))?;
        match (&core.value_format, value) {
            (Some(value_format), Some(value)) => self.write_encoded(core, value_format, key, value),
            _ => self.write_stored(core, key, value),
        }
    }

    /// Writes to a table whose values have a stored form.
    fn write_encoded(
        &mut self,
        core: &Arc<TableCore>,
        value_format: &ValueFormat,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let clock = &self.engine().clock;
        let mut stored = {
            let state = &mut **self.state().borrow_mut();
            let time = &mut state.time;
            let now = || *time.get_or_insert_with(|| clock.now());
            let mut stored = std::mem::take(&mut state.encoded);
            value_format.encode(value, now, &mut stored);
            stored
        };
        let written = self.write_stored(core, key, Some(&stored));
        stored.clear();
        self.state().borrow_mut().encoded = stored;
        written
    }

    /// Writes a value in its stored form.
    pub(crate) fn write_stored(
        &mut self,
        core: &Arc<TableCore>,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let context = self.context();
        let (engine, state) = (&*context.engine, &mut **context.state.borrow_mut());
        engine.check_writable()?;
        // Before hints: a table of another database has other leaves.
        let core = engine.table_to_write(core)?;
        let max = engine.settings.transaction_bytes_max;
        let needed = key.len() + value.map_or(0, <[u8]>::len) + redo::OVERHEAD_MAX;
        if state.writes.bytes() + needed > max {
            return Err(Error::TransactionTooLarge { max });
        }
        let hash = core.hash(key);
        engine
            .locks
            .prefetch_for_write(engine.locks.bucket_of(hash));
        let table = state.table_index(core);
        // Hints of further writes would replace these before the commit.
        let is_near = state.writes.len() < LOCATED_MAX && engine.agent_for(core).is_none();
        let hint = if is_near {
            state.hints.approach(hash, key, table, &core.tree)
        } else {
            HintTag::NONE
        };
        engine.lock_write(state, core, key, hash)?;
        state.writes.put(hash, table, core.id, key, value);
        state.writes.set_hint(hint);
        Ok(())
    }

    /// Removes a key if `which` accepts its stored value and no other transaction holds the key's
    /// lock. Returns whether it did.
    pub(crate) fn remove_stored_if(
        &mut self,
        core: &Arc<TableCore>,
        key: &[u8],
        which: impl Fn(&[u8]) -> bool,
    ) -> Result<bool> {
        let core = self.engine().table_to_write(core)?;
        let hash = core.hash(key);
        let owner = self.state().borrow().owner;
        match self.engine().locks.try_lock(hash, owner) {
            Some(Locked::Now) => self.state().borrow_mut().locks.push(hash),
            Some(Locked::Already) => {}
            None => return Ok(false),
        }
        let found = self.take_locked(core, key, |value| value.to_bytes())?;
        if !found.is_some_and(|stored| which(&stored)) {
            return Ok(false);
        }
        self.write_stored(core, key, None)?;
        Ok(true)
    }

    /// Writes a record of a table that moves to its copy, without a lock: the transactions that change
    /// the key meanwhile say so.
    pub(crate) fn write_copy(
        &mut self,
        copy: &Arc<TableCore>,
        key: &[u8],
        found: Option<(SeqNo, Option<&[u8]>)>,
    ) -> Result<()> {
        if let Some((version, _)) = found {
            let reads = &mut self.state().borrow_mut().reads;
            reads.newest = reads.newest.max(version);
            if self.engine().settings.wants_dependencies {
                reads.locked.push(version);
            }
        }
        self.write_stored(copy, key, found.and_then(|(_, value)| value))
    }

    /// Calls `f` with the decoded value. `read` copies the stored value, if there is one.
    pub(crate) fn borrow_value<R>(
        &self,
        core: &TableCore,
        read: impl FnOnce(&mut Vec<u8>) -> Result<Option<()>>,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let now = || self.time(&mut self.state().borrow_mut());
        core.with_value(|out| Ok(read(out)?.is_some()), now, f)
    }

    /// Returns this transaction's current time for tables with timed entries.
    fn time(&self, state: &mut Context) -> u64 {
        *state.time.get_or_insert_with(|| self.engine().clock.now())
    }

    /// Sets the value of a key, whether the key exists or not. Reads nothing.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// tx.insert(&t, &1, "uno")?;
    /// tx.commit()?;
    /// assert_eq!(db.get(&t, &1)?.as_deref(), Some("uno"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::TransactionTooLarge`],
    /// [`Error::Conflict`] on a deadlock, [`Error::SelfDeadlock`], [`Error::LockTimeout`],
    /// [`Error::TableDropped`], [`Error::ForeignTable`], [`Error::Poisoned`].
    pub fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<()> {
        key.with_key_bytes(|key| {
            value.with_value_bytes(|value| self.write(&table.core, key, Some(value)))
        })
    }

    // Ending ------------------------------------------------------------------------------------

    fn into_context(mut self) -> PooledContext {
        self.context
            .take()
            .expect("only the transaction's end takes its context")
    }

    /// Commits the transaction: makes all its writes visible and durable, or none. When this
    /// returns, the writes are on the device or, with [`Durability::Buffered`] or
    /// [`Durability::None`], visible.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let commit = tx.commit()?; // on the device
    /// assert!(commit.seqno() <= db.durable_seqno());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::OutOfSpace`] and, of a [nonblocking](Transaction::set_nonblocking)
    /// transaction, [`Error::NotInMemory`], which leave no trace of the transaction;
    /// [`Error::Poisoned`] if the log failed: whether the transaction survives is then known only
    /// after reopening.
    pub fn commit(self) -> Result<Commit> {
        let options = self.options;
        let is_nonblocking = self.is_nonblocking;
        self.into_context().commit(options, is_nonblocking)
    }

    /// Commits without waiting for the device: makes the writes visible and returns a ticket for
    /// their durability.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// let ticket = tx.commit_async()?; // visible to other transactions
    /// ticket.wait()?; // on the device
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::commit`]; the ticket reports a failure to become durable.
    pub fn commit_async(self) -> Result<Ticket> {
        let options = self.options;
        let is_nonblocking = self.is_nonblocking;
        self.into_context().commit_async(options, is_nonblocking)
    }

    /// Aborts the transaction, as dropping it does.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// tx.abort();
    /// assert_eq!(db.get(&t, &1)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(self) {
        drop(self);
    }

    pub(crate) fn raw_range(
        &self,
        core: &Arc<TableCore>,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Result<RawRange<'_>> {
        let engine = self.engine();
        let core = engine.table_here(core)?;
        let mut state = self.state().borrow_mut();
        state.user.reads();
        let table = state.table_index(core);
        let slices = (
            bounds.0.as_ref().map(|b| &b[..]),
            bounds.1.as_ref().map(|b| &b[..]),
        );
        let own = state.writes.sorted_range(table, slices.0, slices.1);
        let snapshot = state.snapshot.as_ref().map(|s| s.seqno());
        let (view, tracked) = match snapshot {
            Some(seqno) => {
                state.reads.newest = state.reads.newest.max(seqno);
                (View::At(seqno), None)
            }
            None => (View::Latest, Some((&*self.context().ranges, table))),
        };
        let now = match &core.value_format {
            Some(value_format) if value_format.is_timed() => self.time(&mut state),
            _ => 0,
        };
        drop(state);
        Ok(RawRange::new(
            engine,
            core.clone(),
            (view, self.is_nonblocking),
            now,
            bounds,
            own,
            tracked,
        ))
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_LEN {
        return Err(Error::KeyTooLong {
            len: key.len(),
            max: MAX_KEY_LEN,
        });
    }
    Ok(())
}

impl Readable for Transaction {
    fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<Option<V>> {
        let found = key.with_key_bytes(|key| self.read(&table.core, key))?;
        found.map(V::from_value_bytes).transpose()
    }

    fn get_with<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let core = &table.core;
        let read = |out: &mut Vec<u8>| {
            key.with_key_bytes(|key| self.read_stored(core, key, |value| value.copy_to(out)))
        };
        self.borrow_value(core, read, f)
    }

    fn prefetch<'q, K: Key, V: Value, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<()> {
        let engine = self.engine();
        let core = engine.table_here(&table.core)?;
        if engine.agent_for(core).is_some() {
            self.want(core, keys);
            return Ok(());
        }
        let _refusal = self.refusal();
        core.prefetch(keys, |key, hint| {
            let hash = core.hash(key);
            // To write to it: a transaction locks many of the keys that it prefetches.
            let bucket = engine.locks.bucket_of(hash);
            engine.locks.prefetch_for_write(bucket);
            // Borrowed separately for each key, because the caller's key iterator may read in this
            // transaction.
            *self.state().borrow_mut().hints.of_key(hash) = hint;
        })
    }

    fn range<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<Range<'_, K, V>> {
        Ok(Range::new(
            self.raw_range(&table.core, range.into_key_bounds())?,
            table,
        ))
    }

    fn prefix<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        prefix: &(impl KeyPrefix<K> + ?Sized),
    ) -> Result<Range<'_, K, V>> {
        let bounds = prefix.with_prefix_bytes(prefix_bounds);
        Ok(Range::new(self.raw_range(&table.core, bounds)?, table))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            context.abort();
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state().borrow();
        f.debug_struct("Transaction")
            .field("writes", &state.writes.live_len())
            .field(
                "reads",
                &(state.reads.points.len() + self.context().ranges.lock().len()),
            )
            .field("locks", &state.locks.len())
            .finish_non_exhaustive()
    }
}
