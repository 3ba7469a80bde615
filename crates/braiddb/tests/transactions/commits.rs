//! Commits: durability, locks, large transactions, limits.

use std::sync::Arc;
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{Bytes, Database, Durability, Error, MAX_KEY_LEN, Readable, Table};

use super::{both, ends};

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
