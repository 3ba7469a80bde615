//! Counters of a running log.

use std::time::Duration;

/// What a [`Log`](crate::Log) has done since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Bytes written to the device, with headers and padding.
    pub written_bytes: u64,
    /// Bytes of chunks without their padding: chunk headers, piece headers, payload.
    pub chunk_bytes: u64,
    /// Bytes of payload that callers appended, counted when they are flushed.
    pub payload_bytes: u64,
    /// Flushes: durable writes.
    pub flushes: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Pieces (or parts of streamed ones) written.
    pub pieces: u64,
    /// Pieces that were appended together with others, by one taking of the latch (`aether`).
    pub consolidated_pieces: u64,
    /// Segment files that exist.
    pub segments: u64,
    /// Segments that are ready for use.
    pub segments_ready: u64,
    /// Segments that were recycled.
    pub segments_recycled: u64,
    /// Times an append had to wait for buffer space.
    pub buffer_waits: u64,
    /// Sum over flushes: from the first append into a buffer to its sealing.
    pub queue_time: Duration,
    /// Sum over flushes: the durable write.
    pub write_time: Duration,
    /// Sum over flushes: from the write's end until all who waited for it are notified.
    pub notify_time: Duration,
}

impl LogStats {
    /// How full the written blocks are, from 0 to 1.
    pub fn chunk_fill(&self) -> f64 {
        if self.written_bytes == 0 {
            return 0.0;
        }
        self.chunk_bytes as f64 / self.written_bytes as f64
    }
}
