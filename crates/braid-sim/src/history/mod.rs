//! One history: rounds of opening, working, and crashing, each checked.

mod between;
mod checks;
mod faults;
mod idle;
mod missing;
mod open;
mod power;
mod salvaged;
mod watched;
mod work;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use braid::Protocol;
use braid_io::{FileCopies, SimDevice};
use braid_rt::simulation;
use fastrand::Rng;

use self::open::{Contents, Opened};
use self::salvaged::Commit;
use self::work::{Left, Worked};
use crate::background::{Archive, Background};
use crate::check::Violation;
use crate::drive;
use crate::foreign::Foreign;
use crate::plan::Plan;
use crate::record::{BULKY, LARGE, Round, TxId};
use crate::spaces::Spaces;

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
    pub history: Box<str>,
}

/// Runs a plan.
///
/// # Errors
/// The first violation, a deadlock, a panic, or a history that does not end.
pub fn run(plan: &Plan) -> Result<Outcome, Failed> {
    let options = simulation::Options {
        seed: plan.seed,
        steps_max: STEPS_MAX,
        stalls: plan.stalls.into(),
    };
    let own = plan.clone();
    let (result, report) = simulation::run(&options, move || {
        let mut history = History::new(own);
        let done = history.run();
        done.map(|()| history.outcome)
            .map_err(|violation| (violation, history.report))
    });
    let failed = |violation, history: String| Failed {
        plan: plan.clone(),
        violation,
        history: history.into(),
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
    spaces: Spaces,
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
    /// Whether a transaction that writes was acknowledged in the last round.
    has_written: bool,
    /// The committed transactions of all rounds.
    commits: BTreeMap<TxId, Commit>,
    /// Copies of the files from the last time when no process had the database open.
    copies: FileCopies,
    /// The record of the round in which a rule was broken.
    report: String,
    background: Background,
    archive: Option<Archive>,
    foreign: Foreign,
}

impl History {
    fn new(mut plan: Plan) -> Self {
        plan.loads &= !plan.archive;
        if plan.media_faults {
            plan.tamper = false;
        }
        if plan.nvme {
            plan.readers = false;
            plan.archive = false;
            plan.tamper = false;
            plan.media_faults = false;
        }
        let device = SimDevice::new(plan.seed);
        let spaces = Spaces::new(&plan);
        for device in spaces.devices().iter().chain([&device]) {
            if plan.media_faults {
                device.remember_stale();
            }
            if plan.lies {
                device.lie();
            }
        }
        if plan.bulky {
            device.set_spikes(6);
        }
        if plan.nvme {
            drive::format(&device, plan.seed);
        }
        Self {
            archive: plan.archive.then(|| Archive::new(plan.seed ^ 0x00a2_c417e)),
            background: Background::default(),
            foreign: Foreign::new(plan.seed),
            rng: Rng::with_seed(plan.seed ^ 0x0415_7017),
            device,
            spaces,
            next: match (plan.bulky, plan.large) {
                (true, _) => BULKY,
                (false, true) => LARGE,
                (false, false) => 0,
            },
            plan,
            phase: Arc::new(Mutex::new((Phase::Opening, None))),
            outcome: Outcome::default(),
            kill: false,
            was_killed: false,
            decayed: false,
            one_page: false,
            tampered: false,
            has_written: false,
            commits: BTreeMap::new(),
            copies: FileCopies::default(),
            report: String::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.outcome.counts.entry(what).or_default() += 1;
    }

    /// Returns the devices of the database, the main one first.
    fn devices(&self) -> impl Iterator<Item = &SimDevice> {
        std::iter::once(&self.device).chain(self.spaces.devices())
    }

    /// Returns the number of operations that failed by an injected fault.
    fn faults(&self) -> u64 {
        self.devices().map(SimDevice::faults).sum()
    }

    /// Lets all devices work again, and have room.
    fn repair(&self) {
        self.devices().for_each(SimDevice::repair);
    }

    fn enter(&self, phase: Phase) {
        self.phase.lock().expect("nobody panics with it").0 = phase;
    }

    fn run(&mut self) -> Result<(), Violation> {
        let mut before: Option<(Round, Protocol)> = None;
        let mut left: Option<Left> = None;
        for _ in 0..self.plan.rounds {
            if let Some((round, protocol)) = before
                .as_ref()
                .filter(|_| self.plan.bulky && self.has_written)
            {
                self.check_without_last_log_files(round, *protocol)?;
            }
            let contents = match self.open()? {
                Opened::Open(contents) => contents,
                Opened::Refused => return Ok(()),
            };
            if let Some((round, protocol)) = before.take() {
                self.check(&round, Some(&contents.found), protocol)?;
                self.count("states recovered");
            }
            if let Some(left) = &mut left {
                left.found = Some(contents.found.clone());
            }
            if self.decayed {
                self.count("opened in spite of media faults");
            } else if self.archive.is_some() && self.background.copies.ends().is_none() {
                // Archives begin with a backup.
                let made = self.background.copies.make(&contents.db, &mut self.rng);
                self.must_work("no backup of a working database", made)?;
            }
            let protocol = self.plan.protocol;
            let worked = self.work(contents)?;
            if let Some(left) = left.take() {
                self.join(left)?;
            }
            match worked {
                Worked::Over(round) => before = Some((round, protocol)),
                Worked::Left(now) => left = Some(now),
            }
        }
        if let Opened::Open(contents) = self.open()? {
            let Contents { db, found, .. } = contents;
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
}
