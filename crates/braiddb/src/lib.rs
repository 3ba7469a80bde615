//! **Braid**: an embeddable transactional storage engine whose commits scale.
//!
//! Committing threads append to separate log buffers, called *strands*, and recovery merges the
//! strands into one serial order. Several threads can commit serializable transactions at the same
//! time; each is durable when `commit` returns, or when its [`Ticket`] resolves.
//!
//! ```
//! use braid::{Database, Readable, Table};
//!
//! # fn main() -> braid::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let db = Database::open(dir.path())?;
//! let events: Table<u64, String> = db.open_table("events")?;
//!
//! let mut tx = db.begin();
//! tx.insert(&events, &1, "created")?;
//! let ticket = tx.commit_async()?; // visible now, durable soon
//!
//! let mut tx = db.begin();
//! assert_eq!(tx.get(&events, &1)?.as_deref(), Some("created"));
//! tx.insert(&events, &2, "paid")?;
//! tx.commit()?; // durable, and everything before it
//! assert!(ticket.is_durable());
//!
//! let last = db.snapshot().last(&events)?;
//! assert_eq!(last, Some((2, "paid".to_owned())));
//! # Ok(())
//! # }
//! ```
//!
//! # Overview
//!
//! | task | items |
//! |---|---|
//! | opening, creating, options | [`Database::open`], [`Database::open_read_only`], [`Builder`] |
//! | an ordered map of typed keys and values | [`Table`], from [`Database::open_table`]; [`Key`] and [`Value`] for your own types |
//! | atomic writes | [`Transaction`], from [`Database::begin`] or [`Database::transact`], which retries after conflicts |
//! | reading a consistent state | [`Snapshot`], from [`Database::snapshot`]; by name, [`Database::create_snapshot`] |
//! | reading one key | [`Database::get`]; without an allocation, [`Database::get_with`] |
//! | reads of transactions and snapshots | [`Readable`]: `get`, `range`, `prefix`, `first`, `last`, `len`, … |
//! | read-modify-write | [`fetch_update`](Transaction::fetch_update), [`compare_and_set`](Transaction::compare_and_set), [`insert_if_absent`](Transaction::insert_if_absent), [`get_for_update`](Transaction::get_for_update) |
//! | removing many entries | [`remove_range`](Transaction::remove_range), [`retain`](Transaction::retain); from an end, [`pop_first`](Transaction::pop_first), [`pop_last`](Transaction::pop_last) |
//! | rolling back a part of a transaction | [`Transaction::savepoint`] |
//! | committing without waiting for the device | [`Transaction::commit_async`] and its [`Ticket`], which is also a future; [`Durability`] |
//! | loading sorted data | [`Database::bulk_load`], [`Database::ingest`] |
//! | compressed values, entries with a time to live (TTL) | [`TableOptions`], with [`Database::open_table_with`] |
//! | monitoring | [`Database::stats`], [`Database::health`], [`Builder::on_health_change`] |
//! | following committed changes | [`Database::changes`], [`Feed`](changes::Feed) |
//! | backups and the archive of the log | [`Database::backup`], [`restore`](backup::restore()), [`Builder::archive`] |
//! | checking and repairing | [`offline`]: `verify`, `dump`, `salvage`, `upgrade` |
//!
//! Handles ([`Database`], [`Table`]) are cheap to clone, can be sent to any thread, and borrow
//! nothing; only a [`Range`] borrows the transaction or snapshot that it reads. A transaction is
//! used by one thread at a time.
//!
//! The examples in the repository's `crates/braiddb/examples` are a bank, a queue, a secondary
//! index, a time series, and asynchronous commits.
//!
//! # Guarantees of a transaction
//!
//! A transaction is atomic. Serializable transactions (the default) behave as if they had run one
//! after the other; a transaction that cannot be serialized fails with [`Error::Conflict`] and
//! leaves no trace. When [`commit`](Transaction::commit) returns, or the ticket resolves, the
//! transaction is on the device, and so is everything that it has read and all transactions before
//! it; weaker levels are opt-in, see [`Durability`]. After a failed write or sync nothing more is
//! written ([`Error::Poisoned`]), reads continue, and reopening the database recovers every
//! acknowledged transaction.
//!
//! Keys are ordered by their encoded bytes: numbers by value, strings by their UTF-8 bytes, tuples
//! part by part.
//!
//! # Errors
//!
//! All operations fail with one type, [`Error`]. Invalid input is detected before anything is
//! written ([`Error::KeyTooLong`], [`Error::TableTypeMismatch`], …); [`Error::is_retryable`]
//! returns whether a retry can succeed.
//!
//! # Limits and defaults
//!
//! | what | limit, or default | more |
//! |---|---|---|
//! | key | 8 KiB | [`MAX_KEY_LEN`]; above 1 KiB slower |
//! | value | 128 MiB | [`MAX_VALUE_LEN`]; 9 bytes less with [`TableOptions`] |
//! | table name | 255 bytes | [`MAX_TABLE_NAME_LEN`] |
//! | writes of a transaction | 256 MiB | [`Builder::transaction_bytes_max`], 1 KiB to 1 GiB |
//! | memory for pages | 256 MiB | [`Builder::pool_bytes`], from 1 MiB |
//! | log between checkpoints | 256 MiB | [`Builder::checkpoint_log_bytes`], from 64 KiB |
//! | the whole log | no limit | [`Builder::max_log_bytes`]: 0 for none, or at least twice `checkpoint_log_bytes` |
//! | preallocated log files | 0 | [`Builder::preallocated_log_bytes`], at most `max_log_bytes` |
//! | log kept for readers of changes | 1024 MiB | [`Builder::feed_log_bytes`] |
//! | interval of writes to the archive | 1s | [`Builder::archive_interval`], any but zero |
//! | directory of the log | the database's | [`Builder::log_directory`], [`Builder::log_device`] |
//! | a log file | 32 MiB | [`Builder::segment_bytes`], 64 KiB to 1 GiB |
//! | commit protocol | glsn | [`Builder::protocol`], any at any opening |
//! | log buffers | the number of CPUs, at most 16 | [`Builder::strands`], 1 to 256 |
//! | log files written concurrently | 1; in persistent memory up to 4 | [`Builder::lanes`], 1 to `strands`, fixed at creation |
//! | log flushes in flight | 3 | [`Builder::flushes_in_flight`], 1 to 16 |
//! | commit mode of persistent memory | lazy | [`Builder::pmem_commit`] |
//! | checkpoints in persistent memory write cache lines | true | [`Builder::pmem_lines`] |
//! | pages in persistent memory are read in place | true | [`Builder::pmem_in_place`] |
//! | memory and threads are placed on memory nodes | true | [`Builder::numa`] |
//! | threads use the memory of other nodes | direct | [`Builder::remote_access`] |
//! | commits in a group | 0 | [`Builder::group_size`]; 0: a flush begins when none is in flight |
//! | an epoch of the `epoch` protocol | 40ms | [`Builder::epoch`], 10 µs to 10 s |
//! | isolation | Serializable | [`TransactionOptions::isolation`] |
//! | durability | Immediate | [`TransactionOptions::durability`] |
//!
//! Only the medium limits the sizes of tables and of the database.

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
#![cfg_attr(
    all(test, loom),
    allow(
        clippy::modulo_one,
        clippy::absurd_extreme_comparisons,
        reason = "the tables that loom explores have one place, and nobody spins"
    )
)]

mod base;
mod catalog;
mod database;
mod engine;
mod error;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod locks;
#[cfg(all(test, loom))]
mod loom_tests;
mod mvcc;
mod observe;
pub mod offline;
mod options;
mod read;
mod recovery;
mod schema;
mod services;
mod txn;
mod types;

pub use base::limits::MAX_TABLE_NAME_LEN;
pub use base::table_options::{Compression, TableOptions};
pub use braid_log::{LockRelease, PmemCommit, ProtocolKind as Protocol};
#[doc(hidden)]
pub use braid_store::ValueRef;
pub use braid_store::{MAX_KEY_LEN, MAX_VALUE_LEN, MissingPages};
pub use bytes::Bytes;
pub use database::Database;
pub use error::{ConflictKind, Error, Result};
pub use observe::health::Health;
pub use observe::stats::Stats;
pub use options::{Builder, Durability, Isolation, TransactionOptions};
pub use read::scan::Range;
pub use read::snapshot::{Readable, Snapshot};
pub use schema::table::Table;
pub use services::bulk::BulkLoader;
pub use txn::commit::{Commit, Ticket};
pub use txn::savepoint::Savepoint;
pub use txn::transaction::Transaction;
#[cfg(feature = "serde")]
pub use types::serialized::Serde;
pub use types::tuples::KeyPrefix;
pub use types::{AsKey, AsValue, Key, KeyRange, Value, prefix_bounds};

/// Backups, restoring them, and the archive of the log.
///
/// [`Database::backup`] and [`Database::backup_options`] make backups; [`Builder::archive`] keeps
/// the log after them. [`restore`](backup::restore) and [`Restore`](backup::Restore) create a
/// database from both.
pub mod backup {
    pub use crate::error::BackupError;
    pub use crate::offline::restore::{Restore, RestoreReport, restore};
    pub use crate::services::archive::Until;
    pub use crate::services::backup::{Backup, BackupInfo, BackupProgress, BackupReport, info};
}

/// Committed changes in their order: [`Database::changes`] and [`Database::feed`].
pub mod changes {
    pub use crate::base::position::Position;
    pub use crate::services::changes::{Change, ChangeSet, Changes, Feed};
}

/// Tablespaces: [`Database::create_tablespace`].
pub mod tablespace {
    pub use crate::base::remote_access::RemoteAccess;
    #[doc(hidden)]
    pub use crate::base::remote_access::{AgentHook, AgentWork};
    pub use crate::error::TablespaceError;
    pub use crate::options::TablespaceOptions;
    pub use crate::services::moving::MoveReport;
}

/// The media that a database can be on, and the interface for your own.
///
/// [`Builder::device`] chooses how files are accessed; [`Builder::open_on`] opens a database on any
/// [`Device`](device::Device). A device of your own implements [`Device`](device::Device) and
/// [`File`](device::File), whose documentation says what a database relies on. Their methods use
/// [`DeviceKind`](device::DeviceKind), [`Entry`](device::Entry), [`OpenMode`](device::OpenMode),
/// [`AlignedBuf`](device::AlignedBuf), [`ReadOp`](device::ReadOp) and
/// [`WriteOp`](device::WriteOp).
///
/// A device that several processes share also provides a [`ReaderTable`](device::ReaderTable), in
/// which a writer leaves its [`Announcement`](device::Announcement) and readers pin what they need:
/// [`ReaderNeeds`](device::ReaderNeeds), [`ReaderGuard`](device::ReaderGuard).
///
/// To change only the steps that make data durable, implement [`Layer`](device::Layer):
///
/// ```
/// use std::io;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// use braid::Database;
/// use braid::device::{File, Layer, LayeredDevice, MemoryDevice};
///
/// #[derive(Clone, Debug, Default)]
/// struct CountSyncs(Arc<AtomicU64>);
///
/// impl Layer for CountSyncs {
///     fn sync(&self, file: &dyn File) -> io::Result<()> {
///         self.0.fetch_add(1, Relaxed);
///         file.sync()
///     }
/// }
///
/// # fn main() -> braid::Result<()> {
/// let syncs = CountSyncs::default();
/// let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), syncs.clone());
/// let db = Database::builder().open_on(Arc::new(device))?;
/// db.checkpoint()?;
/// assert!(syncs.0.load(Relaxed) > 0);
/// # Ok(())
/// # }
/// ```
pub mod device {
    pub use braid_io::{
        AlignedBuf, Announcement, Device, DeviceChoice, DeviceKind, Entry, File, Layer,
        LayeredDevice, MemoryDevice, OpenMode, ReadOp, ReaderGuard, ReaderNeeds, ReaderTable,
        SplitDevice, WriteOp,
    };
}

/// Statistics of a database: counters, sizes, and the results of opening and compaction.
pub mod stats {
    pub use braid_log::LogStats;
    pub use braid_store::StoreStats;

    pub use crate::database::estimate::{Estimate, TableStats};
    pub use crate::observe::placement::{NodePlacement, TablespacePlacement};
    pub use crate::observe::recovery::{RecoveryProgress, RecoveryReport};
    pub use crate::observe::stats::{GateHold, TablespaceStats};
    pub use crate::services::compact::CompactReport;
}

/// Derives [`Key`](trait@crate::Key) for a struct: encoded and ordered as the tuple of its fields
/// in their order. Each field's type must be a [`Key`].
///
/// The name of the key type is that of the tuple, `(u8, u16)` in the example, so programs that use
/// the tuple, the command line and Python can open the table, too. `#[braid(name = "...")]` sets
/// another name.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// use braid::{Key, Readable};
///
/// #[derive(Debug, PartialEq, Key)]
/// struct Place {
///     floor: u8,
///     room: u16,
/// }
///
/// # let db = braid::Database::in_memory()?;
/// let people = db.open_table::<Place, String>("people")?;
/// db.transact(|tx| {
///     tx.insert(&people, &Place { floor: 2, room: 1 }, "Grace")?;
///     tx.insert(&people, &Place { floor: 1, room: 700 }, "Ada")
/// })?;
/// let first = db.snapshot().first(&people)?;
/// assert_eq!(first, Some((Place { floor: 1, room: 700 }, "Ada".to_owned())));
/// assert_eq!(people.type_names().0, "(u8, u16)");
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "derive")]
pub use braiddb_derive::Key;

/// Derives [`Value`](trait@crate::Value) for a type that serde serializes, in the format of
/// [`Serde`], whose description lists the permitted changes of the type. The name of the value type
/// is that of the Rust type, or set by `#[braid(name = "...")]`; opening the table with another
/// type is an error.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// use braid::Value;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Value)]
/// #[braid(name = "book v1")]
/// struct Book {
///     title: String,
///     pages: Option<u32>,
/// }
///
/// # let db = braid::Database::in_memory()?;
/// let books = db.open_table::<u64, Book>("books")?;
/// let emma = Book { title: "Emma".into(), pages: None };
/// db.transact(|tx| tx.insert(&books, &1, &emma))?;
/// db.transact(|tx| {
///     tx.fetch_update(&books, &1, |book| book.map(|b| Book { pages: Some(474), ..b }))
/// })?;
/// assert_eq!(db.get(&books, &1)?, Some(Book { pages: Some(474), ..emma }));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "derive")]
pub use braiddb_derive::Value;

/// Functions that derived implementations call.
#[doc(hidden)]
pub mod derive {
    #[cfg(feature = "derive")]
    pub use crate::types::serialized::{decode, encode};
    pub use crate::types::tuples::{put_last, put_part, sum, take_part, tuple_name};
}

/// Compiles the examples of the book.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("../../../docs/concepts/protocols.md")]
    struct Protocols;
    #[doc = include_str!("../../../docs/concepts/durability-levels.md")]
    struct DurabilityLevels;
    #[doc = include_str!("../../../docs/concepts/isolation.md")]
    struct Isolation;
    #[doc = include_str!("../../../docs/concepts/snapshots.md")]
    struct Snapshots;
    #[doc = include_str!("../../../docs/concepts/tables-and-types.md")]
    struct TablesAndTypes;
    #[doc = include_str!("../../../docs/internals.md")]
    struct Internals;
    #[doc = include_str!("../../../docs/faq.md")]
    struct Questions;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bytes(bytes: u64) -> String {
        match bytes {
            0 => "no limit".into(),
            n if n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
            n if n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
            n => format!("{n} bytes"),
        }
    }

    #[test]
    fn the_table_of_limits_and_defaults_is_true() {
        let text = include_str!("lib.rs");
        let (_, table) = text.split_once("//! # Limits and defaults").unwrap();
        let listed = |what: &str| {
            let row = table.lines().find(|row| row.contains(what));
            let row = row.unwrap_or_else(|| panic!("{what} is not in the table"));
            row.split(" | ").nth(2).unwrap().to_owned()
        };
        let builder = Builder::default();
        let log = braid_log::LogOptions::default();
        let options = TransactionOptions::default();
        for (what, truth) in [
            ("[`MAX_KEY_LEN`]", bytes(MAX_KEY_LEN as u64)),
            ("[`MAX_VALUE_LEN`]", bytes(MAX_VALUE_LEN as u64)),
            ("[`MAX_TABLE_NAME_LEN`]", bytes(MAX_TABLE_NAME_LEN as u64)),
            (
                "transaction_bytes_max`]",
                bytes(builder.transaction_bytes_max as u64),
            ),
            ("pool_bytes`]", bytes(builder.pool_bytes as u64)),
            (
                "[`Builder::checkpoint_log_bytes`]",
                bytes(builder.checkpoint_log_bytes),
            ),
            ("max_log_bytes`]", bytes(builder.max_log_bytes)),
            (
                "preallocated_log_bytes`]",
                builder.preallocated_log_bytes.to_string(),
            ),
            ("feed_log_bytes`]", bytes(builder.feed_log_bytes)),
            (
                "archive_interval`]",
                format!("{:?}", builder.archive_interval),
            ),
            ("segment_bytes`]", bytes(builder.segment_bytes)),
            ("Builder::protocol`]", Protocol::default().to_string()),
            ("flushes_in_flight`]", log.flushes_in_flight.to_string()),
            ("pmem_commit`]", builder.pmem_commit.to_string()),
            ("pmem_lines`]", builder.pmem_lines.to_string()),
            ("pmem_in_place`]", builder.pmem_in_place.to_string()),
            ("numa`]", builder.numa.to_string()),
            ("remote_access`]", builder.remote_access.to_string()),
            ("group_size`]", builder.group_size.to_string()),
            ("Builder::epoch`]", format!("{:?}", builder.epoch)),
            ("isolation`]", format!("{:?}", options.isolation)),
            ("durability`]", format!("{:?}", options.durability)),
        ] {
            assert_eq!(listed(what), truth, "{what}");
        }
        let strands = 16.min(braid_rt::thread::parallelism());
        assert_eq!(log.strands, braid_rt::numa::whole(strands));
    }
}
