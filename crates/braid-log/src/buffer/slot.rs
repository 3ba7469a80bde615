//! A slot: the part of a strand's buffer that becomes one chunk.

use std::time::Instant;

use braid_io::AlignedBuf;
use braid_rt::narrow;

use crate::base::numbers::SeqNo;
use crate::buffer::shared_buffer::SharedBuffer;
use crate::format::chunk::CHUNK_HEADER;
use crate::format::log_record::RECORD_HEADER_MAX;
use crate::format::padding::Padding;

/// Bytes of a slot that a log record's payload can't take.
pub(super) const SLOT_OVERHEAD: usize = CHUNK_HEADER + RECORD_HEADER_MAX;

/// A buffer that becomes one chunk.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The room for the chunk header, then the log records.
    pub(crate) buf: SharedBuffer,
    pub(super) id: usize,
    pub(crate) padding: Padding,
    /// Sequence number of the last log record, against which the next one's is encoded.
    previous: SeqNo,
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    pub(crate) log_records: u32,
    pub(crate) payload: u64,
    /// The time of the first log record, if its flush is timed.
    pub(crate) opened: Option<Instant>,
    /// Whether there is a log record.
    pub(super) is_opened: bool,
}

impl Slot {
    /// Creates the slot number `id` of a strand over zeroed memory.
    pub(super) fn new(id: usize, memory: AlignedBuf, padding: Padding) -> Self {
        let mut slot = Slot {
            buf: SharedBuffer::new(memory),
            id,
            padding,
            previous: SeqNo::NONE,
            first: SeqNo::NONE,
            last: SeqNo::NONE,
            log_records: 0,
            payload: 0,
            opened: None,
            is_opened: false,
        };
        slot.reset();
        slot
    }

    pub(super) fn reset(&mut self) {
        self.buf.reset(CHUNK_HEADER);
        self.previous = SeqNo::NONE;
        self.first = SeqNo::MAX;
        self.last = SeqNo::NONE;
        self.log_records = 0;
        self.payload = 0;
        self.opened = None;
        self.is_opened = false;
    }

    /// Bytes on the medium, if the slot shares no unit of the device.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.padding.pad(self.buf.len())
    }

    /// Writes a log record, for which there is room: the header that `encode` makes, given the number
    /// of the previous log record, and `payload`.
    #[inline]
    pub(super) fn write(
        &mut self,
        encode: impl FnOnce(SeqNo, &mut [u8]) -> usize,
        payload: &[&[u8]],
        payload_len: usize,
    ) {
        let previous = self.previous;
        let most = RECORD_HEADER_MAX + payload_len;
        self.buf.append_with(most, |out| {
            let mut at = encode(previous, out);
            for part in payload {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            at
        });
    }

    /// Counts a log record with numbers.
    #[inline]
    pub(super) fn add(&mut self, numbers: AssignedNumbers, payload_len: usize) {
        self.previous = numbers.last;
        self.first = self.first.min(numbers.first);
        self.last = self.last.max(numbers.last);
        self.count(payload_len);
    }

    /// Counts a log record.
    #[inline]
    pub(super) fn count(&mut self, payload_len: usize) {
        self.log_records += 1;
        self.payload += payload_len as u64;
    }

    /// The least number in the slot; [`SeqNo::NONE`] if it holds parts of streams only.
    pub(crate) fn least(&self) -> SeqNo {
        match self.last {
            SeqNo::NONE => SeqNo::NONE,
            _ => self.first,
        }
    }
}

/// The numbers in a log record's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssignedNumbers {
    /// The first number of the transaction.
    pub(crate) first: SeqNo,
    /// The sequence number, its last.
    pub(crate) last: SeqNo,
}

impl AssignedNumbers {
    /// The count of these numbers: one for each write of the transaction, which counts them in 32
    /// bits.
    #[inline]
    pub(crate) fn records(self) -> u32 {
        narrow(self.last.get() - self.first.get() + 1)
    }
}
