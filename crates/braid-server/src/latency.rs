//! How long writes take until they are answered.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Classes: up to 2^0 microseconds, up to 2^1, and so on; the last one has no bound.
const CLASSES: usize = 26;

/// Counts durations in classes, of which each bound is twice the one before.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    counts: [AtomicU64; CLASSES],
    nanoseconds: AtomicU64,
}

impl Latency {
    pub(crate) fn record(&self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Counts a duration several times.
    pub(crate) fn record_many(&self, duration: Duration, times: u64) {
        let seconds = duration.as_secs().saturating_mul(1_000_000_000);
        let nanoseconds = seconds.saturating_add(u64::from(duration.subsec_nanos()));
        let micros = nanoseconds.div_ceil(1000).max(1);
        let class = (micros.next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1);
        // Relaxed: statistics.
        self.counts[class].fetch_add(times, Ordering::Relaxed);
        let nanoseconds = nanoseconds.saturating_mul(times);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Counts the durations of another one as well.
    pub(crate) fn add(&self, other: &Latency) {
        for (count, more) in self.counts.iter().zip(other.counts()) {
            count.fetch_add(more, Ordering::Relaxed);
        }
        let nanoseconds = other.nanoseconds();
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns the number of durations in each class.
    pub(crate) fn counts(&self) -> [u64; CLASSES] {
        std::array::from_fn(|class| self.counts[class].load(Ordering::Relaxed))
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }

    pub(crate) fn reset(&self) {
        for count in self.counts.iter().chain([&self.nanoseconds]) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Writes the classes as a histogram in the text format of Prometheus.
    pub(crate) fn write_prometheus(&self, name: &str, help: &str, out: &mut String) {
        let counts = self.counts();
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut sum = 0;
        for (class, count) in counts[..CLASSES - 1].iter().enumerate() {
            sum += count;
            let bound = Duration::from_micros(1 << class).as_secs_f64();
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        sum += counts[CLASSES - 1];
        let seconds = self.nanoseconds() as f64 / 1e9;
        let _ = write!(
            out,
            "{name}_bucket{{le=\"+Inf\"}} {sum}\n{name}_sum {seconds}\n{name}_count {sum}\n"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_below_their_bound() {
        let latency = Latency::default();
        for nanos in [0, 1_000, 1_001, 2_000, 2_001, 1_000_000, u64::MAX / 2] {
            latency.record(Duration::from_nanos(nanos));
        }
        let counts = latency.counts();
        assert_eq!(counts[..3], [2, 2, 1]);
        // A millisecond is at most 1,024 microseconds.
        assert_eq!(counts[10], 1);
        assert_eq!(counts[CLASSES - 1], 1);
        let mut text = String::new();
        latency.write_prometheus("x_seconds", "Help.", &mut text);
        assert!(text.starts_with("# HELP x_seconds Help.\n# TYPE x_seconds histogram\n"));
        assert!(text.contains(
            "x_seconds_bucket{le=\"0.000001\"} 2\nx_seconds_bucket{le=\"0.000002\"} 4\n"
        ));
        assert!(text.contains("x_seconds_bucket{le=\"+Inf\"} 7\n"));
        assert!(text.ends_with("x_seconds_count 7\n"));
    }
}
