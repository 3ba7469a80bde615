//! Statistics of a database.

use std::time::Duration;

use braid::Stats;
use braid::stats::{GateHold, RecoveryReport};

use super::protocol::braid_protocol;

pub(crate) fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the longest hold of any gate.
fn longest_hold(holds: &[GateHold]) -> Duration {
    let longest = holds.iter().map(|hold| hold.longest);
    longest.max().unwrap_or_default()
}

/// Counters since the database was opened, and current sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_stats {
    /// The commit protocol in use.
    pub protocol: braid_protocol,
    /// Number of committed transactions, including those without writes.
    pub commits: u64,
    /// Number of transactions that failed with a conflict.
    pub conflicts: u64,
    /// Number of completed checkpoints.
    pub checkpoints: u64,
    /// Number of open snapshots.
    pub snapshots: u64,
    /// Sequence number of the oldest open snapshot; 0 if none is open.
    pub oldest_snapshot: u64,
    /// Number of old versions and removed keys that wait to be collected.
    pub old_versions: u64,
    /// Space of these, in bytes: memory, and the pages of large values.
    pub old_version_bytes: u64,
    /// Number of snapshots that ended because of `BRAID_OPTION_MAX_VERSION_BYTES`.
    pub snapshots_ended: u64,
    /// Number of expired entries that were removed.
    pub expired: u64,
    /// Durable sequence number: all transactions up to it are durable.
    pub durable_seqno: u64,
    /// Bytes of log after the newest checkpoint, which a recovery would read.
    pub log_bytes_to_recover: u64,
    /// Whether the last checkpoint failed; `braid_db_health` says why.
    pub checkpoint_failing: bool,
    /// Whether the database is poisoned: after a failed write or sync, it is read-only.
    pub poisoned: bool,
    /// Whether the log is archived, see `braid_options_set_archive`.
    pub has_archive: bool,
    /// Sequence number up to which the log is archived.
    pub archived: u64,
    /// Sequence number after which all changes can still be read.
    pub changes_kept_from: u64,
    /// Longest time for which work other than a commit has held a lock or gate for which commits
    /// wait, in microseconds.
    pub longest_gate_hold_us: u64,

    /// Bytes of log written to the device, including headers and padding.
    pub log_written_bytes: u64,
    /// Part of `log_written_bytes` without padding.
    pub log_chunk_bytes: u64,
    /// Part of `log_written_bytes` that transactions wrote.
    pub log_payload_bytes: u64,
    /// Number of log flushes (durable writes).
    pub log_flushes: u64,
    /// Number of log chunks written; a flush writes one for each strand with unwritten records.
    pub log_chunks: u64,
    /// Number of log records written: one for each transaction, several for a large one.
    pub log_records: u64,
    /// Number of log records that were appended together with others (`BRAID_PROTOCOL_AETHER`).
    pub log_consolidated_records: u64,
    /// Number of existing log files.
    pub log_segments: u64,
    /// Number of log files that are ready for use.
    pub log_segments_ready: u64,
    /// Number of log files that were reused.
    pub log_segments_recycled: u64,
    /// Number of times that a commit or a flush found no log file ready, and made one or waited for
    /// one.
    pub log_segment_waits: u64,
    /// Bytes of log that no checkpoint has released, including headers and padding.
    pub log_used_bytes: u64,
    /// Greatest size of the log, in bytes; 0 if it is unlimited.
    pub log_limit_bytes: u64,
    /// Number of times that a commit waited for log buffer space.
    pub log_buffer_waits: u64,
    /// Number of commits that waited for a checkpoint because the log was full.
    pub log_space_waits: u64,
    /// Number of commits that were delayed because the log was full or filled up too fast.
    pub log_delayed_commits: u64,
    /// Time of these delays, in microseconds, summed over commits.
    pub log_delay_us: u64,
    /// Number of pauses of background work for the sake of commits.
    pub log_background_pauses: u64,
    /// Time from the first bytes in a log buffer to its sealing, in microseconds, summed over
    /// flushes.
    pub log_queue_us: u64,
    /// Time of the durable writes, in microseconds, summed over flushes.
    pub log_write_us: u64,
    /// Time from the end of a write until all waiting threads are notified, in microseconds, summed
    /// over flushes.
    pub log_notify_us: u64,

    /// Size of a page, in bytes.
    pub page_size: u64,
    /// Number of pages that fit in the buffer pool.
    pub pool_pages: u64,
    /// Number of pages in memory.
    pub resident_pages: u64,
    /// Number of existing pages.
    pub pages: u64,
    /// Number of pages read from the medium.
    pub page_loads: u64,
    /// Part of `page_loads` that were read ahead, together with a neighbour.
    pub pages_read_ahead: u64,
    /// Number of evicted pages.
    pub evictions: u64,
    /// Number of evicted pages that had to be written.
    pub eviction_writes: u64,
    /// Number of pages copied because a checkpoint still needed their image.
    pub checkpoint_copies: u64,
    /// Number of blocks of the data file that were written.
    pub blocks_written: u64,
    /// Part of `blocks_written` of which only the changed cache lines were written.
    pub blocks_written_by_line: u64,
    /// Number of cache lines written in these blocks.
    pub lines_written: u64,
    /// Bytes written into blocks of the data file.
    pub block_bytes_written: u64,
    /// Number of pages in persistent memory that were first read in place, without a load.
    pub pages_read_in_place: u64,
    /// Number of transactions that waited while the data file was extended.
    pub extension_waits: u64,
    /// Length of the data file, in bytes.
    pub file_bytes: u64,
    /// Free space in the data file, in bytes.
    pub file_free_bytes: u64,
    /// Number of the newest checkpoint.
    pub checkpoint_sequence: u64,
}

impl braid_stats {
    pub(crate) fn of(stats: &Stats) -> Self {
        let (log, store) = (&stats.log, &stats.store);
        Self {
            protocol: braid_protocol::of(stats.protocol),
            commits: stats.commits,
            conflicts: stats.conflicts,
            checkpoints: stats.checkpoints,
            snapshots: stats.snapshots as u64,
            oldest_snapshot: stats.oldest_snapshot.unwrap_or(0),
            old_versions: stats.old_versions as u64,
            old_version_bytes: stats.old_version_bytes as u64,
            snapshots_ended: stats.snapshots_ended,
            expired: stats.expired,
            durable_seqno: stats.durable_seqno,
            log_bytes_to_recover: stats.log_bytes_to_recover,
            checkpoint_failing: stats.checkpoint_failing,
            poisoned: stats.poisoned,
            has_archive: stats.archived.is_some(),
            archived: stats.archived.unwrap_or(0),
            changes_kept_from: stats.changes_kept_from,
            longest_gate_hold_us: microseconds(longest_hold(&stats.gate_holds)),
            log_written_bytes: log.written_bytes,
            log_chunk_bytes: log.chunk_bytes,
            log_payload_bytes: log.payload_bytes,
            log_flushes: log.flushes,
            log_chunks: log.chunks,
            log_records: log.records,
            log_consolidated_records: log.consolidated_records,
            log_segments: log.segments,
            log_segments_ready: log.segments_ready,
            log_segments_recycled: log.segments_recycled,
            log_segment_waits: log.segment_waits,
            log_used_bytes: log.used_bytes,
            log_limit_bytes: log.limit_bytes,
            log_buffer_waits: log.buffer_waits,
            log_space_waits: log.space_waits,
            log_delayed_commits: log.delayed_commits,
            log_delay_us: microseconds(log.delay_time),
            log_background_pauses: log.background_pauses,
            log_queue_us: microseconds(log.queue_time),
            log_write_us: microseconds(log.write_time),
            log_notify_us: microseconds(log.notify_time),
            page_size: store.page_size as u64,
            pool_pages: store.pool_pages as u64,
            resident_pages: store.resident_pages as u64,
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
        }
    }
}

/// Work of the recovery when the database was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_recovery_report {
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Number of transactions replayed.
    pub transactions: u64,
    /// Number of complete transactions in the log that follow a gap. None of them can have been
    /// acknowledged.
    pub discarded: u64,
    /// Time to read the log and find its end, in microseconds.
    pub scan_us: u64,
    /// Total time to open the database, in microseconds.
    pub duration_us: u64,
}

impl braid_recovery_report {
    pub(crate) fn of(report: &RecoveryReport) -> Self {
        Self {
            log_bytes: report.log_bytes,
            transactions: report.transactions,
            discarded: report.discarded,
            scan_us: microseconds(report.scan),
            duration_us: microseconds(report.duration),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;

    /// Returns the names of a struct's fields, from its debug output.
    fn fields(debug: &str) -> Vec<String> {
        let names = debug
            .lines()
            .filter_map(|line| line.trim().split_once(": "));
        names.map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn every_count_of_the_engine_is_there() {
        let database = braid::Database::in_memory().unwrap();
        let mut stats = database.stats();
        // The longest of them is `longest_gate_hold_us`.
        assert!(!mem::take(&mut stats.gate_holds).is_empty());
        let ours = fields(&format!("{:#?}", braid_stats::of(&stats)));
        let ours = |name: &str| ours.iter().any(|ours| ours == name);
        let log = fields(&format!("{:#?}", stats.log));
        assert!(log.len() >= 14, "{log:?}");
        for name in log {
            let in_c = format!("log_{}", name.replace("_time", "_us"));
            assert!(ours(&in_c), "the log's {name}");
        }
        for name in fields(&format!("{:#?}", stats.store)) {
            assert!(ours(&name), "the store's {name}");
        }
        let all = fields(&format!("{stats:#?}"));
        let parts = [
            "log",
            "store",
            "queue_time",
            "write_time",
            "notify_time",
            "delay_time",
            "gate_holds",
            // A list, which the structure has no place for.
            "tablespaces",
        ];
        let known =
            |name: &str| parts.contains(&name) || ours(name) || ours(&format!("log_{name}"));
        for name in all {
            assert!(known(&name), "{name}");
        }
    }
}
