//! A store that was just opened reads neighbours along, and never an old state of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_io::MemoryDevice;
use braid_store::{Change, Store, StoreOptions, Tree};

const TREE: u32 = 3;
const KEYS: u32 = if cfg!(miri) { 60 } else { 6_000 };

fn put(tree: &Tree, key: u32, version: u64) {
    let value = version.to_le_bytes().repeat(60);
    let change = Change::Put {
        version,
        value: &value,
    };
    tree.modify(&key.to_be_bytes(), |_| (change, ())).unwrap();
}

fn check(tree: &Tree, key: u32) -> u64 {
    let (found, _) = tree.get(&key.to_be_bytes(), |_| true).unwrap();
    let found = found.unwrap_or_else(|| panic!("{key} is there"));
    let version = found.meta.version;
    assert_eq!(found.value.unwrap(), version.to_le_bytes().repeat(60));
    version
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

/// A device with all keys in version 1.
fn filled() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    let options = StoreOptions {
        pool_bytes: 16 << 20,
    };
    let store = Store::create(device.clone(), options).unwrap();
    let tree = store.tree(TREE).unwrap();
    (0..KEYS).for_each(|key| put(&tree, key, 1));
    checkpoint(&store);
    device
}

#[test]
fn a_cold_pool_reads_neighbours_along_and_a_full_one_does_not() {
    let device = filled();
    for (pool_bytes, is_large) in [(16 << 20, true), (512 << 10, false)] {
        let options = StoreOptions { pool_bytes };
        let (store, _) = Store::open(device.clone(), options).unwrap();
        let tree = store.tree(TREE).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..3 * KEYS {
            assert_eq!(check(&tree, rng.u32(..KEYS)), 1);
        }
        let stats = store.stats();
        if cfg!(miri) {
            continue;
        }
        if is_large {
            // Each page once.
            assert!(stats.page_loads <= stats.pages, "{stats:?}");
            assert!(
                stats.pages_read_ahead > stats.page_loads * 3 / 4,
                "{stats:?}"
            );
        } else {
            assert!(stats.page_loads > 10 * stats.pages, "{stats:?}");
            assert!(
                stats.pages_read_ahead < stats.pool_pages as u64,
                "{stats:?}"
            );
        }
    }
}

/// One thread rewrites keys and publishes checkpoints, so that blocks are freed and written again, while
/// others read clusters. No key goes back.
#[test]
fn what_is_read_along_is_the_newest_state() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let device = filled();
    let mut versions: Vec<u64> = vec![1; KEYS as usize];
    for round in 0..if cfg!(miri) { 1 } else { 30 } {
        let options = StoreOptions {
            pool_bytes: 16 << 20,
        };
        let (store, _) = Store::open(device.clone(), options).unwrap();
        let tree = store.tree(TREE).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (tree, done, old) = (&tree, &done, versions.clone());
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed ^ round << 8 ^ thread);
                    while !done.load(Ordering::Acquire) {
                        let key = rng.u32(..KEYS);
                        assert!(check(tree, key) >= old[key as usize], "seed {seed}");
                    }
                });
            }
            let mut rng = fastrand::Rng::with_seed(seed ^ round);
            for step in 0..3 {
                for _ in 0..KEYS / 40 {
                    let key = rng.u32(..KEYS);
                    let version = 2 + round * 3 + step;
                    put(&tree, key, version);
                    versions[key as usize] = version;
                }
                checkpoint(&store);
            }
            done.store(true, Ordering::Release);
        });
        for key in 0..KEYS {
            assert_eq!(check(&tree, key), versions[key as usize], "seed {seed}");
        }
    }
}
