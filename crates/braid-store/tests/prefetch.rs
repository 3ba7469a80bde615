//! Keys that are asked for together: they come into memory, in their newest state, and nothing else happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_io::{Device, MemoryDevice, OpenMode};
use braid_store::{Change, PAGE_SIZE, Store, StoreOptions, Tree};

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

fn prefetch(tree: &Tree, keys: &[u32]) {
    let keys: Vec<[u8; 4]> = keys.iter().map(|key| key.to_be_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    tree.prefetch(&keys);
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

/// A device with all keys in version 1.
fn filled() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    let store = create(&device);
    let tree = store.tree(TREE).unwrap();
    (0..KEYS).for_each(|key| put(&tree, key, 1));
    checkpoint(&store);
    device
}

fn create(device: &Arc<MemoryDevice>) -> Store {
    let options = StoreOptions {
        pool_bytes: 16 << 20,
    };
    Store::create(device.clone(), options).unwrap()
}

fn open(device: &Arc<MemoryDevice>, pool_bytes: usize) -> (Store, Tree) {
    let (store, _) = Store::open(device.clone(), StoreOptions { pool_bytes }).unwrap();
    let tree = store.tree(TREE).unwrap();
    (store, tree)
}

#[test]
fn keys_come_into_memory_together() {
    let device = filled();
    let (store, tree) = open(&device, 16 << 20);
    // Also one that is not there, and one twice.
    let keys: Vec<u32> = (0..KEYS).step_by(7).chain([KEYS + 1, 7, 7]).collect();
    prefetch(&tree, &keys);
    let loaded = store.stats().page_loads;
    assert!(loaded > u64::from(KEYS) / 60, "{loaded}");
    for &key in keys.iter().filter(|&&key| key < KEYS) {
        assert_eq!(check(&tree, key), 1);
    }
    assert_eq!(store.stats().page_loads, loaded, "nothing was left to read");
    prefetch(&tree, &keys);
    assert_eq!(store.stats().page_loads, loaded, "all of it is there");
}

#[test]
fn a_small_pool_is_not_overrun() {
    let device = filled();
    let (store, tree) = open(&device, 512 << 10);
    let keys: Vec<u32> = (0..KEYS).collect();
    prefetch(&tree, &keys);
    let stats = store.stats();
    assert!(stats.resident_pages <= stats.pool_pages, "{stats:?}");
    keys.iter()
        .for_each(|&key| assert_eq!(check(&tree, key), 1));
}

#[test]
fn what_cannot_be_fetched_is_told_to_who_reads_it() {
    let device = filled();
    let blocks = {
        let file = device.open("data.braid", OpenMode::Existing).unwrap();
        file.len().unwrap() / PAGE_SIZE as u64
    };
    let (mut damaged, mut whole) = (0, 0);
    for block in (2..blocks).step_by(if cfg!(miri) { 3 } else { 40 }) {
        let file = device.open("data.braid", OpenMode::Existing).unwrap();
        let offset = block * PAGE_SIZE as u64;
        let mut bytes = vec![0; PAGE_SIZE];
        file.read_at(&mut bytes, offset).unwrap();
        let intact = bytes.clone();
        bytes[5_000] ^= 1;
        file.write_at(&[&bytes], offset).unwrap();
        // A damaged map is told by the opening.
        if let Ok((store, _)) = Store::open(
            device.clone(),
            StoreOptions {
                pool_bytes: 16 << 20,
            },
        ) {
            let tree = store.tree(TREE).unwrap();
            prefetch(&tree, &(0..KEYS).collect::<Vec<_>>());
            for key in 0..KEYS {
                match tree.get(&key.to_be_bytes(), |_| true) {
                    Ok((found, _)) => {
                        assert_eq!(found.unwrap().meta.version, 1);
                        whole += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("corrupted"), "{error}");
                        damaged += 1;
                    }
                }
            }
        }
        file.write_at(&[&intact], offset).unwrap();
    }
    assert!(damaged > 0 && whole > damaged, "{damaged} of {whole}");
}

/// One thread rewrites keys and publishes checkpoints, in a pool so small that pages come and go, while others fetch
/// and read. No key goes back.
#[test]
fn what_is_fetched_is_the_newest_state() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let device = filled();
    let mut versions: Vec<u64> = vec![1; KEYS as usize];
    for round in 0..if cfg!(miri) { 1 } else { 30 } {
        let (store, tree) = open(&device, 1 << 20);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (tree, done, old) = (&tree, &done, versions.clone());
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed ^ round << 8 ^ thread);
                    while !done.load(Ordering::Acquire) {
                        let keys: [u32; 10] = std::array::from_fn(|_| rng.u32(..KEYS));
                        prefetch(tree, &keys);
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
