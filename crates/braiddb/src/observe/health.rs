//! Health of a database: whether it can be written to.

use std::sync::Arc;

use crate::error::Error;

/// State of a database, whether it can be written to; see [`crate::Database::health`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// assert!(matches!(db.health(), braid::Health::Good));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Health {
    /// Everything works.
    Good,
    /// The last checkpoint failed. Commits continue while there is log space; checkpoints are
    /// retried.
    CheckpointFailing {
        /// Why it failed. [`Error::Poisoned`] if a sync of a data file failed, which the cause names:
        /// no checkpoint succeeds until the database is reopened.
        error: Error,
    },
    /// The last commit found no space in the log. Smaller ones may succeed; a checkpoint or free
    /// space on the medium helps.
    OutOfSpace {
        /// What needed the space.
        what: String,
    },
    /// Writing the archive fails and is retried; commits continue while the log, which is kept for
    /// the archive, has space. Or the archive lacks transactions that no backup contains, see
    /// [`crate::Database::archive_now`].
    ArchiveFailing {
        /// Why it failed.
        error: Error,
    },
    /// A write or sync failed: reads continue, writes fail until the database is reopened.
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// Pages that recovery must change, or that describe the database's contents, are damaged. The
    /// database was opened read-only: everything not named can be read, and nothing is written, so
    /// the log keeps the data for the damaged pages. Salvage it into a new database with
    /// [`crate::offline::salvage`] (`braid verify --repair DB --into DIR`), or restore a backup.
    Damaged {
        /// Tables and ranges of keys that cannot be read, and why.
        what: String,
    },
    /// The database was closed.
    Closed,
}

pub(crate) type HealthCallback = Arc<dyn Fn(&Health) + Send + Sync>;
