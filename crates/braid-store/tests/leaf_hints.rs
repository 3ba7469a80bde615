//! Leaf hints: with every hint, valid or not, reads and changes reach the same record as a descent.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_io::MemoryDevice;
use braid_store::{Change, LeafHint, OldRecord, Store, StoreOptions, Tree};

const KEYS: u32 = if cfg!(miri) { 60 } else { 2_000 };

/// A pool smaller than the trees.
const POOL: StoreOptions = StoreOptions::of_pool(512 << 10);

fn key(number: u32) -> Vec<u8> {
    if number % 5 == 4 {
        // A hint records only the beginning, which others share.
        return format!("{:06}{}{number:06}", number / 50, "x".repeat(30)).into_bytes();
    }
    let mut key = format!("{number:06}").into_bytes();
    // Some too long to be recorded as a whole, and some just short enough.
    key.extend(vec![b'x'; [0, 3, 10, 11][number as usize % 5]]);
    key
}

type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

fn check(tree: &Tree, model: &Model, hint: &mut LeafHint, key: &[u8]) {
    let found = tree
        .read_at(hint, key, |_| true, |value| value.to_vec())
        .unwrap();
    let found = found.map(|(meta, value)| (meta.version, value.unwrap()));
    assert_eq!(found.as_ref(), model.get(key), "key {key:?}");
}

/// Finds a key with one hint, which another one follows, and a third may copy.
fn seek(tree: &Tree, key: &[u8], hints: &mut [LeafHint; 6], rng: &mut fastrand::Rng) {
    let (found, last) = (rng.usize(..6), rng.usize(..6));
    tree.seek(&mut hints[found], key);
    let found = hints[found];
    hints[last].follow_read(&found);
    if rng.bool() {
        hints[rng.usize(..6)] = hints[last];
    }
}

/// Draws two different hints.
fn two<'h>(
    hints: &'h mut [LeafHint; 6],
    rng: &mut fastrand::Rng,
) -> (&'h mut LeafHint, &'h mut LeafHint) {
    let first = rng.usize(..6);
    match hints.split_at_mut(first.max(1)) {
        (before, after) if first == 0 => (&mut before[0], &mut after[rng.usize(..5)]),
        (before, after) => (&mut after[0], &mut before[rng.usize(..first)]),
    }
}

/// Many leaf hints at random for keys of two trees: their own, those of others, and those of long
/// ago, while leaves split and merge and pages are loaded and evicted.
#[test]
fn a_leaf_hint_of_anything_does_no_harm() {
    // The first one found hints of reads that followed an approach to an inner page.
    for seed in [8_419_106_937_979_520_439, fastrand::u64(..)] {
        hint_at_random(seed);
    }
}

fn hint_at_random(seed: u64) {
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..if cfg!(miri) { 1 } else { 4 } {
        let store = Store::create(Arc::new(MemoryDevice::new()), POOL).unwrap();
        let trees = [store.tree(3).unwrap(), store.tree(4).unwrap()];
        let mut models = [Model::new(), Model::new()];
        let mut hints = [LeafHint::default(); 6];
        let (mut near, mut levels) = (0, 0);
        for version in 1..if cfg!(miri) { 400 } else { 40_000 } {
            if rng.u8(..) < 30 {
                near = rng.u32(..KEYS);
            }
            // Few keys at a time, so that a leaf hint usually belongs to this key, or to a
            // neighbour.
            let number = near + rng.u32(..3);
            let at = usize::from(rng.u8(..) < 60);
            let (tree, model) = (&trees[at], &mut models[at]);
            let (key, hint) = (key(number), &mut hints[rng.usize(..6)]);
            let shrinks = version / 5_000 % 2 == 1;
            if rng.bool() {
                tree.approach(hint, &key, levels);
                let other = &mut hints[rng.usize(..6)];
                if rng.bool() && other.is_of(tree, &key) {
                    tree.locate(other, &key, &mut levels);
                }
            }
            if rng.u8(..) < 100 {
                seek(tree, &key, &mut hints, &mut rng);
            }
            let (hint, other) = two(&mut hints, &mut rng);
            match rng.u8(..16) {
                0 => {
                    let ahead = [number, number + 1, number + 2].map(self::key);
                    let ahead: Vec<&[u8]> = ahead.iter().map(|key| &key[..]).collect();
                    let mut others = hints.iter_mut().skip(3);
                    let hint = |_: &_, found| *others.next().unwrap() = found;
                    tree.prefetch(&ahead, hint).unwrap();
                }
                1..5 if shrinks => {
                    let was_there = tree.modify_at(hint, &key, |old| match old {
                        Some(_) => (Change::Remove, true),
                        None => (Change::Keep, false),
                    });
                    assert_eq!(was_there.unwrap(), model.remove(&key).is_some());
                }
                1..10 => {
                    // Usually in place.
                    let len = 200 + [0, 0, 0, 70, 3_000][rng.usize(..5)];
                    let value = vec![version as u8; len];
                    let put = Change::Put {
                        version,
                        value: &value,
                    };
                    let other = hint.is_of(tree, &key).then_some(other);
                    let meta = |old: Option<OldRecord<'_>>| (put, old.map(|o| o.meta()));
                    let before = tree.modify_near(hint, other, &key, meta);
                    let before = before.unwrap().map(|meta| meta.version);
                    let replaced = model.insert(key, (version, value));
                    assert_eq!(before, replaced.map(|(version, _)| version));
                }
                _ => check(tree, model, hint, &key),
            }
        }
        for (tree, model) in trees.iter().zip(&models) {
            let mut hint = LeafHint::default();
            (0..KEYS + 5).for_each(|number| check(tree, model, &mut hint, &key(number)));
        }
        assert!(store.stats().evictions > 0 || cfg!(miri));
        let mut damages = Vec::new();
        let mut checkpoint = store.begin_checkpoint(Vec::new()).unwrap();
        checkpoint.write(&|_| {}).unwrap();
        checkpoint.publish().unwrap();
        store
            .verify(&mut |damage| damages.push(damage.what))
            .unwrap();
        assert!(damages.is_empty(), "{damages:?}");
    }
}
