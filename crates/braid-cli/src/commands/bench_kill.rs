//! `braid bench WORKLOAD --kill`: the workload's own checks after a kill and a recovery.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid::device::DeviceChoice;
use braid_bench::{Check, Driver, Spec};

use super::bench::{self, WorkloadArgs};
use crate::failure::Failure;
use crate::numbers::grouped;
use crate::output::Output;
use crate::scratch::Scratch;

/// Interval at which the child reports acknowledged transactions.
const TICK: Duration = Duration::from_millis(2);

/// Kills the workload's process this many times, and recovers and checks the data each time.
pub(super) fn run(args: &WorkloadArgs, kills: u32, output: &mut Output) -> Result<(), Failure> {
    let spec = args.spec();
    if args.device == DeviceChoice::Memory {
        return Err(Failure::Usage(
            "cannot use --kill with a database in memory; choose another --device".into(),
        ));
    }
    let driver = spec.driver()?;
    let scratch = Scratch::new(args.dir.as_deref(), "braid-bench-")?;
    let open = || args.open(scratch.path(), &spec, driver.as_ref());
    let engine = open()?;
    bench::load(engine.as_ref(), driver.as_ref(), &spec)?;
    let Some(mut present) = driver.present(engine.as_ref())? else {
        return Err(Failure::Usage(format!(
            "cannot use --kill with workload {}: its transactions cannot be counted afterwards; use bank, tpcb, tpcc or tpcc-no",
            spec.workload
        )));
    };
    drop(engine);
    let mut violations = 0;
    for kill in 1..=kills {
        let mut rng = fastrand::Rng::with_seed(spec.seed.wrapping_add(u64::from(kill)));
        let run_for = spec.measure.mul_f64(rng.f64().max(0.05));
        let mut child = Feeder::start(args, scratch.path())?;
        let acknowledged = child.until(run_for)?;
        drop(child);
        let opened = Instant::now();
        let engine = open()?;
        let took = opened.elapsed();
        let found = driver.present(engine.as_ref())?.unwrap_or(0);
        let mut checks = driver.check(engine.as_ref())?;
        drop(engine);
        checks.push(Check::new(
            "every acknowledged transaction is there",
            (found < present + acknowledged)
                .then(|| format!("{} of {acknowledged}", found.saturating_sub(present))),
        ));
        let failed: Vec<_> = checks.iter().filter_map(Check::complaint).collect();
        output.line_now(format_args!(
            "kill {kill} after {:.1} s: {} acknowledged, {} recovered in {:.2} s, {} of {} conditions hold",
            run_for.as_secs_f64(),
            grouped(acknowledged),
            grouped(found.saturating_sub(present)),
            took.as_secs_f64(),
            checks.len() - failed.len(),
            checks.len()
        ))?;
        for violation in &failed {
            output.line_now(format_args!("  VIOLATED {violation}"))?;
        }
        violations += failed.len();
        present = found;
    }
    if violations > 0 {
        let kept = scratch.keep();
        let place = kept.map_or(String::new(), |dir| format!("; see {}", dir.display()));
        return Err(Failure::Failed(format!(
            "{violations} conditions are violated{place}"
        )));
    }
    scratch.remove()
}

/// Prints the number of acknowledged transactions on standard output, until stopped.
pub(super) fn feed(driver: &dyn Driver, stop: &AtomicBool) {
    let mut pipe = std::io::stdout();
    // Relaxed: only ends the feed.
    while !stop.load(Ordering::Relaxed) {
        if writeln!(pipe, "{}", driver.acknowledged())
            .and_then(|()| pipe.flush())
            .is_err()
        {
            // The parent has stopped reading; it is about to kill this process.
            return;
        }
        thread::sleep(TICK);
    }
}

/// The process that runs the workload; killed when it goes out of scope.
struct Feeder {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Drop for Feeder {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Feeder {
    fn start(args: &WorkloadArgs, dir: &Path) -> Result<Self, Failure> {
        let program = env::current_exe()
            .map_err(|error| Failure::io("cannot find this program's own file", &error))?;
        let mut child = Command::new(program)
            .args(arguments(args))
            .arg("--dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::io("cannot start the workload's process", &error))?;
        let Some(pipe) = child.stdout.take() else {
            return Err(Failure::Failed(
                "cannot read from the workload's process: it has no pipe".into(),
            ));
        };
        Ok(Feeder {
            child,
            lines: BufReader::new(pipe).lines(),
        })
    }

    /// Lets the workload run for a while after its first acknowledgement, and returns the last
    /// reported number. The caller kills it at once.
    fn until(&mut self, run_for: Duration) -> Result<u64, Failure> {
        let mut began = None;
        loop {
            let line = self.lines.next().and_then(Result::ok);
            let Some(acknowledged) = line.and_then(|line| line.parse::<u64>().ok()) else {
                return Err(Failure::Failed(
                    "the workload's process ended before it was killed".into(),
                ));
            };
            if acknowledged > 0 {
                let began = *began.get_or_insert_with(Instant::now);
                if began.elapsed() >= run_for {
                    return Ok(acknowledged);
                }
            }
        }
    }
}

/// Returns the child's command line: that of this process, without the kill and without an end.
fn arguments(args: &WorkloadArgs) -> Vec<String> {
    let spec: Spec = args.spec();
    let mut line: Vec<String> = ["bench", spec.workload.name(), "--feed"]
        .map(String::from)
        .into();
    let mut option = |name: &str, value: String| line.push(format!("--{name}={value}"));
    option("seconds", "86400".into());
    option("warm-up", "0.001".into());
    option("threads", spec.threads.to_string());
    option("in-flight", spec.in_flight.to_string());
    option("records", spec.records.to_string());
    option("value-size", spec.value_size.to_string());
    option("scale", spec.scale.to_string());
    option("scan-length", spec.scan_length.to_string());
    option("zipf", spec.zipf.to_string());
    option("engine", args.engine.clone());
    option("protocol", args.protocol.to_string());
    option("device", args.device().to_string());
    if let Some(mode) = args.pmem_commit {
        option("pmem-commit", mode.to_string());
    }
    option("roam", args.roam.to_string());
    let numbers = [
        ("hot", spec.hot),
        ("persist-ns", args.persist_ns),
        ("strands", args.strands.map(|n| n as u64)),
        ("lanes", args.lanes.map(|n| n as u64)),
        ("flushes", args.flushes.map(|n| n as u64)),
        ("group-size", args.group_size.map(u64::from)),
        ("pool-mib", args.pool_mib.map(|n| n as u64)),
        ("checkpoint-mib", args.checkpoint_mib),
        ("preallocated-log-mib", Some(args.preallocated_log_mib)),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            option(name, value.to_string());
        }
    }
    if let Some(ratio) = args.data_over_pool {
        option("data-over-pool", ratio.to_string());
    }
    line
}
