//! Refilling partly empty leaves: the same records in fewer pages.

use super::{Tree, astray};
use crate::buffer_pool::WritePage;
use crate::error::StoreError;
use crate::node::{Contents, Node};
use crate::page::WORDS;

/// A leaf with fewer words takes over records from the next one.
const SPARSE: usize = WORDS * 9 / 10;

/// Words up to which a leaf is filled. Some room is left, so that a value that grows causes no
/// split.
const FULL: usize = WORDS * 24 / 25;

impl Tree {
    /// Fills the leaf of a key from the leaf to the right, if it is partly empty. A modifying call
    /// that changes three pages and their inner nodes. Returns the key to continue with; `None`
    /// after the last leaf.
    ///
    /// # Errors
    /// What reading and making room for pages can fail with.
    pub fn repack(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut parent = self.latch(self.root)?;
        loop {
            let node = Node(parent.page());
            if node.is_leaf() {
                return Ok(None);
            }
            let position = node.child_position(key);
            if position == node.len() {
                let end = node.bounds_of_child(position).1;
                let child = self.latch_child(&parent, position)?;
                if Node(child.page()).is_leaf() {
                    drop((child, parent));
                    // The last leaf of its parent, which may have few children left.
                    self.merge(key)?;
                    return Ok(end);
                }
                parent = child;
                continue;
            }
            let child = self.latch_child(&parent, position)?;
            if Node(child.page()).is_leaf() {
                return self.fill(&mut parent, position, child, key).map(Some);
            }
            parent = child;
        }
    }

    /// Like [`Tree::repack`], in the tree of layers that contains the long keys. Its keys differ
    /// from those of this tree: begin with an empty key.
    ///
    /// # Errors
    /// As [`Tree::repack`].
    pub fn repack_long_keys(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.layers() {
            Some(layers) => layers.0.repack(key),
            None => Ok(None),
        }
    }

    /// Fills a leaf from its right neighbour below the same parent. Returns the key to continue
    /// with.
    fn fill(
        &self,
        parent: &mut WritePage<'_>,
        left: usize,
        mut child: WritePage<'_>,
        key: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let node = Node(parent.page());
        let separator = node.key(left);
        let small = Node(child.page());
        if small.used_words() >= SPARSE || !node.has_room_for_separator() {
            return Ok(separator);
        }
        if node.child_at(left + 1) == child.id {
            return Err(astray(child.id));
        }
        let mut next = self.latch_child(parent, left + 1)?;
        if !Node(next.page()).is_leaf() {
            return Err(astray(next.id));
        }
        let (mut bytes, mut next_bytes) = (Vec::new(), Vec::new());
        let mut contents = Contents::read(small, &mut bytes);
        let len = contents.entries.len();
        contents.append(
            &separator,
            Contents::read(Node(next.page()), &mut next_bytes),
        );
        let rest = contents.cut_after(FULL);
        if contents.entries.len() <= len && rest.is_some() {
            return Ok(separator);
        }
        let target = Node(parent.page_mut()?);
        let (page, next_page) = (Node(child.page_mut()?), Node(next.page_mut()?));
        target.set_child_at(left + 1, child.id);
        target.remove(left);
        contents.write(page);
        let Some((separator, rest)) = rest else {
            next.free()?;
            return Ok(key.to_vec());
        };
        rest.write(next_page);
        target.insert_separator(&separator, child.id, next.id);
        Ok(separator)
    }
}
