//! Guarantees of transactions to each other and to their callers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{
    Builder, BulkLoader, Bytes, Commit, ConflictKind, Database, Durability, Error, Health,
    Isolation, MAX_KEY_LEN, Protocol, Range, Readable, Savepoint, Snapshot, Stats, Table,
    TableOptions, Ticket, Transaction, TransactionOptions,
};

fn both(test: impl Fn(&Database)) {
    for &protocol in Protocol::ALL {
        let builder = Database::builder()
            .protocol(protocol)
            .epoch(Duration::from_millis(1))
            .pool_bytes(16 << 20);
        let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
        test(&builder.open_on(device).unwrap());
    }
}

const SNAPSHOT: TransactionOptions = TransactionOptions {
    isolation: Isolation::Snapshot,
    durability: Durability::Immediate,
    lock_timeout: None,
};

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

/// Berenson et al. 1995, A5B (write skew): under serializability one of the two fails, under
/// snapshot isolation both commit.
#[test]
fn write_skew_is_a_conflict_unless_asked_for() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        for (options, both_commit) in [(TransactionOptions::default(), false), (SNAPSHOT, true)] {
            db.transact(|tx| tx.insert(&t, &1, &1).and(tx.insert(&t, &2, &1)))
                .unwrap();
            let (mut a, mut b) = (db.begin_with(options), db.begin_with(options));
            assert_eq!(a.get(&t, &1).unwrap(), Some(1));
            assert_eq!(b.get(&t, &2).unwrap(), Some(1));
            a.insert(&t, &2, &0).unwrap();
            b.insert(&t, &1, &0).unwrap();
            a.commit().unwrap();
            let second = b.commit();
            assert_eq!(second.is_ok(), both_commit);
            if let Err(error) = second {
                assert!(
                    matches!(error, Error::Conflict(ConflictKind::Read)),
                    "{error}"
                );
                assert!(error.is_retryable());
            }
        }
    });
}

#[test]
fn a_phantom_is_a_conflict() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| tx.insert(&t, &100, &0)).unwrap();
        let mut a = db.begin();
        assert_eq!(a.range(&t, 10..20).unwrap().count(), 0);
        a.insert(&t, &200, &1).unwrap();
        // A change in the same leaf but outside of the range: no conflict.
        db.transact(|tx| tx.insert(&t, &50, &1)).unwrap();
        a.commit().unwrap();
        let mut a = db.begin();
        assert_eq!(a.range(&t, 10..20).unwrap().count(), 0);
        a.insert(&t, &200, &2).unwrap();
        db.transact(|tx| tx.insert(&t, &15, &1)).unwrap();
        assert!(matches!(
            a.commit(),
            Err(Error::Conflict(ConflictKind::Range))
        ));
    });
}

/// A range is read step by step, from either end and on any thread; validation covers only the part
/// that was read.
#[test]
fn a_phantom_where_a_range_did_not_come_is_no_conflict() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let other: Table<u64, u64> = db.open_table("other").unwrap();
        db.transact(|tx| (1..=400).try_for_each(|i| tx.insert(&t, &(i * 10), &i)))
            .unwrap();
        for steps in [1, 2, 4, 5, 19, 20, 21, 100, 250] {
            for (back, seen) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut tx = db.begin();
                let mut range = tx.range(&t, ..).unwrap();
                let read = move || {
                    let mut step = || {
                        if back {
                            range.next_back()
                        } else {
                            range.next()
                        }
                    };
                    (0..steps)
                        .map(|_| step().unwrap().unwrap().0)
                        .last()
                        .unwrap()
                };
                let last = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
                tx.insert(&other, &steps, &0).unwrap();
                let new = if back == seen { last + 5 } else { last - 5 };
                db.transact(|tx| tx.insert(&t, &new, &0)).unwrap();
                let conflict = matches!(tx.commit(), Err(Error::Conflict(ConflictKind::Range)));
                assert_eq!(conflict, seen, "{steps} steps, back: {back}");
                assert!(db.transact(|tx| tx.remove(&t, &new)).unwrap());
            }
        }
    });
}

#[test]
fn under_snapshot_isolation_the_first_committer_wins() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
        let mut late = db.begin_with(SNAPSHOT);
        assert_eq!(late.get(&t, &1).unwrap(), Some(1));
        db.transact(|tx| tx.insert(&t, &1, &2)).unwrap();
        assert_eq!(
            late.get(&t, &1).unwrap(),
            Some(1),
            "reads stay at the snapshot"
        );
        let error = late.insert(&t, &1, &3).unwrap_err();
        assert!(matches!(error, Error::Conflict(ConflictKind::Write)));
    });
}

#[test]
fn snapshots_keep_their_view_while_everything_changes() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| (0..500).try_for_each(|k| tx.insert(&t, &k, &0)))
            .unwrap();
        let old = db.snapshot();
        for round in 1..20 {
            db.transact(|tx| {
                for k in 0..500 {
                    if (k + round) % 7 == 0 {
                        tx.remove(&t, &k)?;
                    } else {
                        tx.insert(&t, &k, &round)?;
                    }
                }
                tx.insert(&t, &(1_000 + round), &round)
            })
            .unwrap();
        }
        let seen: Vec<(u64, u64)> = old.iter(&t).unwrap().map(Result::unwrap).collect();
        assert!(seen.iter().copied().eq((0..500).map(|k| (k, 0))));
        assert_eq!(old.get(&t, &3).unwrap(), Some(0));
        assert_eq!(old.get(&t, &1_001).unwrap(), None);
        assert!(db.stats().old_versions > 0);
        drop(old);
        db.sync().unwrap();
        let now: Vec<(u64, u64)> = db
            .snapshot()
            .iter(&t)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert!(now.iter().all(|(_, v)| *v > 0));
    });
}

/// Transfers by read-modify-write in both styles, audits by scanning transactions and by snapshots.
#[test]
fn concurrent_transfers_keep_the_sum_in_every_view() {
    const ACCOUNTS: u64 = 20;
    both(|db| {
        let t: Table<u64, u64> = db.open_table("accounts").unwrap();
        db.transact(|tx| (0..ACCOUNTS).try_for_each(|k| tx.insert(&t, &k, &100)))
            .unwrap();
        let stop = AtomicBool::new(false);
        let audits = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for auditor in 0..2 {
                let (t, stop, audits) = (&t, &stop, &audits);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let sum: u64 = if auditor == 0 {
                            let snapshot = db.snapshot();
                            snapshot.iter(t).unwrap().map(|e| e.unwrap().1).sum()
                        } else {
                            let audit = |tx: &mut braid::Transaction| {
                                tx.iter(t)?
                                    .map(|e| e.map(|(_, v)| v))
                                    .sum::<Result<u64, Error>>()
                            };
                            match db.transact(audit) {
                                Ok(sum) => sum,
                                Err(error) if error.is_retryable() => continue,
                                Err(error) => panic!("{error}"),
                            }
                        };
                        assert_eq!(sum, ACCOUNTS * 100);
                        audits.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let movers: Vec<_> = (0..4)
                .map(|mover| {
                    let t = &t;
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(mover);
                        for _ in 0..1_500 {
                            let (from, to) = (rng.u64(..ACCOUNTS), rng.u64(..ACCOUNTS));
                            let locked = rng.bool();
                            db.transact(|tx| {
                                let read = |tx: &mut braid::Transaction, k| {
                                    let value = if locked {
                                        tx.get_for_update(t, &k)
                                    } else {
                                        tx.get(t, &k)
                                    };
                                    value.map(|v: Option<u64>| v.unwrap())
                                };
                                let balance = read(tx, from)?;
                                let amount = balance.min(7);
                                tx.insert(t, &from, &(balance - amount))?;
                                let balance = read(tx, to)?;
                                tx.insert(t, &to, &(balance + amount))
                            })
                            .unwrap();
                        }
                    })
                })
                .collect();
            movers.into_iter().for_each(|mover| mover.join().unwrap());
            while audits.load(Ordering::Relaxed) < 4 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn pipelined_commits_are_durable_when_their_tickets_say_so() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let mut tickets = Vec::new();
        for k in 0..500 {
            let mut tx = db.begin();
            tx.insert(&t, &k, &k).unwrap();
            tickets.push(tx.commit_async().unwrap());
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        tickets
            .pop()
            .unwrap()
            .on_durable(move |outcome| sender.send(outcome.is_ok()).unwrap());
        assert!(receiver.recv().unwrap());
        for ticket in tickets {
            assert!(ticket.wait().unwrap().seqno() <= db.durable_seqno());
            assert!(ticket.is_durable() && ticket.try_wait().unwrap().is_ok());
        }
        assert_eq!(db.snapshot().iter(&t).unwrap().count(), 500);
    });
}

#[test]
fn buffered_commits_become_durable_by_themselves() {
    let db = Database::in_memory().unwrap();
    let t: Table<u64, u64> = db.open_table("t").unwrap();
    let mut tx = db.begin();
    tx.set_durability(Durability::Buffered(Duration::from_millis(5)));
    tx.insert(&t, &1, &1).unwrap();
    let number = tx.commit().unwrap().seqno();
    while db.durable_seqno() < number {
        std::thread::yield_now();
    }
    assert_eq!(db.get(&t, &1).unwrap(), Some(1));
}

#[test]
fn deadlocks_end_and_retries_get_everything_through() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let t = &t;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    for _ in 0..300 {
                        let mut keys: Vec<u64> = (0..4).collect();
                        rng.shuffle(&mut keys);
                        db.transact(|tx| {
                            for k in &keys[..3] {
                                tx.fetch_update(t, k, |v| Some(v.unwrap_or(0) + 1))?;
                                std::thread::yield_now();
                            }
                            Ok(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        let sum: u64 = db.snapshot().iter(&t).unwrap().map(|e| e.unwrap().1).sum();
        assert_eq!(sum, 4 * 300 * 3);
    });
}

#[test]
fn large_transactions_pass_each_other_until_they_commit() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        // On one thread, the second would wait forever if the first kept its locks.
        let (mut one, mut two) = (db.begin(), db.begin());
        for key in 0..200 {
            one.insert(&t, &key, &1).unwrap();
        }
        for key in (100..300).rev() {
            two.insert(&t, &key, &2).unwrap();
        }
        two.commit().unwrap();
        one.commit().unwrap();
        let snapshot = db.snapshot();
        let all = snapshot.iter(&t).unwrap().map(|entry| entry.unwrap());
        assert!(all.eq((0..300).map(|key| (key, if key < 200 { 1 } else { 2 }))));
    });
}

#[test]
fn large_and_small_transactions_lose_nothing_to_each_other() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let t = &t;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    let mut keys: Vec<u64> = (1_000..1_300).collect();
                    for round in 0..40 {
                        rng.shuffle(&mut keys);
                        let write_all = |tx: &mut braid::Transaction| {
                            for key in &keys {
                                tx.insert(t, key, &(thread << 32 | round))?;
                            }
                            // Reads under a lock after it released its own.
                            tx.fetch_update(t, &(round % 5), |n| Some(n.unwrap_or(0) + 1))
                                .map(drop)
                        };
                        db.transact(write_all).unwrap();
                    }
                });
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    for _ in 0..400 {
                        let count = |tx: &mut braid::Transaction| {
                            tx.fetch_update(t, &rng.u64(..5), |n| Some(n.unwrap_or(0) + 1))?;
                            tx.insert(t, &rng.u64(1_000..1_300), &u64::MAX)
                        };
                        db.transact(count).unwrap();
                    }
                });
            }
        });
        let snapshot = db.snapshot();
        let all = snapshot.iter(&t).unwrap().map(|entry| entry.unwrap());
        let counted: u64 = all.filter(|entry| entry.0 < 5).map(|entry| entry.1).sum();
        assert_eq!(counted, 2 * 40 + 2 * 400);
    });
}

#[test]
fn tables_are_created_renamed_dropped_and_typed() {
    both(|db| {
        let a: Table<u64, String> = db.open_table("a").unwrap();
        db.transact(|tx| tx.insert(&a, &1, "x")).unwrap();
        assert!(matches!(
            db.open_table::<String, String>("a"),
            Err(Error::TableTypeMismatch { .. })
        ));
        db.rename_table("a", "b").unwrap();
        assert_eq!(
            (a.name(), db.table_names().unwrap()),
            ("b".to_owned(), vec!["b".to_owned()])
        );
        assert!(matches!(
            db.rename_table("a", "c"),
            Err(Error::TableNotFound { .. })
        ));
        db.open_table::<u64, String>("c").unwrap();
        assert!(matches!(
            db.rename_table("b", "c"),
            Err(Error::TableExists { .. })
        ));
        let mut tx = db.begin();
        tx.insert(&a, &2, "y").unwrap();
        assert!(db.drop_table("b").unwrap() && !db.drop_table("b").unwrap());
        assert!(matches!(tx.commit(), Err(Error::TableDropped { .. })));
        assert!(matches!(db.get(&a, &1), Err(Error::TableDropped { .. })));
        let again: Table<u64, String> = db.open_table("b").unwrap();
        assert_eq!(db.get(&again, &1).unwrap(), None);
        assert!(matches!(
            db.open_table::<u64, u64>(""),
            Err(Error::InvalidTableName { .. })
        ));
        let other = Database::in_memory().unwrap();
        assert!(matches!(
            other.get(&again, &1),
            Err(Error::ForeignTable { .. })
        ));
    });
}

/// Handles that were obtained while the table was created, renamed and dropped.
#[test]
fn all_handles_to_a_table_know_when_it_is_gone() {
    both(|db| {
        for round in 0..200 {
            let stop = std::sync::atomic::AtomicBool::new(false);
            let name = format!("a{round}");
            let handles: Vec<Table<u64, u64>> = std::thread::scope(|scope| {
                let seeker = scope.spawn(|| {
                    let mut found = Vec::new();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        found.extend(db.existing_table(&name).unwrap());
                        found.extend(db.existing_table("b").unwrap());
                    }
                    found
                });
                db.open_table::<u64, u64>(&name).unwrap();
                db.rename_table(&name, "b").unwrap();
                db.drop_table("b").unwrap();
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                seeker.join().unwrap()
            });
            for handle in &handles {
                let read = db.get(handle, &1);
                assert!(matches!(read, Err(Error::TableDropped { .. })), "{read:?}");
            }
            assert!(db.existing_table::<u64, u64>("b").unwrap().is_none());
        }
    });
}

#[test]
fn limits_are_errors_at_the_call() {
    let db = Database::builder()
        .transaction_bytes_max(10_000)
        .open_on(std::sync::Arc::new(braid::device::MemoryDevice::new()))
        .unwrap();
    let t: Table = db.open_table("t").unwrap();
    let mut tx = db.begin();
    let long = vec![0; MAX_KEY_LEN + 1];
    assert!(matches!(
        tx.insert(&t, &long, "v"),
        Err(Error::KeyTooLong { .. })
    ));
    tx.insert(&t, &long[1..], "v").unwrap();
    let large = vec![0; 9_500];
    assert!(matches!(
        tx.insert(&t, "k", &large),
        Err(Error::TransactionTooLarge { .. })
    ));
    tx.commit().unwrap();
    assert_eq!(
        db.get(&t, &long[1..]).unwrap(),
        Some(Bytes::from_static(b"v"))
    );
    for (builder, option) in [
        (Database::builder().pool_bytes(1), "pool_bytes"),
        (Database::builder().strands(0), "strands"),
        (Database::builder().strands(2).lanes(3), "lanes"),
    ] {
        let error = builder
            .open_on(std::sync::Arc::new(braid::device::MemoryDevice::new()))
            .unwrap_err();
        assert!(matches!(error, Error::InvalidOption { option: named, .. } if named == option));
    }
}

#[test]
fn values_of_64_mib_are_committed_and_recovered() {
    let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
    let open = || {
        Database::builder()
            .pool_bytes(8 << 20)
            .open_on(device.clone())
            .unwrap()
    };
    let large: Vec<u8> = (0..64u32 << 20).map(|i| (i >> 7) as u8).collect();
    let db = open();
    let t: Table = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&t, "large", &large)).unwrap();
    assert!(db.get(&t, "large").unwrap().unwrap()[..] == large[..]);
    drop((t, db));
    let db = open();
    let t: Table = db.open_table("t").unwrap();
    assert!(db.get(&t, "large").unwrap().unwrap()[..] == large[..]);
}

#[test]
fn a_closed_database_says_so() {
    let db = Database::in_memory().unwrap();
    let t: Table<u64, u64> = db.open_table("t").unwrap();
    let other = db.clone();
    let mut open = db.begin();
    open.insert(&t, &1, &1).unwrap();
    db.close().unwrap();
    assert!(matches!(other.health(), Health::Closed));
    assert!(matches!(open.commit(), Err(Error::Closed)));
    assert!(matches!(other.get(&t, &1), Err(Error::Closed)));
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

/// Which handles can be sent to, or shared between, threads. Only a range borrows.
#[test]
fn handles_go_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    fn future<T: std::future::Future<Output = Result<Commit, Error>> + Unpin>() {}
    shared::<Database>();
    shared::<Builder>();
    shared::<Table<String, u64>>();
    shared::<Snapshot>();
    shared::<Savepoint>();
    shared::<Ticket>();
    shared::<Commit>();
    shared::<Error>();
    shared::<Health>();
    shared::<Stats>();
    shared::<TableOptions>();
    sent::<Transaction>();
    sent::<Range<'static, u64, Bytes>>();
    sent::<BulkLoader<u64, Bytes>>();
    future::<Ticket>();
}

/// Longer than anything below takes: a test that waits so long has failed.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs `work` on a separate thread, so that an endless wait fails the test.
pub(crate) fn ends(work: impl FnOnce() + Send + 'static) {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    done.recv_timeout(PATIENCE)
        .expect("it ends without a panic");
}

/// The reads of a scan count even if its iterator is leaked.
#[test]
fn reads_of_a_leaked_scan_are_validated() {
    both(|db| {
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        db.transact(|tx| (0..1_000).try_for_each(|key| tx.insert(&t, &(2 * key), &1)))
            .unwrap();
        let scan_and_forget = |from: u64, entries: usize| {
            let tx = db.begin();
            let mut range = tx.range(&t, from..).unwrap();
            assert_eq!(range.by_ref().take(entries).count(), entries);
            std::mem::forget(range);
            tx
        };
        for entries in [1, 2, 900] {
            // A key between those that were read, a changed one, a removed one.
            let mut tx = scan_and_forget(0, entries);
            db.transact(|other| other.insert(&t, &1, &1)).unwrap();
            tx.insert(&t, &9_999, &1).unwrap();
            assert!(matches!(
                tx.commit(),
                Err(Error::Conflict(ConflictKind::Range))
            ));
            let tx = scan_and_forget(0, entries);
            db.transact(|other| other.insert(&t, &0, &2)).unwrap();
            assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
            let tx = scan_and_forget(0, entries);
            db.transact(|other| other.remove(&t, &1)).unwrap();
            assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
        }
        // Without changes it commits, and then everything that it read is durable (I4).
        let mut tx = scan_and_forget(0, 5);
        tx.insert(&t, &9_999, &1).unwrap();
        tx.commit().unwrap();
        let mut hidden = db.begin();
        hidden.insert(&t, &0, &3).unwrap();
        hidden.set_durability(Durability::None);
        let written = hidden.commit().unwrap().seqno();
        let read = scan_and_forget(0, 1).commit().unwrap();
        assert!(read.seqno() >= written && db.durable_seqno() >= written);
    });
}

/// The longest duration means forever.
#[test]
fn the_longest_duration_is_forever() {
    ends(|| {
        let builder = Database::builder()
            .pool_bytes(1 << 20)
            .archive_on(Arc::new(MemoryDevice::new()))
            .archive_interval(Duration::MAX);
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let mut changes = db.changes(db.position_after(db.durable_seqno())).unwrap();
        let commit = |bound| {
            let mut tx = db.begin();
            tx.insert(&t, &1, &1).unwrap();
            tx.set_durability(Durability::Buffered(bound));
            tx.commit().unwrap()
        };
        commit(Duration::MAX);
        // A shorter bound before or after it still applies.
        let waits = {
            let t = t.clone();
            let db = db.clone();
            std::thread::spawn(move || {
                let set = changes.next_within(Duration::MAX).unwrap().unwrap();
                (set.seqno, db.get(&t, &1).unwrap())
            })
        };
        let second = commit(Duration::from_millis(1));
        commit(Duration::MAX);
        let (number, value) = waits.join().unwrap();
        assert!(number < second.seqno() && value == Some(1));
        db.close().unwrap();
    });
}

/// An idle context in the pool does not keep the space of a dropped table.
#[test]
fn a_dropped_table_is_freed_while_contexts_are_idle() {
    let builder = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    for key in 0..400 {
        db.transact(|tx| tx.insert(&t, &key, &vec![7; 1_000]))
            .unwrap();
    }
    // Each thread leaves a context that has used the table.
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (db, t, barrier) = (&db, &t, &barrier);
            scope.spawn(move || {
                let tx = db.begin();
                tx.get(t, &thread).unwrap();
                barrier.wait();
                tx.commit().unwrap();
            });
        }
    });
    db.compact().unwrap();
    let before = db.stats().store.file_bytes;
    assert!(db.drop_table("t").unwrap());
    drop(t);
    db.compact().unwrap();
    let after = db.stats().store.file_bytes;
    assert!(before - after > 300_000, "{before} to {after}");
}
