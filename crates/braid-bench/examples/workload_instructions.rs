//! Runs a fixed number of a workload's transactions on Braid in memory, for counting instructions:
//!
//! ```text
//! cargo build --profile fat -p braid-bench --example workload_instructions
//! for n in 0 5000; do
//!     valgrind --tool=callgrind --callgrind-out-file=callgrind.$n target/fat/examples/workload_instructions tpcc $n
//! done
//! ```
//!
//! The difference of the two counts, divided by the number of transactions, is the cost of one
//! transaction.

use std::collections::VecDeque;
use std::sync::Arc;

use braid::Database;
use braid::device::MemoryDevice;
use braid_bench::engines::{Acknowledgement, BraidEngine, KvEngine, Mode, Stop, Wait};
use braid_bench::{Access, BenchError, Spec, Workload};

const IN_FLIGHT: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let workload: Workload = args.next().as_deref().unwrap_or("tpcc").parse()?;
    let transactions: u64 = args.next().as_deref().unwrap_or("5000").parse()?;
    let mut spec = Spec::new(workload);
    if let Some(records) = args.next() {
        spec.records = records.parse()?;
    }
    let driver = spec.driver()?;
    let db = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 30)
        .open_on(Arc::new(MemoryDevice::new()))?;
    let engine = BraidEngine::new(db, &driver.tables())?;
    driver.load(&engine, &mut |_| ())?;
    let mut session = engine.session()?;
    let mut client = driver.client(0, 1);
    let mut outstanding = VecDeque::with_capacity(IN_FLIGHT);
    for _ in 0..transactions {
        let Some(step) = client.draw() else { break };
        let done = match step.access {
            Access::Get => client.get(session.as_mut()).map(|_| None),
            Access::Read => session
                .transact(Mode::ReadOnly, Wait::Durable, &mut |tx| client.execute(tx))
                .map(|_| None),
            Access::Write => session
                .transact(Mode::ReadWrite, Wait::Ticket, &mut |tx| client.execute(tx))
                .map(Some),
        };
        match done {
            Ok(Some(Acknowledgement::Pending(ticket))) => outstanding.push_back(ticket),
            Ok(_) | Err(Stop::RolledBack) => {}
            Err(stop) => return Err(BenchError::Alone(stop.to_string()).into()),
        }
        if outstanding.len() == IN_FLIGHT {
            // One flush makes all of them durable.
            outstanding
                .back()
                .map_or(Ok(()), |newest: &braid::Ticket| newest.wait().map(drop))?;
            outstanding.clear();
        }
    }
    Ok(())
}
