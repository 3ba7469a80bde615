//! Salvage: reading the intact parts of a damaged data file, without writing to it.
//!
//! Every block carries its identity and its checkpoint's number, under a checksum. So a search can
//! replace a lost reference to a block: a lost superblock by the root blob of its checkpoint, a
//! leaf of the page map by the newest blocks with its pages' identities, and an inner page by the
//! leaves that lie between its fences and that no other page refers to. If a search finds several
//! blocks of a page, the newest that fits the reference is chosen (see [`choice`]). Unrecoverable
//! parts are reported: a leaf by the keys between its fences, which its parent knows.

mod choice;
mod layers;
mod reader;
mod root;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use braid_io::{Device, OpenMode};
use braid_rt::to_usize;

use crate::data_file::free_space::FIRST_BLOCK;
use crate::data_file::{DataFile, FILE_NAME, Root, block_of};
use crate::error::StoreError;
use crate::node;
use crate::page::{PAGE_SIZE, Page, PageId, WORDS, private};
use crate::sync::AtomicU64;

use self::reader::Reader;
use self::root::{Index, find_root, indexed, versions};

/// A loss: a part of the data that [`Salvage::read`] could not recover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Entries of a tree in a range of keys: those from `from` on, below `to`; `None` has no bound.
    Range {
        /// The tree's number.
        tree: u32,
        /// The first key that may be lost.
        from: Option<Vec<u8>>,
        /// The first key after `from` that is not lost.
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
    /// The number of its tree; several numbers if the entry belongs to one of these trees, and it
    /// is unknown to which.
    pub trees: &'a [u32],
    /// If there are several trees: the entry's chain. Entries with different chains may have the
    /// same key, and then belong to different trees.
    pub chain: usize,
    /// The key.
    pub key: &'a [u8],
    /// The number of the version.
    pub version: u64,
    /// The value.
    pub value: &'a [u8],
}

/// A data file opened for salvage, which reads everything that is readable.
#[derive(Debug)]
pub struct Salvage {
    file: DataFile,
    root: Root,
    /// The place of each page, 0 for none.
    addresses: Vec<u64>,
    /// Pages whose block addresses were found by a search: the low half of the checkpoint's number
    /// and the block address, newest first.
    searched: HashMap<PageId, Vec<(u32, u64)>>,
    /// The newest version that the checkpoint has.
    newest: u64,
    notes: Vec<String>,
    lost: Vec<String>,
}

type Words = Box<[AtomicU64; WORDS]>;
type Fence = Option<Vec<u8>>;

impl Salvage {
    /// Opens the data file at the newest checkpoint that can be found. Writes nothing, here or
    /// later.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`], [`StoreError::Io`]; [`StoreError::Corrupted`] if no checkpoint
    /// can be found at all.
    pub fn open(device: Arc<dyn Device>) -> Result<Self, StoreError> {
        let opened = device.open(FILE_NAME, OpenMode::Existing);
        let opened = opened.map_err(|e| StoreError::io("cannot open data.braid", e))?;
        let file = DataFile::assemble(device, opened);
        let mut notes = Vec::new();
        let mut index = None;
        let (root, older) = find_root(&file, &mut index, &mut notes)?;
        let mut this = Self {
            file,
            root,
            addresses: Vec::new(),
            searched: HashMap::new(),
            newest: u64::MAX,
            notes,
            lost: Vec::from_iter(older),
        };
        this.read_map(&mut index)?;
        Ok(this)
    }

    /// Sets the newest version of the checkpoint: blocks with newer versions belong to a later
    /// state.
    pub fn set_newest(&mut self, version: u64) {
        self.newest = version;
    }

    /// The caller's bytes of the checkpoint.
    pub fn meta(&self) -> &[u8] {
        &self.root.meta
    }

    /// The numbers of the checkpoint's trees.
    pub fn tree_ids(&self) -> Vec<u32> {
        let ids: BTreeSet<u32> = self
            .root
            .trees
            .keys()
            .map(|&id| layers::owner(id))
            .collect();
        ids.into_iter().collect()
    }

    /// Returns the damage other than to pages, and how it was handled.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the losses other than those that [`Salvage::read`] reports: pages of which an older
    /// version was used, or may have been used.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    /// Reads the page map, replacing its damaged leaves by a search.
    fn read_map(&mut self, index: &mut Option<Index>) -> Result<(), StoreError> {
        let sequence = self.root.sequence;
        let pages = self.root.leaf_pages();
        self.addresses = vec![0; to_usize(self.root.next_page)];
        for (leaf, addresses) in self.addresses.chunks_mut(pages).enumerate() {
            let missing = "the root names no such map leaf".to_owned();
            let read = match self.root.leaf_addresses.get(leaf) {
                Some(&address) => self
                    .file
                    .read_map_leaf(&self.root, leaf, address)
                    .map_err(|error| error.to_string()),
                None => Err(missing),
            };
            match read {
                Ok(entries) => {
                    for (address, entry) in addresses.iter_mut().zip(entries) {
                        *address = entry.address;
                    }
                }
                Err(error) => {
                    let index = indexed(&self.file, index)?;
                    let mut found = 0_u64;
                    for (i, address) in addresses.iter_mut().enumerate() {
                        let id = (leaf * pages + i) as u64;
                        let versions = versions(index, id, sequence);
                        if let Some((_, newest)) = versions.first() {
                            *address = *newest;
                            self.searched.insert(id, versions);
                            found += 1;
                        }
                    }
                    self.notes.push(format!(
                        "{error}; the blocks of {found} pages were found by a search instead"
                    ));
                }
            }
        }
        // Only the map knows the free blocks, and the age of a page.
        if let Some(index) = index.as_ref().filter(|_| !self.searched.is_empty()) {
            let of_map = |block: u64| {
                let mut leaves = self.root.leaf_addresses.iter();
                leaves.any(|address| block_of(*address) == block)
            };
            let others = index.damaged.iter().filter(|block| !of_map(**block));
            let others = others.count();
            if others > 0 {
                self.lost.push(format!(
                    "perhaps the newest version of as many as {others} of the pages found by a search, since so many other blocks can't be read"
                ));
            }
        }
        Ok(())
    }

    /// Reads every remaining entry except tombstones, and reports the losses. Returns the damage
    /// that caused no loss.
    ///
    /// # Errors
    /// Errors of `entry`.
    pub fn read(
        &self,
        entry: &mut dyn FnMut(SalvagedEntry<'_>) -> Result<(), StoreError>,
        lost: &mut dyn FnMut(Loss),
    ) -> Result<Vec<String>, StoreError> {
        let mut reader = Reader::new(self, entry, lost);
        for (&tree, &root) in &self.root.trees {
            reader.node(tree, root, (None, None), 0)?;
        }
        reader.orphans()
    }

    /// Reads a page that is intact and valid for a tree.
    fn page(&self, id: PageId) -> Result<Words, String> {
        self.page_at(id, self.addresses.get(to_usize(id)).copied().unwrap_or(0))
    }

    fn page_at(&self, id: PageId, address: u64) -> Result<Words, String> {
        if block_of(address) < FIRST_BLOCK {
            return Err(format!("page {id} has no block"));
        }
        let mut buf = self.file.buffer();
        self.file
            .read_block(id, address, self.root.sequence, &mut buf)
            .map_err(|error| error.to_string())?;
        let bytes: &[u8; PAGE_SIZE] = buf[..].try_into().expect("the buffer is a page");
        node::check(bytes).map_err(|what| format!("data.braid, page {id}: {what}"))?;
        let words = private();
        Page(&words).copy_from(bytes);
        Ok(words)
    }
}
