//! Estimated sizes of ranges against the true ones.

use std::ops::Bound;
use std::sync::Arc;

use braid_io::MemoryDevice;
use braid_store::{Change, Estimate, PAGE_SIZE, Store, StoreOptions, Tree};

const POOL: StoreOptions = StoreOptions::of_pool(64 << 20);

fn tree(keys: impl IntoIterator<Item = u32>, value: impl Fn(u32) -> Vec<u8>) -> (Store, Tree) {
    let store = Store::create(Arc::new(MemoryDevice::new()), POOL).unwrap();
    let tree = store.tree(1).unwrap();
    for key in keys {
        let value = value(key);
        let put = Change::Put {
            version: 1,
            value: &value,
        };
        tree.modify(&key.to_be_bytes(), |_| (put, ())).unwrap();
    }
    (store, tree)
}

fn estimate(tree: &Tree, lower: Bound<u32>, upper: Bound<u32>) -> Estimate {
    let (lower, upper) = (lower.map(u32::to_be_bytes), upper.map(u32::to_be_bytes));
    let slice = |bound: &Bound<[u8; 4]>| bound.as_ref().map(|key| key.to_vec());
    let (lower, upper) = (slice(&lower), slice(&upper));
    let lower = lower.as_ref().map(|key| &key[..]);
    let upper = upper.as_ref().map(|key| &key[..]);
    tree.estimate(lower, upper).unwrap()
}

/// Ranges of all lengths in a tree of three levels, of records whose sizes differ by a factor of
/// ten.
#[test]
fn estimates_of_ranges_are_near_their_sizes() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut keys: Vec<u32> = (0..60_000).collect();
    rng.shuffle(&mut keys);
    let len = |key: u32| if key < 20_000 { 20 } else { 200 };
    let (_store, tree) = tree(keys, |key| vec![1; len(key)]);
    let mut worst = 0.0_f64;
    for _ in 0..500 {
        let from = rng.u32(..60_000);
        let to = from + rng.u32(..=(60_000 - from));
        let estimate = estimate(&tree, Bound::Included(from), Bound::Excluded(to));
        let truth = f64::from(to - from);
        let bytes: usize = (from..to).map(|key| 4 + len(key)).sum();
        // A leaf holds at most some three hundred of these.
        if truth > 600.0 {
            worst = worst.max((estimate.entries as f64 / truth - 1.0).abs());
            worst = worst.max((estimate.bytes as f64 / bytes as f64 - 1.0).abs());
        }
    }
    assert!(worst < 0.6, "off by {worst}");
    let all = estimate(&tree, Bound::Unbounded, Bound::Unbounded);
    assert!((all.entries as f64 / 60_000.0 - 1.0).abs() < 0.3, "{all:?}");
}

#[test]
fn a_range_within_a_leaf_is_counted() {
    let (_store, tree) = tree((0..20).map(|key| key * 2), |_| vec![1; 10]);
    for from in 0..45 {
        for to in 0..45 {
            let count = |range: &dyn Fn(u32) -> bool| {
                (0..20).map(|key| key * 2).filter(|key| range(*key)).count() as u64
            };
            let found = |lower, upper| estimate(&tree, lower, upper).entries;
            let (included, excluded) = (Bound::Included(from), Bound::Excluded(from));
            let half_open = found(included, Bound::Excluded(to));
            assert_eq!(half_open, count(&|key| key >= from && key < to));
            let closed = found(included, Bound::Included(to));
            assert_eq!(closed, count(&|key| key >= from && key <= to));
            let open = found(excluded, Bound::Excluded(to));
            assert_eq!(open, count(&|key| key > from && key < to));
        }
    }
    let all = estimate(&tree, Bound::Unbounded, Bound::Unbounded);
    assert_eq!((all.entries, all.bytes), (20, 20 * 14));
}

#[test]
fn removed_keys_do_not_count_and_large_values_do() {
    let (_store, tree) = tree(0..10, |key| vec![1; key as usize * 10_000]);
    let all = estimate(&tree, Bound::Unbounded, Bound::Unbounded);
    assert_eq!((all.entries, all.bytes), (10, 450_000 + 40));
    for key in 0..5u32 {
        let tombstone = Change::Tombstone { version: 2 };
        tree.modify(&key.to_be_bytes(), |_| (tombstone, ()))
            .unwrap();
    }
    let all = estimate(&tree, Bound::Unbounded, Bound::Unbounded);
    assert_eq!((all.entries, all.bytes), (5, 350_000 + 20));
    let (_store, empty) = self::tree([], |_| Vec::new());
    let none = estimate(&empty, Bound::Unbounded, Bound::Unbounded);
    assert_eq!(none, Estimate::default());
}

/// Descents alongside splits and merges: every answer is possible, and every descent ends.
#[test]
fn estimates_alongside_changes() {
    let (_store, tree) = tree((0..20_000).step_by(2), |_| vec![1; 50]);
    std::thread::scope(|scope| {
        let changer = tree.clone();
        scope.spawn(move || {
            let mut rng = fastrand::Rng::with_seed(1);
            for _ in 0..50_000 {
                let key = (rng.u32(..10_000) * 2 + 1).to_be_bytes();
                let put = Change::Put {
                    version: 2,
                    value: &[2; 50],
                };
                let change = if rng.bool() { put } else { Change::Remove };
                changer.modify(&key, |_| (change, ())).unwrap();
            }
        });
        for _ in 0..2_000 {
            let all = estimate(&tree, Bound::Unbounded, Bound::Unbounded);
            assert!((2_000..80_000).contains(&all.entries), "{all:?}");
        }
    });
}

/// The bytes of the keys and values, the height and the fill of trees of one to three levels.
#[test]
fn statistics_are_exact_or_say_that_they_are_not() {
    for (keys, height) in [(0, 1), (1, 1), (2_000, 2), (60_000, 3)] {
        let (_store, tree) = tree(0..keys, |key| vec![1; 20 + key as usize % 50]);
        // One entry in ten is removed.
        for key in (0..keys).step_by(10) {
            let removed = (Change::Tombstone { version: 2 }, ());
            tree.modify(&key.to_be_bytes(), |_| removed).unwrap();
        }
        let left = (0..keys).filter(|key| key % 10 != 0);
        let bytes: u64 = left.clone().map(|key| 24 + u64::from(key) % 50).sum();
        let entries = left.count() as u64;
        let exact = tree.stats(true).unwrap();
        assert!(exact.exact);
        assert_eq!(
            (exact.entries, exact.bytes, exact.height),
            (entries, bytes, height)
        );
        // Keys in ascending order leave full pages.
        let least = if height == 1 { 0.0 } else { 0.8 };
        assert!((least..=1.0).contains(&exact.fill), "{exact:?}");
        let used = exact.fill * exact.leaf_pages as f64 * PAGE_SIZE as f64;
        assert!(used >= bytes as f64, "{exact:?}");
        let fast = tree.stats(false).unwrap();
        assert_eq!(fast.height, height);
        assert_eq!(fast.exact, height < 3);
        if fast.exact {
            assert_eq!(fast, exact);
            continue;
        }
        for (estimate, truth) in [
            (fast.entries as f64, entries as f64),
            (fast.bytes as f64, bytes as f64),
            (fast.leaf_pages as f64, exact.leaf_pages as f64),
            (fast.fill, exact.fill),
        ] {
            assert!((estimate / truth - 1.0).abs() < 0.2, "{fast:?} {exact:?}");
        }
    }
}

/// A leaf's share of the words is the space of its records, independently of how it was filled.
#[test]
fn the_fill_shrinks_as_entries_are_removed() {
    let (_store, tree) = tree(0..2_000, |_| vec![1; 100]);
    let before = tree.stats(true).unwrap();
    for key in (0..2_000_u32).filter(|key| key % 4 != 0) {
        tree.modify(&key.to_be_bytes(), |_| (Change::Remove, ()))
            .unwrap();
    }
    let after = tree.stats(true).unwrap();
    assert_eq!(after.entries * 4, before.entries);
    assert!(
        after.fill < before.fill && after.leaf_pages < before.leaf_pages,
        "{before:?} {after:?}"
    );
}
