//! Room in the data file that is reserved before it is needed, so that a logged transaction never
//! lacks it.
//!
//! Evicting a dirty page needs a block to write it to, and so does every page at a checkpoint. The
//! *surplus* is the number of the file's free blocks, less the promised ones:
//!
//! | promised | blocks |
//! |---|---|
//! | each dirty page, and each image that waits for the open checkpoint | 1 |
//! | the page map and the root of the next checkpoint | one per 512 pages, and the root's |
//! | removals and their purges | [`REMOVALS`], and [`LONG_REMOVALS`] once there are long keys |
//! | each writer that commits | what its largest transaction can need, see [`need`] |
//!
//! Before a transaction is assigned its number, it checks whether the surplus is negative, which is
//! one load. If so, or if the transaction is larger than earlier ones, the store extends the file;
//! if the medium refuses, the store returns an error
//! ([`StoreError::OutOfSpace`](crate::StoreError::OutOfSpace)). File systems may take many
//! milliseconds for that, so a transaction that finds the surplus *low* requests that a background
//! thread extends the file ahead ([`ahead`](super::ahead)). Admitted transactions take at most
//! their writers' promises. So eviction, and with it every read, finds a block, and a checkpoint
//! can always be written, which frees the blocks of the previous one.
//!
//! A medium that needs new space to overwrite a block (a copy-on-write file system, thin
//! provisioning) does not keep the promise. On such a medium, the write itself fails.

use braid_rt::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::{MAX_KEY_LEN, SHORT_KEY_MAX};

/// Blocks that only removing transactions and purges may use, so that a full database can free
/// space.
const REMOVALS: i64 = 16;

/// Further such blocks once there are long keys, so that there is room for a purge of the longest
/// key.
const LONG_REMOVALS: i64 = 32;

/// Blocks that a purge needs for each record and each link: it changes a leaf, and merges the leaf
/// with a neighbour.
const PER_PURGE: i64 = 4;

const _: () = assert!(
    (layer_entries(MAX_KEY_LEN) as u64).cast_signed() * PER_PURGE <= REMOVALS + LONG_REMOVALS
);

/// Pages for each block that is promised for the page map.
const PAGES_PER_BLOCK: u64 = 512;

/// Blocks that a writer keeps from one transaction to the next.
const KEPT_MAX: u64 = 64;

/// Entries that a write of a key adds to the layers: a record or link for each kilobyte of a long
/// key, none for a short one.
#[inline]
pub const fn layer_entries(key_len: usize) -> usize {
    if key_len > SHORT_KEY_MAX {
        key_len.div_ceil(SHORT_KEY_MAX)
    } else {
        0
    }
}

/// Blocks that a transaction needs at most: each write changes a leaf and makes one, values fill
/// pages, and a part of the inner nodes splits. It does not change more leaves than there are, nor
/// make more from them.
///
/// Entries of layers count as writes. The write of a long key itself then counts for its home leaf
/// and for the leaf with the counter of layers.
pub(crate) fn need(writes: usize, bytes: usize, pages: u64) -> u64 {
    (2 * writes as u64).min(2 * pages) + fixed_need(bytes)
}

/// See [`need`]; for any number of pages.
#[inline]
fn need_at_most(writes: usize, bytes: usize) -> u64 {
    2 * writes as u64 + fixed_need(bytes)
}

#[inline]
fn fixed_need(bytes: usize) -> u64 {
    8 + bytes as u64 / 2048
}

/// Blocks promised to a writer that commits one transaction after the other. Must be returned with
/// [`Store::release_room`](crate::Store::release_room).
#[derive(Debug, Default)]
pub struct WriterRoom {
    blocks: u64,
}

/// The number of blocks that stands for a divided promise: as a signed number less than any need,
/// as an unsigned one more than any writer keeps.
const DIVIDED: u64 = u64::MAX;

impl WriterRoom {
    /// Returns a promise that stands for those of several stores, which the caller keeps elsewhere.
    /// It suffices for no transaction and is always large, so that a writer of a single store finds
    /// out with the comparisons that it makes anyway.
    pub fn divided() -> Self {
        Self { blocks: DIVIDED }
    }

    /// Whether the promise stands for those of several stores.
    pub fn is_divided(&self) -> bool {
        self.blocks == DIVIDED
    }

    /// Whether the promise suffices for a transaction.
    #[inline]
    pub(crate) fn suffices(&self, writes: usize, bytes: usize) -> bool {
        need_at_most(writes, bytes).cast_signed() <= self.blocks.cast_signed()
    }

    /// Whether there is more than a writer keeps; see [`Store::trim_room`](crate::Store::trim_room).
    #[inline]
    pub fn is_large(&self) -> bool {
        self.blocks > KEPT_MAX
    }

    /// The number of blocks missing for a transaction that needs `need` blocks.
    pub(crate) fn missing(&self, need: u64) -> u64 {
        need.saturating_sub(self.blocks)
    }

    pub(crate) fn add(&mut self, blocks: u64) {
        self.blocks += blocks;
    }

    /// Reduces the promise to `to` blocks. Returns the number of blocks released.
    pub(crate) fn reduce(&mut self, to: u64) -> u64 {
        let excess = self.blocks.saturating_sub(to);
        self.blocks -= excess;
        excess
    }

    pub(crate) fn reduce_to_kept(&mut self) -> u64 {
        self.reduce(KEPT_MAX)
    }
}

/// The accounting of room; see the module's documentation. On its own cache line, because every
/// commit reads it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Room {
    surplus: AtomicI64,
    /// The surplus below which a transaction requests that the file is extended; 0 if no thread
    /// extends it ahead.
    low: AtomicI64,
    /// Blocks promised for the root of the next checkpoint.
    root: AtomicI64,
    /// Whether [`LONG_REMOVALS`] are promised.
    has_long_keys: AtomicBool,
    /// Whether a transaction was refused since the newest checkpoint.
    refused: AtomicBool,
    /// Whether a transaction ever requested admission.
    has_writers: AtomicBool,
}

// Relaxed throughout: the surplus is a sum that orders nothing. A writer's promise is subtracted
// before the writer reads the surplus.
impl Room {
    /// Starts the accounting with the blocks of a file: the free ones, less those that the file is
    /// not known to have.
    pub(crate) fn begin(&self, blocks: i64) {
        self.surplus.store(blocks - REMOVALS, Ordering::Relaxed);
        self.root.store(0, Ordering::Relaxed);
    }

    /// Promises the blocks for removals of long keys, unless they are promised already.
    pub(crate) fn expect_long_keys(&self) {
        if !self.has_long_keys.swap(true, Ordering::Relaxed) {
            self.surplus.fetch_sub(LONG_REMOVALS, Ordering::Relaxed);
        }
    }

    /// Blocks that are promised to removals and purges.
    pub(crate) fn removals(&self) -> i64 {
        if self.has_long_keys.load(Ordering::Relaxed) {
            REMOVALS + LONG_REMOVALS
        } else {
            REMOVALS
        }
    }

    /// The least surplus for the purge of a key.
    pub(crate) fn for_purge(&self, key_len: usize) -> i64 {
        let entries = (layer_entries(key_len).max(1) as u64).cast_signed();
        PER_PURGE * entries - self.removals()
    }

    /// The surplus.
    #[inline]
    pub(crate) fn surplus(&self) -> i64 {
        self.surplus.load(Ordering::Relaxed)
    }

    /// The surplus below which a transaction does more than to compare.
    #[inline]
    pub(crate) fn low(&self) -> i64 {
        self.low.load(Ordering::Relaxed)
    }

    pub(crate) fn set_low(&self, low: i64) {
        self.low.store(low, Ordering::Relaxed);
    }

    /// Adds blocks that were freed, or are no longer needed.
    pub(crate) fn add(&self, blocks: u64) {
        self.surplus
            .fetch_add(blocks.cast_signed(), Ordering::Relaxed);
    }

    /// Subtracts blocks that are used or promised. Returns the surplus.
    pub(crate) fn take(&self, blocks: u64) -> i64 {
        let blocks = blocks.cast_signed();
        self.surplus.fetch_sub(blocks, Ordering::Relaxed) - blocks
    }

    /// Takes the surplus above a floor. Returns the number of blocks taken.
    pub(crate) fn take_down_to(&self, floor: i64) -> u64 {
        let before = self.surplus.fetch_min(floor, Ordering::Relaxed);
        u64::try_from(before - floor).unwrap_or(0)
    }

    /// The floor at which only blocks for dirty pages and writers are promised.
    pub(crate) fn lowest(&self, pages: u64) -> i64 {
        let map = (pages / PAGES_PER_BLOCK + 1).cast_signed();
        -(self.removals() + map + self.root.load(Ordering::Relaxed))
    }

    /// Promises blocks for the map of `pages` pages.
    pub(crate) fn take_for_map(&self, pages: u64) {
        self.take(pages / PAGES_PER_BLOCK + 1);
    }

    /// Counts one more page, which may make the map longer.
    pub(crate) fn page_added(&self, pages: u64) {
        if pages.is_multiple_of(PAGES_PER_BLOCK) {
            self.take(1);
        }
    }

    /// Promises blocks for the next root, given the number of blocks of the current one.
    pub(crate) fn set_root(&self, blocks: usize) {
        let now = (blocks as u64).cast_signed() + 2;
        let before = self.root.swap(now, Ordering::Relaxed);
        self.surplus.fetch_add(before - now, Ordering::Relaxed);
    }

    pub(crate) fn set_has_writers(&self) {
        self.has_writers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.has_writers.load(Ordering::Relaxed)
    }

    pub(crate) fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Ordering::Relaxed);
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Blocks taken for a checkpoint's page map and root. They are reserved for the next checkpoint as
/// well; until this one is published or abandoned, they count only once.
#[derive(Debug)]
pub(crate) struct BorrowedRoom<'a> {
    room: &'a Room,
    blocks: u64,
}

impl<'a> BorrowedRoom<'a> {
    pub(crate) fn new(room: &'a Room) -> Self {
        Self { room, blocks: 0 }
    }

    pub(crate) fn take(&mut self, blocks: u64) {
        self.room.add(blocks);
        self.blocks += blocks;
    }
}

impl Drop for BorrowedRoom<'_> {
    fn drop(&mut self) {
        self.room.take(self.blocks);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use braid_io::SimDevice;

    use super::*;
    use crate::{Change, DetachedValue, Store, StoreError, StoreOptions};

    const OPTIONS: StoreOptions = StoreOptions::of_pool(512 << 10);

    /// The expected surplus when no thread is active and no checkpoint is open.
    fn expected(store: &Store, promised: u64) -> i64 {
        let pool = &store.inner.pool;
        let (free, end) = {
            let space = pool.file.space.lock();
            (space.free_blocks(), space.end())
        };
        let map = pool.page_ids() / PAGES_PER_BLOCK + 1;
        let root = store.inner.root.lock().blob_blocks.len() as u64 + 2;
        let needed = pool.dirty_before(u64::MAX).count() as u64 + map + root + promised;
        let room = free + pool.file.extent.load(Ordering::Relaxed);
        room.cast_signed() - (end + needed).cast_signed() - pool.file.room.removals()
    }

    /// Changes or removes a record, and keeps a large value that it replaces.
    fn change(
        store: &Store,
        rng: &mut fastrand::Rng,
        kept: &mut Vec<DetachedValue>,
    ) -> Result<(), StoreError> {
        let tree = store.tree(1 + rng.u32(..2))?;
        let mut key = rng.u32(..4_000).to_be_bytes().to_vec();
        if rng.u32(..20) == 0 {
            // With its own layers, and with layers shared with other keys.
            let at = key.len() * rng.usize(..2);
            key.splice(at..at, [7; 3_000]);
            store.expect_long_keys();
        }
        let len = [10, 300, 20_000][rng.usize(..100).saturating_sub(97)];
        let (version, value) = (1, &vec![7; len][..]);
        let removes = rng.u32(..4) == 0;
        let mut replaced = None;
        tree.modify(&key, |old| {
            replaced = old.and_then(|old| old.keep_value(&mut Vec::new()).ok()?);
            let change = if removes {
                Change::Remove
            } else {
                Change::Put { version, value }
            };
            (change, ())
        })?;
        kept.extend(replaced);
        if rng.u32(..10) == 0 {
            kept.drain(..).for_each(|value| store.free_detached(value));
        }
        Ok(())
    }

    #[test]
    fn a_divided_promise_suffices_for_nothing_and_is_large() {
        let divided = WriterRoom::divided();
        assert!(divided.is_divided() && divided.is_large());
        assert!(!divided.suffices(0, 0) && !divided.suffices(1 << 40, 1 << 50));
        let own = WriterRoom { blocks: 8 };
        assert!(!own.is_divided() && !own.is_large());
        assert!(own.suffices(0, 0) && !own.suffices(1, 0));
    }

    /// The pages that one change takes out of the surplus, in a tree of short and long keys.
    #[test]
    fn a_change_takes_no_more_than_it_is_promised() {
        const LENGTHS: [usize; 8] = [4, 1_000, 1_024, 1_025, 2_048, 3_000, 5_000, MAX_KEY_LEN];
        let (mut most, mut most_of_purges) = (0, 0);
        for seed in 0..12 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let device = Arc::new(SimDevice::new(seed));
            let store = Store::create(device, OPTIONS).unwrap();
            store.expect_long_keys();
            let tree = store.tree(1).unwrap();
            let room = &store.inner.pool.file.room;
            // The number of changes between two checkpoints.
            let often = [10, 100, 1_000][rng.usize(..3)];
            let removals = rng.u32(1..12);
            let mut known: Vec<Vec<u8>> = Vec::new();
            for step in 0..3_000 {
                let mut key = vec![rng.u8(..3); LENGTHS[rng.usize(..LENGTHS.len())]];
                // The place where keys diverge, which determines the layers that they share.
                let at = rng.usize(..key.len() / 4);
                key[4 * at..][..2].copy_from_slice(&rng.u16(..400).to_be_bytes());
                let value = vec![7; [10, 300, 1_900, 20_000][rng.usize(..100).saturating_sub(96)]];
                let (before, pages) = (room.surplus(), store.inner.pool.page_ids());
                let removes = rng.u32(..16) < removals && !known.is_empty();
                let (change, promised) = if removes {
                    key = known.swap_remove(rng.usize(..known.len()));
                    let entries = layer_entries(key.len()).max(1) as u64;
                    (Change::Remove, PER_PURGE.unsigned_abs() * entries)
                } else {
                    let writes = 1 + layer_entries(key.len());
                    let version = 1;
                    let promised = need(writes, key.len() + value.len(), pages);
                    (
                        Change::Put {
                            version,
                            value: &value,
                        },
                        promised,
                    )
                };
                tree.modify(&key, |_| (change, ())).unwrap();
                let taken = u64::try_from(before - room.surplus()).unwrap_or(0);
                assert!(
                    taken <= promised,
                    "seed {seed}, {step}: {taken}, and {promised} promised for {} bytes, removal {removes}",
                    key.len()
                );
                if removes {
                    most_of_purges = taken.max(most_of_purges);
                } else {
                    most = taken.max(most);
                    known.push(key);
                }
                if rng.u32(..often) == 0 {
                    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
                    checkpoint.write(&|_| ()).unwrap();
                    checkpoint.publish().unwrap();
                }
            }
        }
        println!("at most {most} by a write, {most_of_purges} by a removal");
        assert!(most > 6 && most_of_purges > 4, "{most}, {most_of_purges}");
    }

    /// Every way a page becomes dirty, clean or free keeps the sum right, also if writes fail in
    /// the middle.
    #[test]
    fn the_surplus_is_the_rest() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let device = SimDevice::new(seed);
            device.set_block_size(if seed % 2 == 0 { 4096 } else { 64 });
            let mut store = Store::create(Arc::new(device.clone()), OPTIONS).unwrap();
            let mut writer = WriterRoom::default();
            let mut failed = 0;
            let mut kept = Vec::new();
            for _ in 0..60 {
                let mut checkpoint = None;
                for step in 0..rng.u32(1..400) {
                    if rng.u32(..100) == 0 {
                        let size = (rng.usize(..40), rng.usize(..9_000));
                        store.admit(&mut writer, size, || false).unwrap();
                        store.trim_room(&mut writer);
                    }
                    if step == 100 && rng.bool() {
                        checkpoint = Some(store.begin_checkpoint(Vec::new()).unwrap());
                    }
                    change(&store, &mut rng, &mut kept).unwrap();
                }
                let mut checkpoint = match checkpoint {
                    Some(open) => open,
                    None => store.begin_checkpoint(Vec::new()).unwrap(),
                };
                if rng.u32(..4) == 0 {
                    device.fail_write_after(rng.u64(1..10));
                }
                if rng.u32(..8) == 0 {
                    checkpoint.shrink();
                }
                let beside = RefCell::new((rng.fork(), &mut kept));
                let written = checkpoint.write(&|_| {
                    let (rng, kept) = &mut *beside.borrow_mut();
                    let _ = (0..20).try_for_each(|_| change(&store, rng, kept));
                });
                // A checkpoint that could not be written is abandoned.
                let published = written.and_then(|()| checkpoint.publish());
                failed += u32::from(published.is_err());
                device.repair();
                if store.inner.is_poisoned() {
                    break;
                }
                let promised = writer.blocks;
                assert_eq!(
                    store.inner.pool.file.room.surplus(),
                    expected(&store, promised),
                    "{seed}"
                );
                if rng.u32(..10) == 0 {
                    let mut last = store.begin_checkpoint(Vec::new()).unwrap();
                    last.write(&|_| ()).unwrap();
                    last.publish().unwrap();
                    kept.clear();
                    store = Store::open(Arc::new(device.clone()), OPTIONS).unwrap().0;
                    writer = WriterRoom::default();
                    assert_eq!(
                        store.inner.pool.file.room.surplus(),
                        expected(&store, 0),
                        "{seed}"
                    );
                }
            }
            println!("{seed}: {failed} checkpoints failed");
        }
    }
}
