//! Ways in for the fuzz targets: the decoders of the data file's bytes, and its checksums.

use crate::file::Root;

/// Makes a block's checksum fit what it holds.
pub fn seal_block(block: &mut [u8]) {
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Whether the bytes are a root blob.
pub fn is_root(bytes: &[u8]) -> bool {
    let root = Root::decode(bytes, 1, Vec::new());
    // What was read came from the bytes: a length alone makes nothing large.
    root.is_some_and(|root| {
        assert!(
            root.leaf_places.len() * 8 + root.trees.len() * 12 + root.meta.len() <= bytes.len()
        );
        true
    })
}
