//! The byte ranges in which two pages differ.

use std::ops::Range;

use braid_rt::to_usize;

/// Bytes of the descriptor of a range in a log of such pages.
pub(crate) fn descriptor_len(page_size: usize) -> usize {
    if page_size <= 1 << 16 { 4 } else { 8 }
}

/// Bytes that are compared with one call: most of them are equal.
const PART: usize = 512;
/// Bytes of a cache line.
const LINE: usize = 64;
const WORD: usize = size_of::<u64>();
/// A part of a page without data.
const ZEROS: [u8; PART] = [0; PART];

/// Finds the ranges in which `new` differs from `old`, ascending; without `old`, from zeros. Equal bytes
/// between two ranges belong to one range if a second descriptor would take as many bytes.
pub(crate) fn differing(old: Option<&[u8]>, new: &[u8], ranges: &mut Vec<Range<usize>>) {
    ranges.clear();
    debug_assert!(old.is_none_or(|old| old.len() == new.len()));
    let mut found = Found {
        gap: descriptor_len(new.len()),
        last: 0..0,
        ranges,
    };
    let mut at = 0;
    while at < new.len() {
        let end = new.len().min(at + PART);
        let old = match old {
            Some(old) => &old[at..end],
            None => &ZEROS[..end - at],
        };
        // One comparison of the library's: the processor's widest registers, in every build.
        if old != &new[at..end] {
            found.compare(at, old, &new[at..end]);
        }
        at = end;
    }
    found.end();
}

/// The ranges that were found so far.
struct Found<'a> {
    gap: usize,
    /// The newest range; the first one is empty.
    last: Range<usize>,
    ranges: &'a mut Vec<Range<usize>>,
}

impl Found<'_> {
    /// Adds bytes that differ, after all others.
    #[inline]
    fn add(&mut self, bytes: Range<usize>) {
        if self.last.end == 0 {
            self.last = bytes;
        } else if bytes.start - self.last.end <= self.gap {
            self.last.end = bytes.end;
        } else {
            self.ranges.push(std::mem::replace(&mut self.last, bytes));
        }
    }

    fn end(self) {
        if self.last.end > 0 {
            self.ranges.push(self.last);
        }
    }

    /// Compares the bytes from `at` on, which differ somewhere.
    fn compare(&mut self, at: usize, old: &[u8], new: &[u8]) {
        let (old_lines, old_rest) = old.as_chunks::<LINE>();
        let (lines, rest) = new.as_chunks::<LINE>();
        let mut at = at;
        for index in 0..lines.len() {
            if old_lines[index] != lines[index] {
                self.compare_words(at, &old_lines[index], &lines[index]);
            }
            at += LINE;
        }
        for index in 0..rest.len() {
            if old_rest[index] != rest[index] {
                self.add(at + index..at + index + 1);
            }
        }
    }

    /// Adds the runs of bytes that differ.
    fn compare_words(&mut self, at: usize, old: &[u8; LINE], new: &[u8; LINE]) {
        let (old, new) = (old.as_chunks::<WORD>().0, new.as_chunks::<WORD>().0);
        let mut at = at;
        for index in 0..new.len() {
            let differing = u64::from_le_bytes(old[index]) ^ u64::from_le_bytes(new[index]);
            match nonzero_bytes(differing) {
                0 => {}
                HIGH_BITS => self.add(at..at + WORD),
                some => self.add_runs(at, some),
            }
            at += WORD;
        }
    }

    /// Adds the runs of bytes of a word whose high bit is set.
    #[inline]
    fn add_runs(&mut self, at: usize, mut differing: u64) {
        while differing != 0 {
            let start = differing.trailing_zeros() / 8;
            // The bytes after the run have no high bit.
            let equal = HIGH_BITS & !(differing >> (start * 8));
            let end = (start + equal.trailing_zeros() / 8).min(8);
            self.add(at + start as usize..at + end as usize);
            differing &= u64::MAX.checked_shl(end * 8).unwrap_or(0);
        }
    }
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Sets the high bit of each byte that is not zero, and no other bit.
#[inline]
fn nonzero_bytes(word: u64) -> u64 {
    // The addition carries into the high bit of a byte if one of its other bits is set.
    (((word & !HIGH_BITS) + !HIGH_BITS) | word) & HIGH_BITS
}

/// Bytes that ranges take in a record, with their descriptors.
pub(crate) fn encoded_len(ranges: &[Range<usize>], page_size: usize) -> usize {
    let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    bytes + ranges.len() * descriptor_len(page_size)
}

/// Appends the descriptors of ranges, then their bytes.
pub(crate) fn encode(ranges: &[Range<usize>], page: &[u8], out: &mut Vec<u8>) {
    for range in ranges {
        // A range has at least one byte, so that its length minus one has as many bits as an
        // offset.
        let (offset, last) = (range.start, range.len() - 1);
        if descriptor_len(page.len()) == 4 {
            out.extend(low16(offset).to_le_bytes());
            out.extend(low16(last).to_le_bytes());
        } else {
            out.extend(low32(offset).to_le_bytes());
            out.extend(low32(last).to_le_bytes());
        }
    }
    for range in ranges {
        out.extend(&page[range.clone()]);
    }
}

fn low16(value: usize) -> u16 {
    u16::try_from(value).expect("an offset in a page of 64 KiB")
}

fn low32(value: usize) -> u32 {
    u32::try_from(value).expect("an offset in a page of 16 MiB")
}

/// Calls `each` with the offset and the bytes of each of `count` encoded ranges. Returns `None`
/// if they are not ascending ranges of a page that fill `encoded`, up to padding of less than eight
/// zeros.
pub(crate) fn decode<'a>(
    encoded: &'a [u8],
    count: usize,
    page_size: usize,
    mut each: impl FnMut(usize, &'a [u8]),
) -> Option<()> {
    let descriptor = descriptor_len(page_size);
    let (descriptors, mut bytes) = encoded.split_at_checked(count.checked_mul(descriptor)?)?;
    let mut least = 0;
    for entry in descriptors.chunks_exact(descriptor) {
        let (offset, last) = entry.split_at(descriptor / 2);
        let start = number(offset);
        let len = number(last) + 1;
        if start < least || start + len > page_size {
            return None;
        }
        let (range, rest) = bytes.split_at_checked(len)?;
        each(start, range);
        (bytes, least) = (rest, start + len);
    }
    (bytes.len() < 8 && bytes.iter().all(|byte| *byte == 0)).then_some(())
}

/// Two or four bytes in little-endian order.
#[inline]
fn number(bytes: &[u8]) -> usize {
    match *bytes {
        [low, high] => usize::from(u16::from_le_bytes([low, high])),
        [a, b, c, d] => to_usize(u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => unreachable!("half a descriptor"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_difference_makes_the_new_page_of_the_old_one(
            (old, new) in (1_usize..300).prop_flat_map(|len| {
                let page = || proptest::collection::vec(0_u8..3, len);
                (page(), page())
            }),
        ) {
            let mut ranges = Vec::from([0..1, 0..1]);
            differing(Some(&old), &new, &mut ranges);
            let mut encoded = Vec::new();
            encode(&ranges, &new, &mut encoded);
            prop_assert_eq!(encoded.len(), encoded_len(&ranges, new.len()));
            let mut made = old.clone();
            let decoded = decode(&encoded, ranges.len(), new.len(), |at, bytes| {
                made[at..at + bytes.len()].copy_from_slice(bytes);
            });
            prop_assert_eq!(decoded, Some(()));
            prop_assert_eq!(&made, &new);
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].end + 4 < pair[1].start, "two ranges cost less as one");
            }
            for range in &ranges {
                prop_assert!(old[range.start] != new[range.start]);
                prop_assert!(old[range.end - 1] != new[range.end - 1]);
            }
            let mut from_zeros = Vec::new();
            differing(None, &new, &mut from_zeros);
            differing(Some(&vec![0; new.len()]), &new, &mut ranges);
            prop_assert_eq!(from_zeros, ranges);
        }

        #[test]
        fn any_bytes_decode_within_the_page(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            count in 0_usize..9,
            page_size in prop_oneof![1_usize..200, Just(1 << 16), Just((1 << 16) + 1)],
        ) {
            let mut least = 0;
            let _ = decode(&bytes, count, page_size, |at, range| {
                assert!(at >= least && !range.is_empty() && at + range.len() <= page_size);
                least = at + range.len();
            });
        }
    }

    #[test]
    fn a_whole_page_of_any_size_is_one_range() {
        for size in [1, 7, 4096, 1 << 16, (1 << 16) + 1, 1 << 24] {
            let page = vec![7; size];
            let mut ranges = Vec::new();
            differing(None, &page, &mut ranges);
            assert_eq!(ranges.len(), 1);
            assert_eq!(ranges[0], 0..size);
            let mut encoded = Vec::new();
            encode(&ranges, &page, &mut encoded);
            let decoded = decode(&encoded, 1, size, |at, bytes| {
                assert_eq!((at, bytes.len()), (0, size));
            });
            assert_eq!(decoded, Some(()));
        }
    }
}
