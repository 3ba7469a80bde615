//! **Braid**: an embeddable transactional storage engine whose commits scale.
//!
//! Every committing thread writes to a log buffer near it, a *strand*; the strands are woven into one
//! recoverable order. Several threads commit serializable transactions at once, each durable when
//! `commit` returns, or when its [`Ticket`] says so.
//!
//! - [`Database`] opens a directory, begins [`Transaction`]s, takes [`Snapshot`]s.
//! - [`Table`] is a typed handle to an ordered map; any transaction of the database can use it.
//! - [`Readable`] is what transactions and snapshots have in common: `get`, `range`, `prefix`, …
//!
//! ```
//! use braid::{Database, Readable, Table};
//!
//! # fn main() -> braid::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let db = Database::open(dir.path())?;
//! let events: Table<u64, String> = db.table("events")?;
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
//! # Limits
//!
//! | limit | value |
//! |---|---|
//! | key | [`MAX_KEY_LEN`] bytes |
//! | value | [`MAX_VALUE_LEN`] bytes |
//! | table name | [`MAX_TABLE_NAME_LEN`] bytes |
//! | a transaction's writes | [`Builder::transaction_bytes_max`], 256 MiB unless set |

#![cfg_attr(
    all(test, loom),
    allow(
        clippy::modulo_one,
        clippy::absurd_extreme_comparisons,
        reason = "the tables that loom explores have one place, and nobody spins"
    )
)]

mod archive;
mod backup;
mod bulk;
mod catalog;
mod changes;
mod codec;
mod commit;
mod context;
mod database;
mod error;
mod expiry;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod garbage;
mod health;
mod held;
mod horizon;
mod locks;
#[cfg(all(test, loom))]
mod loom_tests;
mod maintenance;
mod meta;
mod named;
mod options;
mod recovery;
mod redo;
mod replay;
mod retention;
mod savepoint;
mod scan;
mod snapshot;
mod stats;
mod sync;
mod table;
mod transaction;
mod types;
mod verify;
mod versions;

pub use backup::{
    Backup, BackupError, BackupInfo, BackupProgress, BackupReport, Restore, RestoreReport, Until,
    backup_info, restore,
};
pub use braid_io::{Device, DeviceChoice, MemoryDevice};
pub use braid_log::{LockRelease, LogStats, ProtocolKind as Protocol};
pub use braid_store::{MAX_KEY_LEN, MAX_VALUE_LEN, StoreStats};
pub use bulk::BulkLoader;
pub use bytes::Bytes;
pub use catalog::MAX_TABLE_NAME_LEN;
pub use changes::{Change, ChangeSet, Changes, Feed, Position};
pub use codec::{Compression, TableOptions};
pub use commit::{Commit, Ticket};
pub use database::Database;
pub use error::{ConflictKind, Error, Result};
pub use options::{Builder, Durability, Isolation, TransactionOptions};
pub use recovery::{RecoveryProgress, RecoveryReport};
pub use savepoint::Savepoint;
pub use scan::Range;
pub use snapshot::{Readable, Snapshot};
pub use stats::{Health, Stats};
pub use table::Table;
pub use transaction::Transaction;
pub use types::{AsKey, AsValue, Key, KeyRange, Value, prefix_bounds};
pub use verify::{VerifyReport, dump, verify};
