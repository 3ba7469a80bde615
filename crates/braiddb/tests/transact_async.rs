//! Transactions as futures: retried after conflicts, with many in flight on one thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{
    ConflictKind, Database, Durability, Error, Readable, Result, Table, TransactionOptions,
};
use braid_io::LatencyDevice;
use futures_lite::future::block_on;

fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn slow() -> Result<(Database, Table<u32, u32>)> {
    let latency = Duration::from_millis(20);
    let device = LatencyDevice::new(Arc::new(MemoryDevice::new()), latency);
    let db = Database::builder().open_on(Arc::new(device))?;
    let table = db.open_table("t")?;
    Ok((db, table))
}

#[test]
fn no_poll_waits_for_the_device() -> Result<()> {
    let (db, table) = slow()?;
    let flushes = db.stats().log.flushes;
    let executor = async_executor::LocalExecutor::new();
    let tasks: Vec<_> = (0..100u32)
        .map(|n| {
            executor.spawn(db.transact_async({
                let table = table.clone();
                move |tx| tx.insert(&table, &n, &n)
            }))
        })
        .collect();
    block_on(executor.run(async {
        for task in tasks {
            task.await.unwrap();
        }
    }));
    // One after the other, each would wait for a flush.
    let flushes = db.stats().log.flushes - flushes;
    assert!(flushes < 50, "{flushes} flushes");
    assert_eq!(db.snapshot().len(&table)?, 100);
    Ok(())
}

#[test]
fn a_conflict_runs_the_body_again() -> Result<()> {
    let db = Database::in_memory()?;
    let table: Table<u32, u32> = db.open_table("t")?;
    let runs = Cell::new(0);
    let result = block_on(db.transact_async(|tx| {
        runs.set(runs.get() + 1);
        let before = tx.get(&table, &1)?;
        if runs.get() <= 3 {
            db.transact(|other| other.insert(&table, &1, &runs.get()))?;
        }
        tx.insert(&table, &2, &before.unwrap_or(0))?;
        Ok(before)
    }))?;
    assert_eq!((runs.get(), result), (4, Some(3)));
    assert_eq!(db.get(&table, &2)?, Some(3));
    // A future that never ends is dropped.
    let hopeless =
        block_on(db.transact_async::<(), _>(|_| Err(Error::Conflict(ConflictKind::Deadlock))));
    assert!(matches!(hopeless, Err(Error::Conflict(_))));
    let other = block_on(db.transact_async::<(), _>(|_| Err(Error::InvalidSavepoint)));
    assert!(matches!(other, Err(Error::InvalidSavepoint)));
    Ok(())
}

#[test]
fn a_transaction_that_may_be_lost_is_not_waited_for() -> Result<()> {
    let (db, table) = slow()?;
    let options = TransactionOptions {
        durability: Durability::None,
        ..TransactionOptions::default()
    };
    let inserted = poll_once(db.transact_async_with(options, |tx| tx.insert(&table, &1, &1)));
    assert!(matches!(inserted, Poll::Ready(Ok(()))));
    let chosen = poll_once(db.transact_async(|tx| {
        tx.set_durability(Durability::None);
        tx.insert(&table, &2, &2)
    }));
    assert!(matches!(chosen, Poll::Ready(Ok(()))));
    Ok(())
}

#[test]
fn a_future_that_is_dropped_leaves_nothing_or_a_transaction() -> Result<()> {
    let (db, table) = slow()?;
    drop(db.transact_async(|tx| tx.insert(&table, &1, &1)));
    let waits = poll_once(db.transact_async(|tx| tx.insert(&table, &2, &2)));
    assert!(waits.is_pending());
    db.sync()?;
    assert_eq!(db.get(&table, &1)?, None);
    assert_eq!(db.get(&table, &2)?, Some(2));
    Ok(())
}

/// Futures can be spawned on executors that move tasks between threads.
#[test]
fn the_future_can_change_threads() -> Result<()> {
    fn is_send<T: Send + 'static>(future: T) -> T {
        future
    }
    let db = Database::in_memory()?;
    let table: Table<u32, u32> = db.open_table("t")?;
    let own = table.clone();
    let future = is_send(db.transact_async(move |tx| tx.insert(&own, &1, &1)));
    std::thread::spawn(move || block_on(future))
        .join()
        .unwrap()?;
    assert_eq!(db.get(&table, &1)?, Some(1));
    Ok(())
}
