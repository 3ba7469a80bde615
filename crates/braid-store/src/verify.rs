//! Verification: checks the contents of the data file against each other.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::SHORT_KEY_MAX;
use crate::buffer_pool::{ABSENT, UNWRITTEN};
use crate::data_file::free_space::FIRST_BLOCK;
use crate::data_file::{LOST, Root, block_of};
use crate::error::StoreError;
use crate::node::value_page;
use crate::node::{KIND_INNER, KIND_LEAF, Node};
use crate::number_set::NumberSet;
use crate::page::{Page, PageId, private};
use crate::store::Store;
use crate::tree::layers::{Entry, FIRST, LAYERS, layer_in};
use crate::tree::overflow;

/// A finding of [`Store::verify`].
#[derive(Clone, Debug)]
pub struct Damage {
    /// The damage and its place.
    pub what: String,
}

/// The counts of [`Store::verify`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Pages read and checked.
    pub pages: u64,
    /// Records in all trees, tombstones included.
    pub records: u64,
    /// Trees.
    pub trees: u64,
    /// Findings.
    pub damages: u64,
    /// Superblocks of which a power failure left a part: no damage, because the other one leads to
    /// everything.
    pub torn_superblocks: u64,
}

impl Store {
    /// Checks both superblocks, every page's checksum and identity, the order of keys and fences in
    /// the trees, that every page belongs to exactly one block address of one tree, and that every
    /// block of the file is either free or used once.
    ///
    /// Nothing may be modified meanwhile. It reads the medium's state as of the newest checkpoint,
    /// so it is meant for a store that was just opened.
    ///
    /// # Errors
    /// Only errors that prevent the verification; damage is passed to `sink`.
    pub fn verify(&self, sink: &mut dyn FnMut(Damage)) -> Result<VerifyReport, StoreError> {
        let mut report = VerifyReport::default();
        let mut damaged = |what: String| sink(Damage { what });
        let mut damages = 0;
        let pool = &self.inner.pool;
        let (superblocks, torn) = pool.file.superblock_damage();
        report.torn_superblocks = torn;
        for error in superblocks {
            damages += 1;
            damaged(error.to_string());
        }
        for (_, error) in &pool.file.lost_leaves {
            damages += 1;
            damaged(error.to_string());
        }
        let mut existing = NumberSet::default();
        let mut buf = pool.file.buffer();
        let next = pool.ids.lock().next;
        for id in 1..next {
            let address = pool.file.durable_address(id);
            // The pages of a lost map leaf, if they exist, were reported already.
            if address == ABSENT || address == LOST {
                continue;
            }
            existing.insert(id);
            report.pages += 1;
            if let Err(error) = pool.file.read_page(id, address, &mut buf) {
                damages += 1;
                damaged(error.to_string());
            }
        }
        let mut walk = Walk {
            store: self,
            seen: NumberSet::default(),
            records: 0,
            layers: LayersSeen::default(),
            findings: Vec::new(),
        };
        let trees = self.inner.trees.read().clone();
        for (&id, &root) in &trees {
            walk.node(id, root, None, None, 0);
            walk.end_layers(id);
        }
        report.trees = self.tree_ids().len() as u64;
        for what in walk.findings {
            damages += 1;
            damaged(what);
        }
        report.records = walk.records;
        for id in existing.iter().filter(|id| !walk.seen.contains(*id)) {
            damages += 1;
            damaged(format!("page {id} uses space, but belongs to no tree"));
        }
        for what in self.space_damage() {
            damages += 1;
            damaged(what);
        }
        report.damages = damages;
        Ok(report)
    }

    /// Finds blocks that are neither free nor used, or both, or used twice. Reports nothing while a
    /// checkpoint is open or pinned, which keeps its own blocks, or after a failure that made
    /// freeing blocks unsafe.
    fn space_damage(&self) -> Vec<String> {
        let mut found = Vec::new();
        let pool = &self.inner.pool;
        let root = self.inner.root.lock().clone();
        let checkpoint = pool.checkpoint.lock();
        let pinned = pool.file.space.lock().is_pinned();
        let is_unknown = !pool.file.lost_leaves.is_empty();
        if checkpoint.is_some() || pinned || is_unknown || self.inner.is_poisoned() {
            return found;
        }
        let space = pool.file.space.lock();
        let next = pool.ids.lock().next.max(root.next_page);
        let mut used = NumberSet::default();
        self.block_users(&root, next, &mut |address, user| {
            let block = block_of(address);
            if !used.insert(block) {
                let other = self.first_user(&root, next, block);
                found.push(format!("block {block} is used by {other} and by {user}"));
            } else if space.is_free(block) {
                found.push(format!("block {block} is free, but used by {user}"));
            }
        });
        // The blocks are counted first: nearly all blocks of a long file may be free.
        if found.is_empty() && used.len() + space.free_blocks() + FIRST_BLOCK == space.end() {
            return found;
        }
        for block in FIRST_BLOCK..space.end() {
            if !space.is_free(block) && !used.contains(block) {
                found.push(format!("block {block} is neither free nor used"));
            }
        }
        found
    }

    /// Passes the address of each used block to `uses`, with its user.
    fn block_users(
        &self,
        root: &Root,
        next: PageId,
        uses: &mut dyn FnMut(u64, std::fmt::Arguments<'_>),
    ) {
        let pool = &self.inner.pool;
        for id in 1..next {
            let (durable, present) = (pool.file.durable_address(id), pool.address(id));
            if durable != ABSENT {
                uses(durable, format_args!("page {id}"));
            }
            if present != ABSENT && present != UNWRITTEN && present != durable {
                uses(present, format_args!("page {id} since the checkpoint"));
            }
        }
        for (i, &address) in root.leaf_addresses.iter().enumerate() {
            uses(address, format_args!("map leaf {i}"));
        }
        for &address in &root.blob_blocks {
            uses(address, format_args!("the root blob"));
        }
    }

    /// The first user of a block that has several.
    fn first_user(&self, root: &Root, next: PageId, block: u64) -> String {
        let mut first = None;
        self.block_users(root, next, &mut |address, user| {
            if block_of(address) == block {
                first.get_or_insert_with(|| user.to_string());
            }
        });
        first.unwrap_or_default()
    }

    /// Describes the trees and their pages.
    ///
    /// # Errors
    /// What reading pages can fail with, or [`StoreError::Io`] if `out` does.
    pub fn dump(&self, out: &mut dyn Write) -> Result<(), StoreError> {
        let failed = |_| {
            StoreError::io(
                "cannot write the dump",
                std::io::ErrorKind::WriteZero.into(),
            )
        };
        let root = self.inner.root.lock().clone();
        writeln!(
            out,
            "checkpoint {}: pages below {}",
            root.sequence, root.next_page
        )
        .map_err(failed)?;
        let trees = self.inner.trees.read().clone();
        for (&id, &root) in &trees {
            let id = name(id);
            writeln!(out, "{id}: root page {root}").map_err(failed)?;
            let mut stack = vec![(root, 1)];
            let mut seen = NumberSet::default();
            while let Some((page, depth)) = stack.pop() {
                // In a damaged tree, child pages may form a cycle.
                if !seen.insert(page) {
                    continue;
                }
                let Some(copy) = self.copy(page)? else {
                    continue;
                };
                let node = Node(Page(&copy));
                let kind = if node.is_leaf() { "leaf" } else { "inner" };
                let address = block_of(self.inner.pool.address(page));
                let show = |fence: Option<Vec<u8>>| match fence {
                    Some(fence) => fence.escape_ascii().to_string(),
                    None => "-".to_owned(),
                };
                let (lower, upper) = (show(node.lower_fence()), show(node.upper_fence()));
                let (indent, len) = (2 * depth, node.len());
                writeln!(
                    out,
                    "{:indent$}page {page} at block {address}: {kind}, {len} entries, {lower} .. {upper}",
                    ""
                )
                .map_err(failed)?;
                if !node.is_leaf() {
                    stack.extend(
                        (0..=node.len())
                            .rev()
                            .map(|i| (node.child_at(i), depth + 1)),
                    );
                }
            }
        }
        Ok(())
    }

    /// A private copy of a page.
    fn copy(
        &self,
        id: PageId,
    ) -> Result<Option<Box<[crate::sync::AtomicU64; crate::page::WORDS]>>, StoreError> {
        let Some(page) = self.inner.pool.write(id)? else {
            return Ok(None);
        };
        let copy = private();
        let mut bytes = vec![0; crate::page::PAGE_SIZE];
        page.page().copy_to(&mut bytes);
        Page(&copy).copy_from(&bytes);
        Ok(Some(copy))
    }
}

/// Returns the name of a tree in reports.
fn name(tree: u32) -> String {
    match tree & LAYERS {
        0 => format!("tree {tree}"),
        _ => format!(
            "tree {} (keys longer than {SHORT_KEY_MAX} bytes)",
            tree & !LAYERS
        ),
    }
}

/// The layers that a pass has seen in a tree of layers.
#[derive(Default)]
struct LayersSeen {
    /// Layers with entries.
    used: BTreeSet<u64>,
    /// Layers to which a link refers.
    linked: BTreeSet<u64>,
    /// The number of the next new layer.
    next: Option<u64>,
    findings: Vec<(PageId, &'static str)>,
}

impl LayersSeen {
    /// Records an entry. Returns whether it is a key's record.
    fn entry(&mut self, page: PageId, node: Node<'_>, i: usize) -> bool {
        let (key, record) = (node.key(i), node.leaf_record(i));
        let target = if record.is_overflow() || record.is_tombstone() {
            None
        } else {
            layer_in(&node.stored_value(&record))
        };
        let finding = match (Entry::of(&key), target) {
            (Some(Entry::Record { layer, .. }), _) if layer != FIRST => {
                self.used.insert(layer);
                return true;
            }
            (Some(Entry::Link { layer, .. }), Some(target)) => {
                self.used.insert(layer);
                if self.linked.insert(target) {
                    return false;
                } else {
                    "two links lead to one layer"
                }
            }
            (Some(Entry::Counter), Some(next)) => {
                self.next = Some(next);
                return false;
            }
            (Some(Entry::Link { .. } | Entry::Counter), None) => {
                "an entry has an invalid link to a layer"
            }
            _ => "an entry is not part of a key",
        };
        self.findings.push((page, finding));
        false
    }
}

/// One pass over the trees.
struct Walk<'a> {
    store: &'a Store,
    seen: NumberSet,
    records: u64,
    /// The layers of the current tree, if it is a tree of layers.
    layers: LayersSeen,
    findings: Vec<String>,
}

impl Walk<'_> {
    fn finding(&mut self, tree: u32, page: PageId, what: &str) {
        self.findings
            .push(format!("{}, page {page}: {what}", name(tree)));
    }

    /// Checks the layers' consistency at the end of a tree.
    fn end_layers(&mut self, tree: u32) {
        let LayersSeen {
            mut used,
            linked,
            next,
            findings,
        } = std::mem::take(&mut self.layers);
        for (page, what) in findings {
            self.finding(tree, page, what);
        }
        used.remove(&FIRST);
        // A linked layer without entries is left by an interrupted removal: it only costs space.
        for layer in used.difference(&linked) {
            let what = format!("{}: no link leads to layer {layer}", name(tree));
            self.findings.push(what);
        }
        let last = used.last().max(linked.last());
        if last.is_some_and(|last| next.is_none_or(|next| next <= *last)) {
            let what = format!(
                "{}: the counter of its layers is missing or too low",
                name(tree)
            );
            self.findings.push(what);
        }
    }

    /// Checks a node whose keys should lie between two fences.
    fn node(
        &mut self,
        tree: u32,
        id: PageId,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        depth: usize,
    ) {
        if depth > 64 {
            return self.finding(tree, id, "the tree is deeper than possible");
        }
        if !self.seen.insert(id) {
            return self.finding(tree, id, "the page is referred to twice");
        }
        let copy = match self.store.copy(id) {
            Ok(Some(copy)) => copy,
            Ok(None) => return self.finding(tree, id, "the page does not exist"),
            // Checksums were reported before.
            Err(error) => return self.finding(tree, id, &error.to_string()),
        };
        let node = Node(Page(&copy));
        if node.kind() != KIND_LEAF && node.kind() != KIND_INNER {
            return self.finding(tree, id, "the page is not a tree node");
        }
        if node.lower_fence().as_deref() != lower || node.upper_fence().as_deref() != upper {
            self.finding(tree, id, "its key range does not match its parent's");
        }
        let keys: Vec<Vec<u8>> = (0..node.len()).map(|i| node.key(i)).collect();
        if !keys.is_sorted_by(|a, b| a < b) {
            self.finding(tree, id, "its keys are out of order");
        }
        if !(keys.iter().enumerate()).all(|(i, key)| node.search(key) == Ok(i)) {
            self.finding(tree, id, "key search misses a key that the page contains");
        }
        let inside = |key: &Vec<u8>| {
            lower.is_none_or(|lower| &key[..] >= lower)
                && upper.is_none_or(|upper| &key[..] < upper)
        };
        if !keys.iter().all(inside) {
            self.finding(tree, id, "it contains keys outside of its range");
        }
        if node.is_leaf() {
            return self.leaf(tree, id, node);
        }
        for i in 0..=keys.len() {
            let child_lower = if i == 0 {
                lower
            } else {
                Some(&keys[i - 1][..])
            };
            let child_upper = keys.get(i).map(|key| &key[..]).or(upper);
            self.node(tree, node.child_at(i), child_lower, child_upper, depth + 1);
        }
    }

    fn leaf(&mut self, tree: u32, id: PageId, node: Node<'_>) {
        for i in 0..node.len() {
            let record = node.leaf_record(i);
            let is_record = match tree & LAYERS {
                0 => {
                    if node.prefix_len() + record.suffix_len > SHORT_KEY_MAX {
                        self.finding(tree, id, "it contains a key that is too long");
                    }
                    true
                }
                _ => self.layers.entry(id, node, i),
            };
            self.records += u64::from(is_record);
            if !record.is_overflow() {
                continue;
            }
            let mut at = value_page::reference(&node.stored_value(&record));
            let mut value = Vec::new();
            let pool = &self.store.inner.pool;
            match overflow::read(pool, at, record.value_len, &mut value) {
                Ok(true) => {}
                Ok(false) => self.finding(
                    tree,
                    id,
                    "the pages of a large value do not belong together",
                ),
                Err(error) => self.finding(tree, id, &error.to_string()),
            }
            while at != 0 {
                if !self.seen.insert(at) {
                    self.finding(tree, at, "the page is referred to twice");
                    break;
                }
                at = match self.store.copy(at) {
                    Ok(Some(copy)) => Page(&copy).word(3),
                    _ => 0,
                };
            }
        }
    }
}
