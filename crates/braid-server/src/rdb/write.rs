//! Writes values.

use bytes::BufMut;

use super::{Value, types};

/// Version of Redis 7.0.
const VERSION: u16 = 10;

/// Version of Redis 7.4, which fields with times of expiration need.
const VERSION_WITH_TIMES: u16 = 12;

pub(super) fn put_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..64 => out.put_u8(length as u8),
        64..16_384 => out.put_u16(0x4000 | length as u16),
        _ => match u32::try_from(length) {
            Ok(length) => {
                out.put_u8(0x80);
                out.put_u32(length);
            }
            Err(_) => {
                out.put_u8(0x81);
                out.put_u64(length);
            }
        },
    }
}

pub(crate) fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    put_length(out, text.len() as u64);
    out.put_slice(text);
}

/// Returns the encoded value, and the version of the format that it needs.
pub(super) fn value(value: &Value) -> (Vec<u8>, u16) {
    let mut out = Vec::new();
    match value {
        Value::String(text) => {
            out.put_u8(types::STRING);
            put_string(&mut out, text);
        }
        Value::List(elements) | Value::Set(elements) => {
            out.put_u8(if matches!(value, Value::List(_)) {
                types::LIST
            } else {
                types::SET
            });
            put_length(&mut out, elements.len() as u64);
            for element in elements {
                put_string(&mut out, element);
            }
        }
        Value::Hash(fields) => {
            let earliest = fields.iter().filter_map(|field| field.expires).min();
            if let Some(earliest) = earliest {
                out.put_u8(types::HASH_METADATA);
                out.put_u64_le(earliest);
            } else {
                out.put_u8(types::HASH);
            }
            put_length(&mut out, fields.len() as u64);
            for field in fields {
                if let Some(earliest) = earliest {
                    let after = field.expires.map_or(0, |expires| expires - earliest + 1);
                    put_length(&mut out, after);
                }
                put_string(&mut out, &field.name);
                put_string(&mut out, &field.value);
            }
            if earliest.is_some() {
                return (out, VERSION_WITH_TIMES);
            }
        }
        Value::SortedSet(members) => {
            out.put_u8(types::SORTED_SET);
            put_length(&mut out, members.len() as u64);
            for (member, score) in members {
                put_string(&mut out, member);
                out.put_f64_le(*score);
            }
        }
        Value::Stream(stream) => super::stream::write(stream, &mut out),
    }
    (out, VERSION)
}
