//! Value format: the stored form of values in tables with options.
//!
//! A table without options stores its values unchanged. A table with options stores a byte of flags
//! before each value, followed by the time of the write (milliseconds since 1970, u64) if the bit
//! `TIMED` is set, the value's length (u32) if the bit `LZ4` is set, and the value, or an LZ4 block
//! of it. The write set, the log, the trees and the old versions contain this form; only a
//! transaction's reads and writes decode and encode it.

use std::time::Duration;

use braid_rt::narrow;
use bytes::Bytes;

use crate::MAX_VALUE_LEN;
use crate::base::table_options::{Compression, TableOptions};
use crate::error::{Error, Result};
use crate::options::millis;

const TIMED: u8 = 1;
const LZ4: u8 = 2;

/// Minimum length of a value to compress.
const COMPRESSED_FROM: usize = 32;

/// Maximum number of bytes that the stored form adds to a value.
const OVERHEAD_MAX: usize = 1 + 8;

impl TableOptions {
    /// Checks that a table can be created with these options.
    pub(crate) fn check(&self) -> Result<()> {
        match self.time_to_live.map(|ttl| ttl.as_millis()) {
            Some(0) => Err(Error::InvalidOption {
                option: "time_to_live",
                reason: "must be at least 1 ms".into(),
            }),
            Some(ttl) if ttl > u128::from(u64::MAX) => Err(Error::InvalidOption {
                option: "time_to_live",
                reason: "must be less than 2^64 ms; leave it out to keep entries forever".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Encodes the options for the catalog; empty for default options.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Some(ValueFormat { lz4, ttl }) = self.value_format() else {
            return Vec::new();
        };
        [&[u8::from(lz4)][..], &ttl.to_le_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (compression, ttl) = bytes.split_first()?;
        let compression = match compression {
            0 => Compression::None,
            1 => Compression::Lz4,
            _ => return None,
        };
        let ttl = u64::from_le_bytes(ttl.try_into().ok()?);
        Some(Self {
            compression,
            time_to_live: (ttl > 0).then(|| Duration::from_millis(ttl)),
        })
    }

    /// Returns the stored form of values, if the options require one.
    pub(crate) fn value_format(&self) -> Option<ValueFormat> {
        let lz4 = self.compression == Compression::Lz4;
        let ttl = self.time_to_live.map_or(0, millis);
        (lz4 || ttl > 0).then_some(ValueFormat { lz4, ttl })
    }
}

/// Stored form of values; see the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFormat {
    lz4: bool,
    /// Time to live in milliseconds; 0 if entries never expire.
    ttl: u64,
}

/// The parts of a stored value.
struct Parts<'a> {
    written: u64,
    /// Length of the value, if it is compressed.
    len: Option<usize>,
    bytes: &'a [u8],
}

impl ValueFormat {
    /// Maximum length of a value in a table with options.
    pub(crate) const VALUE_LEN_MAX: usize = MAX_VALUE_LEN - OVERHEAD_MAX;

    pub(crate) fn is_timed(&self) -> bool {
        self.ttl > 0
    }

    /// Returns the pause between two sweeps of the table: an eighth of the time to live, at least a
    /// second.
    pub(crate) fn sweep_pause(&self) -> u64 {
        (self.ttl / 8).max(1_000)
    }

    /// Replaces `out` with the stored form of a value written at time `now`.
    pub(crate) fn encode(&self, value: &[u8], now: impl FnOnce() -> u64, out: &mut Vec<u8>) {
        out.clear();
        out.push(0);
        if self.is_timed() {
            out[0] |= TIMED;
            out.extend(now().to_le_bytes());
        }
        let at = out.len();
        if self.lz4 && value.len() >= COMPRESSED_FROM {
            let room = lz4_flex::block::get_maximum_output_size(value.len());
            out.extend(narrow::<u32>(value.len()).to_le_bytes());
            out.resize(at + 4 + room, 0);
            let written = lz4_flex::block::compress_into(value, &mut out[at + 4..]);
            if let Ok(written) = written
                && written + 4 < value.len()
            {
                out[0] |= LZ4;
                out.truncate(at + 4 + written);
                return;
            }
            out.truncate(at);
        }
        out.extend_from_slice(value);
    }

    fn take_apart<'a>(&self, stored: &'a [u8]) -> Option<Parts<'a>> {
        let (&kind, mut bytes) = stored.split_first()?;
        if kind & !(TIMED | LZ4) != 0 || (kind & TIMED != 0) != self.is_timed() {
            return None;
        }
        let written = if kind & TIMED != 0 {
            u64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?)
        } else {
            0
        };
        let len = if kind & LZ4 != 0 {
            Some(u32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?) as usize)
        } else {
            None
        };
        // An LZ4 block has at least a 255th of the value's length: a damaged length allocates no
        // more memory.
        let fits = len.is_none_or(|len| len <= MAX_VALUE_LEN && len / 256 <= bytes.len());
        fits.then_some(Parts {
            written,
            len,
            bytes,
        })
    }

    fn is_over(&self, written: u64, now: u64) -> bool {
        let ttl = if braid_rt::mutant!("half_a_life") {
            self.ttl / 2
        } else {
            self.ttl
        };
        self.is_timed() && now.saturating_sub(written) >= ttl
    }

    /// Returns whether a stored value has expired. An invalid one has not, so that a reader gets an
    /// error.
    pub(crate) fn is_expired(&self, stored: &[u8], now: u64) -> bool {
        let parts = self.take_apart(stored);
        parts.is_some_and(|parts| self.is_over(parts.written, now))
    }

    /// Decodes a stored value; `None` if it had expired by `now`.
    pub(crate) fn open(&self, stored: &Bytes, now: impl FnOnce() -> u64) -> Result<Option<Bytes>> {
        let parts = self.take_apart(stored).ok_or_else(nonsense)?;
        if self.is_timed() && self.is_over(parts.written, now()) {
            return Ok(None);
        }
        match parts.len {
            None => Ok(Some(stored.slice_ref(parts.bytes))),
            Some(len) => {
                let mut value = vec![0; len];
                let found = lz4_flex::block::decompress_into(parts.bytes, &mut value);
                match found {
                    Ok(found) if found == len => Ok(Some(value.into())),
                    _ => Err(nonsense()),
                }
            }
        }
    }
}

#[cold]
fn nonsense() -> Error {
    Error::Corrupted {
        what: "a stored value does not match the table's options".into(),
        location: "a table's values".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options() -> impl Strategy<Value = TableOptions> {
        (any::<bool>(), prop_oneof![Just(0u64), 1..100_000u64]).prop_map(|(lz4, ttl)| {
            TableOptions {
                compression: if lz4 {
                    Compression::Lz4
                } else {
                    Compression::None
                },
                time_to_live: (ttl > 0).then(|| Duration::from_millis(ttl)),
            }
        })
    }

    proptest! {
        #[test]
        fn stored_values_are_read_until_they_expire(
            options in options(),
            value in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                (any::<u8>(), 0usize..50_000).prop_map(|(byte, len)| vec![byte; len]),
            ],
            written in 0u64..1 << 50,
        ) {
            prop_assert_eq!(TableOptions::decode(&options.encode()).unwrap_or_default(), options);
            let Some(value_format) = options.value_format() else { return Ok(()) };
            let mut stored = Vec::new();
            value_format.encode(&value, || written, &mut stored);
            prop_assert!(stored.len() <= value.len() + OVERHEAD_MAX);
            let stored = Bytes::from(stored);
            for age in [0, value_format.ttl.saturating_sub(1), value_format.ttl, 200_000] {
                let is_over = value_format.ttl > 0 && age >= value_format.ttl;
                prop_assert_eq!(value_format.is_expired(&stored, written + age), is_over);
                let found = value_format.open(&stored, || written + age).unwrap();
                prop_assert_eq!(found.as_deref(), (!is_over).then_some(&value[..]));
            }
        }

        #[test]
        fn nonsense_is_an_error_and_takes_no_memory(
            options in options(),
            stored in prop::collection::vec(any::<u8>(), 0..60),
            kind in 0u8..4,
        ) {
            let Some(value_format) = options.value_format() else { return Ok(()) };
            let _ = value_format.open(&Bytes::from(stored.clone()), || 5);
            let stored = [&[kind][..], &stored].concat();
            if let Ok(Some(found)) = value_format.open(&Bytes::from(stored.clone()), || 5) {
                prop_assert!(found.len() <= 256 * stored.len());
            }
        }
    }

    #[test]
    fn repetitive_values_become_small() {
        let value_format = ValueFormat { lz4: true, ttl: 0 };
        let mut stored = Vec::new();
        value_format.encode(&[7; 10_000], || 0, &mut stored);
        assert!(stored.len() < 100, "{}", stored.len());
    }
}
