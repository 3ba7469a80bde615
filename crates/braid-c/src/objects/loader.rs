//! A bulk load in progress.

use braid::{BulkLoader, Bytes};

use super::OpenDatabase;

/// Object of a loader's handle.
pub(crate) struct Loading {
    pub(crate) loader: BulkLoader<Bytes, Bytes>,
    pub(crate) database: OpenDatabase,
}
