//! What transactions see of each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid::{ConflictKind, Durability, Error, Readable, Table, TransactionOptions};

use super::{SNAPSHOT, both};

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
