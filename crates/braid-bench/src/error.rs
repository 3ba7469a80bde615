//! Errors of benchmarks.

/// An error of a load or a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The database failed. Conflicts that can be retried are retried, not reported.
    #[error(transparent)]
    Database(#[from] braid::Error),
    /// An option has a value that no run can use.
    #[error("{option} must be {wanted}, not {given}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// Description of valid values.
        wanted: String,
        /// The given value.
        given: String,
    },
    /// The device failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The device's error.
        source: std::io::Error,
    },
    /// A file of results cannot be written or read.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// What was attempted.
        doing: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Its error.
        source: std::io::Error,
    },
    /// A workload wrote in a transaction that it had begun for reading: a defect of the workload.
    #[error("a read-only transaction tried to write")]
    WriteInReadOnly,
    /// A transaction of a load or a check met a conflict, although no other was running.
    #[error("a transaction failed although no other ran: {0}")]
    Alone(String),
    /// A row is missing, or was not written by the workload: the engine lost it, or another program
    /// wrote it.
    #[error("a row of table {table} is missing or differs from what the workload wrote")]
    Row {
        /// The table.
        table: &'static str,
    },
    /// A check of a sound database found damage: a defect of the engine or of the medium.
    #[error("verify found {damages} damages in a database under load")]
    Damaged {
        /// Number of damages.
        damages: u64,
    },
    /// A bulk load would mix with existing data.
    #[error("cannot load table {table}: it is not empty; load into a new directory")]
    NotEmpty {
        /// The table.
        table: String,
    },
    /// A workload rolled back a transaction that only read: a defect of the workload.
    #[error("a read-only transaction was rolled back")]
    RolledBackRead,
    /// The engine lacks an ability that the workload needs.
    #[error("cannot run workload {workload} on {engine}: it has no {ability}")]
    Lacking {
        /// The engine.
        engine: String,
        /// The missing ability.
        ability: &'static str,
        /// The workload.
        workload: String,
    },
    /// An engine other than Braid failed.
    #[error("{engine}: {source}")]
    Peer {
        /// Name of the engine.
        engine: &'static str,
        /// Its own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A server that is measured over a socket cannot be reached, or answered with an error.
    #[error("cannot measure the server at {address}: {source}")]
    Server {
        /// Address of the server.
        address: String,
        /// Its error, or that of the connection.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A workload used an ability that the engine lacks: a defect of the workload.
    #[error("cannot run on {engine}: it has no {what}")]
    Unable {
        /// The engine's name.
        engine: &'static str,
        /// The missing ability.
        what: &'static str,
    },
    /// There is no engine of this name.
    #[error("there is no engine {name}; choose one of {known}")]
    UnknownEngine {
        /// The given name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The engine is not in this build, or its program is not on this machine.
    #[error("cannot measure {name} here: {note}")]
    Unavailable {
        /// The engine's name.
        name: &'static str,
        /// How to make it available.
        note: String,
    },
    /// This build has no plots.
    #[error("cannot draw {}: this build has no plots; build it with --features plots", path.display())]
    NoPlots {
        /// The file or directory that was wanted.
        path: std::path::PathBuf,
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
