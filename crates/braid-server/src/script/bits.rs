//! The library `bit`: operations on 32 bits, as numbers with a sign.

use mlua::{Error, Lua, Table, Value, Variadic};

/// Returns the 32 bits of a number, wrapped around.
fn bits(value: &Value) -> mlua::Result<u32> {
    let number = match value {
        Value::Integer(number) => return Ok(*number as u32),
        Value::Number(number) => *number,
        Value::String(text) => {
            let text = text.to_string_lossy();
            text.trim().parse().map_err(|_| wrong())?
        }
        _ => return Err(wrong()),
    };
    if number.is_finite() {
        Ok(number.round().rem_euclid(4_294_967_296.0) as u32)
    } else {
        Err(wrong())
    }
}

fn wrong() -> Error {
    Error::runtime("bit: number expected")
}

fn signed(bits: u32) -> f64 {
    f64::from(bits as i32)
}

type Fold = fn(u32, u32) -> u32;
type Shift = fn(u32, u32) -> u32;
type Unary = fn(u32) -> u32;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let folds: [(&str, Fold); 3] = [
        ("band", |a, b| a & b),
        ("bor", |a, b| a | b),
        ("bxor", |a, b| a ^ b),
    ];
    for (name, fold) in folds {
        let function = move |_: &Lua, values: Variadic<Value>| {
            let mut values = values.iter().map(bits);
            let first = values.next().ok_or_else(wrong)??;
            values
                .try_fold(first, |sum, value| Ok(fold(sum, value?)))
                .map(signed)
        };
        library.raw_set(name, lua.create_function(function)?)?;
    }
    let shifts: [(&str, Shift); 5] = [
        ("lshift", |a, by| a << by),
        ("rshift", |a, by| a >> by),
        ("arshift", |a, by| (a as i32 >> by) as u32),
        ("rol", u32::rotate_left),
        ("ror", u32::rotate_right),
    ];
    for (name, shift) in shifts {
        let function = move |_: &Lua, (value, by): (Value, Value)| {
            Ok(signed(shift(bits(&value)?, bits(&by)? & 31)))
        };
        library.raw_set(name, lua.create_function(function)?)?;
    }
    let unary: [(&str, Unary); 3] = [
        ("tobit", |a| a),
        ("bnot", |a| !a),
        ("bswap", u32::swap_bytes),
    ];
    for (name, operation) in unary {
        let function = move |_: &Lua, value: Value| Ok(signed(operation(bits(&value)?)));
        library.raw_set(name, lua.create_function(function)?)?;
    }
    let tohex = |_: &Lua, (value, digits): (Value, Option<i64>)| {
        let digits = digits.unwrap_or(8);
        let shown = digits.unsigned_abs().min(8) as usize;
        let text = format!("{:08x}", bits(&value)?);
        let text = &text[8 - shown..];
        Ok(if digits < 0 {
            text.to_uppercase()
        } else {
            text.to_owned()
        })
    };
    library.raw_set("tohex", lua.create_function(tohex)?)?;
    Ok(library)
}
