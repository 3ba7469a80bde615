//! A fixed number of U-1 transactions with commits in flight, for counting instructions:
//!
//! ```text
//! cargo build --release -p braiddb --example instructions
//! for n in 0 20000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/instructions glsn $n
//! done
//! ```
//!
//! The difference of the two counts over the number of transactions is what one costs, everything included:
//! the transaction, its log, its share of flushes to a device in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use braid::{Bytes, Database, MemoryDevice, Protocol, Table, Ticket};

const RECORDS: u64 = 65_536;
const IN_FLIGHT: usize = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let protocol: Protocol = args.next().as_deref().unwrap_or("glsn").parse()?;
    let transactions: u64 = args.next().as_deref().unwrap_or("20000").parse()?;
    let db = Database::builder()
        .protocol(protocol)
        .background_threads(false)
        .open_on(Arc::new(MemoryDevice::new()))?;
    let table: Table<u64, Bytes> = db.table("records")?;
    let value = [7; 100];
    for first in (0..RECORDS).step_by(1_024) {
        let mut tx = db.begin();
        (first..first + 1_024).try_for_each(|key| tx.insert(&table, &key, &value))?;
        tx.commit()?;
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let mut tickets: VecDeque<Ticket> = VecDeque::with_capacity(IN_FLIGHT);
    for _ in 0..transactions {
        let mut tx = db.begin();
        tx.insert(&table, &rng.u64(..RECORDS), &value)?;
        tickets.push_back(tx.commit_async()?);
        if tickets.len() == IN_FLIGHT {
            // One flush makes all of them durable.
            tickets
                .back()
                .map_or(Ok(()), |newest| newest.wait().map(drop))?;
            tickets.clear();
        }
    }
    db.sync()?;
    Ok(())
}
