//! Trees built by the bulk loader equal trees that grew by insertions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use braid_io::{MemoryDevice, SimDevice};
use braid_store::{Change, Direction, PAGE_SIZE, Pacing, Store, StoreError, StoreOptions, Tree};
use bytes::Bytes;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const SMALL_POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

const TREE: u32 = 5;

/// Others that need the device, or do not.
#[derive(Default)]
struct Others {
    need_the_device: bool,
    pauses: AtomicU64,
}

impl Pacing for Others {
    fn is_device_needed(&self) -> bool {
        self.need_the_device
    }

    fn pause(&self, _begun: Instant) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }
}

fn content(tree: &Tree) -> Model {
    let mut model = Model::new();
    let (mut from, mut position) = (Bound::Unbounded, None);
    loop {
        let lower = from.as_ref().map(|key: &Bytes| &key[..]);
        let leaf = tree
            .scan_leaf(
                position,
                lower,
                Bound::Unbounded,
                Direction::Forward,
                usize::MAX,
            )
            .unwrap();
        for record in leaf.records() {
            assert_eq!(record.meta.version, 7);
            model.insert(record.key.to_vec(), record.value.to_vec());
        }
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => return model,
        }
    }
}

fn checkpoint(store: &Store) -> Result<(), StoreError> {
    let mut checkpoint = store.begin_checkpoint(Vec::new())?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish().map(drop)
}

fn findings(store: &Store) -> Vec<String> {
    let mut findings = Vec::new();
    store
        .verify(&mut |damage| findings.push(damage.what))
        .unwrap();
    findings
}

/// Records of a kind: short keys or long ones with much in common, small values or some large ones.
fn records(rng: &mut fastrand::Rng) -> Model {
    let most = [1, 30, 3_000][rng.usize(..3)];
    let count = rng.usize(0..most);
    let common = vec![b'c'; [0, 3, 900][rng.usize(..3)]];
    let values = [1, 100, 1_500, 30_000][rng.usize(..4)];
    let mut model = Model::new();
    for _ in 0..count {
        let mut key = if rng.u8(..) < 250 {
            common.clone()
        } else {
            // Far from the others: fences that share nothing.
            vec![rng.u8(..)]
        };
        key.extend((0..rng.usize(1..9)).map(|_| rng.u8(..)));
        let len = if rng.u8(..) < 20 {
            rng.usize(..values)
        } else {
            rng.usize(..values.min(200))
        };
        model.insert(key, vec![rng.u8(..); len]);
    }
    model
}

#[test]
fn a_loaded_tree_holds_its_records_and_grows() {
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(MemoryDevice::new());
        let store = Store::create(device.clone(), SMALL_POOL).unwrap();
        let mut model = records(&mut rng);
        let mut loader = store.load(TREE, seed.is_multiple_of(2)).unwrap();
        for (key, value) in &model {
            loader.append(key, 7, value).unwrap();
        }
        loader.finish().unwrap();
        if rng.bool() {
            checkpoint(&store).unwrap();
        }
        let mut tree = loader.attach();
        assert!(content(&tree) == model, "seed {seed}");
        let mut store = store;
        if rng.bool() {
            checkpoint(&store).unwrap();
            drop((tree, store));
            store = Store::open(device.clone(), SMALL_POOL).unwrap().0;
            tree = store.tree(TREE).unwrap();
            assert_eq!(findings(&store), [""; 0], "seed {seed}");
            assert!(content(&tree) == model, "seed {seed}");
        }
        let more = records(&mut rng);
        for (key, value) in more {
            let version = 7;
            let value = &value[..];
            tree.modify(&key, |_| (Change::Put { version, value }, ()))
                .unwrap();
            model.insert(key, value.to_vec());
        }
        let removed: Vec<Vec<u8>> = model.keys().filter(|_| rng.bool()).cloned().collect();
        for key in removed {
            tree.modify(&key, |_| (Change::Remove, ())).unwrap();
            model.remove(&key);
        }
        assert!(content(&tree) == model, "seed {seed}");
        checkpoint(&store).unwrap();
        drop((tree, store));
        let store = Store::open(device, SMALL_POOL).unwrap().0;
        assert_eq!(findings(&store), [""; 0], "seed {seed}");
        assert!(content(&store.tree(TREE).unwrap()) == model, "seed {seed}");
    }
}

/// Pages are full up to the size of one more record, and no page is written twice.
#[test]
fn pages_are_full() {
    let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
    let mut loader = store.load(TREE, true).unwrap();
    for i in 0..50_000u64 {
        loader.append(&i.to_be_bytes(), 7, &[1; 84]).unwrap();
    }
    loader.finish().unwrap();
    loader.attach();
    // 8 bytes of slot, 16 of head, 8 of key, 88 of value; after 7 words, and two fences.
    let in_leaf = (8192 - 9 * 8) / (8 + 16 + 8 + 88);
    let (leaves, pages) = (50_000 / in_leaf + 1, store.stats().pages);
    assert!(pages < leaves + 8, "{pages} for {leaves} leaves");
}

#[test]
fn an_unattached_tree_leaves_no_pages() {
    let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
    store.tree(1).unwrap();
    checkpoint(&store).unwrap();
    for finishes in [false, true] {
        let mut loader = store.load(TREE, true).unwrap();
        for i in 0..20_000u64 {
            loader.append(&i.to_be_bytes(), 7, &[1; 100]).unwrap();
        }
        loader.append(&[9; 9], 7, &vec![1; 1 << 20]).unwrap();
        if finishes {
            loader.finish().unwrap();
        }
        drop(loader);
        assert_eq!(store.stats().pages, 1);
        checkpoint(&store).unwrap();
        assert_eq!(findings(&store), [""; 0]);
        assert_eq!(store.tree_ids(), [1]);
        assert!(store.stats().file_bytes < 100_000);
    }
}

#[test]
fn a_load_pauses_after_each_piece_while_others_need_the_device() {
    for (need_the_device, background) in [(true, true), (true, false), (false, true)] {
        let others = Arc::new(Others {
            need_the_device,
            ..Others::default()
        });
        let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
        let loader = store.load(TREE, background).unwrap();
        let mut loader = loader.paced(others.clone());
        for i in 0..8_000u64 {
            loader.append(&i.to_be_bytes(), 7, &[1; 1_000]).unwrap();
        }
        loader.finish().unwrap();
        let tree = loader.attach();
        assert_eq!(content(&tree).len(), 8_000);
        checkpoint(&store).unwrap();
        assert_eq!(findings(&store), [""; 0]);
        let in_piece = (256 << 10) / PAGE_SIZE as u64;
        let pieces = store.stats().pages.div_ceil(in_piece);
        assert!(pieces > 30);
        let pauses = others.pauses.load(Ordering::Relaxed);
        assert_eq!(pauses, if need_the_device { pieces } else { 0 });
    }
}

/// The medium fails, or is full, at any moment.
#[test]
fn a_failure_leaves_the_store_as_it_was() {
    let mut failed = 0;
    for seed in 0..60 {
        let device = SimDevice::new(seed);
        let store = Store::create(Arc::new(device.clone()), SMALL_POOL).unwrap();
        store.tree(1).unwrap();
        checkpoint(&store).unwrap();
        match seed % 2 {
            0 => device.fail_write_after(seed / 2 % 8),
            _ => device.set_capacity(Some((2 + seed) << 17)),
        }
        let others = Others {
            need_the_device: seed % 3 == 0,
            ..Others::default()
        };
        let loader = store.load(TREE, false).unwrap();
        let mut loader = loader.paced(Arc::new(others));
        let loaded = (0..4_000u64)
            .try_for_each(|i| loader.append(&i.to_be_bytes(), 7, &[1; 1_000]))
            .and_then(|()| loader.finish());
        failed += u32::from(loaded.is_err());
        drop(loader);
        device.set_capacity(None);
        device.repair();
        assert_eq!(store.stats().pages, 1, "seed {seed}");
        checkpoint(&store).unwrap();
        assert_eq!(findings(&store), [""; 0], "seed {seed}");
    }
    assert!(failed > 10, "{failed}");
}
