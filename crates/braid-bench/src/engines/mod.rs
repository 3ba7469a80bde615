//! What a workload needs of a storage engine, so that it runs alike on Braid and on its peers.
//!
//! A [`KvEngine`] is open and shared by all threads; each of them takes a [`Session`] and runs
//! [`Transaction`]s over ordered tables of bytes. Every engine commits durably: an acknowledged
//! transaction is on the device, whatever the engine's own default is. [`peers`] lists the engines and
//! [`open`] opens one by name. Braid is always there; the others need the crate's features, one an engine
//! (`peer-redb`, …) or `peers` for all of them. docs/peers.md has their settings.

mod braid;
#[cfg(test)]
pub(crate) mod broken;
#[cfg(feature = "peer-fjall")]
mod fjall;
#[cfg(feature = "peer-lmdb")]
mod lmdb;
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
pub use self::registry::{PeerInfo, open, peers};

use crate::{BenchError, Usage};

/// A table, as its place in the list of names that the engine was opened with.
pub type TableId = usize;

/// What an engine can do; a workload that needs more skips it and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Transactions of several operations, which other threads see whole or not at all.
    pub transactions: bool,
    /// What [`Transaction::get_for_update`] returned is still the newest when the transaction commits, so no
    /// update of another transaction is lost.
    pub updates: bool,
    /// Concurrent transactions behave as if they ran one after the other.
    pub serializable: bool,
    /// Reads, not only writes: a bare log has none.
    pub reads: bool,
    /// Ordered scans.
    pub scans: bool,
    /// Commits can be submitted without waiting, and are acknowledged later.
    pub in_flight: bool,
}

impl Abilities {
    /// Needs or has nothing but durable writes.
    pub const NONE: Abilities = Abilities {
        transactions: false,
        updates: false,
        serializable: false,
        reads: false,
        scans: false,
        in_flight: false,
    };

    /// The first of the abilities in `needed` that is missing here.
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

    /// Those of most embedded engines.
    pub(crate) const SERIALIZABLE: Abilities = Abilities {
        transactions: true,
        updates: true,
        serializable: true,
        reads: true,
        scans: true,
        in_flight: false,
    };
    /// Snapshots or locks keep updates apart, and nothing more.
    pub(crate) const UPDATES: Abilities = Abilities {
        serializable: false,
        ..Abilities::SERIALIZABLE
    };
    /// Atomic batches of writes, and nothing more.
    pub(crate) const BATCHES: Abilities = Abilities {
        updates: false,
        ..Abilities::UPDATES
    };
    /// Single keys and transactions of them, but no order.
    pub(crate) const KEYS: Abilities = Abilities {
        scans: false,
        ..Abilities::SERIALIZABLE
    };
    /// A log alone.
    pub(crate) const LOG: Abilities = Abilities {
        reads: false,
        scans: false,
        ..Abilities::BATCHES
    };
}

/// Why a transaction did not commit.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// It met another one; the same again may succeed.
    #[error("conflict")]
    Conflict,
    /// Its own body wanted it undone.
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
    /// Refuses to write where that was not asked for.
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
    /// The call may return with a ticket; engines without [`Abilities::in_flight`] wait all the same.
    Ticket,
}

/// How a commit was acknowledged.
#[derive(Debug)]
pub enum Acknowledgement {
    /// It is durable.
    Durable,
    /// It will be once the ticket says so.
    Pending(::braid::Ticket),
}

/// What an engine has counted since it was opened; `None` is what it does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Bytes written to the log's device, headers and padding included.
    pub log_bytes: Option<u64>,
    /// Durable writes or syncs of the log.
    pub flushes: Option<u64>,
    /// Checkpoints published.
    pub checkpoints: Option<u64>,
    /// Pages read from the data file.
    pub page_reads: Option<u64>,
}

/// How an engine was opened, in words for reports.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What makes its commits durable.
    pub protocol: String,
    /// What it is stored on; `memory` if nothing reaches a device.
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
    /// The name on the command line and in reports.
    fn name(&self) -> &str;

    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// One thread's handle; made on the thread that uses it.
    ///
    /// # Errors
    /// The engine's own.
    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError>;

    /// Brings the data into the state of long service after a load: checkpointed, compacted.
    ///
    /// # Errors
    /// The engine's own.
    fn settle(&self) -> Result<(), BenchError>;

    /// What it has counted since it was opened.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// How it was opened, for reports.
    fn setting(&self) -> Setting {
        Setting::default()
    }

    /// What the processes of an engine that is a server have used since they were started; `None` for an
    /// engine inside this process, whose use is this process's.
    fn server_usage(&self) -> Option<Usage> {
        None
    }
}

/// The body of a transaction. It is called once an attempt.
pub type Body<'a> = dyn FnMut(&mut dyn Transaction) -> Result<(), Stop> + 'a;

/// One thread's way into an engine.
pub trait Session {
    /// One attempt: begins a transaction, runs `body`, and commits, or undoes everything if `body` fails.
    ///
    /// # Errors
    /// [`Stop::Conflict`] from the engine, what `body` returned, or the engine's failure.
    fn transact(
        &mut self,
        mode: Mode,
        wait: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop>;

    /// Reads one key outside of any transaction, by the engine's cheapest way.
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

/// Which end of a range a scan begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the smallest key up.
    Ascending,
    /// From the largest key down.
    Descending,
}

/// Visits the records of a range from the end that `order` names, until `visit` wants no more.
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

/// A running transaction. Values are lent to closures, so that no engine has to copy them.
pub trait Transaction {
    /// Calls `found` with the value of `key`; returns whether there is one.
    ///
    /// # Errors
    /// A conflict or the engine's failure.
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop>;

    /// [`get`](Self::get) of what the transaction is about to overwrite, locked where the engine locks.
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

    /// Tells which keys are going to be read or written next, if the engine wants to know.
    ///
    /// # Errors
    /// The engine's failure.
    fn prefetch(&mut self, _table: TableId, _keys: &[&[u8]]) -> Result<(), Stop> {
        Ok(())
    }

    /// Writes a value, whether or not there was one. A transaction that has no way to write refuses.
    ///
    /// # Errors
    /// [`BenchError::WriteInReadOnly`], a conflict or the engine's failure.
    fn put(&mut self, _table: TableId, _key: &[u8], _value: &[u8]) -> Result<(), Stop> {
        Mode::ReadOnly.writable()
    }

    /// Removes a key, whether or not it is there. A transaction that has no way to write refuses.
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
