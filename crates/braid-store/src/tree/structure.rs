//! Changes to the tree's shape: splits and merges under the latches of a parent and its children.
//!
//! A read latches nothing, and a change of a record latches one leaf. A change that needs more
//! releases its leaf, reads the nodes from the root to the leaf again, and latches those that it
//! changes, if they are unchanged since (optimistic lock coupling: Leis, Haubenschild, Neumann,
//! IEEE Data Eng. Bull. 2019). So a split latches a node and its parent, not the nodes above.
//!
//! Nothing waits while it holds the latch of an inner node: pages are loaded, and frames for new
//! pages found, before; latches are acquired without waiting for their holders; and an image that a
//! checkpoint needs is copied, not written.

use std::cell::RefCell;

use braid_rt::thread::Backoff;

use super::{Tree, astray, broken};
use crate::buffer_pool::{Pool, ReadPage, SpareFrames, WritePage};
use crate::error::StoreError;
use crate::node::{Contents, Entry, KIND_INNER, KIND_LEAF, Node};
use crate::page::{PageId, WORDS};

/// The result of an attempt to change the shape.
pub(super) enum Attempt {
    /// Nothing is left to do.
    Done,
    /// A node was changed; perhaps more nodes have to be.
    Progress,
    /// A page changed meanwhile, or another thread holds its latch.
    Disturbed,
}

/// Repeats attempts until nothing is left to do.
pub(super) fn repeat(
    mut attempt: impl FnMut() -> Result<Attempt, StoreError>,
) -> Result<(), StoreError> {
    let mut backoff = Backoff::default();
    loop {
        match attempt()? {
            Attempt::Done => return Ok(()),
            Attempt::Progress => backoff = Backoff::default(),
            Attempt::Disturbed => backoff.wait(),
        }
    }
}

impl Tree {
    /// Latches a node.
    pub(super) fn latch(&self, id: PageId) -> Result<WritePage<'_>, StoreError> {
        let page = self.pool.write(id)?.ok_or_else(|| broken(&self.pool, id))?;
        match Node(page.page()).kind() {
            KIND_LEAF | KIND_INNER => Ok(page),
            _ => Err(self.pool.damaged_page(id, "it is not a tree node")),
        }
    }

    /// Reads the nodes from the root to the leaf of a key. Returns `None` if one of them changed.
    pub(super) fn try_path(&self, key: &[u8]) -> Result<Option<Vec<ReadPage<'_>>>, StoreError> {
        let path = RefCell::new(Vec::new());
        let leaf = self.try_descend(&|page, node: Node<'_>| {
            path.borrow_mut().push(page);
            node.child_of(key)
        })?;
        let mut path = path.into_inner();
        path.extend(leaf);
        Ok(leaf.map(|_| path))
    }

    /// Makes a page ready for a change if that needs an image for the open checkpoint, which this
    /// thread may have to write. Returns whether it did, and so whether the page changed.
    pub(super) fn prepare(&self, page: ReadPage<'_>) -> Result<bool, StoreError> {
        let needs_image = page.awaits_image();
        if needs_image && let Some(mut page) = page.upgrade() {
            match Node(page.page()).kind() {
                // There are few: a copy more does no harm, and its readers need not wait.
                KIND_INNER if !braid_rt::mutant!("write_inner_nodes_under_latches") => {
                    page.page_copied();
                }
                _ => drop(page.page_mut()?),
            }
        }
        Ok(needs_image)
    }

    /// Latches a child and its parent, which were read, if neither changed since.
    pub(super) fn latch_pair<'a>(
        &self,
        parent: ReadPage<'a>,
        child: ReadPage<'a>,
        position: usize,
    ) -> Result<Option<(WritePage<'a>, WritePage<'a>)>, StoreError> {
        if child.id == parent.id {
            return if parent.validate() {
                Err(astray(&self.pool, child.id))
            } else {
                Ok(None)
            };
        }
        let Some(parent) = parent.upgrade() else {
            return Ok(None);
        };
        let Some(child) = child.upgrade() else {
            return Ok(None);
        };
        check_child(&self.pool, &parent, position, &child)?;
        Ok(Some((parent, child)))
    }

    /// Latches a node and two adjacent children, if none changed since. Prepares the children.
    pub(super) fn latch_children<'a>(
        &self,
        parent: ReadPage<'a>,
        left: usize,
        child: ReadPage<'a>,
        next: ReadPage<'a>,
    ) -> Result<Option<(WritePage<'a>, WritePage<'a>, WritePage<'a>)>, StoreError> {
        if self.prepare(child)? || self.prepare(next)? {
            return Ok(None);
        }
        if child.id == next.id && parent.validate() {
            return Err(astray(&self.pool, child.id));
        }
        let Some((parent, child)) = self.latch_pair(parent, child, left)? else {
            return Ok(None);
        };
        let Some(next) = next.upgrade() else {
            return Ok(None);
        };
        check_child(&self.pool, &parent, left + 1, &next)?;
        if Node(child.page()).kind() != Node(next.page()).kind() {
            return Err(astray(&self.pool, next.id));
        }
        Ok(Some((parent, child, next)))
    }

    /// Splits the leaf of a key, and full inner nodes above it that would not have room for another
    /// separator.
    pub(super) fn split(&self, key: &[u8]) -> Result<(), StoreError> {
        let mut spare = SpareFrames::new(&self.pool);
        let mut is_root = false;
        repeat(|| {
            // Before any latch: the page that a frame holds may have to be written. A split of the
            // root adds two pages.
            spare.fill(if is_root { 2 } else { 1 })?;
            self.try_split(key, &mut spare, &mut is_root)
        })
    }

    /// Splits the leaf, or if its parent has no room the lowest node above it whose parent has.
    /// Sets `is_root` if that is the root.
    fn try_split(
        &self,
        key: &[u8],
        spare: &mut SpareFrames<'_>,
        is_root: &mut bool,
    ) -> Result<Attempt, StoreError> {
        let Some(path) = self.try_path(key)? else {
            return Ok(Attempt::Disturbed);
        };
        let leaf = path.len() - 1;
        if Node(path[leaf].page()).len() < 2 {
            return Ok(Attempt::Done);
        }
        let has_room = |&above: &usize| Node(path[above].page()).has_room_for_separator();
        let (at, split) = match (0..leaf).rev().find(has_room) {
            Some(above) => {
                let split = self.split_child(path[above], path[above + 1], key, spare)?;
                (above + 1, split)
            }
            None if std::mem::replace(is_root, true) => (0, self.split_root(path[0], key, spare)?),
            None => return Ok(Attempt::Progress),
        };
        Ok(match (split, at == leaf) {
            (false, _) => Attempt::Disturbed,
            (true, true) => Attempt::Done,
            (true, false) => Attempt::Progress,
        })
    }

    /// Moves the upper half of a node into a new node to its right. Returns `false` if a page
    /// changed.
    fn split_child(
        &self,
        parent: ReadPage<'_>,
        child: ReadPage<'_>,
        key: &[u8],
        spare: &mut SpareFrames<'_>,
    ) -> Result<bool, StoreError> {
        let position = Node(parent.page()).child_position(key);
        let Some((mut parent, mut child)) = self.latch_pair(parent, child, position)? else {
            return Ok(false);
        };
        let mut right = spare.allocate()?;
        let (target, source) = (Node(parent.page_copied()), Node(child.page_copied()));
        let mut bytes = Vec::new();
        let mut contents = Contents::read(source, &mut bytes);
        let (separator, upper) = contents.split(key);
        upper.write(Node(right.page_copied()));
        contents.write(source);
        target.insert_separator(&separator, child.id, right.id);
        Ok(true)
    }

    /// Moves the root's contents into two new children; the root's id stays. Returns `false` if the
    /// root changed.
    fn split_root(
        &self,
        root: ReadPage<'_>,
        key: &[u8],
        spare: &mut SpareFrames<'_>,
    ) -> Result<bool, StoreError> {
        let Some(mut root) = root.upgrade() else {
            return Ok(false);
        };
        let mut left = spare.allocate()?;
        let mut right = match spare.allocate() {
            Ok(right) => right,
            Err(error) => {
                left.free();
                return Err(error);
            }
        };
        let target = Node(root.page_copied());
        let mut bytes = Vec::new();
        let mut contents = Contents::read(target, &mut bytes);
        let (separator, upper) = contents.split(key);
        contents.write(Node(left.page_copied()));
        upper.write(Node(right.page_copied()));
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
        Ok(true)
    }

    /// Merges underfull nodes on the way to a key with a neighbour, from the leaf up.
    pub(super) fn merge(&self, key: &[u8]) -> Result<(), StoreError> {
        repeat(|| self.try_merge(key))
    }

    fn try_merge(&self, key: &[u8]) -> Result<Attempt, StoreError> {
        let Some(path) = self.try_path(key)? else {
            return Ok(Attempt::Disturbed);
        };
        if let [root, child, ..] = path[..]
            && Node(root.page()).len() == 0
        {
            return self.shorten(root, child);
        }
        for pair in path.windows(2).rev() {
            let node = Node(pair[0].page());
            if !Node(pair[1].page()).is_underfull() {
                continue;
            }
            let position = node.child_position(key);
            // Both neighbours: removing keys in order leaves small nodes on one side and full ones
            // on the other.
            for left in [position.checked_sub(1), Some(position)] {
                let Some(left) = left.filter(|&left| left < node.len()) else {
                    continue;
                };
                match self.merge_children(pair[0], left)? {
                    Attempt::Done => {}
                    attempt => return Ok(attempt),
                }
            }
        }
        Ok(Attempt::Done)
    }

    /// Removes a root with one child: the root takes over the child's contents.
    fn shorten(&self, root: ReadPage<'_>, child: ReadPage<'_>) -> Result<Attempt, StoreError> {
        let Some((mut root, child)) = self.latch_pair(root, child, 0)? else {
            return Ok(Attempt::Disturbed);
        };
        let mut bytes = Vec::new();
        let contents = Contents::read(Node(child.page()), &mut bytes);
        contents.write(Node(root.page_copied()));
        child.free();
        Ok(Attempt::Progress)
    }

    /// Merges the child at `left` with the next one, if both fit into one node with some room left.
    /// The result is [`Attempt::Done`] if they do not.
    fn merge_children(&self, parent: ReadPage<'_>, left: usize) -> Result<Attempt, StoreError> {
        let node = Node(parent.page());
        let ids = [node.child_at(left), node.child_at(left + 1)];
        let (Some(child), Some(next)) = (
            self.open_child(&parent, ids[0])?,
            self.open_child(&parent, ids[1])?,
        ) else {
            return Ok(Attempt::Disturbed);
        };
        // Estimated without decoding the nodes; the fences between them would be dropped.
        let (small, other) = (Node(child.page()), Node(next.page()));
        if small.used_words() + other.used_words() > WORDS {
            return Ok(Attempt::Done);
        }
        let latched = self.latch_children(parent, left, child, next)?;
        let Some((mut parent, mut child, next)) = latched else {
            return Ok(Attempt::Disturbed);
        };
        let node = Node(parent.page());
        let (small, other) = (Node(child.page()), Node(next.page()));
        let (mut bytes, mut other_bytes) = (Vec::new(), Vec::new());
        let separator = node.key(left);
        let mut contents = Contents::read(small, &mut bytes);
        contents.append(&separator, Contents::read(other, &mut other_bytes));
        if contents.words() > WORDS * 3 / 4 {
            return Ok(Attempt::Done);
        }
        let target = Node(parent.page_copied());
        contents.write(Node(child.page_copied()));
        target.set_child_at(left + 1, child.id);
        target.remove(left);
        next.free();
        Ok(Attempt::Progress)
    }
}

/// Checks that a latched node lies where its parent says: splits and merges rely on that.
fn check_child(
    pool: &Pool,
    parent: &WritePage<'_>,
    position: usize,
    child: &WritePage<'_>,
) -> Result<(), StoreError> {
    let (node, found) = (Node(parent.page()), Node(child.page()));
    match found.kind() {
        KIND_LEAF | KIND_INNER => {}
        _ => return Err(pool.damaged_page(child.id, "it is not a tree node")),
    }
    if (found.lower_fence(), found.upper_fence()) != node.bounds_of_child(position) {
        return Err(astray(pool, child.id));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::{Gate, MemoryDevice};

    use crate::node::{KIND_INNER, Node};
    use crate::{Change, Store, StoreOptions};

    /// Readers of all leaves below an inner node would wait for the write of its image.
    #[test]
    fn the_image_of_an_inner_node_is_copied_however_many_copies_wait() {
        let device = Gate::new(None).device(Arc::new(MemoryDevice::new()));
        let store = Store::create(device, StoreOptions::of_pool(8 << 20)).unwrap();
        let tree = store.tree(1).unwrap();
        let key = |i: u32| [&i.to_be_bytes()[..], &[7; 200]].concat();
        let put = |i: u32, version| {
            let value = &[1][..];
            let change = Change::Put { version, value };
            tree.modify(&key(i), |_| (change, ())).unwrap();
        };
        (0..8_000).for_each(|i| put(i, 1));
        // All pages belong to it.
        let _checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        let copies = || store.stats().checkpoint_copies;
        let changed = (0..8_000).find(|&i| {
            put(i, 2);
            store.stats().eviction_writes > 0
        });
        assert!(changed.is_some(), "a writer wrote an image");
        let (written, copied) = (store.stats().eviction_writes, copies());
        let path = tree.try_path(&key(7_999)).unwrap().unwrap();
        let inner = path[0];
        assert_eq!(Node(inner.page()).kind(), KIND_INNER);
        assert!(inner.awaits_image());
        assert!(tree.prepare(inner).unwrap());
        assert_eq!(store.stats().eviction_writes, written);
        assert_eq!(copies(), copied + 1);
    }
}
