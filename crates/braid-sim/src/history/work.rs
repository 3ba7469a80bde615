//! The work of a round's clients, until a close, a crash or a failure.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid::{Database, Health, Protocol};
use braid_rt::thread;

use super::faults::Injected;
use super::open::Contents;
use super::{History, Phase};
use crate::background::{Callbacks, OfRound, exactly_up_to};
use crate::check::Violation;
use crate::client::{Client, Notes};
use crate::record::{Found, Round, TxId, View, whole};
use crate::tables::Tables;

/// How a round ended.
pub(super) enum Worked {
    Over(Round),
    /// The database is closed, and its clients continue with their handles.
    Left(Left),
}

/// A round whose clients have handles of a closed database.
pub(super) struct Left {
    clients: Vec<ClientTask>,
    notes: Notes,
    of_round: OfRound,
    protocol: Protocol,
    /// Whether it was closed without an error: then all commits are durable.
    cleanly: bool,
    /// The state that the next opening found.
    pub(super) found: Option<Found>,
}

/// A client at work.
struct ClientTask {
    task: thread::JoinHandle,
    /// The next free name, after its end.
    next: Arc<Mutex<TxId>>,
}

impl ClientTask {
    fn join(self) -> TxId {
        self.task.join().expect("the simulation ends with a panic");
        *self.next.lock().expect("one writes it")
    }
}

/// The consumer of a change feed.
struct ConsumerTask {
    task: thread::JoinHandle,
    over: Arc<AtomicBool>,
}

impl ConsumerTask {
    fn end(self) {
        // Relaxed: late is good, too.
        self.over.store(true, Ordering::Relaxed);
        self.task.join().expect("the simulation ends with a panic");
    }
}

/// A database at work.
struct Working {
    db: Database,
    tables: Tables,
    notes: Notes,
    clients: Vec<ClientTask>,
    consumer: Option<ConsumerTask>,
    /// The task that cuts the power.
    power: Option<thread::JoinHandle>,
    injected: Vec<Injected>,
}

impl History {
    /// Runs one round of work to its end.
    pub(super) fn work(&mut self, contents: Contents) -> Result<Worked, Violation> {
        self.enter(Phase::Working);
        let Contents { db, tables, found } = contents;
        let notes = Notes::new(found.state);
        // Clients of the previous round may still hold theirs.
        self.background.callbacks = Callbacks::default();
        let (device, spaces) = (self.device.clone(), self.spaces.clone());
        self.background.readers.set_media(device, spaces);
        let reopens = self.plan.reopens && !self.decayed && self.rng.u32(..4) > 0;
        let crash = self.plan.crashes && self.rng.u32(..8) > 0 && !reopens;
        let longest = if self.was_killed { 5 } else { 7 };
        let time = Duration::from_micros(100 << self.rng.u32(..longest));
        let power = crash.then(|| self.arm(time));
        let injected = self.inject();
        let clients = (0..self.plan.clients).map(|i| self.start_client(i, &db, &tables, &notes));
        let working = Working {
            clients: clients.collect(),
            consumer: self.start_consumer(&db),
            db,
            tables,
            notes,
            power,
            injected,
        };
        if reopens {
            Ok(Worked::Left(self.leave(working)))
        } else {
            self.finish(working).map(Worked::Over)
        }
    }

    fn start_client(
        &mut self,
        i: u64,
        db: &Database,
        tables: &Tables,
        notes: &Notes,
    ) -> ClientTask {
        let client = Client::new(
            db.clone(),
            tables.clone(),
            &self.plan,
            notes.clone(),
            self.background.clone(),
            self.rng.u64(..),
            self.next + 16 + i,
        );
        let next = Arc::new(Mutex::new(0));
        let place = next.clone();
        let work = move || *place.lock().expect("one writes it") = client.run();
        let task = thread::spawn(&format!("client-{i}"), AssertUnwindSafe(work).0);
        let task = task.expect("a task can be started");
        ClientTask { task, next }
    }

    fn start_consumer(&mut self, db: &Database) -> Option<ConsumerTask> {
        if !self.plan.feed || self.decayed {
            return None;
        }
        let (consumer, db) = (self.background.consumer.clone(), db.clone());
        let over = Arc::new(AtomicBool::new(false));
        let (until, seed) = (over.clone(), self.rng.u64(..));
        let task = thread::spawn("consumer", move || consumer.run(&db, seed, &until));
        let task = task.expect("a task can be started");
        Some(ConsumerTask { task, over })
    }

    /// Closes the database while its clients continue.
    fn leave(&mut self, working: Working) -> Left {
        drop(working.tables);
        // Skips names that its clients may still assign.
        self.next += 16 * u64::from(4 * self.plan.transactions + 4);
        braid_rt::sleep(Duration::from_micros(50 << self.rng.u32(..7)));
        self.enter(Phase::Closing);
        self.make_room();
        let closed = working.db.close();
        if let Some(consumer) = working.consumer {
            consumer.end();
        }
        self.count_faults(working.injected);
        self.count("opened again alongside old handles");
        Left {
            clients: working.clients,
            notes: working.notes,
            of_round: self.background.take_round(&self.plan),
            protocol: self.plan.protocol,
            cleanly: closed.is_ok(),
            found: None,
        }
    }

    /// Waits for clients that continue with a closed database, and checks their round against the
    /// state when it was reopened. Their later operations must not have changed that state.
    pub(super) fn join(&mut self, left: Left) -> Result<(), Violation> {
        for client in left.clients {
            client.join();
        }
        if left.cleanly {
            left.notes.acknowledge_all();
        }
        let round = left.notes.finish_closed()?;
        self.count_commits(&round);
        self.check(&round, left.found.as_ref(), left.protocol)?;
        self.count("states recovered");
        self.check_background(left.of_round, &round)
    }

    /// Waits for the clients, checks their round, and leaves the database by a close or a crash.
    fn finish(&mut self, mut working: Working) -> Result<Round, Violation> {
        for client in working.clients.drain(..) {
            let next = client.join();
            self.next = self.next.max(next / 16 * 16);
        }
        if let Some(consumer) = working.consumer.take() {
            consumer.end();
        }
        if working.power.is_none() && working.injected.is_empty() && !self.decayed {
            self.check_idle(&working.db, &working.tables)?;
        }
        let mut shown = Vec::new();
        if matches!(working.db.health(), Health::Poisoned { .. }) {
            self.count("worked on after a failure");
            shown = self.look_after_failure(&working);
        }
        let round = self.close(working);
        self.count_commits(&round);
        // The clients' observations must be valid independently of later events.
        self.check(&round, None, self.plan.protocol)?;
        let of_round = self.background.take_round(&self.plan);
        self.check_background(of_round, &round)?;
        for (seqno, marks) in shown {
            if let Err(what) = exactly_up_to(&round, seqno, &marks) {
                self.report = round.to_string();
                return Err(format!("after a failure: {what}"));
            }
        }
        self.restart();
        self.between();
        Ok(round)
    }

    /// Closes the database or drops its handles, and waits for a power cut that is due.
    fn close(&mut self, working: Working) -> Round {
        let Working { db, notes, .. } = working;
        self.enter(Phase::Closing);
        self.make_room();
        if self.rng.u32(..3) > 0 {
            let closed = db.clone().close();
            if closed.is_ok() && !self.device.has_crashed() {
                self.count("closed cleanly");
                notes.acknowledge_all();
            }
        }
        drop(working.tables);
        // Polls the tickets for the last time before the database is closed.
        let round = notes.finish();
        drop(db);
        if let Some(power) = working.power {
            power.join().expect("it does not panic");
        }
        self.count_faults(working.injected);
        round
    }

    /// Lets no device be full.
    fn make_room(&self) {
        self.devices().for_each(|device| device.set_capacity(None));
    }

    /// Reads everything that a failed database shows. Returns the transactions that were present,
    /// and the number up to which they were.
    fn look_after_failure(&mut self, working: &Working) -> Vec<(u64, BTreeSet<TxId>)> {
        let mut shown = Vec::new();
        for _ in 0..2 {
            let snapshot = working.db.snapshot();
            let seqno = snapshot.seqno();
            // A device that continues to fail shows nothing, which is not a violation.
            if let Ok(found) = working.tables.found_in(&snapshot) {
                let ops = vec![whole(found.state)];
                working.notes.view(View { seqno, ops });
                shown.push((seqno, found.marks));
                self.count("seen whole after a failure");
            }
            if self.rng.bool() {
                // Operations that failed before may work now.
                self.repair();
                self.make_room();
            }
        }
        shown
    }
}
