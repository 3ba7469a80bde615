//! The choice among the blocks that a search found for a page: the one that belongs to the
//! checkpoint.
//!
//! A page of a lost leaf of the page map is searched by its number, which several blocks may carry:
//! older versions of the page, versions evicted after the checkpoint's epoch switch and before its
//! publication, and other pages that had the number before. The reference to the page decides: a
//! node fits its parent if it has the fences that the parent gives it, and a part of a large value
//! has the length that is left.

use std::cmp::Reverse;

use super::{Fence, Salvage, Words};
use crate::data_file::block_of;
use crate::node::value_page;
use crate::node::{self, Node};
use crate::page::{Page, PageId};

impl Salvage {
    /// The block addresses that a page may have, the newest first.
    fn candidates(&self, id: PageId) -> Vec<(u32, u64)> {
        match self.searched.get(&id) {
            Some(found) if !braid_rt::mutant!("salvage_the_newest_block") => found.clone(),
            Some(found) => found[..1].to_vec(),
            None => {
                let address = self.addresses.get(braid_rt::to_usize(id)).copied();
                vec![(0, address.unwrap_or(0))]
            }
        }
    }

    /// Reads a page's node, which must have the fences from its parent.
    pub(super) fn node(&self, id: PageId, bounds: (&Fence, &Fence)) -> Result<Words, String> {
        let candidates = self.candidates(id);
        let is_sure = candidates.len() < 2;
        let (mut best, mut cause) = (None, None);
        for (stamp, address) in candidates {
            match self.fitting(id, address, bounds) {
                Ok(page) if is_sure => return Ok(page),
                Ok(page) => {
                    let node = Node(Page(&page));
                    let rank = (
                        Reverse(self.misfits(node)),
                        stamp,
                        newest_version(node),
                        node.len(),
                        block_of(address),
                    );
                    if best.as_ref().is_none_or(|(other, _)| *other < rank) {
                        best = Some((rank, page));
                    }
                }
                Err(error) => {
                    cause.get_or_insert(error);
                }
            }
        }
        match best {
            Some((_, page)) => Ok(page),
            None => Err(cause.unwrap_or_else(|| format!("page {id} has no block"))),
        }
    }

    fn fitting(
        &self,
        id: PageId,
        address: u64,
        (lower, upper): (&Fence, &Fence),
    ) -> Result<Words, String> {
        let page = self.page_at(id, address)?;
        let node = Node(Page(&page));
        let is_node = node.kind() != node::KIND_OVERFLOW;
        if is_node && node.lower_fence() == *lower && node.upper_fence() == *upper {
            Ok(page)
        } else {
            Err(format!("page {id} does not match its parent"))
        }
    }

    /// Counts the parts of a node that contradict the checkpoint: newer records, and children that
    /// do not fit.
    fn misfits(&self, node: Node<'_>) -> usize {
        if node.is_leaf() {
            let versions = (0..node.len()).map(|i| node.leaf_record(i).version);
            return versions.filter(|version| *version > self.newest).count();
        }
        let fits = |i: &usize| {
            let (lower, upper) = node.bounds_of_child(*i);
            let id = node.child_at(*i);
            let mut candidates = self.candidates(id).into_iter();
            candidates.any(|(_, address)| self.fitting(id, address, (&lower, &upper)).is_ok())
        };
        (0..=node.len()).filter(|i| !fits(i)).count()
    }

    /// The part of a large value that a page holds where `left` bytes of the value are left, and
    /// the next page.
    pub(super) fn part(&self, id: PageId, left: usize) -> Result<(PageId, Vec<u8>), String> {
        let mut cause = None;
        for (_, address) in self.candidates(id) {
            let part = self.page_at(id, address).and_then(|page| {
                let part = value_page::part(Page(&page));
                part.ok_or_else(|| format!("page {id} is not part of a value"))
            });
            match part {
                Ok((next, bytes)) if value_page::fits(next, bytes.len(), left) => {
                    return Ok((next, bytes));
                }
                Ok(_) => {
                    cause.get_or_insert(format!("page {id} does not match the value's length"));
                }
                Err(error) => {
                    cause.get_or_insert(error);
                }
            }
        }
        Err(cause.unwrap_or_else(|| format!("page {id} has no block")))
    }
}

/// The newest version of a leaf's records.
fn newest_version(node: Node<'_>) -> u64 {
    let len = if node.is_leaf() { node.len() } else { 0 };
    let versions = (0..len).map(|i| node.leaf_record(i).version);
    versions.max().unwrap_or(0)
}
