//! Reports of a database, as instances of the classes of `braid.reports`.

use braid::backup::{BackupInfo, BackupReport, RestoreReport};
use braid::stats::{CompactReport, Estimate, RecoveryReport};
use braid::tablespace::MoveReport;
use braid::{Health, Stats};
use pyo3::prelude::*;

/// Creates an instance of a class of `braid.reports`.
macro_rules! report {
    ($py:expr, $class:literal, $($field:ident: $value:expr),* $(,)?) => {{
        let fields = pyo3::types::PyDict::new($py);
        $(fields.set_item(stringify!($field), $value)?;)*
        $py.import("braid.reports")?.getattr($class)?.call((), Some(&fields))
    }};
}

pub(crate) fn stats<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyAny>> {
    let Stats { log, store, .. } = stats;
    let log = report!(py, "LogStats",
        written_bytes: log.written_bytes,
        chunk_bytes: log.chunk_bytes,
        payload_bytes: log.payload_bytes,
        flushes: log.flushes,
        chunks: log.chunks,
        records: log.records,
        consolidated_records: log.consolidated_records,
        segments: log.segments,
        segments_ready: log.segments_ready,
        segments_recycled: log.segments_recycled,
        segment_waits: log.segment_waits,
        used_bytes: log.used_bytes,
        limit_bytes: log.limit_bytes,
        buffer_waits: log.buffer_waits,
        space_waits: log.space_waits,
        delayed_commits: log.delayed_commits,
        delay_time: log.delay_time,
        background_pauses: log.background_pauses,
        queue_time: log.queue_time,
        write_time: log.write_time,
        notify_time: log.notify_time,
    )?;
    let store = report!(py, "StoreStats",
        page_size: store.page_size,
        pool_pages: store.pool_pages,
        resident_pages: store.resident_pages,
        pages: store.pages,
        page_loads: store.page_loads,
        pages_read_ahead: store.pages_read_ahead,
        evictions: store.evictions,
        eviction_writes: store.eviction_writes,
        checkpoint_copies: store.checkpoint_copies,
        blocks_written: store.blocks_written,
        blocks_written_by_line: store.blocks_written_by_line,
        lines_written: store.lines_written,
        block_bytes_written: store.block_bytes_written,
        pages_read_in_place: store.pages_read_in_place,
        extension_waits: store.extension_waits,
        file_bytes: store.file_bytes,
        file_free_bytes: store.file_free_bytes,
        checkpoint_sequence: store.checkpoint_sequence,
    )?;
    let gate_holds = stats.gate_holds.iter().map(|hold| {
        report!(py, "GateHold",
            gate: hold.gate,
            longest: hold.longest,
            elapsed: hold.elapsed,
        )
    });
    let gate_holds = gate_holds.collect::<PyResult<Vec<_>>>()?;
    report!(py, "Stats",
        protocol: stats.protocol.to_string(),
        commits: stats.commits,
        conflicts: stats.conflicts,
        checkpoints: stats.checkpoints,
        snapshots: stats.snapshots,
        oldest_snapshot: stats.oldest_snapshot,
        old_versions: stats.old_versions,
        old_version_bytes: stats.old_version_bytes,
        snapshots_ended: stats.snapshots_ended,
        expired: stats.expired,
        durable_seqno: stats.durable_seqno,
        log_bytes_to_recover: stats.log_bytes_to_recover,
        checkpoint_failing: stats.checkpoint_failing,
        poisoned: stats.poisoned,
        archived: stats.archived,
        changes_kept_from: stats.changes_kept_from,
        gate_holds: gate_holds,
        log: log,
        store: store,
    )
}

pub(crate) fn health<'py>(py: Python<'py>, health: &Health) -> PyResult<Bound<'py, PyAny>> {
    let (status, cause) = match health {
        Health::Good => ("good", None),
        Health::CheckpointFailing { error } => ("checkpoint failing", Some(error.to_string())),
        Health::OutOfSpace { what } => ("out of space", Some(what.clone())),
        Health::ArchiveFailing { error } => ("archive failing", Some(error.to_string())),
        Health::Poisoned { cause } => ("poisoned", Some(cause.clone())),
        Health::Damaged { what } => ("damaged", Some(what.clone())),
        Health::Closed => ("closed", None),
        other => ("other", Some(format!("{other:?}"))),
    };
    report!(py, "Health", status: status, cause: cause)
}

pub(crate) fn recovery<'py>(
    py: Python<'py>,
    report: &RecoveryReport,
) -> PyResult<Bound<'py, PyAny>> {
    report!(py, "RecoveryReport",
        log_bytes: report.log_bytes,
        transactions: report.transactions,
        discarded: report.discarded,
        scan: report.scan,
        duration: report.duration,
    )
}

pub(crate) fn backup(py: Python<'_>, report: BackupReport) -> PyResult<Bound<'_, PyAny>> {
    report!(py, "BackupReport",
        seqno: report.seqno,
        pages_total: report.pages_total,
        pages: report.pages,
        read_bytes: report.read_bytes,
        written_bytes: report.written_bytes,
        path: report.path,
    )
}

pub(crate) fn backup_info<'py>(py: Python<'py>, info: &BackupInfo) -> PyResult<Bound<'py, PyAny>> {
    report!(py, "BackupInfo",
        identity: info.identity,
        seqno: info.seqno,
        time: info.time,
        parent: info.parent,
        pages: info.pages,
        tablespaces: info.tablespaces.clone(),
    )
}

pub(crate) fn restore<'py>(py: Python<'py>, report: &RestoreReport) -> PyResult<Bound<'py, PyAny>> {
    report!(py, "RestoreReport",
        seqno: report.seqno,
        backup_seqno: report.backup_seqno,
        pages: report.pages,
        transactions: report.transactions,
    )
}

pub(crate) fn compact<'py>(py: Python<'py>, report: &CompactReport) -> PyResult<Bound<'py, PyAny>> {
    report!(py, "CompactReport",
        bytes_before: report.bytes_before,
        bytes_after: report.bytes_after,
        checkpoints: report.checkpoints,
    )
}

pub(crate) fn moved<'py>(py: Python<'py>, report: &MoveReport) -> PyResult<Bound<'py, PyAny>> {
    report!(py, "MoveReport",
        records: report.records,
        bytes: report.bytes,
        writers_waited: report.writers_waited,
    )
}

pub(crate) fn estimate<'py>(py: Python<'py>, estimate: &Estimate) -> PyResult<Bound<'py, PyAny>> {
    report!(py, "Estimate", entries: estimate.entries, bytes: estimate.bytes)
}

pub(crate) use report;
