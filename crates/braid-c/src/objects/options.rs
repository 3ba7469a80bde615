//! Options for opening a database, while they are being set.

use braid::{Builder, Database};

/// Object of an options handle.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) builder: Builder,
    /// Whether the database is in memory, without a directory.
    pub(crate) in_memory: bool,
    pub(crate) read_only: bool,
}

impl Options {
    pub(crate) fn new() -> Self {
        Self {
            builder: Database::builder(),
            in_memory: false,
            read_only: false,
        }
    }
}
