//! Literals of the shell.
//!
//! Numbers are digits. Strings and bytes are quoted: `"caf\xc3\xa9\n"`, with `\xNN` for any byte
//! and `\n`, `\r`, `\t`, `\0`, `\"`, `\'`, `\\`; single quotes work, too. Quotes may be omitted
//! around a word without spaces, quotes or semicolons, in which a backslash stands for itself. A
//! tuple is `(PART, PART)`. Where a number, `true`, `false` or a tuple is expected, a quoted
//! literal stands for its encoded bytes; invalid encodings are shown this way.

use bytes::Bytes;

use super::{Column, Datum, Kind, Mismatch, number_text, tuple};

pub(crate) fn to_literal(column: &Column, bytes: &Bytes) -> String {
    match column.decode(bytes) {
        Some(Datum::Text(text)) => quote_text(&text),
        Some(Datum::Tuple(parts)) => tuple_text(&parts),
        Some(Datum::Bytes(_)) | None => format!("\"{}\"", bytes.escape_ascii()),
        Some(number) => number_text(&number).unwrap_or_default(),
    }
}

/// Parses a tuple literal.
pub(super) fn tuple_text(parts: &[Datum]) -> String {
    let text = |part: &Datum| match part {
        Datum::Text(text) => quote_text(text),
        Datum::Bytes(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Datum::Tuple(parts) => tuple_text(parts),
        number => number_text(number).unwrap_or_default(),
    };
    format!(
        "({})",
        parts.iter().map(text).collect::<Vec<_>>().join(", ")
    )
}

/// Quotes a string; letters of any script stay unchanged.
fn quote_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        if c.is_ascii() {
            out.push_str(&(c as u8).escape_ascii().to_string());
        } else if c.is_control() {
            let mut utf8 = [0; 4];
            out.push_str(
                &c.encode_utf8(&mut utf8)
                    .as_bytes()
                    .escape_ascii()
                    .to_string(),
            );
        } else {
            out.push(c);
        }
    }
    out.push('"');
    out
}

/// Reads one word of a command of the shell, with its quotes.
pub(crate) fn from_literal(column: &Column, word: &str) -> Result<Vec<u8>, Mismatch> {
    let quoted = word.starts_with(['"', '\'']);
    match column.kind() {
        Kind::Unsigned | Kind::Signed | Kind::Float if !quoted => {
            column.encode(&column.parse_number(word)?)
        }
        Kind::Bool if !quoted => {
            let truth = word.parse().map_err(|_| Mismatch::new(column, word))?;
            column.encode(&Datum::Bool(truth))
        }
        Kind::Unit if word == "()" => column.encode(&Datum::Unit),
        Kind::Tuple if !quoted => tuple::from_text(column, word, typed_literal),
        _ => unquote(word).map_err(|what| Mismatch(format!("cannot read {word}: {what}"))),
    }
}

/// Parses a literal whose bytes must have the column's type.
pub(crate) fn typed_literal(column: &Column, word: &str) -> Result<Vec<u8>, Mismatch> {
    let bytes = from_literal(column, word)?;
    match column.decode(&Bytes::from(bytes.clone())) {
        Some(_) => Ok(bytes),
        None if column.kind() == Kind::Tuple => {
            let error = Mismatch::new(column, word);
            Err(Mismatch(format!(
                "{error}; write it as (PART, PART), without quotes around it"
            )))
        }
        None => Err(Mismatch::new(column, word)),
    }
}

/// Returns the bytes of a word, quoted or not.
pub(crate) fn unquote(word: &str) -> Result<Vec<u8>, String> {
    let quote = match word.chars().next() {
        Some(quote @ ('"' | '\'')) => quote,
        _ => return Ok(word.as_bytes().to_vec()),
    };
    let inner = word[1..]
        .strip_suffix(quote)
        .ok_or("the quote is not closed")?;
    let mut bytes = inner.bytes();
    let mut out = Vec::with_capacity(inner.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(same @ (b'\\' | b'"' | b'\'')) => same,
            Some(b'x') => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                match (digit(bytes.next()), digit(bytes.next())) {
                    (Some(high), Some(low)) => (high << 4 | low) as u8,
                    _ => return Err("\\x must be followed by two hexadecimal digits".to_owned()),
                }
            }
            _ => return Err("it has an unknown escape; write a backslash as \\\\".to_owned()),
        });
    }
    Ok(out)
}
