//! Operations on closed databases.

use std::collections::BTreeMap;
use std::path::PathBuf;

use braid::offline::{Finding, Salvage, Verify};
use pyo3::prelude::*;

use crate::errors::IntoPyResult;
use crate::fork::Active;
use crate::reports::report;

/// The present directories of tablespaces that were moved, by name.
type Places = Option<BTreeMap<String, PathBuf>>;

/// Returns how to read a database whose tablespaces and their logs are in these directories.
fn reading(tablespaces: Places, logs: Places) -> Verify {
    let mut verify = Verify::new();
    for (name, directory) in tablespaces.unwrap_or_default() {
        verify = verify.tablespace_directory(&name, directory);
    }
    for (name, directory) in logs.unwrap_or_default() {
        verify = verify.tablespace_log_directory(&name, directory);
    }
    verify
}

/// Checks every checksum and every structure of a database. Writes nothing. Works next to a process
/// that writes. tablespaces maps the names of tablespaces that were moved, or belong to a copy, to their
/// present directories, and tablespace_logs to those of logs in directories of their own.
///
/// Raises NotADatabaseError, LockedError, IncompatibleError or IoError if the check is not
/// possible.
#[pyfunction]
#[pyo3(signature = (path, *, tablespaces = None, tablespace_logs = None))]
pub(crate) fn verify(
    py: Python<'_>,
    path: PathBuf,
    tablespaces: Places,
    tablespace_logs: Places,
) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let mut findings = Vec::new();
    let verify = reading(tablespaces, tablespace_logs);
    let report = py
        .detach(|| verify.check(&path, &mut |finding| findings.push(finding)))
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
/// directory into, which it creates. Writes nothing to the damaged one. tablespaces as for verify.
///
/// The losses of the report name the tables and ranges of keys, or the sequence numbers, that are
/// lost; the damages name other damage, including damage that was repaired. Raises
/// NotADatabaseError, also if into is not empty, CorruptError if nothing can be saved, LockedError,
/// IncompatibleError, OutOfSpaceError, IoError.
#[pyfunction]
#[pyo3(signature = (path, into, *, tablespaces = None, tablespace_logs = None))]
pub(crate) fn salvage(
    py: Python<'_>,
    path: PathBuf,
    into: PathBuf,
    tablespaces: Places,
    tablespace_logs: Places,
) -> PyResult<Bound<'_, PyAny>> {
    let _active = Active::begin()?;
    let (mut losses, mut damages) = (Vec::new(), Vec::new());
    let mut note = |finding| match finding {
        Finding::Lost(what) => losses.push(what),
        Finding::Damaged(what) => damages.push(what),
        other => damages.push(format!("{other:?}")),
    };
    let mut salvage = Salvage::new();
    for (name, directory) in tablespaces.unwrap_or_default() {
        salvage = salvage.tablespace_directory(&name, directory);
    }
    for (name, directory) in tablespace_logs.unwrap_or_default() {
        salvage = salvage.tablespace_log_directory(&name, directory);
    }
    let report = py.detach(|| salvage.run(&path, &into, &mut note)).py()?;
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
/// log. tablespaces as for verify. Raises NotADatabaseError, LockedError, IncompatibleError, CorruptError,
/// IoError.
#[pyfunction]
#[pyo3(signature = (path, *, tablespaces = None, tablespace_logs = None))]
pub(crate) fn dump(
    py: Python<'_>,
    path: PathBuf,
    tablespaces: Places,
    tablespace_logs: Places,
) -> PyResult<String> {
    let _active = Active::begin()?;
    let mut text = String::new();
    let verify = reading(tablespaces, tablespace_logs);
    py.detach(|| verify.dump(&path, &mut text)).py()?;
    Ok(text)
}
