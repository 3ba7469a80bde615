//! Long keys, which lie in layers: they are assembled once all remaining leaves of the layers are
//! known.

use std::collections::HashMap;

use super::reader::Reader;
use super::{Fence, Loss, SalvagedEntry};
use crate::MAX_KEY_LEN;
use crate::error::StoreError;
use crate::node::{LeafRecord, Node};
use crate::page::{Page, PageId};
use crate::tree::damage::successor;
use crate::tree::layers::{Entry, FIRST, LAYERS, MAGIC, layer_in};

/// Most ranges of a gap: a gap that affects more is reported as a loss of all long keys.
const RANGES_MAX: usize = 16;

/// The parts of a tree of layers that were found.
#[derive(Default)]
pub(super) struct Layers {
    /// Leaves, with the fences by which their blocks were chosen.
    leaves: Vec<(PageId, Fence, Fence)>,
    /// By the number of a layer, the layer before it and the chunk that leads from there to it.
    links: HashMap<u64, (u64, Vec<u8>)>,
}

impl Layers {
    /// Records a leaf, whose entries are read later, and its links.
    pub(super) fn note(&mut self, id: PageId, node: Node<'_>) {
        self.leaves
            .push((id, node.lower_fence(), node.upper_fence()));
        for i in 0..node.len() {
            let (key, record) = (node.key(i), node.leaf_record(i));
            let target = if record.is_overflow() || record.is_tombstone() {
                None
            } else {
                layer_in(&node.stored_value(&record))
            };
            if let (Some(Entry::Link { layer, chunk }), Some(target)) = (Entry::of(&key), target) {
                self.links.insert(target, (layer, chunk.to_vec()));
            }
        }
    }

    /// The bytes with which all keys of a layer begin; `None` if the way to it is lost.
    fn prefix(&self, mut layer: u64) -> Option<Vec<u8>> {
        let mut chunks = Vec::new();
        while layer != FIRST {
            let (before, chunk) = self.links.get(&layer)?;
            chunks.push(&chunk[..]);
            layer = *before;
            if chunks.len() > MAX_KEY_LEN / chunk.len() {
                return None;
            }
        }
        chunks.reverse();
        Some(chunks.concat())
    }

    /// The ranges of keys that may be lost with the entries between two fences; `None` if
    /// they are too many, or none is known.
    fn ranges(&self, lower: &Fence, upper: &Fence) -> Option<Vec<(Fence, Fence)>> {
        let layers = self.links.keys().copied().chain([FIRST]);
        let mut ranges = Vec::new();
        for layer in layers {
            let first = [&MAGIC, &layer.to_be_bytes()[2..]].concat();
            let end = [&MAGIC, &(layer + 1).to_be_bytes()[2..]].concat();
            let is_below = upper.as_ref().is_some_and(|upper| *upper <= first);
            if is_below || lower.as_ref().is_some_and(|lower| *lower >= end) {
                continue;
            }
            let Some(prefix) = self.prefix(layer) else {
                continue;
            };
            let key = |fence: &Fence| {
                let rest = fence.as_ref()?.strip_prefix(&first[..])?;
                Some([&prefix, rest].concat())
            };
            let from = key(lower).unwrap_or_else(|| prefix.clone());
            let to = key(upper).or_else(|| successor(&prefix));
            ranges.push((Some(from).filter(|from| !from.is_empty()), to));
        }
        ranges.sort();
        (1..=RANGES_MAX).contains(&ranges.len()).then_some(ranges)
    }
}

/// Whether all keys of a leaf belong to layers.
pub(super) fn is_of_layers(node: Node<'_>) -> bool {
    (0..node.len()).all(|i| node.key(i).starts_with(&MAGIC))
}

impl Reader<'_> {
    /// Reads the entries of layers, after all their leaves were recorded.
    pub(super) fn long_keys(&mut self) -> Result<(), StoreError> {
        for (tree, layers) in std::mem::take(&mut self.layers) {
            let mut unknown = 0_u64;
            for (id, lower, upper) in &layers.leaves {
                // The page was read before, and may have been damaged since: it is then lost.
                let Ok(page) = self.salvage.node(*id, (lower, upper)) else {
                    unknown += 1;
                    continue;
                };
                let node = Node(Page(&page));
                for i in 0..node.len() {
                    let record = node.leaf_record(i);
                    let known = self.long_key(tree, &layers, node, i, &record)?;
                    unknown += u64::from(!known);
                }
            }
            if unknown > 0 {
                let cause = format!(
                    "the beginnings of {unknown} keys longer than {} bytes are lost",
                    crate::SHORT_KEY_MAX
                );
                self.range(tree, None, None, &cause);
            }
            for (lower, upper, cause) in self.lost_layers.remove(&tree).unwrap_or_default() {
                let ranges = layers.ranges(&lower, &upper);
                for (from, to) in ranges.unwrap_or_else(|| vec![(None, None)]) {
                    let cause = format!("keys longer than {} bytes: {cause}", crate::SHORT_KEY_MAX);
                    self.range(tree, from, to, &cause);
                }
            }
        }
        Ok(())
    }

    /// Reads an entry of a layer. Returns whether its key is known.
    fn long_key(
        &mut self,
        tree: u32,
        layers: &Layers,
        node: Node<'_>,
        i: usize,
        record: &LeafRecord,
    ) -> Result<bool, StoreError> {
        let entry = node.key(i);
        let (layer, chunk) = match Entry::of(&entry) {
            Some(Entry::Record { .. }) if record.is_tombstone() => return Ok(true),
            Some(Entry::Record { layer, chunk }) => (layer, chunk),
            Some(Entry::Link { .. } | Entry::Counter) => return Ok(true),
            None => return Ok(false),
        };
        let Some(prefix) = layers.prefix(layer) else {
            return Ok(false);
        };
        let key = [&prefix, chunk].concat();
        if key.len() > MAX_KEY_LEN {
            return Ok(false);
        }
        match self.value(node, record) {
            Ok(value) => (self.entry)(SalvagedEntry {
                trees: &[tree],
                chain: 0,
                key: &key,
                version: record.version,
                value: &value,
            })?,
            Err(cause) => (self.lost)(Loss::Value { tree, key, cause }),
        }
        Ok(true)
    }
}

/// The table's tree to which a tree of layers belongs.
pub(super) fn owner(tree: u32) -> u32 {
    tree & !LAYERS
}
