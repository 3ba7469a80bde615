//! Options for opening a database, while they are being set.

use std::path::PathBuf;

use braid::offline::{Salvage, Verify};
use braid::{Builder, Database};

/// Object of an options handle.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) builder: Builder,
    /// Names and present directories of tablespaces; the builder has them, too.
    pub(crate) tablespaces: Vec<(String, PathBuf)>,
    /// The same of logs that are apart from the data.
    pub(crate) tablespace_logs: Vec<(String, PathBuf)>,
    /// Whether the database is in memory, without a directory.
    pub(crate) in_memory: bool,
    pub(crate) read_only: bool,
}

impl Options {
    pub(crate) fn new() -> Self {
        Self {
            builder: Database::builder(),
            tablespaces: Vec::new(),
            tablespace_logs: Vec::new(),
            in_memory: false,
            read_only: false,
        }
    }

    /// Returns how to check a database whose tablespaces are where these options say.
    pub(crate) fn verify(&self) -> Verify {
        let mut verify = Verify::new();
        for (name, directory) in &self.tablespaces {
            verify = verify.tablespace_directory(name, directory);
        }
        for (name, directory) in &self.tablespace_logs {
            verify = verify.tablespace_log_directory(name, directory);
        }
        verify
    }

    /// Returns how to salvage a database whose tablespaces are where these options say.
    pub(crate) fn salvage(&self) -> Salvage {
        let mut salvage = Salvage::new();
        for (name, directory) in &self.tablespaces {
            salvage = salvage.tablespace_directory(name, directory);
        }
        for (name, directory) in &self.tablespace_logs {
            salvage = salvage.tablespace_log_directory(name, directory);
        }
        salvage
    }
}
