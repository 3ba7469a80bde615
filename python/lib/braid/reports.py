"""Reports of a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class LogStats:
    """Counters of the log since the database was opened."""

    written_bytes: int
    """Bytes written to the device, including headers and padding."""
    chunk_bytes: int
    """Part of ``written_bytes`` without padding."""
    payload_bytes: int
    """Part of ``written_bytes`` that transactions wrote."""
    flushes: int
    """Number of durable writes."""
    chunks: int
    """Number of chunks written."""
    records: int
    """Number of log records: one for each transaction, several for a large one."""
    consolidated_records: int
    """Number of log records that were appended together with others (``aether``)."""
    segments: int
    """Number of existing log files."""
    segments_ready: int
    """Number of log files that are ready for use."""
    segments_recycled: int
    """Number of log files that were reused."""
    segment_waits: int
    """Number of times that a commit or a flush found no log file ready."""
    used_bytes: int
    """Bytes of log that no checkpoint has released, including headers and padding."""
    limit_bytes: int
    """Greatest size of the log, in bytes; 0 if it is unlimited."""
    buffer_waits: int
    """Number of times that a commit waited for log buffer space."""
    space_waits: int
    """Number of commits that waited for a checkpoint because the log was full."""
    delayed_commits: int
    """Number of commits that were delayed because the log was full or filled up too fast."""
    delay_time: timedelta
    """Time of these delays, summed over commits."""
    background_pauses: int
    """Number of pauses of backups, loads and other background work for the sake of commits."""
    queue_time: timedelta
    """Time from the first commit in a buffer to its sealing, summed over flushes."""
    write_time: timedelta
    """Time of the durable writes, summed over flushes."""
    notify_time: timedelta
    """Time from the end of a write until all waiters are notified, summed over flushes."""


@dataclass(frozen=True)
class StoreStats:
    """Sizes and counters of the page store."""

    page_size: int
    """Size of a page, in bytes."""
    pool_pages: int
    """Number of pages that fit in the buffer pool."""
    resident_pages: int
    """Number of pages in memory."""
    pages: int
    """Number of existing pages."""
    page_loads: int
    """Number of pages read from the medium."""
    pages_read_ahead: int
    """Part of ``page_loads`` that were read ahead, together with a neighbour."""
    evictions: int
    """Number of evicted pages."""
    eviction_writes: int
    """Number of evicted pages that had to be written."""
    checkpoint_copies: int
    """Number of pages copied because a checkpoint still needed their image."""
    blocks_written: int
    """Number of blocks of the data file that were written."""
    blocks_written_by_line: int
    """Part of ``blocks_written`` of which only the changed cache lines were written."""
    lines_written: int
    """Number of cache lines written in these blocks."""
    block_bytes_written: int
    """Bytes written into blocks of the data file."""
    pages_read_in_place: int
    """Number of pages in persistent memory that were first read in place, without a load."""
    extension_waits: int
    """Number of transactions that waited while the data file was extended."""
    file_bytes: int
    """Length of the data file, in bytes."""
    file_free_bytes: int
    """Free space in the data file, in bytes."""
    checkpoint_sequence: int
    """Number of the newest checkpoint."""


@dataclass(frozen=True)
class GateHold:
    """The longest time for which work other than a commit has held a lock for which commits wait."""

    gate: str
    """Name of the gate."""
    longest: timedelta
    """The longest hold. If the system suspended the thread, its processor time counts (Linux)."""
    elapsed: timedelta
    """The longest hold, including the time in which the system ran other threads instead."""


@dataclass(frozen=True)
class Stats:
    """Counters since the database was opened, and current sizes."""

    protocol: str
    """The commit protocol in use."""
    commits: int
    """Number of committed transactions, including those without writes."""
    conflicts: int
    """Number of transactions that failed with a conflict."""
    checkpoints: int
    """Number of completed checkpoints."""
    snapshots: int
    """Number of open snapshots."""
    oldest_snapshot: int | None
    """Sequence number of the oldest open snapshot."""
    old_versions: int
    """Number of old versions and removed keys that wait to be collected."""
    old_version_bytes: int
    """Space of these, in bytes: memory, and the pages of large values."""
    snapshots_ended: int
    """Number of snapshots that ended because of ``max_version_bytes``."""
    expired: int
    """Number of expired entries that were removed."""
    durable_seqno: int
    """Durable sequence number: all transactions up to it are durable."""
    log_bytes_to_recover: int
    """Bytes of log after the newest checkpoint, which a recovery would read."""
    checkpoint_failing: bool
    """Whether the last checkpoint failed; ``health`` says why."""
    poisoned: bool
    """Whether the database is poisoned: after a failed write or sync, it is read-only."""
    archived: int | None
    """Sequence number up to which the log is archived; ``None`` without an archive."""
    changes_kept_from: int
    """Sequence number after which all changes can still be read."""
    gate_holds: list[GateHold]
    """For how long work other than a commit has held what commits wait for, by gate."""
    log: LogStats
    store: StoreStats


@dataclass(frozen=True)
class Health:
    """Whether a database can be written."""

    status: Literal[
        "good", "checkpoint failing", "out of space", "archive failing", "poisoned", "closed", "other"
    ]
    """``"good"``; ``"checkpoint failing"``: commits continue while the log has space; ``"out of
    space"``: the last commit found no space, commits that need less may succeed; ``"archive
    failing"``: commits continue while the log, which is kept for the archive, has space;
    ``"poisoned"``: reads continue, writes fail until the database is opened again; ``"closed"``."""
    cause: str | None
    """The first failure."""


@dataclass(frozen=True)
class RecoveryReport:
    """Work of the recovery when the database was opened."""

    log_bytes: int
    """Bytes of log read."""
    transactions: int
    """Number of transactions replayed."""
    discarded: int
    """Number of complete transactions after a gap. None of them can have been acknowledged."""
    scan: timedelta
    """Time to read the log and find its end."""
    duration: timedelta
    """Total time to open the database."""


@dataclass(frozen=True)
class VerifyReport:
    """Result of ``verify``."""

    pages: int
    """Number of pages of the data file."""
    records: int
    """Number of records in the pages, including those of removed keys."""
    tables: int
    """Number of tables, including the catalog."""
    log_bytes: int
    """Bytes of log after the newest checkpoint."""
    log_transactions: int
    """Number of transactions in that log."""
    findings: list[str]
    """Descriptions of damage; empty if there is none."""


@dataclass(frozen=True)
class BackupReport:
    """Contents and cost of a backup."""

    seqno: int
    """The backup contains exactly the transactions up to this sequence number."""
    pages_total: int
    """Number of pages of the database."""
    pages: int
    """Number of pages copied: all pages, or those that changed since the parent."""
    read_bytes: int
    """Bytes read from the data file."""
    written_bytes: int
    """Bytes written to the backup."""
    path: Path | None
    """Path of the file; ``None`` if the backup was written to a stream."""


@dataclass(frozen=True)
class BackupInfo:
    """Description in a backup file."""

    identity: int
    """The identity of the database that was backed up. A restored database has another one."""
    seqno: int
    """The backup contains the transactions up to this sequence number."""
    time: datetime
    """Time of the backup."""
    parent: int | None
    """Sequence number of the parent backup; ``None`` if the backup is full."""
    pages: int
    """Number of pages in the backup."""
    tablespaces: list[str]
    """Names of the tablespaces, each of which needs a place when the backup is restored."""


@dataclass(frozen=True)
class RestoreReport:
    """Result of a restore."""

    seqno: int
    """The database contains exactly the transactions up to this sequence number."""
    backup_seqno: int
    """Sequence number up to which the backups reach."""
    pages: int
    """Number of pages read from the backups."""
    transactions: int
    """Number of transactions replayed from the archive."""


@dataclass(frozen=True)
class Estimate:
    """Approximate size of a range of keys."""

    entries: int
    """Number of entries."""
    bytes: int
    """Bytes of the keys and values, as stored."""


@dataclass(frozen=True)
class CompactReport:
    """Result of ``compact``."""

    bytes_before: int
    """Length of the data file before the compaction, in bytes."""
    bytes_after: int
    """Length of the data file after the compaction, in bytes."""
    checkpoints: int
    """Number of checkpoints that the compaction wrote."""


@dataclass(frozen=True)
class MoveReport:
    """Result of ``move_table``."""

    records: int
    """Number of records copied. A record that changed during the move counts several times."""
    bytes: int
    """Bytes of their keys and values, as they are stored."""
    writers_waited: timedelta
    """Time for which writes to the table waited at the end of the move."""


@dataclass(frozen=True)
class SalvageReport:
    """Result of ``salvage``."""

    tables: int
    """Number of tables in the new database."""
    entries: int
    """Number of entries found in the pages of the newest checkpoint."""
    transactions: int
    """Number of transactions replayed from the log."""
    losses: list[str]
    """Descriptions of lost data."""
    damages: list[str]
    """Descriptions of damage that was repaired from other data."""


@dataclass(frozen=True)
class UpgradeReport:
    """Result of ``upgrade``."""

    from_format: int
    """Format of the data file before the upgrade."""
    to_format: int
    """Format of the data file now: that of this version."""
