//! The tree under concurrent changes: optimistic readers must never see an inconsistent state while
//! leaves split and merge, pages are loaded and evicted, and large values are replaced.
//!
//! Every test ends when its writers are done, and runs under Miri with less work (see
//! docs/testing.md).

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_io::MemoryDevice;
use braid_store::{Change, Direction, Found, LeafHint, RecordMeta, Store, StoreOptions, Tree};
use bytes::Bytes;

/// The smallest pool, so that pages are evicted and loaded all the time.
const SMALL_POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

const fn scaled(full: u64, miri: u64) -> u64 {
    if cfg!(miri) { miri } else { full }
}

fn new_tree() -> (Store, Tree) {
    let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    (store, tree)
}

fn put(tree: &Tree, key: &[u8], version: u64, value: &[u8]) {
    tree.modify(key, |_| (Change::Put { version, value }, ()))
        .unwrap();
}

fn read(tree: &Tree, hint: &mut LeafHint, key: &[u8]) -> Option<Found> {
    let found = tree.read_at(hint, key, |_| true, |value| value.to_bytes());
    let found = found.unwrap();
    found.map(|(meta, value)| Found { meta, value })
}

fn scan_all(tree: &Tree, direction: Direction) -> Vec<(Bytes, RecordMeta, Bytes)> {
    let (mut from, mut position) = (Bound::<Bytes>::Unbounded, None);
    let mut out = Vec::new();
    loop {
        let lower = from.as_ref().map(|key| &key[..]);
        let leaf = tree
            .scan_leaf(position, lower, Bound::Unbounded, direction, 20)
            .unwrap();
        for (i, record) in leaf.records().enumerate() {
            out.push((leaf.key(i), record.meta, leaf.value(i)));
        }
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => return out,
        }
    }
}

fn assert_sound(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
    let mut found = Vec::new();
    store.verify(&mut |damage| found.push(damage.what)).unwrap();
    assert!(found.is_empty(), "{found:?}");
}

/// Sets a flag when the last writer is done, also when it panics, so that readers end too.
struct Done<'a>(&'a AtomicU64, &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // AcqRel and Release: pair with the readers' Acquire, though they need no more than the
        // flag.
        if self.0.fetch_sub(1, Ordering::AcqRel) == 1 || std::thread::panicking() {
            self.1.store(true, Ordering::Release);
        }
    }
}

/// Keys between the anchors are inserted and removed in waves, so that leaves split and merge;
/// every get and every scan must find each anchor, once and in order.
#[test]
fn splits_and_merges_hide_no_key() {
    const WRITERS: u64 = 2;
    const BETWEEN: u64 = scaled(40, 12);
    let anchors = scaled(100, 6);
    let waves = scaled(12, 2);
    let value_len = scaled(150, 600) as usize;

    let (store, tree) = new_tree();
    let key_of = |anchor: u64, between: u64| format!("anchor-{anchor:04}-{between:03}");
    for anchor in 0..anchors {
        put(&tree, key_of(anchor, 0).as_bytes(), 1, b"anchor");
    }
    let (left, done) = (AtomicU64::new(WRITERS), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (tree, left, done, key_of) = (&tree, &left, &done, &key_of);
            scope.spawn(move || {
                let _done = Done(left, done);
                for wave in 0..waves {
                    // Each writer has its own keys, spread over all anchors.
                    let mine = (1..=BETWEEN).filter(|between| between % WRITERS == writer);
                    for between in mine {
                        for anchor in 0..anchors {
                            let key = key_of(anchor, between);
                            if wave % 2 == 0 {
                                put(tree, key.as_bytes(), wave + 1, &vec![7; value_len]);
                            } else {
                                tree.modify(key.as_bytes(), |old| {
                                    assert!(old.is_some(), "{key} was there");
                                    (Change::Remove, ())
                                })
                                .unwrap();
                            }
                        }
                    }
                }
            });
        }
        for direction in [Direction::Forward, Direction::Reverse] {
            let (tree, done, key_of) = (&tree, &done, &key_of);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(direction as u64);
                loop {
                    // Acquire: see `Done`. Read first, so that there is at least one round.
                    let last = done.load(Ordering::Acquire);
                    for _ in 0..scaled(20, 3) {
                        let key = key_of(rng.u64(..anchors), 0);
                        let found = tree.get(key.as_bytes(), |_| true).unwrap();
                        let found = found.unwrap_or_else(|| panic!("get misses {key}"));
                        assert_eq!(found.value.as_deref(), Some(&b"anchor"[..]));
                    }
                    let mut keys: Vec<Bytes> = scan_all(tree, direction)
                        .into_iter()
                        .map(|(key, ..)| key)
                        .collect();
                    if direction == Direction::Reverse {
                        keys.reverse();
                    }
                    assert!(keys.is_sorted_by(|a, b| a < b), "a scan is out of order");
                    let seen = keys.iter().filter(|key| key.ends_with(b"-000")).count();
                    assert_eq!(seen as u64, anchors, "a {direction:?} scan misses anchors");
                    if last {
                        return;
                    }
                }
            });
        }
    });
    assert_eq!(scan_all(&tree, Direction::Forward).len() as u64, anchors);
    assert_sound(&store);
}

/// `modify` is atomic: no read-modify-write on the same keys is lost.
#[test]
fn no_increment_is_lost() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 7;
    let each = scaled(20_000, 30);
    let (store, tree) = new_tree();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let tree = &tree;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                let mut last = [0; KEYS as usize];
                let mut hints = [LeafHint::default(); 3];
                for _ in 0..each {
                    let key = rng.u64(..KEYS);
                    let hint = &mut hints[rng.usize(..3)];
                    // The version is checked; the value must only be complete.
                    let count = tree
                        .modify_at(hint, &key.to_be_bytes(), |old| {
                            let version = old.map_or(0, |old| {
                                let version = old.meta().version;
                                let expected = vec![version as u8; 40 + version as usize % 60];
                                let mut value = Vec::new();
                                assert!(old.keep_value(&mut value).unwrap().is_none());
                                assert_eq!(value, expected);
                                version
                            }) + 1;
                            let len = 40 + version as usize % 60;
                            let value = &VALUES[version as usize % 256][..len];
                            (Change::Put { version, value }, version)
                        })
                        .unwrap();
                    assert!(count > last[key as usize], "a counter went back");
                    last[key as usize] = count;
                }
            });
        }
    });
    let records = scan_all(&tree, Direction::Forward);
    let sum: u64 = records.iter().map(|(_, meta, _)| meta.version).sum();
    assert_eq!(sum, THREADS * each);
    assert_sound(&store);
}

/// `VALUES[n]` is the byte `n`, a hundred times.
static VALUES: [[u8; 100]; 256] = {
    let mut values = [[0; 100]; 256];
    let mut n = 0;
    while n < 256 {
        values[n] = [n as u8; 100];
        n += 1;
    }
    values
};

/// While a stamp is current, the reads made with it still hold: for keys, for their absence, and
/// for all records that a scan saw in a leaf.
#[test]
fn reads_hold_while_their_stamp_is_current() {
    const WRITERS: u64 = 2;
    let changes = scaled(60_000, 60);
    let keys = scaled(400, 12) as u32;
    let (store, tree) = new_tree();
    let (left, done) = (AtomicU64::new(WRITERS), AtomicBool::new(false));
    let trusted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (tree, left, done) = (&tree, &left, &done);
            scope.spawn(move || {
                let _done = Done(left, done);
                let mut rng = fastrand::Rng::with_seed(writer);
                for version in 1..=changes {
                    let key = rng.u32(..keys).to_be_bytes();
                    // Alternates between mostly growing and mostly shrinking, for splits and
                    // merges.
                    let removes = if version / 1_000 % 2 == 0 { 60 } else { 200 };
                    if rng.u8(..) < removes {
                        tree.modify(&key, |_| (Change::Remove, ())).unwrap();
                    } else {
                        put(tree, &key, version, &vec![1; rng.usize(0..400)]);
                    }
                }
            });
        }
        for reader in 0..2 {
            let (tree, done, trusted) = (&tree, &done, &trusted);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(1_000 + reader);
                let mut hint = LeafHint::default();
                loop {
                    let last = done.load(Ordering::Acquire);
                    for _ in 0..scaled(20, 5) {
                        let key = rng.u32(..keys).to_be_bytes();
                        let first = read(tree, &mut hint, &key);
                        let second = read(tree, &mut LeafHint::default(), &key);
                        if tree.is_current(hint.stamp()) {
                            trusted.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(first, second, "key {key:?}");
                        }
                    }
                    let key = rng.u32(..keys).to_be_bytes();
                    let from = Bound::Included(&key[..]);
                    let scan = || {
                        tree.scan_leaf(None, from, Bound::Unbounded, Direction::Forward, usize::MAX)
                    };
                    let (first, second) = (scan().unwrap(), scan().unwrap());
                    if tree.is_current(first.stamp) {
                        assert!(first.records().eq(second.records()));
                        assert_eq!(first.next, second.next);
                    }
                    if last {
                        return;
                    }
                }
            });
        }
    });
    assert!(
        trusted.load(Ordering::Relaxed) > 0,
        "the test compared something"
    );
    assert_sound(&store);
}

/// Readers of large values, whose pages are freed and reused meanwhile, see one complete version.
#[test]
fn large_values_are_replaced_as_a_whole() {
    const KEYS: u64 = 3;
    let versions = scaled(3_000, 6);
    let len_of = |version: u64| 2_001 + (version * 7_919 % scaled(40_000, 8_000)) as usize;
    // The version's four bytes, repeated: created and compared as a whole, which Miri does in one
    // step.
    let value_of = |version: u64| {
        let word = (version as u32).to_le_bytes();
        let mut value = word.repeat(len_of(version).div_ceil(word.len()));
        value.truncate(len_of(version));
        value
    };
    let check = |version: u64, value: &[u8]| {
        assert_eq!(value.len(), len_of(version));
        let whole = *value == value_of(version);
        assert!(whole, "version {version} is mixed with another");
    };
    let (store, tree) = new_tree();
    let (left, done) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (tree, left, done) = (&tree, &left, &done);
        scope.spawn(move || {
            let _done = Done(left, done);
            for version in 1..=versions {
                let key = (version % KEYS).to_be_bytes();
                put(tree, &key, version, &value_of(version));
            }
        });
        for reader in 0..2 {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(reader);
                loop {
                    let last = done.load(Ordering::Acquire);
                    for _ in 0..scaled(10, 2) {
                        let key = rng.u64(..KEYS).to_be_bytes();
                        if let Some(found) = tree.get(&key, |_| true).unwrap() {
                            check(found.meta.version, &found.value.unwrap());
                        }
                    }
                    for (_, meta, value) in scan_all(tree, Direction::Forward) {
                        check(meta.version, &value);
                    }
                    if last {
                        return;
                    }
                }
            });
        }
    });
    assert_sound(&store);
}
