//! Arrays indexed by page id that grow without moving.

use std::sync::OnceLock;

use crate::sync::AtomicU64;

/// Under Miri a table is filled in milliseconds, not minutes.
const CHUNK: usize = if cfg!(miri) { 1 << 8 } else { 1 << 16 };
const CHUNKS: usize = if cfg!(miri) { 1 << 8 } else { 1 << 16 };

/// Page ids are below this.
pub(crate) const PAGES_MAX: u64 = CHUNK as u64 * CHUNKS as u64;

/// One atomic word for each page id, zero until set.
pub(crate) struct PageTable {
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl PageTable {
    pub(crate) fn new() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The word of a page id, if its chunk exists.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&AtomicU64> {
        let chunk = self.chunks.get((id as usize) / CHUNK)?.get()?;
        Some(&chunk[id as usize % CHUNK])
    }

    /// The word of a page id; its chunk is made if need be.
    pub(crate) fn get_or_make(&self, id: u64) -> &AtomicU64 {
        assert!(
            id < PAGES_MAX,
            "page ids are checked when they are given out or read"
        );
        let make = || (0..CHUNK).map(|_| AtomicU64::new(0)).collect();
        &self.chunks[id as usize / CHUNK].get_or_init(make)[id as usize % CHUNK]
    }
}

impl std::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageTable").finish_non_exhaustive()
    }
}
