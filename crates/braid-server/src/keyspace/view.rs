//! What a command reads and writes through: a snapshot of the durable state, or a transaction.

use std::ops::Bound;

use braid::{Range, Readable, Snapshot, Table, Ticket, Transaction, ValueRef};
use bytes::Bytes;

/// A table of the keyspace.
pub(crate) type Bucket = Table<Bytes, Bytes>;

/// Reads and writes of one command or MULTI.
#[derive(Debug)]
pub(crate) enum View {
    /// The durable state: an answer from it cannot vanish in a crash.
    Durable(Snapshot),
    /// A transaction, whose ticket covers what it read, too.
    Transaction(Box<Transaction>),
}

impl View {
    /// Sets whether reads fail instead of waiting for the medium.
    pub(crate) fn set_nonblocking(&mut self, is_nonblocking: bool) {
        match self {
            View::Durable(snapshot) => snapshot.set_nonblocking(is_nonblocking),
            View::Transaction(tx) => tx.set_nonblocking(is_nonblocking),
        }
    }

    pub(crate) fn get(&self, table: &Bucket, key: &[u8]) -> braid::Result<Option<Bytes>> {
        match self {
            View::Durable(snapshot) => snapshot.get(table, key),
            View::Transaction(tx) => tx.get(table, key),
        }
    }

    /// Reads the beginning of a value to `head`, as [`View::lock`] if `locks`, otherwise as
    /// [`View::get`]. Returns how many bytes.
    #[inline]
    pub(crate) fn read_head(
        &mut self,
        table: &Bucket,
        key: &[u8],
        locks: bool,
        head: &mut [u8],
    ) -> braid::Result<Option<usize>> {
        let copy = |value: ValueRef<'_>| value.copy_head(head);
        match self {
            View::Durable(snapshot) => snapshot.get_by(table, key, copy),
            View::Transaction(tx) if locks => tx.get_for_update_by(table, key, copy),
            View::Transaction(tx) => tx.get_by(table, key, copy),
        }
    }

    /// Reads a value that the transaction is about to change: transactions on it queue instead of
    /// conflicting.
    pub(crate) fn lock(&mut self, table: &Bucket, key: &[u8]) -> braid::Result<Option<Bytes>> {
        match self {
            View::Durable(snapshot) => snapshot.get(table, key),
            View::Transaction(tx) => tx.get_for_update(table, key),
        }
    }

    /// Brings the entries of several keys into memory and into the processor's caches, all at the
    /// same time.
    pub(crate) fn prefetch<'k>(
        &self,
        table: &Bucket,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> braid::Result<()> {
        match self {
            View::Durable(snapshot) => snapshot.prefetch(table, keys),
            View::Transaction(tx) => tx.prefetch(table, keys),
        }
    }

    pub(crate) fn range(
        &self,
        table: &Bucket,
        from: Bound<Vec<u8>>,
        to: Bound<Vec<u8>>,
    ) -> braid::Result<Range<'_, Bytes, Bytes>> {
        match self {
            View::Durable(snapshot) => snapshot.range(table, (from, to)),
            View::Transaction(tx) => tx.range(table, (from, to)),
        }
    }

    /// Returns the entries whose key begins with `prefix`, from `from` on.
    pub(crate) fn prefix_from(
        &self,
        table: &Bucket,
        prefix: &[u8],
        from: Vec<u8>,
    ) -> braid::Result<Range<'_, Bytes, Bytes>> {
        let (_, end) = braid::prefix_bounds(prefix);
        self.range(table, Bound::Included(from), end)
    }

    pub(crate) fn prefix(
        &self,
        table: &Bucket,
        prefix: &[u8],
    ) -> braid::Result<Range<'_, Bytes, Bytes>> {
        self.prefix_from(table, prefix, prefix.to_vec())
    }

    pub(crate) fn put(&mut self, table: &Bucket, key: &[u8], value: &[u8]) -> braid::Result<()> {
        self.transaction()?.insert(table, key, value)
    }

    /// Removes an entry; returns whether there was one.
    pub(crate) fn remove(&mut self, table: &Bucket, key: &[u8]) -> braid::Result<bool> {
        self.transaction()?.remove(table, key)
    }

    /// Returns the transaction. Commands that change data are marked as such in the table of
    /// commands, and run in one; a wrong mark must not write to a snapshot.
    pub(crate) fn transaction(&mut self) -> braid::Result<&mut Transaction> {
        match self {
            View::Transaction(tx) => Ok(tx),
            View::Durable(_) => Err(braid::Error::OpenedReadOnly),
        }
    }

    /// Commits a transaction; returns a ticket for the durability of everything read and written.
    pub(super) fn commit(self) -> braid::Result<Ticket> {
        match self {
            View::Transaction(tx) => tx.commit_async(),
            View::Durable(_) => Err(braid::Error::OpenedReadOnly),
        }
    }
}
