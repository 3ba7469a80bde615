//! The header of a block: its first sixteen bytes hold its checksum, its identity, and the
//! checkpoint of its write.
//!
//! Every block is sealed when written and checked when read, for every kind of contents.
//! [`crate::data_file`] has the layout.

use crate::page::{PageId, low32};

pub(crate) const MAP: u64 = 1 << 62;
pub(crate) const BLOB: u64 = 1 << 63;

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Stamps a block with its identity, the checkpoint that it belongs to, and its checksum. The
/// checkpoint's number loses its upper half: a checkpoint a second uses up the lower half in 136
/// years.
pub(super) fn seal(block: &mut [u8], identity: u64, sequence: u64) {
    block[8..16].copy_from_slice(&identity.to_le_bytes());
    block[4..8].copy_from_slice(&low32(sequence).to_le_bytes());
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks that a block is intact, has the identity, and is no newer than `sequence`.
pub(crate) fn check(block: &[u8], identity: u64, sequence: u64) -> Result<(), &'static str> {
    let stamp = u64_at(block, 0);
    if low32(stamp) != crc32c::crc32c(&block[4..]) && !braid_rt::mutant!("skip_page_checksum") {
        return Err("the checksum does not fit");
    }
    if u64_at(block, 8) != identity {
        return Err("another block's contents are in its place");
    }
    if low32(stamp >> 32) > low32(sequence) {
        return Err("it is newer than the superblock that leads to it; the newest one is lost");
    }
    Ok(())
}

/// Checks that a block from another file is intact, and holds the page `id`.
pub(crate) fn check_copied(block: &[u8], id: PageId) -> Result<(), &'static str> {
    check(block, id, u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_SIZE;

    #[test]
    fn a_block_is_complete_in_its_place_and_not_newer_than_its_reference() {
        let mut block = vec![3; PAGE_SIZE];
        seal(&mut block, 7, 5);
        assert_eq!(check(&block, 7, 5), Ok(()));
        assert!(
            check(&block, 7, 4)
                .unwrap_err()
                .contains("newest one is lost")
        );
        assert!(check(&block, 8, 5).unwrap_err().contains("another block's"));
        block[100] ^= 1;
        assert!(check(&block, 7, 5).unwrap_err().contains("checksum"));
    }
}
