//! The byte ranges in which two pages differ.

use std::ops::Range;

/// Bytes of the descriptor of a range in a log of such pages.
pub(crate) fn descriptor_len(page_size: usize) -> usize {
    if page_size <= 1 << 16 { 4 } else { 8 }
}

/// Returns the ranges in which `new` differs from `old`, ascending. Equal bytes between two ranges
/// belong to one range if a second descriptor would take as many bytes.
pub(crate) fn differing(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    debug_assert_eq!(old.len(), new.len());
    let gap = descriptor_len(new.len());
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while let Some(start) = first_difference(old, new, at) {
        let mut end = start + 1;
        while end < new.len() && old[end] != new[end] {
            end += 1;
        }
        match ranges.last_mut() {
            Some(last) if start - last.end <= gap => last.end = end,
            _ => ranges.push(start..end),
        }
        at = end;
    }
    ranges
}

/// Index of the first byte from `at` on that differs.
fn first_difference(old: &[u8], new: &[u8], mut at: usize) -> Option<usize> {
    const STEP: usize = 32;
    while at + STEP <= new.len() && old[at..at + STEP] == new[at..at + STEP] {
        at += STEP;
    }
    (at..new.len()).find(|index| old[*index] != new[*index])
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
fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | usize::from(*byte))
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
            let ranges = differing(&old, &new);
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
            let ranges = differing(&vec![0; size], &page);
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
