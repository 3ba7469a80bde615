//! How a log is laid out and driven.

use std::fmt;
use std::str::FromStr;

use crate::LogError;

/// The unit of every offset and length in a segment, in bytes.
pub(crate) const BLOCK: usize = 4096;

/// Buffers of one strand: one that fills, the others in flight or waiting for it.
pub(crate) const SLOTS_PER_STRAND: usize = 4;

/// Which commit protocol orders and acknowledges transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ProtocolKind {
    /// One strand; locks are held until the flush; recovery keeps everything up to the first bad chunk.
    Serial,
    /// P-WAL: many strands, one global order number, locks go at precommit; recovery keeps everything
    /// below the first missing number.
    #[default]
    Glsn,
}

impl ProtocolKind {
    /// All of them, in the order in which they were published.
    pub const ALL: &[Self] = &[Self::Serial, Self::Glsn];

    /// Whether a transaction's locks go as soon as its log piece is in the buffer (early lock release)
    /// rather than once it is durable.
    pub fn releases_locks_early(self) -> bool {
        crate::protocol::of(self).releases_locks_early()
    }
}

impl fmt::Display for ProtocolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolKind::Serial => "serial",
            ProtocolKind::Glsn => "glsn",
        })
    }
}

impl FromStr for ProtocolKind {
    type Err = LogError;

    fn from_str(name: &str) -> Result<Self, LogError> {
        let found = Self::ALL.iter().find(|kind| kind.to_string() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            LogError::Options {
                what: format!("unknown commit protocol {name:?}; there are {}", names.join(", ")),
            }
        })
    }
}

/// Whose threads write the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FlushMode {
    /// Blocked waiters write it themselves; a flusher thread a lane serves tickets that nobody blocks
    /// on, and a thread prepares segments ahead of need.
    #[default]
    Background,
    /// No threads: [`Ticket::wait`](crate::Ticket::wait), polling a ticket as a future and
    /// [`Log::sync`](crate::Log::sync) write inline, and segments are prepared inline. For
    /// deterministic simulation and for embedding where threads are unwelcome.
    Callers,
}

/// How a log is laid out and driven. Start from [`LogOptions::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The commit protocol.
    pub protocol: ProtocolKind,
    /// Append buffers; threads are spread over them. Default: the number of cores, at most 16. The
    /// `serial` protocol always uses one.
    pub strands: usize,
    /// Sequences of segment files, each with its own flushes; strands are spread over them. Default 1:
    /// all strands share each flush. Fixed when the log is created.
    pub lanes: usize,
    /// Size of a segment file in bytes, a multiple of 4096. Default 32 MiB.
    pub segment_bytes: u64,
    /// Size of one of a strand's four buffers in bytes, a multiple of 4096. Default 512 KiB. A larger
    /// piece is streamed through several buffers.
    pub slot_bytes: usize,
    /// Upper bound for all segment files in bytes; 0 for none. Default 0.
    pub max_log_bytes: u64,
    /// Flushes that may be under way in a lane at once. Default 3; more than one are under way only while
    /// they carry few transactions, where overlapping beats grouping.
    pub flushes_in_flight: usize,
    /// Whose threads write.
    pub flush_mode: FlushMode,
    /// Give released segments back to the device (punch holes and delete) instead of recycling them.
    pub discard: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            protocol: ProtocolKind::default(),
            strands: cores.clamp(1, 16),
            lanes: 1,
            segment_bytes: 32 << 20,
            slot_bytes: 512 << 10,
            max_log_bytes: 0,
            flushes_in_flight: 3,
            flush_mode: FlushMode::default(),
            discard: false,
        }
    }
}

impl LogOptions {
    /// Most strands a log can have.
    pub const MAX_STRANDS: usize = 256;
    /// Most lanes a log can have.
    pub const MAX_LANES: usize = 64;
    /// Most flushes that can be under way in a lane.
    pub const MAX_IN_FLIGHT: usize = 16;

    /// Checks the limits, and settles what the protocol decides (one strand for `serial`).
    ///
    /// # Errors
    /// [`LogError::Options`] naming the rule that is broken.
    pub(crate) fn checked(mut self) -> Result<Self, LogError> {
        let fail = |what: String| Err(LogError::Options { what });
        if let Some(strands) = crate::protocol::of(self.protocol).forced_strands() {
            self.strands = strands;
            self.lanes = self.lanes.min(strands);
        }
        if self.strands == 0 || self.strands > Self::MAX_STRANDS {
            return fail(format!(
                "strands is {}, not in 1..={}",
                self.strands,
                Self::MAX_STRANDS
            ));
        }
        if self.lanes == 0 || self.lanes > Self::MAX_LANES || self.lanes > self.strands {
            return fail(format!(
                "lanes is {}, not in 1..={} or more than the {} strands",
                self.lanes,
                Self::MAX_LANES,
                self.strands
            ));
        }
        if self.flushes_in_flight == 0 || self.flushes_in_flight > Self::MAX_IN_FLIGHT {
            return fail(format!(
                "flushes_in_flight is {}, not in 1..={}",
                self.flushes_in_flight,
                Self::MAX_IN_FLIGHT
            ));
        }
        if self.slot_bytes < 2 * BLOCK
            || self.slot_bytes > (64 << 20)
            || !self.slot_bytes.is_multiple_of(BLOCK)
        {
            return fail(format!(
                "slot_bytes is {}, no multiple of {BLOCK} from {} to 64 MiB",
                self.slot_bytes,
                2 * BLOCK
            ));
        }
        let least = (BLOCK + 2 * self.slot_bytes) as u64;
        if self.segment_bytes < least || !self.segment_bytes.is_multiple_of(BLOCK as u64) {
            return fail(format!(
                "segment_bytes is {}, no multiple of {BLOCK} from {least} (two slots and a header)",
                self.segment_bytes
            ));
        }
        let least = crate::space::SpaceState::least_log_bytes(&self);
        if self.max_log_bytes != 0 && self.max_log_bytes < least {
            return fail(format!(
                "max_log_bytes is {}, less than the {least} that these strands, slots and segments need",
                self.max_log_bytes
            ));
        }
        Ok(self)
    }
}
