//! Entries of the table `keys`: what a key is, when it expires, and where its elements are.

use bytes::{Buf, BufMut, Bytes};

use crate::failure::{Failure, Result};
use crate::kind::Kind;

/// Header of a value with elements, which lie in the table `elements` under its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    pub(crate) kind: Kind,
    /// Identity, which no other collection of this database ever has.
    pub(crate) id: u64,
    /// Number of elements; at least 1, except of a stream.
    pub(crate) len: u64,
    /// List: index of the first element. Hash: number of fields that expire. Sorted set: levels of its rank index. Stream: number of
    /// its groups.
    pub(crate) extra: i64,
    /// Ids of a stream; zeros for other types.
    pub(crate) stream: StreamHead,
}

/// What a stream remembers of entries that it need not have any more. Ids are milliseconds and a
/// sequence number, 64 bits each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamHead {
    /// Greatest id that an entry ever had.
    pub(crate) last: u128,
    /// Greatest id that XDEL removed.
    pub(crate) deleted: u128,
    /// Number of entries that were ever added.
    pub(crate) added: u64,
}

impl StreamHead {
    const LEN: usize = 40;
}

/// Value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    String(Bytes),
    Collection(Collection),
}

/// Entry of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) body: Body,
    /// Time of expiration in milliseconds since 1970.
    pub(crate) expires: Option<u64>,
    /// Changes with every modification of the value, for WATCH.
    pub(crate) stamp: u64,
}

/// Bit of the first byte: a time of expiration follows the stamp.
const EXPIRES: u8 = 0x80;

impl Entry {
    /// More than the bytes of the longest entry without a string.
    pub(super) const HEADER_MAX: usize = 17 + 24 + StreamHead::LEN + 1;

    /// Bytes before a string that does not expire.
    pub(super) const STRING_HEAD: usize = 9;

    pub(crate) fn kind(&self) -> Kind {
        match &self.body {
            Body::String(_) => Kind::String,
            Body::Collection(collection) => collection.kind,
        }
    }

    /// Returns whether the value is the collection with this identity.
    pub(crate) fn owns(&self, id: u64) -> bool {
        matches!(self.body, Body::Collection(collection) if collection.id == id)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out);
        out
    }

    /// Replaces the content of `out` by the encoded entry.
    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        out.clear();
        let text_len = match &self.body {
            Body::String(text) => text.len(),
            Body::Collection(_) => 0,
        };
        out.reserve(17 + 24 + StreamHead::LEN + text_len);
        let flag = if self.expires.is_some() { EXPIRES } else { 0 };
        out.put_u8(self.kind() as u8 | flag);
        out.put_u64(self.stamp);
        if let Some(expires) = self.expires {
            out.put_u64(expires);
        }
        match &self.body {
            Body::String(text) => out.put_slice(text),
            Body::Collection(collection) => {
                out.put_u64(collection.id);
                out.put_u64(collection.len);
                out.put_i64(collection.extra);
                if collection.kind == Kind::Stream {
                    out.put_u128(collection.stream.last);
                    out.put_u128(collection.stream.deleted);
                    out.put_u64(collection.stream.added);
                }
            }
        }
    }

    /// Replaces the content of `out` by the encoded entry of a string that does not expire.
    pub(super) fn encode_string_to(text: &[u8], stamp: u64, out: &mut Vec<u8>) {
        let mut head = [Kind::String as u8; Entry::STRING_HEAD];
        head[1..].copy_from_slice(&stamp.to_be_bytes());
        out.clear();
        out.reserve(head.len() + text.len());
        out.extend_from_slice(&head);
        out.extend_from_slice(text);
    }

    /// Returns whether an entry that begins with these bytes is a string that does not expire.
    pub(super) fn is_lasting_string(head: &[u8]) -> bool {
        head.len() >= Entry::STRING_HEAD && head[0] == Kind::String as u8
    }

    /// Decodes an entry without copying a string.
    pub(crate) fn decode(mut bytes: Bytes) -> Result<Entry> {
        let (mut entry, head) = Entry::decode_header(&bytes)?;
        if let Body::String(text) = &mut entry.body {
            bytes.advance(head);
            *text = bytes;
        }
        Ok(entry)
    }

    /// Decodes an entry except for a string, which is empty in the result. Also returns where the string
    /// begins.
    pub(crate) fn decode_header(bytes: &[u8]) -> Result<(Entry, usize)> {
        let damaged = || {
            Failure::Engine(braid::Error::Decode {
                type_name: "entry of a key",
                reason: "the entry is too short, or its type is unknown to this version".to_owned(),
            })
        };
        let &first = bytes.first().ok_or_else(damaged)?;
        let kind = Kind::from_byte(first & !EXPIRES).ok_or_else(damaged)?;
        let head = if first & EXPIRES != 0 { 17 } else { 9 };
        if bytes.len() < head {
            return Err(damaged());
        }
        let (fields, bytes) = bytes.split_at(head);
        let word = |at: usize| read_u64(&fields[at..]);
        let stamp = word(1);
        let expires = (head == 17).then(|| word(9));
        let body = if kind == Kind::String {
            Body::String(Bytes::new())
        } else {
            let is_stream = kind == Kind::Stream;
            if bytes.len() != 24 + if is_stream { StreamHead::LEN } else { 0 } {
                return Err(damaged());
            }
            let stream = if is_stream {
                StreamHead {
                    last: read_u128(&bytes[24..]),
                    deleted: read_u128(&bytes[40..]),
                    added: read_u64(&bytes[56..]),
                }
            } else {
                StreamHead::default()
            };
            Body::Collection(Collection {
                kind,
                id: read_u64(bytes),
                len: read_u64(&bytes[8..]),
                extra: read_u64(&bytes[16..]) as i64,
                stream,
            })
        };
        let entry = Entry {
            body,
            expires,
            stamp,
        };
        Ok((entry, head))
    }
}

/// Reads a big-endian number; zero if there are fewer than eight bytes.
pub(crate) fn read_u64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_be_bytes(*word))
}

/// Reads a big-endian number; zero if there are fewer than sixteen bytes.
pub(crate) fn read_u128(bytes: &[u8]) -> u128 {
    bytes
        .first_chunk()
        .map_or(0, |word| u128::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_decode_to_themselves() {
        for expires in [None, Some(7)] {
            for body in [
                Body::String(Bytes::from_static(b"text")),
                Body::String(Bytes::new()),
                Body::Collection(Collection {
                    kind: Kind::List,
                    id: 9,
                    len: 3,
                    extra: -4,
                    stream: StreamHead::default(),
                }),
                Body::Collection(Collection {
                    kind: Kind::Stream,
                    id: 9,
                    len: 0,
                    extra: 1,
                    stream: StreamHead {
                        last: 7 << 64 | 1,
                        deleted: 6 << 64,
                        added: 2,
                    },
                }),
            ] {
                let entry = Entry {
                    body,
                    expires,
                    stamp: 5,
                };
                let encoded = entry.encode();
                assert_eq!(Entry::decode(encoded.clone().into()).unwrap(), entry);
                let is_lasting_string = expires.is_none() && entry.kind() == Kind::String;
                assert_eq!(Entry::is_lasting_string(&encoded), is_lasting_string);
                if let Body::String(text) = &entry.body
                    && is_lasting_string
                {
                    let mut out = vec![1; 3];
                    Entry::encode_string_to(text, entry.stamp, &mut out);
                    assert_eq!(out, encoded);
                }
                let (mut header, start) = Entry::decode_header(&encoded).unwrap();
                if let Body::String(text) = &mut header.body {
                    assert!(text.is_empty());
                    *text = Bytes::copy_from_slice(&encoded[start..]);
                }
                assert_eq!(header, entry);
                let shortest = if entry.kind() == Kind::String {
                    9
                } else {
                    encoded.len()
                };
                for len in 0..shortest {
                    assert!(Entry::decode(encoded[..len].to_vec().into()).is_err());
                }
            }
        }
        assert!(Entry::decode(Bytes::from_static(&[0x7f; 40])).is_err());
    }
}
