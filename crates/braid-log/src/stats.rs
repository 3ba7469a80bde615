//! Counters of a running log.

use std::time::Duration;

/// Counters of a [`Log`](crate::Log) since it was opened.
///
/// In persistent memory, a flush takes as long as a few readings of the clock. There, one flush in
/// 16 is timed, and the sums of times contain 16 times its durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Bytes written to the device, with headers and padding.
    pub written_bytes: u64,
    /// Bytes of chunks without their padding: chunk headers, record headers, payload.
    pub chunk_bytes: u64,
    /// Bytes of payload appended by callers, counted when they are flushed.
    pub payload_bytes: u64,
    /// Flushes: durable writes.
    pub flushes: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Log records (or parts of streamed ones) written.
    pub records: u64,
    /// Log records appended together with others under one acquisition of the latch (`aether`).
    pub consolidated_records: u64,
    /// Segment files that exist.
    pub segments: u64,
    /// Segments ready for use.
    pub segments_ready: u64,
    /// Segments recycled.
    pub segments_recycled: u64,
    /// Number of times that a commit or a flush found no segment ready, and made one or waited for
    /// one.
    pub segment_waits: u64,
    /// Bytes of log that no checkpoint has released, with headers and padding.
    pub used_bytes: u64,
    /// The limit of [`LogOptions::max_log_bytes`](crate::LogOptions::max_log_bytes); 0 for none.
    pub limit_bytes: u64,
    /// Number of appends that waited for buffer space.
    pub buffer_waits: u64,
    /// Number of commits that found the log full, and waited for a checkpoint to release log, or
    /// were refused.
    pub space_waits: u64,
    /// Number of commits that were delayed because the log was full or filled up too fast. Includes
    /// `space_waits`.
    pub delayed_commits: u64,
    /// Sum of these delays.
    pub delay_time: Duration,
    /// Number of pauses of background work for the sake of commits.
    pub background_pauses: u64,
    /// Sum over flushes: from the first append into a buffer to its sealing.
    pub queue_time: Duration,
    /// Sum over flushes: the durable write.
    pub write_time: Duration,
    /// Sum over flushes: from the end of the write until all waiters are notified.
    pub notify_time: Duration,
}

impl LogStats {
    /// Returns the fill factor of the written blocks, from 0 to 1.
    pub fn chunk_fill(&self) -> f64 {
        if self.written_bytes == 0 {
            return 0.0;
        }
        self.chunk_bytes as f64 / self.written_bytes as f64
    }
}
