//! Replies as values of Lua, and the other way round.

use std::borrow::Cow;

use bytes::Bytes;
use mlua::{Error, Lua, Table, Value};

use crate::resp::Reply;
use crate::resp::number::format_f64;

/// Deepest nesting of a script's result.
const DEPTH_MAX: usize = 100;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns an argument of `redis.call` as bytes.
pub(super) fn argument(value: &Value) -> Option<Bytes> {
    match value {
        Value::String(text) => Some(Bytes::copy_from_slice(&text.as_bytes())),
        Value::Integer(number) => Some(number.to_string().into()),
        Value::Number(number) => Some(format_f64(*number).into()),
        _ => None,
    }
}

/// Builds the value that a script sees of a reply.
pub(super) fn to_lua(lua: &Lua, reply: &Reply, resp3: bool) -> mlua::Result<Value> {
    let string = |bytes: &[u8]| Ok(Value::String(lua.create_string(bytes)?));
    let field = |name: &str, value: Value| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Status(text) => field("ok", string(text.as_bytes())?),
        Reply::Simple(text) => field("ok", string(text)?),
        Reply::Error(text) => field("err", string(text.as_bytes())?),
        Reply::Integer(number) => Ok(Value::Number(*number as f64)),
        Reply::Double(number) if resp3 => field("double", Value::Number(*number)),
        Reply::Double(number) => string(format_f64(*number).as_bytes()),
        Reply::Bulk(bytes) => string(bytes),
        Reply::Boolean(truth) if resp3 => Ok(Value::Boolean(*truth)),
        Reply::Boolean(truth) => Ok(Value::Number(f64::from(u8::from(*truth)))),
        Reply::BigNumber(digits) if resp3 => field("big_number", string(digits)?),
        Reply::BigNumber(digits) => string(digits),
        Reply::Verbatim(format, text) if resp3 => {
            let table = lua.create_table()?;
            table.raw_set("format", string(format)?)?;
            table.raw_set("string", string(text)?)?;
            field("verbatim_string", Value::Table(table))
        }
        Reply::Verbatim(_, text) => string(text),
        Reply::Null | Reply::NullArray if resp3 => Ok(Value::Nil),
        Reply::Null | Reply::NullArray => Ok(Value::Boolean(false)),
        Reply::Array(list) | Reply::Push(list) | Reply::Several(list) => {
            list_to_lua(lua, list.iter(), resp3)
        }
        Reply::Set(list) if resp3 => {
            let table = lua.create_table()?;
            for member in list {
                table.raw_set(to_lua(lua, member, resp3)?, true)?;
            }
            field("set", Value::Table(table))
        }
        Reply::Set(list) => list_to_lua(lua, list.iter(), resp3),
        Reply::Map(pairs) | Reply::Pairs(pairs) if resp3 => {
            let table = lua.create_table()?;
            for (key, value) in pairs {
                table.raw_set(to_lua(lua, key, resp3)?, to_lua(lua, value, resp3)?)?;
            }
            field("map", Value::Table(table))
        }
        Reply::Map(pairs) => {
            let flat = pairs.iter().flat_map(|(key, value)| [key, value]);
            list_to_lua(lua, flat, resp3)
        }
        Reply::Pairs(pairs) => {
            let table = lua.create_table()?;
            for (key, value) in pairs {
                table.raw_push(list_to_lua(lua, [key, value].into_iter(), resp3)?)?;
            }
            Ok(Value::Table(table))
        }
        // It answers no command, so no script gets it.
        Reply::Tracking(_) | Reply::Encoded(_) => Ok(Value::Nil),
        Reply::Scored(members) => {
            let table = lua.create_table()?;
            for (member, score) in members {
                let member = Reply::Bulk(member.clone());
                let score = Reply::Double(*score);
                if resp3 {
                    table.raw_push(list_to_lua(lua, [&member, &score].into_iter(), resp3)?)?;
                } else {
                    table.raw_push(to_lua(lua, &member, resp3)?)?;
                    table.raw_push(to_lua(lua, &score, resp3)?)?;
                }
            }
            Ok(Value::Table(table))
        }
    }
}

fn list_to_lua<'a>(
    lua: &Lua,
    list: impl Iterator<Item = &'a Reply>,
    resp3: bool,
) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    for (at, reply) in list.enumerate() {
        // Not appended: nothing is a value of its own in a list.
        table.raw_set(at + 1, to_lua(lua, reply, resp3)?)?;
    }
    Ok(Value::Table(table))
}

/// Returns the reply that a script's result means. Truth values have a type of their own if the script
/// chose RESP3, whatever the client speaks.
pub(super) fn to_reply(value: &Value, resp3: bool) -> mlua::Result<Reply> {
    nested(value, resp3, 0)
}

fn nested(value: &Value, resp3: bool, depth: usize) -> mlua::Result<Reply> {
    if depth > DEPTH_MAX {
        return Err(Error::runtime(
            "the result of the script is nested too deeply",
        ));
    }
    Ok(match value {
        Value::String(text) => Reply::copied(text.as_bytes()),
        Value::Integer(number) => Reply::Integer(*number),
        // The part after the decimal point is dropped, as Redis does.
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::Boolean(truth) if resp3 => Reply::Boolean(*truth),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => table_to_reply(table, resp3, depth)?,
        _ => Reply::Null,
    })
}

fn table_to_reply(table: &Table, resp3: bool, depth: usize) -> mlua::Result<Reply> {
    let named = |name: &str| table.raw_get::<Value>(name);
    let inner = |value: &Value| nested(value, resp3, depth + 1);
    if let Value::String(error) = named("err")? {
        return Ok(Reply::Error(Cow::Owned(text(&error.as_bytes()))));
    }
    if let Value::String(status) = named("ok")? {
        return Ok(Reply::Simple(Bytes::copy_from_slice(&status.as_bytes())));
    }
    match named("double")? {
        Value::Number(number) => return Ok(Reply::Double(number)),
        Value::Integer(number) => return Ok(Reply::Double(number as f64)),
        _ => {}
    }
    if let Value::Table(map) = named("map")? {
        let mut pairs = Vec::new();
        for pair in map.pairs::<Value, Value>() {
            let (key, value) = pair?;
            pairs.push((inner(&key)?, inner(&value)?));
        }
        return Ok(Reply::Map(pairs));
    }
    if let Value::Table(set) = named("set")? {
        let mut members = Vec::new();
        for pair in set.pairs::<Value, Value>() {
            members.push(inner(&pair?.0)?);
        }
        return Ok(Reply::Set(members));
    }
    if let Value::String(digits) = named("big_number")? {
        return Ok(Reply::BigNumber(Bytes::copy_from_slice(&digits.as_bytes())));
    }
    if let Value::Table(parts) = named("verbatim_string")?
        && let Value::String(format) = parts.raw_get("format")?
        && let Value::String(text) = parts.raw_get("string")?
    {
        let mut letters = *b"   ";
        for (letter, byte) in letters.iter_mut().zip(format.as_bytes().iter()) {
            *letter = *byte;
        }
        let text = Bytes::copy_from_slice(&text.as_bytes());
        return Ok(Reply::Verbatim(letters, text));
    }
    // A list ends before the first element that is nothing.
    let mut list = Vec::new();
    for at in 1.. {
        match table.raw_get::<Value>(at)? {
            Value::Nil => break,
            element => list.push(inner(&element)?),
        }
    }
    Ok(Reply::Array(list))
}
