//! Several threads transfer money between the same accounts; the total stays the same.
//!
//! ```sh
//! cargo run -p braiddb --example bank
//! ```

use braid::{Database, Readable, Result, Table, Transaction};

const ACCOUNTS: u32 = 10;
const START: i64 = 100;
const THREADS: u64 = 4;
const TRANSFERS: u32 = 50;

/// Outcome of a transfer.
#[derive(Debug, PartialEq)]
enum Outcome {
    Done,
    NotEnough,
}

/// Transfers money, if there is enough. With `get_for_update`, transactions that need the same
/// account queue instead of conflicting.
fn transfer(
    tx: &mut Transaction,
    accounts: &Table<u32, i64>,
    from: u32,
    to: u32,
    amount: i64,
) -> Result<Outcome> {
    let balance = tx.get_for_update(accounts, &from)?.unwrap_or(0);
    if balance < amount {
        return Ok(Outcome::NotEnough);
    }
    tx.insert(accounts, &from, &(balance - amount))?;
    tx.fetch_update(accounts, &to, |balance| Some(balance.unwrap_or(0) + amount))?;
    Ok(Outcome::Done)
}

fn total(db: &Database, accounts: &Table<u32, i64>) -> Result<i64> {
    let snapshot = db.snapshot();
    snapshot.iter(accounts)?.map(|entry| Ok(entry?.1)).sum()
}

fn work(db: &Database, accounts: &Table<u32, i64>, seed: u64) -> Result<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut done = 0;
    for _ in 0..TRANSFERS {
        let (from, to) = (rng.u32(..ACCOUNTS), rng.u32(..ACCOUNTS));
        let amount = rng.i64(1..150);
        // Retries after a conflict, for example of two transfers in opposite directions.
        let outcome = db.transact(|tx| transfer(tx, accounts, from, to, amount))?;
        done += u32::from(outcome == Outcome::Done);
        // The sum is correct at any moment.
        assert_eq!(total(db, accounts)?, i64::from(ACCOUNTS) * START);
    }
    Ok(done)
}

// Not private, so that a test can run it.
pub(crate) fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let db = Database::open(directory.path())?;
    let accounts: Table<u32, i64> = db.open_table("accounts")?;
    db.transact(|tx| (0..ACCOUNTS).try_for_each(|id| tx.insert(&accounts, &id, &START)))?;

    let done = std::thread::scope(|scope| {
        let (db, accounts) = (&db, &accounts);
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| scope.spawn(move || work(db, accounts, seed)))
            .collect();
        let outcomes = workers
            .into_iter()
            .map(|w| w.join().expect("no worker panics"));
        outcomes.sum::<Result<u32>>()
    })?;
    assert!(done > 0);
    println!(
        "{done} transfers, {} in all accounts together",
        total(&db, &accounts)?
    );
    Ok(())
}
