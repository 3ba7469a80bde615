//! Keys too long for a node, alongside short ones, compared with `BTreeMap` through scans,
//! checkpoints, reopening and salvage, and from several threads.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_io::{AlignedBuf, Device, MemoryDevice, OpenMode};
use braid_store::{
    Change, DetachedValue, Direction, LeafHint, Loss, MAX_KEY_LEN, PAGE_SIZE, SHORT_KEY_MAX,
    Salvage, SalvagedEntry, Store, StoreError, StoreOptions, Tree,
};
use bytes::Bytes;

type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

const POOL: StoreOptions = StoreOptions::of_pool(1 << 20);

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// Lengths at which the structure changes: chunks have 1,024 bytes.
const LENGTHS: [usize; 12] = [
    1, 1_023, 1_024, 1_025, 1_026, 2_047, 2_048, 2_049, 3_072, 5_000, 8_191, 8_192,
];

/// A key with few different bytes, so that many keys share prefixes longer than a chunk and differ
/// only at the end.
fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(..4) {
        0 => rng.usize(1..40),
        1 => *rng.choice(&LENGTHS).unwrap(),
        _ => rng.usize(1..=MAX_KEY_LEN),
    };
    let mut key = vec![b'a' + rng.u8(..3); len];
    // The place where the keys diverge: at the end of a chunk, or anywhere.
    for _ in 0..rng.u8(..3) {
        let at = if rng.bool() {
            *rng.choice(&[0, 1_022, 1_023, 1_024, 1_025, 2_048]).unwrap()
        } else {
            rng.usize(..len)
        };
        if let Some(byte) = key.get_mut(at) {
            *byte = *rng.choice(&[0, b'a', b'b', b'z', 0xff]).unwrap();
        }
    }
    let last = len - 1;
    if rng.bool() {
        key[last] = rng.u8(..4);
    }
    key
}

fn random_value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(..) {
        0..6 => rng.usize(2_000..40_000),
        6..40 => rng.usize(500..2_001),
        _ => rng.usize(0..120),
    };
    vec![rng.u8(..); len]
}

fn known_or_random_key(model: &Model, rng: &mut fastrand::Rng) -> Vec<u8> {
    match model.len() {
        len if len > 0 && rng.u8(..3) > 0 => model.keys().nth(rng.usize(..len)).unwrap().clone(),
        _ => random_key(rng),
    }
}

fn put(tree: &Tree, key: &[u8], version: u64, value: &[u8]) {
    tree.modify(key, |_| (Change::Put { version, value }, ()))
        .unwrap();
}

fn remove(tree: &Tree, key: &[u8]) {
    tree.modify(key, |_| (Change::Remove, ())).unwrap();
}

fn get(tree: &Tree, key: &[u8]) -> Option<(u64, Vec<u8>)> {
    let found = tree.get(key, |_| true).unwrap()?;
    Some((found.meta.version, found.value.unwrap().to_vec()))
}

fn scan(
    tree: &Tree,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
) -> Vec<(Bytes, u64, Bytes)> {
    let (mut from, to) = match direction {
        Direction::Forward => (lower.map(Bytes::copy_from_slice), upper),
        Direction::Reverse => (upper.map(Bytes::copy_from_slice), lower),
    };
    let (mut out, mut position) = (Vec::new(), None);
    for at_most in [1, 2, 13, usize::MAX].into_iter().cycle() {
        let start = from.as_ref().map(|key| &key[..]);
        let leaf = tree
            .scan_leaf(position, start, to, direction, at_most)
            .unwrap();
        assert!(leaf.len() <= at_most);
        for (i, record) in leaf.records().enumerate() {
            assert_eq!(record.key, leaf.key(i));
            assert_eq!(record.value, leaf.value(i));
            out.push((leaf.key(i), record.meta.version, leaf.value(i)));
        }
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => break,
        }
    }
    out
}

fn slices((lower, upper): &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (
        lower.as_ref().map(|key| &key[..]),
        upper.as_ref().map(|key| &key[..]),
    )
}

/// Bounds at keys, and between them: within a chunk, and after one.
fn random_bounds(model: &Model, rng: &mut fastrand::Rng) -> Bounds {
    let mut bound = || {
        let mut key = known_or_random_key(model, rng);
        if rng.bool() {
            key.truncate(rng.usize(..=key.len()));
        }
        match rng.u8(..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    };
    let (a, b) = (bound(), bound());
    let key = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    match (key(&a), key(&b)) {
        (Some(first), Some(last)) if first > last => (b, a),
        // `BTreeMap` panics on such a range.
        (Some(first), Some(last)) if first == last => (a, Bound::Unbounded),
        _ => (a, b),
    }
}

#[track_caller]
fn check(tree: &Tree, model: &Model, rng: &mut fastrand::Rng, seed: u64) {
    for round in 0..12 {
        let bounds = match round {
            0 => (Bound::Unbounded, Bound::Unbounded),
            _ => random_bounds(model, rng),
        };
        let expected: Vec<_> = model.range(bounds.clone()).collect();
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found = scan(tree, slices(&bounds), direction);
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert_eq!(found.len(), expected.len(), "seed {seed}, {direction:?}");
            for ((key, version, value), (model_key, (model_version, model_value))) in
                found.iter().zip(&expected)
            {
                assert!(key[..] == model_key[..], "seed {seed}, {direction:?}");
                assert_eq!(version, model_version, "seed {seed}");
                assert!(value[..] == model_value[..], "seed {seed}");
            }
        }
    }
    for (key, expected) in model {
        assert!(get(tree, key).as_ref() == Some(expected), "seed {seed}");
        let other = [&key[..], &[0]].concat();
        assert_eq!(get(tree, &other).is_some(), model.contains_key(&other));
    }
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

fn damages(store: &Store) -> Vec<String> {
    let mut damages = Vec::new();
    let report = store.verify(&mut |damage| damages.push(damage.what));
    assert_eq!(report.unwrap().damages, damages.len() as u64);
    damages
}

fn assert_sound(store: &Store, records: usize, seed: u64) {
    assert_eq!(damages(store), [""; 0], "seed {seed}");
    let report = store.verify(&mut |_| {}).unwrap();
    assert_eq!(report.records, records as u64, "seed {seed}");
    assert_eq!(report.trees, 1, "layers are no tree of their own");
}

#[test]
fn keys_of_all_lengths_are_a_map() {
    for seed in 0..if cfg!(miri) { 1 } else { 24 } {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(MemoryDevice::new());
        let mut store = Store::create(device.clone(), POOL).unwrap();
        let mut tree = store.tree(3).unwrap();
        let (mut model, mut kept): (Model, Vec<(DetachedValue, Vec<u8>)>) = Default::default();
        let removals = rng.u8(20..200);
        for step in 1..=300 {
            let key = known_or_random_key(&model, &mut rng);
            match rng.u8(..) {
                byte if byte < removals => {
                    remove(&tree, &key);
                    model.remove(&key);
                }
                _ => {
                    let value = random_value(&mut rng);
                    let mut hint = LeafHint::default();
                    let detached = tree.modify_at(&mut hint, &key, |old| {
                        let old = old.map(|old| old.keep_value(&mut Vec::new()).unwrap());
                        let version = step;
                        (
                            Change::Put {
                                version,
                                value: &value,
                            },
                            old.flatten(),
                        )
                    });
                    let before = model.insert(key, (step, value));
                    if let Some(detached) = detached.unwrap() {
                        kept.push((detached, before.unwrap().1));
                    }
                }
            }
            if step % 75 == 0 {
                check(&tree, &model, &mut rng, seed);
                for (detached, value) in kept.drain(..) {
                    assert!(store.read_detached(&detached).unwrap()[..] == value[..]);
                    store.free_detached(detached);
                }
                checkpoint(&store);
                assert_sound(&store, model.len(), seed);
            }
            if step % 150 == 0 {
                drop((tree, store));
                store = Store::open(device.clone(), POOL).unwrap().0;
                tree = store.tree(3).unwrap();
                check(&tree, &model, &mut rng, seed);
            }
        }
        for key in model.keys() {
            remove(&tree, key);
        }
        assert!(tree.is_empty().unwrap());
        checkpoint(&store);
        assert_sound(&store, 0, seed);
        // Not a layer is left: a leaf of the tree, one of its layers with their counter, and what
        // merges leave.
        assert!(store.stats().pages <= 4, "seed {seed}: {:?}", store.stats());
        store.drop_tree(3).unwrap();
        checkpoint(&store);
        assert_eq!(store.stats().pages, 0);
        assert_eq!(store.tree_ids(), [0; 0]);
    }
}

/// A key of a group that shares all bytes except the last ones.
fn grouped_key(len: usize, number: u32) -> Vec<u8> {
    let mut key = vec![b'g'; len - 4];
    key.extend(number.to_be_bytes());
    key
}

/// Two records of the longest short keys and nearly the longest values between two of the longest
/// fences: they must fit into a leaf, otherwise no split makes room.
#[test]
fn the_largest_records_find_room() {
    let store = Store::create(Arc::new(MemoryDevice::new()), POOL).unwrap();
    let tree = store.tree(3).unwrap();
    let mut model = Model::new();
    for value_len in [1_900, 1_993, 2_000] {
        for first in [b'a', b'b', b'c', b'd'] {
            for last in [b'a', b'b', b'c', b'd'] {
                let mut key = vec![first; SHORT_KEY_MAX];
                key[SHORT_KEY_MAX - 1] = last;
                let value = vec![last; value_len];
                put(&tree, &key, 1, &value);
                model.insert(key, (1, value));
            }
        }
    }
    check(&tree, &model, &mut fastrand::Rng::with_seed(1), 0);
    checkpoint(&store);
    assert_sound(&store, model.len(), 0);
}

#[test]
fn a_load_takes_keys_of_all_lengths() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(MemoryDevice::new());
        let store = Store::create(device.clone(), POOL).unwrap();
        let new = |_| (random_key(&mut rng), (7, random_value(&mut rng)));
        let mut model: Model = (0..rng_len(seed)).map(new).collect();
        let mut loader = store.load(3, false).unwrap();
        for (key, (version, value)) in &model {
            loader.append(key, *version, value).unwrap();
        }
        loader.finish().unwrap();
        checkpoint(&store);
        // A crash here leaves at most layers without their tree, which is dropped by its number.
        let crashed = device_of(&image(&device));
        let (found, _) = Store::open(crashed, POOL).unwrap();
        for id in found.tree_ids() {
            found.drop_tree(id).unwrap();
        }
        checkpoint(&found);
        assert_eq!(found.stats().pages, 0);
        let tree = loader.attach();
        check(&tree, &model, &mut rng, seed);
        checkpoint(&store);
        assert_sound(&store, model.len(), seed);
        let key = grouped_key(4_000, 7);
        put(&tree, &key, 8, b"more");
        model.insert(key, (8, b"more".to_vec()));
        check(&tree, &model, &mut rng, seed);
    }
}

fn rng_len(seed: u64) -> u64 {
    [0, 1, 7, 150][seed as usize % 4]
}

#[test]
fn estimates_count_long_keys() {
    let store = Store::create(Arc::new(MemoryDevice::new()), POOL).unwrap();
    let (apart, together) = (store.tree(1).unwrap(), store.tree(2).unwrap());
    let key = |i: u32| {
        let mut key = i.to_be_bytes().to_vec();
        key.resize(3_000, b'-');
        key
    };
    for i in 0..3_000 {
        put(&apart, &key(i), 1, &[7; 10]);
        put(&together, &grouped_key(1_500, i), 1, &[7; 10]);
        put(&together, &i.to_be_bytes(), 1, b"");
    }
    let within = |tree: &Tree, (lower, upper): (Bound<&[u8]>, Bound<&[u8]>), truth: u64| {
        let found = tree.estimate(lower, upper).unwrap().entries;
        assert!(
            found >= truth * 7 / 10 && found <= truth * 13 / 10,
            "{found} of {truth}"
        );
    };
    within(&apart, ALL, 3_000);
    let bounds = [key(500), key(1_500)];
    within(
        &apart,
        (Bound::Included(&bounds[0]), Bound::Excluded(&bounds[1])),
        1_000,
    );
    within(
        &apart,
        (Bound::Unbounded, Bound::Excluded(&bounds[1][..4])),
        1_500,
    );
    within(&together, ALL, 6_000);
    let bounds = [grouped_key(1_500, 500), grouped_key(1_500, 1_500)];
    within(
        &together,
        (Bound::Included(&bounds[0]), Bound::Excluded(&bounds[1])),
        1_000,
    );
    within(&together, (Bound::Included(b"x"), Bound::Unbounded), 0);
    within(
        &together,
        (Bound::Included(&bounds[0]), Bound::Included(&bounds[0])),
        1,
    );
    within(
        &together,
        (Bound::Excluded(&bounds[0]), Bound::Included(&bounds[0])),
        0,
    );
}

fn image(device: &MemoryDevice) -> Vec<u8> {
    let file = device.open("data.braid", OpenMode::Existing).unwrap();
    let mut bytes = AlignedBuf::new(file.len().unwrap() as usize);
    file.read_at(&mut bytes, 0).unwrap();
    bytes.to_vec()
}

fn device_of(image: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new();
    let file = device.open("data.braid", OpenMode::CreateNew).unwrap();
    let mut bytes = AlignedBuf::new(image.len());
    bytes.copy_from_slice(image);
    file.write_at(&[&bytes], 0).unwrap();
    Arc::new(device)
}

/// A file with keys of all lengths and large values, and its expected contents.
fn sample(seed: u64) -> (Vec<u8>, Model) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device.clone(), POOL).unwrap();
    let tree = store.tree(3).unwrap();
    let mut model = Model::new();
    for version in 1..220 {
        let (key, value) = (random_key(&mut rng), random_value(&mut rng));
        put(&tree, &key, version, &value);
        model.insert(key, (version, value));
    }
    checkpoint(&store);
    drop((tree, store));
    (image(&device), model)
}

fn covers(loss: &Loss, key: &[u8]) -> bool {
    match loss {
        Loss::Range { tree, from, to, .. } => {
            let begins = from.as_ref().is_none_or(|from| &from[..] <= key);
            *tree == 3 && begins && to.as_ref().is_none_or(|to| key < &to[..])
        }
        Loss::Value {
            tree, key: lost, ..
        } => *tree == 3 && lost == key,
        _ => false,
    }
}

/// Runs salvage. Returns the entries found and the losses.
fn salvaged(image: &[u8]) -> Result<(Model, Vec<Loss>), StoreError> {
    let salvage = Salvage::open(device_of(image))?;
    assert_eq!(salvage.tree_ids(), [3]);
    let (mut found, mut losses) = (Model::new(), Vec::new());
    let mut entry = |entry: SalvagedEntry<'_>| {
        assert_eq!(entry.trees, [3]);
        found.insert(entry.key.to_vec(), (entry.version, entry.value.to_vec()));
        Ok(())
    };
    salvage.read(&mut entry, &mut |loss| losses.push(loss))?;
    Ok((found, losses))
}

/// One damaged block at a time: an error names it, `verify` finds it, and salvage finds every
/// record or reports it.
#[test]
fn salvage_names_every_entry_lost_with_damaged_pages() {
    let (image, model) = sample(11);
    assert!(image.len() / PAGE_SIZE > 100);
    let (found, losses) = salvaged(&image).unwrap();
    assert!(found == model && losses.is_empty());
    let (mut some_lost, mut unreadable) = (0, 0);
    for block in 2..image.len() / PAGE_SIZE {
        let mut damaged = image.clone();
        damaged[block * PAGE_SIZE + 4_000] ^= 1;
        let Ok((found, losses)) = salvaged(&damaged) else {
            // The root, of which there is only one.
            unreadable += 1;
            continue;
        };
        for (key, record) in &model {
            let lost = losses.iter().any(|loss| covers(loss, key));
            match found.get(key) {
                Some(found) => assert!(found == record, "block {block}"),
                None => assert!(lost, "block {block}: nothing tells that a key is lost"),
            }
        }
        assert!(found.keys().all(|key| model.contains_key(key)));
        some_lost += u32::from(found.len() < model.len());
        let Ok((store, _)) = Store::open(device_of(&damaged), POOL) else {
            continue;
        };
        let is_found = !damages(&store).is_empty();
        let tree = store.tree(3).unwrap();
        let mut failed = 0;
        for (key, (version, value)) in &model {
            match tree.get(key, |_| true) {
                Ok(found) => {
                    let found = found.expect("no key is missing without an error");
                    assert!(found.meta.version == *version && found.value.unwrap() == *value);
                }
                Err(StoreError::Corrupted { .. }) => {
                    failed += 1;
                    let range = tree.condemn(key).unwrap().expect("a page is damaged");
                    assert_eq!(range.tree, 3);
                    let (from, to) = (range.from.as_deref(), range.to.as_deref());
                    assert!(from.is_none_or(|from| from <= &key[..]), "{}", range.keys());
                    assert!(to.is_none_or(|to| &key[..] < to), "{}", range.keys());
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(failed == 0 || is_found, "block {block}");
    }
    assert!(
        some_lost > 20 && unreadable <= 1,
        "{some_lost}, {unreadable}"
    );
}

/// A new long key needs the page with the counter of layers. If only that one is damaged, the key
/// itself becomes unreadable, and no other.
#[test]
fn a_key_whose_change_needs_a_damaged_page_is_unreadable() {
    let (image, model) = sample(11);
    let new = grouped_key(3_000, 123_456);
    assert!(!model.contains_key(&new));
    let mut lost = 0;
    for block in 2..image.len() / PAGE_SIZE {
        let mut damaged = image.clone();
        damaged[block * PAGE_SIZE + 4_000] ^= 1;
        let Ok((store, _)) = Store::open(device_of(&damaged), POOL) else {
            continue;
        };
        let tree = store.tree(3).unwrap();
        let put = Change::Put {
            version: 500,
            value: b"new",
        };
        let Err(cause) = tree.modify(&new, |_| (put, ())) else {
            continue;
        };
        if tree.condemn(&new).unwrap().is_some() {
            continue;
        }
        lost += 1;
        let range = tree.lose(&new, &cause).unwrap();
        assert_eq!(range.from.as_deref(), Some(&new[..]));
        let failed = tree.get(&new, |_| true).unwrap_err();
        assert_eq!(failed.to_string(), cause.to_string());
        let next = [&new[..], &[0]].concat();
        let from = |key: &[u8]| {
            let from = Bound::Included(key);
            tree.scan_leaf(None, from, Bound::Unbounded, Direction::Forward, 1)
        };
        assert!(from(&new).is_err());
        // Any other key is read, or its own page is damaged.
        for key in model.keys().chain([&next]) {
            if let Err(error) = tree.get(key, |_| true) {
                assert!(tree.condemn(key).unwrap().is_some(), "{error}");
            }
        }
    }
    assert!(lost > 0);
}

/// Writers create and remove the same layers, while readers read keys that always exist and keys
/// that never exist.
#[test]
fn readers_see_stable_keys_while_layers_come_and_go() {
    let options = StoreOptions::of_pool(512 << 10);
    let store = Store::create(Arc::new(MemoryDevice::new()), options).unwrap();
    let tree = store.tree(3).unwrap();
    // In one leaf and in several; the links before the ends are shared or not.
    let stable = |i: u32| match i % 2 {
        0 => grouped_key(6_000, i * 10),
        _ => [&i.to_be_bytes()[..], &grouped_key(2_500, 5)].concat(),
    };
    let moving = |i: u32| match i % 2 {
        0 => grouped_key(6_000, i * 10 + 1),
        _ => [&i.to_be_bytes()[..], &grouped_key(5_500, 6)].concat(),
    };
    for i in 0..40 {
        put(&tree, &stable(i), 1, &i.to_be_bytes());
        put(&tree, &i.to_be_bytes(), 1, b"short");
    }
    let (rounds, writers) = (if cfg!(miri) { 2 } else { 60 }, 2);
    let (left, done) = (AtomicU64::new(writers), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for writer in 0..writers as u32 {
            let (tree, left, done) = (tree.clone(), &left, &done);
            scope.spawn(move || {
                for round in 0..rounds {
                    for i in (0..40).filter(|i| i / 2 % 2 == writer) {
                        match round % 2 {
                            0 => put(&tree, &moving(i), round, b"moving"),
                            _ => remove(&tree, &moving(i)),
                        }
                    }
                }
                // Release: pairs with the readers' Acquire.
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    done.store(true, Ordering::Release);
                }
            });
        }
        for reader in 0..2 {
            let (tree, done) = (tree.clone(), &done);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(reader);
                while !done.load(Ordering::Acquire) {
                    let i = rng.u32(..40);
                    let found = get(&tree, &stable(i));
                    assert_eq!(found, Some((1, i.to_be_bytes().to_vec())));
                    assert_eq!(get(&tree, &grouped_key(5_999, i)), None);
                    let direction = if rng.bool() {
                        Direction::Forward
                    } else {
                        Direction::Reverse
                    };
                    let all = scan(&tree, ALL, direction);
                    let order = |(a, _, _): &(Bytes, u64, Bytes), (b, _, _): &_| match direction {
                        Direction::Forward => a < b,
                        Direction::Reverse => a > b,
                    };
                    assert!(all.is_sorted_by(order));
                    let stable = all.iter().filter(|(_, _, value)| &value[..] != b"moving");
                    assert_eq!(stable.count(), 80);
                }
            });
        }
    });
    checkpoint(&store);
    assert_sound(&store, 80, 0);
}

/// A stamp of a leaf covers the long keys in its range, the first one too: validating the stamp
/// detects phantoms.
#[test]
fn a_stamp_covers_long_keys() {
    for with_others in [false, true] {
        let store = Store::create(Arc::new(MemoryDevice::new()), POOL).unwrap();
        let tree = store.tree(3).unwrap();
        put(&tree, b"a", 1, b"short");
        if with_others {
            put(&tree, &grouped_key(3_000, 1), 1, b"long");
        }
        let key = grouped_key(3_000, 2);
        let stamps = || {
            let mut hint = LeafHint::default();
            assert_eq!(
                tree.read_at(&mut hint, &key, |_| true, |_| ()).unwrap(),
                None
            );
            let scan = tree.scan_leaf(None, ALL.0, ALL.1, Direction::Forward, 100);
            [hint.stamp(), scan.unwrap().stamp]
        };
        let before = stamps();
        assert!(before.iter().all(|stamp| tree.is_current(*stamp)));
        put(&tree, &key, 2, b"new");
        assert!(!before.iter().any(|stamp| tree.is_current(*stamp)));
        remove(&tree, &key);
        let before = stamps();
        put(&tree, &key, 3, b"again");
        remove(&tree, &key);
        assert!(!before.iter().any(|stamp| tree.is_current(*stamp)));
    }
}
