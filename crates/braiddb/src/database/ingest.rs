//! Ingest: adding sorted entries to a table that may have others.
//!
//! A bulk load builds a tree without the log; it cannot add to a tree that other transactions are
//! changing. So an ingest is one logged transaction, and differs from a loop of inserts in two
//! ways. The caller's iterator runs to its end, and its order is checked, before the transaction
//! begins, so faulty input writes nothing and no lock waits for the iterator. And a conflict
//! repeats the transaction without the iterator. Sorted keys make the writes fast: consecutive
//! writes are in the same leaf.

use super::Database;
use crate::error::{Error, Result};
use crate::format::redo;
use crate::schema::table::Table;
use crate::txn::commit::Commit;
use crate::txn::transaction::check_key;
use crate::types::{AsKey, AsValue, Key, Value};

/// Encoded entries in key order, in one buffer.
#[derive(Default)]
struct Sorted {
    bytes: Vec<u8>,
    /// The end of each key and each value in the buffer.
    ends: Vec<(usize, usize)>,
}

impl Sorted {
    fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if let Some((last, _)) = self.iter().next_back()
            && key <= last
            && !braid_rt::mutant!("ingest_any_order")
        {
            return Err(Error::OutOfOrder {
                key: key.escape_ascii().to_string(),
                before: last.escape_ascii().to_string(),
            });
        }
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
        Ok(())
    }

    /// Returns the maximum number of bytes that the entries take in a transaction.
    fn size(&self) -> usize {
        self.bytes.len() + self.ends.len() * redo::OVERHEAD_MAX
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        let start_of = |i: usize| match i.checked_sub(1) {
            Some(before) => self.ends[before].1,
            None => 0,
        };
        let entry = move |(i, &(key_end, end)): (usize, &(usize, usize))| {
            (&self.bytes[start_of(i)..key_end], &self.bytes[key_end..end])
        };
        self.ends.iter().enumerate().map(entry)
    }
}

impl Database {
    /// Adds entries in ascending order of their encoded keys to a table, which may have others: all
    /// of them or none, in one durable transaction. An entry whose key exists gets the new value.
    ///
    /// The iterator runs to its end before the transaction begins, so an error in the order changes
    /// nothing, and no lock is held meanwhile. The transaction is logged like any other: change
    /// feeds and archives include its entries. It needs memory for all of them, and their total
    /// size is limited by
    /// [`Builder::transaction_bytes_max`](crate::Builder::transaction_bytes_max); load more in
    /// several calls, or load a new table with [`Database::bulk_load`], which is not logged.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// use braid::Error;
    /// # let db = braid::Database::in_memory()?;
    /// let numbers = db.open_table::<u32, String>("numbers")?;
    /// db.transact(|tx| tx.insert(&numbers, &2, "zwei"))?;
    /// db.ingest(&numbers, [(1, "one"), (2, "two"), (3, "three")])?;
    /// assert_eq!(db.get(&numbers, &2)?.as_deref(), Some("two"));
    /// let unsorted = db.ingest(&numbers, [(4, "four"), (9, "nine"), (5, "five")]);
    /// assert!(matches!(unsorted, Err(Error::OutOfOrder { .. })));
    /// assert_eq!(db.get(&numbers, &4)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfOrder`], [`Error::KeyTooLong`], [`Error::ValueTooLong`] or
    /// [`Error::TransactionTooLarge`], found before anything is written; otherwise as
    /// [`Database::transact`].
    pub fn ingest<K: Key, V: Value, Q: AsKey<K>, W: AsValue<V>>(
        &self,
        table: &Table<K, V>,
        entries: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<Commit> {
        let (engine, core) = (self.engine(), &table.core);
        engine.check_writable()?;
        engine.table_to_write(core)?;
        let max = engine.settings.transaction_bytes_max;
        let mut sorted = Sorted::default();
        for (key, value) in entries {
            key.with_key_bytes(|key| {
                check_key(key)?;
                value.with_value_bytes(|value| {
                    core.check_value_len(value.len())?;
                    sorted.push(key, value)
                })
            })?;
            if sorted.size() > max {
                return Err(Error::TransactionTooLarge { max });
            }
        }
        self.retry(|mut tx| {
            let mut entries = sorted.iter();
            entries.try_for_each(|(key, value)| tx.write(core, key, Some(value)))?;
            tx.commit()
        })
    }
}
