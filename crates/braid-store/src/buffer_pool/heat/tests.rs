use std::ops::Range;
use std::sync::Arc;

use braid_io::MemoryDevice;

use crate::{Change, Store, StoreOptions, Tree};

const KEYS: u32 = 4_000;
/// Keys that are in different leaves.
const APART: u32 = 20;

/// A store whose pages are a multiple of its pool of 64 frames, with at most five entries in a leaf.
fn filled() -> (Store, Tree) {
    let store = Store::create(
        Arc::new(MemoryDevice::new()),
        StoreOptions::of_pool(512 << 10),
    );
    let store = store.unwrap();
    let tree = store.tree(1).unwrap();
    let change = Change::Put {
        version: 1,
        value: &[7; 1_500],
    };
    for key in 0..KEYS {
        tree.modify(&key.to_be_bytes(), |_| (change, ())).unwrap();
    }
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| ()).unwrap();
    checkpoint.publish().unwrap();
    (store, tree)
}

/// Reads keys, and returns how many pages that has loaded.
fn loads(store: &Store, tree: &Tree, keys: impl Iterator<Item = u32>) -> u64 {
    let before = store.stats().page_loads;
    for key in keys {
        assert!(tree.get(&key.to_be_bytes(), |_| true).unwrap().is_some());
    }
    store.stats().page_loads - before
}

/// Some keys, each in a leaf of its own.
fn leaves(range: Range<u32>) -> impl Iterator<Item = u32> + Clone {
    range.map(|leaf| leaf * APART)
}

#[test]
fn a_scan_leaves_pages_in_memory_that_are_used_again() {
    let (store, tree) = filled();
    let hot = leaves(0..20);
    for round in 0..20 {
        loads(&store, &tree, hot.clone());
        loads(&store, &tree, leaves(100 + 4 * round..104 + 4 * round));
    }
    assert_eq!(loads(&store, &tree, hot.clone()), 0);
    // Between two uses of a page, the scan reads more pages than the pool has.
    let mut of_hot = 0;
    let mut scanned = 0;
    for keys in (1_000..KEYS).step_by(500) {
        scanned += loads(&store, &tree, keys..keys + 500);
        of_hot += loads(&store, &tree, hot.clone());
    }
    assert!(scanned >= 6 * 64, "{scanned}");
    assert!(of_hot <= 2, "{of_hot} of the pages were evicted");
}

#[test]
fn pages_that_are_used_now_replace_pages_that_were_used_before() {
    let (store, tree) = filled();
    let (before, now) = (leaves(0..40), leaves(50..90));
    for round in 0..20 {
        loads(&store, &tree, before.clone());
        loads(&store, &tree, leaves(100 + 4 * round..104 + 4 * round));
    }
    assert_eq!(loads(&store, &tree, before.clone()), 0);
    let rounds: Vec<_> = (0..20).map(|_| loads(&store, &tree, now.clone())).collect();
    assert_eq!(rounds[19], 0, "{rounds:?}");
    // They need more frames than cold pages have.
    assert!(rounds[0] > 30, "{rounds:?}");
}

#[test]
fn some_frames_are_left_to_cold_pages() {
    let (store, tree) = filled();
    let pool = &store.inner.pool;
    // Each page is loaded again soon after it was evicted.
    for _ in 0..20 {
        loads(&store, &tree, leaves(0..80));
    }
    let hot = pool.hot.count.load(std::sync::atomic::Ordering::Relaxed);
    let all = pool.info.iter();
    let counted = all
        .filter(|info| info.heat.get() == super::Heat::Hot)
        .count();
    assert_eq!(hot, counted);
    assert!((20..=57).contains(&hot), "{hot}");
}
