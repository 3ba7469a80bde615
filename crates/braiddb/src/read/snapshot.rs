//! Reading: the trait that transactions and snapshots share, and the snapshot itself.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use braid_log::SeqNo;
use braid_store::{LoadRefusal, RecordMeta, StoreError, TOGETHER, ValueRef};

use crate::base::written::Written;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::mvcc::registry::Registration;
use crate::mvcc::versions::OldValue;
use crate::read::named::NamedHold;
use crate::read::scan::{Range, RawRange, View};
use crate::schema::table::{Table, TableCore};
use crate::types::tuples::KeyPrefix;
use crate::types::{AsKey, Key, KeyRange, Value, prefix_bounds};

/// Reads of tables, common to [`crate::Transaction`] and [`Snapshot`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
/// use braid::{Readable, Result, Table};
/// fn count(reader: &impl Readable, table: &Table<u32, String>) -> Result<usize> {
///     Ok(reader.iter(table)?.count())
/// }
/// assert_eq!(count(&db.snapshot(), &t)?, count(&db.begin(), &t)?);
/// # Ok(())
/// # }
/// ```
pub trait Readable {
    /// Returns the value of a key.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// assert_eq!(db.snapshot().get(&t, &1)?.as_deref(), Some("one"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`], [`crate::Error::ForeignTable`], [`crate::Error::Decode`],
    /// [`crate::Error::SnapshotTooOld`], or those of reading a page.
    fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<Option<V>>;

    /// Calls `f` with the encoded value of a key, without decoding it.
    ///
    /// [`Readable::get`] makes one allocation, for the value's bytes, which the value may share
    /// ([`Bytes`]) or copy again. This makes none: it copies the bytes to a reused buffer of the
    /// thread. (Values above 2,000 bytes, which have pages of their own, and those of a table with
    /// [`TableOptions`](crate::TableOptions) are assembled first, with an allocation.) Pages are
    /// never read in place, because concurrent writers may change them.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::{Bytes, Readable, Table};
    /// # let db = braid::Database::in_memory()?;
    /// let files: Table<String, Bytes> = db.open_table("files")?;
    /// db.transact(|tx| tx.insert(&files, "a.txt", b"some text"))?;
    /// let snapshot = db.snapshot();
    /// let len = snapshot.get_with(&files, "a.txt", |bytes| bytes.map_or(0, <[u8]>::len))?;
    /// assert_eq!(len, 9);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`], but for [`crate::Error::Decode`].
    fn get_with<K: Key, V: Value, R>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R>;

    /// Returns whether a key exists.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// assert!(db.snapshot().contains_key(&t, &1)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn contains_key<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<bool> {
        self.get_with(table, key, |value| value.is_some())
    }

    /// Returns the values of several keys, in the order of the keys.
    ///
    /// Faster than a [`Readable::get`] for each key: device reads and cache misses of the keys
    /// overlap (see [`Readable::prefetch`]).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// let found = db.snapshot().get_many(&t, &[2, 3, 1])?;
    /// assert_eq!(found, [Some("two".to_owned()), None, Some("one".to_owned())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn get_many<'q, K: Key, V: Value, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<Option<V>>> {
        let keys: Vec<&Q> = keys.into_iter().collect();
        let mut values = Vec::with_capacity(keys.len());
        // In chunks, so that prefetched pages are still in memory when their keys are read.
        for keys in keys.chunks(TOGETHER) {
            self.prefetch(table, keys.iter().copied())?;
            for &key in keys {
                values.push(self.get(table, key)?);
            }
        }
        Ok(values)
    }

    /// Loads pages that reading or writing these keys will need: pages that are not in memory are
    /// read in batches of 16; of the others, the parts that a search needs are prefetched into the
    /// processor's caches.
    ///
    /// A hint: it changes nothing, is not validated as a read of the transaction, and leaves pages
    /// that it cannot load to the operation that needs them. Useful for distant keys in a table
    /// that is larger than the caches, and even more in one that is larger than the pool. Otherwise
    /// it costs about as much as reading the keys.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::{Readable, Table};
    /// let stock: Table<u32, u32> = db.open_table("stock")?;
    /// # db.transact(|tx| (0..100).try_for_each(|item| tx.insert(&stock, &item, &10)))?;
    /// let order = [17, 4, 99];
    /// db.transact(|tx| {
    ///     tx.prefetch(&stock, &order)?;
    ///     for item in &order {
    ///         tx.fetch_update(&stock, item, |left| left.map(|left| left - 1))?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # assert_eq!(db.get(&stock, &99)?, Some(9));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`], [`crate::Error::ForeignTable`], [`crate::Error::Closed`];
    /// [`crate::Error::NotInMemory`] of a [nonblocking](Snapshot::set_nonblocking) snapshot or transaction.
    fn prefetch<'q, K: Key, V: Value, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<()>;

    /// Returns an iterator over the entries of a range of keys, in key order, from both ends.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// let snapshot = db.snapshot();
    /// for entry in snapshot.range(&t, 1..=2)?.rev() {
    ///     let (key, value) = entry?;
    ///     println!("{key}: {value}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`] or [`crate::Error::ForeignTable`]; the iterator's items carry
    /// errors of reading.
    fn range<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<Range<'_, K, V>>;

    /// Returns an iterator over the entries whose encoded keys begin with `prefix`; for a tuple,
    /// those with these first parts.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::{Readable, Table};
    /// let files: Table<String, u64> = db.open_table("files")?;
    /// db.transact(|tx| {
    ///     tx.insert(&files, "src/lib.rs", &100)?;
    ///     tx.insert(&files, "tests/all.rs", &200)
    /// })?;
    /// assert_eq!(db.snapshot().prefix(&files, "src/")?.count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::range`].
    fn prefix<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        prefix: &(impl KeyPrefix<K> + ?Sized),
    ) -> Result<Range<'_, K, V>>;

    /// Returns an iterator over all entries of a table, in key order.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// assert_eq!(db.snapshot().iter(&t)?.count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::range`].
    fn iter<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Range<'_, K, V>> {
        self.range(table, ..)
    }

    /// Returns the entry with the smallest key.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// assert_eq!(db.snapshot().first(&t)?, Some((1, "one".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn first<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Option<(K, V)>> {
        self.iter(table)?.next().transpose()
    }

    /// Returns the entry with the largest key.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// assert_eq!(db.snapshot().last(&t)?, Some((2, "two".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn last<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Option<(K, V)>> {
        self.iter(table)?.next_back().transpose()
    }

    /// Counts the entries of a table one by one, which takes as long as reading all of them; a
    /// transaction that does so conflicts with every concurrent insertion and removal.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
    /// use braid::Readable;
    /// assert_eq!(db.snapshot().len(&t)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`], but for [`crate::Error::Decode`].
    fn len<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<u64> {
        self.iter(table)?.count_entries()
    }

    /// Returns whether a table is empty.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// use braid::Readable;
    /// let new: braid::Table<u32, String> = db.open_table("new")?;
    /// assert!(db.snapshot().is_empty(&new)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn is_empty<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<bool> {
        Ok(self.first(table)?.is_none())
    }
}

/// Consistent, read-only view of the database: exactly the transactions that were durable when it
/// was taken, in their serial order (I4).
///
/// A snapshot never blocks a writer, is never blocked by one, and never fails with a conflict.
/// While it exists, overwritten values stay in memory; those above 2,000 bytes stay in pages, so
/// the data file may grow. With [`Builder::max_version_bytes`](crate::Builder::max_version_bytes),
/// Braid ends snapshots that need too much space: then reads fail with
/// [`crate::Error::SnapshotTooOld`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let t: braid::Table<u32, String> = db.open_table("t")?;
/// # db.transact(|tx| { tx.insert(&t, &1, "one")?; tx.insert(&t, &2, "two") })?;
/// use braid::Readable;
/// let snapshot = db.snapshot();
/// db.transact(|tx| tx.remove(&t, &1))?;
/// assert!(snapshot.contains_key(&t, &1)? && !db.snapshot().contains_key(&t, &1)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Snapshot {
    engine: Arc<Engine>,
    hold: Hold,
    /// Whether reads fail that would wait for the medium.
    is_nonblocking: bool,
    /// Keeps a read-only state open, see [`Database::refresh`](crate::Database::refresh).
    _open: Option<Arc<dyn Any + Send + Sync>>,
}

/// The registration that retains the old versions a snapshot needs.
#[derive(Debug)]
enum Hold {
    Own(Registration, OnceLock<u64>),
    Named(Arc<NamedHold>),
}

impl Snapshot {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let hold = Hold::Own(engine.open_snapshot(), OnceLock::new());
        Self {
            engine,
            hold,
            is_nonblocking: false,
            _open: None,
        }
    }

    pub(crate) fn named(engine: Arc<Engine>, hold: Arc<NamedHold>) -> Self {
        let hold = Hold::Named(hold);
        Self {
            engine,
            hold,
            is_nonblocking: false,
            _open: None,
        }
    }

    pub(crate) fn keeping_open(self, handle: Arc<dyn Any + Send + Sync>) -> Self {
        let mut this = self;
        this._open = Some(handle);
        this
    }

    /// Sets whether reads fail instead of waiting for the medium. By default they wait.
    ///
    /// A read of a nonblocking snapshot that needs a page which is not in memory fails with
    /// [`Error::NotInMemory`]. For programs in which a thread serves many clients: it lets another thread
    /// [load the pages](crate::Database::load_pages), and tries again; several times, because only a page
    /// that was read shows which one is next. Or it lets another thread read the same with an ordinary snapshot.
    /// [`Readable::prefetch`] of several keys fails with what all of them need next. Pages that are
    /// read in place, in persistent memory or by an agent, count as in memory.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// use braid::{Error, Readable};
    /// let mut snapshot = db.snapshot();
    /// snapshot.set_nonblocking(true);
    /// let found = loop {
    ///     match snapshot.get(&t, &1) {
    ///         Err(Error::NotInMemory(pages)) => {
    ///             std::thread::scope(|scope| scope.spawn(|| db.load_pages(&pages)).join().unwrap())?;
    ///         }
    ///         found => break found?,
    ///     }
    /// };
    /// # assert_eq!(found, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nonblocking(&mut self, is_nonblocking: bool) {
        self.is_nonblocking = is_nonblocking;
    }

    /// Refuses to load pages while the result exists, if the snapshot is nonblocking.
    #[inline]
    fn refusal(&self) -> Option<LoadRefusal> {
        self.is_nonblocking.then(LoadRefusal::new)
    }

    /// Returns the sequence number of the newest visible transaction.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let (first, second) = (db.snapshot(), db.snapshot());
    /// assert!(first.seqno() <= second.seqno());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seqno(&self) -> u64 {
        self.at().get()
    }

    /// Returns the sequence number of the newest visible transaction.
    fn at(&self) -> SeqNo {
        match &self.hold {
            Hold::Own(registration, _) => registration.seqno(),
            Hold::Named(named) => named.seqno(),
        }
    }

    /// Returns the snapshot's current time for tables with timed entries; the first call fixes the
    /// time.
    fn time(&self) -> u64 {
        let time = match &self.hold {
            Hold::Own(_, time) => time,
            Hold::Named(named) => &named.time,
        };
        *time.get_or_init(|| self.engine.clock.now())
    }

    fn read(&self, core: &Arc<TableCore>, key: &[u8]) -> Result<Option<Bytes>> {
        let stored = self.read_stored(core, key, |value| value.to_bytes())?;
        core.open(stored, || self.time())
    }

    fn read_stored<T>(
        &self,
        core: &Arc<TableCore>,
        key: &[u8],
        take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        let core = self.engine.table_here(core)?;
        let _refusal = self.refusal();
        self.engine.read_at(core, key, self.at(), take)
    }

    /// Calls `take` with a key's encoded value in place and returns the result. Concurrent writers
    /// may change the value during a call; then `take` is called again, and only the last result
    /// counts. For bindings to other languages, which have their own memory for a value.
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
                || self.time(),
                take,
            ),
        }
    }

    fn raw_range(
        &self,
        core: &Arc<TableCore>,
        bounds: (std::ops::Bound<Vec<u8>>, std::ops::Bound<Vec<u8>>),
    ) -> Result<RawRange<'_>> {
        let core = self.engine.table_here(core)?;
        let view = View::At(self.at());
        let now = match &core.value_format {
            Some(value_format) if value_format.is_timed() => self.time(),
            _ => 0,
        };
        Ok(RawRange::new(
            &self.engine,
            core.clone(),
            (view, self.is_nonblocking),
            now,
            bounds,
            Vec::new(),
            None,
        ))
    }
}

impl Readable for Snapshot {
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
            let found =
                key.with_key_bytes(|key| self.read_stored(core, key, |value| value.copy_to(out)));
            Ok(found?.is_some())
        };
        core.with_value(read, || self.time(), f)
    }

    fn prefetch<'q, K: Key, V: Value, Q: AsKey<K> + ?Sized + 'q>(
        &self,
        table: &Table<K, V>,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<()> {
        let core = self.engine.table_here(&table.core)?;
        if self.engine.agent_for(core).is_some() {
            return Ok(());
        }
        let _refusal = self.refusal();
        core.prefetch(keys, |_, _| {})
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

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Hold::Own(registration, _) = &self.hold
            && !self.engine.is_inherited()
        {
            self.engine.snapshots.close(registration);
        }
    }
}

impl Engine {
    /// Calls `take` with a key's stored value at the sequence number of a registered snapshot.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], and those of reading a page.
    pub(crate) fn read_at<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        seqno: SeqNo,
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        if braid_rt::mutant!("check_snapshots_before_reading") {
            self.check_not_ended(seqno)?;
            return self.read_unchecked(table, key, seqno, take);
        }
        let found = self.read_unchecked(table, key, seqno, &mut take);
        // Also after an error: pages of a large value may have been freed under the reader.
        self.check_not_ended(seqno)?;
        // After the read: the table may have moved meanwhile, and its old tree may be empty.
        match table.replaced_by(seqno) {
            None => found,
            Some(successor) => self.read_moved(successor, key, seqno, &mut take),
        }
    }

    /// As [`Engine::read_at`], of a table that has moved.
    #[cold]
    #[inline(never)]
    fn read_moved<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        seqno: SeqNo,
        take: &mut dyn FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        self.read_at(table, key, seqno, take)
    }

    /// As [`Engine::read_at`], of a snapshot that may have ended: then the result means nothing.
    #[inline(always)]
    fn read_unchecked<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        seqno: SeqNo,
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        if seqno < table.since() {
            return self.read_before(table, key, seqno, take);
        }
        let is_visible = |meta: RecordMeta| meta.seqno() <= seqno;
        let found = self.read_up_to(table, key, seqno, &mut take)?;
        match found {
            // The key was first written after the snapshot, or never.
            None => Ok(None),
            Some((meta, value)) if is_visible(meta) => Ok(value),
            Some(_) => self.read_old(table, key, seqno, take),
        }
    }

    /// As [`Engine::read_unchecked`], of a snapshot from before the table was loaded or moved.
    #[cold]
    #[inline(never)]
    fn read_before<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        seqno: SeqNo,
        take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        let before = table.predecessor();
        match before.and_then(|before| before.as_of(seqno)) {
            None => Ok(None),
            Some(before) => self.read_unchecked(&before, key, seqno, take),
        }
    }

    /// Calls `take` with a key's stored value at the sequence number of a registered snapshot, if
    /// that value is an old version. If the snapshot has ended, the result means nothing.
    pub(crate) fn read_old<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        seqno: SeqNo,
        take: impl FnOnce(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        let bucket = self.locks.bucket_of(table.hash(key));
        let chain = self.locks.versions(bucket).lock();
        let large = match chain.get(table.id, key, seqno) {
            None => return Ok(None),
            Some(OldValue::Bytes(bytes)) => return Ok(Some(take(ValueRef::from(bytes)))),
            Some(OldValue::Large(large)) => large.clone(),
        };
        // The snapshot retains the value's pages, so they can be read without the lock.
        drop(chain);
        let value = table.tree.read_detached(&large)?;
        Ok(Some(take(ValueRef::from(&value))))
    }

    /// Calls `take` with a key's stored value at the visible seqno. Registers a snapshot only if
    /// the newest version is newer, or the table has moved meanwhile.
    pub(crate) fn read_durable<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        if self.agent_for(table).is_some() {
            // The snapshot costs little next to the hand-over.
            return self.read_again(table, key, None, &mut take);
        }
        let visible_seqno = self.log.visible_seqno();
        let is_there = table.since() <= visible_seqno;
        let is_visible = move |meta: RecordMeta| meta.seqno() <= visible_seqno && is_there;
        let found = match table.tree.read(key, is_visible, &mut take) {
            // The flag is read after the tree, as in `read_at`.
            Ok(found) if !table.is_moved() => found,
            failed => return self.read_again(table, key, failed.err(), &mut take),
        };
        match found {
            None => Ok(None),
            Some((meta, value)) if is_visible(meta) => Ok(value),
            Some(_) => self.read_again(table, key, None, &mut take),
        }
    }

    /// As [`Engine::read_durable`], at a snapshot: by an agent, or after a read that failed, that found
    /// a newer version, or during which the table moved.
    #[cold]
    #[inline(never)]
    fn read_again<T>(
        &self,
        table: &TableCore,
        key: &[u8],
        failed: Option<StoreError>,
        take: &mut dyn FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<T>> {
        if let Some(error) = failed
            && !table.is_moved()
        {
            return Err(error.into());
        }
        loop {
            let registration = self.open_snapshot();
            let value = self.read_at(table, key, registration.seqno(), &mut *take);
            self.snapshots.close(&registration);
            // The caller has no snapshot: a newer one does as well.
            if !matches!(value, Err(Error::SnapshotTooOld { .. })) {
                return value;
            }
        }
    }
}
