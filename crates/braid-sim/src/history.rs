//! One history: rounds of opening, working, and crashing, each checked.

mod idle;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid::backup::BackupError;
use braid::{Database, Error, Health, Protocol};
use braid_io::{FileCopies, FileFaults, MediaFaults, SimDevice};
use braid_rt::{simulation, thread};
use fastrand::Rng;

use self::watched::Watched;
use crate::background::{Archive, Background, Callbacks, OfRound, exactly_up_to};
use crate::check::{Survival, Violation, check};
use crate::client::{Client, Notes, Tables};
use crate::foreign::{self, Foreign};
use crate::graph;
use crate::plan::{Plan, survival};
use crate::record::{Found, LARGE, Round, TxId, View, whole};

/// Steps of the scheduler after which a history counts as endless. Some histories with stalls take
/// a million: a task that waits for a lock spins, and all spinning tasks take steps while the
/// lock's holder has no processor.
const STEPS_MAX: u64 = 30_000_000;

/// How often each event happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// The outcome of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Power cuts and killed processes.
    pub crashes: u64,
    /// Transactions that committed.
    pub commits: u64,
    /// The events, and the rare branches of the engine that were reached.
    pub counts: Counts,
    /// The scheduler's report.
    pub report: simulation::Report,
}

/// A history that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The plan that reproduces the failure.
    pub plan: Plan,
    /// The rule, and how it was broken.
    pub violation: Violation,
    /// The observations of the round's clients, if the violation concerns them.
    pub history: String,
}

/// Runs a plan.
///
/// # Errors
/// The first violation, a deadlock, a panic, or a history that does not end.
pub fn run(plan: &Plan) -> Result<Outcome, Failed> {
    let options = simulation::Options {
        seed: plan.seed,
        steps_max: STEPS_MAX,
        stalls: plan.stalls,
    };
    let own = plan.clone();
    let (result, report) = simulation::run(&options, move || {
        let mut history = History::new(own);
        let done = history.run();
        done.map(|()| history.outcome)
            .map_err(|violation| (violation, history.told))
    });
    let failed = |violation, history| Failed {
        plan: plan.clone(),
        violation,
        history,
    };
    match result {
        Ok(Ok(mut outcome)) => {
            for (&place, count) in &report.reached {
                *outcome.counts.entry(place).or_default() += count;
            }
            outcome.report = report;
            Ok(outcome)
        }
        Ok(Err((violation, history))) => Err(failed(violation, history)),
        Err(failure) => Err(failed(failure.to_string(), String::new())),
    }
}

/// The phase of a history in which the power may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Working,
    Closing,
}

struct History {
    plan: Plan,
    rng: Rng,
    device: SimDevice,
    phase: Arc<Mutex<(Phase, Option<Phase>)>>,
    outcome: Outcome,
    next: TxId,
    /// Whether the next crash kills the process only.
    kill: bool,
    /// Whether the last crash did.
    was_killed: bool,
    /// Whether the medium may hold, or return later, other contents than those written.
    decayed: bool,
    /// Whether only a page of a tree, or an unreferenced block, was damaged.
    one_page: bool,
    /// Whether a log file was tampered with: opening may refuse, but the state that it finds must
    /// be complete.
    tampered: bool,
    /// Copies of the files from the last time when no process had the database open.
    copies: FileCopies,
    /// The record of the round in which a rule was broken.
    told: String,
    background: Background,
    archive: Option<Archive>,
    foreign: Foreign,
}

/// The bytes of a block of the data file.
const BLOCK: usize = 8192;

/// Upper bound of the identities of blocks that are pages, or were never written.
const MAP: u64 = 1 << 62;

/// Returns the identities in the blocks of the data file.
fn identities(device: &SimDevice) -> Vec<u64> {
    let bytes = foreign::read(device, "data.braid").unwrap_or_default();
    let blocks = bytes.chunks_exact(BLOCK);
    blocks
        .map(|block| u64::from_le_bytes(block[8..16].try_into().expect("eight bytes")))
        .collect()
}

/// How a round ended.
enum Worked {
    Over(Round),
    /// The database is closed, and its clients continue with their handles.
    Left(Left),
}

/// A round whose clients have handles of a closed database.
struct Left {
    clients: Vec<(thread::JoinHandle, Arc<Mutex<TxId>>)>,
    notes: Notes,
    of_round: OfRound,
    protocol: Protocol,
    /// Whether it was closed without an error: then all commits are durable.
    cleanly: bool,
    /// The state that the next opening found.
    found: Option<Found>,
}

/// How an opening ended.
enum Opened {
    Open(Database, Tables, Found),
    /// The engine reports damage of the medium, which is damaged.
    Refused,
}

impl History {
    fn new(mut plan: Plan) -> Self {
        plan.loads &= !plan.archive;
        if plan.media_faults {
            plan.tamper = false;
        }
        let device = SimDevice::new(plan.seed);
        if plan.media_faults {
            device.remember_stale();
        }
        if plan.lies {
            device.lie();
        }
        Self {
            archive: plan.archive.then(|| Archive::new(plan.seed ^ 0x00a2_c417e)),
            background: Background::default(),
            foreign: Foreign::new(plan.seed),
            rng: Rng::with_seed(plan.seed ^ 0x0415_7017),
            device,
            next: if plan.large { LARGE } else { 0 },
            plan,
            phase: Arc::new(Mutex::new((Phase::Opening, None))),
            outcome: Outcome::default(),
            kill: false,
            was_killed: false,
            decayed: false,
            one_page: false,
            tampered: false,
            copies: FileCopies::default(),
            told: String::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.outcome.counts.entry(what).or_default() += 1;
    }

    fn enter(&self, phase: Phase) {
        self.phase.lock().expect("nobody panics with it").0 = phase;
    }

    /// Cuts the power after some time, at any operation. A process is often killed while written
    /// data is not yet durable.
    fn arm(&mut self, within: Duration) -> thread::JoinHandle {
        let device = self.device.clone();
        let archive = self.archive.as_ref().map(Archive::medium);
        let phase = self.phase.clone();
        let after = within.mul_f64(self.rng.f64());
        let kill = self.kill;
        let watched = kill.then(|| Watched::choose(&device, archive.as_ref(), &mut self.rng));
        thread::spawn("power", move || {
            braid_rt::sleep(after);
            if let Some(watched) = watched.flatten() {
                watched.wait();
            }
            if !device.has_crashed() {
                for device in [Some(device), archive].into_iter().flatten() {
                    if kill {
                        device.kill()
                    } else {
                        device.power_off()
                    }
                }
                // No task may be interrupted while it holds this lock, which does not support
                // tasks.
                let mut phase = phase.lock().expect("nobody panics with it");
                phase.1 = Some(phase.0);
            }
        })
        .expect("a task can be started")
    }

    /// Returns the medium after the power is restored, or as the next process finds it.
    fn restart(&mut self) {
        if self.device.has_crashed() {
            self.outcome.crashes += 1;
            let at = self.phase.lock().expect("nobody panics with it").1.take();
            self.count(match (self.kill, at) {
                (false, Some(Phase::Opening)) => "power cut while opening",
                (false, Some(Phase::Closing)) => "power cut while closing",
                (false, _) => "power cut while working",
                (true, Some(Phase::Opening)) => "killed while opening",
                (true, Some(Phase::Closing)) => "killed while closing",
                (true, _) => "killed while working",
            });
        }
        self.device = if self.kill {
            self.device.after_kill()
        } else {
            self.device.after_crash()
        };
        if let Some(archive) = &mut self.archive {
            archive.restart(self.kill);
        }
        // After a kill, usually the power fails next, and soon, while the killed process's writes
        // may be volatile.
        self.was_killed = self.kill;
        self.kill = self.rng.u32(..5) < if self.was_killed { 1 } else { 2 };
    }

    /// Opens the database, retrying through all crashes, and checks everything.
    fn open(&mut self) -> Result<Opened, Violation> {
        self.enter(Phase::Opening);
        let mut shown = BTreeSet::new();
        for attempt in 0.. {
            if attempt < 3 && self.plan.crashes && self.plan.readers {
                self.look(&mut shown);
            }
            let armed = self.plan.crashes
                && attempt < 3
                && self.rng.u32(..if self.was_killed { 2 } else { 4 }) == 0;
            let power = armed.then(|| self.arm(Duration::from_millis(3)));
            let mut fault = None;
            if self.plan.errors && attempt < 3 && self.rng.u32(..12) == 0 {
                let n = self.rng.u64(1..20);
                fault = Some(match self.rng.u32(..3) {
                    0 => {
                        self.device.fail_write_after(n);
                        "write error while opening"
                    }
                    1 => {
                        self.device.fail_sync_after(n);
                        "sync error while opening"
                    }
                    _ => {
                        self.device.fail_read_after(n);
                        "read error while opening"
                    }
                });
            }
            let mut builder = self.plan.builder(&mut self.rng);
            if let Some(archive) = &mut self.archive {
                builder = archive.ask_for(builder, self.plan.feed, &mut self.rng);
            }
            // The comparison of files reads whole blocks.
            let are_blocks = !self.outcome.counts.contains_key("a log file cut");
            let planted = match (&power, fault) {
                (None, None) if attempt < 3 && are_blocks => self.foreign.plant(&self.device),
                _ => None,
            };
            let (device, claim) = self.device.claim();
            let opened = builder.open_on_locked(Arc::new(device), claim);
            if let Some(planted) = planted {
                self.count(planted.what);
                planted.check(&self.device, &opened)?;
                if opened.is_err() {
                    continue;
                }
            }
            if self.one_page && !self.tampered && fault.is_none() && power.is_none() {
                match &opened {
                    Ok(_) => self.count("one page damaged, and the rest is open"),
                    Err(error) => {
                        return Err(format!("one damaged page closes all others: {error}"));
                    }
                }
            }
            let mut broken = Ok(());
            let opened = opened.and_then(|db| {
                let tables = Tables::open(&db, &self.plan)?;
                let found = tables.found(&db)?;
                if !self.decayed {
                    let background = &self.background;
                    broken = background.check_opened(&self.plan, &db, &tables, &found)?;
                }
                Ok((db, tables, found))
            });
            broken?;
            if let Ok((_, _, found)) = &opened
                && !(self.decayed || self.tampered || self.plan.lies)
            {
                if let Some(id) = shown.difference(&found.marks).next() {
                    return Err(format!("an earlier opening has shown transaction {id}"));
                }
                shown.clone_from(&found.marks);
            }
            if let Some(fault) = fault.filter(|_| self.device.faults() > 0) {
                self.count(fault);
            }
            if let Some(power) = power {
                if opened.is_ok() && self.rng.bool() {
                    // The crash may still be pending; then it happens early.
                    drop(opened);
                    power.join().expect("it does not panic");
                    self.restart();
                    continue;
                }
                power.join().expect("it does not panic");
                drop(opened);
                self.restart();
                continue;
            }
            let error = match opened {
                Ok((db, tables, found)) => {
                    self.device.repair();
                    if std::mem::take(&mut self.tampered) {
                        self.count("opened in spite of a tampered log file");
                    }
                    return Ok(Opened::Open(db, tables, found));
                }
                Err(error) => error,
            };
            if fault.is_some() {
                // The process ends, and a new one retries.
                self.device.repair();
                self.device = self.device.after_kill();
                if let Some(archive) = &mut self.archive {
                    archive.restart(true);
                }
                continue;
            }
            if self.decayed || self.tampered {
                return match error {
                    // A stale sector may make a stale page intact, which only its contents can
                    // reveal.
                    Error::Corrupted { .. }
                    | Error::Decode { .. }
                    | Error::Incompatible { .. }
                    | Error::NotADatabase { .. } => {
                        self.count("damage told when opening");
                        Ok(Opened::Refused)
                    }
                    error => Err(format!("damage is told as: {error}")),
                };
            }
            return Err(format!("a working device can't be opened: {error}"));
        }
        unreachable!("the fourth attempt is not disturbed")
    }

    /// Occasionally reads the database without writing, as a process that ends before the next one
    /// opens it for writing, and before a loss of power. A failure to open is reported later.
    fn look(&mut self, shown: &mut BTreeSet<TxId>) {
        if self.decayed || self.tampered || self.plan.lies || self.rng.u32(..3) > 0 {
            return;
        }
        let builder = Database::builder().pool_bytes(1 << 20);
        let opened = builder.open_read_only_on(Arc::new(self.device.clone()));
        let found = opened.and_then(|db| Tables::existing(&db)?.found_in(&db.snapshot()));
        if let Ok(found) = found {
            self.count("looked at before it is opened to write");
            *shown = found.marks;
            if self.rng.bool() {
                self.device = self.device.after_crash();
                if let Some(archive) = &mut self.archive {
                    archive.restart(false);
                }
            }
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        let mut before: Option<(Round, Protocol)> = None;
        let mut left: Option<Left> = None;
        for _ in 0..self.plan.rounds {
            let (db, tables, found) = match self.open()? {
                Opened::Open(db, tables, found) => (db, tables, found),
                Opened::Refused => return Ok(()),
            };
            if let Some((round, protocol)) = before.take() {
                self.check(&round, Some(&found), protocol)?;
                self.count("states recovered");
            }
            if let Some(left) = &mut left {
                left.found = Some(found.clone());
            }
            if self.decayed {
                self.count("opened in spite of media faults");
            } else if self.archive.is_some() && self.background.copies.ends().is_none() {
                // Archives begin with a backup.
                let made = self.background.copies.make(&db, &mut self.rng);
                self.must_work("no backup of a working database", made)?;
            }
            let protocol = self.plan.protocol;
            let worked = self.work(db, tables, found)?;
            if let Some(left) = left.take() {
                self.join(left)?;
            }
            match worked {
                Worked::Over(round) => before = Some((round, protocol)),
                Worked::Left(now) => left = Some(now),
            }
        }
        if let Opened::Open(db, _, found) = self.open()? {
            if let Some((round, protocol)) = before {
                self.check(&round, Some(&found), protocol)?;
                self.count("states recovered");
            }
            if let Some(mut left) = left {
                left.found = Some(found.clone());
                self.join(left)?;
            }
            self.check_archive(&db, &found)?;
            self.enter(Phase::Closing);
            self.must_work("a working device can't be closed", db.close())?;
        }
        Ok(())
    }

    /// Brings the archive up to date, if the database was opened with it, and checks the archive's
    /// promises.
    fn check_archive(&mut self, db: &Database, found: &Found) -> Result<(), Violation> {
        let Some(mut archive) = self.archive.take().filter(|_| !self.decayed) else {
            return Ok(());
        };
        let archived = db.archive_now();
        let is_gap = matches!(archived, Err(Error::Backup(BackupError::ArchiveGap { .. })));
        let archived = match archived {
            Ok(None) => return Ok(()),
            Err(_) if is_gap && archive.may_lack() => true,
            // An error of the archive's own medium, which was injected in the previous round.
            Err(_) if archive.medium().faults() > 0 => return Ok(()),
            archived => self.must_work("a working archive fails", archived)?,
        };
        if !archived {
            return Ok(());
        }
        archive.check(&self.background.copies, found, !is_gap)?;
        self.count(if is_gap {
            "archives lack transactions"
        } else {
            "archives restored"
        });
        let builder = self.plan.builder(&mut self.rng);
        if !self.plan.lies && archive.check_twin(db, builder, &mut self.rng)? {
            self.count("copies of a database share an archive");
        }
        Ok(())
    }

    /// Waits for clients that continue with a closed database, and checks their round against the
    /// state when it was reopened. Their later operations must not have changed that state.
    fn join(&mut self, left: Left) -> Result<(), Violation> {
        for (client, _) in left.clients {
            client.join().expect("the simulation ends with a panic");
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

    fn count_commits(&mut self, round: &Round) {
        let commits = round.txs.iter();
        let commits =
            commits.filter(|tx| matches!(tx.outcome, crate::record::Outcome::Committed(_)));
        self.outcome.commits += commits.count() as u64;
    }

    fn check_background(&mut self, of_round: OfRound, round: &Round) -> Result<(), Violation> {
        let checked = self.background.check_round(of_round, round);
        if checked.is_err() {
            self.told = round.to_string();
        }
        checked
    }

    /// Returns whether an operation succeeded. If not, a fault must have been injected, possibly in
    /// the background while the database was opened, so that the opening succeeded nevertheless.
    fn must_work<T>(&self, or_else: &str, outcome: braid::Result<T>) -> Result<bool, Violation> {
        match outcome {
            Err(error) if self.device.faults() == 0 => Err(format!("{or_else}: {error}")),
            outcome => Ok(outcome.is_ok()),
        }
    }

    fn check(
        &mut self,
        round: &Round,
        found: Option<&Found>,
        protocol: Protocol,
    ) -> Result<(), Violation> {
        let survival = survival(protocol);
        // A damaged page of the data file is reported, or no reader needs it.
        let lenient = self.decayed && (self.tampered || !self.one_page);
        let checked = check(round, found, survival, lenient)
            .and_then(|()| graph::check(round, self.plan.snapshot));
        if checked.is_err() {
            let found = found.map(ToString::to_string).unwrap_or_default();
            self.told = format!("{round}\n{found}");
        }
        checked?;
        if found.is_some_and(|found| {
            round
                .txs
                .iter()
                .any(|tx| tx.writes() && !found.marks.contains(&tx.id))
        }) {
            self.count(match survival {
                Survival::Prefix => "a tail of the order lost",
                Survival::Closed => "a part of the order lost",
            });
        }
        Ok(())
    }

    /// Runs one round of work to its end: a close, a crash or a failure.
    fn work(&mut self, db: Database, tables: Tables, found: Found) -> Result<Worked, Violation> {
        self.enter(Phase::Working);
        let notes = Notes::new(found.state);
        // Clients of the previous round may still hold theirs.
        self.background.callbacks = Callbacks::default();
        self.background.readers.set_device(self.device.clone());
        let reopens = self.plan.reopens && !self.decayed && self.rng.u32(..4) > 0;
        let crash = self.plan.crashes && self.rng.u32(..8) > 0 && !reopens;
        let longest = if self.was_killed { 5 } else { 7 };
        let time = Duration::from_micros(100 << self.rng.u32(..longest));
        let power = crash.then(|| self.arm(time));
        let disturbed = self.disturb();
        let clients: Vec<_> = (0..self.plan.clients)
            .map(|i| {
                let seed = self.rng.u64(..);
                let first = self.next + 16 + i;
                let client = Client::new(
                    db.clone(),
                    tables.clone(),
                    &self.plan,
                    notes.clone(),
                    self.background.clone(),
                    seed,
                    first,
                );
                let next = Arc::new(Mutex::new(0));
                let place = next.clone();
                let work = move || *place.lock().expect("one writes it") = client.run();
                let handle = thread::spawn(&format!("client-{i}"), AssertUnwindSafe(work).0);
                (handle.expect("a task can be started"), next)
            })
            .collect();
        let over = Arc::new(AtomicBool::new(false));
        let consumer = (self.plan.feed && !self.decayed).then(|| {
            let (consumer, db, over) = (self.background.consumer.clone(), db.clone(), over.clone());
            let seed = self.rng.u64(..);
            let work = move || consumer.run(&db, seed, &over);
            thread::spawn("consumer", work).expect("a task can be started")
        });
        if reopens {
            drop(tables);
            // Skips names that its clients may still assign.
            self.next += 16 * u64::from(4 * self.plan.transactions + 4);
            braid_rt::sleep(Duration::from_micros(50 << self.rng.u32(..7)));
            self.enter(Phase::Closing);
            self.device.set_capacity(None);
            let closed = db.close();
            // Relaxed: late is good, too.
            over.store(true, Ordering::Relaxed);
            if let Some(consumer) = consumer {
                consumer.join().expect("the simulation ends with a panic");
            }
            self.count_faults(disturbed);
            self.count("opened again beside old handles");
            return Ok(Worked::Left(Left {
                clients,
                notes,
                of_round: self.background.take_round(&self.plan),
                protocol: self.plan.protocol,
                cleanly: closed.is_ok(),
                found: None,
            }));
        }
        for (client, next) in clients {
            client.join().expect("the simulation ends with a panic");
            let next = *next.lock().expect("one writes it");
            self.next = self.next.max(next / 16 * 16);
        }
        // Relaxed: late is good, too.
        over.store(true, Ordering::Relaxed);
        if let Some(consumer) = consumer {
            consumer.join().expect("the simulation ends with a panic");
        }
        if power.is_none() && disturbed.is_empty() && !self.decayed {
            self.check_idle(&db, &tables)?;
        }
        let mut shown = Vec::new();
        if matches!(db.health(), Health::Poisoned { .. }) {
            self.count("worked on after a failure");
            shown = self.look_after_failure(&db, &tables, &notes);
        }
        self.enter(Phase::Closing);
        self.device.set_capacity(None);
        if self.rng.u32(..3) > 0 {
            let closed = db.clone().close();
            if closed.is_ok() && !self.device.has_crashed() {
                self.count("closed cleanly");
                notes.acknowledge_all();
            }
        }
        drop(tables);
        // Polls the tickets for the last time before the database is closed.
        let round = notes.finish();
        drop(db);
        if let Some(power) = power {
            power.join().expect("it does not panic");
        }
        self.count_faults(disturbed);
        self.count_commits(&round);
        // The clients' observations must be valid independently of later events.
        self.check(&round, None, self.plan.protocol)?;
        let of_round = self.background.take_round(&self.plan);
        self.check_background(of_round, &round)?;
        for (seqno, marks) in shown {
            if let Err(what) = exactly_up_to(&round, seqno, &marks) {
                self.told = round.to_string();
                return Err(format!("after a failure: {what}"));
            }
        }
        self.restart();
        self.between();
        Ok(Worked::Over(round))
    }

    /// Counts the injected faults that occurred, and disables further faults.
    fn count_faults(&mut self, disturbed: Vec<(&'static str, SimDevice, u64)>) {
        for (fault, device, before) in disturbed {
            if device.faults() > before {
                self.count(fault);
            }
            device.repair();
        }
        self.device.repair();
    }

    /// Reads everything that a failed database shows. Returns the transactions that were present,
    /// and the number up to which they were.
    fn look_after_failure(
        &mut self,
        db: &Database,
        tables: &Tables,
        notes: &Notes,
    ) -> Vec<(u64, BTreeSet<TxId>)> {
        let mut shown = Vec::new();
        for _ in 0..2 {
            let snapshot = db.snapshot();
            let seqno = snapshot.seqno();
            // A device that continues to fail shows nothing, which is not a violation.
            if let Ok(found) = tables.found_in(&snapshot) {
                let ops = vec![whole(found.state)];
                notes.view(View { seqno, ops });
                shown.push((seqno, found.marks));
                self.count("seen whole after a failure");
            }
            if self.rng.bool() {
                // Operations that failed before may work now.
                self.device.repair();
                self.device.set_capacity(None);
            }
        }
        shown
    }

    /// Injects faults while the clients work. Returns the kind of each fault, the device, and the
    /// earlier count of faults there: not every injected fault occurs.
    fn disturb(&mut self) -> Vec<(&'static str, SimDevice, u64)> {
        let mut disturbed = Vec::new();
        if !self.plan.errors {
            return disturbed;
        }
        let mut expect = |what, device: &SimDevice| {
            disturbed.push((what, device.clone(), device.faults()));
        };
        let n = self.rng.u64(1..60);
        if let Some(archive) = self.archive.as_ref().map(Archive::medium)
            && self.rng.u32(..3) == 0
        {
            expect("write error in the archive", &archive);
            archive.fail_write_after(self.rng.u64(1..10));
        }
        if self.plan.tight && self.rng.u32(..3) > 0 {
            expect("reads fail at random", &self.device);
            self.device.fail_reads_at_random(self.rng.u32(8..200));
        }
        if self.plan.tight && self.rng.u32(..3) == 0 {
            expect("device full behind a small pool", &self.device);
            let room = self.rng.u64(..400 << 10);
            self.device.set_capacity(Some(self.device.used() + room));
        }
        match self.rng.u32(..8) {
            0 => {
                expect("write error", &self.device);
                self.device.fail_write_after(n);
            }
            1 => {
                expect("sync error", &self.device);
                self.device.fail_sync_after(n);
            }
            2 => {
                expect("read error", &self.device);
                self.device.fail_read_after(n);
            }
            3 => {
                expect("device broken for good", &self.device);
                self.device.break_after(n);
            }
            4 | 5 => {
                expect("device full", &self.device);
                let room = self.rng.u64(..200 << 10);
                self.device.set_capacity(Some(self.device.used() + room));
            }
            _ => {}
        }
        disturbed
    }

    /// Cuts, removes or replaces a log file.
    fn tamper(&mut self) {
        let older = std::mem::replace(&mut self.copies, self.device.copy_files());
        let media_faults =
            [FileFaults::Cut, FileFaults::Gone, FileFaults::Older][self.rng.usize(..3)];
        let pick = |name: &str| name.ends_with(".seg");
        if self.device.fault_file(media_faults, &older, pick).is_none() {
            return;
        }
        // At most once in a history: the evidence of a second loss may be lost with the first. And
        // the lost log may be log that is kept for a feed or an archive.
        self.plan.tamper = false;
        self.plan.feed = false;
        self.archive = None;
        self.tampered = true;
        self.count(match media_faults {
            FileFaults::Cut => "a log file cut",
            FileFaults::Gone => "a log file removed",
            FileFaults::Older => "a log file replaced by an earlier copy",
        });
    }

    /// Injects the events that may happen while no process has the database open.
    fn between(&mut self) {
        if let Some(archive) = &mut self.archive {
            archive.copy_database(&self.device, &mut self.rng);
        }
        if self.plan.tamper {
            self.tamper();
        }
        if self.plan.media_faults && self.rng.bool() {
            let log = self.rng.bool();
            let all = [
                MediaFaults::FlippedBit,
                MediaFaults::LostSector,
                MediaFaults::StaleSector,
                MediaFaults::StalePage,
            ];
            // The log does not consist of pages.
            let media_faults = all[self.rng.usize(..if log { 3 } else { 4 })];
            let pick = |name: &str| name.ends_with(".braid") != log;
            let identities = identities(&self.device);
            if let Some((_, byte)) = self.device.media_faults(media_faults, pick) {
                let identity = identities.get(byte / BLOCK).copied().unwrap_or_default();
                self.one_page = !log && !self.decayed && identity < MAP && byte >= 2 * BLOCK;
                self.decayed = true;
                // The actual and the expected contents now differ.
                self.plan.leases = false;
                self.plan.loads = false;
                self.plan.feed = false;
                self.plan.copies = false;
                self.archive = None;
                self.count(match (media_faults, log) {
                    (MediaFaults::FlippedBit, true) => "flipped bit in the log",
                    (MediaFaults::FlippedBit, false) => "flipped bit in the data file",
                    (MediaFaults::LostSector, true) => "lost sector in the log",
                    (MediaFaults::LostSector, false) => "lost sector in the data file",
                    (MediaFaults::StaleSector, true) => "stale sector in the log",
                    (MediaFaults::StaleSector, false) => "stale sector in the data file",
                    (MediaFaults::StalePage, _) => "stale page in the data file",
                });
            }
        }
        let others: Vec<Protocol> = Protocol::ALL
            .iter()
            .copied()
            .filter(|p| {
                p.forced_strands().is_some() == self.plan.protocol.forced_strands().is_some()
            })
            .collect();
        if self.rng.u32(..10) == 0 {
            self.plan.protocol = others[self.rng.usize(..others.len())];
            self.count("protocol switched");
        }
        if self.rng.u32(..8) == 0 && self.plan.protocol.forced_strands().is_none() {
            self.plan.strands = self.plan.lanes + self.rng.usize(..3);
            self.count("number of strands changed");
        }
    }
}
