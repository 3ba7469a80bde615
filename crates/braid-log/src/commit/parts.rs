//! Commits that lie in several lanes: a fragment of the transaction in each.
//!
//! A transaction with writes for side lanes has a log record in each of its lanes, with a run of its
//! numbers and the counts of those before and after. So each number lies in exactly one lane, and
//! the rules for prefixes of numbers are those for whole transactions, too:
//!
//! - I13, all parts: the transaction is acknowledged when all its fragments are durable, since a
//!   number that is not durable holds back the durable seqno. A fragment that waits for its flush
//!   counts as all of the transaction's numbers.
//! - I15, whole or not at all: a missing fragment is a missing number. Recovery cuts before it, and
//!   before the transaction that it belongs to.
//!
//! With `gsn`, a transaction has one number, which is that of each fragment; see `protocol/gsn.rs`.

use std::sync::Arc;

use braid_rt::narrow;

use crate::LogError;
use crate::base::numbers::{GroupNo, LaneId, SeqNo};
use crate::buffer::slot::AssignedNumbers;
use crate::commit::stream::{LARGE_BYTES, Large, Stream, payload_len};
use crate::commit::ticket::StrandHandle;
use crate::flush::reservation::Reservation;
use crate::format::log_record::{FragmentHeader, LogRecordKind, Rest};
use crate::options::FlushMode;

/// The part of a transaction that lies in one lane; see
/// [`Log::enter_fragments`](crate::Log::enter_fragments).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The side lane; `None` for the lane of the thread's strand.
    pub side: Option<usize>,
    /// Count of the transaction's numbers that belong to it.
    pub records: u32,
    /// The bytes of the fragment's log record.
    pub payload: Vec<u8>,
}

/// A fragment whose log space is reserved.
#[derive(Debug)]
struct Part<'a> {
    strand_handle: &'a Arc<StrandHandle>,
    reservation: Reservation,
    records: u32,
    payload: Vec<u8>,
    /// The stream with the payload, if that is large.
    stream: Option<Stream>,
}

/// The fragments of a pending commit, at least one.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    parts: Vec<Part<'a>>,
    /// The transaction's first number, once they are in the buffers.
    first: SeqNo,
    _large: Option<Large<'a>>,
}

impl<'a> Parts<'a> {
    /// Reserves log space for each fragment, and writes the payload of large ones. Each may name
    /// `dependencies` bytes of dependencies.
    pub(crate) fn reserve(
        fragments: Vec<Fragment>,
        dependencies: usize,
        strand_of: impl Fn(Option<usize>) -> &'a Arc<StrandHandle>,
    ) -> Result<Self, LogError> {
        let mut all = Self {
            parts: Vec::with_capacity(fragments.len()),
            first: SeqNo::MAX,
            _large: None,
        };
        for fragment in fragments {
            let strand_handle = strand_of(fragment.side);
            let core = &strand_handle.core;
            let lane = &core.lanes[strand_handle.lane];
            all.parts.push(Part {
                strand_handle,
                reservation: core.reserve(lane, fragment.payload.len() + dependencies)?,
                records: fragment.records,
                payload: fragment.payload,
                stream: None,
            });
        }
        // After all reservations, which may wait for a checkpoint.
        for part in &mut all.parts {
            let core = &part.strand_handle.core;
            let most = core.strands[part.strand_handle.strand].whole_record_bytes();
            if part.payload.len() + dependencies > most.min(LARGE_BYTES) {
                if all._large.is_none() {
                    all._large = Some(Large::hold(core)?);
                }
                let payload = [&part.payload[..]];
                let written = Stream::write(part.strand_handle, &payload, &mut part.reservation)?;
                part.stream = Some(written);
            }
        }
        Ok(all)
    }

    /// The strand that counts as the transaction's.
    pub(crate) fn home(&self) -> &'a Arc<StrandHandle> {
        self.parts[0].strand_handle
    }

    /// Whether one of them lies in a lane.
    pub(crate) fn lie_in(&self, lane: LaneId) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.strand_handle.lane == lane)
    }

    /// Whether one of the lanes has no log any more.
    pub(crate) fn has_absent(&self) -> bool {
        let mut handles = self.parts.iter().map(|part| part.strand_handle);
        handles.any(|handle| handle.core.lanes[handle.lane].is_absent())
    }

    /// Returns the bytes of all fragments.
    pub(crate) fn payload(&self) -> Vec<u8> {
        let all = self.parts.iter().flat_map(|part| &part.payload);
        all.copied().collect()
    }

    /// Copies all fragments into the buffers of their strands, the first with the dependencies.
    /// Returns the flush group of the first.
    ///
    /// # Panics
    /// If the count of the numbers is not that of the fragments.
    pub(crate) fn append(&mut self, numbers: AssignedNumbers, on: &[SeqNo]) -> GroupNo {
        let hardening = self.home().core.acknowledgement.lanes();
        let shares_number = hardening.is_some();
        if let Some(hardening) = hardening {
            let further = self.parts.iter().skip(1);
            let lanes = further.map(|part| part.strand_handle.lane);
            hardening.add_parts(numbers.last, lanes.collect());
        }
        let all = if shares_number {
            narrow(self.parts.len())
        } else {
            numbers.records()
        };
        let on: Vec<u8> = on.iter().flat_map(|on| on.get().to_le_bytes()).collect();
        let mut before = 0;
        self.put_all(numbers, |part, own| {
            let count = if shares_number { 1 } else { part.records };
            let rest = Rest {
                before,
                after: all - before - count,
                shares_number,
            };
            let on = if before == 0 { &on[..] } else { &[] };
            before += count;
            part.put_fragment(numbers.first, own, rest, on)
        })
    }

    /// Appends an abort record to each of the strands, so that no number is missing and no stream is
    /// kept.
    pub(crate) fn abort(&mut self, numbers: AssignedNumbers) -> GroupNo {
        self.put_all(numbers, |part, own| part.put_abort(own))
    }

    fn put_all(
        &mut self,
        numbers: AssignedNumbers,
        mut put: impl FnMut(&Part<'_>, AssignedNumbers) -> GroupNo,
    ) -> GroupNo {
        let shares_number = self.home().core.acknowledgement.lanes().is_some();
        let records: u32 = self.parts.iter().map(|part| part.records).sum();
        assert!(
            shares_number || records == numbers.records(),
            "each number has its fragment"
        );
        self.first = numbers.first;
        let mut home = GroupNo::NONE;
        let mut next = numbers.first.get();
        for (index, part) in self.parts.iter().enumerate() {
            let own = if shares_number {
                numbers
            } else {
                AssignedNumbers {
                    first: SeqNo::new(next),
                    last: SeqNo::new(next + u64::from(part.records) - 1),
                }
            };
            next += u64::from(part.records);
            let group = put(part, own);
            if index == 0 {
                home = group;
            } else if part.strand_handle.core.options.flush_mode == FlushMode::Background {
                // The committing thread flushes the first part itself, and waits for all: the others
                // are flushed meanwhile.
                let core = &part.strand_handle.core;
                core.request_flush(&core.lanes[part.strand_handle.lane]);
            }
        }
        home
    }
}

impl Part<'_> {
    fn put_fragment(&self, first: SeqNo, own: AssignedNumbers, rest: Rest, on: &[u8]) -> GroupNo {
        let named = self.stream.map(|stream| stream.named());
        // The dependencies come after the name of a stream, and before any other payload.
        let payload = match &named {
            Some(named) => [&named[..], on],
            None => [on, &self.payload[..]],
        };
        let header = FragmentHeader {
            seqno: own.last,
            records: own.records(),
            rest,
            is_streamed: named.is_some(),
            dependencies: on.len(),
            payload_len: payload_len(&payload),
        };
        let strand = &self.strand_handle.core.strands[self.strand_handle.strand];
        self.when_space(|| strand.try_append_fragment(header, first, &payload))
    }

    fn put_abort(&self, own: AssignedNumbers) -> GroupNo {
        let stream = self.stream.map(|stream| stream.number.to_le_bytes());
        let payload = stream.as_ref().map_or(&[][..], |number| &number[..]);
        let strand = &self.strand_handle.core.strands[self.strand_handle.strand];
        let kind = LogRecordKind::Abort;
        self.when_space(|| strand.try_append(own, kind, &[payload], payload.len()))
    }

    fn when_space(&self, append: impl Fn() -> Option<GroupNo>) -> GroupNo {
        if let Some(group) = append() {
            return group;
        }
        let mut group = GroupNo::NONE;
        // If the log is poisoned meanwhile, the bytes are dropped and the ticket reports the error.
        let core = &self.strand_handle.core;
        core.wait_for_buffer(self.strand_handle.strand, &mut || match append() {
            Some(taken) => {
                group = taken;
                true
            }
            None => false,
        });
        group
    }
}

impl Drop for Parts<'_> {
    /// Runs after the commit has left its slot.
    fn drop(&mut self) {
        for part in &self.parts {
            let core = &part.strand_handle.core;
            core.unreserve(part.strand_handle.lane, part.reservation);
            // A thread may wait for the bytes in any of the lanes, and this thread may not wait
            // itself. In the background, a flush was requested with the append.
            let is_inline = core.options.flush_mode == FlushMode::Callers;
            if is_inline && core.is_awaited(self.first) {
                core.lead(&core.lanes[part.strand_handle.lane]);
            }
        }
    }
}
