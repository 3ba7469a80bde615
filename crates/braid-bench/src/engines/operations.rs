//! What engines can do next to a load, for [`measure_stalls`](crate::measure_stalls).

use std::path::Path;

use super::{Stop, TableId};
use crate::BenchError;

/// Operations next to a load. Each fails with [`BenchError::Unable`] if the engine lacks it, which
/// is the default of every method.
///
/// Tables with a name are those that [`bulk_load`](Self::bulk_load) creates; no session uses them.
#[allow(unused_variables)] // the defaults use none of their arguments
pub trait Operations {
    /// Writes what changed since the previous checkpoint to the files of the tables.
    ///
    /// # Errors
    /// [`BenchError::Unable`], or the engine's own; the same for all operations.
    fn checkpoint(&self) -> Result<(), BenchError> {
        lacking("checkpoint")
    }

    /// Creates a table of these rows in the engine's fastest way. It is durable afterwards.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn bulk_load(&self, name: &str, rows: Rows) -> Result<(), BenchError> {
        lacking("bulk load")
    }

    /// Drops a table.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn drop_table(&self, name: &str) -> Result<(), BenchError> {
        lacking("drop of a table")
    }

    /// Begins to read one state of a table, which the engine retains until the result is dropped.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn snapshot(&self, table: TableId) -> Result<Box<dyn OldState + '_>, BenchError> {
        lacking("snapshot")
    }

    /// Copies the database to a path that does not exist.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn backup(&self, to: &Path) -> Result<(), BenchError> {
        lacking("backup")
    }

    /// Compacts a table; an engine that compacts into a new file creates it at a path that does not
    /// exist.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn compact(&self, table: TableId, into: &Path) -> Result<(), BenchError> {
        lacking("compaction")
    }

    /// Checks a table.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn verify(&self, name: &str) -> Result<(), BenchError> {
        lacking("check of a table")
    }

    /// Reads the engine's statistics.
    ///
    /// # Errors
    /// See [`checkpoint`](Self::checkpoint).
    fn stats(&self) -> Result<(), BenchError> {
        lacking("statistics")
    }
}

fn lacking<T>(what: &'static str) -> Result<T, BenchError> {
    Err(BenchError::Unable {
        engine: "this engine",
        what,
    })
}

/// No operation.
pub(super) struct NoOperations;

impl Operations for NoOperations {}

/// A state of a table that stays readable.
pub trait OldState {
    /// Reads a key as [`Transaction::get`](super::Transaction::get) does.
    ///
    /// # Errors
    /// The engine's failure.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool, Stop>;
}

/// Rows of a table: the keys from 0, as big-endian numbers of 8 bytes, with values of random bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Number of rows.
    pub entries: u64,
    /// Size of each value in bytes.
    pub value_size: usize,
}

impl Rows {
    /// Passes each row to `put`, in the order of the keys.
    ///
    /// # Errors
    /// The first error of `put`.
    pub fn try_each<E>(self, mut put: impl FnMut(&[u8], &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut value = vec![0; self.value_size];
        let mut rng = fastrand::Rng::with_seed(self.entries);
        (0..self.entries).try_for_each(|key| {
            // Each differs, because some engines compress blocks of them.
            rng.fill(&mut value);
            put(&key.to_be_bytes(), &value)
        })
    }
}
