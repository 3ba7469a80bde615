//! The store compared with `BTreeMap`: operations, scans, checkpoints, reopening, with a pool so
//! small that pages are loaded and evicted all the time.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_io::MemoryDevice;
use braid_store::{Change, Direction, Position, Store, StoreOptions, Tree};
use bytes::Bytes;

type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

const SMALL_POOL: StoreOptions = StoreOptions::of_pool(1 << 20);

fn random_key(rng: &mut fastrand::Rng, space: u32) -> Vec<u8> {
    let mut key = format!("key-{:06}", rng.u32(..space)).into_bytes();
    if key[9] % 3 == 0 {
        key.extend(std::iter::repeat_n(b'x', usize::from(key[8] - b'0') * 90));
    }
    key
}

fn random_value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(..) {
        0..3 => rng.usize(2_000..60_000),
        3..30 => rng.usize(500..2_000),
        _ => rng.usize(0..120),
    };
    vec![rng.u8(..); len]
}

fn put(tree: &Tree, key: &[u8], version: u64, value: &[u8]) {
    tree.modify(key, |_| (Change::Put { version, value }, ()))
        .unwrap();
}

fn scan(
    tree: &Tree,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
    direction: Direction,
) -> Vec<(Bytes, u64, Bytes)> {
    let (mut from, to) = match direction {
        Direction::Forward => (lower.map(Bytes::copy_from_slice), upper),
        Direction::Reverse => (upper.map(Bytes::copy_from_slice), lower),
    };
    let (mut out, mut position) = (Vec::new(), None);
    let mut at_most = [1, 2, 13, usize::MAX].into_iter().cycle();
    loop {
        let at_most = at_most.next().unwrap();
        let leaf = tree
            .scan_leaf(
                position,
                from.as_ref().map(|b| &b[..]),
                to,
                direction,
                at_most,
            )
            .unwrap();
        assert!(leaf.len() <= at_most);
        for (i, record) in leaf.records().enumerate() {
            assert_eq!(record, leaf.record(i));
            let (key, value) = (leaf.key(i), leaf.value(i));
            assert_eq!((record.key, record.value), (&key[..], &value[..]));
            out.push((key, record.meta.version, value));
        }
        match leaf.next {
            Some(next) => (from, position) = (next, leaf.position),
            None => return out,
        }
    }
}

fn check(tree: &Tree, model: &Model, seed: u64) {
    let all = scan(tree, Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert_eq!(all.len(), model.len(), "seed {seed}");
    for ((key, version, value), (model_key, (model_version, model_value))) in all.iter().zip(model)
    {
        assert_eq!(
            (&key[..], version),
            (&model_key[..], model_version),
            "seed {seed}"
        );
        assert!(value[..] == model_value[..], "seed {seed}, key {key:?}");
    }
}

fn check_ranges(tree: &Tree, model: &Model, rng: &mut fastrand::Rng, seed: u64) {
    for _ in 0..20 {
        let (a, b) = (random_key(rng, 3_000), random_key(rng, 3_000));
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        let bound = |key: Vec<u8>, kind: u8| match kind {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let (lower, upper) = (bound(a.clone(), rng.u8(..3)), bound(b.clone(), rng.u8(..3)));
        if a == b {
            continue;
        }
        let expected: Vec<&Vec<u8>> = model
            .range((lower.clone(), upper.clone()))
            .map(|(key, _)| key)
            .collect();
        let slices = (
            lower.as_ref().map(|k| &k[..]),
            upper.as_ref().map(|k| &k[..]),
        );
        let forward = scan(tree, slices.0, slices.1, Direction::Forward);
        let mut reverse = scan(tree, slices.0, slices.1, Direction::Reverse);
        assert!(
            forward
                .iter()
                .map(|r| &r.0[..])
                .eq(expected.iter().map(|k| &k[..])),
            "seed {seed}"
        );
        reverse.reverse();
        assert!(forward == reverse, "seed {seed}");
    }
}

fn step(tree: &Tree, model: &mut Model, rng: &mut fastrand::Rng, version: u64, removals: u8) {
    let key = random_key(rng, 3_000);
    if rng.u8(..) < removals {
        tree.modify(&key, |old| {
            (
                if old.is_some() {
                    Change::Remove
                } else {
                    Change::Keep
                },
                (),
            )
        })
        .unwrap();
        model.remove(&key);
    } else {
        let value = random_value(rng);
        put(tree, &key, version, &value);
        model.insert(key, (version, value));
    }
}

fn checkpoint(store: &Store) {
    let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
    checkpoint.write(&|_| {}).unwrap();
    checkpoint.publish().unwrap();
}

fn assert_sound(store: &Store, seed: u64) {
    let mut damages = Vec::new();
    store
        .verify(&mut |damage| damages.push(damage.what))
        .unwrap();
    assert!(damages.is_empty(), "seed {seed}: {damages:?}");
}

#[test]
fn operations_agree_with_a_map_under_eviction() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(MemoryDevice::new());
        let store = Store::create(device, SMALL_POOL).unwrap();
        let tree = store.tree(3).unwrap();
        let mut model = Model::new();
        for version in 1..12_000 {
            let removals = if version % 6_000 < 3_000 { 40 } else { 200 };
            step(&tree, &mut model, &mut rng, version, removals);
            if version % 1_000 == 0 {
                check_ranges(&tree, &model, &mut rng, seed);
            }
        }
        check(&tree, &model, seed);
        for key in model.keys().take(200) {
            let found = tree.get(key, |_| true).unwrap();
            assert_eq!(found.unwrap().value.unwrap(), model[key].1);
        }
        assert!(
            store.stats().evictions > 0,
            "the pool is too small for everything"
        );
        checkpoint(&store);
        assert_sound(&store, seed);
    }
}

/// A scan between two steps.
struct Paused {
    tree: usize,
    direction: Direction,
    from: Bound<Bytes>,
    position: Option<Position>,
}

/// Steps of scans from the ends of earlier ones, of any age: they read the same records as a
/// descent.
#[test]
fn a_step_from_any_position_is_that_from_the_root() {
    for seed in 0..if cfg!(miri) { 1 } else { 6 } {
        let mut rng = fastrand::Rng::with_seed(seed);
        let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
        let trees = [store.tree(3).unwrap(), store.tree(4).unwrap()];
        let mut models = [Model::new(), Model::new()];
        let mut paused: Vec<Paused> = Vec::new();
        for version in 1..if cfg!(miri) { 300 } else { 20_000 } {
            let at = rng.usize(..2);
            let removals = if version % 6_000 < 3_000 { 40 } else { 200 };
            step(&trees[at], &mut models[at], &mut rng, version, removals);
            if paused.len() < 8 {
                paused.push(Paused {
                    tree: rng.usize(..2),
                    direction: [Direction::Forward, Direction::Reverse][rng.usize(..2)],
                    from: Bound::Unbounded,
                    position: None,
                });
            }
            let mut scan = paused.swap_remove(rng.usize(..paused.len()));
            let from = scan.from.as_ref().map(|key| &key[..]);
            let at_most = [1, 5, usize::MAX][rng.usize(..3)];
            let leaf = |position| {
                let tree = &trees[scan.tree];
                tree.scan_leaf(position, from, Bound::Unbounded, scan.direction, at_most)
                    .unwrap()
            };
            let (found, wanted) = (leaf(scan.position), leaf(None));
            assert!(found.records().eq(wanted.records()), "seed {seed}");
            assert_eq!(found.next, wanted.next, "seed {seed}");
            // The records equal the map's.
            let keys = found.records().map(|record| record.key);
            let model = &models[scan.tree];
            let is_that = match scan.direction {
                Direction::Forward => model
                    .range::<[u8], _>((from, Bound::Unbounded))
                    .zip(keys)
                    .all(|((wanted, _), found)| wanted == found),
                Direction::Reverse => model
                    .range::<[u8], _>((Bound::Unbounded, from))
                    .rev()
                    .zip(keys)
                    .all(|((wanted, _), found)| wanted == found),
            };
            assert!(is_that, "seed {seed}");
            if let Some(next) = found.next {
                (scan.from, scan.position) = (next, found.position);
                paused.push(scan);
            }
        }
        assert!(store.stats().evictions > 0 || cfg!(miri), "seed {seed}");
    }
}

/// After reopening, the state is that at the epoch switch of the newest published checkpoint,
/// independently of changes between its epoch switch, its writing and its publication, or after it.
#[test]
fn reopening_leads_to_the_epoch_switch_of_the_newest_checkpoint() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(MemoryDevice::new());
        let mut store = Store::create(device.clone(), SMALL_POOL).unwrap();
        let mut model = Model::new();
        let mut version = 0;
        let mut published: Option<(Model, Vec<u8>)> = None;
        for round in 0..12 {
            let tree = store.tree(3).unwrap();
            let mut steps = |model: &mut Model, rng: &mut fastrand::Rng, most: usize| {
                for _ in 0..rng.usize(0..most) {
                    version += 1;
                    let removals = if round % 4 == 3 { 220 } else { 60 };
                    step(&tree, model, rng, version, removals);
                }
            };
            steps(&mut model, &mut rng, 1_500);
            let meta = vec![round as u8; rng.usize(0..20_000)];
            let mut checkpoint = store.begin_checkpoint(meta.clone()).unwrap();
            let at_switch = model.clone();
            steps(&mut model, &mut rng, 800);
            checkpoint.write(&|_| {}).unwrap();
            steps(&mut model, &mut rng, 800);
            if rng.u8(..) < 200 {
                checkpoint.publish().unwrap();
                published = Some((at_switch, meta));
            } else {
                drop(checkpoint);
            }
            steps(&mut model, &mut rng, 300);
            check(&tree, &model, seed);
            if rng.u8(..) < 128
                && let Some((at_switch, meta)) = &published
            {
                drop(tree);
                drop(store);
                let (opened, opened_meta) = Store::open(device.clone(), SMALL_POOL).unwrap();
                assert!(&opened_meta == meta, "seed {seed}");
                store = opened;
                assert_sound(&store, seed);
                model = at_switch.clone();
                check(&store.tree(3).unwrap(), &model, seed);
            }
        }
    }
}

#[test]
fn a_file_shrinks_when_its_data_is_gone() {
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device.clone(), SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    for i in 0..20_000u32 {
        put(&tree, &i.to_be_bytes(), 1, &[7; 500]);
    }
    checkpoint(&store);
    let full = store.stats().file_bytes;
    for i in (0..20_000u32).filter(|i| i % 100 != 0) {
        tree.modify(&i.to_be_bytes(), |_| (Change::Remove, ()))
            .unwrap();
    }
    for _ in 0..4 {
        checkpoint(&store);
    }
    let shrunk = store.stats().file_bytes;
    assert!(shrunk * 5 < full, "{full} bytes became {shrunk}");
    assert_sound(&store, 0);
    let (store, _) = Store::open(device, SMALL_POOL).unwrap();
    let left = scan(
        &store.tree(1).unwrap(),
        Bound::Unbounded,
        Bound::Unbounded,
        Direction::Forward,
    );
    assert_eq!(left.len(), 200);
}

/// Returns the bytes of keys, values and record heads per byte of page, after inserting eight-byte
/// keys with hundred-byte values in an order.
fn fill_factor(keys: impl Iterator<Item = u64>) -> f64 {
    let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    let mut count = 0u64;
    for key in keys {
        count += 1;
        put(&tree, &key.to_be_bytes(), count, &[7; 100]);
    }
    assert_sound(&store, 0);
    let stats = store.stats();
    (count * (8 + 100 + 16)) as f64 / (stats.pages * stats.page_size as u64) as f64
}

#[test]
fn ascending_keys_leave_full_pages() {
    let ascending = fill_factor(0..30_000);
    assert!(ascending > 0.85, "ascending: {ascending}");
    // Like the orders of forty districts: each district's orders are inserted in the middle of the
    // tree.
    let rows = fill_factor((0..750).flat_map(|i| (0..40).map(move |row| row * 1_000_000 + i)));
    assert!(rows > 0.8, "forty rows: {rows}");
    let mut scattered: Vec<u64> = (0..30_000).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut scattered);
    let scattered = fill_factor(scattered.into_iter());
    assert!(scattered > 0.55, "scattered: {scattered}");
}

#[test]
fn values_of_64_mib_go_in_and_out() {
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device, SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    let large: Vec<u8> = (0..64 << 20).map(|i: u32| ((i * 7) >> 3) as u8).collect();
    put(&tree, b"large", 1, &large);
    let found = tree.get(b"large", |_| true).unwrap().unwrap();
    let value = found.value.unwrap();
    assert!(value[..] == large[..]);
    put(&tree, b"large", 2, b"small");
    checkpoint(&store);
    assert!(
        store.stats().pages < 10,
        "the pages of the old value are free"
    );
}

#[test]
fn dropped_trees_leave_nothing() {
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device, SMALL_POOL).unwrap();
    let kept = store.tree(1).unwrap();
    put(&kept, b"k", 1, b"v");
    let tree = store.tree(2).unwrap();
    for i in 0..5_000u32 {
        put(
            &tree,
            &i.to_be_bytes(),
            1,
            &vec![1; if i % 500 == 0 { 30_000 } else { 100 }],
        );
    }
    checkpoint(&store);
    drop(tree);
    store.drop_tree(2).unwrap();
    checkpoint(&store);
    assert_eq!(store.stats().pages, 1);
    assert_eq!(store.tree_ids(), [1]);
    assert_sound(&store, 0);
}

#[test]
fn damage_is_found_and_named() {
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device.clone(), SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    for i in 0..2_000u32 {
        put(&tree, &i.to_be_bytes(), 1, &[7; 100]);
    }
    checkpoint(&store);
    checkpoint(&store);
    drop((tree, store));
    use braid_io::{Device, OpenMode};
    let file = device.open("data.braid", OpenMode::Existing).unwrap();
    let blocks = file.len().unwrap() / 8192;
    for block in 0..blocks {
        let mut buf = vec![0; 8192];
        file.read_at(&mut buf, block * 8192).unwrap();
        let intact = buf.clone();
        buf[5_000] ^= 1;
        file.write_at(&[&buf], block * 8192).unwrap();
        match Store::open(device.clone(), SMALL_POOL) {
            Err(error) => assert!(error.to_string().contains("corrupted"), "{error}"),
            Ok((store, _)) => {
                let mut damages = Vec::new();
                store
                    .verify(&mut |damage| damages.push(damage.what))
                    .unwrap();
                // A block that nothing refers to may hold anything.
                let is_free = store.stats().file_free_bytes > 0 && damages.is_empty();
                assert!(is_free || !damages.is_empty(), "block {block}");
            }
        }
        file.write_at(&[&intact], block * 8192).unwrap();
    }
}

/// Writers on their own keys, readers and scanners everywhere, checkpoints in between, in a small
/// pool.
#[test]
#[allow(
    clippy::too_many_lines,
    reason = "one scene of several kinds of threads"
)]
fn threads_see_whole_records_in_order() {
    let device = Arc::new(MemoryDevice::new());
    let store = Store::create(device.clone(), SMALL_POOL).unwrap();
    let tree = store.tree(1).unwrap();
    let stop = AtomicBool::new(false);
    const WRITERS: u32 = 3;
    let gate = braid_rt::RwLock::new(());
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (tree, gate) = (&tree, &gate);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(u64::from(writer));
                    let mut mine = BTreeMap::new();
                    for version in 1..8_000u64 {
                        let key = (rng.u32(..2_000) * WRITERS + writer).to_be_bytes();
                        let _gate = gate.read();
                        if rng.u8(..) < 60 {
                            tree.modify(&key, |_| (Change::Remove, ())).unwrap();
                            mine.remove(&key);
                        } else {
                            let len = if rng.u8(..) == 0 {
                                9_000
                            } else {
                                rng.usize(1..200)
                            };
                            let value = vec![key[3]; len];
                            put(tree, &key, version, &value);
                            mine.insert(key, version);
                        }
                    }
                    mine
                })
            })
            .collect();
        for reader in 0..2 {
            let (tree, stop) = (&tree, &stop);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(100 + reader);
                while !stop.load(Ordering::Relaxed) {
                    let key = rng.u32(..2_000 * WRITERS).to_be_bytes();
                    if let Some(found) = tree.get(&key, |_| true).unwrap() {
                        let value = found.value.unwrap();
                        assert!(value.iter().all(|b| *b == key[3]));
                    }
                    let direction = if rng.bool() {
                        Direction::Forward
                    } else {
                        Direction::Reverse
                    };
                    let records = scan(tree, Bound::Unbounded, Bound::Unbounded, direction);
                    let ordered = match direction {
                        Direction::Forward => records.is_sorted_by(|a, b| a.0 < b.0),
                        Direction::Reverse => records.is_sorted_by(|a, b| a.0 > b.0),
                    };
                    assert!(ordered);
                    assert!(records.iter().all(|r| r.2.iter().all(|b| *b == r.0[3])));
                }
            });
        }
        for _ in 0..10 {
            let epoch_switch = gate.write();
            let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
            drop(epoch_switch);
            checkpoint.write(&|_| {}).unwrap();
            checkpoint.publish().unwrap();
        }
        let mut expected = BTreeMap::new();
        for writer in writers {
            expected.extend(writer.join().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        let all = scan(
            &tree,
            Bound::Unbounded,
            Bound::Unbounded,
            Direction::Forward,
        );
        let all: BTreeMap<[u8; 4], u64> = all
            .into_iter()
            .map(|(key, version, _)| (key[..].try_into().unwrap(), version))
            .collect();
        assert!(all == expected);
    });
    checkpoint(&store);
    assert_sound(&store, 0);
}

/// Long keys in ascending order before a short one: the separator between the two is as long as the
/// keys, and leaves no room in a leaf full of such keys.
#[test]
fn a_row_of_long_keys_before_a_short_one_finds_room() {
    for len in [300, 480, 600, 700, 900, 1_020] {
        let store = Store::create(Arc::new(MemoryDevice::new()), SMALL_POOL).unwrap();
        let tree = store.tree(1).unwrap();
        let mut model = Model::new();
        put(&tree, b"z", 1, b"");
        model.insert(b"z".to_vec(), (1, Vec::new()));
        for i in 2..100_u64 {
            let key = [&vec![b'x'; len - 8][..], &i.to_be_bytes()].concat();
            put(&tree, &key, i, b"");
            model.insert(key, (i, Vec::new()));
        }
        check(&tree, &model, len as u64);
        checkpoint(&store);
        assert_sound(&store, len as u64);
    }
}
