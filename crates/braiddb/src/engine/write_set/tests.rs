//! Tests of [`WriteSet`] against a model.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use super::*;

#[test]
fn a_write_set_is_a_map_whose_payload_holds_each_key_once() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
        let mut set = WriteSet::default();
        let mut model = BTreeMap::new();
        for _ in 0..rng.usize(0..60) {
            let key = vec![b'k'; rng.usize(0..30)];
            let value = rng.bool().then(|| vec![rng.u8(..); rng.usize(0..50)]);
            set.put(xxh3_64(&key), 0, 3, &key, value.as_deref());
            model.insert(key, value);
        }
        for len in 0..30 {
            let key = vec![b'k'; len];
            let found = set
                .find(xxh3_64(&key), 0, &key)
                .map(|v| v.map(<[u8]>::to_vec));
            assert_eq!(found, model.get(&key).cloned(), "seed {seed}");
        }
        let sorted = set.sorted_range(0, Bound::Excluded(b"k"), Bound::Unbounded);
        let of_model = model.iter().filter(|(k, _)| k.len() > 1);
        assert!(
            sorted
                .iter()
                .map(|w| (w.key.to_vec(), w.value.as_ref().map(|v| v.to_vec())))
                .eq(of_model.map(|(k, v)| (k.clone(), v.clone()))),
            "seed {seed}"
        );
        let payload = set.log_payload().to_vec();
        let mut logged = BTreeMap::new();
        for redo in redo::decode(&payload) {
            let redo = redo.unwrap();
            let before = logged.insert(redo.key.to_vec(), redo.value.map(<[u8]>::to_vec));
            assert_eq!(before, None, "a key is logged once; seed {seed}");
        }
        assert_eq!(logged, model, "seed {seed}");
        for write in set.live() {
            assert_eq!(
                model[set.key(write)].as_deref(),
                set.value(write),
                "seed {seed}"
            );
        }
    }
}

/// What a transaction has written: the values of keys of tables, `None` for removals.
type Model = BTreeMap<(u32, Vec<u8>), Option<Vec<u8>>>;

fn own(set: &mut WriteSet, table: u32, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Model {
    let found = set.sorted_range(table, bounds.0, bounds.1);
    let is_sorted = found.is_sorted_by(|a, b| a.key < b.key);
    assert!(is_sorted, "one write for each key, in their order");
    let entries = found.into_iter().map(|write| {
        let value = write.value.map(|value| value.to_vec());
        ((table, write.key.to_vec()), value)
    });
    entries.collect()
}

#[test]
fn scans_between_writes_and_savepoints_return_the_newest_write_of_each_key() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..if cfg!(miri) { 2 } else { 100 } {
        let mut set = WriteSet::default();
        let mut model = Model::new();
        let mut savepoints: Vec<(u64, Model)> = Vec::new();
        for _ in 0..rng.usize(0..150) {
            match rng.u8(0..8) {
                0 => savepoints.push((set.savepoint(), model.clone())),
                1 if !savepoints.is_empty() => {
                    savepoints.truncate(rng.usize(1..=savepoints.len()));
                    let (savepoint, before) = savepoints.last().unwrap();
                    assert!(set.rollback_to(*savepoint));
                    model.clone_from(before);
                }
                2 | 3 => {
                    let table = rng.u32(0..3);
                    let (low, high) = ([rng.u8(0..20)], [rng.u8(20..40)]);
                    let mut bound = |key| match rng.u8(0..3) {
                        0 => Bound::Included(key),
                        1 => Bound::Excluded(key),
                        _ => Bound::Unbounded,
                    };
                    let bounds = (bound(&low[..]), bound(&high[..]));
                    let inside = model.iter().filter(|((of, key), _)| {
                        *of == table && in_bounds(key, bounds.0, bounds.1)
                    });
                    let expected: Model = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
                    assert_eq!(own(&mut set, table, bounds), expected, "seed {seed}");
                }
                _ => {
                    let (table, key) = (rng.u32(0..3), vec![rng.u8(0..40)]);
                    let value = rng.bool().then(|| vec![rng.u8(..); rng.usize(0..9)]);
                    let hash = xxh3_64(&key) ^ u64::from(table);
                    set.put(hash, table, table, &key, value.as_deref());
                    model.insert((table, key), value);
                }
            }
        }
    }
}
