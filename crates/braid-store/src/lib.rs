//! A B+-tree over a buffer pool, with structurally consistent out-of-place checkpoints.
//!
//! A [`Store`] contains [`Tree`]s in one data file. Changes stay in memory until a [`Checkpoint`]
//! writes the pages as of one instant to free blocks, and switches to them with one superblock;
//! opening the store finds the newest such state. The caller replays later changes from a log. Data
//! may be larger than memory: pages that are evicted between checkpoints are written to free
//! blocks, too, where nothing durable refers to them.
//!
//! Each record has a version number and may be a tombstone; the caller defines their meaning.
//!
//! ```
//! use std::sync::Arc;
//! use braid_store::{Change, Store, StoreOptions};
//!
//! # fn main() -> Result<(), braid_store::StoreError> {
//! let device = Arc::new(braid_io::MemoryDevice::new());
//! let store = Store::create(device.clone(), StoreOptions::default())?;
//! let tree = store.tree(7)?;
//! tree.modify(b"key", |_| (Change::Put { version: 1, value: b"value" }, ()))?;
//!
//! let mut checkpoint = store.begin_checkpoint(b"log position".to_vec())?;
//! checkpoint.write(&|_| {})?;
//! checkpoint.publish()?;
//! drop((tree, store));
//!
//! let (store, meta) = Store::open(device, StoreOptions::default())?;
//! assert_eq!(meta, b"log position");
//! let found = store.tree(7)?.get(b"key", |_| true)?;
//! assert_eq!(found.unwrap().value.unwrap(), &b"value"[..]);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod addresses;
mod buffer_pool;
mod bulk;
mod checkpoint;
mod copy;
mod data_file;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod holds;
mod inner;
mod limits;
#[cfg(all(test, loom))]
mod loom_tests;
mod missing_pages;
mod node;
mod number_set;
mod page;
mod page_table;
mod salvage;
mod store;
mod sync;
mod tree;
mod verify;

pub use buffer_pool::LoadRefusal;
pub use bulk::{Pacing, TreeLoader};
pub use checkpoint::{Checkpoint, CheckpointProgress, CheckpointReport};
pub use copy::{PinnedCheckpoint, PinnedFile, StoreWriter};
pub use data_file::{
    DataFileCreation, FORMAT, WriterRoom, creation_of, data_format, layer_entries,
};
pub use error::{StoreError, collect_missing};
pub use limits::{DATA_FILE_BYTES_MAX, MAX_KEY_LEN, MAX_VALUE_LEN, POOL_BYTES_MAX, SHORT_KEY_MAX};
pub use missing_pages::MissingPages;
pub use page::{PAGE_SIZE, PageId};
pub use salvage::{Loss, Salvage, SalvagedEntry};
pub use store::{Store, StoreOptions, StoreStats};
pub use tree::{
    Change, DamagedRange, DetachedValue, Direction, DroppedTree, Estimate, Found, LeafHint,
    LeafScan, OldRecord, Position, Record, RecordMeta, Stamp, TOGETHER, Taken, Tree, TreeStats,
    ValueRef,
};
pub use verify::{Damage, VerifyReport};
