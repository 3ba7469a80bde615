//! Reads values.

use bytes::Bytes;

use super::packed::{intset, listpack, ziplist};
use super::{Field, Malformed, Value, types};
use crate::resp::number::parse_f64;

/// Most bytes that the compressed strings of one payload may have together.
const UNPACKED_MAX: usize = 512 << 20;

/// A length, or the form in which a string follows.
enum Length {
    Plain(u64),
    Special(u8),
}

/// Reads a value from the front.
#[derive(Debug)]
pub(crate) struct Reader {
    rest: Bytes,
    /// Bytes that compressed strings may still have.
    budget: usize,
}

type Result<T> = std::result::Result<T, Malformed>;

impl Reader {
    pub(crate) fn new(rest: Bytes) -> Reader {
        Reader {
            rest,
            budget: UNPACKED_MAX,
        }
    }

    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Value)
        }
    }

    pub(super) fn take(&mut self, len: u64) -> Result<Bytes> {
        let len = usize::try_from(len).map_err(|_| Malformed::Value)?;
        if len > self.rest.len() {
            return Err(Malformed::Value);
        }
        Ok(self.rest.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N as u64)?;
        taken[..].try_into().map_err(|_| Malformed::Value)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn word_le(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn id_be(&mut self) -> Result<u128> {
        Ok(u128::from_be_bytes(self.array()?))
    }

    fn length_or_form(&mut self) -> Result<Length> {
        let first = self.byte()?;
        Ok(match first >> 6 {
            0 => Length::Plain(u64::from(first)),
            1 => Length::Plain(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            2 if first == 0x80 => Length::Plain(u64::from(u32::from_be_bytes(self.array()?))),
            2 if first == 0x81 => Length::Plain(u64::from_be_bytes(self.array()?)),
            3 => Length::Special(first & 0x3f),
            _ => return Err(Malformed::Value),
        })
    }

    pub(super) fn length(&mut self) -> Result<u64> {
        match self.length_or_form()? {
            Length::Plain(length) => Ok(length),
            Length::Special(_) => Err(Malformed::Value),
        }
    }

    pub(crate) fn string(&mut self) -> Result<Bytes> {
        match self.length_or_form()? {
            Length::Plain(length) => self.take(length),
            Length::Special(0) => Ok(i8::from_le_bytes(self.array()?).to_string().into()),
            Length::Special(1) => Ok(i16::from_le_bytes(self.array()?).to_string().into()),
            Length::Special(2) => Ok(i32::from_le_bytes(self.array()?).to_string().into()),
            Length::Special(3) => {
                let (packed, len) = (self.length()?, self.length()?);
                let packed = self.take(packed)?;
                let len = usize::try_from(len).map_err(|_| Malformed::Value)?;
                self.budget = self.budget.checked_sub(len).ok_or(Malformed::Value)?;
                unpack(&packed, len)
            }
            Length::Special(_) => Err(Malformed::Value),
        }
    }

    /// Reads as many things as a length before them says.
    pub(super) fn several<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.length()?;
        // Each takes a byte at least.
        if count > self.rest.len() as u64 {
            return Err(Malformed::Value);
        }
        (0..count).map(|_| read(self)).collect()
    }

    fn score(&mut self) -> Result<f64> {
        number(f64::from_le_bytes(self.array()?))
    }

    fn text_score(&mut self) -> Result<f64> {
        Ok(match self.byte()? {
            255 => f64::NEG_INFINITY,
            254 => f64::INFINITY,
            253 => return Err(Malformed::Value),
            len => parse_f64(&self.take(len.into())?).ok_or(Malformed::Value)?,
        })
    }

    pub(crate) fn value(&mut self) -> Result<Value> {
        Ok(match self.byte()? {
            types::STRING => Value::String(self.string()?),
            types::LIST => Value::List(self.several(Self::string)?),
            types::SET => Value::Set(self.several(Self::string)?),
            types::HASH => Value::Hash(self.several(|reader| {
                Ok(Field {
                    name: reader.string()?,
                    value: reader.string()?,
                    expires: None,
                })
            })?),
            types::SORTED_SET => {
                Value::SortedSet(self.several(|reader| Ok((reader.string()?, reader.score()?)))?)
            }
            types::SORTED_SET_TEXT => Value::SortedSet(
                self.several(|reader| Ok((reader.string()?, reader.text_score()?)))?,
            ),
            types::LIST_ZIPLIST => Value::List(ziplist(&self.string()?)?),
            types::SET_INTSET => Value::Set(intset(&self.string()?)?),
            types::SET_LISTPACK => Value::Set(listpack(&self.string()?)?),
            types::SORTED_SET_ZIPLIST => scored(ziplist(&self.string()?)?)?,
            types::SORTED_SET_LISTPACK => scored(listpack(&self.string()?)?)?,
            types::HASH_ZIPLIST => fields(ziplist(&self.string()?)?)?,
            types::HASH_LISTPACK => fields(listpack(&self.string()?)?)?,
            types::LIST_QUICKLIST => {
                let nodes = self.several(|reader| ziplist(&reader.string()?))?;
                Value::List(nodes.concat())
            }
            types::LIST_QUICKLIST_2 => {
                let nodes = self.several(|reader| match reader.length()? {
                    1 => Ok(vec![reader.string()?]),
                    2 => listpack(&reader.string()?),
                    _ => Err(Malformed::Value),
                })?;
                Value::List(nodes.concat())
            }
            types::HASH_METADATA => self.hash_with_times()?,
            types::HASH_LISTPACK_EX => {
                self.word_le()?;
                timed_fields(listpack(&self.string()?)?)?
            }
            kind @ (types::STREAM | types::STREAM_2 | types::STREAM_3) => {
                Value::Stream(super::stream::read(self, kind)?)
            }
            _ => return Err(Malformed::Value),
        })
    }

    fn hash_with_times(&mut self) -> Result<Value> {
        let earliest = self.word_le()?;
        Ok(Value::Hash(self.several(|reader| {
            let time = reader.length()?;
            let expires = time.checked_sub(1).map(|after| earliest.checked_add(after));
            Ok(Field {
                expires: expires
                    .map(|expires| expires.ok_or(Malformed::Value))
                    .transpose()?,
                name: reader.string()?,
                value: reader.string()?,
            })
        })?))
    }
}

fn number(score: f64) -> Result<f64> {
    if score.is_nan() {
        Err(Malformed::Value)
    } else {
        Ok(score)
    }
}

fn chunks<const N: usize>(elements: Vec<Bytes>) -> Result<Vec<[Bytes; N]>> {
    let (chunks, rest) = elements.as_chunks::<N>();
    if rest.is_empty() {
        Ok(chunks.to_vec())
    } else {
        Err(Malformed::Value)
    }
}

fn scored(elements: Vec<Bytes>) -> Result<Value> {
    let pairs = chunks::<2>(elements)?.into_iter();
    let members = pairs.map(|[member, score]| {
        let score = parse_f64(&score).ok_or(Malformed::Value)?;
        Ok((member, score))
    });
    Ok(Value::SortedSet(members.collect::<Result<_>>()?))
}

fn fields(elements: Vec<Bytes>) -> Result<Value> {
    let pairs = chunks::<2>(elements)?.into_iter();
    Ok(Value::Hash(
        pairs
            .map(|[name, value]| Field {
                name,
                value,
                expires: None,
            })
            .collect(),
    ))
}

fn timed_fields(elements: Vec<Bytes>) -> Result<Value> {
    let triples = chunks::<3>(elements)?.into_iter();
    let fields = triples.map(|[name, value, expires]| {
        let text = std::str::from_utf8(&expires).map_err(|_| Malformed::Value)?;
        let expires: u64 = text.parse().map_err(|_| Malformed::Value)?;
        Ok(Field {
            name,
            value,
            expires: (expires > 0).then_some(expires),
        })
    });
    Ok(Value::Hash(fields.collect::<Result<_>>()?))
}

/// Unpacks a string that LZF has packed.
fn unpack(packed: &[u8], len: usize) -> Result<Bytes> {
    // Three bytes stand for 264 at most.
    if len / 88 > packed.len() {
        return Err(Malformed::Value);
    }
    let mut out: Vec<u8> = Vec::with_capacity(len);
    let mut rest = packed.iter().map(|byte| usize::from(*byte));
    let mut next = || rest.next().ok_or(Malformed::Value);
    while out.len() < len {
        let control = next()?;
        if control < 32 {
            for _ in 0..=control {
                out.push(next()? as u8);
            }
            continue;
        }
        let mut count = control >> 5;
        if count == 7 {
            count += next()?;
        }
        let distance = ((control & 0x1f) << 8 | next()?) + 1;
        let from = out.len().checked_sub(distance).ok_or(Malformed::Value)?;
        // The copied bytes may overlap with those that the copy appends.
        for at in from..from + count + 2 {
            out.push(out[at]);
        }
    }
    if out.len() == len && next().is_err() {
        Ok(out.into())
    } else {
        Err(Malformed::Value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_strings() {
        // "a", then 20 more of them; a literal at the end.
        let packed = [0, b'a', 0xe0, 20 - 9, 0, 1, b'b', b'c'];
        let unpacked = unpack(&packed, 23).unwrap();
        assert_eq!(unpacked, format!("{}bc", "a".repeat(21)));
        for len in [0, 22, 24, 10_000] {
            assert_eq!(unpack(&packed, len), Err(Malformed::Value));
        }
        for end in 0..packed.len() {
            assert_eq!(unpack(&packed[..end], 23), Err(Malformed::Value));
        }
        // Points before the beginning.
        assert_eq!(unpack(&[0, b'a', 0x20, 1], 4), Err(Malformed::Value));
    }
}
