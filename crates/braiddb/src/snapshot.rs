//! Reading: the trait that transactions and snapshots share, and the snapshot itself.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use braid_store::RecordMeta;

use crate::context::hash_key;
use crate::database::Inner;
use crate::error::Result;
use crate::horizon::Registration;
use crate::named::NamedHold;
use crate::scan::{Range, RawRange, View};
use crate::table::{Table, TableCore};
use crate::types::{AsKey, Key, KeyRange, Value, prefix_bounds};

/// Reading tables: what [`crate::Transaction`] and [`Snapshot`] have in common.
pub trait Readable {
    /// The value of a key.
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`], [`crate::Error::ForeignTable`], [`crate::Error::Decode`], or what
    /// reading a page can fail with.
    fn get<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<Option<V>>;

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn contains_key<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<bool>;

    /// The entries of a range of keys, in order, from both ends.
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`] or [`crate::Error::ForeignTable`]; the iterator's items carry what
    /// reading can fail with.
    fn range<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<Range<'_, K, V>>;

    /// The entries whose encoded keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`Readable::range`].
    fn prefix<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        prefix: &(impl AsKey<K> + ?Sized),
    ) -> Result<Range<'_, K, V>>;

    /// All entries of a table.
    ///
    /// # Errors
    /// As [`Readable::range`].
    fn iter<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Range<'_, K, V>> {
        self.range(table, ..)
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn first<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Option<(K, V)>> {
        self.iter(table)?.next().transpose()
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As [`Readable::get`].
    fn last<K: Key, V: Value>(&self, table: &Table<K, V>) -> Result<Option<(K, V)>> {
        self.iter(table)?.next_back().transpose()
    }
}

/// A consistent, read-only view of the database: exactly the transactions that were durable when it was
/// taken, in their serial order (I4).
///
/// It never blocks a writer, is never blocked by one, and never fails with a conflict. While it lives,
/// values that are overwritten stay in memory for it.
#[derive(Debug)]
pub struct Snapshot {
    inner: Arc<Inner>,
    hold: Hold,
}

/// What keeps the old versions that a snapshot needs.
#[derive(Debug)]
enum Hold {
    Own(Registration, OnceLock<u64>),
    Named(Arc<NamedHold>),
}

impl Snapshot {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let hold = Hold::Own(inner.open_snapshot(), OnceLock::new());
        Self { inner, hold }
    }

    pub(crate) fn named(inner: Arc<Inner>, hold: Arc<NamedHold>) -> Self {
        let hold = Hold::Named(hold);
        Self { inner, hold }
    }

    /// The number of the newest transaction that it sees.
    pub fn number(&self) -> u64 {
        match &self.hold {
            Hold::Own(registration, _) => registration.number(),
            Hold::Named(named) => named.number(),
        }
    }

    /// The time that this snapshot has for tables in which entries have one.
    fn time(&self) -> u64 {
        let time = match &self.hold {
            Hold::Own(_, time) => time,
            Hold::Named(named) => &named.time,
        };
        *time.get_or_init(|| self.inner.clock.now())
    }

    fn read(&self, core: &TableCore, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.check_table(core)?;
        let stored = self.inner.get_at(core, key, self.number())?;
        core.open(stored, || self.time())
    }

    fn raw_range(
        &self,
        core: &Arc<TableCore>,
        bounds: (std::ops::Bound<Vec<u8>>, std::ops::Bound<Vec<u8>>),
    ) -> Result<RawRange<'_>> {
        self.inner.check_table(core)?;
        let view = View::At(self.number());
        let now = match &core.codec {
            Some(codec) if codec.is_timed() => self.time(),
            _ => 0,
        };
        Ok(RawRange::new(
            &self.inner,
            core.clone(),
            view,
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

    fn contains_key<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<bool> {
        Ok(key
            .with_key_bytes(|key| self.read(&table.core, key))?
            .is_some())
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
        prefix: &(impl AsKey<K> + ?Sized),
    ) -> Result<Range<'_, K, V>> {
        let bounds = prefix.with_key_bytes(prefix_bounds);
        Ok(Range::new(self.raw_range(&table.core, bounds)?, table))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Hold::Own(registration, _) = &self.hold {
            self.inner.snapshots.close(registration);
        }
    }
}

impl Inner {
    /// The stored value of a key at a registered snapshot's number.
    pub(crate) fn get_at(
        &self,
        table: &TableCore,
        key: &[u8],
        number: u64,
    ) -> Result<Option<Bytes>> {
        if number < table.since {
            return Ok(None);
        }
        let is_visible = |meta: RecordMeta| meta.version <= number;
        let (found, _) = table.tree.get(key, is_visible)?;
        match found {
            // The key was first written after the snapshot, or never.
            None => Ok(None),
            Some(found) if is_visible(found.meta) => Ok(found.value),
            Some(_) => {
                let stripe = self.locks.stripe_of(hash_key(table.id, key));
                Ok(self
                    .locks
                    .versions(stripe)
                    .lock()
                    .get(table.id, key, number))
            }
        }
    }

    /// One read at the durable horizon.
    pub(crate) fn get_durable(&self, table: &TableCore, key: &[u8]) -> Result<Option<Bytes>> {
        let stored = self.stored_durable(table, key)?;
        table.open(stored, || self.clock.now())
    }

    /// Registers a snapshot only if the newest version is too new.
    fn stored_durable(&self, table: &TableCore, key: &[u8]) -> Result<Option<Bytes>> {
        let horizon = self.log.horizon();
        let is_visible = |meta: RecordMeta| meta.version <= horizon;
        let (found, _) = table.tree.get(key, is_visible)?;
        match found {
            None => Ok(None),
            Some(found) if is_visible(found.meta) => Ok(found.value),
            Some(_) => {
                let registration = self.open_snapshot();
                let value = self.get_at(table, key, registration.number());
                self.snapshots.close(&registration);
                value
            }
        }
    }
}
