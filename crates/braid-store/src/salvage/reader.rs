//! The pass over the trees: it finds readable entries, gaps, and leaves to which no page refers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use braid_rt::to_usize;

use super::layers::{Layers, is_of_layers, owner};
use super::{Fence, Loss, Salvage, SalvagedEntry};
use crate::error::StoreError;
use crate::node::value_page;
use crate::node::{LeafRecord, Node};
use crate::page::{Page, PageId};
use crate::tree::layers::LAYERS;

/// A part of a tree whose page can't be read.
struct Gap {
    tree: u32,
    lower: Fence,
    upper: Fence,
    /// Whether the page was a leaf, if its siblings show it.
    is_leaf: Option<bool>,
    cause: String,
}

/// A leaf to which no inner page refers.
struct Orphan {
    page: PageId,
    /// `None` if the leaf is empty, and so may belong to any tree.
    is_of_layers: Option<bool>,
    lower: Fence,
    upper: Fence,
}

/// One pass over the trees.
pub(super) struct Reader<'a> {
    pub(super) salvage: &'a Salvage,
    seen: HashSet<PageId>,
    gaps: Vec<Gap>,
    /// The layers of long keys, by the tree that has them.
    pub(super) layers: BTreeMap<u32, Layers>,
    /// Lost parts of the layers: their fences, and the cause.
    pub(super) lost_layers: BTreeMap<u32, Vec<(Fence, Fence, String)>>,
    pub(super) entry: &'a mut dyn FnMut(SalvagedEntry<'_>) -> Result<(), StoreError>,
    pub(super) lost: &'a mut dyn FnMut(Loss),
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        salvage: &'a Salvage,
        entry: &'a mut dyn FnMut(SalvagedEntry<'_>) -> Result<(), StoreError>,
        lost: &'a mut dyn FnMut(Loss),
    ) -> Self {
        Self {
            salvage,
            seen: HashSet::new(),
            gaps: Vec::new(),
            layers: BTreeMap::new(),
            lost_layers: BTreeMap::new(),
            entry,
            lost,
        }
    }
}

impl Reader<'_> {
    /// Reads a page and all pages below it. Returns whether the page is a leaf, if it is readable.
    pub(super) fn node(
        &mut self,
        tree: u32,
        id: PageId,
        (lower, upper): (Fence, Fence),
        depth: usize,
    ) -> Result<Option<bool>, StoreError> {
        let page = if self.seen.insert(id) && depth < 64 {
            self.salvage.node(id, (&lower, &upper))
        } else {
            Err(format!("page {id} is referred to twice"))
        };
        let page = match page {
            Ok(page) => page,
            Err(cause) => {
                self.gaps.push(Gap {
                    tree,
                    lower,
                    upper,
                    is_leaf: None,
                    cause,
                });
                return Ok(None);
            }
        };
        let node = Node(Page(&page));
        if node.is_leaf() {
            match tree & LAYERS {
                0 => self.leaf(&[tree], 0, node)?,
                _ => self.layers.entry(owner(tree)).or_default().note(id, node),
            }
            return Ok(Some(true));
        }
        let mut missing = Vec::new();
        let mut children_are_leaves = None;
        for i in 0..=node.len() {
            let found = self.node(tree, node.child_at(i), node.bounds_of_child(i), depth + 1)?;
            match found {
                Some(is_leaf) => children_are_leaves = Some(is_leaf),
                None => missing.push(self.gaps.len() - 1),
            }
        }
        for gap in missing {
            self.gaps[gap].is_leaf = children_are_leaves;
        }
        Ok(Some(false))
    }

    fn leaf(&mut self, trees: &[u32], chain: usize, node: Node<'_>) -> Result<(), StoreError> {
        for i in 0..node.len() {
            let record = node.leaf_record(i);
            if record.is_tombstone() {
                continue;
            }
            let key = node.key(i);
            match self.value(node, &record) {
                Ok(value) => (self.entry)(SalvagedEntry {
                    trees,
                    chain,
                    key: &key,
                    version: record.version,
                    value: &value,
                })?,
                Err(cause) => {
                    for &tree in trees {
                        (self.lost)(Loss::Value {
                            tree,
                            key: key.clone(),
                            cause: cause.clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// The value of a record.
    pub(super) fn value(&mut self, node: Node<'_>, record: &LeafRecord) -> Result<Vec<u8>, String> {
        let stored = node.stored_value(record);
        if record.is_overflow() {
            self.large(value_page::reference(&stored), record.value_len)
        } else {
            Ok(stored)
        }
    }

    /// A value outside of its leaf.
    fn large(&mut self, first: PageId, len: usize) -> Result<Vec<u8>, String> {
        let (mut value, mut id) = (Vec::new(), first);
        while value.len() < len {
            if !self.seen.insert(id) {
                return Err(format!("page {id} is referred to twice"));
            }
            let (next, bytes) = self.salvage.part(id, len - value.len())?;
            value.extend_from_slice(&bytes);
            id = next;
        }
        if value.len() == len {
            Ok(value)
        } else {
            Err(format!(
                "the value's pages from {first} on do not belong together"
            ))
        }
    }

    /// Reads leaves below damaged inner pages, and reports the remaining losses.
    pub(super) fn orphans(&mut self) -> Result<Vec<String>, StoreError> {
        let gaps = std::mem::take(&mut self.gaps);
        let mut found: Vec<Vec<(Fence, Fence)>> = gaps.iter().map(|_| Vec::new()).collect();
        if gaps.iter().any(|gap| gap.is_leaf != Some(true)) {
            let mut orphans = self.orphan_leaves();
            orphans.sort_by(|a, b| a.lower.cmp(&b.lower));
            let mut chains: HashMap<Vec<u32>, Vec<Fence>> = HashMap::new();
            for orphan in orphans {
                let owners = (0..gaps.len()).filter(|&i| gaps[i].may_own(&orphan));
                let owners: Vec<usize> = owners.collect();
                let trees: BTreeSet<u32> = owners.iter().map(|&i| gaps[i].tree).collect();
                let trees: Vec<u32> = trees.into_iter().collect();
                if trees.is_empty() {
                    continue;
                }
                // The page was read before, and may have been damaged since: it is then lost.
                let Ok(page) = self.salvage.page(orphan.page) else {
                    continue;
                };
                let chain = match trees.len() {
                    1 => 0,
                    _ => chain_of(chains.entry(trees.clone()).or_default(), &orphan),
                };
                match (orphan.is_of_layers, &trees[..]) {
                    (None | Some(false), trees) => self.leaf(trees, chain, Node(Page(&page)))?,
                    (Some(true), &[tree]) => {
                        let layers = self.layers.entry(owner(tree)).or_default();
                        layers.note(orphan.page, Node(Page(&page)));
                    }
                    // The numbers of layers are meaningless without the tree. The gaps report the
                    // loss.
                    (Some(true), _) => continue,
                }
                if let [only] = owners[..] {
                    found[only].push((orphan.lower, orphan.upper));
                }
            }
        }
        let mut made_good = Vec::new();
        for (gap, mut found) in gaps.into_iter().zip(found) {
            found.sort();
            let (leaves, mut whole) = (found.len(), true);
            let mut from = Some(gap.lower);
            for (lower, upper) in found {
                if let Some(from) = from.take_if(|from| *from < lower) {
                    whole = false;
                    self.gap(gap.tree, from, lower, &gap.cause);
                }
                from = upper.map(Some);
            }
            // The loss extends to the end, unless the last leaf found reaches it.
            if let Some(from) = from
                && (from != gap.upper || from.is_none())
            {
                whole = false;
                self.gap(gap.tree, from, gap.upper, &gap.cause);
            }
            if whole {
                made_good.push(format!(
                    "{}; the {leaves} leaves below were found without it",
                    gap.cause
                ));
            }
        }
        self.long_keys()?;
        Ok(made_good)
    }

    /// Reports lost entries of a tree, immediately or, for entries of layers, once the layers are
    /// known.
    fn gap(&mut self, tree: u32, from: Fence, to: Fence, cause: &str) {
        if tree & LAYERS == 0 {
            return self.range(tree, from, to, cause);
        }
        let owner = owner(tree);
        self.layers.entry(owner).or_default();
        let lost = self.lost_layers.entry(owner).or_default();
        lost.push((from, to, cause.to_owned()));
    }

    pub(super) fn range(&mut self, tree: u32, from: Fence, to: Fence, cause: &str) {
        (self.lost)(Loss::Range {
            tree,
            from,
            to,
            cause: cause.to_owned(),
        });
    }

    /// Returns the existing leaves to which no page referred. If the map is damaged, the existing
    /// pages are unknown.
    fn orphan_leaves(&self) -> Vec<Orphan> {
        let salvage = self.salvage;
        let unseen = (1..salvage.addresses.len() as u64)
            .filter(|id| salvage.addresses[to_usize(*id)] != 0)
            .filter(|id| !self.seen.contains(id) && !salvage.searched.contains_key(id));
        let orphan = |page: PageId| {
            let words = salvage.page(page).ok()?;
            let node = Node(Page(&words));
            node.is_leaf().then(|| Orphan {
                page,
                is_of_layers: (node.len() > 0).then(|| is_of_layers(node)),
                lower: node.lower_fence(),
                upper: node.upper_fence(),
            })
        };
        unseen.filter_map(orphan).collect()
    }
}

/// Returns the chain that a leaf extends: one that it directly follows, one that ends before it, or
/// a new one. Chains are given by the upper fences of their last leaves, and leaves are passed in
/// the order of their lower fences.
fn chain_of(ends: &mut Vec<Fence>, leaf: &Orphan) -> usize {
    let follows = ends
        .iter()
        .position(|end| end.is_some() && *end == leaf.lower);
    let behind = || {
        ends.iter()
            .position(|end| end.is_some() && *end < leaf.lower)
    };
    let chain = follows.or_else(behind).unwrap_or(ends.len());
    match ends.get_mut(chain) {
        Some(end) => end.clone_from(&leaf.upper),
        None => ends.push(leaf.upper.clone()),
    }
    chain
}

impl Gap {
    fn may_own(&self, leaf: &Orphan) -> bool {
        // A missing lower bound sorts first, which is `Option`'s order; a missing upper bound sorts
        // last.
        let ends_inside = match (&leaf.upper, &self.upper) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(leaf), Some(gap)) => leaf <= gap,
        };
        let of_layers = self.tree & LAYERS != 0;
        let is_of_kind = leaf.is_of_layers.is_none_or(|is| is == of_layers);
        is_of_kind && self.is_leaf != Some(true) && leaf.lower >= self.lower && ends_inside
    }
}
