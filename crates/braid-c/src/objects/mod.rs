//! The objects that handles refer to. [`crate::registry`] contains their tables.

mod changes;
mod cursor;
mod database;
mod loader;
mod options;
mod scan;
mod table;

pub(crate) use changes::Reader;
pub use changes::{braid_change, braid_change_set, braid_position};
pub(crate) use cursor::{Bounds, Cursor, Given, Source, rest};
pub(crate) use database::OpenDatabase;
pub(crate) use loader::Loading;
pub(crate) use options::Options;
pub(crate) use scan::{BytesRange, SnapshotScan, Tx};
pub(crate) use table::{BytesTable, OpenTable};
