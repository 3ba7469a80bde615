//! The root of a checkpoint, to which its superblock refers, in its own chain of blocks, the blob.
//!
//! It grows with the page map and the caller's bytes, and so does not fit the superblock, which is
//! one block.

use std::collections::BTreeMap;

use braid_rt::to_usize;

use super::block::{BLOB, u64_at};
use super::map::Packing;
use super::superblock::{FORMAT, FORMAT_OF_ADDRESSES};
use super::{DataFile, damaged};
use crate::error::StoreError;
use crate::page::{PAGE_SIZE, PageId};
use crate::page_table::PAGES_MAX;

const BLOB_BYTES: usize = PAGE_SIZE - 24;

/// The state to which the newest superblock refers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    pub(crate) sequence: u64,
    pub(crate) next_page: PageId,
    pub(crate) leaf_addresses: Vec<u64>,
    pub(crate) trees: BTreeMap<u32, PageId>,
    pub(crate) meta: Vec<u8>,
    /// The block addresses of the root blob's own blocks.
    pub(crate) blob_blocks: Vec<u64>,
    /// How the leaves of its map store block addresses.
    pub(crate) packing: Packing,
}

/// Above the next page's number.
const FORMAT_SHIFT: u32 = 56;

impl Root {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |n: u64| out.extend(n.to_le_bytes());
        put(self.next_page | FORMAT << FORMAT_SHIFT);
        put(self.leaf_addresses.len() as u64);
        self.leaf_addresses.iter().for_each(|&address| put(address));
        put(self.trees.len() as u64);
        for (&tree, &root) in &self.trees {
            put(u64::from(tree));
            put(root);
        }
        put(self.meta.len() as u64);
        out.extend(&self.meta);
        out
    }

    pub(crate) fn decode(mut bytes: &[u8], sequence: u64, blob_blocks: Vec<u64>) -> Option<Self> {
        let mut take = || {
            let (number, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let word = take()?;
        let next_page = word & ((1 << FORMAT_SHIFT) - 1);
        let packing = match word >> FORMAT_SHIFT {
            format @ (0 | FORMAT_OF_ADDRESSES..=FORMAT) => Packing::of_format(format),
            _ => return None,
        };
        let leaves = take()?;
        if next_page > PAGES_MAX || leaves > PAGES_MAX {
            return None;
        }
        let address = |_| Some(packing.unpack(take()?));
        let mut leaf_addresses = (0..leaves).map(address).collect::<Option<Vec<_>>>()?;
        // It stays in memory, and grows with the file.
        leaf_addresses.shrink_to_fit();
        let trees = take()?;
        let tree = |_| Some((u32::try_from(take()?).ok()?, take()?));
        let trees = (0..trees).map(tree).collect::<Option<_>>()?;
        let meta_len = usize::try_from(take()?).ok()?;
        let meta = bytes.get(..meta_len)?.to_vec();
        Some(Self {
            sequence,
            next_page,
            leaf_addresses,
            trees,
            meta,
            blob_blocks,
            packing,
        })
    }
}

impl DataFile {
    /// Writes the root blob; returns its block address. On an error nothing stays allocated.
    pub(crate) fn write_blob(&self, root: &mut Root) -> Result<(u64, u64), StoreError> {
        let bytes = root.encode();
        let mut next = 0u64;
        // From the last to the first, since each block refers to the next one.
        for (i, part) in bytes.chunks(BLOB_BYTES).enumerate().rev() {
            let mut buf = self.buffer();
            buf[16..24].copy_from_slice(&next.to_le_bytes());
            buf[24..24 + part.len()].copy_from_slice(part);
            match self.write_blocks(&mut [(BLOB | i as u64, buf)]) {
                Ok(addresses) => next = addresses[0],
                Err(error) => {
                    braid_rt::coverage_point("store: the root can't be written");
                    let mut space = self.space.lock();
                    root.blob_blocks
                        .drain(..)
                        .for_each(|block| space.free(block));
                    return Err(error);
                }
            }
            root.blob_blocks.push(next);
        }
        Ok((next, bytes.len() as u64))
    }

    /// The packing of the block addresses in a root blob, given its first block.
    pub(crate) fn packing_in(first: &[u8]) -> Packing {
        Packing::of_format(u64_at(first, 24) >> FORMAT_SHIFT)
    }

    pub(crate) fn read_root_blob(
        &self,
        sequence: u64,
        first: u64,
        len: u64,
        packing: Packing,
    ) -> Result<Root, StoreError> {
        let mut bytes = Vec::new();
        let mut blocks = Vec::new();
        let mut block = first;
        let mut buf = self.buffer();
        for i in 0..len.div_ceil(BLOB_BYTES as u64) {
            if packing == Packing::Blocks {
                self.read_unaddressed(BLOB | i, block, sequence, &mut buf)?
            } else {
                self.read_block(BLOB | i, block, sequence, &mut buf)?
            }
            blocks.push(block);
            bytes.extend_from_slice(&buf[24..]);
            block = packing.unpack(u64_at(&buf, 16));
        }
        bytes.truncate(to_usize(len));
        Root::decode(&bytes, sequence, blocks)
            .filter(|root| root.packing == packing)
            .ok_or_else(|| {
                damaged(
                    "the checkpoint's root block is malformed",
                    "data.braid".into(),
                )
            })
    }
}
