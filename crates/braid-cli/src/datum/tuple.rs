//! Keys of several parts, as encoded by `braid::Key`: a part without a fixed length that is not the
//! last one ends with two zero bytes, and each zero byte within it is followed by `0xff`.

use bytes::Bytes;

use super::{Column, Datum, Kind, Mismatch};

const ESCAPE: u8 = 0xff;

/// Splits the text between the parentheses of a tuple at its commas; `None` if it is not a tuple.
/// Commas in quotes and inner parentheses do not count.
pub(super) fn split(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') if inner[begin..at].trim().is_empty() => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => {
                parts.push(inner[begin..at].trim());
                begin = at + 1;
            }
            (None, _) => {}
        }
    }
    parts.push(inner[begin..].trim());
    (quote.is_none() && depth == 0).then_some(parts)
}

/// Returns the columns of a tuple's parts; `None` if the column is not a tuple, or if a part has a
/// type of another program, whose end cannot be found.
pub(super) fn parts(column: &Column) -> Option<Vec<Column>> {
    let names = split(column.name())?;
    let parts: Vec<Column> = names.into_iter().map(Column::key).collect();
    (parts.len() > 1 && parts.iter().all(Column::is_known)).then_some(parts)
}

/// Returns the name of a tuple as the library writes it, with one space after each comma, and other
/// names unchanged.
pub(crate) fn canonical(name: &str) -> String {
    match split(name) {
        Some(parts) if parts.len() > 1 => {
            let parts: Vec<String> = parts.into_iter().map(canonical).collect();
            format!("({})", parts.join(", "))
        }
        _ => name.to_owned(),
    }
}

/// Returns the length of keys of a type; `None` if it varies.
fn fixed_len(column: &Column) -> Option<usize> {
    match column.kind() {
        Kind::Unsigned | Kind::Signed => {
            let bits: usize = column.name()[1..].parse().ok()?;
            Some(bits / 8)
        }
        Kind::Bool => Some(1),
        Kind::Tuple => parts(column)?.iter().map(fixed_len).sum(),
        Kind::Bytes => column.array_len(),
        Kind::Float | Kind::Unit | Kind::Text => None,
    }
}

pub(super) fn decode(column: &Column, bytes: &Bytes) -> Option<Datum> {
    let parts = parts(column)?;
    let (last, before) = parts.split_last()?;
    let mut rest = bytes.clone();
    let mut data = Vec::new();
    for part in before {
        data.push(part.decode(&take(part, &mut rest)?)?);
    }
    data.push(last.decode(&rest)?);
    Some(Datum::Tuple(data))
}

/// Splits the first part off a tuple that has further parts.
fn take(part: &Column, rest: &mut Bytes) -> Option<Bytes> {
    if let Some(len) = fixed_len(part) {
        return (len <= rest.len()).then(|| rest.split_to(len));
    }
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        let zero = at + rest[at..].iter().position(|byte| *byte == 0)?;
        out.extend_from_slice(&rest[at..zero]);
        match *rest.get(zero + 1)? {
            ESCAPE => out.push(0),
            0 => {
                let _ = rest.split_to(zero + 2);
                return Some(out.into());
            }
            _ => return None,
        }
        at = zero + 2;
    }
}

pub(super) fn encode(column: &Column, data: &[Datum]) -> Result<Vec<u8>, Mismatch> {
    let mismatch = || Mismatch::new(column, format_args!("a tuple of {} parts", data.len()));
    let parts = parts(column).filter(|parts| parts.len() == data.len());
    let parts = parts.ok_or_else(mismatch)?;
    let encoded = parts
        .iter()
        .zip(data)
        .map(|(part, datum)| part.encode(datum));
    join(&parts, encoded.collect::<Result<_, _>>()?)
}

/// Joins the encoded parts of a tuple.
fn join(parts: &[Column], encoded: Vec<Vec<u8>>) -> Result<Vec<u8>, Mismatch> {
    let mut out = Vec::new();
    for (i, (part, bytes)) in parts.iter().zip(encoded).enumerate() {
        if i + 1 == parts.len() || fixed_len(part).is_some() {
            out.extend(bytes);
            continue;
        }
        for byte in bytes {
            out.push(byte);
            if byte == 0 {
                out.push(ESCAPE);
            }
        }
        out.extend([0, 0]);
    }
    Ok(out)
}

/// Reads a tuple from one text for each part.
pub(crate) fn from_parts(column: &Column, texts: &[String]) -> Result<Vec<u8>, Mismatch> {
    let mismatch = || Mismatch::new(column, format_args!("{texts:?}"));
    let parts = parts(column).filter(|parts| parts.len() == texts.len());
    let parts = parts.ok_or_else(mismatch)?;
    let encoded = parts
        .iter()
        .zip(texts)
        .map(|(part, text)| super::from_text(part, text));
    join(&parts, encoded.collect::<Result<_, _>>()?)
}

/// Reads a tuple; `read` reads its parts.
pub(super) fn from_text(
    column: &Column,
    text: &str,
    read: impl Fn(&Column, &str) -> Result<Vec<u8>, Mismatch>,
) -> Result<Vec<u8>, Mismatch> {
    let mismatch = || Mismatch::new(column, text);
    let parts = parts(column).ok_or_else(mismatch)?;
    let texts = split(text).filter(|texts| texts.len() == parts.len());
    let texts = texts.ok_or_else(mismatch)?;
    let read =
        |(part, text)| read(part, text).map_err(|why| Mismatch(format!("{}: {why}", mismatch())));
    let encoded = parts.iter().zip(texts).map(read);
    join(&parts, encoded.collect::<Result<_, _>>()?)
}
