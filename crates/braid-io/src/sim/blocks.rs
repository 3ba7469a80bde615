//! Byte arrays made of blocks that copies share.

use std::ops::Range;
use std::sync::Arc;

use super::{BLOCK, LINE, SECTOR};

type Block = Option<Arc<[u8; BLOCK]>>;

/// The bytes of a file, or of a write. Copies share a block until one of them changes it, and a
/// block of zeroes takes no memory: a history's work on its media is mostly copying them.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    len: usize,
    /// The bytes after `len` are zeroes.
    blocks: Vec<Block>,
}

/// Earlier contents of a block.
#[derive(Debug)]
pub(super) struct Part {
    len: usize,
    block: Block,
}

static ZEROES: [u8; BLOCK] = [0; BLOCK];

impl Blocks {
    pub(super) fn zeroes(len: usize) -> Self {
        let blocks = vec![None; len.div_ceil(BLOCK)];
        Self { len, blocks }
    }

    /// Copies buffers, each of which consists of whole sectors or cache lines.
    pub(super) fn of(bufs: &[&[u8]]) -> Self {
        if !bufs.iter().all(|buf| buf.len().is_multiple_of(BLOCK)) {
            return Self::of_parts(bufs);
        }
        let chunks = bufs.iter().flat_map(|buf| buf.chunks_exact(BLOCK));
        let block = |chunk: &[u8]| Arc::<[u8]>::from(chunk).try_into().ok();
        let blocks: Vec<Block> = chunks.map(block).collect();
        let len = blocks.len() * BLOCK;
        Self { len, blocks }
    }

    fn of_parts(bufs: &[&[u8]]) -> Self {
        let mut blocks = Self::zeroes(bufs.iter().map(|buf| buf.len()).sum());
        let is_sectors = bufs.iter().all(|buf| buf.len().is_multiple_of(SECTOR));
        let unit = if is_sectors { SECTOR } else { LINE };
        let parts = bufs.iter().flat_map(|buf| buf.chunks(unit));
        for (part, bytes) in parts.enumerate() {
            blocks.put(part * unit, bytes);
        }
        blocks
    }

    /// Returns whether both have the same bytes.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.len() == other.len()
            && (self.sectors()).all(|sector| self.get(sector.clone()) == other.get(sector))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Truncates the bytes, or appends zeroes.
    pub(super) fn set_len(&mut self, len: usize) {
        self.blocks.resize(len.div_ceil(BLOCK), None);
        if len < self.len
            && let (Some(Some(last)), behind @ 1..) = (self.blocks.last_mut(), len % BLOCK)
        {
            Arc::make_mut(last)[behind..].fill(0);
        }
        self.len = len;
    }

    /// The sectors, the last of which may be shorter.
    pub(super) fn sectors(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.parts(SECTOR)
    }

    /// The parts of `unit` bytes, the last of which may be shorter.
    pub(super) fn parts(&self, unit: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let len = self.len;
        (0..len)
            .step_by(unit)
            .map(move |at| at..(at + unit).min(len))
    }

    /// The bytes at a place within one block.
    pub(super) fn get(&self, place: Range<usize>) -> &[u8] {
        assert!(place.start < place.end && place.end <= self.len);
        let start = place.start % BLOCK;
        let block = self.blocks[place.start / BLOCK].as_deref();
        &block.unwrap_or(&ZEROES)[start..start + place.len()]
    }

    /// Replaces the bytes at a place within one block.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        let block = self.blocks[at / BLOCK].get_or_insert_with(|| Arc::new(ZEROES));
        Arc::make_mut(block)[at % BLOCK..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Replaces the bytes at `at`, where a sector or cache line begins, by the first `len` bytes of
    /// `from`.
    pub(super) fn put_all(&mut self, at: usize, from: &Blocks, len: usize) {
        assert!(at.is_multiple_of(LINE) && len <= from.len && at + len <= self.len);
        if !at.is_multiple_of(BLOCK) {
            let unit = if at.is_multiple_of(SECTOR) {
                SECTOR
            } else {
                LINE
            };
            for part in (0..len).step_by(unit) {
                self.put(at + part, from.get(part..(part + unit).min(len)));
            }
            return;
        }
        let whole = len / BLOCK;
        self.blocks[at / BLOCK..][..whole].clone_from_slice(&from.blocks[..whole]);
        if whole * BLOCK < len {
            self.put(at + whole * BLOCK, from.get(whole * BLOCK..len));
        }
    }

    /// Returns the contents of a block, up to the end.
    pub(super) fn part(&self, block: usize) -> Part {
        let len = self.len.saturating_sub(block * BLOCK).min(BLOCK);
        let block = self.blocks.get(block).cloned().flatten();
        Part { len, block }
    }

    /// Replaces the beginning of a block, if the part fits.
    pub(super) fn put_part(&mut self, block: usize, part: Part) {
        let at = block * BLOCK;
        if at + part.len > self.len {
            return;
        }
        if part.len == BLOCK {
            self.blocks[block] = part.block;
        } else if part.len > 0 {
            self.put(at, &part.block.as_deref().unwrap_or(&ZEROES)[..part.len]);
        }
    }

    /// Whether a block is known to be zero without reading its bytes.
    pub(super) fn is_zeroes(&self, block: usize) -> bool {
        self.blocks[block].is_none()
    }

    /// Whether both share a block; blocks that are not shared may still have equal contents.
    pub(super) fn share(&self, other: &Blocks, block: usize) -> bool {
        match (self.blocks.get(block), other.blocks.get(block)) {
            (Some(Some(one)), Some(Some(other))) => Arc::ptr_eq(one, other),
            (Some(None), Some(None)) => true,
            _ => false,
        }
    }

    /// Copies the bytes at `at` into `buf`. Returns `None` if they exceed the end.
    pub(super) fn read(&self, mut at: usize, mut buf: &mut [u8]) -> Option<()> {
        at.checked_add(buf.len()).filter(|end| *end <= self.len)?;
        while !buf.is_empty() {
            let len = (BLOCK - at % BLOCK).min(buf.len());
            let (now, later) = buf.split_at_mut(len);
            now.copy_from_slice(self.get(at..at + len));
            (at, buf) = (at + len, later);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks behave like a plain vector under all operations, also on copies.
    #[test]
    fn they_are_like_a_vector() {
        for seed in 0..if cfg!(miri) { 3 } else { 100 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut blocks, mut plain) = (Blocks::default(), Vec::new());
            let mut copies = Vec::new();
            for _ in 0..40 {
                let len = rng.usize(..4 * BLOCK);
                match rng.u32(..4) {
                    0 => {
                        blocks.set_len(len);
                        plain.resize(len, 0);
                    }
                    1 if !plain.is_empty() => {
                        let at = rng.usize(..plain.len());
                        let end = plain.len().min((at / BLOCK + 1) * BLOCK);
                        plain[at..end].fill(rng.u8(..));
                        let bytes = plain[at..end].to_vec();
                        blocks.put(at, &bytes);
                        assert_eq!(blocks.get(at..end), bytes);
                    }
                    2 => {
                        let (at, byte) = (rng.usize(..3) * BLOCK, rng.u8(..));
                        let from = [&[byte; BLOCK][..], &[byte ^ 1; 2 * BLOCK]];
                        let len = len.min(plain.len().saturating_sub(at)).min(3 * BLOCK);
                        if len > 0 {
                            blocks.put_all(at, &Blocks::of(&from), len);
                            plain[at..at + len].copy_from_slice(&from.concat()[..len]);
                        }
                    }
                    _ => copies.push((blocks.clone(), plain.clone())),
                }
                let mut read = vec![1; plain.len()];
                blocks.read(0, &mut read).unwrap();
                assert_eq!((blocks.len(), &read), (plain.len(), &plain), "seed {seed}");
                assert!(blocks.read(1, &mut read).is_none() || read.is_empty());
            }
            for (blocks, plain) in copies {
                let mut read = vec![1; plain.len()];
                blocks.read(0, &mut read).unwrap();
                assert_eq!(read, plain, "seed {seed}");
                let parts = blocks.sectors().map(|place| blocks.get(place).to_vec());
                assert_eq!(parts.collect::<Vec<_>>().concat(), plain);
                let mut parts = Blocks::zeroes(plain.len());
                (0..6).for_each(|block| parts.put_part(block, blocks.part(block)));
                parts.read(0, &mut read).unwrap();
                assert_eq!(read, plain, "seed {seed}");
            }
        }
    }

    #[test]
    fn copies_share_unchanged_blocks() {
        let mut blocks = Blocks::of(&[&[7; 2 * BLOCK]]);
        blocks.set_len(3 * BLOCK);
        let copy = blocks.clone();
        blocks.put(BLOCK + 5, &[1]);
        let shared: Vec<bool> = (0..4).map(|block| blocks.share(&copy, block)).collect();
        assert_eq!(shared, [true, false, true, false]);
    }
}
