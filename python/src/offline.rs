//! Operations on closed databases.

use std::path::PathBuf;

use braid::offline::Finding;
use pyo3::prelude::*;

use crate::errors::IntoPyResult;
use crate::fork::Active;
use crate::reports::report;

/// Checks every checksum and every structure of a database. Writes nothing. Works next to a process
/// that writes.
///
/// Raises NotADatabaseError, LockedError, IncompatibleError or IoError if the check is not
/// possible.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let mut findings = Vec::new();
    let report = py
        .detach(|| braid::offline::verify(&path, &mut |finding| findings.push(finding)))
        .py()?;
    report!(py, "VerifyReport",
        pages: report.pages,
        records: report.records,
        tables: report.tables,
        log_bytes: report.log_bytes,
        log_transactions: report.log_transactions,
        findings: findings,
    )
}

/// Saves all readable data of a damaged database that no process has open in a new database in the
/// directory into, which it creates. Writes nothing to the damaged one.
///
/// The losses of the report name the tables and ranges of keys, or the sequence numbers, that are
/// lost; the damages name other damage, including damage that was repaired. Raises
/// NotADatabaseError, also if into is not empty, CorruptError if nothing can be saved, LockedError,
/// IncompatibleError, OutOfSpaceError, IoError.
#[pyfunction]
pub(crate) fn salvage(py: Python<'_>, path: PathBuf, into: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let (mut losses, mut damages) = (Vec::new(), Vec::new());
    let mut note = |finding| match finding {
        Finding::Lost(what) => losses.push(what),
        Finding::Damaged(what) => damages.push(what),
        other => damages.push(format!("{other:?}")),
    };
    let report = py
        .detach(|| braid::offline::salvage(&path, &into, &mut note))
        .py()?;
    report!(py, "SalvageReport",
        tables: report.tables,
        entries: report.entries,
        transactions: report.transactions,
        losses: losses,
        damages: damages,
    )
}

/// Converts a database that no process has open to the format of this version. Leaves a database
/// unchanged that already has this format. Raises IncompatibleError, NotADatabaseError,
/// LockedError, CorruptError, IoError.
#[pyfunction]
pub(crate) fn upgrade(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let report = py.detach(|| braid::offline::upgrade(&path)).py()?;
    report!(py, "UpgradeReport", from_format: report.from, to_format: report.to)
}

/// Returns a readable text about a database: its properties, its pages, and the transactions of its
/// log. Raises NotADatabaseError, LockedError, IncompatibleError, CorruptError, IoError.
#[pyfunction]
pub(crate) fn dump(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let _active = Active::begin()?;
    let mut text = String::new();
    py.detach(|| braid::offline::dump(&path, &mut text)).py()?;
    Ok(text)
}
