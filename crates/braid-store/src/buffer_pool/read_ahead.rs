//! Read-ahead: reading the neighbours of a page with it, while the pool has unused frames.
//!
//! A database that was just opened has no pages in memory, so every access waits for a read. The
//! medium takes little longer for a few consecutive blocks than for one, so until the pool is full
//! for the first time, a read of a page also reads its neighbours.
//!
//! A block that is read without its page's latch may be given to another page, or to another
//! version of its own, at any time. The bytes read are used only if the block is the page's block
//! address both now and in the durable map, and no checkpoint was published since before the read:
//! a block in the durable map is never written, and leaving that map and coming back takes two
//! publications.

use std::sync::atomic::Ordering;

use braid_io::AlignedBuf;
use braid_rt::to_usize;

use super::latch;
use super::state;
use super::{Pool, check_page};
use crate::data_file::block_of;
use crate::page::{PAGE_SIZE, PageId};
use crate::page_table::PAGES_MAX;

/// Blocks that are read together. A cluster begins at a multiple of this.
const BLOCKS: u64 = 8;

/// Blocks that were read together.
pub(crate) struct Cluster {
    first: u64,
    bytes: AlignedBuf,
    /// The durable checkpoint when the read began.
    sequence: u64,
}

impl Cluster {
    fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (self.first..).zip(self.bytes.chunks_exact(PAGE_SIZE))
    }
}

impl Pool {
    /// Reads a page, whose latch the caller holds, and its neighbours. Returns `None` if the page
    /// must be read alone.
    pub(crate) fn read_cluster(
        &self,
        id: PageId,
        address: u64,
        page: &mut [u8],
    ) -> Option<Cluster> {
        if !self.has_unused_frames(to_usize(BLOCKS)) {
            return None;
        }
        let sequence = self.file.sequence();
        let first = block_of(address) / BLOCKS * BLOCKS;
        let mut bytes = AlignedBuf::new(to_usize(BLOCKS) * PAGE_SIZE);
        // The file may end within the cluster, and an intact block may have a damaged neighbour.
        self.file.read_run(first, &mut bytes).ok()?;
        let cluster = Cluster {
            first,
            bytes,
            sequence,
        };
        let (_, own) = cluster
            .blocks()
            .find(|(block, _)| *block == block_of(address))?;
        self.file.check_durable(id, address, sequence, own).ok()?;
        page.copy_from_slice(own);
        Some(cluster)
    }

    /// Loads the pages of a cluster that are missing in memory, if they are valid. The caller holds
    /// no latch.
    pub(crate) fn adopt(&self, cluster: &Cluster) {
        for (block, bytes) in cluster.blocks() {
            let id = crate::data_file::u64_at(bytes, 8);
            // Other blocks do not hold pages.
            if (1..PAGES_MAX).contains(&id) && block_of(self.address(id)) == block {
                self.adopt_page(id, bytes, cluster.sequence);
            }
        }
    }

    fn adopt_page(&self, id: PageId, bytes: &[u8], sequence: u64) {
        let state = self.states.get_or_make(id);
        let word = state.load(Ordering::Relaxed);
        if state::is_latched(word) || state::is_resident(word) {
            return;
        }
        let Some(empty) = state::take(state, word) else {
            return;
        };
        // Under the latch, no thread moves the page.
        let address = self.address(id);
        let is_it = self.check_condemned(id).is_ok()
            && self
                .file
                .check_durable(id, address, sequence, bytes)
                .is_ok()
            && check_page(bytes).is_ok();
        match is_it.then(|| self.unused_frame()).flatten() {
            Some(frame) => {
                self.counters.read_ahead.fetch_add(1, Ordering::Relaxed);
                self.bring_in((state, empty), frame, id, bytes);
            }
            None => latch::release(state, empty),
        }
    }
}
