//! The child process, which is killed. It opens the database, commits from several threads and
//! prints each acknowledgement on standard output, one line each, all beginning with `@`. It reads
//! commands from standard input; at the end of the input it closes the database and exits.

use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use braid::device::DeviceChoice;
use braid::{Database, Error, Protocol, Ticket};

use crate::syscalls::deny;
use crate::workload::{THREADS, Tables, builder, check};

/// The variable with the child's orders, a line each: directory, protocol, device, and optionally
/// an order that is executed first.
pub(crate) const VARIABLE: &str = "BRAID_CHILD";

/// Commits that every second thread keeps in flight.
const IN_FLIGHT: usize = 8;

/// Transactions of the first thread between its checkpoints.
const CHECKPOINT_EVERY: u64 = 12;

/// Maximum runtime of the child, so that it ends even if the parent hangs.
const LONGEST: Duration = Duration::from_secs(100);

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // One write per line, so that only a kill can cut a line short. If the parent is gone, the end
    // of standard input says so, too.
    let _ = out.write_all(format!("@{line}\n").as_bytes());
    let _ = out.flush();
}

/// The order to read alongside a writer instead of writing.
pub(crate) const READ: &str = "read";

/// Follows a writer until it is killed.
fn read(dir: &Path) {
    let opened = Database::builder().pool_bytes(1 << 20).open_read_only(dir);
    let mut db = opened.expect("a database to read");
    loop {
        check(&db, &[0; THREADS as usize], "a reader");
        say("shown");
        db.refresh().expect("a newer state");
    }
}

/// Returns the name of an error's variant.
fn name(error: &Error) -> String {
    let text = format!("{error:?}");
    let end = text.find(|c: char| !c.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

pub(crate) fn run() {
    let Ok(plan) = std::env::var(VARIABLE) else {
        return;
    };
    let mut plan = plan.lines();
    let mut next = || plan.next().expect("three lines");
    let dir = PathBuf::from(next());
    let protocol: Protocol = next().parse().expect("a protocol");
    let device: DeviceChoice = next().parse().expect("a device");
    let order = plan.next();
    thread::spawn(|| {
        thread::sleep(LONGEST);
        eprintln!("the child ran too long");
        std::process::abort();
    });
    // The test harness has printed text without a line end before.
    say("\n@started");
    if order == Some(READ) {
        return read(&dir);
    }
    order.into_iter().for_each(deny);
    let opened = builder(protocol, device)
        .recovery_progress(|_| say("recovering"))
        .open(dir);
    let db = match opened {
        Ok(db) => db,
        Err(error) => return say(&format!("refused {} {error}", name(&error))),
    };
    say("ready");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, stop) = (&db, &stop);
            scope.spawn(move || Teller::new(db, thread).run(stop));
        }
        for order in io::stdin().lock().lines() {
            deny(&order.expect("an order"));
            say("denied");
        }
        stop.store(true, Ordering::Relaxed);
    });
    match db.close() {
        Ok(()) => say("closed"),
        Err(error) => say(&format!("failed close {}", name(&error))),
    }
}

/// One committing thread.
struct Teller<'a> {
    db: &'a Database,
    tables: Tables,
    thread: u64,
    sequence: u64,
    outstanding: VecDeque<(u64, Ticket)>,
    /// Whether an error said that the engine is poisoned: from then on it must acknowledge nothing.
    poisoned: bool,
}

impl<'a> Teller<'a> {
    fn new(db: &'a Database, thread: u64) -> Self {
        let tables = Tables::open(db).expect("the tables");
        let sequence = tables.newest(db, thread).expect("the counter");
        Self {
            db,
            tables,
            thread,
            sequence,
            outstanding: VecDeque::new(),
            poisoned: false,
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut failures = 0;
        // Relaxed: seeing the stop one transaction later does no harm.
        while !stop.load(Ordering::Relaxed) && failures < 5 {
            match self.transaction() {
                Ok(()) => {}
                Err(error) if error.is_retryable() => thread::yield_now(),
                Err(error) => {
                    self.poisoned |= matches!(error, Error::Poisoned { .. });
                    say(&format!("failed commit {}", name(&error)));
                    failures += 1;
                }
            }
            self.settle(IN_FLIGHT);
            if self.thread == 0 && self.sequence % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1 {
                self.checkpoint();
            }
            self.look();
        }
        self.settle(0);
        if self.thread == 0 {
            self.checkpoint();
        }
        say(&format!("ended {}", self.thread));
    }

    fn transaction(&mut self) -> Result<(), Error> {
        let sequence = self.sequence + 1;
        let mut tx = self.db.begin();
        self.tables.write(&mut tx, self.thread, sequence)?;
        let was_poisoned = self.poisoned;
        if self.thread.is_multiple_of(2) {
            tx.commit()?;
            self.sequence = sequence;
            self.acknowledged(sequence, was_poisoned);
        } else {
            let ticket = tx.commit_async()?;
            self.sequence = sequence;
            self.outstanding.push_back((sequence, ticket));
        }
        Ok(())
    }

    fn acknowledged(&self, sequence: u64, was_poisoned: bool) {
        if was_poisoned {
            say(&format!("violated: {sequence} after the poison"));
        }
        say(&format!("ack {} {sequence}", self.thread));
    }

    /// Prints the acknowledgements that have arrived, and waits until at most `left` commits are in
    /// flight.
    fn settle(&mut self, left: usize) {
        while let Some((sequence, ticket)) = self.outstanding.front() {
            if self.outstanding.len() <= left && !ticket.is_durable() {
                break;
            }
            match ticket.wait() {
                Ok(_) => self.acknowledged(*sequence, false),
                Err(error) => {
                    self.poisoned = true;
                    say(&format!("failed ticket {}", name(&error)));
                }
            }
            self.outstanding.pop_front();
        }
    }

    fn checkpoint(&self) {
        match self.db.checkpoint() {
            Ok(()) => say("checkpoint"),
            Err(error) => say(&format!("failed checkpoint {}", name(&error))),
        }
    }

    /// I4: transactions that a read has shown must survive, like acknowledged ones.
    fn look(&self) {
        if self.sequence.is_multiple_of(8) {
            let other = (self.thread + 1) % THREADS;
            if let Ok(newest @ 1..) = self.tables.newest(self.db, other) {
                say(&format!("ack {other} {newest}"));
            }
        }
    }
}
