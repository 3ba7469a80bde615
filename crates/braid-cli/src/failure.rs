//! Failures of commands.

use std::fmt;
use std::io;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of standard output closed the pipe.
    BrokenPipe,
    /// The options contradict each other; exit code 2.
    Usage(String),
    /// Any other failure; exit code 1.
    Failed(String),
    /// The command succeeded, but data is lost; exit code 3.
    Lost(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::BrokenPipe => 0,
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
            Failure::Lost(_) => 3,
        }
    }

    /// Returns the failure for an error of the operating system during `what`.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Failure::Failed(format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::BrokenPipe => f.write_str("the output was closed"),
            Failure::Usage(text) | Failure::Failed(text) | Failure::Lost(text) => f.write_str(text),
        }
    }
}

impl From<braid::Error> for Failure {
    fn from(error: braid::Error) -> Self {
        Failure::Failed(match error {
            // The library advises verifying and salvaging; here these are commands.
            braid::Error::Corrupted { what, location } => format!(
                "corrupted: {what} ({location}); run `braid verify DIR`, then restore a backup, or save what can be \
                 read with `braid verify DIR --repair --into NEW-DIR`"
            ),
            error => error.to_string(),
        })
    }
}

impl From<braid_bench::BenchError> for Failure {
    fn from(error: braid_bench::BenchError) -> Self {
        match error {
            braid_bench::BenchError::Option { .. }
            | braid_bench::BenchError::UnknownEngine { .. }
            | braid_bench::BenchError::NoPlots { .. }
            | braid_bench::BenchError::Unavailable { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}
