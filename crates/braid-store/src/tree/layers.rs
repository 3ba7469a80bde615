//! Keys that are too long for a node: a second tree holds them in layers.
//!
//! A node takes keys of up to [`SHORT_KEY_MAX`] bytes. A longer key is cut into chunks of that
//! length, as Masstree does (Mao, Kohler, Morris 2012): each chunk but the last has an entry that
//! links to a *layer*, which holds the remainders, after the chunk, of all keys that begin with it.
//! All layers of a table are in one tree, whose number is the table's with [`LAYERS`]; its keys are
//!
//! ```text
//! MAGIC | layer:6 | chunk       a record: the last chunk of a key, 1 to 1,024 bytes
//! MAGIC | layer:6 | chunk | 0   a link: a chunk of 1,024 bytes; its value is the number of a layer
//! MAGIC | ff*6                  the counter: its value is the number of the next new layer
//! ```
//!
//! Layer 0 holds the first chunks. A link follows the record that ends with the same chunk, so
//! within a layer the entries are in the order of the keys.
//!
//! # Concurrency
//!
//! The latch of a *home leaf* guards a long key: of the leaf in the table's own tree to which the
//! key would belong if that leaf could hold it. A change holds this latch and gives the leaf a new
//! version. All keys that share their first chunk have the same home leaf, since no key of the
//! table's own tree, and so no fence, lies between them. Hence a change has exclusive access to the
//! whole path of a key, and may create and remove layers. The number of a layer is never reused.
//!
//! Readers latch and validate no home leaf. A record that a reader finds is the key's, and a key
//! that it does not find was missing at some moment of the search: only empty layers are removed. A
//! scan reads the layers after the home leaf, so a change that it sees in the layers only gives the
//! leaf a later version than the scan's [`Stamp`](super::Stamp). Hence a stamp covers the long keys
//! in the leaf's range, those that will be inserted included.
//!
//! Latches are taken in this order: the home leaf, then pages of the tree of layers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use braid_rt::RwLock;
use bytes::Bytes;

use super::detached::DetachedValue;
use super::leaf_hint::Slot;
use super::lost::LostKeys;
use super::{Change, Direction, LeafScan, RecordMeta, Taken, Tree, ValueRef};
use crate::buffer_pool::{Pool, WritePage};
use crate::error::StoreError;
use crate::node::Node;
use crate::page::PageId;
use crate::{MAX_KEY_LEN, SHORT_KEY_MAX};

/// The bit that is set in the number of every tree of layers, and of no other tree.
pub(crate) const LAYERS: u32 = 1 << 31;

/// The bytes of a key that a link represents.
pub(crate) const CHUNK: usize = SHORT_KEY_MAX;

/// The first bytes of all keys in a tree of layers: salvage recognizes leaves by them.
pub(crate) const MAGIC: [u8; 4] = [0xb7, b'l', b'k', 1];

const HEAD: usize = MAGIC.len() + 6;

/// The length of a link's key.
const LINK: usize = HEAD + CHUNK + 1;

const _: () = assert!(LINK <= crate::node::KEY_MAX);

/// The layer of the first chunks.
pub(crate) const FIRST: u64 = 0;

/// Upper bound of the numbers of layers.
const END: u64 = (1 << 48) - 1;

/// Records that a scan of the layers reads at once.
const BATCH: usize = 32;

/// The bounds of a range of keys.
pub(super) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// An entry of a tree of layers, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// The last chunk of a key.
    Record { layer: u64, chunk: &'a [u8] },
    /// A chunk that is followed by further chunks.
    Link { layer: u64, chunk: &'a [u8] },
    /// The number of the next new layer.
    Counter,
}

impl<'a> Entry<'a> {
    /// Parses the key of an entry. Returns `None` if it is not such a key.
    pub(crate) fn of(key: &'a [u8]) -> Option<Self> {
        let (layer, chunk) = key.strip_prefix(&MAGIC)?.split_first_chunk::<6>()?;
        let [a, b, c, d, e, f] = *layer;
        let layer = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        match chunk.len() {
            0 => (layer == END).then_some(Self::Counter),
            1..=CHUNK => Some(Self::Record { layer, chunk }),
            _ => match chunk.split_last() {
                Some((0, chunk)) if chunk.len() == CHUNK => Some(Self::Link { layer, chunk }),
                _ => None,
            },
        }
    }
}

/// The number of a layer in the value of a link or of the counter.
pub(crate) fn layer_in(value: &[u8]) -> Option<u64> {
    let layer = u64::from_le_bytes(value.try_into().ok()?);
    (FIRST < layer && layer < END).then_some(layer)
}

/// Whether an entry whose key has this length is a link or the counter.
pub(super) fn is_no_record(key_len: usize) -> bool {
    key_len == LINK || key_len == HEAD
}

fn head(layer: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..MAGIC.len()].copy_from_slice(&MAGIC);
    head[MAGIC.len()..].copy_from_slice(&layer.to_be_bytes()[2..]);
    head
}

pub(super) fn record(layer: u64, chunk: &[u8]) -> Vec<u8> {
    [&head(layer), chunk].concat()
}

pub(super) fn link(layer: u64, chunk: &[u8]) -> Vec<u8> {
    [&head(layer), chunk, &[0]].concat()
}

/// Returns the chunks of a key that have links, and the chunk that has a record.
pub(super) fn chunks(key: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut chunks: Vec<_> = key.chunks(CHUNK).collect();
    let last = chunks.pop().unwrap_or_default();
    (chunks, last)
}

#[cold]
pub(super) fn malformed(pool: &Pool, what: &str, layer: u64) -> StoreError {
    StoreError::Corrupted {
        what: what.to_owned(),
        location: format!(
            "{}, layer {layer} of the keys longer than {SHORT_KEY_MAX} bytes",
            pool.file.name()
        ),
    }
}

/// The long keys of a tree, shared by its handles.
#[derive(Debug)]
pub(crate) struct LongKeys {
    pool: Arc<Pool>,
    /// The roots of the store's trees.
    trees: Arc<RwLock<BTreeMap<u32, PageId>>>,
    /// The number of the table's own tree.
    id: u32,
    /// Unset until the first long key is written.
    layers: OnceLock<Layers>,
}

impl LongKeys {
    /// The long keys of a tree, whose layers may be among the store's trees.
    pub(crate) fn new(pool: Arc<Pool>, trees: Arc<RwLock<BTreeMap<u32, PageId>>>, id: u32) -> Self {
        let layers = OnceLock::new();
        if let Some(&root) = trees.read().get(&(id | LAYERS)) {
            layers.get_or_init(|| Layers::new(pool.clone(), id, root));
        }
        Self {
            pool,
            trees,
            id,
            layers,
        }
    }

    /// Returns the layers; `None` if the tree has never held a long key.
    #[inline]
    pub(crate) fn get(&self) -> Option<&Layers> {
        self.layers.get()
    }

    /// Returns the layers, creating them if needed. A modifying call.
    pub(crate) fn make(&self) -> Result<&Layers, StoreError> {
        if let Some(layers) = self.layers.get() {
            return Ok(layers);
        }
        let mut trees = self.trees.write();
        let root = match trees.get(&(self.id | LAYERS)) {
            Some(&root) => root,
            None => {
                let page = self.pool.allocate()?;
                Node(page.page()).init_leaf();
                trees.insert(self.id | LAYERS, page.id);
                page.id
            }
        };
        drop(trees);
        let layers = || Layers::new(self.pool.clone(), self.id, root);
        Ok(self.layers.get_or_init(layers))
    }
}

/// The tree of layers of a table, and the long keys that cannot be read although their layers can.
#[derive(Debug)]
pub(crate) struct Layers(pub(super) Tree, pub(super) LostKeys);

impl Layers {
    fn new(pool: Arc<Pool>, id: u32, root: PageId) -> Self {
        Self(Tree::of_layers(pool, id, root), LostKeys::default())
    }

    /// The layer that a chunk leads to.
    pub(super) fn follow(&self, layer: u64, chunk: &[u8]) -> Result<Option<u64>, StoreError> {
        let Some(found) = self.0.get(&link(layer, chunk), |_| true)? else {
            return Ok(None);
        };
        let next = found.value.as_deref().and_then(layer_in);
        let next = next.ok_or_else(|| malformed(&self.0.pool, "invalid link to a layer", layer))?;
        Ok(Some(next))
    }

    /// Returns the layers on the way to a key, as far as links exist: the first one, and one for
    /// each link.
    fn way(&self, links: &[&[u8]]) -> Result<Vec<u64>, StoreError> {
        let mut way = vec![FIRST];
        for chunk in links {
            match self.follow(way[way.len() - 1], chunk)? {
                Some(layer) => way.push(layer),
                None => break,
            }
        }
        Ok(way)
    }

    /// Reads a key, as [`Tree::read`] does. A key that is not found was missing at some moment of
    /// the call: a layer on its way may have become empty and been removed since, but then the key
    /// was missing when that happened.
    fn read<T>(
        &self,
        key: &[u8],
        want_value: &dyn Fn(RecordMeta) -> bool,
        take: &mut dyn FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        let (links, last) = chunks(key);
        let way = self.way(&links)?;
        match way.get(links.len()) {
            Some(&layer) => self.0.read(&record(layer, last), want_value, take),
            None => Ok(None),
        }
    }

    /// Inserts a record and the missing layers. Works from the last layer up, so that a failure
    /// leaves only unreachable entries.
    fn insert(&self, key: &[u8], mut way: Vec<u64>, change: Change<'_>) -> Result<(), StoreError> {
        if matches!(change, Change::Keep | Change::Remove) {
            return Ok(());
        }
        let (links, last) = chunks(key);
        let known = way.len();
        let missing = (links.len() + 1 - known) as u64;
        if missing > 0 {
            let first = self.take_numbers(missing)?;
            way.extend(first..first + missing);
        }
        self.0
            .modify(&record(way[links.len()], last), |_| (change, ()))?;
        for depth in (known..=links.len()).rev() {
            let value = &way[depth].to_le_bytes();
            let put = Change::Put { version: 0, value };
            self.0
                .modify(&link(way[depth - 1], links[depth - 1]), |_| (put, ()))?;
        }
        Ok(())
    }

    /// Adds the record of a missing key. The caller has exclusive access to the whole tree.
    pub(crate) fn append(&self, key: &[u8], version: u64, value: &[u8]) -> Result<(), StoreError> {
        let way = self.way(&chunks(key).0)?;
        self.insert(key, way, Change::Put { version, value })
    }

    /// Assigns the numbers of `count` new layers.
    fn take_numbers(&self, count: u64) -> Result<u64, StoreError> {
        let mut next = [0; 8];
        let next = &mut next;
        let first = self.0.modify(&head(END), |old| {
            let first = match old {
                None => Ok(FIRST + 1),
                Some(old) => {
                    let mut value = Vec::new();
                    old.keep_value(&mut value).and_then(|_| {
                        layer_in(&value).ok_or_else(|| {
                            malformed(&self.0.pool, "invalid counter of layers", END)
                        })
                    })
                }
            };
            match first {
                Ok(first) => {
                    *next = (first + count).to_le_bytes();
                    (
                        Change::Put {
                            version: 0,
                            value: next,
                        },
                        Ok(first),
                    )
                }
                Err(error) => (Change::Keep, Err(error)),
            }
        })??;
        if first + count < END {
            Ok(first)
        } else {
            Err(malformed(&self.0.pool, "all layer numbers are in use", END))
        }
    }

    /// Removes the empty layers on a way, from the last one up.
    fn prune(&self, links: &[&[u8]], way: &[u64]) -> Result<(), StoreError> {
        for depth in (1..way.len()).rev() {
            if !self.is_empty(way[depth])? {
                return Ok(());
            }
            braid_rt::coverage_point("store: a layer that has become empty");
            let link = link(way[depth - 1], links[depth - 1]);
            self.0.modify(&link, |_| (Change::Remove, ()))?;
        }
        Ok(())
    }

    fn is_empty(&self, layer: u64) -> Result<bool, StoreError> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.each_entry(layer, all, Direction::Forward, 1, &mut |_, _| Ok(false))
    }

    /// Calls `each` with the entries of a layer in a range, until it returns false. Returns whether
    /// all calls returned true.
    fn each_entry(
        &self,
        layer: u64,
        range: Bounds<'_>,
        direction: Direction,
        batch: usize,
        each: &mut dyn FnMut(&LeafScan, usize) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let (lower, upper) = entries(layer, range);
        let (mut from, to) = match direction {
            Direction::Forward => (lower.map(Bytes::from), &upper),
            Direction::Reverse => (upper.map(Bytes::from), &lower),
        };
        let to = to.as_ref().map(|key| &key[..]);
        let mut position = None;
        loop {
            let start = from.as_ref().map(|key| &key[..]);
            let scan = self.0.scan_leaf(position, start, to, direction, batch)?;
            for i in 0..scan.len() {
                if !each(&scan, i)? {
                    return Ok(false);
                }
            }
            match scan.next {
                Some(next) => (from, position) = (next, scan.position),
                None => return Ok(true),
            }
        }
    }

    /// Returns the last layer that holds all keys of a range, and the range in it.
    pub(super) fn common_layer<'a>(
        &self,
        (mut lower, mut upper): Bounds<'a>,
    ) -> Result<(u64, Bounds<'a>), StoreError> {
        let mut layer = FIRST;
        while let (
            Bound::Included(first) | Bound::Excluded(first),
            Bound::Included(last) | Bound::Excluded(last),
        ) = (lower, upper)
            && first.len().min(last.len()) > CHUNK
            && first[..CHUNK] == last[..CHUNK]
            && let Some(next) = self.follow(layer, &first[..CHUNK])?
        {
            layer = next;
            (lower, upper) = (after(lower, &first[..CHUNK]), after(upper, &first[..CHUNK]));
        }
        Ok((layer, (lower, upper)))
    }

    /// Calls `each` with the long keys of a range, in order, and the place of their records, until
    /// it returns false. Returns whether all calls returned true.
    pub(super) fn each_key(
        &self,
        range: Bounds<'_>,
        direction: Direction,
        each: &mut dyn FnMut(&[u8], &LeafScan, usize) -> bool,
    ) -> Result<bool, StoreError> {
        self.each_below(FIRST, &mut Vec::new(), range, direction, each)
    }

    fn each_below(
        &self,
        layer: u64,
        before: &mut Vec<u8>,
        range: Bounds<'_>,
        direction: Direction,
        each: &mut dyn FnMut(&[u8], &LeafScan, usize) -> bool,
    ) -> Result<bool, StoreError> {
        if before.len() >= MAX_KEY_LEN {
            return Err(malformed(
                &self.0.pool,
                "links form a longer chain than a key can have",
                layer,
            ));
        }
        let start = before.len();
        self.each_entry(layer, range, direction, BATCH, &mut |scan, i| {
            let found = scan.record(i);
            let continues = match Entry::of(found.key) {
                Some(Entry::Record { chunk, .. }) => {
                    before.extend_from_slice(chunk);
                    Ok(each(before, scan, i))
                }
                Some(Entry::Link { chunk, .. }) => {
                    let next = layer_in(found.value);
                    let next = next
                        .ok_or_else(|| malformed(&self.0.pool, "invalid link to a layer", layer))?;
                    before.extend_from_slice(chunk);
                    let below = (after(range.0, chunk), after(range.1, chunk));
                    self.each_below(next, before, below, direction, each)
                }
                _ => Err(malformed(
                    &self.0.pool,
                    "an entry is not part of a key",
                    layer,
                )),
            };
            before.truncate(start);
            continues
        })
    }
}

/// Returns the part of a bound after a chunk, if the bound begins with the chunk and is longer.
fn after<'a>(bound: Bound<&'a [u8]>, chunk: &[u8]) -> Bound<&'a [u8]> {
    let rest = |key: &'a [u8]| key.strip_prefix(chunk).filter(|rest| !rest.is_empty());
    match bound {
        Bound::Included(key) => rest(key).map_or(Bound::Unbounded, Bound::Included),
        Bound::Excluded(key) => rest(key).map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// The bounds of a layer's entries, links included, that may hold keys of a range.
pub(super) fn entries(layer: u64, (lower, upper): Bounds<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let cut = |key: &[u8]| record(layer, &key[..key.len().min(CHUNK)]);
    let lower = match lower {
        Bound::Unbounded => Bound::Included(head(layer).to_vec()),
        Bound::Included(key) if key.len() <= CHUNK => Bound::Included(cut(key)),
        // The record that ends with the chunk is below the bound; the link after it leads to keys
        // on both sides.
        Bound::Included(key) | Bound::Excluded(key) => Bound::Excluded(cut(key)),
    };
    let upper = match upper {
        Bound::Unbounded => Bound::Excluded(head(layer + 1).to_vec()),
        Bound::Included(key) | Bound::Excluded(key) if key.len() > CHUNK => {
            Bound::Included(link(layer, &key[..CHUNK]))
        }
        Bound::Included(key) => Bound::Included(cut(key)),
        Bound::Excluded(key) => Bound::Excluded(cut(key)),
    };
    (lower, upper)
}

impl Tree {
    /// Returns the layers of long keys; `None` if the tree has never held a long key.
    #[inline]
    pub(super) fn layers(&self) -> Option<&Layers> {
        self.long.as_ref()?.get()
    }

    /// Reads a key that is longer than `SHORT_KEY_MAX`. Takes the closures by value: a reference
    /// would force the state of a short key's read into memory.
    #[cold]
    #[inline(never)]
    pub(super) fn read_long<T>(
        &self,
        key: &[u8],
        want_value: impl Fn(RecordMeta) -> bool,
        mut take: impl FnMut(ValueRef<'_>) -> T,
    ) -> Result<Option<Taken<T>>, StoreError> {
        match self.layers() {
            Some(layers) => {
                layers
                    .1
                    .check((Bound::Included(key), Bound::Included(key)))?;
                layers.read(key, &want_value, &mut take)
            }
            None => Ok(None),
        }
    }

    /// Acquires the latches for a change of a key longer than `SHORT_KEY_MAX`. Returns the leaf in
    /// which its record is or belongs, and the slot there. A tree of layers itself holds keys that
    /// are slightly longer.
    #[cold]
    #[inline(never)]
    pub(super) fn latch_long(&self, key: &[u8]) -> Result<LatchedLong<'_>, StoreError> {
        let (mut home, missing) = self.latch_leaf(key)?;
        let Some(long) = &self.long else {
            return Ok((home, missing, None));
        };
        if !Node(home.page()).is_between_fences(key) {
            return Err(super::astray(&self.pool, home.id));
        }
        // Before the change, so that no return path leaves readers with the old version.
        if !braid_rt::mutant!("keep_the_home_leafs_version") {
            home.outdate();
        }
        let (links, last) = chunks(key);
        let Some(layers) = long.get() else {
            let way = vec![FIRST];
            return Ok((home, missing, Some(Box::new(LongPath { home: None, way }))));
        };
        let way = layers.way(&links)?;
        let Some(&layer) = way.get(links.len()) else {
            return Ok((home, missing, Some(Box::new(LongPath { home: None, way }))));
        };
        let (leaf, slot) = layers.0.latch_leaf(&record(layer, last))?;
        let home = Some(home);
        Ok((leaf, slot, Some(Box::new(LongPath { home, way }))))
    }

    /// Carries out a change under the latches of [`Tree::latch_long`].
    #[cold]
    #[inline(never)]
    pub(super) fn apply_long<'a>(
        &'a self,
        leaf: WritePage<'a>,
        slot: Slot,
        key: &[u8],
        change: Change<'_>,
        kept: Option<&DetachedValue>,
        path: LongPath<'a>,
    ) -> Result<(), StoreError> {
        let LongPath { home, way } = path;
        let long = self.long.as_ref();
        let long =
            long.ok_or_else(|| malformed(&self.pool, "a part of a key is too long", FIRST))?;
        let Some(_home) = home else {
            // The leaf is the home leaf, and stays latched.
            return match change {
                Change::Keep | Change::Remove => Ok(()),
                change => long.make()?.insert(key, way, change),
            };
        };
        let (links, last) = chunks(key);
        let layers = long.make()?;
        let entry = record(way[links.len()], last);
        layers.0.apply(leaf, slot, &entry, change, kept)?;
        match change {
            Change::Remove if !braid_rt::mutant!("keep_empty_layers") => layers.prune(&links, &way),
            _ => Ok(()),
        }
    }
}

/// A leaf that is latched for the change of a key, the key's slot in it, and the path of a long
/// key.
pub(super) type LatchedLong<'a> = (WritePage<'a>, Slot, Option<Box<LongPath<'a>>>);

/// The path of a long key that is being changed.
#[derive(Debug)]
pub(super) struct LongPath<'a> {
    /// The home leaf; `None` if the home leaf itself is changed, because the key's layers are
    /// missing.
    home: Option<WritePage<'a>>,
    /// The layers on the way to the key, as far as links exist.
    way: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_apart() {
        let chunk = [7; CHUNK];
        for len in [1, 2, CHUNK] {
            let (layer, chunk) = (300, &chunk[..len]);
            let expected = Entry::Record { layer, chunk };
            assert_eq!(Entry::of(&record(layer, chunk)), Some(expected));
        }
        let expected = Entry::Link {
            layer: 5,
            chunk: &chunk,
        };
        assert_eq!(Entry::of(&link(5, &chunk)), Some(expected));
        assert_eq!(Entry::of(&head(END)), Some(Entry::Counter));
        let mut odd = link(5, &chunk);
        odd[LINK - 1] = 1;
        for key in [
            &b"key"[..],
            &MAGIC,
            &head(5),
            &odd,
            &record(5, &[7; CHUNK + 2]),
        ] {
            assert_eq!(Entry::of(key), None, "{} bytes", key.len());
        }
    }

    #[test]
    fn a_link_lies_between_its_chunk_and_the_next() {
        let (chunk, next) = ([7; CHUNK], [&[7; CHUNK - 1][..], &[8]].concat());
        assert!(record(1, &chunk) < link(1, &chunk));
        assert!(link(1, &chunk) < record(1, &next));
        assert!(link(1, &chunk) < record(1, &[8]));
        assert!(link(1, &[0xff; CHUNK]) < record(2, &[0]));
    }
}
