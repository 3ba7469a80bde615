//! Awaited commits: many tasks of one thread, each waiting for its own transaction to be durable.
//!
//! ```sh
//! cargo run -p braiddb --example async_commits
//! ```
//!
//! A [`braid::Ticket`] is a future of any executor; this example uses a small one.

use std::rc::Rc;

use braid::{Commit, Database, Readable, Result, Table};
use futures_lite::future;

const TASKS: u32 = 200;

/// Locking, writing and committing run on this thread at once, in memory. Only the wait for
/// durability is awaited, and all tasks share the device's flushes.
async fn register(db: &Database, users: &Table<u32, String>, id: u32) -> Result<Commit> {
    let mut tx = db.begin();
    tx.insert(users, &id, &format!("user {id}"))?;
    tx.commit_async()?.await
}

// Not private, so that a test can run it.
pub(crate) fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let db = Database::open(directory.path())?;
    let users: Rc<Table<u32, String>> = Rc::new(db.open_table("users")?);

    let executor = async_executor::LocalExecutor::new();
    let tasks: Vec<_> = (0..TASKS)
        .map(|id| {
            let (db, users) = (db.clone(), users.clone());
            executor.spawn(async move { register(&db, &users, id).await })
        })
        .collect();
    let commits = future::block_on(executor.run(async {
        let mut commits = Vec::new();
        for task in tasks {
            commits.push(task.await?);
        }
        Ok::<_, braid::Error>(commits)
    }))?;

    let last = commits.iter().map(Commit::seqno).max();
    assert!(
        last.is_some_and(|last| last <= db.durable_seqno()),
        "all are durable"
    );
    assert_eq!(db.snapshot().iter(&users)?.count(), TASKS as usize);
    println!("{TASKS} commits in {} flushes", db.stats().log.flushes);
    Ok(())
}
