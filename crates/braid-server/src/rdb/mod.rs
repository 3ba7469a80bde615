//! Redis' serialization format of one value, as DUMP returns it and RESTORE takes it: the type, the
//! value, two bytes of version, and a CRC-64 of everything before.
//!
//! Values are written in the forms that Redis 7.0 and later can read, and the forms of all versions
//! from 2.6 on are read. Nothing is believed before the checksum fits, and lengths inside are checked
//! against the bytes that are there before anything is allocated for them.

mod crc64;
mod packed;
mod read;
mod stream;
mod write;

use bytes::{BufMut, Bytes};

#[cfg(feature = "scripts")]
pub(crate) use write::put_string;

pub(crate) use read::Reader;

/// Newest version that is read: Redis 7.4.
const NEWEST: u16 = 12;

/// Bytes of the version and the checksum.
const FOOTER: usize = 10;

/// Types as the format numbers them.
mod types {
    pub(super) const STRING: u8 = 0;
    pub(super) const LIST: u8 = 1;
    pub(super) const SET: u8 = 2;
    pub(super) const SORTED_SET_TEXT: u8 = 3;
    pub(super) const HASH: u8 = 4;
    pub(super) const SORTED_SET: u8 = 5;
    pub(super) const LIST_ZIPLIST: u8 = 10;
    pub(super) const SET_INTSET: u8 = 11;
    pub(super) const SORTED_SET_ZIPLIST: u8 = 12;
    pub(super) const HASH_ZIPLIST: u8 = 13;
    pub(super) const LIST_QUICKLIST: u8 = 14;
    pub(super) const STREAM: u8 = 15;
    pub(super) const HASH_LISTPACK: u8 = 16;
    pub(super) const SORTED_SET_LISTPACK: u8 = 17;
    pub(super) const LIST_QUICKLIST_2: u8 = 18;
    pub(super) const STREAM_2: u8 = 19;
    pub(super) const SET_LISTPACK: u8 = 20;
    pub(super) const STREAM_3: u8 = 21;
    pub(super) const HASH_METADATA: u8 = 24;
    pub(super) const HASH_LISTPACK_EX: u8 = 25;
}

/// Why a payload cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The checksum does not fit, or the version is newer than this program.
    Footer,
    /// The value breaks the format.
    Value,
}

/// A field of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
    /// Time of expiration in milliseconds since 1970.
    pub(crate) expires: Option<u64>,
}

/// A value of any type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    String(Bytes),
    List(Vec<Bytes>),
    Set(Vec<Bytes>),
    Hash(Vec<Field>),
    SortedSet(Vec<(Bytes, f64)>),
    Stream(StreamValue),
}

/// A stream. Ids are milliseconds and a sequence number, 64 bits each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamValue {
    /// Entries in the order of their ids, with fields and values in turn.
    pub(crate) entries: Vec<(u128, Vec<Bytes>)>,
    pub(crate) last: u128,
    pub(crate) deleted: u128,
    pub(crate) added: u64,
    pub(crate) groups: Vec<GroupValue>,
}

/// A group of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupValue {
    pub(crate) name: Bytes,
    pub(crate) last: u128,
    pub(crate) read: Option<u64>,
    pub(crate) consumers: Vec<ConsumerValue>,
}

/// A consumer of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConsumerValue {
    pub(crate) name: Bytes,
    pub(crate) seen: u64,
    pub(crate) active: u64,
    pub(crate) pending: Vec<PendingValue>,
}

/// An entry that was delivered to a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingValue {
    pub(crate) id: u128,
    pub(crate) time: u64,
    pub(crate) count: u64,
}

/// Adds the version and the checksum.
pub(crate) fn seal(mut out: Vec<u8>, version: u16) -> Bytes {
    out.put_u16_le(version);
    let sum = crc64::checksum(&out);
    out.put_u64_le(sum);
    out.into()
}

/// Returns what is before the version and the checksum, which are right.
pub(crate) fn unseal(payload: &Bytes) -> Result<Bytes, Malformed> {
    let end = payload.len().checked_sub(FOOTER).ok_or(Malformed::Footer)?;
    let footer = &payload[end..];
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    let sum = crc64::checksum(&payload[..end + 2]);
    if version > NEWEST || footer[2..] != sum.to_le_bytes() {
        return Err(Malformed::Footer);
    }
    Ok(payload.slice(..end))
}

/// Encodes a value with its version and checksum.
pub(crate) fn encode(value: &Value) -> Bytes {
    let (out, version) = write::value(value);
    seal(out, version)
}

/// Decodes a payload.
pub(crate) fn decode(payload: &Bytes) -> Result<Value, Malformed> {
    let mut reader = Reader::new(unseal(payload)?);
    let value = reader.value()?;
    reader.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn field(name: &'static str, value: &'static str, expires: Option<u64>) -> Field {
        let (name, value) = (text(name), text(value));
        Field {
            name,
            value,
            expires,
        }
    }

    fn values() -> Vec<Value> {
        let fields = |names: [&'static str; 4]| names.map(text).to_vec();
        vec![
            Value::String(text("")),
            Value::String(vec![7; 70_000].into()),
            Value::List(vec![text("a"), text(""), text("12")]),
            Value::Set(vec![text("a"), vec![b'x'; 100].into()]),
            Value::Hash(vec![field("a", "1", None), field("b", "", None)]),
            Value::Hash(vec![field("a", "1", Some(9_000)), field("b", "2", None)]),
            Value::SortedSet(vec![
                (text("a"), f64::NEG_INFINITY),
                (text("b"), 1.5),
                (text("c"), f64::INFINITY),
            ]),
            Value::Stream(StreamValue::default()),
            Value::Stream(StreamValue {
                entries: (1..=250u128)
                    .map(|number| {
                        let names = if number % 7 == 0 {
                            ["a", "1", "b", "2"]
                        } else {
                            ["a", "3", "c", ""]
                        };
                        ((number << 64) | (number % 3), fields(names))
                    })
                    .collect(),
                last: 300 << 64,
                deleted: 299 << 64 | 1,
                added: 270,
                groups: vec![GroupValue {
                    name: text("g"),
                    last: 5 << 64,
                    read: Some(4),
                    consumers: vec![
                        ConsumerValue {
                            name: text("c"),
                            seen: 1_000,
                            active: 1_000,
                            pending: vec![PendingValue {
                                id: 2 << 64,
                                time: 77,
                                count: 3,
                            }],
                        },
                        ConsumerValue {
                            name: text("d"),
                            seen: 2_000,
                            active: 2_000,
                            pending: Vec::new(),
                        },
                    ],
                }],
            }),
        ]
    }

    #[test]
    fn values_decode_to_themselves() {
        for value in values() {
            assert_eq!(decode(&encode(&value)), Ok(value));
        }
    }

    #[test]
    fn damaged_payloads_are_refused() {
        for value in values() {
            let payload = encode(&value);
            for at in [
                0,
                1,
                payload.len() / 2,
                payload.len() - 9,
                payload.len() - 1,
            ] {
                let mut damaged = payload.to_vec();
                damaged[at] ^= 1;
                assert_eq!(decode(&damaged.into()), Err(Malformed::Footer));
            }
            for len in [0, 5, 9, payload.len() - 1] {
                assert_eq!(decode(&payload.slice(..len)), Err(Malformed::Footer));
            }
            let newer = seal(payload[..payload.len() - FOOTER].to_vec(), NEWEST + 1);
            assert_eq!(decode(&newer), Err(Malformed::Footer));
        }
    }

    /// A wrong value with a right checksum, as a program other than Redis may send it.
    #[test]
    fn any_bytes_with_a_right_checksum_are_refused_or_decoded() {
        let mut random = fastrand::Rng::with_seed(7);
        for value in values() {
            let payload = encode(&value);
            let whole = &payload[..payload.len() - FOOTER];
            for len in 0..whole.len().min(300) {
                assert_eq!(
                    decode(&seal(whole[..len].to_vec(), 10)),
                    Err(Malformed::Value),
                    "{value:?} ends after {len} bytes"
                );
            }
            for _ in 0..2_000 {
                let mut wrong = whole.to_vec();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(..wrong.len());
                    let byte = random.u8(..);
                    let bytes = [0, 1, 0x80, 0x81, 0xc3, 0xff, byte];
                    wrong[at] = random.choice(bytes).unwrap_or(0);
                }
                // Must end, and not allocate what is not there.
                let _ = decode(&seal(wrong, 10));
            }
        }
    }
}
