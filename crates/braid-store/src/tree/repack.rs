//! Refilling partly empty leaves: the same records in fewer pages.

use super::Tree;
use super::structure::{Attempt, repeat};
use crate::buffer_pool::ReadPage;
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
        let mut next = None;
        repeat(|| self.try_repack(key, &mut next))?;
        Ok(next)
    }

    /// Sets `goes_on` to the key to continue with.
    fn try_repack(&self, key: &[u8], goes_on: &mut Option<Vec<u8>>) -> Result<Attempt, StoreError> {
        let path = self.try_path(key)?;
        let Some([.., parent, leaf]) = path.as_deref() else {
            // The root is a leaf, or a page changed.
            return Ok(path.map_or(Attempt::Disturbed, |_| Attempt::Done));
        };
        let node = Node(parent.page());
        let position = node.child_position(key);
        if position < node.len() {
            return self.fill(*parent, position, *leaf, key, goes_on);
        }
        // The last leaf of its parent, which may have few children left.
        let Some((parent, leaf)) = self.latch_pair(*parent, *leaf, position)? else {
            return Ok(Attempt::Disturbed);
        };
        *goes_on = Node(parent.page()).bounds_of_child(position).1;
        drop((parent, leaf));
        self.merge(key)?;
        Ok(Attempt::Done)
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

    /// Fills a leaf from its right neighbour below the same parent. Sets `goes_on` to the key to
    /// continue with.
    fn fill(
        &self,
        parent: ReadPage<'_>,
        left: usize,
        child: ReadPage<'_>,
        key: &[u8],
        goes_on: &mut Option<Vec<u8>>,
    ) -> Result<Attempt, StoreError> {
        let Some(latched) = self.latch_pair(parent, child, left)? else {
            return Ok(Attempt::Disturbed);
        };
        let node = Node(latched.0.page());
        if Node(latched.1.page()).used_words() >= SPARSE || !node.has_room_for_separator() {
            *goes_on = Some(node.key(left));
            return Ok(Attempt::Done);
        }
        drop(latched);
        let Some(next) = self.open_child(&parent, Node(parent.page()).child_at(left + 1))? else {
            return Ok(Attempt::Disturbed);
        };
        let Some(latched) = self.latch_children(parent, left, child, next)? else {
            return Ok(Attempt::Disturbed);
        };
        let (mut parent, mut child, mut next) = latched;
        let node = Node(parent.page());
        let separator = node.key(left);
        let (mut bytes, mut next_bytes) = (Vec::new(), Vec::new());
        let mut contents = Contents::read(Node(child.page()), &mut bytes);
        let len = contents.entries.len();
        contents.append(
            &separator,
            Contents::read(Node(next.page()), &mut next_bytes),
        );
        let rest = contents.cut_after(FULL);
        if contents.entries.len() <= len && rest.is_some() {
            *goes_on = Some(separator);
            return Ok(Attempt::Done);
        }
        let target = Node(parent.page_copied());
        let (page, next_page) = (Node(child.page_copied()), Node(next.page_copied()));
        target.set_child_at(left + 1, child.id);
        target.remove(left);
        contents.write(page);
        let Some((separator, rest)) = rest else {
            next.free();
            *goes_on = Some(key.to_vec());
            return Ok(Attempt::Done);
        };
        rest.write(next_page);
        target.insert_separator(&separator, child.id, next.id);
        *goes_on = Some(separator);
        Ok(Attempt::Done)
    }
}
