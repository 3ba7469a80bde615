//! Tests of checkpoints.

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use braid_io::{File, Layer, LayeredDevice, SimDevice};

use super::*;
use crate::{Change, Store, StoreOptions, Tree, WriterRoom};

/// Enough keys for several leaves of the page map.
const KEYS: u32 = 3_000;

fn put(tree: &Tree, keys: Range<u32>, len: usize) {
    let value = &vec![7; len][..];
    let change = Change::Put { version: 1, value };
    for key in keys {
        tree.modify(&key.to_be_bytes(), |_| (change, ())).unwrap();
    }
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| ()).unwrap();
    checkpoint.publish().unwrap();
}

fn filled(device: &SimDevice, pool_bytes: usize) -> Store {
    let options = StoreOptions::of_pool(pool_bytes);
    let store = Store::create(Arc::new(device.clone()), options).unwrap();
    put(&store.tree(1).unwrap(), 0..KEYS, 3_000);
    checkpoint(&store);
    store
}

/// Removes the large value of the key 0, which the caller then owns.
fn remove_large_value(tree: &Tree) -> crate::DetachedValue {
    let mut removed = None;
    tree.modify(&0u32.to_be_bytes(), |old| {
        removed = old.and_then(|old| old.keep_value(&mut Vec::new()).ok()?);
        (Change::Remove, ())
    })
    .unwrap();
    removed.expect("a large value")
}

/// Reads more than a small pool holds, which evicts all other pages.
fn evict_by_reading(store: &Store) {
    let tree = store.tree(1).unwrap();
    for key in 0..KEYS {
        tree.get(&key.to_be_bytes(), |_| true).unwrap();
    }
}

#[test]
fn a_map_or_root_that_cannot_be_written_leaves_no_blocks() {
    let device = SimDevice::new(1);
    let store = filled(&device, 32 << 20);
    let mut failed = 0;
    for n in 0..10 {
        put(&store.tree(1).unwrap(), 0..KEYS, 3_000);
        let mut open = store.begin_checkpoint(Vec::new()).unwrap();
        open.write(&|_| ()).unwrap();
        device.fail_write_after(n);
        failed += u64::from(open.publish().is_err());
        device.repair();
        if store.inner.is_poisoned() {
            break;
        }
        checkpoint(&store);
        let mut found = Vec::new();
        store.verify(&mut |damage| found.push(damage.what)).unwrap();
        assert_eq!(found, [""; 0], "after {n} writes");
    }
    // Some leaves, the root, and the superblock.
    assert!(failed >= 4 && store.inner.is_poisoned(), "{failed}");
}

/// A file with much free space moves pages to its beginning, but not those that it writes anyway.
#[test]
fn a_page_is_written_once() {
    let store = filled(&SimDevice::new(2), 32 << 20);
    let mut freed = 0;
    for _ in 0..4 {
        put(&store.tree(1).unwrap(), 0..KEYS, 3_000);
        let before = store.stats();
        let mut open = store.begin_checkpoint(Vec::new()).unwrap();
        open.write(&|_| ()).unwrap();
        let report = open.publish().unwrap();
        let written = store.stats().blocks_written - before.blocks_written;
        // The map, the root and the large values.
        let rest = written - report.pages_written;
        assert!(
            rest <= report.map_blocks_written + 1,
            "{written}, {report:?}"
        );
        freed = freed.max(before.file_free_bytes);
    }
    assert!(freed > store.stats().file_bytes / 3);
}

#[test]
fn the_map_and_the_root_take_no_room_from_writers() {
    let store = filled(&SimDevice::new(2), 32 << 20);
    put(&store.tree(1).unwrap(), 0..KEYS, 3_000);
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    open.write(&|_| ()).unwrap();
    let room = &store.inner.pool.file.room;
    let (before, mut during) = (room.surplus(), None);
    open.publish_keeping(|_| {
        during = Some(room.surplus());
        false
    })
    .unwrap();
    assert_eq!(during, Some(before));
}

#[test]
fn the_leaves_of_the_map_with_changed_pages_are_written() {
    let device = SimDevice::new(5);
    let store = filled(&device, 32 << 20);
    let tree = store.tree(1).unwrap();
    put(&tree, 0..1, 3_000);
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    open.write(&|_| ()).unwrap();
    let written = open.publish().unwrap().map_blocks_written;
    let leaves = store.inner.root.lock().leaf_addresses.len();
    assert!(written < leaves as u64, "{written} of {leaves}");
    // All pages change, also those at the ends of the leaves.
    put(&tree, 0..KEYS, 2_900);
    checkpoint(&store);
    let options = StoreOptions::of_pool(32 << 20);
    let image = Arc::new(device.after_crash());
    let (opened, _) = Store::open(image, options).unwrap();
    let report = opened.verify(&mut |damage| panic!("{}", damage.what));
    assert_eq!(report.unwrap().records, u64::from(KEYS));
}

/// Pages need more memory than their words only while they differ from the newest checkpoint.
#[test]
fn a_checkpoint_leaves_no_changed_pages() {
    let store = filled(&SimDevice::new(7), 512 << 10);
    let (tree, pool) = (store.tree(1).unwrap(), &store.inner.pool);
    let changed = || {
        let mut changed = 0;
        let ids = 0..pool.page_ids();
        pool.file.addresses.for_changed(ids, |_, _| changed += 1);
        changed
    };
    let other = store.tree(2).unwrap();
    put(&other, 0..1, 100_000);
    checkpoint(&store);
    assert_eq!(changed(), 0);
    // Evictions write changed pages.
    put(&tree, 0..KEYS / 4, 2_000);
    for key in KEYS / 4..KEYS / 2 {
        tree.modify(&key.to_be_bytes(), |_| (Change::Remove, ()))
            .unwrap();
    }
    let replaced = remove_large_value(&other);
    assert!(changed() > 100);
    checkpoint(&store);
    assert_eq!(changed(), 0, "also detached pages");
    store.free_detached(replaced);
    assert_eq!(changed(), 0);
}

#[test]
fn a_file_does_not_shrink_at_the_expense_of_promised_room() {
    for is_promised in [false, true] {
        let device = SimDevice::new(3);
        let store = filled(&device, 32 << 20);
        let tree = store.tree(1).unwrap();
        for key in 0..KEYS / 2 {
            tree.modify(&key.to_be_bytes(), |_| (Change::Remove, ()))
                .unwrap();
        }
        checkpoint(&store);
        checkpoint(&store);
        device.set_capacity(Some(device.used()));
        if is_promised {
            store.inner.pool.file.room.take_down_to(0);
        }
        let mut open = store.begin_checkpoint(Vec::new()).unwrap();
        open.shrink();
        open.write(&|_| ()).unwrap();
        assert_eq!(open.pages_written == 0, is_promised);
        open.publish().unwrap();
    }
}

/// Beyond some copies, each writer writes its image itself.
#[test]
fn copies_do_not_wait_for_the_end_of_the_moves() {
    let store = filled(&SimDevice::new(8), 32 << 20);
    for key in 0..KEYS / 2 {
        let tree = store.tree(1).unwrap();
        tree.modify(&key.to_be_bytes(), |_| (Change::Remove, ()))
            .unwrap();
    }
    checkpoint(&store);
    let other = store.tree(2).unwrap();
    // In many leaves.
    let keys = 8 * KEYS;
    put(&other, 0..keys, 500);
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    open.shrink();
    let (before, moves) = (store.stats().checkpoint_copies, Cell::new(0));
    open.write(&|progress| {
        if progress.pages_written > 0 {
            return;
        }
        assert!(!store.has_many_copies(), "after {} moves", moves.get());
        // Less than a step of a writer that commits all the time.
        let from = 250 * moves.get();
        put(&other, from..from + 250, 500);
        moves.set(moves.get() + 1);
    })
    .unwrap();
    open.publish().unwrap();
    let copies = store.stats().checkpoint_copies - before;
    assert!(
        copies > 200 && moves.get() < keys / 250,
        "{copies} {moves:?}"
    );
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert_eq!(found, [""; 0]);
}

/// Otherwise, a file with pages that transactions change all the time would never shrink.
#[test]
fn pages_that_changed_since_the_epoch_switch_move_too() {
    let store = filled(&SimDevice::new(9), 32 << 20);
    let hot = store.tree(2).unwrap();
    let change_all = || put(&hot, 0..2_000, 500);
    change_all();
    checkpoint(&store);
    // In front of the hot pages.
    for key in 0..KEYS {
        let tree = store.tree(1).unwrap();
        tree.modify(&key.to_be_bytes(), |_| (Change::Remove, ()))
            .unwrap();
    }
    checkpoint(&store);
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    open.shrink();
    change_all();
    open.write(&|_| ()).unwrap();
    open.publish().unwrap();
    let pages = store.inner.pool.dirty_before(u64::MAX).count() as u64;
    let stats = store.stats();
    // Each may have an image of the checkpoint, and the next one.
    assert!(
        stats.file_free_bytes / PAGE_SIZE as u64 <= 2 * pages,
        "{pages} pages, {stats:?}"
    );
    change_all();
    checkpoint(&store);
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert_eq!(found, [""; 0]);
}

/// Their blocks may lie at the end of the file.
#[test]
fn the_former_blocks_of_pages_that_change_are_free_after_a_checkpoint() {
    let store = filled(&SimDevice::new(11), 32 << 20);
    let hot = store.tree(2).unwrap();
    let change_all = || put(&hot, 0..2_000, 500);
    change_all();
    checkpoint(&store);
    change_all();
    let used = || {
        let space = store.inner.pool.file.space.lock();
        space.end() - space.free_blocks()
    };
    let before = used();
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    // Some are copied, and some are captured before they change.
    put(&hot, 0..1_000, 500);
    open.write(&|_| ()).unwrap();
    change_all();
    open.publish().unwrap();
    assert_eq!(used(), before);
    change_all();
    checkpoint(&store);
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert_eq!(found, [""; 0]);
}

/// A full pool writes such pages, perhaps to the end of the file.
#[test]
fn the_block_of_a_page_that_was_evicted_and_changed_again_is_free_after_a_checkpoint() {
    let store = filled(&SimDevice::new(12), 512 << 10);
    let (tree, pool) = (store.tree(2).unwrap(), &store.inner.pool);
    put(&tree, 0..1, 1_000);
    checkpoint(&store);
    put(&tree, 0..1, 1_001);
    evict_by_reading(&store);
    put(&tree, 0..1, 1_002);
    let id = store.inner.trees.read()[&2];
    let evicted = pool.address(id);
    assert_ne!(pool.file.durable_address(id), evicted);
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    put(&tree, 0..1, 1_003);
    open.write(&|_| ()).unwrap();
    open.publish().unwrap();
    assert_eq!(pool.address(id), pool.file.durable_address(id));
    assert!(pool.file.space.lock().is_free(block_of(evicted)));
    evict_by_reading(&store);
    checkpoint(&store);
    let found = tree.get(&0u32.to_be_bytes(), |_| true).unwrap().unwrap();
    assert_eq!(found.value.unwrap()[..], [7; 1_003]);
}

/// Checks a condition whenever a file is shortened.
#[derive(Clone)]
struct WhenCut(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for WhenCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WhenCut")
    }
}

impl Layer for WhenCut {
    fn set_len(&self, file: &dyn File, len: u64) -> std::io::Result<()> {
        (self.0)();
        file.set_len(len)
    }
}

/// A writer that is not admitted extends the file, and waits for a piece to be cut off before that.
#[test]
fn commits_wait_neither_for_a_cut_nor_for_the_file_to_grow_again() {
    const SIZE: (usize, usize) = (1, 600);
    let (opened, cuts) = (Arc::new(OnceLock::new()), Arc::new(AtomicU64::new(0)));
    let when_cut = {
        let (opened, cuts) = (opened.clone(), cuts.clone());
        move || {
            let Some((store, room)): Option<&(Store, WriterRoom)> = opened.get() else {
                return;
            };
            cuts.fetch_add(1, Ordering::Relaxed);
            assert!(store.admits(room, SIZE), "{cuts:?} cuts");
        }
    };
    let device = LayeredDevice::over(Arc::new(SimDevice::new(10)), WhenCut(Arc::new(when_cut)));
    let store = Store::create(Arc::new(device), StoreOptions::of_pool(32 << 20)).unwrap();
    let hot = store.tree(2).unwrap();
    let change_all = || put(&hot, 0..2_000, 500);
    change_all();
    // At the end of the file.
    put(&store.tree(1).unwrap(), 0..2 * KEYS, 3_000);
    checkpoint(&store);
    let mut room = WriterRoom::default();
    store.admit(&mut room, SIZE, || false).unwrap();
    assert!(opened.set((store, room)).is_ok());
    let (store, room) = opened.get().unwrap();
    let tree = store.tree(1).unwrap();
    for key in 0..2 * KEYS {
        tree.modify(&key.to_be_bytes(), |_| (Change::Remove, ()))
            .unwrap();
    }
    for _ in 0..3 {
        change_all();
        checkpoint(store);
    }
    assert!(cuts.load(Ordering::Relaxed) > 1, "piece by piece");
    change_all();
    assert!(store.admits(room, SIZE));
}

#[test]
fn pages_that_only_a_checkpoint_needed_are_free_after_it() {
    for publishes in [false, true] {
        let store = filled(&SimDevice::new(4), 512 << 10);
        let (tree, pool) = (store.tree(2).unwrap(), &store.inner.pool);
        put(&tree, 0..1, 100_000);
        let mut open = store.begin_checkpoint(Vec::new()).unwrap();
        let replaced = remove_large_value(&tree);
        let pages = replaced.pages().to_vec();
        store.free_detached(replaced);
        assert!(pages.iter().any(|&id| pool.address(id) != ABSENT));
        if publishes {
            // Their images are written.
            evict_by_reading(&store);
            open.write(&|_| ()).unwrap();
            open.publish().unwrap();
        } else {
            drop(open);
        }
        assert!(pages.iter().all(|&id| pool.address(id) == ABSENT));
    }
}

/// A large value is replaced after the epoch switch, and freed between two steps of the
/// publication.
#[test]
fn a_block_of_the_new_superblock_is_kept_until_its_entry_is_switched() {
    let store = filled(&SimDevice::new(6), 512 << 10);
    let (tree, pool) = (store.tree(2).unwrap(), &store.inner.pool);
    put(&tree, 0..1, 100_000);
    evict_by_reading(&store);
    let mut open = store.begin_checkpoint(Vec::new()).unwrap();
    let replaced = remove_large_value(&tree);
    open.write(&|_| ()).unwrap();
    let old = store.inner.root.lock().clone();
    let changes = open.map_changes(&old);
    for &id in replaced.pages() {
        assert_eq!(changes.address(id), Some(pool.address(id)));
    }
    while !open.free_superseded(&changes, &mut pool.checkpoint.lock()) {}
    let free = || pool.file.space.lock().free_blocks();
    let before = free();
    let pages = replaced.pages().len() as u64;
    store.free_detached(replaced);
    assert_eq!(free(), before);
    open.switch_entries(&changes);
    assert_eq!(free(), before, "the new superblock refers to them");
    drop(open.close(&changes));
    open.closed = true;
    drop(open);
    checkpoint(&store);
    assert!(free() >= before + pages);
}

/// The page's block belongs to no durable state: the page was evicted since the checkpoint before,
/// and changed again. Then the page is detached from the open checkpoint, which still writes its
/// image.
#[test]
fn a_block_that_an_open_checkpoint_keeps_is_freed_once() {
    for publishes in [true, false] {
        let store = filled(&SimDevice::new(6), 512 << 10);
        let (tree, pool) = (store.tree(2).unwrap(), &store.inner.pool);
        put(&tree, 0..1, 1000);
        checkpoint(&store);
        let id = store.inner.trees.read()[&2];
        put(&tree, 0..1, 1001);
        evict_by_reading(&store);
        put(&tree, 0..1, 1002);
        let block = pool.address(id);
        assert_ne!(pool.file.durable_address(id), block);
        let is_free = || pool.file.space.lock().is_free(block_of(block));
        let mut open = store.begin_checkpoint(Vec::new()).unwrap();
        let dropped = store.find_dropped(2, &|| true).unwrap().unwrap();
        store.detach_dropped(&dropped);
        open.write(&|_| ()).unwrap();
        assert_ne!(pool.address(id), block);
        assert!(!is_free(), "the checkpoint keeps it");
        store.free_dropped(dropped).unwrap();
        if publishes {
            open.publish().unwrap();
        } else {
            drop(open);
        }
        assert!(is_free());
        checkpoint(&store);
    }
}
