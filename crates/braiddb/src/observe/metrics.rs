//! Statistics as metrics, in the text format of Prometheus or through the facade `metrics`.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::observe::stats::{GateHold, Stats};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only increases while the database is open.
    Counter,
    Gauge,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Whole(u64),
    /// In seconds.
    Time(Duration),
}

/// One metric.
struct Metric {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    number: Number,
    /// The path of its field in [`Stats`].
    #[cfg(test)]
    field: &'static str,
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Number::Whole(n)
    }
}

impl From<usize> for Number {
    fn from(n: usize) -> Self {
        Number::Whole(n as u64)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Self {
        Number::Whole(is.into())
    }
}

impl From<Option<u64>> for Number {
    fn from(n: Option<u64>) -> Self {
        Number::Whole(n.unwrap_or(0))
    }
}

impl From<Duration> for Number {
    fn from(time: Duration) -> Self {
        Number::Time(time)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(n) => n.fmt(f),
            Number::Time(time) => write!(f, "{:.9}", time.as_secs_f64()),
        }
    }
}

macro_rules! metrics {
    ($stats:expr, $($kind:ident $($field:ident).+ => $name:literal, $help:literal;)*) => {
        [$(Metric {
            name: $name,
            help: $help,
            kind: Kind::$kind,
            number: Number::from($stats.$($field).+),
            #[cfg(test)]
            field: stringify!($($field).+),
        }),*]
    };
}

/// Lists every number of the statistics. The protocol, which is not a number, is a label of
/// `braid_info`.
#[allow(clippy::too_many_lines, reason = "a table")]
fn metrics(stats: &Stats) -> impl Iterator<Item = Metric> + use<> {
    metrics! { stats,
        Gauge poisoned => "braid_poisoned",
            "1 if a write or sync failed and nothing can be written until the database is opened again.";
        Gauge checkpoint_failing => "braid_checkpoint_failing",
            "1 if the last checkpoint failed.";
        Counter commits => "braid_commits_total",
            "Committed transactions, including those without writes.";
        Counter conflicts => "braid_conflicts_total",
            "Transactions that failed with a conflict.";
        Counter expired => "braid_expired_total",
            "Expired entries that were removed.";
        Gauge archived => "braid_archived_seqno",
            "Sequence number up to which the archive contains every transaction; 0 without an archive.";
        Gauge changes_kept_from => "braid_changes_kept_from_seqno",
            "Sequence number after which the log keeps every transaction for readers of changes.";
        Counter checkpoints => "braid_checkpoints_total",
            "Completed checkpoints.";
        Gauge snapshots => "braid_snapshots",
            "Open snapshots.";
        Gauge oldest_snapshot => "braid_oldest_snapshot_seqno",
            "Sequence number of the oldest open snapshot; 0 if none is open.";
        Gauge old_versions => "braid_old_versions",
            "Old versions and removed keys that wait to be collected.";
        Gauge old_version_bytes => "braid_old_version_bytes",
            "Memory and pages of old versions and removed keys that wait to be collected.";
        Counter snapshots_ended => "braid_snapshots_ended_total",
            "Snapshots that were ended because old versions took too much space.";
        Gauge durable_seqno => "braid_durable_seqno",
            "Durable sequence number: all transactions up to it are durable.";
        Gauge log_bytes_to_recover => "braid_log_to_recover_bytes",
            "Log after the newest checkpoint, which a recovery would read.";
        Counter log.written_bytes => "braid_log_written_bytes_total",
            "Bytes written to the log, including headers and padding.";
        Counter log.chunk_bytes => "braid_log_chunk_bytes_total",
            "Bytes written to the log without padding.";
        Counter log.payload_bytes => "braid_log_payload_bytes_total",
            "Bytes of redo records written to the log.";
        Counter log.flushes => "braid_log_flushes_total",
            "Durable writes of the log.";
        Counter log.chunks => "braid_log_chunks_total",
            "Chunks written to the log.";
        Counter log.records => "braid_log_records_total",
            "Log records written: one for each transaction, several for a large one.";
        Counter log.consolidated_records => "braid_log_consolidated_records_total",
            "Log records that were appended together with others.";
        Gauge log.segments => "braid_log_segments",
            "Log files.";
        Gauge log.segments_ready => "braid_log_segments_ready",
            "Log files that are ready for use.";
        Counter log.segments_recycled => "braid_log_segments_recycled_total",
            "Log files that were reused.";
        Counter log.segment_waits => "braid_log_segment_waits_total",
            "Times that a commit or a flush found no log file ready, and made one or waited for one.";
        Gauge log.used_bytes => "braid_log_used_bytes",
            "Log that no checkpoint has released, including headers and padding.";
        Gauge log.limit_bytes => "braid_log_limit_bytes",
            "Greatest size of the log; 0 if it is unlimited.";
        Counter log.space_waits => "braid_log_space_waits_total",
            "Commits that waited for a checkpoint because the log was full.";
        Counter log.delayed_commits => "braid_log_delayed_commits_total",
            "Commits that were delayed because the log was full or filled up too fast.";
        Counter log.delay_time => "braid_log_delay_seconds_total",
            "Time of these delays, summed over commits.";
        Counter log.background_pauses => "braid_log_background_pauses_total",
            "Pauses of backups, loads and other background work for the sake of commits.";
        Counter log.buffer_waits => "braid_log_buffer_waits_total",
            "Times that a commit waited for space in a log buffer.";
        Counter log.queue_time => "braid_log_queue_seconds_total",
            "Time from the first append to a log buffer to its sealing, summed over flushes.";
        Counter log.write_time => "braid_log_write_seconds_total",
            "Time of the durable writes, summed over flushes.";
        Counter log.notify_time => "braid_log_notify_seconds_total",
            "Time from the end of a write until all waiters are notified, summed over flushes.";
        Gauge store.page_size => "braid_store_page_bytes",
            "Size of a page.";
        Gauge store.pool_pages => "braid_store_pool_pages",
            "Pages that fit in the buffer pool.";
        Gauge store.resident_pages => "braid_store_resident_pages",
            "Pages in memory.";
        Gauge store.pages => "braid_store_pages",
            "Existing pages.";
        Counter store.page_loads => "braid_store_page_loads_total",
            "Pages read from the medium.";
        Counter store.pages_read_in_place => "braid_store_pages_read_in_place_total",
            "Pages in persistent memory that were first read in place, without a load.";
        Counter store.pages_read_ahead => "braid_store_pages_read_ahead_total",
            "Pages read ahead together with a neighbour, before the pool was full for the first time.";
        Counter store.evictions => "braid_store_evictions_total",
            "Evicted pages.";
        Counter store.eviction_writes => "braid_store_eviction_writes_total",
            "Evicted pages that had to be written.";
        Counter store.checkpoint_copies => "braid_store_checkpoint_copies_total",
            "Pages copied because a checkpoint still needed their image.";
        Counter store.blocks_written => "braid_store_blocks_written_total",
            "Blocks of the data file written.";
        Counter store.blocks_written_by_line => "braid_store_blocks_written_by_line_total",
            "Blocks of which only the changed cache lines were written.";
        Counter store.lines_written => "braid_store_lines_written_total",
            "Cache lines written in these blocks.";
        Counter store.block_bytes_written => "braid_store_block_bytes_written_total",
            "Bytes written into blocks of the data file.";
        Counter store.extension_waits => "braid_store_extension_waits_total",
            "Transactions that waited while the data file was extended.";
        Gauge store.file_bytes => "braid_store_file_bytes",
            "Length of the data file.";
        Gauge store.file_free_bytes => "braid_store_file_free_bytes",
            "Free space in the data file.";
        Gauge store.checkpoint_sequence => "braid_store_checkpoint_number",
            "Number of the newest checkpoint.";
    }
    .into_iter()
}

/// The metrics of each gate: name, help, and the time.
type HoldMetric = (&'static str, &'static str, fn(&GateHold) -> Duration);

const HOLDS: [HoldMetric; 2] = [
    (
        "braid_gate_longest_hold_seconds",
        "Longest time for which background work held a gate for which commits wait, without the time in which its thread was suspended.",
        |hold| hold.longest,
    ),
    (
        "braid_gate_longest_hold_elapsed_seconds",
        "Longest time for which background work held a gate for which commits wait.",
        |hold| hold.elapsed,
    ),
];

impl Stats {
    /// Formats the statistics in Prometheus' text exposition format: every counter and size as a
    /// metric whose name begins with `braid_`, and `braid_info` with the protocol and the version
    /// as labels.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// let text = db.stats().to_prometheus();
    /// assert!(text.contains("\nbraid_poisoned 0\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_prometheus(&self) -> String {
        let mut out = format!(
            "# HELP braid_info Version and commit protocol of the database.\n# TYPE braid_info gauge\n\
             braid_info{{protocol=\"{}\",version=\"{}\"}} 1\n",
            self.protocol,
            env!("CARGO_PKG_VERSION")
        );
        for Metric {
            name,
            help,
            kind,
            number,
            ..
        } in metrics(self)
        {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {number}\n"
            );
        }
        for (name, help, time) in HOLDS {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n");
            for hold in &self.gate_holds {
                let (gate, seconds) = (hold.gate, time(hold).as_secs_f64());
                let _ = writeln!(out, "{name}{{gate=\"{gate}\"}} {seconds:.9}");
            }
        }
        out
    }

    /// Sets the metrics of the facade `metrics`, with a label `database`. Times are gauges there,
    /// whose counters are whole numbers.
    #[cfg(feature = "metrics")]
    pub(crate) fn publish(&self, database: &str) {
        let label = || database.to_owned();
        let protocol = self.protocol.to_string();
        metrics::gauge!("braid_info", "database" => label(), "protocol" => protocol, "version" => env!("CARGO_PKG_VERSION")).set(1);
        for metric in metrics(self) {
            match (metric.kind, metric.number) {
                (Kind::Counter, Number::Whole(n)) => {
                    metrics::counter!(metric.name, "database" => label()).absolute(n);
                }
                (Kind::Gauge, Number::Whole(n)) => {
                    metrics::gauge!(metric.name, "database" => label()).set(n as f64);
                }
                (_, Number::Time(time)) => {
                    metrics::gauge!(metric.name, "database" => label()).set(time.as_secs_f64());
                }
            }
        }
        for (name, _, time) in HOLDS {
            for hold in &self.gate_holds {
                metrics::gauge!(name, "database" => label(), "gate" => hold.gate)
                    .set(time(hold).as_secs_f64());
            }
        }
    }
}

/// Describes the metrics to the recorder.
#[cfg(feature = "metrics")]
pub(crate) fn describe(stats: &Stats) {
    for metric in metrics(stats) {
        match (metric.kind, metric.number) {
            (Kind::Counter, Number::Whole(_)) => {
                metrics::describe_counter!(metric.name, metric.help)
            }
            _ => metrics::describe_gauge!(metric.name, metric.help),
        }
    }
    for (name, help, _) in HOLDS {
        metrics::describe_gauge!(name, help);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::Database;
    use crate::device::MemoryDevice;

    /// Returns the names of a struct's fields, parsed from its `derive(Debug)` output.
    fn fields(debug: &str) -> impl Iterator<Item = &str> {
        debug
            .lines()
            .filter_map(|line| line.strip_prefix("    ")?.split_once(": "))
            .map(|(name, _)| name)
            .filter(|name| !name.starts_with([' ', '}', ')']))
    }

    /// Small enough for Miri.
    fn small() -> Database {
        let builder = Database::builder().background_threads(false);
        let builder = builder.pool_bytes(1 << 20).segment_bytes(64 << 10);
        builder.open_on(Arc::new(MemoryDevice::new())).unwrap()
    }

    #[test]
    fn every_statistic_is_a_metric() {
        let stats = small().stats();
        let own = format!("{stats:#?}");
        let (log, store) = (format!("{:#?}", stats.log), format!("{:#?}", stats.store));
        let own = fields(&own).map(str::to_owned);
        let others = ["protocol", "log", "store", "gate_holds", "tablespaces"];
        let own = own.filter(|name| !others.contains(&name.as_str()));
        let log = fields(&log).map(|name| format!("log.{name}"));
        let store = fields(&store).map(|name| format!("store.{name}"));
        let there: BTreeSet<String> = own.chain(log).chain(store).collect();
        assert!(there.len() > 30, "{there:?}");
        let listed: BTreeSet<String> = metrics(&stats)
            .map(|metric| metric.field.replace(' ', ""))
            .collect();
        assert_eq!(listed, there);
    }

    /// Checks the rules of `promtool check metrics` that apply to this output.
    #[test]
    fn prometheus_can_read_the_text() {
        let db = small();
        let text = db.stats().to_prometheus();
        assert!(text.ends_with('\n'));
        let is_name = |name: &str| {
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            name.starts_with("braid_") && name.chars().all(legal)
        };
        let mut seen = BTreeSet::new();
        let lines: Vec<&str> = text.lines().collect();
        for metric in lines.chunk_by(|_, next| !next.starts_with("# HELP")) {
            let help = metric[0].strip_prefix("# HELP ").unwrap();
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && seen.insert(name), "{name}");
            assert!(help.len() > 3 && !help.contains('\\'), "{help}");
            let kind = metric[1].strip_prefix("# TYPE ").unwrap();
            let (typed, kind) = kind.split_once(' ').unwrap();
            assert_eq!(typed, name);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            assert!(["counter", "gauge"].contains(&kind), "{kind}");
            let is_of_gates = name.starts_with("braid_gate_");
            assert_eq!(metric.len() > 3, is_of_gates, "{name}");
            for line in &metric[2..] {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let labels = series.strip_prefix(name).unwrap();
                let prefix = if is_of_gates {
                    "{gate=\""
                } else {
                    "{protocol=\"glsn\",version=\""
                };
                assert!(labels.is_empty() && !is_of_gates || labels.starts_with(prefix));
                assert!(value.parse::<f64>().unwrap() >= 0.0, "{value}");
            }
        }
    }
}
