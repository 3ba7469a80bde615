//! One transaction's bytes in a chunk.
//!
//! A log record is `tag`, `seqno`, lengths, payload. All header fields are variable-length
//! integers, so a small transaction's header takes 3 to 5 bytes:
//!
//! - tag: `records << 3 | kind`
//! - number: the sequence number minus that of the previous log record in the chunk (0 for the
//!   first), zigzag; for the kinds marked so, the number itself: the writer of such a log record
//!   does not know the previous one; kind part, which counts no records: the number of the
//!   transaction's stream
//! - kind part: this part's offset in the payload; kind dependent: the length in bytes of the
//!   dependencies, numbers of 8 bytes, in front of the payload
//! - length of the payload in this log record
//!
//! A transaction that writes to several logs has a *fragment* in each: a log record of the kind
//! fragment, or fragment of a stream, with a run of the transaction's numbers. After the number, it
//! has the counts of the transaction's numbers before and after this run. So each number lies in
//! exactly one log, and a fragment that is missing is a missing number.
//!
//! If lanes assign their own numbers (`gsn`), all fragments of a transaction have its one number. Their
//! tags count no records, and the two counts are those of the fragments before and after. A fragment
//! that is not a stream then has the length of its dependencies after the counts, as the kind
//! dependent has.
//!
//! A large transaction is a *stream*: parts without a sequence number, in the order of their
//! offsets, then a commit record with the sequence number, whose payload is the number of the
//! stream, the length of all parts, and the dependencies, in 8 bytes each. Parts without a commit
//! record count for nothing. If the transaction is aborted, its abort record has the number of the
//! stream as its payload. Streams are numbered for each incarnation.

use braid_rt::narrow;

use crate::base::numbers::SeqNo;
use crate::format::chunk::NUMBERS_MAX;

/// Most bytes that a log record's header takes.
pub(crate) const RECORD_HEADER_MAX: usize = 32;

/// The kind of what belongs to a stream: parts, which have no records, and the commit record.
const STREAM: u64 = 7;

/// The kinds of the fragment of a transaction, and of the commit record of one whose bytes are a
/// stream. (Versions that wrote parts with the sequence number used 2 and 3, too; a log with
/// fragments has side lanes, which those versions do not open.)
const FRAGMENT: u64 = 2;
const STREAM_FRAGMENT: u64 = 3;

/// The kinds whose number stands alone.
const DATA_ALONE: u64 = 5;
const ABORT_ALONE: u64 = 6;

/// The kind of a log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecordKind {
    /// A whole transaction.
    Data,
    /// Numbers that were assigned and aborted.
    Abort,
    /// A whole transaction that recovery keeps only if it keeps its dependencies.
    Dependent {
        /// Bytes of the dependencies in front of the payload.
        dependencies: usize,
    },
    /// A part of a streamed transaction, without a sequence number.
    Part {
        /// Number of the stream.
        stream: u64,
        /// Place in the whole payload.
        offset: u64,
    },
    /// The commit of a streamed transaction.
    Commit {
        /// Number of the stream.
        stream: u64,
        /// Bytes of all parts.
        total: u64,
    },
}

/// Bytes of a commit record's payload in front of the dependencies.
pub(crate) const COMMIT_BYTES: usize = 16;

/// A decoded log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawLogRecord<'a> {
    pub(crate) seqno: SeqNo,
    pub(crate) records: u32,
    pub(crate) kind: LogRecordKind,
    pub(crate) payload: &'a [u8],
    /// The rest of the transaction, if this is a fragment of it.
    pub(crate) rest: Rest,
}

/// The counts of a transaction's numbers before and after those of a fragment: 0 and 0 for a whole
/// transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rest {
    pub(crate) before: u32,
    pub(crate) after: u32,
    /// Whether all fragments have the transaction's one number. The counts are then those of the
    /// fragments.
    pub(crate) shares_number: bool,
}

impl Rest {
    /// Whether the numbers are those of a whole transaction.
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// The contents of a log record's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRecordHeader {
    pub(crate) seqno: SeqNo,
    pub(crate) records: u32,
    pub(crate) kind: LogRecordKind,
    pub(crate) payload_len: usize,
}

impl LogRecordHeader {
    /// Encodes the header at the beginning of `out`, which has room for [`RECORD_HEADER_MAX`]
    /// bytes. `previous` is the number of the previous log record, `None` if unknown. Returns the
    /// header's length.
    ///
    /// # Panics
    /// If `previous` is `None` for a kind that requires it.
    #[inline]
    pub(crate) fn encode(self, previous: Option<SeqNo>, out: &mut [u8]) -> usize {
        let Self {
            seqno,
            records,
            kind,
            payload_len,
        } = self;
        let (code, extra) = match (kind, previous) {
            (LogRecordKind::Data, Some(_)) => (0, None),
            (LogRecordKind::Abort, Some(_)) => (1, None),
            (LogRecordKind::Part { offset, .. }, _) => (STREAM, Some(offset)),
            (LogRecordKind::Commit { .. }, _) => (STREAM, None),
            (LogRecordKind::Dependent { dependencies }, Some(_)) => (4, Some(dependencies as u64)),
            (LogRecordKind::Data, None) => (DATA_ALONE, None),
            (LogRecordKind::Abort, None) => (ABORT_ALONE, None),
            (_, None) => panic!("a {kind:?} record follows a known one"),
        };
        let tag = u64::from(records) << 3 | code;
        let delta = match kind {
            LogRecordKind::Part { stream, .. } => stream,
            LogRecordKind::Commit { .. } => seqno.get(),
            _ => seqno.get().wrapping_sub(previous.map_or(0, SeqNo::get)),
        };
        let delta = delta.cast_signed();
        let zigzag = ((delta << 1) ^ (delta >> 63)).cast_unsigned();
        let len = payload_len as u64;
        // The common case, in one step.
        if extra.is_none() && (tag | zigzag | len) < 0x80 {
            out[..3].copy_from_slice(&[narrow(tag), narrow(zigzag), narrow(len)]);
            return 3;
        }
        let mut at = 0;
        let mut put = |value| at += put_varint(value, &mut out[at..]);
        put(tag);
        put(zigzag);
        if let Some(extra) = extra {
            put(extra);
        }
        put(len);
        at
    }
}

/// The contents of a fragment's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentHeader {
    /// The last number of the fragment.
    pub(crate) seqno: SeqNo,
    pub(crate) records: u32,
    pub(crate) rest: Rest,
    /// Whether this is the commit record of a stream.
    pub(crate) is_streamed: bool,
    /// Bytes of the dependencies at the beginning of the payload, of a fragment that shares its
    /// number and is not a stream.
    pub(crate) dependencies: usize,
    pub(crate) payload_len: usize,
}

impl FragmentHeader {
    /// Encodes the header as [`LogRecordHeader::encode`] does. The number stands alone.
    pub(crate) fn encode(self, out: &mut [u8]) -> usize {
        let code = if self.is_streamed {
            STREAM_FRAGMENT
        } else {
            FRAGMENT
        };
        let mut at = 0;
        let mut put = |value| at += put_varint(value, &mut out[at..]);
        let records = if self.rest.shares_number {
            0
        } else {
            self.records
        };
        put(u64::from(records) << 3 | code);
        put(self.seqno.get() << 1);
        put(u64::from(self.rest.before));
        put(u64::from(self.rest.after));
        if self.rest.shares_number && !self.is_streamed {
            put(self.dependencies as u64);
        }
        put(self.payload_len as u64);
        at
    }
}

#[inline]
fn put_varint(mut value: u64, out: &mut [u8]) -> usize {
    let mut at = 0;
    while value >= 0x80 {
        out[at] = (value & 0x7f) as u8 | 0x80;
        at += 1;
        value >>= 7;
    }
    out[at] = narrow(value);
    at + 1
}

/// Iterates over the log records of a chunk's payload.
pub(crate) struct LogRecords<'a> {
    rest: &'a [u8],
    whole: usize,
    previous: SeqNo,
}

impl<'a> LogRecords<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            whole: payload.len(),
            previous: SeqNo::NONE,
        }
    }

    /// Returns the offset in the chunk's payload after the last log record.
    pub(crate) fn position(&self) -> usize {
        self.whole - self.rest.len()
    }

    /// Returns the next log record; `None` at the end, `Err` if the bytes are not a log record.
    #[allow(
        clippy::should_implement_trait,
        reason = "an Option of a Result suits `?` less"
    )]
    pub(crate) fn next(&mut self) -> Result<Option<RawLogRecord<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.get()?;
        let mut records = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
        let zigzag = self.get()?;
        let delta = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
        let code = tag & 7;
        let previous = match code {
            DATA_ALONE | ABORT_ALONE | STREAM | FRAGMENT | STREAM_FRAGMENT => SeqNo::NONE,
            _ => self.previous,
        };
        let number = previous.get().wrapping_add(delta);
        let mut rest = Rest::default();
        if code == FRAGMENT || code == STREAM_FRAGMENT {
            rest = self.rest_of(number, records)?;
            records = records.max(1);
        }
        let mut kind = match code {
            FRAGMENT if rest.shares_number => match self.dependencies()? {
                0 => LogRecordKind::Data,
                dependencies => LogRecordKind::Dependent { dependencies },
            },
            0 | DATA_ALONE | FRAGMENT => LogRecordKind::Data,
            1 | ABORT_ALONE => LogRecordKind::Abort,
            STREAM if records == 0 => LogRecordKind::Part {
                stream: number,
                offset: self.get()?,
            },
            // The payload says which.
            STREAM | STREAM_FRAGMENT => LogRecordKind::Commit {
                stream: 0,
                total: 0,
            },
            4 => LogRecordKind::Dependent {
                dependencies: self.dependencies()?,
            },
            _ => return Err(Malformed),
        };
        let len = usize::try_from(self.get()?).map_err(|_| Malformed)?;
        let (payload, after) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        if matches!(kind, LogRecordKind::Dependent { dependencies }
            if dependencies > len || !dependencies.is_multiple_of(size_of::<u64>()))
        {
            return Err(Malformed);
        }
        let is_part = matches!(kind, LogRecordKind::Part { .. });
        let least = u64::from(records).max(1);
        if (records == 0) != is_part || !(least..NUMBERS_MAX).contains(&number) {
            return Err(Malformed);
        }
        self.rest = after;
        let mut seqno = SeqNo::new(number);
        match &mut kind {
            LogRecordKind::Part { .. } => seqno = SeqNo::NONE,
            LogRecordKind::Commit { stream, total } => {
                let (words, odd) = payload.as_chunks();
                let [of, bytes, ..] = words else {
                    return Err(Malformed);
                };
                if !odd.is_empty() {
                    return Err(Malformed);
                }
                (*stream, *total) = (u64::from_le_bytes(*of), u64::from_le_bytes(*bytes));
                self.previous = seqno;
            }
            _ => self.previous = seqno,
        }
        Ok(Some(RawLogRecord {
            seqno,
            records,
            kind,
            payload,
            rest,
        }))
    }

    fn dependencies(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.get()?).map_err(|_| Malformed)
    }

    /// Reads the counts of a fragment, whose last number is `number`.
    fn rest_of(&mut self, number: u64, records: u32) -> Result<Rest, Malformed> {
        let mut count = || u32::try_from(self.get()?).map_err(|_| Malformed);
        let rest = Rest {
            before: count()?,
            after: count()?,
            shares_number: records == 0,
        };
        let least = u64::from(records) + u64::from(rest.before);
        let is_possible = number >= least && number < NUMBERS_MAX - u64::from(rest.after);
        if rest.before | rest.after == 0 || !(rest.shares_number || is_possible) {
            return Err(Malformed);
        }
        Ok(rest)
    }

    fn get(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            if shift == 63 && byte > 1 {
                return Err(Malformed);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

impl<'a> RawLogRecord<'a> {
    /// The first of its numbers.
    pub(crate) fn first(&self) -> SeqNo {
        SeqNo::new(self.seqno.get() - u64::from(self.records) + 1)
    }

    /// The transaction's sequence number, of which this may be a fragment.
    pub(crate) fn transaction(&self) -> SeqNo {
        if self.rest.shares_number {
            return self.seqno;
        }
        SeqNo::new(self.seqno.get() + u64::from(self.rest.after))
    }

    /// Whether it is a whole transaction, or a whole fragment.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(
            self.kind,
            LogRecordKind::Data | LogRecordKind::Dependent { .. }
        )
    }

    /// Returns the transactions that this one depends on, and the payload.
    pub(crate) fn split(&self) -> (impl Iterator<Item = SeqNo> + 'a, &'a [u8]) {
        let (dependencies, payload) = match self.kind {
            LogRecordKind::Dependent { dependencies } => self.payload.split_at(dependencies),
            LogRecordKind::Commit { .. } => (&self.payload[COMMIT_BYTES..], &[][..]),
            _ => (&[][..], self.payload),
        };
        let words = dependencies.as_chunks::<8>().0.iter();
        let numbers = words.map(|word| SeqNo::new(u64::from_le_bytes(*word)));
        (numbers, payload)
    }

    /// The stream that an abort record ends.
    pub(crate) fn aborted_stream(&self) -> Option<u64> {
        let stream = <[u8; 8]>::try_from(self.payload).ok()?;
        (self.kind == LogRecordKind::Abort).then_some(u64::from_le_bytes(stream))
    }
}

/// The error for bytes that are not a log record under a valid CRC: a defect of the writer, or a
/// forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = LogRecordKind> {
        prop_oneof![
            Just(LogRecordKind::Data),
            Just(LogRecordKind::Abort),
            (1..NUMBERS_MAX, any::<u64>())
                .prop_map(|(stream, offset)| LogRecordKind::Part { stream, offset }),
            any::<(u64, u64)>().prop_map(|(stream, total)| LogRecordKind::Commit { stream, total }),
            Just(LogRecordKind::Dependent { dependencies: 0 }),
        ]
    }

    proptest! {
        #[test]
        fn round_trips(
            log_records in prop::collection::vec(
                (1u64 << 32..NUMBERS_MAX, 1u32.., kinds(), prop::collection::vec(any::<u8>(), 0..300)),
                0..20,
            ),
        ) {
            let mut bytes = Vec::new();
            let mut previous = SeqNo::NONE;
            let mut expected = Vec::new();
            for (seqno, mut records, kind, mut payload) in log_records {
                let mut seqno = SeqNo::new(seqno);
                match kind {
                    LogRecordKind::Part { .. } => (seqno, records) = (SeqNo::NONE, 0),
                    LogRecordKind::Commit { stream, total } => {
                        payload.truncate(payload.len() / 8 * 8);
                        payload.splice(0..0, [stream, total].map(u64::to_le_bytes).concat());
                    }
                    _ => {}
                }
                let payload_len = payload.len();
                let header = LogRecordHeader { seqno, records, kind, payload_len };
                let mut room = [0; RECORD_HEADER_MAX];
                // Without a previous record, for the kinds that allow it.
                let alone = seqno.get().is_multiple_of(2)
                    && matches!(kind, LogRecordKind::Data | LogRecordKind::Abort);
                let len = header.encode((!alone).then_some(previous), &mut room);
                bytes.extend_from_slice(&room[..len]);
                bytes.extend_from_slice(&payload);
                if seqno != SeqNo::NONE {
                    previous = seqno;
                }
                expected.push((seqno, records, kind, payload));
            }
            let mut read = LogRecords::new(&bytes);
            for (seqno, records, kind, payload) in &expected {
                let log_record = read.next().unwrap().unwrap();
                prop_assert_eq!(log_record.seqno, *seqno);
                prop_assert_eq!(log_record.records, *records);
                prop_assert_eq!(log_record.kind, *kind);
                prop_assert_eq!(log_record.payload, &payload[..]);
            }
            prop_assert_eq!(read.next(), Ok(None));
        }

        #[test]
        fn survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut read = LogRecords::new(&bytes);
            while let Ok(Some(_)) = read.next() {}
        }
    }

    proptest! {
        #[test]
        fn fragments_round_trip(
            seqno in 1u64 << 34..1 << 50,
            records in 1u32..,
            counts in any::<(u32, u32)>().prop_filter("a rest", |counts| *counts != (0, 0)),
            payload in prop::collection::vec(any::<u8>(), 0..100),
            is_streamed: bool,
            shares_number: bool,
            on in 0usize..3,
        ) {
            let (seqno, (before, after)) = (SeqNo::new(seqno), counts);
            let rest = Rest { before, after, shares_number };
            let records = if shares_number { 1 } else { records };
            let mut payload = payload;
            if is_streamed {
                payload.splice(.., [7u64, 300_000].map(u64::to_le_bytes).concat());
            }
            let on = if shares_number { on } else { 0 };
            payload.splice(..0, vec![0; 8 * on].into_iter().filter(|_| !is_streamed));
            payload.extend(vec![0; 8 * on].iter().filter(|_| is_streamed));
            let (payload_len, dependencies) = (payload.len(), 8 * on);
            let header =
                FragmentHeader { seqno, records, rest, is_streamed, dependencies, payload_len };
            let mut room = [0; RECORD_HEADER_MAX];
            let len = header.encode(&mut room);
            let mut bytes = [&room[..len], &payload].concat();
            // The next record's number is relative.
            let next = LogRecordHeader {
                seqno: seqno.next(),
                records: 1,
                kind: LogRecordKind::Data,
                payload_len: 0,
            };
            let len = next.encode(Some(seqno), &mut room);
            bytes.extend_from_slice(&room[..len]);
            let mut read = LogRecords::new(&bytes);
            let fragment = read.next().unwrap().unwrap();
            let kind = if is_streamed {
                LogRecordKind::Commit { stream: 7, total: 300_000 }
            } else if on > 0 {
                LogRecordKind::Dependent { dependencies }
            } else {
                LogRecordKind::Data
            };
            prop_assert_eq!(fragment.split().0.count(), on);
            prop_assert_eq!((fragment.seqno, fragment.records), (seqno, records));
            prop_assert_eq!((fragment.kind, fragment.rest), (kind, rest));
            prop_assert_eq!(fragment.payload, &payload[..]);
            let last = if shares_number { 0 } else { u64::from(rest.after) };
            prop_assert_eq!(fragment.transaction().get(), seqno.get() + last);
            prop_assert_eq!(read.next().unwrap().unwrap().seqno, seqno.next());
        }
    }

    /// A fragment of nothing, and one whose transaction would begin before the first number or end
    /// after the last.
    #[test]
    fn impossible_fragments_are_refused() {
        let decoded = |seqno, records, before, after| {
            let header = FragmentHeader {
                seqno: SeqNo::new(seqno),
                records,
                rest: Rest {
                    before,
                    after,
                    shares_number: records == 0,
                },
                is_streamed: false,
                dependencies: 0,
                payload_len: 0,
            };
            let mut room = [0; RECORD_HEADER_MAX];
            let len = header.encode(&mut room);
            LogRecords::new(&room[..len]).next().is_ok()
        };
        assert!(decoded(9, 2, 7, 0) && decoded(9, 2, 0, 1));
        assert!(!decoded(9, 2, 0, 0) && !decoded(9, 2, 8, 0));
        // Of fragments with one number, some may come before and after.
        assert!(decoded(9, 0, 9, 9) && !decoded(9, 0, 0, 0) && !decoded(0, 0, 0, 1));
        assert!(decoded(NUMBERS_MAX - 8, 2, 0, 7) && !decoded(NUMBERS_MAX - 8, 2, 0, 8));
    }

    #[test]
    fn a_small_header_is_small() {
        let header = LogRecordHeader {
            seqno: SeqNo::new(1_000_010),
            records: 10,
            kind: LogRecordKind::Data,
            payload_len: 120,
        };
        assert!(header.encode(Some(SeqNo::new(1_000_000)), &mut [0; RECORD_HEADER_MAX]) <= 4);
    }
}
