//! Compares single reads of random keys with batches of 16 (`Readable::get_many`), from memory and
//! with a pool for a tenth of the data:
//!
//! ```text
//! cargo run --profile fat -p braid-bench --example batches -- DIRECTORY
//! ```
//!
//! The two alternate. The program prints the median time per key of seven rounds, or of the number
//! given as a further argument.

use std::path::PathBuf;
use std::time::Instant;

use braid::{Bytes, Database, Readable, Snapshot, Table};

const RECORDS: u64 = 1_000_000;
const DATA_BYTES: usize = 130 << 20;
const BATCH: usize = 16;

type Records = Table<u64, Bytes>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("batches DIRECTORY [ROUNDS]")?);
    let rounds: usize = args.next().as_deref().unwrap_or("7").parse()?;
    let pool = |bytes| Database::builder().pool_bytes(bytes);
    let db = pool(4 * DATA_BYTES).open(&dir)?;
    let records: Records = db.open_table("records")?;
    if db.snapshot().is_empty(&records)? {
        for from in (0..RECORDS).step_by(1_000) {
            let keys = from..from + 1_000;
            db.transact(|tx| {
                let mut keys = keys.clone();
                keys.try_for_each(|key| tx.insert(&records, &scattered(key), &[7; 100][..]))
            })?;
        }
    }
    db.checkpoint()?;
    measure("in memory", &db, 20_000, rounds)?;
    drop((records, db));
    let db = pool(DATA_BYTES / 10).open(&dir)?;
    measure("a tenth in memory", &db, 200, rounds)?;
    Ok(())
}

/// Spreads numbers over the keys.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn measure(what: &str, db: &Database, batches: usize, rounds: usize) -> braid::Result<()> {
    let table: Records = db.open_table("records")?;
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut single, mut together) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let snapshot = db.snapshot();
        single.push(time(&mut rng, batches, |keys| {
            one_by_one(&snapshot, &table, keys)
        })?);
        together.push(time(&mut rng, batches, |keys| {
            snapshot.get_many(&table, keys).map(|found| found.len())
        })?);
    }
    let (single, together) = (median(single), median(together));
    println!(
        "{what}: get {single:.0} ns a key, get_many {together:.0} ns, {:.2} of it",
        together / single
    );
    Ok(())
}

fn one_by_one(snapshot: &Snapshot, table: &Records, keys: &[u64]) -> braid::Result<usize> {
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        values.push(snapshot.get(table, key)?);
    }
    Ok(values.len())
}

/// Returns the time per key, in nanoseconds.
fn time(
    rng: &mut fastrand::Rng,
    batches: usize,
    mut read: impl FnMut(&[u64]) -> braid::Result<usize>,
) -> braid::Result<f64> {
    let start = Instant::now();
    for _ in 0..batches {
        let keys: [u64; BATCH] = std::array::from_fn(|_| scattered(rng.u64(..RECORDS)));
        assert_eq!(read(&keys)?, BATCH);
    }
    Ok(start.elapsed().as_nanos() as f64 / (batches * BATCH) as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
