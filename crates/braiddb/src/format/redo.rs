//! Redo records of a transaction, as stored in its log record.
//!
//! ```text
//! record  = head, key length, [value length,] key, [value]
//! head    = varint(table number * 2 + 1 if the key is removed)
//! lengths = varints (LEB128)
//! ```
//!
//! Records are logical, whole values by key: replay needs no page, and repeating it has no effect.

use braid_rt::narrow;

use crate::{MAX_KEY_LEN, MAX_VALUE_LEN};

use crate::error::{Error, Result};

/// A transaction's write of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redo<'a> {
    pub(crate) table: u32,
    pub(crate) key: &'a [u8],
    /// `None` removes the key.
    pub(crate) value: Option<&'a [u8]>,
}

/// Maximum number of bytes that a record needs in addition to its key and value.
pub(crate) const OVERHEAD_MAX: usize = 5 + 3 + 5;

/// Location of the key and the value of an encoded record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) key_at: usize,
    pub(crate) value_at: usize,
}

/// Appends a record to `out`.
#[inline]
pub(crate) fn encode(redo: Redo<'_>, out: &mut Vec<u8>) -> Extent {
    out.reserve(OVERHEAD_MAX + redo.key.len() + redo.value.map_or(0, <[u8]>::len));
    let head = u64::from(redo.table) << 1 | u64::from(redo.value.is_none());
    let (key_len, value_len) = (redo.key.len() as u64, redo.value.map(<[u8]>::len));
    match value_len {
        // The common case, in one step.
        Some(len) if (head | key_len | len as u64) < 0x80 => {
            out.extend_from_slice(&[narrow(head), narrow(key_len), narrow(len)]);
        }
        _ => {
            put_varint(head, out);
            put_varint(key_len, out);
            if let Some(len) = value_len {
                put_varint(len as u64, out);
            }
        }
    }
    let key_at = out.len();
    out.extend_from_slice(redo.key);
    let value_at = out.len();
    out.extend_from_slice(redo.value.unwrap_or_default());
    Extent { key_at, value_at }
}

/// Iterates over the redo records of a log record, in the order in which they were written.
pub(crate) fn decode(mut log_record: &[u8]) -> impl Iterator<Item = Result<Redo<'_>>> {
    std::iter::from_fn(move || {
        if log_record.is_empty() {
            return None;
        }
        let redo = decode_one(&mut log_record);
        if redo.is_none() {
            log_record = &[];
        }
        Some(redo.ok_or_else(|| Error::Corrupted {
            what: "the lengths in a log record exceed its transaction or the limits".into(),
            location: "log".into(),
        }))
    })
}

fn decode_one<'a>(log_record: &mut &'a [u8]) -> Option<Redo<'a>> {
    let head = take_varint(log_record)?;
    let key_len = usize::try_from(take_varint(log_record)?).ok()?;
    let value_len = match head & 1 {
        0 => Some(usize::try_from(take_varint(log_record)?).ok()?),
        _ => None,
    };
    // Longer keys and values fit no page: applying them would never end.
    if key_len > MAX_KEY_LEN || value_len.is_some_and(|len| len > MAX_VALUE_LEN) {
        return None;
    }
    let key = log_record.split_off(..key_len)?;
    let value = match value_len {
        Some(len) => Some(log_record.split_off(..len)?),
        None => None,
    };
    Some(Redo {
        table: u32::try_from(head >> 1).ok()?,
        key,
        value,
    })
}

fn put_varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(narrow(n));
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoded_bytes_are_decoded(
            records in prop::collection::vec(
                (1u32.., prop::collection::vec(any::<u8>(), 0..40), prop::option::of(prop::collection::vec(any::<u8>(), 0..300))),
                0..20,
            )
        ) {
            let mut log_record = Vec::new();
            let redo = |r: &'_ (u32, Vec<u8>, Option<Vec<u8>>)| (r.0, r.1.clone(), r.2.clone());
            for (table, key, value) in &records {
                let before = log_record.len();
                let extent = encode(Redo { table: *table, key, value: value.as_deref() }, &mut log_record);
                prop_assert_eq!(&log_record[extent.key_at..extent.value_at], &key[..]);
                let bytes = key.len() + value.as_ref().map_or(0, Vec::len);
                prop_assert!(log_record.len() - before <= bytes + OVERHEAD_MAX);
            }
            let decoded: Vec<_> = decode(&log_record)
                .map(|r| r.map(|r| (r.table, r.key.to_vec(), r.value.map(<[u8]>::to_vec))))
                .collect::<Result<_>>()
                .unwrap();
            prop_assert_eq!(decoded, records.iter().map(redo).collect::<Vec<_>>());
        }

        #[test]
        fn records_that_fit_no_page_are_errors(over in 1usize..5_000) {
            let mut log_record = Vec::new();
            encode(Redo { table: 2, key: &vec![0; MAX_KEY_LEN + over], value: None }, &mut log_record);
            let decoded = decode(&log_record).next();
            let is_detected = matches!(decoded, Some(Err(Error::Corrupted { .. })));
            prop_assert!(is_detected);
        }

        #[test]
        fn damaged_bytes_end_in_an_error_and_never_panic(log_record in prop::collection::vec(any::<u8>(), 0..200)) {
            let decoded: Vec<_> = decode(&log_record).collect();
            prop_assert!(decoded.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
