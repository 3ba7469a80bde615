//! What is done to a database that nobody has open.

use std::path::PathBuf;

use braid::Finding;
use pyo3::prelude::*;

use crate::errors::IntoPyResult;
use crate::fork::Active;
use crate::reports::report;

/// Checks a database that nobody has open: every checksum and every structure. Writes nothing.
///
/// Raises NotADatabaseError, LockedError, IncompatibleError or IoError if it can't look at all.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let mut findings = Vec::new();
    let report = py
        .detach(|| braid::verify(&path, &mut |finding| findings.push(finding)))
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

/// Saves what can be read of a damaged database that nobody has open into a new one in the directory into, which is
/// made. Writes nothing to the damaged one.
///
/// The report has a line for each thing that is lost, with the table and the range of keys, or the numbers of the
/// transactions, and one for each that was damaged, but found or made good otherwise. Raises NotADatabaseError, also if
/// there is something in into, CorruptError if there is nothing to begin with, LockedError, IncompatibleError,
/// OutOfSpaceError, IoError.
#[pyfunction]
pub(crate) fn salvage(py: Python<'_>, path: PathBuf, into: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let (mut losses, mut damages) = (Vec::new(), Vec::new());
    let mut note = |finding| match finding {
        Finding::Lost(what) => losses.push(what),
        Finding::Damaged(what) => damages.push(what),
        other => damages.push(format!("{other:?}")),
    };
    let report = py.detach(|| braid::salvage(&path, &into, &mut note)).py()?;
    report!(py, "SalvageReport",
        tables: report.tables,
        entries: report.entries,
        transactions: report.transactions,
        losses: losses,
        damages: damages,
    )
}

/// Brings a database that nobody has open to the format of this version. One that has it already is read, and left as it
/// is. Raises IncompatibleError, NotADatabaseError, LockedError, CorruptError, IoError.
#[pyfunction]
pub(crate) fn upgrade(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let report = py.detach(|| braid::upgrade(&path)).py()?;
    report!(py, "UpgradeReport", from_format: report.from, to_format: report.to)
}

/// A database that nobody has open, for people to read: its properties, its pages, and the transactions of its log.
/// Raises NotADatabaseError, LockedError, IncompatibleError, CorruptError, IoError.
#[pyfunction]
pub(crate) fn dump(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let _active = Active::begin()?;
    let mut text = String::new();
    py.detach(|| braid::dump(&path, &mut text)).py()?;
    Ok(text)
}
