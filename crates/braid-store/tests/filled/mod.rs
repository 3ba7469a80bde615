//! A store with keys whose values contain their version, and readers alongside a writer and its
//! checkpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_io::MemoryDevice;
use braid_store::{Change, Store, StoreOptions, Tree};

pub(crate) const TREE: u32 = 3;
pub(crate) const KEYS: u32 = if cfg!(miri) { 60 } else { 6_000 };

/// A pool with room for all of them.
pub(crate) const LARGE_POOL: usize = 16 << 20;

fn put(tree: &Tree, key: u32, version: u64) {
    let value = version.to_le_bytes().repeat(60);
    let change = Change::Put {
        version,
        value: &value,
    };
    tree.modify(&key.to_be_bytes(), |_| (change, ())).unwrap();
}

/// Reads a key, which must be present and complete. Returns its version.
pub(crate) fn check(tree: &Tree, key: u32) -> u64 {
    let found = tree.get(&key.to_be_bytes(), |_| true).unwrap();
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
pub(crate) fn filled() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    let options = StoreOptions::of_pool(LARGE_POOL);
    let store = Store::create(device.clone(), options).unwrap();
    let tree = store.tree(TREE).unwrap();
    (0..KEYS).for_each(|key| put(&tree, key, 1));
    checkpoint(&store);
    device
}

/// Opens the store that [`filled`] created.
pub(crate) fn open(device: &Arc<MemoryDevice>, pool_bytes: usize) -> (Store, Tree) {
    let (store, _) = Store::open(device.clone(), StoreOptions::of_pool(pool_bytes)).unwrap();
    let tree = store.tree(TREE).unwrap();
    (store, tree)
}

/// One thread rewrites keys and publishes checkpoints, so that blocks are freed and reused, while
/// other threads read `TOGETHER` keys at a time, after `prepare` for these. No key's version
/// decreases.
pub(crate) fn no_key_goes_back<const TOGETHER: usize>(
    pool_bytes: usize,
    prepare: impl Fn(&Tree, &[u32; TOGETHER]) + Sync,
) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let device = filled();
    let mut versions: Vec<u64> = vec![1; KEYS as usize];
    for round in 0..if cfg!(miri) { 1 } else { 30 } {
        let (store, tree) = open(&device, pool_bytes);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (tree, done, prepare, old) = (&tree, &done, &prepare, versions.clone());
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed ^ round << 8 ^ thread);
                    while !done.load(Ordering::Acquire) {
                        let keys = std::array::from_fn(|_| rng.u32(..KEYS));
                        prepare(tree, &keys);
                        for key in keys {
                            assert!(check(tree, key) >= old[key as usize], "seed {seed}");
                        }
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
