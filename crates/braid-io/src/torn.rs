//! First writes that a crash left in part.

/// The bytes that a first write fills: no header of Braid is longer.
const HEADER: usize = 512;

/// Whether a block that was zeroes may be what a crash left of its first write: at each of the known
/// offsets, it has the given little-endian word or zero; and only its first 512 bytes have been
/// written to.
///
/// A disk leaves a sector of 512 bytes as it was, or whole. Persistent memory leaves each aligned
/// word of eight bytes as it was, or whole. In both cases, a creation that was interrupted must
/// recognize its own files by what is left of their headers.
///
/// ```
/// let mut block = vec![0; 4096];
/// let known = [(0, u64::from_le_bytes(*b"BRAIDLOG")), (16, 77)];
/// assert!(braid_io::may_be_torn(&block, &known));
/// block[16..24].copy_from_slice(&77_u64.to_le_bytes());
/// assert!(braid_io::may_be_torn(&block, &known));
/// block[..8].copy_from_slice(b"a letter");
/// assert!(!braid_io::may_be_torn(&block, &known));
/// ```
pub fn may_be_torn(block: &[u8], known: &[(usize, u64)]) -> bool {
    let is_known = |(at, expected): &(usize, u64)| {
        let word = block.get(*at..).and_then(<[u8]>::first_chunk);
        word.is_some_and(|word| [0, *expected].contains(&u64::from_le_bytes(*word)))
    };
    if braid_rt::mutant!("refuse_torn_headers") {
        return block.iter().all(|byte| *byte == 0);
    }
    let rest = block.get(HEADER..).unwrap_or_default();
    known.iter().all(is_known) && rest.iter().all(|byte| *byte == 0)
}

/// The words of an identity that lies at an offset, for [`may_be_torn`].
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
pub fn identity_words(at: usize, identity: u128) -> [(usize, u64); 2] {
    [(at, identity as u64), (at + 8, (identity >> 64) as u64)]
}
