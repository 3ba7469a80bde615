//! Changes to the tree's shape: splits and merges under the latches of a parent and its children.
//!
//! A read latches nothing, and a change of a record latches one leaf. A change that needs more
//! releases its leaf and makes a separate pass from the root down, which is implemented here.

use super::{Tree, astray, broken};
use crate::buffer_pool::WritePage;
use crate::error::StoreError;
use crate::node::{Contents, Entry, KIND_INNER, KIND_LEAF, Node};
use crate::page::{PageId, WORDS};

impl Tree {
    /// Latches a node.
    pub(super) fn latch(&self, id: PageId) -> Result<WritePage<'_>, StoreError> {
        let page = self.pool.write(id)?.ok_or_else(|| broken(id))?;
        match Node(page.page()).kind() {
            KIND_LEAF | KIND_INNER => Ok(page),
            _ => Err(StoreError::damaged_page(id, "it is not a tree node")),
        }
    }

    /// Latches a child at the place that its parent records: splits and merges rely on that.
    pub(super) fn latch_child(
        &self,
        parent: &WritePage<'_>,
        position: usize,
    ) -> Result<WritePage<'_>, StoreError> {
        let node = Node(parent.page());
        let id = node.child_at(position);
        if id == parent.id {
            return Err(astray(id));
        }
        let child = self.latch(id)?;
        let found = Node(child.page());
        if (found.lower_fence(), found.upper_fence()) != node.bounds_of_child(position) {
            return Err(astray(id));
        }
        Ok(child)
    }

    /// Splits the leaf of a key, and full inner nodes on the way to it, from the root down with at
    /// most two latches held.
    pub(super) fn split(&self, key: &[u8]) -> Result<(), StoreError> {
        let mut parent = self.latch(self.root)?;
        if Node(parent.page()).is_leaf() || !Node(parent.page()).has_room_for_separator() {
            self.split_root(&mut parent, key)?;
        }
        loop {
            let node = Node(parent.page());
            let mut child = self.latch_child(&parent, node.child_position(key))?;
            let child_node = Node(child.page());
            let is_leaf = child_node.is_leaf();
            if is_leaf && child_node.len() < 2 {
                return Ok(());
            }
            if is_leaf || !child_node.has_room_for_separator() {
                let mut right = self.pool.allocate()?;
                let target = Node(parent.page_mut()?);
                let source = Node(child.page_mut()?);
                let mut bytes = Vec::new();
                let mut contents = Contents::read(source, &mut bytes);
                let (separator, upper) = contents.split(key);
                upper.write(Node(right.page_mut()?));
                contents.write(source);
                target.insert_separator(&separator, child.id, right.id);
                if *key >= separator[..] {
                    child = right;
                }
            }
            if is_leaf {
                return Ok(());
            }
            parent = child;
        }
    }

    /// Moves the root's contents into two new children; the root's id stays.
    fn split_root(&self, root: &mut WritePage<'_>, key: &[u8]) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        let mut contents = Contents::read(Node(root.page()), &mut bytes);
        if contents.entries.len() < 2 {
            return Ok(());
        }
        let mut left = self.pool.allocate()?;
        let mut right = match self.pool.allocate() {
            Ok(right) => right,
            Err(error) => {
                left.free()?;
                return Err(error);
            }
        };
        let target = Node(root.page_mut()?);
        let (separator, upper) = contents.split(key);
        contents.write(Node(left.page_mut()?));
        upper.write(Node(right.page_mut()?));
        let entry = Entry {
            key: &separator[..],
            head: left.id,
            ..Entry::default()
        };
        Contents {
            kind: KIND_INNER,
            rightmost: right.id,
            entries: vec![entry],
            ..Contents::default()
        }
        .write(target);
        Ok(())
    }

    /// Merges underfull nodes on the way to a key with a neighbour, from the root down.
    pub(super) fn merge(&self, key: &[u8]) -> Result<(), StoreError> {
        let mut parent = self.latch(self.root)?;
        loop {
            let node = Node(parent.page());
            if node.is_leaf() {
                return Ok(());
            }
            if node.len() == 0 && parent.id == self.root {
                // The root has one child, and takes over the child's contents.
                let child = self.latch_child(&parent, 0)?;
                let mut bytes = Vec::new();
                let contents = Contents::read(Node(child.page()), &mut bytes);
                contents.write(Node(parent.page_mut()?));
                child.free()?;
                continue;
            }
            let position = node.child_position(key);
            let child = self.latch_child(&parent, position)?;
            if !Node(child.page()).is_underfull() || node.len() == 0 {
                parent = child;
                continue;
            }
            // Latches are acquired from left to right, so the child's latch is released.
            drop(child);
            // Both neighbours: removing keys in order leaves small nodes on one side and full ones
            // on the other.
            let mut merged = None;
            for left in [position.checked_sub(1), Some(position)]
                .into_iter()
                .flatten()
            {
                if merged.is_none() && left < node.len() {
                    merged = self.merge_children(&mut parent, left)?;
                }
            }
            parent = match merged {
                // The root is checked again.
                Some(_) if node.len() == 0 && parent.id == self.root => continue,
                Some(child) => child,
                None => self.latch_child(&parent, position)?,
            };
        }
    }

    /// Merges the child at `left` with the next one, if both fit into one node with some room left.
    fn merge_children(
        &self,
        parent: &mut WritePage<'_>,
        left: usize,
    ) -> Result<Option<WritePage<'_>>, StoreError> {
        let node = Node(parent.page());
        let mut child = self.latch_child(parent, left)?;
        if node.child_at(left + 1) == child.id {
            return Err(astray(child.id));
        }
        let next = self.latch_child(parent, left + 1)?;
        if Node(child.page()).kind() != Node(next.page()).kind() {
            return Err(astray(next.id));
        }
        let (small, other) = (Node(child.page()), Node(next.page()));
        // Estimated without decoding the nodes; the fences between them would be dropped.
        if small.used_words() + other.used_words() > WORDS {
            return Ok(None);
        }
        let (mut bytes, mut other_bytes) = (Vec::new(), Vec::new());
        let separator = node.key(left);
        let mut contents = Contents::read(small, &mut bytes);
        contents.append(&separator, Contents::read(other, &mut other_bytes));
        if contents.words() > WORDS * 3 / 4 {
            return Ok(None);
        }
        let target = Node(parent.page_mut()?);
        contents.write(Node(child.page_mut()?));
        target.set_child_at(left + 1, child.id);
        target.remove(left);
        next.free()?;
        Ok(Some(child))
    }
}
