//! Freeing a tree that no thread uses any more.
//!
//! Finding the pages of a large tree reads all of it, since only the leaves know the pages of their
//! large values. So it is separate from the modifying call, which only removes the pages from all
//! later checkpoints, and from their release (see [`crate::buffer_pool::detached`]): a checkpoint
//! begins at any time in between, and contains either the whole tree or none of it.

use super::Tree;
use crate::error::StoreError;
use crate::node::Node;
use crate::page::PageId;

/// Nodes that are read together.
const TOGETHER: usize = 16;

/// Pages that are detached, or freed, at a time.
pub(crate) const STEP: usize = 1 << 10;

/// The pages of a tree that no thread uses any more.
#[derive(Debug)]
pub struct DroppedTree {
    /// The tree's number.
    pub(crate) id: u32,
    pub(crate) pages: Vec<PageId>,
    /// Damage that hides some of the pages. These stay in use.
    pub(crate) damage: Option<StoreError>,
}

impl DroppedTree {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            pages: Vec::new(),
            damage: None,
        }
    }
}

impl Tree {
    /// Adds all pages of the tree to `dropped`, the root included. Nothing changes the tree
    /// meanwhile. Returns `false` once `goes_on` does.
    pub(crate) fn find_pages(
        &self,
        dropped: &mut DroppedTree,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, StoreError> {
        let mut stack = vec![self.root];
        let mut requested = 1;
        while let Some(id) = stack.pop() {
            if !goes_on() {
                return Ok(false);
            }
            let children = stack.len();
            match self.find_pages_of_node(id, &mut stack, &mut dropped.pages) {
                Ok(()) => {}
                Err(error @ StoreError::Corrupted { .. }) => {
                    dropped.damage.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
            requested = if stack.len() > children {
                0
            } else {
                requested - 1
            };
            if requested == 0 && !stack.is_empty() {
                let next = stack.len().saturating_sub(TOGETHER);
                self.pool.read_batch(&stack[next..])?;
                requested = stack.len() - next;
            }
            // Damaged references may form a cycle.
            if dropped.pages.len() as u64 > self.pool.page_ids() {
                let what = "the nodes of a dropped tree refer to each other";
                let cycle = self.pool.damaged_page(id, what);
                dropped.damage.get_or_insert(cycle);
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Adds a node and its large values to `pages`, and its children to `stack`.
    fn find_pages_of_node(
        &self,
        id: PageId,
        stack: &mut Vec<PageId>,
        pages: &mut Vec<PageId>,
    ) -> Result<(), StoreError> {
        let page = self.latch(id)?;
        let node = Node(page.page());
        if !node.is_leaf() {
            stack.extend((0..=node.len()).map(|i| node.child_at(i)));
        } else {
            for i in 0..node.len() {
                if let Some(value) = self.leaving(&page, &node.leaf_record(i), None)? {
                    pages.extend_from_slice(value.pages());
                }
            }
        }
        pages.push(id);
        Ok(())
    }
}
