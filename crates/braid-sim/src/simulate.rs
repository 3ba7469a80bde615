//! Runs many histories on several threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use braid::Protocol;

use crate::history::{Failed, Outcome, run};
use crate::memory;
use crate::plan::Plan;
use crate::processor;

/// Interval between calls of the progress callback.
const TICK: Duration = Duration::from_millis(200);

/// Specification of a simulation.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The seeds, with one history each.
    pub seeds: Range<u64>,
    /// The protocols to begin with, in turn.
    pub protocols: Vec<Protocol>,
    /// Begins no more histories after this time.
    pub time: Option<Duration>,
    /// Threads, each of which runs its own histories.
    pub jobs: usize,
    /// Values that replace those of the seeds, as for [`Plan::set`].
    pub with: Vec<(String, String)>,
}

impl Spec {
    /// The plan of a seed.
    ///
    /// # Errors
    /// As [`Plan::set`].
    pub fn plan(&self, seed: u64) -> Result<Plan, String> {
        let protocol = self.protocols[(seed % self.protocols.len() as u64) as usize];
        let mut plan = Plan::new(seed, protocol);
        let with = self.with.iter();
        plan.set_all(with.map(|(name, value)| (&name[..], &value[..])))?;
        Ok(plan)
    }
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All times.
    pub times: u64,
    /// The histories in which it happened. An event often recurs within a history, so only this
    /// count shows its rarity.
    pub histories: u64,
}

/// The summary of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Histories that ended without a violation.
    pub histories: u64,
    /// Power cuts and killed processes in them.
    pub crashes: u64,
    /// Histories with at least one of these.
    pub with_crashes: u64,
    /// Transactions that committed.
    pub commits: u64,
    /// Steps of the scheduler.
    pub steps: u64,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, Count>,
    /// Time that it took.
    pub elapsed: Duration,
    /// Processor time of the jobs, known when they have ended; if the system does not report it,
    /// their duration.
    pub processor: Duration,
    /// The first history that broke a rule, which ends the run.
    pub failed: Option<Failed>,
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.histories += 1;
        self.crashes += outcome.crashes;
        self.with_crashes += u64::from(outcome.crashes > 0);
        self.commits += outcome.commits;
        self.steps += outcome.report.steps;
        for (what, times) in outcome.counts {
            let count = self.counts.entry(what).or_default();
            count.times += times;
            count.histories += 1;
        }
    }
}

/// Runs the histories; `progress` is called a few times a second.
///
/// # Errors
/// If a plan is inconsistent.
pub fn simulate(spec: &Spec, progress: &mut dyn FnMut(&Summary)) -> Result<Summary, String> {
    if spec.protocols.is_empty() || spec.jobs == 0 {
        return Err("there must be a protocol and a job".to_owned());
    }
    memory::keep_freed();
    let begun = Instant::now();
    let next = AtomicU64::new(spec.seeds.start);
    let over = AtomicBool::new(false);
    let nonsense = Mutex::new(None);
    let mut summary = Summary::default();
    std::thread::scope(|scope| {
        let (results, outcomes) = mpsc::channel();
        let mut jobs = Vec::new();
        for _ in 0..spec.jobs {
            let (results, next, over) = (results.clone(), &next, &over);
            let nonsense = &nonsense;
            let work = move || {
                let late = || spec.time.is_some_and(|time| begun.elapsed() >= time);
                // Relaxed, all: results come through the channel.
                while !over.load(Ordering::Relaxed) && !late() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !spec.seeds.contains(&seed) {
                        return;
                    }
                    let plan = match spec.plan(seed) {
                        Ok(plan) => plan,
                        Err(why) => {
                            over.store(true, Ordering::Relaxed);
                            *nonsense.lock().expect("nobody panics with it") = Some(why);
                            return;
                        }
                    };
                    let outcome = run(&plan);
                    over.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    if results.send(outcome).is_err() {
                        return;
                    }
                }
            };
            jobs.push(scope.spawn(move || {
                work();
                processor::time(begun)
            }));
        }
        drop(results);
        let mut reported = begun;
        loop {
            match outcomes.recv_timeout(TICK) {
                Ok(Ok(outcome)) => summary.add(outcome),
                Ok(Err(failed)) => {
                    // The failure with the smallest seed, regardless of which thread finished
                    // first.
                    let first = summary.failed.as_ref();
                    if first.is_none_or(|first| failed.plan.seed < first.plan.seed) {
                        summary.failed = Some(failed);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if reported.elapsed() >= TICK {
                reported = Instant::now();
                summary.elapsed = begun.elapsed();
                progress(&summary);
            }
        }
        let times = jobs
            .into_iter()
            .map(|job| job.join().expect("no job panics"));
        summary.processor = times.sum();
    });
    summary.elapsed = begun.elapsed();
    let nonsense = nonsense.into_inner().expect("nobody panics with it");
    nonsense.map_or(Ok(summary), Err)
}
