//! The interface between workloads and storage engines, so that a workload runs alike on Braid and
//! on other engines.
//!
//! A [`KvEngine`] is open and shared by all threads. Each thread opens a [`Session`] and runs
//! [`Transaction`]s over ordered tables of bytes. Every engine commits durably: an acknowledged
//! transaction is on the device, whatever the engine's default is. [`peers`] lists the engines, and
//! [`open`] opens one by name. Braid is always available. The others need the crate's features: one
//! for each engine (`peer-redb`, …), or `peers` for all of them. docs/peers.md describes their
//! settings.

mod braid;
#[cfg(test)]
pub(crate) mod broken;
#[cfg(feature = "peer-fjall")]
mod fjall;
#[cfg(feature = "peer-lmdb")]
mod lmdb;
mod operations;
#[cfg(all(feature = "peer-postgres", unix))]
mod postgres;
#[cfg(feature = "peer-raft-engine")]
mod raft_engine;
#[cfg(feature = "peer-redb")]
mod redb;
#[cfg(all(feature = "peer-redis", unix))]
mod redis;
mod registry;
#[cfg(all(feature = "peer-rocksdb", peer_rocksdb))]
mod rocksdb;
#[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
mod server;
#[cfg(feature = "peer-sqlite")]
mod sqlite;
#[cfg(all(feature = "peer-wiredtiger", peer_wiredtiger))]
mod wiredtiger;

pub use self::braid::BraidEngine;
pub use self::operations::{OldState, Operations, Rows};
pub use self::registry::{PeerInfo, find, open, peers};

use crate::{BenchError, Usage};

/// A table, as its position in the list of names that the engine was opened with.
pub type TableId = usize;

/// Abilities of an engine. A workload that needs more skips the engine and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Transactions of several operations, which are atomic for other threads.
    pub transactions: bool,
    /// The value returned by [`Transaction::get_for_update`] is still the newest when the
    /// transaction commits, so no update is lost.
    pub updates: bool,
    /// Concurrent transactions behave as if they ran one after the other.
    pub serializable: bool,
    /// Reads; a bare log only writes.
    pub reads: bool,
    /// Ordered scans.
    pub scans: bool,
    /// Commits can be submitted without waiting, and are acknowledged later.
    pub in_flight: bool,
}

impl Abilities {
    /// Only durable writes.
    pub const NONE: Abilities = Abilities {
        transactions: false,
        updates: false,
        serializable: false,
        reads: false,
        scans: false,
        in_flight: false,
    };

    /// Returns the first ability in `needed` that is missing here.
    #[must_use]
    pub fn missing(self, needed: Abilities) -> Option<&'static str> {
        [
            (self.transactions, needed.transactions, "transactions"),
            (self.updates, needed.updates, "updates that are not lost"),
            (self.serializable, needed.serializable, "serializability"),
            (self.reads, needed.reads, "reads"),
            (self.scans, needed.scans, "scans"),
            (self.in_flight, needed.in_flight, "commits in flight"),
        ]
        .into_iter()
        .find(|(has, needs, _)| *needs && !*has)
        .map(|(_, _, name)| name)
    }

    /// Abilities of most embedded engines.
    pub(crate) const SERIALIZABLE: Abilities = Abilities {
        transactions: true,
        updates: true,
        serializable: true,
        reads: true,
        scans: true,
        in_flight: false,
    };
    /// Snapshots or locks that prevent lost updates, without serializability.
    pub(crate) const UPDATES: Abilities = Abilities {
        serializable: false,
        ..Abilities::SERIALIZABLE
    };
    /// Only atomic batches of writes.
    pub(crate) const BATCHES: Abilities = Abilities {
        updates: false,
        ..Abilities::UPDATES
    };
    /// Single keys and transactions of them, without order.
    pub(crate) const KEYS: Abilities = Abilities {
        scans: false,
        ..Abilities::SERIALIZABLE
    };
    /// Only a log.
    pub(crate) const LOG: Abilities = Abilities {
        reads: false,
        scans: false,
        ..Abilities::BATCHES
    };
}

/// Why a transaction did not commit.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// It conflicts with another transaction; running it again may succeed.
    #[error("conflict")]
    Conflict,
    /// Its body requested the rollback.
    #[error("rolled back")]
    RolledBack,
    /// The engine failed, which ends the run.
    #[error(transparent)]
    Failed(#[from] BenchError),
}

/// Whether a transaction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reads of one consistent state.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

impl Mode {
    /// Refuses a write in a read-only transaction.
    fn writable(self) -> Result<(), Stop> {
        match self {
            Mode::ReadWrite => Ok(()),
            Mode::ReadOnly => Err(Stop::Failed(BenchError::WriteInReadOnly)),
        }
    }
}

/// Whether a call waits for its commit to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The commit is durable when the call returns.
    Durable,
    /// The call may return with a ticket; engines without [`Abilities::in_flight`] wait all the
    /// same.
    Ticket,
}

/// How a commit was acknowledged.
#[derive(Debug)]
pub enum Acknowledgement {
    /// The transaction is durable.
    Durable,
    /// The transaction is durable once the ticket says so.
    Pending(::braid::Ticket),
}

/// Counters of an engine since it was opened; `None` for those that it does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Bytes written to the log's device, including headers and padding.
    pub log_bytes: Option<u64>,
    /// Number of durable writes or syncs of the log.
    pub flushes: Option<u64>,
    /// Number of completed checkpoints.
    pub checkpoints: Option<u64>,
    /// Number of pages read from the data file.
    pub page_reads: Option<u64>,
}

/// How an engine was opened, in words for reports.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How its commits become durable.
    pub protocol: String,
    /// Its device; `memory` if nothing reaches a device.
    pub device: String,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            protocol: "its own".into(),
            device: "file".into(),
        }
    }
}

/// An open engine.
pub trait KvEngine: Send + Sync {
    /// Returns the name on the command line and in reports.
    fn name(&self) -> &str;

    /// Returns the engine's abilities.
    fn abilities(&self) -> Abilities;

    /// Opens a handle for the calling thread.
    ///
    /// # Errors
    ///
    /// The engine's own.
    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError>;

    /// Brings the data into its state after long service: checkpointed, compacted.
    ///
    /// # Errors
    ///
    /// The engine's own.
    fn settle(&self) -> Result<(), BenchError>;

    /// Returns the counters since the engine was opened.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Returns what the engine can do next to a load; nothing by default.
    fn operations(&self) -> &dyn Operations {
        &operations::NoOperations
    }

    /// Returns how the engine was opened, for reports.
    fn setting(&self) -> Setting {
        Setting::default()
    }

    /// Returns the resources used by the processes of a server since they were started; `None` for
    /// an engine inside this process, whose use is part of this process's.
    fn server_usage(&self) -> Option<Usage> {
        None
    }
}

/// Body of a transaction, called once for each attempt.
pub type Body<'a> = dyn FnMut(&mut dyn Transaction) -> Result<(), Stop> + 'a;

/// One thread's handle of an engine.
pub trait Session {
    /// Makes one attempt: begins a transaction, runs `body`, and commits, or rolls back if `body`
    /// fails.
    ///
    /// # Errors
    ///
    /// [`Stop::Conflict`] from the engine, the error of `body`, or the engine's failure.
    fn transact(
        &mut self,
        mode: Mode,
        wait: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop>;

    /// Reads one key outside of any transaction, in the engine's cheapest way.
    ///
    /// # Errors
    /// The engine's own.
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        let mut is_there = false;
        self.transact(Mode::ReadOnly, Wait::Durable, &mut |tx| {
            is_there = tx.get(table, key, found)?;
            Ok(())
        })?;
        Ok(is_there)
    }
}

/// End of a range at which a scan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the smallest key upward.
    Ascending,
    /// From the largest key downward.
    Descending,
}

/// Visits the records of a range from the end that `order` names, until `visit` returns `false`.
fn walk<R>(
    mut range: impl DoubleEndedIterator<Item = R>,
    order: Order,
    mut visit: impl FnMut(R) -> Result<bool, Stop>,
) -> Result<(), Stop> {
    while let Some(record) = match order {
        Order::Ascending => range.next(),
        Order::Descending => range.next_back(),
    } {
        if !visit(record)? {
            break;
        }
    }
    Ok(())
}

/// A running transaction. It passes values to closures, so that no engine has to copy them.
pub trait Transaction {
    /// Calls `found` with the value of `key`; returns whether the key exists.
    ///
    /// # Errors
    /// A conflict or the engine's failure.
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop>;

    /// As [`get`](Self::get), for a value that the transaction is about to overwrite; locks the key
    /// if the engine has locks.
    ///
    /// # Errors
    /// A conflict or the engine's failure.
    fn get_for_update(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.get(table, key, found)
    }

    /// Announces the keys that the transaction will read or write next, if the engine can use that.
    ///
    /// # Errors
    /// The engine's failure.
    fn prefetch(&mut self, _table: TableId, _keys: &[&[u8]]) -> Result<(), Stop> {
        Ok(())
    }

    /// Whether each read costs the engine a message: then a transaction should announce all keys that
    /// it reads before it reads the first.
    fn reads_by_message(&self) -> bool {
        false
    }

    /// Sets the value of a key, whether or not the key exists. Fails in a read-only transaction.
    ///
    /// # Errors
    /// [`BenchError::WriteInReadOnly`], a conflict or the engine's failure.
    fn put(&mut self, _table: TableId, _key: &[u8], _value: &[u8]) -> Result<(), Stop> {
        Mode::ReadOnly.writable()
    }

    /// Removes a key, whether or not it exists. Fails in a read-only transaction.
    ///
    /// # Errors
    /// [`BenchError::WriteInReadOnly`], a conflict or the engine's failure.
    fn delete(&mut self, _table: TableId, _key: &[u8]) -> Result<(), Stop> {
        Mode::ReadOnly.writable()
    }

    /// Calls `visit` for the records with `from <= key < to` in order, until it returns `false`.
    ///
    /// # Errors
    /// A conflict or the engine's failure.
    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        order: Order,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop>;
}
