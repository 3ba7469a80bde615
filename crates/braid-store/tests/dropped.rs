//! Trees that are freed in steps, with a checkpoint and a crash between any two of them.

use std::sync::Arc;

use braid_io::SimDevice;
use braid_store::{Change, Store, StoreOptions, Tree};

const SMALL_POOL: StoreOptions = StoreOptions::of_pool(1 << 20);

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

fn put(tree: &Tree, key: u32, value: &[u8]) {
    let change = Change::Put { version: 1, value };
    tree.modify(&key.to_be_bytes(), |_| (change, ())).unwrap();
}

/// A store whose tree 1 has a few records, and whose tree 2 is larger than the pool, with large
/// values and long keys.
fn with_two_trees(device: &SimDevice) -> Store {
    let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
    let (small, large) = (store.tree(1).unwrap(), store.tree(2).unwrap());
    (0..100).for_each(|key| put(&small, key, b"small"));
    checkpoint(&store);
    for key in 0..20_000 {
        put(&large, key, &[7; 80]);
        if key % 1_000 == 0 {
            put(&large, key, &[8; 40_000]);
        }
    }
    let long = [9; 5_000];
    let change = Change::Put {
        version: 1,
        value: b"long",
    };
    store.expect_long_keys();
    large.modify(&long, |_| (change, ())).unwrap();
    checkpoint(&store);
    store
}

/// The pages that a store uses after two checkpoints, which free what the tree before occupied.
fn used(store: &Store) -> u64 {
    checkpoint(store);
    checkpoint(store);
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert!(found.is_empty(), "{found:?}");
    let small = store.tree(1).unwrap();
    for key in 0..100u32 {
        let value = small.get(&key.to_be_bytes(), |_| true).unwrap();
        assert_eq!(value.unwrap().value.unwrap(), &b"small"[..]);
    }
    let stats = store.stats();
    assert_eq!(store.tree_ids(), [1]);
    (stats.file_bytes - stats.file_free_bytes) / stats.page_size as u64
}

#[test]
fn a_tree_freed_in_steps_leaves_nothing() {
    let device = SimDevice::new(1);
    let store = with_two_trees(&device);
    store.drop_tree(2).unwrap();
    let expected = used(&store);
    assert!(expected < 20, "{expected} blocks for a tree of one leaf");

    for (checkpoint_after, crash_after) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
        let device = SimDevice::new(2);
        let store = with_two_trees(&device);
        let mut crashed = None;
        let mut after = |step| {
            if step == checkpoint_after {
                checkpoint(&store);
            }
            if step == crash_after {
                crashed = Some(device.after_crash());
            }
        };
        after(0);
        let dropped = store.find_dropped(2, &|| true).unwrap().unwrap();
        after(1);
        store.detach_dropped(&dropped);
        assert_eq!(store.tree_ids(), [1]);
        after(2);
        store.free_dropped(dropped).unwrap();
        after(3);
        let what = format!("a checkpoint after step {checkpoint_after}, {crash_after}");
        assert_eq!(used(&store), expected, "{what}");

        let device = crashed.unwrap();
        let (store, _) = Store::open(Arc::new(device), SMALL_POOL).unwrap();
        // A checkpoint has the whole tree or nothing of it.
        store.drop_tree(2).unwrap();
        assert_eq!(used(&store), expected, "{what}, after a crash");
    }
}

#[test]
fn a_search_for_pages_that_is_ended_changes_nothing() {
    let device = SimDevice::new(3);
    let store = with_two_trees(&device);
    let nodes = std::cell::Cell::new(0);
    let goes_on = || {
        nodes.set(nodes.get() + 1);
        nodes.get() < 50
    };
    assert!(store.find_dropped(2, &goes_on).unwrap().is_none());
    assert_eq!(nodes.get(), 50);
    assert_eq!(store.tree_ids(), [1, 2]);
    let large = store.tree(2).unwrap();
    assert!(large.get(&0u32.to_be_bytes(), |_| true).unwrap().is_some());
}
