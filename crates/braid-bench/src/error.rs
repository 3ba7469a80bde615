//! What can go wrong in a benchmark.

/// An error of a load or a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The database failed; a retryable conflict is never reported here but retried.
    #[error(transparent)]
    Database(#[from] braid::Error),
    /// An option has a value that no run can use.
    #[error("{option} must be {wanted}, not {given}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What would be accepted.
        wanted: String,
        /// What was given.
        given: String,
    },
    /// The device failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The device's error.
        source: std::io::Error,
    },
    /// A file of results can't be written or read.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Its error.
        source: std::io::Error,
    },
    /// A workload wrote in a transaction that it had begun for reading: a defect of the workload.
    #[error("a read-only transaction tried to write")]
    WriteInReadOnly,
    /// A transaction with nothing beside it, of a load or a check, met a conflict.
    #[error("a transaction stopped although no other ran with it: {0}")]
    Alone(String),
    /// A row is missing or is not what the workload writes: the engine lost it, or another program wrote it.
    #[error("a row of table {table} is missing or differs from what the workload wrote")]
    Row {
        /// The table.
        table: &'static str,
    },
    /// A bulk load would mix with what is there.
    #[error("cannot load table {table}: it is not empty; load into a new directory")]
    NotEmpty {
        /// The table.
        table: String,
    },
    /// A workload rolled back a transaction that only read: a defect of the workload.
    #[error("a read-only transaction was rolled back")]
    RolledBackRead,
    /// The engine can't do what the workload needs.
    #[error("cannot run workload {workload} on {engine}: it has no {ability}")]
    Lacking {
        /// The engine.
        engine: String,
        /// What it can't do.
        ability: &'static str,
        /// What was to be run.
        workload: String,
    },
    /// One of Braid's peers failed.
    #[error("{engine}: {source}")]
    Peer {
        /// The peer's name.
        engine: &'static str,
        /// Its own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A workload asked for what the engine's abilities exclude: a defect of the workload.
    #[error("cannot run on {engine}: it has no {what}")]
    Unable {
        /// The engine's name.
        engine: &'static str,
        /// What it lacks.
        what: &'static str,
    },
    /// There is no engine of this name.
    #[error("there is no engine {name}; choose one of {known}")]
    UnknownEngine {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The engine is not in this build, or its program is not on this machine.
    #[error("cannot measure {name} here: {note}")]
    Unavailable {
        /// The engine's name.
        name: &'static str,
        /// What to do about it.
        note: String,
    },
    /// A thread of the run panicked: a defect of the benchmark or of the engine.
    #[error("a benchmark thread panicked")]
    Panicked,
}

impl BenchError {
    #[cfg_attr(not(feature = "any-peer"), allow(dead_code))]
    pub(crate) fn peer(
        engine: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        BenchError::Peer {
            engine,
            source: source.into(),
        }
    }

    pub(crate) fn file(
        doing: &'static str,
        path: &std::path::Path,
        source: std::io::Error,
    ) -> Self {
        BenchError::File {
            doing,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn io(what: &'static str, source: std::io::Error) -> Self {
        BenchError::Io { what, source }
    }
}
