//! Data as plain text, for the fields of CSV: numbers as digits, strings unchanged, bytes in
//! base64, tuples as in the shell.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;

use super::literal::{tuple_text, typed_literal};
use super::{Column, Datum, Kind, Mismatch, number_text, tuple};

/// Returns the text; `None` for bytes that are not a valid encoding of the column's type.
pub(crate) fn to_text(column: &Column, bytes: &Bytes) -> Option<String> {
    let datum = column.decode(bytes)?;
    Some(match datum {
        Datum::Text(text) => text,
        Datum::Bytes(bytes) => BASE64_STANDARD.encode(bytes),
        Datum::Tuple(parts) => tuple_text(&parts),
        number => number_text(&number)?,
    })
}

pub(crate) fn from_text(column: &Column, text: &str) -> Result<Vec<u8>, Mismatch> {
    let datum = match column.kind() {
        Kind::Text => Datum::Text(text.to_owned()),
        Kind::Bytes => {
            let bytes = BASE64_STANDARD.decode(text);
            let bytes = bytes.map_err(|_| Mismatch::new(column, format_args!("{text:?}")))?;
            Datum::Bytes(bytes.into())
        }
        Kind::Bool => {
            let truth = text.parse();
            Datum::Bool(truth.map_err(|_| Mismatch::new(column, format_args!("{text:?}")))?)
        }
        Kind::Unit if text == "()" => Datum::Unit,
        Kind::Unit => return Err(Mismatch::new(column, format_args!("{text:?}"))),
        Kind::Tuple => return tuple::from_text(column, text, typed_literal),
        Kind::Unsigned | Kind::Signed | Kind::Float => column.parse_number(text)?,
    };
    column.encode(&datum)
}
