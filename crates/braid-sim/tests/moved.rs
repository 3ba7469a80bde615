//! Transactions that move from thread to thread with their locks.

use std::sync::Arc;
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{Database, Error, Readable, Table, Transaction};
use braid_rt::{Condvar, Mutex, simulation, thread};

type Numbers = Table<u64, u64>;

/// Whether the second transaction of the first thread has its outcome.
type Answered = Arc<(Mutex<bool>, Condvar)>;

/// Two transactions of the first thread request one key. The first transaction moves to another
/// thread, which runs `work` with it and commits it. Returns the outcome of the second.
fn wait_in_background(
    seed: u64,
    work: fn(&Transaction, &Numbers, &Answered),
) -> Result<Option<u64>, Error> {
    let options = simulation::Options {
        seed,
        steps_max: 1_000_000,
        stalls: 0,
    };
    let (outcome, _) = simulation::run(&options, move || {
        let builder = Database::builder()
            .background_threads(false)
            .pool_bytes(1 << 20);
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let t: Numbers = db.open_table("t").unwrap();
        let mut moved = db.begin();
        moved.insert(&t, &1, &1).unwrap();
        let answered = Answered::default();
        let other = {
            let (t, answered) = (t.clone(), answered.clone());
            thread::spawn("other", move || {
                work(&moved, &t, &answered);
                moved.commit().unwrap();
            })
        };
        let mut tx = db.begin();
        let outcome = tx.insert(&t, &1, &2).and_then(|()| tx.commit());
        *answered.0.lock() = true;
        answered.1.notify_all();
        other.unwrap().join().unwrap();
        outcome.and_then(|_| db.get(&t, &1))
    });
    outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// Many times longer than the engine's grace period, with shorter pauses.
#[test]
fn a_transaction_that_another_thread_uses_is_waited_for() {
    for seed in 0..30 {
        let value = wait_in_background(seed, |moved, t, _| {
            for key in 2..202 {
                braid_rt::sleep(Duration::from_millis(60));
                moved.get(t, &key).unwrap();
            }
        });
        assert!(matches!(value, Ok(Some(2))), "seed {seed}: {value:?}");
    }
}

#[test]
fn an_idle_transaction_of_the_same_thread_is_a_deadlock() {
    for seed in 0..30 {
        let value = wait_in_background(seed, |_, _, answered| {
            let mut done = answered.0.lock();
            while !*done {
                answered.1.wait(&mut done);
            }
        });
        assert!(
            matches!(value, Err(Error::SelfDeadlock)),
            "seed {seed}: {value:?}"
        );
    }
}
