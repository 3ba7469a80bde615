//! Options for the layout and operation of a log.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use braid_io::Device;
use braid_rt::numa;

use crate::base::numbers::LaneId;
use crate::format::BLOCK;
use crate::format::checkpoint_position::CheckpointPosition;
use crate::format::padding::is_memory;
use crate::format::segment::LANES_MAX;
use crate::protocol;
use crate::protocol::kind::ProtocolKind;

/// Buffers of one strand: one is filled while the others are in flight or wait for a flush.
pub(crate) const SLOTS_PER_STRAND: usize = 4;

/// Length of the first segments of all lanes together, unless a chunk needs more.
const FIRST_SEGMENTS: u64 = 64 << 10;

/// Buffers of all strands that a small log with closed flushes fills between two flushes.
const SMALL_CLOSED_SLOTS: usize = 16;

/// Most strands of a side lane: their buffers take memory for each.
const SIDE_STRANDS: usize = 4;

/// Most lanes of a log in persistent memory, if the caller does not choose their number.
const DEFAULT_LANES: usize = 4;

/// The part of a strand's buffers that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferLimits {
    /// Bytes of each slot.
    pub(crate) slot_bytes: usize,
    /// Slots that may wait for a flush.
    pub(crate) slots: usize,
}

/// The threads that write the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FlushMode {
    /// Blocked waiters write the log themselves; one flusher thread per lane serves tickets that no
    /// thread blocks on, and a thread prepares segments ahead of need.
    #[default]
    Background,
    /// No background threads: [`Ticket::wait`](crate::Ticket::wait), polling a ticket as a future
    /// and [`Log::sync`](crate::Log::sync) write inline, and segments are prepared inline. For
    /// deterministic simulation and for embedding where threads are unwelcome.
    Callers,
}

/// How a flush to persistent memory makes its bytes durable, after NVWAL's commit modes (Kim, Kim,
/// Baek, Nam, Won: NVWAL: Exploiting NVRAM in Write-Ahead Logging, ASPLOS 2016). On other devices, a
/// flush is one write, and checksums decide after a crash which chunks are whole.
///
/// Recovery verifies the checksums in each mode, so that all keep the same transactions.
///
/// ```
/// use braid_log::PmemCommit;
///
/// assert_eq!("eager".parse(), Ok(PmemCommit::Eager));
/// assert_eq!(PmemCommit::default(), PmemCommit::Lazy);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PmemCommit {
    /// Flushes each log record, with a fence after each, and then the flush's first line.
    Eager,
    /// Flushes all log records, with one fence, and then the flush's first line, with another: no
    /// crash leaves the beginning of a flush without the rest.
    #[default]
    Lazy,
    /// Flushes all lines with one fence. A crash may leave any of them; only checksums tell.
    Checksum,
}

impl PmemCommit {
    /// All modes.
    pub const ALL: &[Self] = &[Self::Eager, Self::Lazy, Self::Checksum];
}

impl fmt::Display for PmemCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Checksum => "checksum",
        })
    }
}

impl FromStr for PmemCommit {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|mode| mode.to_string() == name);
        found.copied().ok_or_else(|| {
            format!(
                "{name:?} is not a commit mode of persistent memory; choose one of eager, lazy, \
                 checksum"
            )
        })
    }
}

/// Options for the layout and operation of a log. Start from [`LogOptions::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The commit protocol.
    pub protocol: ProtocolKind,
    /// Append buffers; threads are spread over them. Default: the number of cores, at most 16. The
    /// `serial` and `aether` protocols always use one.
    pub strands: usize,
    /// Sequences of segment files, each with its own flushes; strands are spread over them. Default
    /// 1: all strands share each flush. See [`LogOptions::default_lanes`] for other devices than
    /// disks. Fixed when the log is created.
    pub lanes: usize,
    /// Further lanes, each with a few strands of its own, to which only commits write that
    /// [name](crate::Log::enter_in) them. So a part of the log can be on another device. Only with
    /// a protocol that [has side lanes](crate::ProtocolKind::has_side_lanes). Default 0.
    pub side_lanes: usize,
    /// Size of a segment file in bytes, a multiple of 4096. Default 32 MiB. The first segments of
    /// all lanes have 64 KiB together, or 12 KiB each if that is more, and each further one as many
    /// bytes as all that the lane keeps, up to this size. With several lanes and
    /// [`LogOptions::max_log_bytes`], all have this size.
    pub segment_bytes: u64,
    /// Size of one of a strand's four buffers in bytes, a multiple of 4096. Default 512 KiB. A
    /// larger log record is streamed through several buffers.
    pub slot_bytes: usize,
    /// Upper bound for all segment files in bytes; 0 for none. Default 0.
    pub max_log_bytes: u64,
    /// Total bytes of segment files created when the log is opened; files are not deleted below
    /// that total (except with [`LogOptions::discard`]). Later writes then need not fill new files
    /// with zeroes first. Default 0: files are created when needed, one ahead.
    pub preallocated_bytes: u64,
    /// Most flushes in flight in a lane at once. Default 3; flushes overlap only while they carry
    /// few transactions, or large ones, where overlapping beats grouping.
    pub flushes_in_flight: usize,
    /// The threads that write.
    pub flush_mode: FlushMode,
    /// P-WAL's group size: after this many [asynchronous](crate::PendingCommit::finish_async)
    /// commits in a strand, the thread of the last one flushes its lane. Earlier commits start no
    /// flush, so the device gets fewer, larger writes, at the cost of a longer wait. An incomplete
    /// group is flushed after [`LogOptions::GROUP_WAIT`], or when a thread waits for one of its
    /// tickets. Default 0: no groups; a flush begins when none is in flight. P-WAL uses 16.
    pub group_size: u32,
    /// Duration of an epoch of the `epoch` protocol. Default 40 ms, as in Silo and FOEDUS. A
    /// blocking [`Log::sync`](crate::Log::sync) ends it early. With [`FlushMode::Callers`] every
    /// wait ends it.
    pub epoch: Duration,
    /// How a flush to persistent memory makes its bytes durable.
    pub pmem_commit: PmemCommit,
    /// Give released segments back to the device (punch holes and delete) instead of recycling
    /// them.
    pub discard: bool,
    /// The memory nodes of the side lanes, by number; one without a node is placed by the system.
    pub side_nodes: Vec<Option<usize>>,
    /// Place the strands' buffers and the flushers on the machine's memory nodes, if it has several
    /// and the number of strands, or lanes, is a multiple of theirs.
    pub numa: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        let cores = braid_rt::thread::parallelism();
        Self {
            protocol: ProtocolKind::default(),
            strands: numa::whole(cores.clamp(1, 16)),
            lanes: 1,
            side_lanes: 0,
            segment_bytes: 32 << 20,
            slot_bytes: 512 << 10,
            max_log_bytes: 0,
            preallocated_bytes: 0,
            flushes_in_flight: 3,
            flush_mode: FlushMode::default(),
            group_size: 0,
            epoch: Duration::from_millis(40),
            pmem_commit: PmemCommit::default(),
            discard: false,
            side_nodes: Vec::new(),
            numa: true,
        }
    }
}

impl LogOptions {
    /// Most strands a log can have.
    pub const MAX_STRANDS: usize = 256;
    /// Most lanes a log can have: as many as a segment header has room for in its first sector.
    pub const MAX_LANES: usize = LANES_MAX;
    /// Most flushes that can be in flight in a lane.
    pub const MAX_IN_FLIGHT: usize = 16;
    /// Largest segment: sums of all lanes' segments stay far from the limits of 64 bits.
    pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
    /// Longest wait of an incomplete group, with [`FlushMode::Background`].
    pub const GROUP_WAIT: Duration = Duration::from_millis(1);

    /// Returns the number of lanes that suits a new log: 1, so that all strands share each flush. In
    /// persistent memory, sharing a flush takes longer than the flush: there, each strand has a lane
    /// of its own, up to 4. A protocol that records dependencies between lanes keeps one.
    pub fn default_lanes(device: &dyn Device, protocol: ProtocolKind, strands: usize) -> usize {
        let has_independent_lanes = !protocol::of(protocol).dependence().is_wanted(2);
        if is_memory(device) && has_independent_lanes {
            strands.clamp(1, DEFAULT_LANES)
        } else {
            1
        }
    }

    /// Returns the number of lanes, side lanes included.
    pub(crate) fn all_lanes(&self) -> usize {
        self.lanes + self.side_lanes
    }

    /// Whether a position can be one of a log with these options.
    pub(crate) fn fit(&self, position: &CheckpointPosition) -> bool {
        let has_more = position.lanes.len() > self.lanes;
        position.fits(self.lanes) && (!has_more || self.protocol.has_side_lanes())
    }

    /// Returns the number of strands of a side lane.
    pub(crate) fn side_strands(&self) -> usize {
        self.strands.min(SIDE_STRANDS)
    }

    /// Returns the number of strands, those of side lanes included: more than all numbers of
    /// [`UnlockPoint::strand`](crate::UnlockPoint::strand).
    pub fn all_strands(&self) -> usize {
        self.strands + self.side_lanes * self.side_strands()
    }

    /// Returns the indices of a lane's strands: every so many of a range.
    pub(crate) fn strands_of(&self, lane: LaneId) -> (Range<usize>, usize) {
        match lane.get().checked_sub(self.lanes) {
            None => (lane.get()..self.strands, self.lanes),
            Some(side) => {
                let first = self.strands + side * self.side_strands();
                (first..first + self.side_strands(), 1)
            }
        }
    }

    /// Returns the lane of a strand.
    pub(crate) fn lane_of(&self, strand: usize) -> LaneId {
        LaneId::new(match strand.checked_sub(self.strands) {
            None => strand % self.lanes,
            Some(side) => self.lanes + side / self.side_strands(),
        })
    }

    /// Returns the memory node of a strand's buffers, if it has one.
    pub(crate) fn node_of(&self, strand: usize) -> Option<usize> {
        if strand >= self.strands {
            return self.node_of_lane(self.lane_of(strand).get());
        }
        // Strand `i` belongs to threads with an index of `i` modulo the number of strands.
        numa::node_of(strand, self.strands).filter(|_| self.numa)
    }

    /// Returns the memory node of a lane's flusher, if it has one: that of all its strands.
    pub(crate) fn node_of_lane(&self, lane: usize) -> Option<usize> {
        let node = match lane.checked_sub(self.lanes) {
            None => numa::node_of(lane, self.lanes),
            Some(side) => self.side_nodes.get(side).copied().flatten(),
        };
        node.filter(|_| self.numa)
    }

    /// Bytes of each lane's segments that make up [`LogOptions::preallocated_bytes`].
    pub(crate) fn preallocated_by_lane(&self) -> u64 {
        let lane = self.lanes as u64 * self.segment_bytes;
        self.preallocated_bytes.div_ceil(lane) * self.segment_bytes
    }

    /// The most bytes on the medium that have to lie in one segment: a chunk, or with closed
    /// flushes all buffers of a lane that may wait for a flush.
    pub(crate) fn unit_bytes(&self, buffers: BufferLimits) -> u64 {
        let slots = if protocol::of(self.protocol).has_closed_flushes() {
            self.strands.div_ceil(self.lanes) * buffers.slots
        } else {
            1
        };
        (slots * buffers.slot_bytes) as u64
    }

    /// Returns the part of the buffers that is used while the lane is small; see
    /// `flush/reservation.rs`.
    pub(crate) fn small_buffers(&self) -> BufferLimits {
        let is_closed = protocol::of(self.protocol).has_closed_flushes();
        let blocks = if is_closed || self.lanes > 2 || braid_rt::simulation::is_on() {
            2
        } else {
            7
        };
        let slots = if is_closed {
            (SMALL_CLOSED_SLOTS / self.strands).clamp(1, SLOTS_PER_STRAND)
        } else {
            SLOTS_PER_STRAND
        };
        BufferLimits {
            slot_bytes: self.slot_bytes.min(blocks * BLOCK),
            slots,
        }
    }

    /// Returns the part of the buffers that is used once the lane has grown: everything.
    pub(crate) fn grown_buffers(&self) -> BufferLimits {
        BufferLimits {
            slot_bytes: self.slot_bytes,
            slots: SLOTS_PER_STRAND,
        }
    }

    /// Returns the least length of a segment while the lane is small: that of the first segment.
    /// With several lanes and a limit, no lane is small: one of them could use the space that the
    /// others need.
    pub(crate) fn first_segment_bytes(&self) -> u64 {
        if self.all_lanes() > 1 && self.max_log_bytes != 0 {
            return self.segment_bytes;
        }
        let block = BLOCK as u64;
        let first = if braid_rt::simulation::is_on() {
            5 * block
        } else {
            FIRST_SEGMENTS / self.lanes as u64 / block * block
        };
        let unit = block + self.unit_bytes(self.small_buffers());
        first.max(unit).min(self.segment_bytes)
    }

    /// Returns the least length of a segment that can hold whole slots.
    pub(crate) fn grown_segment_bytes(&self) -> u64 {
        (BLOCK as u64 + 2 * self.slot_bytes as u64)
            .max(BLOCK as u64 + self.unit_bytes(self.grown_buffers()))
            .min(self.segment_bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use braid_io::{MemoryDevice, SimDevice};

    use super::*;

    #[test]
    fn strands_have_lanes_of_their_own_in_persistent_memory_only() {
        let pmem = SimDevice::new(0);
        pmem.set_block_size(64);
        for (protocol, lanes) in [
            (ProtocolKind::Glsn, [1, 2, 4, 4]),
            (ProtocolKind::Epoch, [1, 2, 4, 4]),
            (ProtocolKind::Gsn, [1; 4]),
            (ProtocolKind::Gwsn, [1; 4]),
            (ProtocolKind::GwsnStrict, [1; 4]),
        ] {
            for (strands, lanes) in [1, 2, 4, 16].into_iter().zip(lanes) {
                let default = |device| LogOptions::default_lanes(device, protocol, strands);
                assert_eq!(default(&pmem), lanes, "{protocol}, {strands} strands");
                assert_eq!(default(&MemoryDevice::new()), 1);
            }
        }
    }
}
