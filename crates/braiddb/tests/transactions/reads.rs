//! What a transaction reads: its own writes, ranges, values in place.

use std::collections::BTreeMap;

use braid::{Bytes, Database, Readable, Table, TransactionOptions};

use super::{SNAPSHOT, both};

#[test]
fn operations_read_their_own_writes() {
    both(|db| {
        let t: Table<u64, String> = db.open_table("t").unwrap();
        let mut tx = db.begin();
        tx.insert(&t, &1, "one").unwrap();
        assert_eq!(tx.replace(&t, &1, "uno").unwrap().as_deref(), Some("one"));
        assert!(tx.insert_if_absent(&t, &2, "two").unwrap());
        assert!(!tx.insert_if_absent(&t, &2, "zwei").unwrap());
        assert!(tx.remove(&t, &1).unwrap() && !tx.remove(&t, &1).unwrap());
        assert_eq!(tx.get(&t, &1).unwrap(), None);
        assert_eq!(tx.take(&t, &2).unwrap().as_deref(), Some("two"));
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert!(tx.compare_and_set(&t, &3, None, Some(&a)).unwrap());
        assert!(!tx.compare_and_set(&t, &3, Some(&b), Some(&a)).unwrap());
        assert!(tx.compare_and_set(&t, &3, Some(&a), Some(&b)).unwrap());
        let before = tx.fetch_update(&t, &3, |v| v.map(|v| v + "!")).unwrap();
        assert_eq!(before.as_deref(), Some("b"));
        tx.commit().unwrap();
        assert_eq!(db.get(&t, &3).unwrap().as_deref(), Some("b!"));
        assert_eq!(db.snapshot().first(&t).unwrap(), Some((3, "b!".to_owned())));
        drop(db.begin().insert(&t, &9, "dropped"));
        assert!(!db.snapshot().contains_key(&t, &9).unwrap());
    });
}

#[test]
fn entries_are_taken_from_the_ends_and_by_a_condition() {
    both(|db| {
        let t: Table<u32, u32> = db.open_table("t").unwrap();
        assert!(db.snapshot().is_empty(&t).unwrap());
        db.transact(|tx| (0..10).try_for_each(|i| tx.insert(&t, &i, &(i * i))))
            .unwrap();
        let mut tx = db.begin();
        // The transaction also takes entries that it wrote itself.
        tx.insert(&t, &10, &100).unwrap();
        tx.remove(&t, &0).unwrap();
        assert_eq!(tx.len(&t).unwrap(), 10);
        assert_eq!(tx.pop_first(&t).unwrap(), Some((1, 1)));
        assert_eq!(tx.pop_last(&t).unwrap(), Some((10, 100)));
        assert_eq!(tx.pop_last(&t).unwrap(), Some((9, 81)));
        // Of 2 to 8: those from 4 on with an odd square.
        let mut looked_at = Vec::new();
        let removed = tx.retain(&t, 4.., |key, value| {
            looked_at.push(*key);
            value % 2 == 0
        });
        assert_eq!(removed.unwrap(), 2);
        assert_eq!(looked_at, [4, 5, 6, 7, 8]);
        assert_eq!(
            (tx.len(&t).unwrap(), db.snapshot().len(&t).unwrap()),
            (5, 10)
        );
        tx.commit().unwrap();
        let left: Vec<u32> = db
            .snapshot()
            .iter(&t)
            .unwrap()
            .map(|e| e.unwrap().0)
            .collect();
        assert_eq!(left, [2, 3, 4, 6, 8]);
        let left = std::iter::from_fn(|| db.transact(|tx| tx.pop_last(&t)).unwrap());
        assert_eq!(left.count(), 5);
        assert!(db.snapshot().is_empty(&t).unwrap());
        assert_eq!(db.begin().pop_first(&t).unwrap(), None);
    });
}

#[test]
fn threads_that_pop_get_each_entry_once() {
    const ENTRIES: u64 = 200;
    for options in [TransactionOptions::default(), SNAPSHOT] {
        let db = Database::in_memory().unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| (0..ENTRIES).try_for_each(|i| tx.insert(&t, &i, &!i)))
            .unwrap();
        let mut taken: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let (db, t) = (&db, &t);
                    let pop = move || match thread % 2 {
                        0 => db.transact_with(options, |tx| tx.pop_first(t)),
                        _ => db.transact_with(options, |tx| tx.pop_last(t)),
                    };
                    scope.spawn(move || std::iter::from_fn(|| pop().unwrap()).collect::<Vec<_>>())
                })
                .collect();
            let taken = threads.into_iter().map(|thread| thread.join().unwrap());
            taken.flatten().collect()
        });
        taken.sort_unstable();
        let all: Vec<(u64, u64)> = (0..ENTRIES).map(|i| (i, !i)).collect();
        assert_eq!(taken, all, "{options:?}");
    }
}

#[test]
fn ranges_merge_the_tree_with_own_writes_from_both_ends() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let db = Database::builder()
            .pool_bytes(1 << 20)
            .background_threads(false)
            .open_on(std::sync::Arc::new(braid::device::MemoryDevice::new()))
            .unwrap();
        let t: Table<u16, Bytes> = db.open_table("t").unwrap();
        let mut model = BTreeMap::new();
        let mut tx = db.begin();
        for i in 0..rng.u16(0..400) {
            if rng.u8(..) < 8 {
                tx.commit().unwrap();
                tx = db.begin();
            }
            let key = rng.u16(..600);
            if rng.bool() {
                let value = vec![i as u8; rng.usize(..200)];
                tx.insert(&t, &key, &value).unwrap();
                model.insert(key, value);
            } else {
                assert_eq!(tx.remove(&t, &key).unwrap(), model.remove(&key).is_some());
            }
        }
        for _ in 0..10 {
            let (a, b) = (rng.u16(..600), rng.u16(..600));
            let expected: Vec<u16> = if a <= b {
                model.range(a..b).map(|(k, _)| *k).collect()
            } else {
                Vec::new()
            };
            let mut range = tx.range(&t, a..b).unwrap();
            let (mut front, mut back) = (Vec::new(), Vec::new());
            loop {
                let from_front = rng.bool();
                let item = if from_front {
                    range.next()
                } else {
                    range.next_back()
                };
                let Some(item) = item else { break };
                let (key, value) = item.unwrap();
                assert_eq!(&value[..], &model[&key][..], "seed {seed}");
                if from_front {
                    front.push(key)
                } else {
                    back.push(key)
                }
            }
            assert!(range.next().is_none() && range.next_back().is_none());
            front.extend(back.into_iter().rev());
            assert_eq!(front, expected, "seed {seed}");
        }
        let last = tx.last(&t).unwrap().map(|(key, _)| key);
        assert_eq!(last, model.keys().next_back().copied());
        tx.commit().unwrap();
        let all: Vec<u16> = db
            .snapshot()
            .iter(&t)
            .unwrap()
            .map(|e| e.unwrap().0)
            .collect();
        assert!(all.iter().eq(model.keys()), "seed {seed}");
    }
}

#[test]
fn prefixes_are_ranges_of_strings() {
    both(|db| {
        let t: Table<String, u64> = db.open_table("t").unwrap();
        db.transact(|tx| {
            for (i, name) in ["a", "ab", "ab1", "ab2", "ac", "b"].iter().enumerate() {
                tx.insert(&t, *name, &(i as u64))?;
            }
            Ok(())
        })
        .unwrap();
        let snapshot = db.snapshot();
        let found: Vec<u64> = snapshot
            .prefix(&t, "ab")
            .unwrap()
            .rev()
            .map(|e| e.unwrap().1)
            .collect();
        assert_eq!(found, [3, 2, 1]);
        let found = snapshot.range(&t, "ab"..="ab2").unwrap().count();
        assert_eq!(found, 3);
    });
}

/// A read that passes the value to a function.
type Reader<'a> = dyn Fn(&mut dyn FnMut(Option<&[u8]>)) + 'a;

/// Reading any kind of value in place returns the same as `get`, also inside of another such read.
#[test]
fn reading_in_place_returns_the_same_as_get() {
    both(|db| {
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        let value = |key: u64| vec![key as u8; [0, 7, 1_999, 2_001, 40_000][key as usize % 5]];
        db.transact(|tx| (0..10).try_for_each(|key| tx.insert(&t, &key, &value(key))))
            .unwrap();
        let snapshot = db.snapshot();
        db.transact(|tx| (0..5).try_for_each(|key| tx.insert(&t, &key, &value(key + 1))))
            .unwrap();
        let mut tx = db.begin();
        tx.insert(&t, &9, &value(8)).unwrap();
        tx.remove(&t, &8).unwrap();
        for key in 0..12 {
            let of = |reader: &Reader<'_>| {
                let mut seen = None;
                reader(&mut |bytes| {
                    // The inner read has its own buffer.
                    db.get_with(&t, &3, |other| assert_eq!(other, Some(&value(4)[..])))
                        .unwrap();
                    seen = bytes.map(Bytes::copy_from_slice);
                });
                seen
            };
            let found = of(&|f| db.get_with(&t, &key, f).unwrap());
            assert_eq!(found, db.get(&t, &key).unwrap());
            let found = of(&|f| snapshot.get_with(&t, &key, f).unwrap());
            assert_eq!(found, snapshot.get(&t, &key).unwrap());
            assert_eq!(found.is_some(), snapshot.contains_key(&t, &key).unwrap());
            assert_eq!(found, (key < 10).then(|| Bytes::from(value(key))));
            let found = of(&|f| tx.get_with(&t, &key, f).unwrap());
            assert_eq!(found, tx.get(&t, &key).unwrap());
            assert_eq!(found.is_some(), tx.contains_key(&t, &key).unwrap());
        }
        tx.commit().unwrap();
    });
}
