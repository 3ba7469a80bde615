//! The library `struct`: numbers and texts as bytes, by a format.
//!
//! | format | meaning |
//! |---|---|
//! | `<`, `>`, `=` | the numbers that follow are little-endian, big-endian, little-endian |
//! | `b` `h` `i` `l` | number of 1, 2, 4 or 8 bytes with a sign; capitals have none; `iN` has N bytes |
//! | `T` | number of 8 bytes without a sign |
//! | `f` `d` | floating-point number of 4 or 8 bytes |
//! | `s` | text that ends with a zero byte |
//! | `cN` | N bytes; `c0` takes as many as the number before says, or packs the whole text |
//! | `x` | a zero byte |

use mlua::{Error, Lua, MultiValue, Table, Value};

/// One thing in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Integer { len: usize, signed: bool },
    Float { len: usize },
    ZeroEnded,
    Bytes(usize),
    Padding,
}

/// Reads a format: each item, and whether it is big-endian.
fn items(format: &[u8]) -> mlua::Result<Vec<(Item, bool)>> {
    let mut items = Vec::new();
    let mut big = false;
    let mut at = 0;
    while let Some(mark) = format.get(at) {
        at += 1;
        let digits = format[at..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let number: Option<usize> = std::str::from_utf8(&format[at..at + digits])
            .ok()
            .and_then(|text| text.parse().ok());
        let signed = mark.is_ascii_lowercase();
        let integer = |len| Item::Integer { len, signed };
        let item = match mark {
            b'<' | b'=' => {
                big = false;
                continue;
            }
            b'>' => {
                big = true;
                continue;
            }
            b' ' => continue,
            b'b' | b'B' => integer(1),
            b'h' | b'H' => integer(2),
            b'l' | b'L' | b'T' => integer(8),
            b'i' | b'I' => {
                at += digits;
                let len = number.unwrap_or(4);
                if !(1..=8).contains(&len) {
                    return Err(Error::runtime(format!(
                        "integral size {len} is larger than limit of 8"
                    )));
                }
                integer(len)
            }
            b'f' => Item::Float { len: 4 },
            b'd' => Item::Float { len: 8 },
            b's' => Item::ZeroEnded,
            b'c' => {
                at += digits;
                Item::Bytes(number.unwrap_or(1))
            }
            b'x' => Item::Padding,
            other => {
                return Err(Error::runtime(format!(
                    "invalid format option '{}'",
                    char::from(*other)
                )));
            }
        };
        items.push((item, big));
    }
    Ok(items)
}

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.raw_set("pack", lua.create_function(pack)?)?;
    library.raw_set("unpack", lua.create_function(unpack)?)?;
    let size = |_: &Lua, format: mlua::LuaString| {
        let mut sum = 0usize;
        for (item, _) in items(&format.as_bytes())? {
            sum = sum.saturating_add(match item {
                Item::Integer { len, .. } | Item::Float { len } => len,
                Item::Padding => 1,
                Item::Bytes(len) if len > 0 => len,
                _ => return Err(Error::runtime("variable-size format in struct.size")),
            });
        }
        Ok(sum)
    };
    library.raw_set("size", lua.create_function(size)?)?;
    Ok(library)
}

fn number(value: Option<&Value>) -> mlua::Result<f64> {
    match value {
        Some(Value::Integer(number)) => Ok(*number as f64),
        Some(Value::Number(number)) => Ok(*number),
        _ => Err(Error::runtime("struct.pack: number expected")),
    }
}

/// Returns a number as an integer; those beyond 63 bits need not have a sign.
fn integer(value: Option<&Value>) -> mlua::Result<i64> {
    match value {
        Some(Value::Integer(number)) => Ok(*number),
        value => {
            let number = number(value)?;
            Ok(if number < 0.0 {
                number as i64
            } else {
                number as u64 as i64
            })
        }
    }
}

fn pack(
    lua: &Lua,
    (format, values): (mlua::LuaString, MultiValue),
) -> mlua::Result<mlua::LuaString> {
    let mut values = values.iter();
    let mut out = Vec::new();
    for (item, big) in items(&format.as_bytes())? {
        let start = out.len();
        match item {
            Item::Integer { len, .. } => {
                out.extend_from_slice(&integer(values.next())?.to_le_bytes()[..len]);
            }
            Item::Float { len: 4 } => {
                out.extend_from_slice(&(number(values.next())? as f32).to_le_bytes());
            }
            Item::Float { .. } => out.extend_from_slice(&number(values.next())?.to_le_bytes()),
            Item::Padding => out.push(0),
            Item::ZeroEnded | Item::Bytes(_) => {
                let text = match values.next() {
                    Some(Value::String(text)) => text.as_bytes().to_vec(),
                    Some(number @ (Value::Integer(_) | Value::Number(_))) => {
                        super::convert::argument(number)
                            .unwrap_or_default()
                            .to_vec()
                    }
                    _ => return Err(Error::runtime("struct.pack: string expected")),
                };
                match item {
                    Item::Bytes(len) if len > 0 => {
                        let part = text
                            .get(..len)
                            .ok_or_else(|| Error::runtime("string too short"))?;
                        out.extend_from_slice(part);
                    }
                    _ => out.extend_from_slice(&text),
                }
                if item == Item::ZeroEnded {
                    out.push(0);
                }
                continue;
            }
        }
        if big {
            out[start..].reverse();
        }
    }
    lua.create_string(out)
}

fn unpack(
    lua: &Lua,
    (format, text, start): (mlua::LuaString, mlua::LuaString, Option<usize>),
) -> mlua::Result<MultiValue> {
    let text = text.as_bytes();
    let mut at = start.unwrap_or(1).saturating_sub(1);
    let mut values = MultiValue::new();
    for (item, big) in items(&format.as_bytes())? {
        let rest = text.get(at..).unwrap_or_default();
        let take = |len: usize| {
            let taken = rest.get(..len);
            taken.ok_or_else(|| Error::runtime("data string too short"))
        };
        match item {
            Item::Integer { len, signed } => {
                at += len;
                values.push_back(Value::Number(decode(take(len)?, signed, big)));
            }
            Item::Float { len } => {
                let mut bytes = take(len)?.to_vec();
                at += len;
                if big {
                    bytes.reverse();
                }
                values.push_back(Value::Number(match *bytes.as_slice() {
                    [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
                    _ => f64::from_le_bytes(bytes.try_into().unwrap_or_default()),
                }));
            }
            Item::Padding => {
                take(1)?;
                at += 1;
            }
            Item::ZeroEnded => {
                let end = rest.iter().position(|byte| *byte == 0);
                let end = end.ok_or_else(|| Error::runtime("unfinished string in data"))?;
                values.push_back(Value::String(lua.create_string(&rest[..end])?));
                at += end + 1;
            }
            Item::Bytes(0) => {
                let len = match values.pop_back() {
                    Some(Value::Number(len)) if len >= 0.0 => len as usize,
                    _ => return Err(Error::runtime("format `c0' needs a previous size")),
                };
                values.push_back(Value::String(lua.create_string(take(len)?)?));
                at += len;
            }
            Item::Bytes(len) => {
                values.push_back(Value::String(lua.create_string(take(len)?)?));
                at += len;
            }
        }
    }
    values.push_back(Value::Number(at as f64 + 1.0));
    Ok(values)
}

fn decode(bytes: &[u8], signed: bool, big: bool) -> f64 {
    let fold = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    let bits = if big {
        bytes.iter().fold(0, fold)
    } else {
        bytes.iter().rev().fold(0, fold)
    };
    if signed {
        let unused = 64 - 8 * bytes.len() as u32;
        ((bits << unused) as i64 >> unused) as f64
    } else {
        bits as f64
    }
}
