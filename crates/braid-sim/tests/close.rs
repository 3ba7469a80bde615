//! Closing while other threads work: the outcomes that they receive match the state that the next
//! opener finds.

use std::sync::Arc;

use braid::{
    Bytes, Database, Durability, Error, Readable, Result, Table, Transaction, TransactionOptions,
};
use braid_io::SimDevice;
use braid_rt::{Mutex, simulation, thread};

fn open(device: &SimDevice) -> Database {
    let (device, claim) = device.claim();
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(128 << 10);
    builder.open_on_locked(Arc::new(device), claim).unwrap()
}

/// Runs `test` with some orders of its threads' steps.
fn simulate(test: fn(u64)) {
    for seed in 0..60 {
        let options = simulation::Options {
            seed,
            steps_max: 2_000_000,
            stalls: [0, 64][(seed % 2) as usize],
        };
        let (outcome, _) = simulation::run(&options, move || test(seed));
        outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// So many writes that the transaction acquires its locks in the commit.
fn many(tx: &mut Transaction, t: &Table<u64, Bytes>) -> Result<()> {
    (0..100).try_for_each(|key| tx.insert(t, &key, &b"large"[..]))
}

/// A large transaction waits for a lock in its commit while the database is closed and opened
/// again: it is refused, has no effect, and all commits that the new instance acknowledges are
/// kept.
#[test]
fn a_commit_that_waits_for_a_lock_is_refused() {
    simulate(|seed| {
        let device = SimDevice::new(seed);
        let db = open(&device);
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        let mut holder = db.begin();
        holder.insert(&t, &50, &b"held"[..]).unwrap();
        let (own, table) = (db.clone(), t.clone());
        let waiting = thread::spawn("waiting", move || {
            let mut tx = own.begin();
            let outcome = many(&mut tx, &table).and_then(|()| tx.commit());
            assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        });
        braid_rt::sleep(std::time::Duration::from_micros(1 + seed * 3));
        db.close().unwrap();
        let new = open(&device);
        let u: Table<u64, Bytes> = new.open_table("t").unwrap();
        for key in 40..45 {
            new.transact(|tx| tx.insert(&u, &key, &b"new"[..])).unwrap();
        }
        holder.abort();
        waiting.unwrap().join().unwrap();
        new.transact(|tx| tx.insert(&u, &45, &b"new"[..])).unwrap();
        let kept = |db: &Database| {
            let u: Table<u64, Bytes> = db.open_table("t").unwrap();
            let snapshot = db.snapshot();
            let keys = snapshot.iter(&u).unwrap().map(|entry| entry.unwrap());
            assert!(keys.eq((40..46).map(|key| (key, Bytes::from_static(b"new")))));
        };
        kept(&new);
        new.close().unwrap();
        kept(&open(&device));
    });
}

/// Commits that race with close, of any durability: committed transactions are present, refused
/// ones are not, and a surviving ticket agrees.
#[test]
fn close_answers_every_commit() {
    simulate(|seed| {
        let device = SimDevice::new(seed);
        let db = open(&device);
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let clients = (0..3u64).map(|client| {
            let (db, t, outcomes) = (db.clone(), t.clone(), outcomes.clone());
            let work = move || {
                for n in 0..40 {
                    let key = client * 1_000 + n;
                    let mut tx = db.begin_with(TransactionOptions {
                        durability: match n % 3 {
                            0 => Durability::None,
                            _ => Durability::Immediate,
                        },
                        ..TransactionOptions::default()
                    });
                    if tx.insert(&t, &key, &b"x"[..]).is_err() {
                        return;
                    }
                    let outcome = match n % 2 {
                        0 => tx.commit().map(|_| None),
                        _ => tx.commit_async().map(Some),
                    };
                    outcomes.lock().push((key, outcome));
                }
            };
            thread::spawn(&format!("client-{client}"), work).unwrap()
        });
        let clients: Vec<_> = clients.collect();
        braid_rt::sleep(std::time::Duration::from_micros(seed * 7));
        db.close().unwrap();
        let new = open(&device);
        for client in clients {
            client.join().unwrap();
        }
        let t: Table<u64, Bytes> = new.open_table("t").unwrap();
        for (key, outcome) in outcomes.lock().drain(..) {
            let is_there = new.get(&t, &key).unwrap().is_some();
            match outcome {
                Ok(None) => assert!(is_there, "{key} was committed and is lost"),
                Ok(Some(ticket)) => {
                    let answer = ticket.try_wait();
                    assert!(matches!(answer, Some(Ok(_))), "{key}: {answer:?}");
                    assert!(is_there, "{key} has a durable ticket and is lost");
                }
                Err(Error::Closed) => assert!(!is_there, "{key} was refused and is there"),
                Err(error) => panic!("{key}: {error}"),
            }
        }
    });
}

/// A load, a backup and a checkpoint that race with close complete or have no effect.
#[test]
fn close_ends_writers_past_the_log() {
    simulate(|seed| {
        let device = SimDevice::new(seed);
        let db = open(&device);
        let t: Table<u64, Bytes> = db.open_table("t").unwrap();
        for key in 0..300 {
            let mut tx = db.begin();
            tx.insert(&t, &key, &[1; 3_000]).unwrap();
            let _ = tx.commit_async().unwrap().into_seqno();
        }
        let mut loader = db.bulk_load::<u64, Bytes>("loaded").unwrap();
        for key in 0..300 {
            loader.insert(&key, &[2; 900]).unwrap();
        }
        let loaded = Arc::new(Mutex::new(None));
        let (place, other, another) = (loaded.clone(), db.clone(), db.clone());
        let reading = (db.snapshot(), t.clone());
        let threads = [
            thread::spawn("load", move || {
                *place.lock() = Some(loader.finish().map(drop))
            }),
            thread::spawn("backup", move || {
                let copied = other.backup_to(&mut Vec::new());
                assert!(matches!(copied, Ok(_) | Err(Error::Closed)), "{copied:?}");
            }),
            thread::spawn("checkpoint", move || {
                let written = another.checkpoint();
                assert!(
                    matches!(written, Ok(()) | Err(Error::Closed)),
                    "{written:?}"
                );
            }),
            thread::spawn("scan", move || {
                let (snapshot, t) = reading;
                for entry in snapshot.iter(&t).into_iter().flatten() {
                    match entry {
                        Ok(_) => braid_rt::yield_point(),
                        Err(error) => assert!(matches!(error, Error::Closed), "{error:?}"),
                    }
                }
            }),
        ];
        braid_rt::sleep(std::time::Duration::from_micros(seed * 40));
        db.close().unwrap();
        let new = open(&device);
        for thread in threads {
            thread.unwrap().join().unwrap();
        }
        let names = new.table_names().unwrap();
        match loaded.lock().take().unwrap() {
            Ok(()) => assert_eq!(names, ["loaded", "t"]),
            Err(Error::Closed) => assert_eq!(names, ["t"]),
            Err(error) => panic!("{error}"),
        }
        let t: Table<u64, Bytes> = new.open_table("t").unwrap();
        assert_eq!(new.snapshot().len(&t).unwrap(), 300);
    });
}
