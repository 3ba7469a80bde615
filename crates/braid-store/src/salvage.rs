//! Reading what is left of a damaged data file, without writing to it.
//!
//! Every block says what it is and which checkpoint it belongs to, under a checksum. So what leads to a block
//! can be replaced by a search for it: a lost superblock by the root blob of its checkpoint, a leaf of the page
//! map by the newest blocks that call themselves its pages, and an inner page by the leaves that lie between
//! its fences and that nothing else leads to. What can't be replaced is named: a leaf by the keys between its
//! fences, as its parent knows them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use braid_io::{Device, OpenMode};

use crate::error::StoreError;
use crate::file::{BLOB, DataFile, FILE_NAME, LEAF_PLACES, MAP, Root, u64_at};
use crate::node::{self, Node};
use crate::overflow;
use crate::page::{PAGE_SIZE, Page, PageId, WORDS, private};
use crate::space::FIRST_BLOCK;
use crate::sync::AtomicU64;

/// What [`Salvage::read`] could not give back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Entries of a tree in a range of keys: those from `from` on, below `to`; `None` has no bound.
    Range {
        /// The tree's number.
        tree: u32,
        /// The first key that may be lost.
        from: Option<Vec<u8>>,
        /// The first key behind it that is not.
        to: Option<Vec<u8>>,
        /// What is damaged.
        cause: String,
    },
    /// One entry, whose value does not lie in its leaf.
    Value {
        /// The tree's number.
        tree: u32,
        /// The entry's key.
        key: Vec<u8>,
        /// What is damaged.
        cause: String,
    },
}

/// An entry that [`Salvage::read`] found.
#[derive(Clone, Copy, Debug)]
pub struct SalvagedEntry<'a> {
    /// The number of its tree; more than one if it is of one of these, and nothing tells of which.
    pub trees: &'a [u32],
    /// If there is more than one: entries of the same trees whose chain differs may have the same key, and are
    /// of different trees then.
    pub chain: usize,
    /// The key.
    pub key: &'a [u8],
    /// The number of the version.
    pub version: u64,
    /// The value.
    pub value: &'a [u8],
}

/// A data file opened for reading whatever can be read.
#[derive(Debug)]
pub struct Salvage {
    file: DataFile,
    root: Root,
    /// The block of each page, 0 for none.
    places: Vec<u64>,
    /// Pages whose place was found by a search, which may be older than they should be.
    searched: HashSet<PageId>,
    notes: Vec<String>,
    older: Option<String>,
}

type Words = Box<[AtomicU64; WORDS]>;
type Fence = Option<Vec<u8>>;

/// All blocks that are whole: by identity, the low half of the checkpoint's number and the block.
type Index = HashMap<u64, Vec<(u32, u64)>>;

/// A way to the root of a checkpoint.
struct Candidate {
    sequence: u64,
    blob: u64,
    /// `None` if the superblock is lost, which knows it.
    len: Option<u64>,
}

/// A part of a tree whose page can't be read.
struct Gap {
    tree: u32,
    lower: Fence,
    upper: Fence,
    /// Whether the page was a leaf, if its siblings tell.
    is_leaf: Option<bool>,
    cause: String,
}

/// A leaf that no inner page leads to.
struct Orphan {
    page: PageId,
    lower: Fence,
    upper: Fence,
}

impl Salvage {
    /// Opens the data file at the newest checkpoint that can be found. Writes nothing, here or later.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`], [`StoreError::Io`]; [`StoreError::Corrupted`] if no checkpoint can be
    /// found at all.
    pub fn open(device: Arc<dyn Device>) -> Result<Self, StoreError> {
        let opened = device.open(FILE_NAME, OpenMode::Existing);
        let opened = opened.map_err(|e| StoreError::io("opening data.braid", e))?;
        let file = DataFile::assemble(device, opened);
        let mut notes = Vec::new();
        let mut index = None;
        let (root, older) = find_root(&file, &mut index, &mut notes)?;
        let mut this = Self {
            file,
            root,
            places: Vec::new(),
            searched: HashSet::new(),
            notes,
            older,
        };
        this.read_map(&mut index)?;
        Ok(this)
    }

    /// The caller's bytes of the checkpoint.
    pub fn meta(&self) -> &[u8] {
        &self.root.meta
    }

    /// The numbers of the checkpoint's trees.
    pub fn tree_ids(&self) -> Vec<u32> {
        self.root.trees.keys().copied().collect()
    }

    /// What is damaged besides pages, and what was done about it.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// If the newest checkpoint can't be found and an older one was taken: which one.
    pub fn older_than_newest(&self) -> Option<&str> {
        self.older.as_deref()
    }

    /// The page map, its damaged leaves replaced by a search.
    fn read_map(&mut self, index: &mut Option<Index>) -> Result<(), StoreError> {
        let mut buf = self.file.buffer();
        let sequence = self.root.sequence;
        self.places = vec![0; self.root.next_page as usize];
        for (leaf, places) in self.places.chunks_mut(LEAF_PLACES).enumerate() {
            let missing = "the root names no such map leaf".to_owned();
            let read = match self.root.leaf_places.get(leaf) {
                Some(&block) => self
                    .file
                    .read_block(MAP | leaf as u64, block, sequence, &mut buf)
                    .map_err(|error| error.to_string()),
                None => Err(missing),
            };
            match read {
                Ok(()) => {
                    for (i, place) in places.iter_mut().enumerate() {
                        *place = u64_at(&buf, 16 + 8 * i);
                    }
                }
                Err(error) => {
                    let index = indexed(&self.file, index)?;
                    let mut found = 0_u64;
                    for (i, place) in places.iter_mut().enumerate() {
                        let id = (leaf * LEAF_PLACES + i) as u64;
                        if let Some(block) = newest(index, id, sequence) {
                            *place = block;
                            self.searched.insert(id);
                            found += 1;
                        }
                    }
                    self.notes.push(format!(
                        "{error}; the newest blocks of {found} pages were found by a search instead"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Reads every entry that is left, tombstones aside, and says what is not. Returns what was damaged and
    /// cost nothing.
    ///
    /// # Errors
    /// Those of `entry`.
    pub fn read(
        &self,
        entry: &mut dyn FnMut(SalvagedEntry<'_>) -> Result<(), StoreError>,
        lost: &mut dyn FnMut(Loss),
    ) -> Result<Vec<String>, StoreError> {
        let mut reader = Reader {
            salvage: self,
            seen: HashSet::new(),
            gaps: Vec::new(),
            entry,
            lost,
        };
        for (&tree, &root) in &self.root.trees {
            reader.node(tree, root, (None, None), 0)?;
        }
        reader.orphans()
    }

    /// A page that is whole, and that a tree can work with.
    fn page(&self, id: PageId) -> Result<Words, String> {
        let place = self.places.get(id as usize).copied().unwrap_or(0);
        if place < FIRST_BLOCK {
            return Err(format!("page {id} has no place"));
        }
        let mut buf = self.file.buffer();
        self.file
            .read_block(id, place, self.root.sequence, &mut buf)
            .map_err(|error| error.to_string())?;
        let bytes: &[u8; PAGE_SIZE] = buf[..].try_into().expect("the buffer is a page");
        node::check(bytes).map_err(|what| format!("data.braid, page {id}: {what}"))?;
        let words = private();
        Page(&words).copy_from(bytes);
        Ok(words)
    }
}

/// The newest root that can be read.
fn find_root(
    file: &DataFile,
    index: &mut Option<Index>,
    notes: &mut Vec<String>,
) -> Result<(Root, Option<String>), StoreError> {
    let mut candidates = Vec::new();
    let mut damaged = Vec::new();
    for slot in 0..2 {
        match file.read_superblock(slot) {
            Ok((sequence, blob, len, _)) => candidates.push(Candidate {
                sequence,
                blob,
                len: Some(len),
            }),
            Err(error @ StoreError::Incompatible { .. }) => return Err(error),
            // The one that the first checkpoint left alone was never written.
            Err(_) if file.is_blank(slot) => {}
            Err(error) => {
                notes.push(error.to_string());
                damaged.push(slot);
            }
        }
    }
    let newest = candidates.iter().map(|c| c.sequence).max();
    if candidates.is_empty() || !damaged.is_empty() {
        // The lost one may have been the newest. Its root blob bears its number.
        let high = newest.unwrap_or(0) & !u64::from(u32::MAX);
        let mut blobs: Vec<(u32, u64)> = indexed(file, index)?
            .get(&BLOB)
            .cloned()
            .unwrap_or_default();
        blobs.sort_unstable();
        for (stamp, blob) in blobs {
            let sequence = high | u64::from(stamp);
            let is_lost = damaged.contains(&(sequence % 2))
                && newest.is_some_and(|newest| sequence == newest + 1);
            if newest.is_none() || is_lost {
                candidates.push(Candidate {
                    sequence,
                    blob,
                    len: None,
                });
            }
        }
    }
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.sequence));
    let mut is_older = false;
    for candidate in candidates {
        let sequence = candidate.sequence;
        match read_root(file, &candidate) {
            Ok(root) => {
                if candidate.len.is_none() {
                    notes.push(format!(
                        "the root of checkpoint {sequence} was found without its superblock"
                    ));
                }
                let older = is_older.then(|| {
                    format!(
                        "checkpoint {sequence} is the newest that can be read; pages written since are lost"
                    )
                });
                return Ok((root, older));
            }
            Err(error) => {
                is_older = true;
                notes.push(format!("the root of checkpoint {sequence}: {error}"));
            }
        }
    }
    Err(StoreError::Corrupted {
        what: format!("no checkpoint can be found ({})", notes.join("; ")),
        location: "data.braid".into(),
    })
}

fn read_root(file: &DataFile, candidate: &Candidate) -> Result<Root, StoreError> {
    if let Some(len) = candidate.len {
        return file.read_root_blob(candidate.sequence, candidate.blob, len);
    }
    // It ends where it makes sense.
    let (mut bytes, mut block) = (Vec::new(), candidate.blob);
    let mut buf = file.buffer();
    for i in 0.. {
        file.read_block(BLOB | i, block, candidate.sequence, &mut buf)?;
        bytes.extend_from_slice(&buf[24..]);
        if let Some(root) = Root::decode(&bytes, candidate.sequence, Vec::new()) {
            return Ok(root);
        }
        block = u64_at(&buf, 16);
        if block == 0 {
            break;
        }
    }
    Err(StoreError::Corrupted {
        what: "the root's contents".into(),
        location: format!("data.braid, block {}", candidate.blob),
    })
}

/// Reads the whole file once, and only if that is needed.
fn indexed<'a>(file: &DataFile, index: &'a mut Option<Index>) -> Result<&'a Index, StoreError> {
    if index.is_none() {
        let mut found = Index::new();
        let mut buf = file.buffer();
        for block in FIRST_BLOCK..file.len_blocks()? {
            if let Some((identity, stamp)) = file.read_any_block(block, &mut buf) {
                found.entry(identity).or_default().push((stamp, block));
            }
        }
        *index = Some(found);
    }
    Ok(index.get_or_insert_default())
}

/// The newest block of an identity that is no newer than a checkpoint.
fn newest(index: &Index, identity: u64, sequence: u64) -> Option<u64> {
    let blocks = index.get(&identity)?.iter();
    let known = blocks.filter(|(stamp, _)| *stamp <= sequence as u32);
    known.max().map(|(_, block)| *block)
}

/// One pass over the trees.
struct Reader<'a> {
    salvage: &'a Salvage,
    seen: HashSet<PageId>,
    gaps: Vec<Gap>,
    entry: &'a mut dyn FnMut(SalvagedEntry<'_>) -> Result<(), StoreError>,
    lost: &'a mut dyn FnMut(Loss),
}

impl Reader<'_> {
    /// Reads a page and all below it; says whether it is a leaf, if it can be read.
    fn node(
        &mut self,
        tree: u32,
        id: PageId,
        (lower, upper): (Fence, Fence),
        depth: usize,
    ) -> Result<Option<bool>, StoreError> {
        let page = match self.seen.insert(id) && depth < 64 {
            true => self.salvage.page(id),
            false => Err(format!("page {id} is referred to twice")),
        };
        let page = page.and_then(|page| {
            let node = Node(Page(&page));
            let is_node = node.kind() != node::KIND_OVERFLOW;
            if is_node && node.lower_fence() == lower && node.upper_fence() == upper {
                Ok(page)
            } else {
                Err(format!("page {id} does not fit its parent"))
            }
        });
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
            self.leaf(&[tree], 0, node)?;
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
            let stored = node.stored_value(&record);
            let value = match record.is_overflow() {
                true => self.large(overflow::reference(&stored), record.value_len),
                false => Ok(stored),
            };
            match value {
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

    /// A value outside of its leaf.
    fn large(&mut self, first: PageId, len: usize) -> Result<Vec<u8>, String> {
        let (mut value, mut id) = (Vec::new(), first);
        while value.len() < len {
            if !self.seen.insert(id) {
                return Err(format!("page {id} is referred to twice"));
            }
            let page = self.salvage.page(id)?;
            let part = overflow::part(Page(&page));
            let (next, bytes) =
                part.ok_or_else(|| format!("page {id} holds no part of a value"))?;
            value.extend_from_slice(&bytes);
            id = next;
        }
        match value.len() == len {
            true => Ok(value),
            false => Err(format!(
                "the value's pages from {first} on do not fit together"
            )),
        }
    }

    /// Leaves below damaged inner pages, and what remains lost.
    fn orphans(&mut self) -> Result<Vec<String>, StoreError> {
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
                // It was read before, and may be damaged by now: then it is simply lost.
                let Ok(page) = self.salvage.page(orphan.page) else {
                    continue;
                };
                let chain = match trees.len() {
                    1 => 0,
                    _ => chain_of(chains.entry(trees.clone()).or_default(), &orphan),
                };
                self.leaf(&trees, chain, Node(Page(&page)))?;
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
                    self.range(gap.tree, from, lower, &gap.cause);
                }
                from = upper.map(Some);
            }
            // Up to the end, unless the last leaf found reaches it.
            if let Some(from) = from
                && (from != gap.upper || from.is_none())
            {
                whole = false;
                self.range(gap.tree, from, gap.upper, &gap.cause);
            }
            if whole {
                made_good.push(format!(
                    "{}; the {leaves} leaves below were found without it",
                    gap.cause
                ));
            }
        }
        Ok(made_good)
    }

    fn range(&mut self, tree: u32, from: Fence, to: Fence, cause: &str) {
        (self.lost)(Loss::Range {
            tree,
            from,
            to,
            cause: cause.to_owned(),
        });
    }

    /// Leaves that exist and that nothing led to. Where the map is damaged it is not known which pages exist.
    fn orphan_leaves(&self) -> Vec<Orphan> {
        let salvage = self.salvage;
        let unseen = (1..salvage.places.len() as u64)
            .filter(|id| salvage.places[*id as usize] != 0)
            .filter(|id| !self.seen.contains(id) && !salvage.searched.contains(id));
        let orphan = |page: PageId| {
            let words = salvage.page(page).ok()?;
            let node = Node(Page(&words));
            node.is_leaf().then(|| Orphan {
                page,
                lower: node.lower_fence(),
                upper: node.upper_fence(),
            })
        };
        unseen.filter_map(orphan).collect()
    }
}

/// Which of the chains, given by the upper fence of their last leaf, a leaf goes on with: one that it follows at
/// once, or one that ends before it, or a new one. Leaves come by their lower fences.
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
        // No lower bound comes before all others, which is `Option`'s own order; no upper bound comes last.
        let ends_inside = match (&leaf.upper, &self.upper) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(leaf), Some(gap)) => leaf <= gap,
        };
        self.is_leaf != Some(true) && leaf.lower >= self.lower && ends_inside
    }
}
