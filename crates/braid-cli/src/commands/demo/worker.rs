//! The worker process: threads that transfer money until they are stopped or killed.

use std::collections::VecDeque;
use std::io::{self, Read, Stdout};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid::{Database, Protocol, Ticket};
use fastrand::Rng;

use super::acks::{MAX_BATCH, Reporter};
use super::bank::{self, Bank};
use crate::commands::log_place::LogPlaceArgs;
use crate::failure::Failure;
use crate::numbers::parse;

/// Number of commits that a pipelining thread keeps in flight.
const IN_FLIGHT: usize = 64;

/// Options of the worker process.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(super) dir: PathBuf,
    #[arg(long, value_parser = parse::<Protocol>)]
    pub(super) protocol: Protocol,
    #[arg(long, value_parser = parse::<DeviceChoice>)]
    pub(super) device: DeviceChoice,
    #[arg(long)]
    pub(super) threads: u32,
    #[arg(long)]
    pub(super) accounts: u32,
    #[arg(long)]
    pub(super) epoch: u32,
    #[arg(long)]
    pub(super) seed: u64,
}

/// Runs until standard input ends. The parent closes it to request a clean end. The parent's death
/// closes it as well, so no orphan keeps running.
pub(crate) fn run_worker(args: &WorkerArgs) -> Result<(), Failure> {
    let db = bank::open(
        &args.dir,
        false,
        args.protocol,
        args.device,
        &LogPlaceArgs::default(),
        |_| (),
    )?;
    let bank = Bank::open(&db)?;
    let reporter = Reporter::new(io::stdout());
    reporter.ready().map_err(|error| pipe_failure(&error))?;
    let stop = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let teller = |thread| {
            let (db, bank, reporter, stop) = (&db, &bank, &reporter, &stop);
            scope.spawn(move || {
                let result = Teller::new(args, thread, db, bank, reporter)?.run(stop);
                if result.is_err() {
                    // The other threads can stop: the parent treats this as the end.
                    stop.store(true, Ordering::Relaxed);
                }
                result
            })
        };
        let tellers: Vec<_> = (0..args.threads).map(teller).collect();
        let watch = scope.spawn(|| watch_input(&stop));
        let mut result = Ok(());
        for teller in tellers {
            let ended = teller
                .join()
                .unwrap_or_else(|_| Err(Failure::Failed("a thread of the demo panicked".into())));
            result = result.and(ended);
        }
        if result.is_err() {
            // The watching thread waits for the parent, which waits for this process.
            complain_and_exit(&result);
        }
        drop(watch);
        result
    });
    result?;
    db.close()?;
    Ok(())
}

fn watch_input(stop: &AtomicBool) {
    let mut byte = [0];
    // The parent sends nothing; the end or an error of the pipe is the message.
    while matches!(io::stdin().read(&mut byte), Ok(n) if n > 0) {}
    stop.store(true, Ordering::Relaxed);
}

fn complain_and_exit(result: &Result<(), Failure>) {
    if let Err(failure) = result {
        crate::output::complain(&failure.to_string());
        std::process::exit(failure.exit_code().into());
    }
}

fn pipe_failure(error: &io::Error) -> Failure {
    Failure::io("cannot report to the parent process", error)
}

/// A commit whose durability is awaited.
struct Outstanding {
    ticket: Ticket,
    called: Instant,
    sequence: u64,
}

/// One thread of the worker.
struct Teller<'a> {
    db: &'a Database,
    bank: &'a Bank,
    reporter: &'a Reporter<Stdout>,
    accounts: u32,
    epoch: u32,
    thread: u32,
    /// Number of commits in flight: every second thread waits for each commit.
    in_flight: usize,
    rng: Rng,
    sequence: u64,
    outstanding: VecDeque<Outstanding>,
    latencies: Vec<u32>,
}

impl<'a> Teller<'a> {
    fn new(
        args: &WorkerArgs,
        thread: u32,
        db: &'a Database,
        bank: &'a Bank,
        reporter: &'a Reporter<Stdout>,
    ) -> Result<Self, Failure> {
        let sequence = db.get(&bank.counters, &thread)?.unwrap_or(0);
        Ok(Teller {
            db,
            bank,
            reporter,
            accounts: args.accounts,
            epoch: args.epoch,
            thread,
            in_flight: if thread.is_multiple_of(2) {
                1
            } else {
                IN_FLIGHT
            },
            rng: Rng::with_seed(args.seed.wrapping_add(u64::from(thread) << 32)),
            sequence,
            outstanding: VecDeque::with_capacity(IN_FLIGHT),
            latencies: Vec::with_capacity(MAX_BATCH),
        })
    }

    fn run(mut self, stop: &AtomicBool) -> Result<(), Failure> {
        // Relaxed: noticing the stop one transfer later makes no difference.
        while !stop.load(Ordering::Relaxed) {
            self.transfer()?;
            self.settle(self.in_flight - 1)?;
        }
        self.settle(0)
    }

    /// Makes one transfer, and retries it after conflicts.
    fn transfer(&mut self) -> Result<(), Failure> {
        let sequence = self.sequence + 1;
        let draft = bank::draw(
            &mut self.rng,
            self.accounts,
            self.thread,
            sequence,
            self.epoch,
        );
        loop {
            let mut tx = self.db.begin();
            match self.bank.transfer(&mut tx, &draft) {
                Ok(Ok(())) => {}
                Ok(Err(violation)) => return Err(Failure::Failed(violation)),
                Err(error) if error.is_retryable() => {
                    tx.abort();
                    thread::yield_now();
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let called = Instant::now();
            let committed = if self.in_flight == 1 {
                tx.commit().map(|_| {
                    self.latencies.push(nanos(called.elapsed()));
                })
            } else {
                tx.commit_async().map(|ticket| {
                    self.outstanding.push_back(Outstanding {
                        ticket,
                        called,
                        sequence,
                    });
                })
            };
            match committed {
                Ok(()) => {
                    self.sequence = sequence;
                    return Ok(());
                }
                Err(error) if error.is_retryable() => thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reports all durable commits, and waits until at most `left` commits are in flight.
    fn settle(&mut self, left: usize) -> Result<(), Failure> {
        // If the thread waits for each commit, its newest durable one is here.
        let mut durable = if self.in_flight == 1 {
            self.sequence
        } else {
            0
        };
        while let Some(oldest) = self.outstanding.front() {
            if self.outstanding.len() > left {
                oldest.ticket.wait()?;
            } else if !oldest.ticket.is_durable() {
                break;
            }
            durable = oldest.sequence;
            self.latencies.push(nanos(oldest.called.elapsed()));
            self.outstanding.pop_front();
            if self.latencies.len() == MAX_BATCH {
                self.report(durable)?;
            }
        }
        self.report(durable)
    }

    fn report(&mut self, durable: u64) -> Result<(), Failure> {
        if !self.latencies.is_empty() {
            self.reporter
                .durable(self.thread, durable, &self.latencies)
                .map_err(|error| pipe_failure(&error))?;
            self.latencies.clear();
        }
        Ok(())
    }
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
