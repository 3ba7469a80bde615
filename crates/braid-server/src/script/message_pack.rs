//! The library `cmsgpack`: MessagePack.

use bytes::{Buf, BufMut};
use mlua::{Error, Lua, MultiValue, Table, Value, Variadic};

/// Deepest nesting: what lies deeper is packed as nothing, and not unpacked.
const DEPTH_MAX: usize = 16;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let pack = |lua: &Lua, values: Variadic<Value>| {
        if values.is_empty() {
            return Err(Error::runtime("MessagePack pack needs input."));
        }
        let mut out = Vec::new();
        for value in values.iter() {
            pack(value, &mut out, 0)?;
        }
        lua.create_string(out)
    };
    library.raw_set("pack", lua.create_function(pack)?)?;
    let unpack = |lua: &Lua, text: mlua::LuaString| {
        let (_, values) = unpack_some(lua, &text.as_bytes(), usize::MAX, 0)?;
        Ok(values)
    };
    library.raw_set("unpack", lua.create_function(unpack)?)?;
    let unpack_limit =
        |lua: &Lua, (text, limit, offset): (mlua::LuaString, usize, Option<usize>)| {
            with_next(lua, &text.as_bytes(), limit, offset)
        };
    library.raw_set("unpack_limit", lua.create_function(unpack_limit)?)?;
    let unpack_one = |lua: &Lua, (text, offset): (mlua::LuaString, Option<usize>)| {
        with_next(lua, &text.as_bytes(), 1, offset)
    };
    library.raw_set("unpack_one", lua.create_function(unpack_one)?)?;
    library.raw_set("_NAME", "cmsgpack")?;
    Ok(library)
}

/// Unpacks up to `limit` values; the first result is where the next one begins, -1 at the end.
fn with_next(
    lua: &Lua,
    bytes: &[u8],
    limit: usize,
    offset: Option<usize>,
) -> mlua::Result<MultiValue> {
    let (next, mut values) = unpack_some(lua, bytes, limit, offset.unwrap_or(0))?;
    let next = if next == bytes.len() { -1 } else { next as i64 };
    values.push_front(Value::Integer(next));
    Ok(values)
}

fn unpack_some(
    lua: &Lua,
    bytes: &[u8],
    limit: usize,
    offset: usize,
) -> mlua::Result<(usize, MultiValue)> {
    let mut rest = bytes
        .get(offset..)
        .ok_or_else(|| Error::runtime("Start offset is larger than the input."))?;
    let mut values = MultiValue::new();
    while !rest.is_empty() && values.len() < limit {
        values.push_back(unpack(lua, &mut rest, 0)?);
    }
    Ok((bytes.len() - rest.len(), values))
}

fn pack(value: &Value, out: &mut Vec<u8>, depth: usize) -> mlua::Result<()> {
    match value {
        Value::Boolean(truth) => out.put_u8(if *truth { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => pack_integer(*number, out),
        Value::Number(number) if f64::from(*number as f32) == *number => {
            out.put_u8(0xca);
            out.put_f32(*number as f32);
        }
        Value::Number(number) => {
            out.put_u8(0xcb);
            out.put_f64(*number);
        }
        Value::String(text) => {
            let text = text.as_bytes();
            match text.len() {
                len @ 0..32 => out.put_u8(0xa0 | len as u8),
                len => put_len(out, len, Some(0xd9), 0xda),
            }
            out.put_slice(&text);
        }
        Value::Table(table) if depth < DEPTH_MAX => pack_table(table, out, depth)?,
        _ => out.put_u8(0xc0),
    }
    Ok(())
}

/// Writes a length of one, two or four bytes after its mark; the marks follow each other.
fn put_len(out: &mut Vec<u8>, len: usize, mark8: Option<u8>, mark16: u8) {
    match (u8::try_from(len), u16::try_from(len), mark8) {
        (Ok(len), _, Some(mark)) => {
            out.put_u8(mark);
            out.put_u8(len);
        }
        (_, Ok(len), _) => {
            out.put_u8(mark16);
            out.put_u16(len);
        }
        _ => {
            out.put_u8(mark16 + 1);
            out.put_u32(len as u32);
        }
    }
}

fn pack_integer(number: i64, out: &mut Vec<u8>) {
    match number {
        -32..=127 => out.put_i8(number as i8),
        128..=0xff => {
            out.put_u8(0xcc);
            out.put_u8(number as u8);
        }
        0x100..=0xffff => {
            out.put_u8(0xcd);
            out.put_u16(number as u16);
        }
        0x1_0000..=0xffff_ffff => {
            out.put_u8(0xce);
            out.put_u32(number as u32);
        }
        0x1_0000_0000.. => {
            out.put_u8(0xcf);
            out.put_i64(number);
        }
        -0x80..-32 => {
            out.put_u8(0xd0);
            out.put_i8(number as i8);
        }
        -0x8000..-0x80 => {
            out.put_u8(0xd1);
            out.put_i16(number as i16);
        }
        -0x8000_0000..-0x8000 => {
            out.put_u8(0xd2);
            out.put_i32(number as i32);
        }
        _ => {
            out.put_u8(0xd3);
            out.put_i64(number);
        }
    }
}

fn pack_table(table: &Table, out: &mut Vec<u8>, depth: usize) -> mlua::Result<()> {
    let pairs: Vec<(Value, Value)> = table.pairs().collect::<mlua::Result<_>>()?;
    let is_index = |(key, _): &(Value, Value)| matches!(key, Value::Integer(index) if (1..=pairs.len() as i64).contains(index));
    if pairs.iter().all(is_index) {
        match pairs.len() {
            len @ 0..16 => out.put_u8(0x90 | len as u8),
            len => put_len(out, len, None, 0xdc),
        }
        for at in 1..=pairs.len() {
            pack(&table.raw_get(at)?, out, depth + 1)?;
        }
        return Ok(());
    }
    match pairs.len() {
        len @ 0..16 => out.put_u8(0x80 | len as u8),
        len => put_len(out, len, None, 0xde),
    }
    for (key, value) in &pairs {
        pack(key, out, depth + 1)?;
        pack(value, out, depth + 1)?;
    }
    Ok(())
}

fn short() -> Error {
    Error::runtime("Missing bytes in input.")
}

fn bad() -> Error {
    Error::runtime("Bad data format in input.")
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> mlua::Result<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len).ok_or_else(short)?;
    *rest = after;
    Ok(taken)
}

/// Reads a big-endian number of one, two or four bytes.
fn unsigned(rest: &mut &[u8], len: usize) -> mlua::Result<usize> {
    Ok(take(rest, len)?
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

fn unpack(lua: &Lua, rest: &mut &[u8], depth: usize) -> mlua::Result<Value> {
    let first = take(rest, 1)?[0];
    Ok(match first {
        0..=0x7f => Value::Integer(first.into()),
        0xe0..=0xff => Value::Integer((first as i8).into()),
        0x80..=0x8f => unpack_map(lua, rest, usize::from(first & 0x0f), depth)?,
        0x90..=0x9f => unpack_list(lua, rest, usize::from(first & 0x0f), depth)?,
        0xa0..=0xbf => text(lua, rest, usize::from(first & 0x1f))?,
        0xc0 => Value::Nil,
        0xc2 | 0xc3 => Value::Boolean(first == 0xc3),
        0xc4..=0xc6 => {
            let len = unsigned(rest, 1 << (first - 0xc4))?;
            text(lua, rest, len)?
        }
        0xca => Value::Number(take(rest, 4)?.get_f32().into()),
        0xcb => Value::Number(take(rest, 8)?.get_f64()),
        0xcc..=0xce => Value::Integer(unsigned(rest, 1 << (first - 0xcc))? as i64),
        0xcf => Value::Number(take(rest, 8)?.get_u64() as f64),
        0xd0 => Value::Integer(take(rest, 1)?.get_i8().into()),
        0xd1 => Value::Integer(take(rest, 2)?.get_i16().into()),
        0xd2 => Value::Integer(take(rest, 4)?.get_i32().into()),
        0xd3 => Value::Integer(take(rest, 8)?.get_i64()),
        0xd9..=0xdb => {
            let len = unsigned(rest, 1 << (first - 0xd9))?;
            text(lua, rest, len)?
        }
        0xdc | 0xdd => {
            let len = unsigned(rest, 2 << (first - 0xdc))?;
            unpack_list(lua, rest, len, depth)?
        }
        0xde | 0xdf => {
            let len = unsigned(rest, 2 << (first - 0xde))?;
            unpack_map(lua, rest, len, depth)?
        }
        _ => return Err(bad()),
    })
}

fn text(lua: &Lua, rest: &mut &[u8], len: usize) -> mlua::Result<Value> {
    Ok(Value::String(lua.create_string(take(rest, len)?)?))
}

fn unpack_list(lua: &Lua, rest: &mut &[u8], len: usize, depth: usize) -> mlua::Result<Value> {
    if depth > DEPTH_MAX {
        return Err(bad());
    }
    let table = lua.create_table()?;
    for at in 1..=len {
        table.raw_set(at, unpack(lua, rest, depth + 1)?)?;
    }
    Ok(Value::Table(table))
}

fn unpack_map(lua: &Lua, rest: &mut &[u8], len: usize, depth: usize) -> mlua::Result<Value> {
    if depth > DEPTH_MAX {
        return Err(bad());
    }
    let table = lua.create_table()?;
    for _ in 0..len {
        let key = unpack(lua, rest, depth + 1)?;
        let value = unpack(lua, rest, depth + 1)?;
        let is_key = match &key {
            Value::Nil => false,
            Value::Number(number) => !number.is_nan(),
            _ => true,
        };
        if !is_key {
            return Err(bad());
        }
        table.raw_set(key, value)?;
    }
    Ok(Value::Table(table))
}
