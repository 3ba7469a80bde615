//! A durable queue with several consumers, each of which takes a job once.
//!
//! ```sh
//! cargo run -p braiddb --example queue
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use braid::{Database, Readable, Result, Table, Transaction};

const JOBS: u32 = 100;
const CONSUMERS: usize = 4;

/// Jobs by ticket number, in the order of arrival.
struct Queue {
    jobs: Table<u64, String>,
    /// Next ticket number.
    next: Table<String, u64>,
}

impl Queue {
    fn open(db: &Database, name: &str) -> Result<Self> {
        Ok(Self {
            jobs: db.open_table(&format!("{name}.jobs"))?,
            next: db.open_table(&format!("{name}.next"))?,
        })
    }

    fn push(&self, tx: &mut Transaction, job: &str) -> Result<u64> {
        let number = tx.fetch_update(&self.next, "number", |n| Some(n.unwrap_or(0) + 1))?;
        let number = number.unwrap_or(0);
        tx.insert(&self.jobs, &number, job)?;
        Ok(number)
    }

    /// Takes the oldest job; `None` if there is none. Two consumers may find the same job, but the
    /// lock lets the second one read it only after the first one has taken it.
    fn pop(&self, tx: &mut Transaction, from: u64) -> Result<Option<(u64, String)>> {
        let oldest = tx.range(&self.jobs, from..)?.next().transpose()?;
        let Some((number, _)) = oldest else {
            return Ok(None);
        };
        let job = tx.take(&self.jobs, &number)?;
        Ok(job.map(|job| (number, job)))
    }
}

fn consume(db: &Database, queue: &Queue, produced: &AtomicU32) -> Result<Vec<(u64, String)>> {
    let mut done = Vec::new();
    // Jobs below are gone; starting here avoids scanning their removed entries.
    let mut from = 0;
    loop {
        // Read this before the queue: a consumer that then finds no job has not missed one.
        let all_there = produced.load(Ordering::Acquire) == JOBS;
        match db.transact(|tx| queue.pop(tx, from))? {
            Some((number, job)) => {
                from = number + 1;
                done.push((number, job));
            }
            None if from > 0 => from = 0,
            None if all_there => return Ok(done),
            None => std::thread::yield_now(),
        }
    }
}

// Not private, so that a test can run it.
pub(crate) fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let db = Database::open(directory.path())?;
    let queue = Queue::open(&db, "mail")?;
    let produced = AtomicU32::new(0);

    let done = std::thread::scope(|scope| {
        let (db, queue, produced) = (&db, &queue, &produced);
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|_| scope.spawn(move || consume(db, queue, produced)))
            .collect();
        for i in 0..JOBS {
            db.transact(|tx| queue.push(tx, &format!("letter {i}")))?;
            produced.fetch_add(1, Ordering::Release);
        }
        let taken = consumers
            .into_iter()
            .map(|c| c.join().expect("no consumer panics"));
        taken.collect::<Result<Vec<_>>>()
    })?;

    let shares: Vec<usize> = done.iter().map(Vec::len).collect();
    let numbers: BTreeSet<u64> = done.iter().flatten().map(|(number, _)| *number).collect();
    assert_eq!(shares.iter().sum::<usize>(), JOBS as usize, "each job once");
    assert!(numbers.into_iter().eq(0..u64::from(JOBS)), "every job");
    assert_eq!(db.snapshot().first(&queue.jobs)?, None);
    println!("{JOBS} jobs, by consumer: {shares:?}");
    Ok(())
}
