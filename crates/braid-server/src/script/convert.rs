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
        Reply::Verbatim(text) => string(text.as_bytes()),
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
        Reply::Tracking(_) => Ok(Value::Nil),
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

/// Returns the reply that a script's result means.
pub(super) fn to_reply(value: &Value) -> mlua::Result<Reply> {
    nested(value, 0)
}

fn nested(value: &Value, depth: usize) -> mlua::Result<Reply> {
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
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => table_to_reply(table, depth)?,
        _ => Reply::Null,
    })
}

fn table_to_reply(table: &Table, depth: usize) -> mlua::Result<Reply> {
    let named = |name: &str| table.raw_get::<Value>(name);
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
            pairs.push((nested(&key, depth + 1)?, nested(&value, depth + 1)?));
        }
        return Ok(Reply::Map(pairs));
    }
    if let Value::Table(set) = named("set")? {
        let mut members = Vec::new();
        for pair in set.pairs::<Value, Value>() {
            members.push(nested(&pair?.0, depth + 1)?);
        }
        return Ok(Reply::Set(members));
    }
    // A list ends before the first element that is nothing.
    let mut list = Vec::new();
    for at in 1.. {
        match table.raw_get::<Value>(at)? {
            Value::Nil => break,
            element => list.push(nested(&element, depth + 1)?),
        }
    }
    Ok(Reply::Array(list))
}
