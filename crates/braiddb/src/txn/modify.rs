//! Operations that read and write in one step: on a key, with a lock, or on the keys of a range.

use std::ops::Bound;
use std::sync::Arc;

use braid_store::{Direction, ValueRef};
use bytes::Bytes;

use crate::error::Result;
use crate::schema::table::{Table, TableCore};
use crate::txn::transaction::Transaction;
use crate::types::{AsKey, AsValue, Key, KeyRange, Value};

impl Transaction {
    /// Returns the value of a key, and locks the key against other writers until this transaction
    /// ends: for a value that will be written, so that transactions on hot keys queue instead of
    /// conflicting.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let hits = db.open_table::<String, u64>("hits")?;
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

    /// Locks a key as [`Transaction::get_for_update`] does, and calls `f` with the encoded value
    /// without allocating: for a value that is inspected and rewritten.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let names = db.open_table::<u32, String>("names")?;
    /// db.transact(|tx| tx.insert(&names, &1, "one"))?;
    /// db.transact(|tx| {
    ///     let length = tx.get_for_update_with(&names, &1, |name| name.map_or(0, <[u8]>::len))?;
    ///     tx.insert(&names, &1, &"i".repeat(length))
    /// })?;
    /// assert_eq!(db.get(&names, &1)?.as_deref(), Some("iii"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn get_for_update_with<K: Key, V: Value, R>(
        &mut self,
        table: &Table<K, V>,
        key: &(impl AsKey<K> + ?Sized),
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let core = &table.core;
        let read = |out: &mut Vec<u8>| {
            key.with_key_bytes(|key| self.take_locked(core, key, |value| value.copy_to(out)))
        };
        self.borrow_value(core, read, f)
    }

    /// Locks a key as [`Transaction::get_for_update`] does, and calls `take` with its encoded value in
    /// place, as [`Transaction::get_by`] does. For callers that need only a part of it.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    #[doc(hidden)]
    #[inline(always)]
    pub fn get_for_update_by<K: Key, V: Value, R>(
        &mut self,
        table: &Table<K, V>,
        key: &[u8],
        take: impl FnMut(ValueRef<'_>) -> R,
    ) -> Result<Option<R>> {
        let core = &table.core;
        if core.value_format.is_none() {
            return self.take_locked(core, key, take);
        }
        let value = self.read_locked(core, key)?;
        Ok(value.as_ref().map(ValueRef::from).map(take))
    }

    /// Sets the value of a key and returns the previous one.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
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

    /// Inserts an entry if the key does not exist; returns whether it did.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
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

    /// Removes a key; returns whether it existed.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
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

    /// Removes all keys of a range and returns their number. Concurrent transactions that insert a
    /// key into the range conflict with this one. The keys are collected in memory; for a whole
    /// table, [`Database::drop_table`](crate::Database::drop_table) costs less.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # use braid::Readable;
    /// let days = db.open_table::<u32, String>("days")?;
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
        self.remove_where(&table.core, range.into_key_bounds(), |_, _| Ok(true))
    }

    /// Removes the entries of a range for which `keep` returns false, and returns their number;
    /// otherwise as [`Transaction::remove_range`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # use braid::Readable;
    /// let stock = db.open_table::<String, u32>("stock")?;
    /// let mut tx = db.begin();
    /// tx.insert(&stock, "bread", &3)?;
    /// tx.insert(&stock, "milk", &0)?;
    /// assert_eq!(tx.retain(&stock, .., |_, left| *left > 0)?, 1);
    /// assert!(!tx.contains_key(&stock, "milk")?);
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`crate::Readable::range`]. After an error of reading, such
    /// as [`crate::Error::Decode`], nothing is removed.
    pub fn retain<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        range: impl KeyRange<K>,
        mut keep: impl FnMut(&K, &V) -> bool,
    ) -> Result<u64> {
        self.remove_where(&table.core, range.into_key_bounds(), |key, value| {
            Ok(!keep(
                &K::from_key_bytes(key)?,
                &V::from_value_bytes(value)?,
            ))
        })
    }

    fn remove_where(
        &mut self,
        core: &Arc<TableCore>,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        mut which: impl FnMut(Bytes, Bytes) -> Result<bool>,
    ) -> Result<u64> {
        let mut keys = Vec::new();
        let mut raw = self.raw_range(core, bounds)?;
        while let Some((key, value)) = raw.next_raw(Direction::Forward).transpose()? {
            if which(key.clone(), value)? {
                keys.push(key);
            }
        }
        drop(raw);
        for key in &keys {
            self.write(core, key, None)?;
        }
        Ok(keys.len() as u64)
    }

    /// Removes the entry with the smallest key and returns it. If several transactions do this
    /// concurrently, one commits and the others conflict;
    /// [`Database::transact`](crate::Database::transact) retries them.
    ///
    /// Each call skips the tombstones of removed keys until no snapshot needs them. A long-lived
    /// queue should store its position and take the first entry of a range from there: see the
    /// repository's `crates/braiddb/examples/queue.rs`.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let jobs = db.open_table::<u64, String>("jobs")?;
    /// db.transact(|tx| {
    ///     tx.insert(&jobs, &1, "wash")?;
    ///     tx.insert(&jobs, &2, "dry")
    /// })?;
    /// let next = db.transact(|tx| tx.pop_first(&jobs))?;
    /// assert_eq!(next, Some((1, "wash".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`crate::Readable::get`].
    pub fn pop_first<K: Key, V: Value>(&mut self, table: &Table<K, V>) -> Result<Option<(K, V)>> {
        self.pop(table, Direction::Forward)
    }

    /// Removes the entry with the largest key and returns it; as [`Transaction::pop_first`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let stack = db.open_table::<u64, String>("stack")?;
    /// db.transact(|tx| {
    ///     tx.insert(&stack, &1, "plate")?;
    ///     tx.insert(&stack, &2, "bowl")
    /// })?;
    /// let top = db.transact(|tx| tx.pop_last(&stack))?;
    /// assert_eq!(top, Some((2, "bowl".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::pop_first`].
    pub fn pop_last<K: Key, V: Value>(&mut self, table: &Table<K, V>) -> Result<Option<(K, V)>> {
        self.pop(table, Direction::Reverse)
    }

    fn pop<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V>,
        end: Direction,
    ) -> Result<Option<(K, V)>> {
        let everywhere = (Bound::Unbounded, Bound::Unbounded);
        let mut raw = self.raw_range(&table.core, everywhere)?;
        let found = raw.next_raw(end).transpose()?;
        drop(raw);
        let Some((key, value)) = found else {
            return Ok(None);
        };
        let entry = (K::from_key_bytes(key.clone())?, V::from_value_bytes(value)?);
        // If another transaction writes the entry before this one locks it, this one cannot commit,
        // because the range that it read has changed.
        self.write(&table.core, &key, None)?;
        Ok(Some(entry))
    }

    /// Removes a key and returns its value.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
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

    /// Sets (`Some`) or removes (`None`) a key if its current value is `expected` (`None`: it does
    /// not exist); returns whether it did.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let leader = db.open_table::<String, u32>("leader")?;
    /// // The first caller becomes the leader.
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

    /// Replaces the value of a key by the result of `update` (`None`: the key does not exist), and
    /// returns the previous value.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// let hits = db.open_table::<String, u64>("hits")?;
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
