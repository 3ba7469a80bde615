//! Damaged pages: the keys of the tree that each of them affects.

use super::overflow;
use crate::SHORT_KEY_MAX;
use crate::buffer_pool::ReadPage;
use crate::error::StoreError;
use crate::node::value_page;
use crate::node::{KIND_INNER, Node};
use crate::page::PageId;

use super::Tree;
use super::layers::{Entry, FIRST, Layers, chunks, link, record};

/// Keys of a tree whose page is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedRange {
    /// The tree's number.
    pub tree: u32,
    /// The first key that is affected; `None` for the beginning of the tree.
    pub from: Option<Vec<u8>>,
    /// The first key after `from` that is not affected; `None` for the end of the tree.
    pub to: Option<Vec<u8>>,
    /// The description of the damage.
    pub cause: String,
}

/// Describes the keys between two bounds in a message.
fn keys(from: Option<&[u8]>, to: Option<&[u8]>) -> String {
    let show = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
    match (from, to) {
        (None, None) => "all keys".to_owned(),
        (Some(from), None) => format!("keys from {}", show(from)),
        (None, Some(to)) => format!("keys below {}", show(to)),
        (Some(from), Some(to)) => format!("keys from {} up to {}", show(from), show(to)),
    }
}

impl Tree {
    /// Adds the keys that an error of a child affects.
    #[cold]
    pub(super) fn in_child(
        &self,
        error: StoreError,
        parent: &ReadPage<'_>,
        child: PageId,
    ) -> StoreError {
        let node = Node(parent.page());
        let (from, to) = match (0..=node.len()).find(|&i| node.child_at(i) == child) {
            Some(i) => node.bounds_of_child(i),
            None => (node.lower_fence(), node.upper_fence()),
        };
        self.located(error, &keys(from.as_deref(), to.as_deref()))
    }

    /// As [`Tree::in_child`], for the root.
    #[cold]
    pub(super) fn in_all(&self, error: StoreError) -> StoreError {
        self.located(error, &keys(None, None))
    }

    /// As [`Tree::in_child`], for a page of a large value.
    #[cold]
    pub(super) fn in_value(&self, error: StoreError, key: &[u8]) -> StoreError {
        self.located(error, &format!("the value of \"{}\"", key.escape_ascii()))
    }

    fn located(&self, error: StoreError, range: &str) -> StoreError {
        let range = match self.long {
            Some(_) => range,
            // The layers' own keys mean nothing to a user.
            None => "some of the keys longer than 1024 bytes",
        };
        match error {
            StoreError::Corrupted { what, location } => StoreError::Corrupted {
                what,
                location: format!("{location}, {range} of tree {}", self.id),
            },
            error => error,
        }
    }

    /// Searches for a damaged page on the way to a key, the pages of its value included, and keeps
    /// that page unreadable until the store is reopened, so that a change missing there always
    /// causes an error. Returns the keys that are lost with the page; `None` if every page can be
    /// read.
    ///
    /// No thread may change the tree meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Io`], and all other errors that are not damage.
    pub fn condemn(&self, key: &[u8]) -> Result<Option<DamagedRange>, StoreError> {
        let (mut id, mut bounds) = (self.root, (None, None));
        for _ in 0..super::LEVELS_MAX {
            let page = match self.read_existing(id) {
                Ok(page) => page,
                Err(error @ StoreError::Corrupted { .. }) => {
                    return Ok(Some(self.condemned(id, bounds, error)));
                }
                Err(error) => return Err(error),
            };
            let node = Node(page.page());
            if node.kind() == KIND_INNER {
                let position = node.child_position(key);
                bounds = node.bounds_of_child(position);
                id = node.child_at(position);
                continue;
            }
            let Ok(i) = node.search(key) else {
                return match self.layers() {
                    Some(layers) if key.len() > SHORT_KEY_MAX => layers.condemn(key),
                    _ => Ok(None),
                };
            };
            let record = node.leaf_record(i);
            if !node.is_leaf() || !record.is_overflow() {
                return Ok(None);
            }
            let first = value_page::reference(&node.stored_value(&record));
            let mut value = Vec::new();
            return match overflow::read(&self.pool, first, record.value_len, &mut value) {
                Err(error @ StoreError::Corrupted { .. }) => {
                    let next = [key, &[0]].concat();
                    Ok(Some(self.condemned(
                        first,
                        (Some(key.to_vec()), Some(next)),
                        error,
                    )))
                }
                read => read.map(|_| None),
            };
        }
        Ok(None)
    }

    /// Makes a key unreadable until the store is reopened: its change failed because of a damaged
    /// page, although [`Tree::condemn`] found none on the way to it. Returns the key as a range;
    /// `None` if the change of this key needs no other page.
    ///
    /// No thread may change the tree meanwhile.
    pub fn lose(&self, key: &[u8], cause: &StoreError) -> Option<DamagedRange> {
        let layers = self.layers().filter(|_| key.len() > SHORT_KEY_MAX)?;
        if !braid_rt::mutant!("forget_lost_keys") {
            layers.1.add(key, cause);
        }
        Some(DamagedRange {
            tree: self.id,
            from: Some(key.to_vec()),
            to: Some([key, &[0]].concat()),
            cause: cause.to_string(),
        })
    }

    fn condemned(
        &self,
        page: PageId,
        (from, to): (Option<Vec<u8>>, Option<Vec<u8>>),
        error: StoreError,
    ) -> DamagedRange {
        self.pool.condemn(page, &error);
        let cause = error.to_string();
        let tree = self.id;
        DamagedRange {
            tree,
            from,
            to,
            cause,
        }
    }
}

impl Layers {
    /// [`Tree::condemn`] for a long key.
    fn condemn(&self, key: &[u8]) -> Result<Option<DamagedRange>, StoreError> {
        let (links, last) = chunks(key);
        let (mut layer, mut before) = (FIRST, Vec::new());
        for chunk in links {
            if let Some(range) = self.0.condemn(&link(layer, chunk))? {
                return Ok(Some(in_layer(range, layer, &before)));
            }
            match self.follow(layer, chunk)? {
                Some(next) => layer = next,
                None => return Ok(None),
            }
            before.extend_from_slice(chunk);
        }
        let range = self.0.condemn(&record(layer, last))?;
        Ok(range.map(|range| in_layer(range, layer, &before)))
    }
}

/// Converts a range of entries of a layer to a range of keys, which begin with `before`.
fn in_layer(range: DamagedRange, layer: u64, before: &[u8]) -> DamagedRange {
    let key = |bound: Option<Vec<u8>>| match Entry::of(&bound?)? {
        Entry::Record { layer: of, chunk } if of == layer => Some([before, chunk].concat()),
        Entry::Link { layer: of, chunk } if of == layer => Some([before, chunk, &[0]].concat()),
        _ => None,
    };
    DamagedRange {
        from: key(range.from).or_else(|| (!before.is_empty()).then(|| before.to_vec())),
        to: key(range.to).or_else(|| successor(before)),
        ..range
    }
}

/// Returns the first key after all keys that begin with these bytes.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

impl DamagedRange {
    /// Describes the keys for messages.
    pub fn keys(&self) -> String {
        keys(self.from.as_deref(), self.to.as_deref())
    }
}
