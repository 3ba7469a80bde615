//! The library `cjson`.

use mlua::{Error, Lua, Table, Value};
use serde_json::Value as Json;

/// Deepest nesting that is encoded.
const DEPTH_MAX: usize = 1_000;

/// A table whose largest index is more than this many times the number of its elements is no list.
const SPARSE: usize = 2;
/// Up to this index a table is never too sparse.
const SPARSE_SAFE: usize = 10;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let encode = |lua: &Lua, value: Value| {
        let mut out = Vec::new();
        encode(&value, &mut out, 0)?;
        lua.create_string(out)
    };
    library.raw_set("encode", lua.create_function(encode)?)?;
    let decode = |lua: &Lua, text: mlua::LuaString| {
        let parsed: Json = serde_json::from_slice(&text.as_bytes())
            .map_err(|error| Error::runtime(format!("cjson.decode: {error}")))?;
        to_lua(lua, &parsed)
    };
    library.raw_set("decode", lua.create_function(decode)?)?;
    library.raw_set("null", Value::NULL)?;
    library.raw_set("_NAME", "cjson")?;
    Ok(library)
}

fn to_lua(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    Ok(match json {
        Json::Null => Value::NULL,
        Json::Bool(truth) => Value::Boolean(*truth),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(list) => {
            let table = lua.create_table_with_capacity(list.len(), 0)?;
            for element in list {
                table.raw_push(to_lua(lua, element)?)?;
            }
            Value::Table(table)
        }
        Json::Object(fields) => {
            let table = lua.create_table()?;
            for (name, value) in fields {
                table.raw_set(name.as_str(), to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Returns the length of a table that is a list: its keys are positive integers, without too many
/// missing.
fn list_len(table: &Table) -> mlua::Result<Option<usize>> {
    let (mut count, mut largest) = (0, 0);
    for pair in table.pairs::<Value, Value>() {
        let index = match pair?.0 {
            Value::Integer(index) => usize::try_from(index).ok().filter(|index| *index > 0),
            _ => None,
        };
        let Some(index) = index else {
            return Ok(None);
        };
        count += 1;
        largest = largest.max(index);
    }
    if largest > SPARSE_SAFE && largest > count * SPARSE {
        return Err(Error::runtime(
            "Cannot serialise table: excessively sparse array",
        ));
    }
    // An empty table is an object, as in Redis.
    Ok((count > 0).then_some(largest))
}

fn encode(value: &Value, out: &mut Vec<u8>, depth: usize) -> mlua::Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::runtime("Cannot serialise, excessive depth (1001)"));
    }
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        null if null.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(truth) => out.extend_from_slice(truth.to_string().as_bytes()),
        Value::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::Number(number) => put_number(*number, out)?,
        Value::String(text) => put_text(&text.as_bytes(), out),
        Value::Table(table) => match list_len(table)? {
            Some(len) => {
                out.push(b'[');
                for at in 1..=len {
                    if at > 1 {
                        out.push(b',');
                    }
                    encode(&table.raw_get(at)?, out, depth + 1)?;
                }
                out.push(b']');
            }
            None => put_object(table, out, depth)?,
        },
        other => {
            let kind = other.type_name();
            return Err(Error::runtime(format!(
                "Cannot serialise {kind}: type not supported"
            )));
        }
    }
    Ok(())
}

fn put_object(table: &Table, out: &mut Vec<u8>, depth: usize) -> mlua::Result<()> {
    out.push(b'{');
    let mut is_first = true;
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair?;
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        match name {
            Value::String(text) => put_text(&text.as_bytes(), out),
            Value::Integer(number) => put_text(number.to_string().as_bytes(), out),
            Value::Number(number) => {
                let mut text = Vec::new();
                put_number(number, &mut text)?;
                put_text(&text, out);
            }
            _ => {
                return Err(Error::runtime(
                    "Cannot serialise table: table key must be a number or string",
                ));
            }
        }
        out.push(b':');
        encode(&value, out, depth + 1)?;
    }
    out.push(b'}');
    Ok(())
}

/// Writes a number with up to 14 digits, as Redis does.
fn put_number(number: f64, out: &mut Vec<u8>) -> mlua::Result<()> {
    if !number.is_finite() {
        return Err(Error::runtime(
            "Cannot serialise number: must not be NaN or Inf",
        ));
    }
    let rounded: f64 = format!("{number:.13e}").parse().unwrap_or(number);
    let text = crate::resp::number::format_f64(rounded);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Writes a text; bytes that are no UTF-8 stay as they are.
fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            b'\x08' => out.extend_from_slice(b"\\b"),
            b'\x0c' => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 | 0x7f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}
