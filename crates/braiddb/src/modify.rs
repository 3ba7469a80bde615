//! Reading a key, with a lock, and writing it, in one step.

use braid_store::Direction;

use crate::error::Result;
use crate::table::Table;
use crate::transaction::Transaction;
use crate::types::{AsKey, AsValue, Key, KeyRange, Value};

impl Transaction {
    /// The value of a key, locked against other writers until this transaction ends: for a value that
    /// is about to be written, so that hot keys queue instead of conflicting.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let hits = db.table::<String, u64>("hits")?;
    /// db.transact(|tx| {
    ///     let count = tx.get_for_update(&hits, "/")?.unwrap_or(0);
    ///     tx.insert(&hits, "/", &(count + 1))
    /// })?;
    /// assert_eq!(db.get(&hits, "/")?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] on a deadlock; otherwise as [`crate::Readable::get`].
    pub fn get_for_update<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<Option<V>> {
        let found = key.with_key_bytes(|key| self.read_locked(&table.core, key))?;
        found.map(V::from_value_bytes).transpose()
    }

    /// Sets the value of a key and returns the one before.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let mut tx = db.begin();
    /// assert_eq!(tx.replace(&t, &1, "one")?, None);
    /// assert_eq!(tx.replace(&t, &1, "uno")?.as_deref(), Some("one"));
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`crate::Readable::get`].
    pub fn replace<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<Option<V>> {
        let before = self.get_for_update(table, key)?;
        self.insert(table, key, value)?;
        Ok(before)
    }

    /// Sets the value of a key that is not there; says whether it did.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let mut tx = db.begin();
    /// assert!(tx.insert_if_absent(&t, &1, "one")?);
    /// assert!(!tx.insert_if_absent(&t, &1, "uno")?);
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn insert_if_absent<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<bool> {
        key.with_key_bytes(|key| {
            if self.read_locked(&table.core, key)?.is_some() {
                return Ok(false);
            }
            value.with_value_bytes(|value| self.write(&table.core, key, Some(value)))?;
            Ok(true)
        })
    }

    /// Removes a key; says whether it was there.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// assert!(tx.remove(&t, &1)?);
    /// assert!(!tx.remove(&t, &1)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<bool> {
        key.with_key_bytes(|key| {
            if self.read_locked(&table.core, key)?.is_none() {
                return Ok(false);
            }
            self.write(&table.core, key, None)?;
            Ok(true)
        })
    }

    /// Removes all keys of a range; says how many there were. Other transactions that put a key into the range
    /// meanwhile conflict with this one. The keys are gathered in memory; for a whole table,
    /// [`Database::drop_table`](crate::Database::drop_table) costs less.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # use braid::Readable;
    /// let days = db.table::<u32, String>("days")?;
    /// let mut tx = db.begin();
    /// (1..=31).try_for_each(|day| tx.insert(&days, &day, "some day"))?;
    /// assert_eq!(tx.remove_range(&days, 8..=14)?, 7);
    /// assert_eq!(tx.iter(&days)?.count(), 24);
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`crate::Readable::range`].
    pub fn remove_range<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<u64> {
        let mut raw = self.raw_range(&table.core, range.into_key_bounds())?;
        let entries = std::iter::from_fn(|| raw.next_raw(Direction::Forward));
        let keys = entries.map(|entry| entry.map(|(key, _)| key));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        drop(raw);
        for key in &keys {
            self.write(&table.core, key, None)?;
        }
        Ok(keys.len() as u64)
    }

    /// Removes a key and returns its value.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let mut tx = db.begin();
    /// tx.insert(&t, &1, "one")?;
    /// assert_eq!(tx.take(&t, &1)?.as_deref(), Some("one"));
    /// assert_eq!(tx.take(&t, &1)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`crate::Readable::get`].
    pub fn take<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
    ) -> Result<Option<V>> {
        key.with_key_bytes(|key| {
            let Some(before) = self.read_locked(&table.core, key)? else {
                return Ok(None);
            };
            self.write(&table.core, key, None)?;
            V::from_value_bytes(before).map(Some)
        })
    }

    /// Sets (`Some`) or removes (`None`) a key if its present value is `expected` (`None`: it is not
    /// there); says whether it did.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let leader = db.table::<String, u32>("leader")?;
    /// // Whoever comes first.
    /// assert!(db.transact(|tx| tx.compare_and_set(&leader, "shard 1", None, Some(&7)))?);
    /// assert!(!db.transact(|tx| tx.compare_and_set(&leader, "shard 1", None, Some(&8)))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn compare_and_set<K: Key, V: Value + AsValue<V>>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        expected: Option<&V>,
        new: Option<&V>,
    ) -> Result<bool> {
        key.with_key_bytes(|key| {
            let present = self.read_locked(&table.core, key)?;
            let equal = match (&present, expected) {
                (None, None) => true,
                (Some(present), Some(expected)) => expected.with_value_bytes(|e| e == &present[..]),
                _ => false,
            };
            if !equal {
                return Ok(false);
            }
            match new {
                Some(new) => {
                    new.with_value_bytes(|new| self.write(&table.core, key, Some(new)))?;
                }
                None if present.is_some() => self.write(&table.core, key, None)?,
                None => {}
            }
            Ok(true)
        })
    }

    /// Replaces the value of a key by what `update` makes of it (`None`: not there) and returns the value
    /// before.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(std::sync::Arc::new(braid::MemoryDevice::new()))?;
    /// # let t: braid::Table<u32, String> = db.table("t")?;
    /// let hits = db.table::<String, u64>("hits")?;
    /// for before in [None, Some(1), Some(2)] {
    ///     let found = db.transact(|tx| tx.fetch_update(&hits, "/", |n| Some(n.unwrap_or(0) + 1)))?;
    ///     assert_eq!(found, before);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`crate::Readable::get`].
    pub fn fetch_update<K: Key, V: Value + AsValue<V> + Clone>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        update: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<Option<V>> {
        key.with_key_bytes(|key| {
            let before = self.read_locked(&table.core, key)?;
            let before = before.map(V::from_value_bytes).transpose()?;
            match update(before.clone()) {
                Some(new) => new.with_value_bytes(|new| self.write(&table.core, key, Some(new)))?,
                None if before.is_some() => self.write(&table.core, key, None)?,
                None => {}
            }
            Ok(before)
        })
    }
}
