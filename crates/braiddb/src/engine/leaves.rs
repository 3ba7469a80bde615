//! Iteration over the leaves of a tree.

use std::ops::Bound;

use braid_store::{Direction, LeafScan, Position, StoreError, Tree};
use bytes::Bytes;

/// Iterator over the leaves of a tree between two bounds, in key order.
pub(crate) struct Leaves<'t> {
    tree: &'t Tree,
    lower: Bound<&'t [u8]>,
    upper: Bound<&'t [u8]>,
    /// The bound and position where the next leaf begins; `None` before the first leaf and at the
    /// end.
    next: Option<(Bound<Bytes>, Option<Position>)>,
    is_first: bool,
}

impl<'t> Leaves<'t> {
    pub(crate) fn new(tree: &'t Tree, lower: Bound<&'t [u8]>, upper: Bound<&'t [u8]>) -> Self {
        Self {
            tree,
            lower,
            upper,
            next: None,
            is_first: true,
        }
    }

    /// Returns an iterator over all leaves of a tree.
    pub(crate) fn all(tree: &'t Tree) -> Self {
        Self::new(tree, Bound::Unbounded, Bound::Unbounded)
    }

    /// Returns the bound where the next leaf begins; `None` if no leaf follows.
    pub(crate) fn position(self) -> Option<Bound<Bytes>> {
        self.next.map(|(bound, _)| bound)
    }

    fn read_next(&mut self) -> Result<LeafScan, StoreError> {
        let (lower, position) = match &self.next {
            Some((bound, position)) => (bound.as_ref().map(|key| &key[..]), *position),
            None => (self.lower, None),
        };
        let leaf =
            self.tree
                .scan_leaf(position, lower, self.upper, Direction::Forward, usize::MAX)?;
        self.next = leaf.next.clone().map(|bound| (bound, leaf.position));
        Ok(leaf)
    }
}

impl Iterator for Leaves<'_> {
    type Item = Result<LeafScan, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_first = std::mem::replace(&mut self.is_first, false);
        if !is_first && self.next.is_none() {
            return None;
        }
        let leaf = self.read_next();
        if leaf.is_err() {
            self.next = None;
        }
        Some(leaf)
    }
}
