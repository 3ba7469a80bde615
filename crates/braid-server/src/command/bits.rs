//! Strings as lists of bits.

use bytes::Bytes;

use super::arguments::{integer, is, part_of_string};
use super::strings::{STRING_MAX, replace, store, string_entry};
use crate::failure::{Failure, Result};
use crate::keyspace::Data;
use crate::resp::Reply;
use crate::resp::number::parse_i64;

/// Parses the offset of a bit.
fn bit_offset(argument: &[u8]) -> Result<u64> {
    let wrong = || Failure::client("ERR bit offset is not an integer or out of range");
    let offset = parse_i64(argument).ok_or_else(wrong)?;
    let offset = u64::try_from(offset).map_err(|_| wrong())?;
    if offset / 8 >= STRING_MAX as u64 {
        return Err(wrong());
    }
    Ok(offset)
}

fn bit(text: &[u8], offset: u64) -> u8 {
    text.get((offset / 8) as usize)
        .map_or(0, |byte| byte >> (7 - offset % 8) & 1)
}

pub(super) fn setbit(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let offset = bit_offset(&args[2])?;
    let set = match &args[3][..] {
        b"0" => false,
        b"1" => true,
        _ => return Err(Failure::client("ERR bit is not an integer or out of range")),
    };
    let (old, text) = string_entry(data, &args[1])?;
    let before = bit(&text, offset);
    let mut changed = text.to_vec();
    let at = (offset / 8) as usize;
    changed.resize(changed.len().max(at + 1), 0);
    let mask = 1 << (7 - offset % 8);
    if set {
        changed[at] |= mask;
    } else {
        changed[at] &= !mask;
    }
    replace(data, &args[1], old.as_ref(), changed.into())?;
    data.notify('$', "setbit", &args[1]);
    Ok(Reply::Integer(i64::from(before)))
}

pub(super) fn getbit(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let offset = bit_offset(&args[2])?;
    let text = data.string(&args[1])?.unwrap_or_default();
    Ok(Reply::Integer(i64::from(bit(&text, offset))))
}

/// A range of a string in bits.
struct BitRange {
    start: u64,
    end: u64,
}

/// A part of a string as [`part_of_string`] has it.
type Part = fn(i64, i64, u64) -> Option<(u64, u64)>;

/// BITPOS also searches the first byte if the range is before the string and ends before it starts.
fn part_to_search(start: i64, stop: i64, len: u64) -> Option<(u64, u64)> {
    let is_before = |at: i64| at < 0 && at.unsigned_abs() > len;
    let first = |at: i64| if is_before(at) { 0 } else { at };
    part_of_string(first(start), first(stop), len)
}

/// Parses `start stop [BYTE | BIT]`; `None` if the range is empty.
fn bit_range(args: &[Bytes], len: usize, part: Part) -> Result<Option<BitRange>> {
    let (start, stop) = (integer(&args[0])?, integer(&args[1])?);
    let in_bits = match args.get(2) {
        None => false,
        Some(unit) if is(unit, "BIT") => true,
        Some(unit) if is(unit, "BYTE") => false,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let units = if in_bits { len as u64 * 8 } else { len as u64 };
    Ok(part(start, stop, units).map(|(start, stop)| {
        let width = if in_bits { 1 } else { 8 };
        BitRange {
            start: start * width,
            end: (stop + 1) * width,
        }
    }))
}

pub(super) fn bitcount(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    if args.len() == 3 || args.len() > 5 {
        return Err(Failure::SYNTAX);
    }
    let text = data.string(&args[1])?.unwrap_or_default();
    let range = if args.len() == 2 {
        Some(BitRange {
            start: 0,
            end: text.len() as u64 * 8,
        })
    } else {
        bit_range(&args[2..], text.len(), part_of_string)?
    };
    let Some(BitRange { start, end }) = range else {
        return Ok(Reply::Integer(0));
    };
    let mut count = 0;
    let mut at = start;
    while at < end {
        if at % 8 == 0 && end - at >= 8 {
            count += text[(at / 8) as usize].count_ones();
            at += 8;
        } else {
            count += u32::from(bit(&text, at));
            at += 1;
        }
    }
    Ok(Reply::Integer(i64::from(count)))
}

pub(super) fn bitpos(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let wanted = match integer(&args[2])? {
        0 => 0,
        1 => 1,
        _ => return Err(Failure::client("ERR The bit argument must be 1 or 0.")),
    };
    if args.len() > 6 {
        return Err(Failure::SYNTAX);
    }
    let found = data.string(&args[1])?;
    let Some(text) = found else {
        return Ok(Reply::Integer(if wanted == 1 { -1 } else { 0 }));
    };
    // Unlike a missing key.
    if text.is_empty() {
        return Ok(Reply::Integer(-1));
    }
    let has_end = args.len() > 4;
    let range = match args.len() {
        3 => Some(BitRange {
            start: 0,
            end: text.len() as u64 * 8,
        }),
        4 => {
            let range = [args[3].clone(), Bytes::from_static(b"-1")];
            bit_range(&range, text.len(), part_to_search)?
        }
        _ => bit_range(&args[3..], text.len(), part_to_search)?,
    };
    let Some(BitRange { start, end }) = range else {
        return Ok(Reply::Integer(-1));
    };
    let skip = if wanted == 1 { 0x00 } else { 0xff };
    let mut at = start;
    while at < end {
        if at % 8 == 0 && end - at >= 8 && text[(at / 8) as usize] == skip {
            at += 8;
        } else if bit(&text, at) == wanted {
            return Ok(Reply::Integer(at as i64));
        } else {
            at += 1;
        }
    }
    // A string continues with zeros, unless the caller named its end.
    Ok(Reply::Integer(if wanted == 0 && !has_end {
        end as i64
    } else {
        -1
    }))
}

pub(super) fn bitop(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let sources = &args[3..];
    let combine: fn(u8, u8) -> u8 = if is(&args[1], "AND") {
        |a, b| a & b
    } else if is(&args[1], "OR") {
        |a, b| a | b
    } else if is(&args[1], "XOR") {
        |a, b| a ^ b
    } else if is(&args[1], "NOT") {
        if sources.len() != 1 {
            return Err(Failure::client(
                "ERR BITOP NOT must be called with a single source key.",
            ));
        }
        |a, _| !a
    } else {
        return Err(Failure::SYNTAX);
    };
    let texts: Vec<Bytes> = sources
        .iter()
        .map(|key| Ok(data.string(key)?.unwrap_or_default()))
        .collect::<Result<_>>()?;
    let len = texts.iter().map(Bytes::len).max().unwrap_or(0);
    let byte = |text: &Bytes, at: usize| text.get(at).copied().unwrap_or(0);
    let result: Vec<u8> = (0..len)
        .map(|at| {
            let first = byte(&texts[0], at);
            if texts.len() == 1 && is(&args[1], "NOT") {
                return combine(first, 0);
            }
            texts[1..]
                .iter()
                .fold(first, |value, text| combine(value, byte(text, at)))
        })
        .collect();
    let old = data.entry(&args[2])?;
    if result.is_empty() {
        if let Some(old) = old {
            data.delete(&args[2], &old)?;
            data.notify('g', "del", &args[2]);
        }
    } else {
        store(data, &args[2], old.as_ref(), result.into(), None)?;
        data.notify('$', "set", &args[2]);
    }
    Ok(Reply::Integer(len as i64))
}
