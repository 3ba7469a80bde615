//! The page map: the block address of each page, and the checkpoint that wrote it there.
//!
//! A *block address* is the number of a block and, above it, bits of the checksum of the contents
//! written there. Blocks are reused, and a medium may lose a write and keep the block's intact old
//! contents: these have another checksum than the block address. The addresses of map leaves and of
//! the root blob's blocks have the same form, so a superblock determines the contents of every
//! block that it refers to, directly or indirectly.
//!
//! The number of the checkpoint that wrote a page to its block shows incremental backups the
//! changed pages, since different contents may, rarely, have the same bits of a checksum.

use braid_rt::to_usize;

use super::block::{MAP, check, u64_at};
use super::superblock::{FORMAT_OF_ADDRESSES, FORMAT_OF_WIDE_BLOCKS};
use super::{DataFile, Root, damaged};
use crate::error::StoreError;
use crate::limits::DATA_FILE_BYTES_MAX;
use crate::page::{PAGE_SIZE, PageId, low32};

/// Entries of a map leaf.
pub(crate) const LEAF_ADDRESSES: usize = (PAGE_SIZE - 16) / 12;

/// Offset of a leaf's births.
const BIRTHS: usize = 16 + 8 * LEAF_ADDRESSES;

/// Entries of a map leaf of formats 2 and 3: words of a block and, above it, a birth.
const OLD_LEAF_ADDRESSES: usize = PAGE_SIZE / 8 - 2;

/// Bits of a block address that hold the block. The highest bit is reserved for the pool.
const BLOCK_BITS: u32 = 38;

const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// As [`BLOCK_BITS`], in formats 2 to 5.
const OLD_BLOCK_BITS: u32 = 36;

const OLD_BLOCK_MASK: u64 = (1 << OLD_BLOCK_BITS) - 1;

/// Bits of a checksum that a block address leaves out: the rest fills it up to the highest bit.
const CRC_SHIFT: u32 = 32 - (63 - BLOCK_BITS);

/// The block address of a page to which a lost leaf of the page map may have referred: a block that
/// no file has.
pub(crate) const LOST: u64 = BLOCK_MASK;

/// The greatest length of the data file, in blocks: the numbers of all blocks are below [`LOST`].
pub(crate) const BLOCKS_MAX: u64 = LOST;

const _: () = assert!(BLOCKS_MAX * PAGE_SIZE as u64 == DATA_FILE_BYTES_MAX);

/// How a format stores block addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Blocks alone: formats 2 and 3.
    Blocks,
    /// Blocks of 36 bits, which end at 512 TiB, and 27 bits of the checksum: formats 4 and 5.
    Narrow,
    #[default]
    Present,
}

impl Packing {
    pub(crate) fn of_format(format: u64) -> Self {
        match format {
            ..FORMAT_OF_ADDRESSES => Self::Blocks,
            FORMAT_OF_ADDRESSES..FORMAT_OF_WIDE_BLOCKS => Self::Narrow,
            FORMAT_OF_WIDE_BLOCKS.. => Self::Present,
        }
    }

    /// Converts a stored block address. Those of [`Packing::Blocks`] stay without a checksum.
    pub(crate) fn unpack(self, stored: u64) -> u64 {
        match self {
            Self::Blocks | Self::Present => stored,
            // The lower bits of the shorter checksum are left out.
            Self::Narrow => stored & OLD_BLOCK_MASK | stored >> BLOCK_BITS << BLOCK_BITS,
        }
    }
}

/// The map's entry of a page; all zero for a page that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    /// The low half of the number of the checkpoint that wrote the page there.
    pub(crate) born: u32,
}

/// The block of a block address.
pub(crate) fn block_of(address: u64) -> u64 {
    address & BLOCK_MASK
}

/// The block address of a block that holds these bytes, whose checksum was set.
pub(crate) fn address_of(block: u64, bytes: &[u8]) -> u64 {
    let crc = low32(u64_at(bytes, 0));
    block | u64::from(crc >> CRC_SHIFT) << BLOCK_BITS
}

/// Checks that an intact block holds the last contents written to its block address.
pub(crate) fn check_address(bytes: &[u8], address: u64) -> Result<(), &'static str> {
    if address_of(block_of(address), bytes) == address || braid_rt::mutant!("believe_stale_blocks")
    {
        Ok(())
    } else {
        Err("it is intact, but older than the last write to it: the medium lost a write")
    }
}

/// A number that changes whenever the page is written again.
pub(crate) fn change_of(Entry { address, born }: Entry) -> u64 {
    match address {
        0 => 0,
        address => u64::from(born) << BLOCK_BITS | block_of(address),
    }
}

/// Writes a leaf's entries.
pub(crate) fn encode_leaf(entries: &[Entry], buf: &mut [u8]) {
    for (i, entry) in entries.iter().enumerate() {
        buf[16 + 8 * i..][..8].copy_from_slice(&entry.address.to_le_bytes());
        buf[BIRTHS + 4 * i..][..4].copy_from_slice(&entry.born.to_le_bytes());
    }
}

fn decode_leaf(buf: &[u8], packing: Packing) -> Vec<Entry> {
    let entry = |i: usize| Entry {
        address: packing.unpack(u64_at(buf, 16 + 8 * i)),
        born: u64_at(buf, (BIRTHS + 4 * i) / 8 * 8).to_le_bytes()[(BIRTHS + 4 * i) % 8..][..4]
            .try_into()
            .map_or(0, u32::from_le_bytes),
    };
    (0..LEAF_ADDRESSES).map(entry).collect()
}

/// A leaf of format 2 or 3. Its block addresses have no checksums yet.
fn decode_old_leaf(buf: &[u8]) -> Vec<Entry> {
    let entry = |i: usize| {
        let word = u64_at(buf, 16 + 8 * i);
        Entry {
            address: word & OLD_BLOCK_MASK,
            born: (word >> OLD_BLOCK_BITS) as u32,
        }
    };
    (0..OLD_LEAF_ADDRESSES).map(entry).collect()
}

impl Root {
    /// Number of pages to which a leaf of the root's map refers.
    pub(crate) fn leaf_pages(&self) -> usize {
        match self.packing {
            Packing::Blocks => OLD_LEAF_ADDRESSES,
            Packing::Narrow | Packing::Present => LEAF_ADDRESSES,
        }
    }
}

impl DataFile {
    /// Reads the leaf of a root's map that lies at a block address.
    pub(crate) fn read_map_leaf(
        &self,
        root: &Root,
        index: usize,
        address: u64,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.read_stored_leaf(root, index, address)?;
        if root.packing == Packing::Blocks {
            self.add_checksums(&mut entries)?;
        }
        Ok(entries)
    }

    /// [`DataFile::read_map_leaf`], with block addresses that lack checksums if the root's lack
    /// them.
    fn read_stored_leaf(
        &self,
        root: &Root,
        index: usize,
        address: u64,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut buf = self.buffer();
        let identity = MAP | index as u64;
        if root.packing == Packing::Blocks {
            self.read_unaddressed(identity, address, root.sequence, &mut buf)?;
            return Ok(decode_old_leaf(&buf));
        }
        self.read_block(identity, address, root.sequence, &mut buf)?;
        Ok(decode_leaf(&buf, root.packing))
    }

    /// The entries of consecutive pages from `first` on, whose block addresses in a root's map are
    /// known. Reads the births from the root's leaves, which must still have their blocks.
    ///
    /// If a leaf can't be read, its pages get the birth `unknown`. This must be the number of the
    /// root's checkpoint or of the next one. Each number of a page that was recorded earlier
    /// belongs to an earlier checkpoint, unless it belongs to the same contents, so an incremental
    /// backup may copy an unchanged page, but never leaves out a changed one.
    pub(crate) fn entries_of(
        &self,
        root: &Root,
        first: PageId,
        addresses: &[u64],
        unknown: u32,
    ) -> Vec<Entry> {
        let mut entries: Vec<Entry> = (addresses.iter())
            .map(|&address| Entry {
                address,
                born: match address {
                    0 => 0,
                    _ if braid_rt::mutant!("reuse_births") => 0,
                    _ => unknown,
                },
            })
            .collect();
        let pages = root.leaf_pages();
        let mut at = 0;
        while at < entries.len() {
            let id = to_usize(first) + at;
            let len = (pages - id % pages).min(entries.len() - at);
            let of_leaf = &mut entries[at..at + len];
            at += len;
            let Some(&leaf) = root.leaf_addresses.get(id / pages) else {
                break;
            };
            if of_leaf.iter().all(|entry| entry.address == 0) {
                continue;
            }
            let Ok(stored) = self.read_stored_leaf(root, id / pages, leaf) else {
                braid_rt::coverage_point("store: births of an unreadable map leaf");
                continue;
            };
            for (entry, stored) in of_leaf.iter_mut().zip(&stored[id % pages..]) {
                if entry.address != 0 && block_of(entry.address) == block_of(stored.address) {
                    entry.born = stored.born;
                }
            }
        }
        entries
    }

    /// Converts the blocks of an old leaf's entries to block addresses, using the blocks' current
    /// contents.
    fn add_checksums(&self, entries: &mut [Entry]) -> Result<(), StoreError> {
        let mut buf = self.buffer();
        for entry in entries.iter_mut().filter(|entry| entry.address != 0) {
            let offset = entry.address.saturating_mul(PAGE_SIZE as u64);
            match self.file.read_at(&mut buf, offset) {
                Ok(()) => entry.address = address_of(entry.address, &buf),
                // The read of the page reports it.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(self.failed("cannot read pages of", error)),
            }
        }
        Ok(())
    }

    /// Reads a block whose checksum is not recorded: a block of an old format, or one that a search
    /// found.
    pub(crate) fn read_unaddressed(
        &self,
        identity: u64,
        block: u64,
        sequence: u64,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        let block = block_of(block);
        let location = || self.location(identity, block);
        let read = self.file.read_at(buf, block * PAGE_SIZE as u64);
        read.map_err(|e| StoreError::io(format!("cannot read {}", location()), e))?;
        check(buf, identity, sequence).map_err(|what| damaged(what, location()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_read_as_it_was_written() {
        let mut buf = vec![0; PAGE_SIZE];
        let entries: Vec<Entry> = (0..LEAF_ADDRESSES as u64)
            .map(|i| Entry {
                address: i << 40 | (i * 7) & BLOCK_MASK,
                born: (i * 1_000_003) as u32,
            })
            .collect();
        encode_leaf(&entries, &mut buf);
        assert_eq!(decode_leaf(&buf, Packing::Present), entries);
        const { assert!(BIRTHS + 4 * LEAF_ADDRESSES <= PAGE_SIZE) };
    }

    #[test]
    fn addresses_of_older_formats_become_those_of_the_present_one() {
        let block = vec![3; PAGE_SIZE];
        let crc = low32(u64_at(&block, 0));
        for number in [2, 9, OLD_BLOCK_MASK - 1] {
            let stored = number | u64::from(crc >> 5) << OLD_BLOCK_BITS;
            let address = Packing::of_format(5).unpack(stored);
            assert_eq!(address, address_of(number, &block));
            assert_eq!(check_address(&block, address), Ok(()));
        }
        assert_eq!(Packing::of_format(4), Packing::Narrow);
        assert_eq!(Packing::of_format(3), Packing::Blocks);
        assert_eq!(Packing::of_format(6).unpack(LOST - 1), LOST - 1);
    }

    /// The greatest block has an address of its own, which differs from the other words that a map
    /// of pages in memory contains.
    #[test]
    fn an_address_holds_every_block() {
        let mut block = vec![0xff; PAGE_SIZE];
        for byte in [0, 0xff] {
            block[..4].fill(byte);
            for number in [2, 1 << 32, OLD_BLOCK_MASK + 1, BLOCKS_MAX - 1] {
                let address = address_of(number, &block);
                assert_eq!((block_of(address), address >> 63), (number, 0));
                assert!(address != LOST && address != u64::MAX >> 1);
            }
        }
        assert_eq!(63, BLOCK_BITS + 32 - CRC_SHIFT);
    }

    #[test]
    fn an_address_is_of_one_content() {
        let mut block = vec![3; PAGE_SIZE];
        let address = address_of(9, &block);
        assert_eq!((block_of(address), address >> 63), (9, 0));
        assert_eq!(check_address(&block, address), Ok(()));
        block[3] ^= 0x80;
        assert!(
            check_address(&block, address)
                .unwrap_err()
                .contains("lost a write")
        );
    }
}
