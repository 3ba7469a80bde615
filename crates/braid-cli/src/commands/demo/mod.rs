//! `braid demo`: a bank whose process is killed repeatedly, and never loses a cent.

mod acks;
mod bank;
mod check;
mod child;
mod summary;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use braid::Protocol;
use braid::device::DeviceChoice;
use fastrand::Rng;
use indicatif::ProgressBar;

pub(crate) use self::worker::{WorkerArgs, run_worker};

use self::acks::Feed;
use self::bank::Bank;
use self::check::Findings;
use self::child::Worker;
use self::summary::{Live, Round, Summary};
use crate::commands::log_place::LogPlaceArgs;
use crate::failure::Failure;
use crate::numbers::{parse, parse_seconds};
use crate::output::{self, Output};
use crate::scratch::Scratch;
use crate::signals;

/// Interval at which the parent checks the worker.
const TICK: Duration = Duration::from_millis(100);

/// Interval of progress lines when standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Minimum time that a worker runs before it is killed.
const SHORTEST_RUN: Duration = Duration::from_millis(150);

/// Minimum part of a round that a worker runs, however long the checks take.
const SMALLEST_PART: f64 = 0.25;

/// Maximum delay of a kill that is meant to interrupt recovery.
const RECOVERY_KILL_MS: u64 = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Directory of the database, which must be missing or empty [default: a new one in TMPDIR or
    /// here, removed afterwards]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Approximate duration of the whole demo
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    seconds: Duration,

    /// Commit protocol: serial, aether, epoch, glsn, gwsn-strict, gwsn or gsn
    #[arg(long, value_name = "NAME", default_value_t, value_parser = parse::<Protocol>)]
    protocol: Protocol,

    /// Device to store on: auto, uring or file
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = parse_lasting_device)]
    device: DeviceChoice,

    #[command(flatten)]
    log: LogPlaceArgs,

    /// Number of threads that move money: every second one waits for each commit, the others keep
    /// 64 in flight
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// Number of accounts
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    accounts: u32,

    /// Number of tablespaces with logs of their own over which the accounts are divided; on a machine
    /// with several memory nodes, each is bound to one, in turn [default: none]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true,
          value_parser = clap::value_parser!(u8).range(0..=16))]
    tablespaces: u8,

    /// Number of times that the worker process is killed
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,

    /// Seed of all random choices except the interleaving of threads [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn parse_lasting_device(text: &str) -> Result<DeviceChoice, String> {
    match parse(text)? {
        DeviceChoice::Memory => {
            Err("memory does not survive a killed process; choose auto, uring or file".into())
        }
        device => Ok(device),
    }
}

pub(crate) fn run(args: &DemoArgs, output: &mut Output) -> Result<(), Failure> {
    let scratch = Scratch::new(args.dir.as_deref(), "braid-demo-")?;
    let result = Demo::new(args, scratch.path(), output).and_then(Demo::run);
    // A database that violates its guarantees is evidence: keep it for inspection.
    if matches!(result, Err(Failure::Failed(_))) {
        if let Some(kept) = scratch.keep() {
            output::complain(&format!("the database is kept in {}", kept.display()));
        }
        return result;
    }
    result.and(scratch.remove())
}

/// The parent's state.
struct Demo<'a> {
    args: &'a DemoArgs,
    dir: &'a Path,
    output: &'a mut Output,
    spinner: ProgressBar,
    rng: Rng,
    feed: Arc<Feed>,
    started: Instant,
    epoch: u32,
    live: Live,
    summary: Summary,
}

impl<'a> Demo<'a> {
    fn new(args: &'a DemoArgs, dir: &'a Path, output: &'a mut Output) -> Result<Self, Failure> {
        let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
        output.line_now(format_args!(
            "{} threads move money between {} accounts in {}; the process is killed {} times \
             (--seed {seed})",
            args.threads,
            args.accounts,
            dir.display(),
            args.kills
        ))?;
        Ok(Demo {
            args,
            dir,
            output,
            spinner: output::spinner(),
            rng: Rng::with_seed(seed),
            feed: Arc::new(Feed::new(args.threads)),
            started: Instant::now(),
            epoch: 0,
            live: Live::default(),
            summary: Summary::default(),
        })
    }

    fn run(mut self) -> Result<(), Failure> {
        self.create()?;
        for kill in 1..=self.args.kills {
            let run_for = self.next_run(kill);
            let mut worker = self.start_worker(&format!("run {kill}"))?;
            self.watch(&mut worker, run_for)?;
            worker.kill()?;
            self.end_run();
            // Recovery itself must survive a kill.
            let again = kill > 1 && self.rng.bool();
            if again {
                self.kill_while_recovering()?;
            }
            let round = self.recover_and_check(kill, again)?;
            self.tell(round.line())?;
            self.report_violations(&round)?;
            self.summary.rounds.push(round);
        }
        self.end_cleanly()?;
        self.spinner.finish_and_clear();
        let state = self.feed.lock();
        let text = self
            .summary
            .table(&state.latency, state.transfers, self.started.elapsed());
        self.output.line_now(text.trim_end())
    }

    /// Creates the bank, in this process.
    fn create(&mut self) -> Result<(), Failure> {
        let delayed = signals::delay_removal();
        let db = self.open(true)?;
        if db
            .table_names()?
            .iter()
            .any(|name| name.starts_with("accounts"))
        {
            return Err(Failure::Usage(format!(
                "cannot create the demo's database in {}: it already contains one; name a new directory",
                self.dir.display()
            )));
        }
        bank::create_tablespaces(&db, self.dir, self.args.tablespaces)?;
        drop(delayed);
        let bank = Bank::open(&db)?;
        bank.create_accounts(&db, self.args.accounts)?;
        db.close()?;
        Ok(())
    }

    fn open(&self, create: bool) -> Result<braid::Database, Failure> {
        bank::open(
            self.dir,
            create,
            self.args.protocol,
            self.args.device,
            &self.args.log,
            |_| (),
        )
    }

    /// Returns how long the next worker runs: about an equal share of the remaining time, at
    /// random.
    fn next_run(&mut self, kill: u32) -> Duration {
        // One share more than the kills, for the clean end.
        let runs_left = self.args.kills + 2 - kill;
        let left = self.args.seconds.saturating_sub(self.started.elapsed());
        let share = left / runs_left;
        // The previous rounds show what a round costs in addition to its run. But later runs must
        // be long enough, too.
        let run = share
            .saturating_sub(self.summary.last_overhead())
            .max(share.mul_f64(SMALLEST_PART));
        let luck = if runs_left > 1 {
            0.5 + self.rng.f64()
        } else {
            1.0
        };
        run.mul_f64(luck).max(SHORTEST_RUN)
    }

    fn start_worker(&mut self, name: &str) -> Result<Worker, Failure> {
        let seed = self.rng.u64(..);
        let mut worker = Worker::spawn(self.args, self.dir, self.epoch, seed, &self.feed)?;
        self.epoch += 1;
        worker.wait_ready()?;
        self.live = Live::start(name, self.started, &self.feed.lock());
        Ok(worker)
    }

    /// Shows the worker's progress for a while.
    fn watch(&mut self, worker: &mut Worker, run_for: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut next_line = LINE_EVERY;
        loop {
            let elapsed = begin.elapsed();
            let left = run_for.saturating_sub(elapsed);
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(TICK));
            worker.check_alive()?;
            let line = self.live.line(&self.feed.lock());
            if output::watched() {
                self.spinner.set_message(line);
                self.spinner.tick();
            } else if begin.elapsed() >= next_line {
                next_line += LINE_EVERY;
                self.output.line_now(line)?;
            }
        }
    }

    fn end_run(&mut self) {
        let state = self.feed.lock();
        self.summary.transferring += self.live.elapsed();
        self.live.stop(&state);
    }

    fn kill_while_recovering(&mut self) -> Result<(), Failure> {
        let seed = self.rng.u64(..);
        let worker = Worker::spawn(self.args, self.dir, self.epoch, seed, &self.feed)?;
        self.epoch += 1;
        thread::sleep(Duration::from_millis(self.rng.u64(0..RECOVERY_KILL_MS)));
        worker.kill()
    }

    fn recover_and_check(&mut self, kill: u32, again: bool) -> Result<Round, Failure> {
        let begin = Instant::now();
        let db = self.open(false)?;
        let recovery_time = begin.elapsed();
        let (replayed, log_bytes) = (db.recovery().transactions, db.recovery().log_bytes);
        let begin = Instant::now();
        let findings = self.check(&db)?;
        let check_time = begin.elapsed();
        db.close()?;
        Ok(Round {
            kill,
            killed_while_recovering: again,
            rate: self.live.rate(),
            recovery_time,
            replayed,
            log_bytes,
            check_time,
            findings,
        })
    }

    fn check(&self, db: &braid::Database) -> Result<Findings, Failure> {
        let bank = Bank::open(db)?;
        let acknowledged = self.feed.lock().threads.clone();
        check::check(db, &bank, self.args.accounts, &acknowledged)
    }

    /// Lets a last worker run and end by itself, and checks its data.
    fn end_cleanly(&mut self) -> Result<(), Failure> {
        let run_for = self.next_run(self.args.kills + 1);
        let mut worker = self.start_worker("last run")?;
        self.watch(&mut worker, run_for)?;
        worker.finish()?;
        self.end_run();
        let round = self.recover_and_check(0, false)?;
        self.tell(round.line())?;
        self.report_violations(&round)?;
        self.summary.rounds.push(round);
        Ok(())
    }

    fn report_violations(&mut self, round: &Round) -> Result<(), Failure> {
        if round.findings.count == 0 {
            return Ok(());
        }
        for violation in &round.findings.violations {
            self.tell(format!("  violated: {violation}"))?;
        }
        Err(Failure::Failed(format!(
            "{} checks failed",
            round.findings.count
        )))
    }

    /// Prints a line above the spinner.
    fn tell(&mut self, line: String) -> Result<(), Failure> {
        let Demo {
            spinner, output, ..
        } = self;
        spinner.suspend(|| output.line_now(line))
    }
}
