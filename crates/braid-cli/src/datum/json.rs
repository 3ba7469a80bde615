//! Data in JSON.
//!
//! | type | JSON |
//! |---|---|
//! | integers of up to 64 bits | a number (a string of its digits is read, too) |
//! | integers of 128 bits | a string of its digits: most readers of JSON would round the number |
//!  floats | a number; a string for infinities and NaN (`"NaN:"` and its bits) |
//! | strings | a string |
//! | `bool` | `true` or `false` |
//! | `()` | `null` |
//! | tuples | an array of their parts |
//! | bytes, arrays, other types | a string: base64 |
//!  bytes that are not a valid encoding of the column's type | `{"base64": "…"}` |

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::Value;

use super::{Column, Datum, Kind, Mismatch, number_text, tuple};

const RAW: &str = "base64";

pub(crate) fn to_json(column: &Column, bytes: &Bytes) -> Value {
    let Some(datum) = column.decode(bytes) else {
        return serde_json::json!({ RAW: BASE64_STANDARD.encode(bytes) });
    };
    datum_json(datum)
}

fn datum_json(datum: Datum) -> Value {
    let digits = number_text(&datum);
    match datum {
        Datum::Unsigned(n) if let Ok(n) = u64::try_from(n) => n.into(),
        Datum::Signed(n) if let Ok(n) = i64::try_from(n) => n.into(),
        // As `f64`, which represents every `f32` exactly.
        Datum::F32(n) if n.is_finite() => f64::from(n).into(),
        Datum::F64(n) if n.is_finite() => n.into(),
        Datum::Bool(truth) => truth.into(),
        Datum::Unit => Value::Null,
        Datum::Tuple(parts) => parts.into_iter().map(datum_json).collect(),
        Datum::Text(text) => text.into(),
        Datum::Bytes(bytes) => BASE64_STANDARD.encode(bytes).into(),
        _ => digits.into(),
    }
}

pub(crate) fn from_json(column: &Column, value: &Value) -> Result<Vec<u8>, Mismatch> {
    let mismatch = || Mismatch::new(column, value);
    if let Some(raw) = value.as_object() {
        let raw = raw
            .get(RAW)
            .filter(|_| raw.len() == 1)
            .and_then(Value::as_str);
        return BASE64_STANDARD
            .decode(raw.ok_or_else(mismatch)?)
            .map_err(|_| mismatch());
    }
    datum(column, value)?.map_or_else(|| Err(mismatch()), |datum| column.encode(&datum))
}

/// Converts a JSON value for a column; `None` if the value is of another kind.
fn datum(column: &Column, value: &Value) -> Result<Option<Datum>, Mismatch> {
    let mismatch = || Mismatch::new(column, value);
    Ok(match (column.kind(), value) {
        (Kind::Unsigned, Value::Number(n)) => n.as_u64().map(|n| Datum::Unsigned(n.into())),
        (Kind::Signed, Value::Number(n)) => n.as_i64().map(|n| Datum::Signed(n.into())),
        (Kind::Float, Value::Number(n)) if column.name() == "f32" => {
            n.as_f64().map(|n| Datum::F32(n as f32))
        }
        (Kind::Float, Value::Number(n)) => n.as_f64().map(Datum::F64),
        (Kind::Unsigned | Kind::Signed | Kind::Float, Value::String(digits)) => {
            Some(column.parse_number(digits)?)
        }
        (Kind::Text, Value::String(text)) => Some(Datum::Text(text.clone())),
        (Kind::Bytes, Value::String(text)) => {
            let bytes = BASE64_STANDARD.decode(text).map_err(|_| mismatch())?;
            Some(Datum::Bytes(bytes.into()))
        }
        (Kind::Bool, Value::Bool(truth)) => Some(Datum::Bool(*truth)),
        (Kind::Unit, Value::Null) => Some(Datum::Unit),
        (Kind::Tuple, Value::Array(values)) => {
            let parts = tuple::parts(column).filter(|parts| parts.len() == values.len());
            let parts = parts.ok_or_else(mismatch)?;
            let read = |(part, value)| datum(part, value)?.ok_or_else(mismatch);
            let data = parts.iter().zip(values).map(read);
            Some(Datum::Tuple(data.collect::<Result<_, _>>()?))
        }
        _ => None,
    })
}
