//! Acknowledgements after a drive has failed: only transactions whose own bytes were durable before
//! the failure are acknowledged (I8).
//!
//! An observer of the drive finds each transaction's bytes in the writes, and notes when a forced
//! unit access or a flush made them durable. A failure is that of a flush, of a durable write of the
//! log, or of one of the volume's directory. A checkpoint that fails lets the log continue.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid::{Builder, Database, Result, Table, Ticket};
use braid_nvme::crash::{ObservedDrive, Observer};
use braid_nvme::{Command, CommandKind, DriveError, MemoryDrive, MemoryOptions, Target};
use braid_rt::{simulation, thread};
use braid_sim::images::Work;
use fastrand::Rng;

/// Bytes at the start of the drive that only the volume's superblocks and journal use, in every layout
/// of [`Work::format`].
const DIRECTORY: u64 = (1 << 20) + (64 << 10);

const MARK: [u8; 16] = *b"\xb7DURABLE BEFORE?";

/// Several copies, so that one lies within a record's part whatever its boundaries are.
fn value(number: u64) -> Vec<u8> {
    [&MARK[..], &number.to_le_bytes()].concat().repeat(3)
}

fn numbers(data: &[u8]) -> BTreeSet<u64> {
    let starts = (0..data.len()).filter(|at| data[*at] == MARK[0]);
    let found = starts.filter_map(|at| {
        let copy = data.get(at..at + MARK.len() + 8)?;
        let (mark, number) = copy.split_at(MARK.len());
        (mark == MARK).then(|| u64::from_le_bytes(number.try_into().expect("eight bytes")))
    });
    found.collect()
}

#[derive(Debug, Default)]
struct State {
    /// Transactions in each write in flight; of a flush, those that it makes durable.
    in_flight: HashMap<(CommandKind, u64), VecDeque<BTreeSet<u64>>>,
    /// Transactions in completed writes, which the next flush makes durable.
    written: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    /// The first failure that stops the database, and what was durable then.
    failure: Option<(CommandKind, BTreeSet<u64>)>,
}

/// Observes a drive with a volatile cache; on one without, checkpoints use the same writes as the log.
#[derive(Debug, Default)]
struct Order {
    state: Mutex<State>,
}

impl Observer for Order {
    fn submitting(&self, command: &Command, data: &[u8]) -> std::result::Result<(), DriveError> {
        let mut state = self.state.lock().unwrap();
        let transactions = match command.kind {
            CommandKind::Write { .. } => numbers(data),
            CommandKind::Flush => state.written.clone(),
            CommandKind::Read | CommandKind::Deallocate => return Ok(()),
        };
        let same = state
            .in_flight
            .entry((command.kind, command.lba))
            .or_default();
        same.push_back(transactions);
        Ok(())
    }

    fn completed(&self, target: Target, result: &std::result::Result<(), DriveError>) {
        let mut state = self.state.lock().unwrap();
        let same = state.in_flight.get_mut(&(target.kind, target.lba));
        let Some(transactions) = same.and_then(VecDeque::pop_front) else {
            return;
        };
        let durable = matches!(
            target.kind,
            CommandKind::Flush | CommandKind::Write { fua: true }
        );
        let stops = target.kind == CommandKind::Flush
            || !transactions.is_empty()
            || target.lba * 512 < DIRECTORY;
        match result {
            Ok(()) if durable => state.durable.extend(transactions),
            Ok(()) => state.written.extend(transactions),
            Err(_) if durable && stops && state.failure.is_none() => {
                state.failure = Some((target.kind, state.durable.clone()));
            }
            Err(_) => {}
        }
    }
}

/// A database on a drive in memory that is observed.
struct Fixture {
    memory: MemoryDrive,
    observed: ObservedDrive<Order>,
    work: Work,
}

/// What happened after the first failure.
#[derive(Debug, Default)]
struct Sum {
    flushes: u32,
    writes: u32,
    acknowledged: u32,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let memory = MemoryDrive::with_options(MemoryOptions {
            blocks: (32 << 20) / 512,
            seed,
            ..MemoryOptions::default()
        });
        let observed = ObservedDrive::new(Arc::new(memory.clone()), Order::default());
        let work = Work::new(seed);
        work.format(Arc::new(observed.clone())).unwrap();
        Self {
            memory,
            observed,
            work,
        }
    }

    fn open(&self, options: impl FnOnce(Builder) -> Builder) -> (Database, Table<u64, Vec<u8>>) {
        let device = self.work.device(Arc::new(self.observed.clone())).unwrap();
        let db = options(self.work.builder()).open_on(Arc::new(device));
        let db = db.unwrap();
        let table = db.open_table("numbers").unwrap();
        (db, table)
    }

    fn begin(&self, db: &Database, table: &Table<u64, Vec<u8>>, number: u64) -> Result<Ticket> {
        let _ = self;
        let mut tx = db.begin();
        tx.insert(table, &number, &value(number))?;
        tx.commit_async()
    }

    /// The transaction's own bytes are durable.
    #[track_caller]
    fn expect_durable(&self, number: u64) {
        let state = self.observed.observer().state.lock().unwrap();
        assert!(
            state.durable.contains(&number),
            "I3: transaction {number} was acknowledged before its bytes were durable"
        );
    }

    /// The transaction's own bytes were durable when the drive failed, if it did.
    #[track_caller]
    fn expect_durable_before_the_failure(&self, number: u64, sum: &mut Sum) {
        self.expect_durable(number);
        let state = self.observed.observer().state.lock().unwrap();
        let Some((kind, durable)) = &state.failure else {
            return;
        };
        sum.acknowledged += 1;
        assert!(
            durable.contains(&number),
            "I8: transaction {number} was acknowledged and became durable after a failed {kind:?}"
        );
    }

    fn count_failure(&self, sum: &mut Sum) {
        let state = self.observed.observer().state.lock().unwrap();
        match &state.failure {
            Some((CommandKind::Flush, _)) => sum.flushes += 1,
            Some(_) => sum.writes += 1,
            None => {}
        }
    }
}

/// One thread does everything, so the order of all events is that of its calls.
#[test]
fn acknowledged_transactions_were_durable_before_the_drive_failed() {
    let mut sum = Sum::default();
    for seed in 0..105u64 {
        let fixture = Fixture::new(seed);
        let (db, table) = fixture.open(|builder| builder.background_threads(false));
        let mut random = Rng::with_seed(seed);
        let mut tickets = Vec::new();
        fixture.memory.fail_after(random.u64(..40));
        for number in 0..60 {
            // After a failure, the pending transactions are still asked.
            if let Ok(ticket) = fixture.begin(&db, &table, number) {
                tickets.push((number, ticket));
            }
            if random.u32(..6) == 0 {
                let _ = db.checkpoint();
            }
            while tickets.len() > 4 {
                // In any order: a flush covers several.
                let (number, ticket) = tickets.swap_remove(random.usize(..tickets.len()));
                if ticket.wait().is_ok() {
                    fixture.expect_durable_before_the_failure(number, &mut sum);
                }
            }
        }
        for (number, ticket) in tickets {
            if ticket.wait().is_ok() {
                fixture.expect_durable_before_the_failure(number, &mut sum);
            }
        }
        fixture.count_failure(&mut sum);
    }
    println!("{sum:?}");
    assert!(
        sum.flushes > 0 && sum.writes > 0 && sum.acknowledged > 0,
        "{sum:?}"
    );
}

/// With flushing and checkpointing threads, a completion that the observer sees after a failure may
/// precede the database's knowledge of it; but no transaction is acknowledged before its own bytes
/// are durable.
#[test]
fn threads_see_what_the_drive_made_durable() {
    const THREADS: u64 = 3;
    let mut sum = Sum::default();
    for seed in 0..14 {
        let fixture = Fixture::new(seed);
        let (db, table) = fixture.open(|builder| builder);
        let mut random = Rng::with_seed(seed);
        fixture.memory.fail_after(random.u64(20..200));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fixture, db, table) = (&fixture, &db, &table);
                scope.spawn(move || {
                    for number in (thread..90).step_by(THREADS as usize) {
                        if thread == 0 && number % 4 == 0 {
                            let _ = db.checkpoint();
                        }
                        let Ok(ticket) = fixture.begin(db, table, number) else {
                            return;
                        };
                        if ticket.wait().is_ok() {
                            fixture.expect_durable(number);
                        }
                    }
                });
            }
        });
        fixture.count_failure(&mut sum);
    }
    println!("{sum:?}");
    assert!(sum.flushes + sum.writes > 0, "{sum:?}");
}

/// Notices writes of the same blocks that are in flight at once: a drive performs them in any order.
#[derive(Debug, Default)]
struct Overlaps {
    in_flight: Mutex<Vec<(u64, u64)>>,
    headers: AtomicU64,
    found: Mutex<Vec<String>>,
}

impl Observer for Overlaps {
    fn submitting(&self, command: &Command, data: &[u8]) -> std::result::Result<(), DriveError> {
        if !matches!(command.kind, CommandKind::Write { .. }) {
            return Ok(());
        }
        let (start, end) = (command.lba, command.lba + u64::from(command.blocks));
        let mut in_flight = self.in_flight.lock().unwrap();
        if let Some(other) = in_flight.iter().find(|o| o.0 < end && start < o.1) {
            let what = format!("blocks {start}..{end} and {}..{}", other.0, other.1);
            self.found.lock().unwrap().push(what);
        }
        in_flight.push((start, end));
        drop(in_flight);
        // A slow write of a segment's header: all other threads do meanwhile what they can.
        if data.starts_with(b"BRAIDLOG") {
            self.headers.fetch_add(1, Ordering::Relaxed);
            braid_rt::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn completed(&self, target: Target, _result: &std::result::Result<(), DriveError>) {
        let range = (target.lba, target.lba + u64::from(target.blocks));
        let mut in_flight = self.in_flight.lock().unwrap();
        if let Some(at) = in_flight.iter().position(|other| *other == range) {
            in_flight.swap_remove(at);
        }
    }
}

/// Large records begin a segment with almost each flush, and several flushes are in flight. The
/// simulation's scheduler makes each seed do the same in every run.
#[test]
fn no_two_writes_of_a_block_are_in_flight() {
    const THREADS: usize = 4;
    for seed in 0..8 {
        let options = simulation::Options {
            seed,
            steps_max: 10_000_000,
            stalls: 0,
        };
        let (outcome, _) = simulation::run(&options, move || {
            let memory = MemoryDrive::new((48 << 20) / 512);
            let observed = ObservedDrive::new(Arc::new(memory), Overlaps::default());
            let work = Work::new(seed);
            work.format(Arc::new(observed.clone())).unwrap();
            let db = work.open(Arc::new(observed.clone())).unwrap();
            let table: Table<u64, Vec<u8>> = db.open_table("large").unwrap();
            thread::scatter(THREADS, |thread| {
                let mut random = Rng::with_seed(seed << 8 | thread as u64);
                for number in (thread as u64..40).step_by(THREADS) {
                    let value = vec![number as u8; random.usize(20_000..60_000)];
                    db.transact(|tx| tx.insert(&table, &number, &value))
                        .unwrap();
                }
            });
            db.close().unwrap();
            let headers = observed.observer().headers.load(Ordering::Relaxed);
            let found = observed.observer().found.lock().unwrap();
            (headers, found.clone())
        });
        let (headers, found) = outcome.unwrap();
        assert!(headers > 10, "seed {seed}: {headers}");
        assert_eq!(found, Vec::<String>::new(), "seed {seed}");
    }
}
