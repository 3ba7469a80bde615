//! Replaced large values that are still read, compared with a map: with checkpoints that begin, are
//! written, published or abandoned while values are replaced, read and freed, in a pool so small
//! that pages are loaded and evicted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use braid_io::MemoryDevice;
use braid_store::{Change, Checkpoint, DetachedValue, Store, StoreOptions, Tree};

const SMALL_POOL: StoreOptions = StoreOptions::of_pool(1 << 20);

type Model = BTreeMap<u8, Vec<u8>>;

/// Changes a record. Returns its old large value.
fn replace(
    tree: &Tree,
    key: &[u8],
    version: u64,
    value: Option<&[u8]>,
) -> (bool, Option<DetachedValue>) {
    let mut inline = Vec::new();
    tree.modify(key, |old| {
        let existed = old.is_some();
        let large = old.and_then(|old| old.keep_value(&mut inline).unwrap());
        let change = match value {
            Some(value) => Change::Put { version, value },
            None if existed && version.is_multiple_of(2) => Change::Remove,
            None if existed => Change::Tombstone { version },
            None => Change::Keep,
        };
        (change, (existed, large))
    })
    .unwrap()
}

fn checkpoint(store: &Store) -> u64 {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap().pages_written
}

fn assert_sound(store: &Store, what: &str) {
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert!(found.is_empty(), "{what}: {found:?}");
}

fn assert_is(store: &Store, model: &Model, what: &str) {
    let tree = store.tree(1).unwrap();
    for key in 0..=u8::MAX {
        let found = tree.get(&[key], |_| true).unwrap();
        let found = found.and_then(|found| found.value);
        let same = found.as_deref() == model.get(&key).map(|value| &value[..]);
        assert!(same, "{what}: key {key}");
    }
}

struct History {
    rng: fastrand::Rng,
    store: Store,
    model: Model,
    held: Vec<(DetachedValue, Vec<u8>)>,
    version: u64,
    what: String,
}

impl History {
    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..) {
            0..120 => self.rng.usize(2_001..70_000),
            120..130 => self.rng.usize(70_000..400_000),
            _ => self.rng.usize(0..2_000),
        };
        let mut value = vec![0; len];
        self.rng.fill(&mut value);
        value
    }

    fn steps(&mut self, most: usize) {
        let tree = self.store.tree(1).unwrap();
        for _ in 0..self.rng.usize(0..most) {
            self.version += 1;
            let key = self.rng.u8(..24);
            let value = (self.rng.u8(..) < 220).then(|| self.value());
            let (_, large) = replace(&tree, &[key], self.version, value.as_deref());
            let before = match value {
                Some(value) => self.model.insert(key, value),
                None => self.model.remove(&key),
            };
            if let Some(large) = large {
                let before = before.expect("it was there");
                assert_eq!(large.len(), before.len());
                self.held.push((large, before));
            }
            while !self.held.is_empty() && self.rng.u8(..) < 120 {
                let (large, expected) = self.held.swap_remove(self.rng.usize(..self.held.len()));
                let read = self.store.read_detached(&large).unwrap();
                assert!(read[..] == expected[..], "{}", self.what);
                self.store.free_detached(large);
            }
        }
    }

    fn check(&self) {
        assert_is(&self.store, &self.model, &self.what);
        for (large, expected) in &self.held {
            let read = self.store.read_detached(large).unwrap();
            assert!(
                read[..] == expected[..],
                "{}: a value that is held",
                self.what
            );
        }
    }
}

#[test]
fn values_last_as_long_as_they_are_held_and_no_checkpoint_has_them() {
    let first = fastrand::u64(..);
    for seed in first..first + 25 {
        println!("seed {seed}");
        let device = Arc::new(MemoryDevice::new());
        let mut history = History {
            rng: fastrand::Rng::with_seed(seed),
            store: Store::create(device.clone(), SMALL_POOL).unwrap(),
            model: Model::new(),
            held: Vec::new(),
            version: 0,
            what: format!("seed {seed}"),
        };
        let mut published: Option<Model> = None;
        for _ in 0..12 {
            history.steps(60);
            let mut open = history.store.begin_checkpoint(Vec::new()).unwrap();
            if history.rng.u8(..) < 30 {
                Checkpoint::shrink(&mut open);
            }
            let at_switch = history.model.clone();
            history.steps(30);
            open.write(&|_| {}).unwrap();
            history.steps(30);
            if history.rng.u8(..) < 180 {
                open.publish().unwrap();
                published = Some(at_switch);
            } else {
                drop(open);
            }
            history.check();
            if history.rng.bool() {
                // Held values are in no checkpoint: every page belongs to a tree, and no block is
                // lost.
                checkpoint(&history.store);
                published = Some(history.model.clone());
                assert_sound(&history.store, &history.what);
                history.check();
            }
            if history.rng.u8(..) < 100
                && let Some(at_switch) = &published
            {
                history.held.clear();
                history.model = at_switch.clone();
                history.store = Store::open(device.clone(), SMALL_POOL).unwrap().0;
                assert_sound(&history.store, &history.what);
                history.check();
            }
        }
        let History {
            store, held, model, ..
        } = history;
        held.into_iter()
            .for_each(|(large, _)| store.free_detached(large));
        (0..3).for_each(|_| _ = checkpoint(&store));
        assert_sound(&store, &format!("seed {seed}, at the end"));
        let pages: usize = model
            .values()
            .map(|value| value.len().div_ceil(8_152))
            .sum();
        let nodes = 40;
        let exist = store.stats().pages;
        assert!(exist <= pages as u64 + nodes, "seed {seed}: {exist} pages");
        // The previous checkpoint's blocks, and the map, exist alongside the pages for a while.
        let blocks = store.stats().file_bytes / 8_192;
        assert!(blocks <= 2 * exist + 64, "seed {seed}: {blocks} blocks");
    }
}

#[test]
fn a_checkpoint_writes_nothing_of_a_value_that_was_replaced_before_it() {
    let options = StoreOptions::of_pool(16 << 20);
    let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
    let tree = store.tree(1).unwrap();
    let mut held = Vec::new();
    for version in 1..=20u8 {
        let (_, large) = replace(&tree, b"k", version.into(), Some(&[version; 65_536]));
        held.extend(large);
    }
    assert_eq!(held.len(), 19);
    let written = checkpoint(&store);
    assert_eq!(written, 10, "nine pages of the value, and the leaf");
    assert_sound(&store, "with values that are held");
    for (before, large) in (1..).zip(held) {
        assert!(store.read_detached(&large).unwrap()[..] == [before; 65_536]);
        store.free_detached(large);
    }
    assert_eq!(store.stats().pages, 10);
}

/// Separate threads replace, read and free values while checkpoints are taken.
#[test]
fn readers_and_checkpoints_alongside_writers() {
    const WRITERS: u8 = 2;
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device.clone(), SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    let gate = braid_rt::RwLock::new(());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (give, take) = mpsc::sync_channel::<(DetachedValue, u8, usize)>(20);
                let (tree, gate, store) = (&tree, &gate, &store);
                scope.spawn(move || {
                    for (large, byte, len) in take {
                        let read = store.read_detached(&large).unwrap();
                        assert_eq!(read.len(), len);
                        assert!(read.iter().all(|&b| b == byte), "{byte} is mixed");
                        store.free_detached(large);
                    }
                });
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(writer.into());
                    let mut present = [(0, 0); 4];
                    for version in 1..1_500u64 {
                        let key = rng.usize(..4);
                        let len = rng.usize(2_001..60_000);
                        let byte = version as u8;
                        let large = {
                            let _gate = gate.read();
                            let key = [writer, key as u8];
                            replace(tree, &key, version, Some(&vec![byte; len])).1
                        };
                        let (before, before_len) = present[key];
                        present[key] = (byte, len);
                        if let Some(large) = large {
                            give.send((large, before, before_len)).unwrap();
                        }
                    }
                })
            })
            .collect();
        let (store, gate, stop) = (&store, &gate, &stop);
        let checkpoints = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let epoch_switch = gate.write();
                let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
                drop(epoch_switch);
                checkpoint.write(&|_| {}).unwrap();
                checkpoint.publish().unwrap();
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        checkpoints.join().unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    checkpoint(&store);
    assert_sound(&store, "at the end");
    drop((tree, store));
    assert_sound(&Store::open(device, SMALL_POOL).unwrap().0, "opened again");
}
