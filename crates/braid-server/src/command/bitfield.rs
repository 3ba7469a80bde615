//! BITFIELD: integers of any width inside a string.

use bytes::Bytes;

use super::arguments::{Options, integer, is};
use super::strings::{STRING_MAX, replace, string_entry};
use crate::failure::{Failure, Result};
use crate::keyspace::Data;
use crate::resp::Reply;
use crate::resp::number::parse_i64;

/// Treatment of a number that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// Type of an integer in a string.
#[derive(Clone, Copy, Debug)]
struct Field {
    is_signed: bool,
    bits: u32,
    /// Position of the first bit.
    offset: u64,
}

impl Field {
    fn parse(kind: &[u8], offset: &[u8]) -> Result<Field> {
        let wrong = || {
            Failure::client(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            )
        };
        let (is_signed, digits) = match kind {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(wrong()),
        };
        let bits = parse_i64(digits).ok_or_else(wrong)?;
        let widest = if is_signed { 64 } else { 63 };
        if !(1..=widest).contains(&bits) {
            return Err(wrong());
        }
        let wrong = || Failure::client("ERR bit offset is not an integer or out of range");
        let (digits, unit) = match offset {
            [b'#', digits @ ..] => (digits, bits),
            digits => (digits, 1),
        };
        let offset = parse_i64(digits)
            .and_then(|offset| offset.checked_mul(unit))
            .ok_or_else(wrong)?;
        let offset = u64::try_from(offset).map_err(|_| wrong())?;
        if (offset + bits as u64).div_ceil(8) > STRING_MAX as u64 {
            return Err(wrong());
        }
        Ok(Field {
            is_signed,
            bits: bits as u32,
            offset,
        })
    }

    /// Bits beyond the end of the string are zero.
    fn read(self, text: &[u8]) -> i64 {
        let mut value: u64 = 0;
        for at in self.offset..self.offset + u64::from(self.bits) {
            let byte = text.get((at / 8) as usize).copied().unwrap_or(0);
            value = value << 1 | u64::from(byte >> (7 - at % 8) & 1);
        }
        self.extend(value)
    }

    fn write(self, text: &mut Vec<u8>, value: i64) {
        let end = self.offset + u64::from(self.bits);
        let len = end.div_ceil(8) as usize;
        if text.len() < len {
            text.resize(len, 0);
        }
        for (place, at) in (self.offset..end).rev().enumerate() {
            let mask = 1 << (7 - at % 8);
            let byte = &mut text[(at / 8) as usize];
            if value >> place & 1 == 1 {
                *byte |= mask;
            } else {
                *byte &= !mask;
            }
        }
    }

    /// Interprets the lowest bits as a number of this type.
    fn extend(self, value: u64) -> i64 {
        let unused = 64 - self.bits;
        if self.is_signed {
            (value << unused) as i64 >> unused
        } else {
            (value << unused >> unused) as i64
        }
    }

    fn min(self) -> i128 {
        if self.is_signed {
            -(1 << (self.bits - 1))
        } else {
            0
        }
    }

    fn max(self) -> i128 {
        if self.is_signed {
            (1 << (self.bits - 1)) - 1
        } else {
            (1 << self.bits) - 1
        }
    }

    /// Returns the number that a client gives. For a field without a sign, a negative one is greater
    /// than all that the field holds, as in Redis.
    fn given(self, value: i64) -> i128 {
        if self.is_signed {
            i128::from(value)
        } else {
            i128::from(value.cast_unsigned())
        }
    }

    /// Returns the number that is stored for `value`; `None` if none is.
    fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        if (self.min()..=self.max()).contains(&value) {
            return Some(value as i64);
        }
        match overflow {
            Overflow::Fail => None,
            Overflow::Wrap => Some(self.extend(value as u64)),
            Overflow::Saturate => Some(value.clamp(self.min(), self.max()) as i64),
        }
    }
}

/// An operation of BITFIELD.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Get(Field),
    Set(Field, i64, Overflow),
    Increment(Field, i64, Overflow),
}

fn operations(args: &[Bytes], only_reads: bool) -> Result<Vec<Operation>> {
    let mut options = Options::new(args);
    let mut overflow = Overflow::Wrap;
    let mut list = Vec::new();
    while let Some(word) = options.next() {
        if is(word, "GET") {
            list.push(Operation::Get(Field::parse(
                options.value()?,
                options.value()?,
            )?));
        } else if only_reads {
            return Err(Failure::client(
                "ERR BITFIELD_RO only supports the GET subcommand",
            ));
        } else if is(word, "SET") {
            let field = Field::parse(options.value()?, options.value()?)?;
            list.push(Operation::Set(field, integer(options.value()?)?, overflow));
        } else if is(word, "INCRBY") {
            let field = Field::parse(options.value()?, options.value()?)?;
            list.push(Operation::Increment(
                field,
                integer(options.value()?)?,
                overflow,
            ));
        } else if is(word, "OVERFLOW") {
            let kind = options.value()?;
            overflow = if is(kind, "WRAP") {
                Overflow::Wrap
            } else if is(kind, "SAT") {
                Overflow::Saturate
            } else if is(kind, "FAIL") {
                Overflow::Fail
            } else {
                return Err(Failure::client("ERR Invalid OVERFLOW type specified"));
            };
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    Ok(list)
}

pub(super) fn bitfield(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let operations = operations(&args[2..], false)?;
    let (old, text) = string_entry(data, &args[1])?;
    let mut changed = text.to_vec();
    let mut is_changed = false;
    let mut replies = Vec::with_capacity(operations.len());
    for operation in operations {
        let (field, stored, reply) = match operation {
            Operation::Get(field) => {
                replies.push(Reply::Integer(field.read(&changed)));
                continue;
            }
            Operation::Set(field, value, overflow) => (
                field,
                field.fit(field.given(value), overflow),
                Some(field.read(&changed)),
            ),
            Operation::Increment(field, by, overflow) => {
                let sum = i128::from(field.read(&changed)) + i128::from(by);
                (field, field.fit(sum, overflow), None)
            }
        };
        let Some(stored) = stored else {
            replies.push(Reply::Null);
            continue;
        };
        field.write(&mut changed, stored);
        is_changed = true;
        replies.push(Reply::Integer(reply.unwrap_or(stored)));
    }
    if is_changed {
        replace(data, &args[1], old.as_ref(), changed.into())?;
        data.notify('$', "setbit", &args[1]);
    }
    Ok(Reply::Array(replies))
}

pub(super) fn bitfield_ro(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let operations = operations(&args[2..], true)?;
    let text = data.string(&args[1])?.unwrap_or_default();
    let reads = operations.into_iter().map(|operation| match operation {
        Operation::Get(field) | Operation::Set(field, ..) | Operation::Increment(field, ..) => {
            Reply::Integer(field.read(&text))
        }
    });
    Ok(Reply::Array(reads.collect()))
}
