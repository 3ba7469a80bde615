//! Reading the neighbours of a page along with it, while the pool has memory that was never used.
//!
//! A database that was just opened has nothing in memory, and each page that is asked for is waited for. The
//! medium takes little longer for a few blocks in a row than for one, so until the pool is full for the first
//! time a page that is read brings along those that lie beside it.
//!
//! A block that is read without its page's latch may be given to another page, or to another version of its
//! own, at any time. What was read counts only if the block is the page's block address both now
//! and in the durable map, and no checkpoint was published since before the reading: a block
//! address in the durable map is not written to, and it takes a publication to leave that map and
//! another one to come back.

use std::sync::atomic::Ordering;

use braid_io::AlignedBuf;
use braid_rt::to_usize;

use super::latch;
use super::state;
use super::{Pool, check_page};
use crate::data_file::block_of;
use crate::page::{PAGE_SIZE, PageId};
use crate::page_table::PAGES_MAX;

/// Blocks that are read together. They begin at a multiple of this.
const BLOCKS: u64 = 8;

/// Blocks that were read together.
pub(crate) struct Cluster {
    first: u64,
    bytes: AlignedBuf,
    /// The durable checkpoint of when the reading began.
    sequence: u64,
}

impl Cluster {
    fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (self.first..).zip(self.bytes.chunks_exact(PAGE_SIZE))
    }
}

impl Pool {
    /// Reads a page, whose latch the caller has, and its neighbours; `None` if there is a reason to read it
    /// alone.
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
        // At the end of the file there are fewer blocks, and beside a good one there may be a bad one.
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

    /// Puts the pages of a cluster that are not in memory there, as far as they are what they should be. The
    /// caller has no latch.
    pub(crate) fn adopt(&self, cluster: &Cluster) {
        for (block, bytes) in cluster.blocks() {
            let id = crate::data_file::u64_at(bytes, 8);
            // Others hold something else than a page.
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
        // With the latch, since nobody moves the page now.
        let address = self.address(id);
        let is_it = self.check_condemned(id).is_ok()
            && self
                .file
                .check_durable(id, address, sequence, bytes)
                .is_ok()
            && check_page(id, bytes).is_ok();
        match is_it.then(|| self.unused_frame()).flatten() {
            Some(frame) => {
                self.counters.read_ahead.fetch_add(1, Ordering::Relaxed);
                self.bring_in((state, empty), frame, id, bytes);
            }
            None => latch::release(state, empty),
        }
    }
}
