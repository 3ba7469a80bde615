//! Packed lists inside a value: listpacks, and the ziplists and sets of integers of older versions.

use bytes::{BufMut, Bytes};

use super::Malformed;

/// Takes bytes off the front.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    whole: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(whole: &'a Bytes, at: usize) -> Result<Self, Malformed> {
        if at > whole.len() {
            return Err(Malformed::Value);
        }
        Ok(Cursor { whole, at })
    }

    fn take(&mut self, len: usize) -> Result<Bytes, Malformed> {
        let end = self.at.checked_add(len).ok_or(Malformed::Value)?;
        if end > self.whole.len() {
            return Err(Malformed::Value);
        }
        let taken = self.whole.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.whole.get(self.at).ok_or(Malformed::Value)?;
        self.at += 1;
        Ok(byte)
    }

    /// Returns a signed little-endian number as text.
    fn integer(&mut self, len: usize) -> Result<Bytes, Malformed> {
        Ok(number(signed(&self.take(len)?)))
    }
}

/// Decodes a signed little-endian number of one to eight bytes.
fn signed(bytes: &[u8]) -> i64 {
    let mut word = [0; 8];
    word[8 - bytes.len()..].copy_from_slice(bytes);
    i64::from_le_bytes(word) >> (64 - 8 * bytes.len())
}

fn number(number: i64) -> Bytes {
    number.to_string().into()
}

/// Decodes the elements of a listpack, numbers as text.
pub(super) fn listpack(pack: &Bytes) -> Result<Vec<Bytes>, Malformed> {
    let mut cursor = Cursor::new(pack, 6)?;
    let mut elements = Vec::new();
    loop {
        let start = cursor.at;
        let first = cursor.byte()?;
        let element = match first {
            0..=0x7f => number(i64::from(first)),
            0x80..=0xbf => cursor.take(usize::from(first & 0x3f))?,
            0xc0..=0xdf => {
                let bits = i64::from(first & 0x1f) << 8 | i64::from(cursor.byte()?);
                number(bits << 51 >> 51)
            }
            0xe0..=0xef => {
                let len = usize::from(first & 0x0f) << 8 | usize::from(cursor.byte()?);
                cursor.take(len)?
            }
            0xf0 => {
                let len = cursor.take(4)?;
                cursor.take(u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)?
            }
            0xf1 => cursor.integer(2)?,
            0xf2 => cursor.integer(3)?,
            0xf3 => cursor.integer(4)?,
            0xf4 => cursor.integer(8)?,
            0xff if cursor.at == pack.len() => return Ok(elements),
            _ => return Err(Malformed::Value),
        };
        // The length of the element, for reading backwards.
        cursor.take(back_len(cursor.at - start))?;
        elements.push(element);
    }
}

/// Returns how many bytes the length of an element takes.
fn back_len(len: usize) -> usize {
    match len {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

/// Builds a listpack.
#[derive(Debug)]
pub(super) struct ListpackWriter {
    out: Vec<u8>,
    count: usize,
}

impl ListpackWriter {
    pub(super) fn new() -> Self {
        ListpackWriter {
            out: vec![0; 6],
            count: 0,
        }
    }

    fn finish_element(&mut self, start: usize) {
        let len = self.out.len() - start;
        let bytes = back_len(len);
        for at in (0..bytes).rev() {
            let more = if at + 1 == bytes { 0 } else { 0x80 };
            self.out.put_u8((len >> (7 * at)) as u8 & 0x7f | more);
        }
        self.count += 1;
    }

    pub(super) fn integer(&mut self, number: i64) {
        let start = self.out.len();
        match number {
            0..=127 => self.out.put_u8(number as u8),
            -4096..=4095 => {
                self.out.put_u8(0xc0 | (number >> 8) as u8 & 0x1f);
                self.out.put_u8(number as u8);
            }
            _ => {
                self.out.put_u8(0xf4);
                self.out.put_i64_le(number);
            }
        }
        self.finish_element(start);
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        let start = self.out.len();
        match text.len() {
            len @ 0..64 => self.out.put_u8(0x80 | len as u8),
            len @ 64..4096 => {
                self.out.put_u8(0xe0 | (len >> 8) as u8);
                self.out.put_u8(len as u8);
            }
            len => {
                self.out.put_u8(0xf0);
                self.out.put_u32_le(len as u32);
            }
        }
        self.out.put_slice(text);
        self.finish_element(start);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.put_u8(0xff);
        let len = self.out.len() as u32;
        self.out[..4].copy_from_slice(&len.to_le_bytes());
        // 65,535 says that the elements have to be counted.
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        self.out[4..6].copy_from_slice(&count.to_le_bytes());
        self.out
    }
}

/// Decodes the elements of a ziplist, numbers as text.
pub(super) fn ziplist(list: &Bytes) -> Result<Vec<Bytes>, Malformed> {
    let mut cursor = Cursor::new(list, 10)?;
    let mut elements = Vec::new();
    loop {
        match cursor.byte()? {
            0xff if cursor.at == list.len() => return Ok(elements),
            0xfe => drop(cursor.take(4)?),
            0xff => return Err(Malformed::Value),
            _ => {}
        }
        let first = cursor.byte()?;
        elements.push(match first {
            0..=0x3f => cursor.take(usize::from(first))?,
            0x40..=0x7f => {
                let len = usize::from(first & 0x3f) << 8 | usize::from(cursor.byte()?);
                cursor.take(len)?
            }
            0x80 => {
                let len = cursor.take(4)?;
                cursor.take(u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize)?
            }
            0xc0 => cursor.integer(2)?,
            0xd0 => cursor.integer(4)?,
            0xe0 => cursor.integer(8)?,
            0xf0 => cursor.integer(3)?,
            0xfe => cursor.integer(1)?,
            0xf1..=0xfd => number(i64::from(first & 0x0f) - 1),
            _ => return Err(Malformed::Value),
        });
    }
}

/// Decodes a set of integers.
pub(super) fn intset(set: &Bytes) -> Result<Vec<Bytes>, Malformed> {
    let header = set.get(..8).ok_or(Malformed::Value)?;
    let width = match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
        width @ (2 | 4 | 8) => width as usize,
        _ => return Err(Malformed::Value),
    };
    let count = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
    let body = &set[8..];
    if Some(body.len()) != count.checked_mul(width) {
        return Err(Malformed::Value);
    }
    Ok(body
        .chunks_exact(width)
        .map(|word| number(signed(word)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listpacks_decode_to_themselves() {
        let mut writer = ListpackWriter::new();
        let numbers = [
            0,
            1,
            127,
            128,
            -1,
            4095,
            4096,
            -4096,
            -4097,
            i64::MAX,
            i64::MIN,
        ];
        let texts: [usize; 7] = [0, 1, 63, 64, 4095, 4096, 70_000];
        for number in numbers {
            writer.integer(number);
        }
        for len in texts {
            writer.text(&vec![b'x'; len]);
        }
        let decoded = listpack(&writer.finish().into()).unwrap();
        let expected: Vec<Bytes> = numbers
            .into_iter()
            .map(number)
            .chain(texts.map(|len| vec![b'x'; len].into()))
            .collect();
        assert_eq!(decoded, expected);
    }

    #[test]
    fn numbers_have_their_sign() {
        assert_eq!(signed(&[0xff]), -1);
        assert_eq!(signed(&[0x00, 0x80]), -32_768);
        assert_eq!(signed(&[0xff, 0xff, 0x7f]), 8_388_607);
        let set = Bytes::from_static(&[2, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 1, 0]);
        assert_eq!(intset(&set).unwrap(), ["-1", "1"]);
        assert!(intset(&set.slice(..11)).is_err());
    }
}
