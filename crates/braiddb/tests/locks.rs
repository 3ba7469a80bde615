//! Write locks: transactions that wait for each other, and those that do not.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{Database, Error, Protocol, Readable, Table, TransactionOptions};

use crate::transactions::ends;

/// Opens a database with the smallest lock table, of 2,048 buckets.
fn open(protocol: Protocol) -> (Database, Table<u64, u64>) {
    let builder = Database::builder().protocol(protocol).pool_bytes(1 << 20);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t = db.open_table("t").unwrap();
    (db, t)
}

/// Ten times as many locks as the table has buckets.
#[test]
fn two_transactions_of_one_thread_share_no_lock() {
    for &protocol in Protocol::ALL {
        ends(move || {
            let (db, t) = open(protocol);
            let mut both = [db.begin(), db.begin()];
            for key in 0..20_000 {
                // One lock for each key, held until the end.
                let added = both[key as usize % 2].insert_if_absent(&t, &key, &1);
                assert!(added.unwrap());
            }
            for tx in both {
                tx.commit().unwrap();
            }
            assert_eq!(db.stats().conflicts, 0);
            assert_eq!(db.snapshot().iter(&t).unwrap().count(), 20_000);
        });
    }
}

/// A transaction holds 20,000 locks while others, of the same thread and of another one, write
/// other keys, wait for nothing, and commit.
#[test]
fn a_transaction_with_many_locks_delays_no_other_key() {
    ends(|| {
        let (db, t) = open(Protocol::Glsn);
        let mut holder = db.begin();
        for key in 0..20_000 {
            assert_eq!(holder.get_for_update(&t, &key).unwrap(), None);
        }
        let others = |from: u64| {
            for key in from..from + 2_000 {
                let mut tx = db.begin();
                assert_eq!(tx.get(&t, &(key + 1)).unwrap(), None);
                tx.insert(&t, &key, &2).unwrap();
                drop(tx.commit_async().unwrap());
            }
        };
        others(100_000);
        thread::scope(|scope| {
            scope.spawn(|| others(200_000));
        });
        holder.insert(&t, &7, &1).unwrap();
        holder.commit().unwrap();
        assert_eq!(db.stats().conflicts, 0);
    });
}

/// Locks that a transaction holds twice, keeps after a rollback to a savepoint, and releases.
#[test]
fn locks_last_as_long_as_the_transaction_in_full_buckets() {
    ends(|| {
        let (db, t) = open(Protocol::Glsn);
        let keys = 0..6_000u64;
        let mut tx = db.begin();
        // A read under a lock, and then a write of the same key.
        for key in keys.clone() {
            tx.get_for_update(&t, &key).unwrap();
        }
        let savepoint = tx.savepoint();
        for key in keys.clone() {
            tx.insert(&t, &key, &1).unwrap();
        }
        for key in 6_000..7_000 {
            tx.insert(&t, &key, &1).unwrap();
        }
        tx.rollback_to(&savepoint).unwrap();
        for key in [0, 3_000, 5_999, 6_000, 6_999] {
            let mut other = db.begin();
            let refused = other.insert(&t, &key, &2);
            assert!(
                matches!(refused, Err(Error::SelfDeadlock)),
                "{key}: {refused:?}"
            );
        }
        tx.insert(&t, &1, &1).unwrap();
        tx.commit().unwrap();
        for key in 0..7_000 {
            let mut other = db.begin();
            assert!(other.fetch_update(&t, &key, |_| Some(3)).is_ok());
            drop(other.commit_async().unwrap());
        }
        assert_eq!(db.get(&t, &1).unwrap(), Some(3));
    });
}

/// The thread would wait for itself: the second write fails, and both transactions continue.
#[test]
fn a_thread_does_not_wait_for_itself() {
    for &protocol in Protocol::ALL {
        ends(move || {
            let (db, t) = open(protocol);
            let [mut first, mut second] = [db.begin(), db.begin()];
            first.insert(&t, &1, &1).unwrap();
            second.insert(&t, &2, &2).unwrap();
            let error = second.insert(&t, &1, &2).unwrap_err();
            assert!(matches!(error, Error::SelfDeadlock), "{error}");
            assert!(!error.is_retryable());
            first.commit().unwrap();
            second.insert(&t, &1, &2).unwrap();
            second.commit().unwrap();
            assert_eq!(db.get(&t, &1).unwrap(), Some(2));
        });
    }
}

/// Three threads, each of which waits for a lock of the next one: one of them gets an error, and
/// the others continue.
#[test]
fn a_cycle_of_threads_ends() {
    for &protocol in Protocol::ALL {
        ends(move || {
            let (db, t) = open(protocol);
            let barrier = Barrier::new(3);
            let conflicts = thread::scope(|scope| {
                let threads = [0, 1, 2].map(|own| {
                    let (db, t, barrier) = (&db, &t, &barrier);
                    scope.spawn(move || {
                        let mut tx = db.begin();
                        tx.insert(t, &own, &own).unwrap();
                        barrier.wait();
                        match tx.insert(t, &((own + 1) % 3), &own) {
                            Ok(()) => tx.commit().map(|_| 0).unwrap(),
                            Err(error) => {
                                assert!(error.is_retryable(), "{error}");
                                1
                            }
                        }
                    })
                });
                let ended = threads.map(|thread| thread.join().unwrap());
                ended.into_iter().sum::<u64>()
            });
            assert_eq!((conflicts, db.stats().conflicts), (1, 1));
        });
    }
}

/// The waits of a write, of a read under a lock, and of a commit with many writes end; the
/// transactions continue, and `transact` does not repeat the wait.
#[test]
fn a_lock_timeout_ends_a_wait() {
    for &protocol in Protocol::ALL {
        ends(move || waits_time_out(protocol));
    }
}

fn waits_time_out(protocol: Protocol) {
    let (db, t) = open(protocol);
    let mut holder = db.begin();
    holder.insert(&t, &1, &1).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            for timeout in [Duration::ZERO, Duration::from_millis(5)] {
                let options = TransactionOptions {
                    lock_timeout: Some(timeout),
                    ..TransactionOptions::default()
                };
                let assert_timeout = |error: Error| {
                    assert!(error.is_retryable());
                    let Error::LockTimeout { timeout: waited } = error else {
                        panic!("{error}");
                    };
                    assert_eq!(waited, timeout);
                };
                let mut tries = 0;
                let outcome = db.transact_with(options, |tx| {
                    tries += 1;
                    tx.insert(&t, &1, &2)
                });
                assert_timeout(outcome.unwrap_err());
                assert_eq!(tries, 1);
                let mut large = db.begin_with(options);
                for key in (1..200).rev() {
                    large.insert(&t, &key, &2).unwrap();
                }
                assert_timeout(large.commit().unwrap_err());
                let mut tx = db.begin_with(options);
                tx.insert(&t, &1_000, &2).unwrap();
                assert_timeout(tx.get_for_update(&t, &1).unwrap_err());
                tx.commit().unwrap();
            }
        });
        waiter.join().unwrap();
    });
    holder.commit().unwrap();
    assert_eq!(db.snapshot().iter(&t).unwrap().count(), 2);
}

/// The option of the database holds for transactions without their own, and not for a change of
/// the catalog.
#[test]
fn a_database_has_a_lock_timeout() {
    let builder = Database::builder().pool_bytes(1 << 20);
    let builder = builder.lock_timeout(Duration::ZERO);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t: Table<u64, u64> = db.open_table("t").unwrap();
    let mut holder = db.begin();
    holder.insert(&t, &1, &1).unwrap();
    let mut other = db.begin();
    assert!(matches!(
        other.insert(&t, &1, &2),
        Err(Error::LockTimeout { .. })
    ));
    let patient = TransactionOptions {
        lock_timeout: Some(Duration::MAX),
        ..TransactionOptions::default()
    };
    // It waits, until it turns out that its own thread holds the lock.
    let refused = db.begin_with(patient).insert(&t, &1, &2);
    assert!(matches!(refused, Err(Error::SelfDeadlock)));
    holder.commit().unwrap();
    other.insert(&t, &1, &2).unwrap();
    other.commit().unwrap();
    assert_eq!(db.get(&t, &1).unwrap(), Some(2));
}

/// A large transaction acquires its locks at commit, with the same result.
#[test]
fn a_large_commit_does_not_wait_for_its_own_thread() {
    ends(|| {
        let db = Database::in_memory().unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let mut holder = db.begin();
        holder.insert(&t, &700, &1).unwrap();
        let mut large = db.begin();
        (0..1_000)
            .try_for_each(|key| large.insert(&t, &key, &2))
            .unwrap();
        assert!(matches!(large.commit(), Err(Error::SelfDeadlock)));
        // The same holds if `transact` waits.
        let nested = db.transact(|tx| tx.insert(&t, &700, &3));
        assert!(matches!(nested, Err(Error::SelfDeadlock)));
        holder.commit().unwrap();
        db.transact(|tx| tx.insert(&t, &700, &4)).unwrap();
        assert_eq!(db.snapshot().iter(&t).unwrap().count(), 1);
    });
}

/// Two threads with two transactions each: the idle transactions hold the locks, and the others
/// wait for them.
#[test]
fn a_cycle_through_idle_transactions_ends() {
    ends(|| {
        let db = Database::in_memory().unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let barrier = Arc::new(Barrier::new(2));
        let sides = [(1, 2), (2, 1)].map(|(own, other)| {
            let (db, t, barrier) = (db.clone(), t.clone(), barrier.clone());
            thread::spawn(move || {
                let mut idle = db.begin();
                idle.insert(&t, &own, &own).unwrap();
                barrier.wait();
                let mut waits = db.begin();
                let refused = match waits.insert(&t, &other, &own) {
                    Ok(()) => false,
                    Err(Error::SelfDeadlock) => true,
                    Err(error) => panic!("{error}"),
                };
                drop((waits, idle));
                refused
            })
        });
        let refused = sides.map(|side| side.join().unwrap());
        assert!(refused.contains(&true));
    });
}

/// Finding and creating tables acquires no lock that a transaction can hold.
#[test]
fn tables_are_created_inside_of_a_transaction() {
    ends(|| {
        let builder = Database::builder().pool_bytes(1 << 20);
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let mut tx = db.begin();
        for n in 0..1_000 {
            // One lock for each key; in the end, several in each bucket.
            for key in 16 * n..16 * (n + 1) {
                tx.get_for_update(&t, &key).unwrap();
            }
            let table: Table<u64, u64> = db.open_table(&format!("table {n}")).unwrap();
            tx.insert(&table, &n, &n).unwrap();
        }
        db.feed("feed").unwrap();
        db.rename_table("table 7", "seven").unwrap();
        db.bulk_load::<u32, u32>("loaded")
            .unwrap()
            .finish()
            .unwrap();
        tx.commit().unwrap();
        assert_eq!(db.table_names().unwrap().len(), 1_002);
    });
}
