"""What a database tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class LogStats:
    """Counters of the log since the database was opened."""

    written_bytes: int
    """Bytes written to the device, with headers and padding."""
    chunk_bytes: int
    """Of these, without the padding."""
    payload_bytes: int
    """Of these, what transactions logged."""
    flushes: int
    """Durable writes."""
    chunks: int
    """Chunks written."""
    records: int
    """Log records written: one a transaction, more for a large one."""
    consolidated_records: int
    """Log records that were appended together with others (``aether``)."""
    segments: int
    """Segment files that exist."""
    segments_ready: int
    """Of these, ready for use."""
    segments_recycled: int
    """Segments that were used again."""
    buffer_waits: int
    """Times that a commit waited for buffer space."""
    queue_time: timedelta
    """Sum over flushes: from the first commit in a buffer until it is sealed."""
    write_time: timedelta
    """Sum over flushes: the durable write."""
    notify_time: timedelta
    """Sum over flushes: from the write's end until all who waited are told."""


@dataclass(frozen=True)
class StoreStats:
    """Sizes and counters of the pages."""

    page_size: int
    """The size of a page in bytes."""
    pool_pages: int
    """Pages that memory can hold."""
    resident_pages: int
    """Pages in memory."""
    pages: int
    """Pages that exist."""
    page_loads: int
    """Pages read from the medium."""
    pages_read_ahead: int
    """Of these, those that were read along with a neighbour before anybody asked for them."""
    evictions: int
    """Pages put out of memory."""
    eviction_writes: int
    """Of these, those that had to be written."""
    checkpoint_copies: int
    """Pages copied because a checkpoint still needed their image."""
    file_bytes: int
    """The data file's length in bytes."""
    file_free_bytes: int
    """Of these, free."""
    checkpoint_sequence: int
    """The number of the newest checkpoint."""


@dataclass(frozen=True)
class Stats:
    """Counts since the database was opened, and present sizes."""

    protocol: str
    """The commit protocol in use."""
    commits: int
    """Committed transactions, those without writes included."""
    conflicts: int
    """Transactions that failed with a conflict."""
    checkpoints: int
    """Published checkpoints."""
    snapshots: int
    """Open snapshots."""
    oldest_snapshot: int | None
    """The number of the oldest open snapshot."""
    old_versions: int
    """Old versions and tombstones that wait to be collected."""
    expired: int
    """Entries removed because their time to live was over."""
    durable_seqno: int
    """The number up to which all transactions are durable."""
    log_bytes_to_recover: int
    """Bytes of log behind the newest checkpoint, which a recovery would read."""
    checkpoint_failing: bool
    """Whether the last checkpoint failed; ``health`` says why."""
    poisoned: bool
    """Whether nothing can be written any more because a write or sync failed; ``health`` says which."""
    archived: int | None
    """The number up to which the log is archived, if it is."""
    changes_kept_from: int
    """The number behind which all changes can still be read."""
    log: LogStats
    store: StoreStats


@dataclass(frozen=True)
class Health:
    """Whether a database can be written to."""

    status: Literal[
        "good", "checkpoint failing", "out of space", "archive failing", "poisoned", "closed", "other"
    ]
    """``"good"``; ``"checkpoint failing"``: commits go on while there is log space; ``"out of space"``: the last commit
    found no room, others that need less may succeed; ``"archive failing"``: commits go on while the log, which is kept
    for the archive, has room; ``"poisoned"``: reads go on, writes fail until the database is opened again;
    ``"closed"``."""
    cause: str | None
    """What failed first."""


@dataclass(frozen=True)
class RecoveryReport:
    """What opening a database had to recover."""

    log_bytes: int
    """Bytes of log read."""
    transactions: int
    """Transactions replayed."""
    discarded: int
    """Whole transactions behind a gap, none of which can have been acknowledged."""
    scan: timedelta
    """The time that reading the log took."""
    duration: timedelta
    """The time that opening took."""


@dataclass(frozen=True)
class VerifyReport:
    """What ``verify`` looked at, and what it found."""

    pages: int
    """Pages of the data file."""
    records: int
    """Records in them, those of removed keys included."""
    tables: int
    """Tables, the table of tables included."""
    log_bytes: int
    """Bytes of log behind the newest checkpoint."""
    log_transactions: int
    """Transactions in it."""
    findings: list[str]
    """What is damaged; empty if nothing is."""


@dataclass(frozen=True)
class BackupReport:
    """What a backup holds, and what it took."""

    seqno: int
    """It has exactly the transactions up to this number."""
    pages_total: int
    """Pages of the database."""
    pages: int
    """Pages copied: all of them, or those that changed since the parent."""
    read_bytes: int
    """Bytes read from the data file."""
    written_bytes: int
    """Bytes written to the backup."""
    path: Path | None
    """The file; ``None`` if it went to a stream."""


@dataclass(frozen=True)
class BackupInfo:
    """What a backup file says about itself."""

    identity: int
    """The identity of the database that was backed up. A restored database has another one."""
    seqno: int
    """It has the transactions up to this number."""
    time: datetime
    """When it was made."""
    parent: int | None
    """The number of the backup that it builds on; ``None`` if it is a full one."""
    pages: int
    """Pages in it."""


@dataclass(frozen=True)
class RestoreReport:
    """What was restored."""

    seqno: int
    """The database has exactly the transactions up to this number. Its next ones have greater numbers."""
    backup_seqno: int
    """The number up to which the backups went."""
    pages: int
    """Pages read from the backups."""
    transactions: int
    """Transactions that were applied from the archive."""


@dataclass(frozen=True)
class Estimate:
    """The approximate size of a range of keys."""

    entries: int
    """Entries."""
    bytes: int
    """Bytes of the keys and of the values as they are stored."""


@dataclass(frozen=True)
class CompactReport:
    """What compacting achieved."""

    bytes_before: int
    """The data file's length before, in bytes."""
    bytes_after: int
    """Its length afterwards."""
    checkpoints: int
    """Checkpoints that were made for it."""


@dataclass(frozen=True)
class SalvageReport:
    """What ``salvage`` saved."""

    tables: int
    """Tables in the new database."""
    entries: int
    """Entries found in the pages of the newest checkpoint."""
    transactions: int
    """Transactions replayed from the log."""
    losses: list[str]
    """What is lost."""
    damages: list[str]
    """What is damaged, and was found or made good otherwise."""


@dataclass(frozen=True)
class UpgradeReport:
    """What ``upgrade`` did."""

    from_format: int
    """The format that the data file had."""
    to_format: int
    """The format that it has now, the present one."""
