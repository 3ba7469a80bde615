//! Formats of older versions, and their conversion to the current one.
//!
//! When the current format changes, add the step from it to its successor to [`STEPS`], and a
//! database of the new format to the tests' fixtures. A step converts a database that no process
//! has open. A crash during a step must leave the old format or the new one.

use std::path::Path;

use crate::database::Database;
use crate::error::{Error, Result};
use crate::offline::verify::{Offline, Verify};

/// Conversion of one format to the next.
struct Step {
    from: u64,
    convert: fn(&Path) -> Result<()>,
}

/// In order; each step leads to the format after its own.
const STEPS: &[Step] = &[
    Step {
        from: 2,
        convert: by_checkpoint,
    },
    Step {
        from: 3,
        convert: by_checkpoint,
    },
    Step {
        from: 4,
        convert: by_checkpoint,
    },
];

/// Converts a format that this version can read and continue: the next superblock has the current
/// format.
fn by_checkpoint(path: &Path) -> Result<()> {
    let db = Database::builder().create_if_missing(false).open(path)?;
    db.checkpoint()?;
    db.close()
}

/// Result of [`upgrade`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpgradeReport {
    /// Format of the data file before.
    pub from: u64,
    /// Format of the data file afterwards: the current one.
    pub to: u64,
}

/// Converts a closed database to the format of this version. A database that already has this
/// format is read, with its log, and left unchanged.
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// # drop(braid::Database::builder().pool_bytes(1 << 20).open(path)?);
/// use braid::offline::{UpgradeReport, upgrade};
///
/// let report: UpgradeReport = upgrade(path)?;
/// assert_eq!(report.from, report.to); // this version wrote the database
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Incompatible`] if the format is newer than this version's, or older than the oldest
/// convertible one; [`Error::NotADatabase`], [`Error::Locked`], [`Error::Corrupted`] or
/// [`Error::Io`].
pub fn upgrade(path: impl AsRef<Path>) -> Result<UpgradeReport> {
    let path = path.as_ref();
    let to = braid_store::FORMAT;
    let from = {
        let (_lock, device) = Offline::device(path)?;
        braid_store::data_format(&*device)?
    };
    check(from, to)?;
    for step in STEPS.iter().filter(|step| step.from >= from) {
        (step.convert)(path)?;
    }
    // The log and the catalog have formats of their own, which opening checks.
    Offline::open(path, &Verify::new())?;
    Ok(UpgradeReport { from, to })
}

fn check(from: u64, to: u64) -> Result<()> {
    let oldest = STEPS.first().map_or(to, |step| step.from);
    let what = match from {
        _ if from > to => format!(
            "cannot upgrade: data.braid has format {from}, newer than {to}, which this version writes; use the version that wrote it"
        ),
        _ if from < oldest => format!(
            "cannot upgrade: data.braid has format {from}, this version converts {oldest} and newer; export its tables with the \
             version that wrote it and import them"
        ),
        _ => return Ok(()),
    };
    Err(Error::Incompatible { what })
}
