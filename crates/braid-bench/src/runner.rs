//! Running a workload and measuring it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid::Database;
use crossbeam_utils::CachePadded;

use crate::engine::{Counters, Engine};
use crate::load::open_table;
use crate::report::Report;
use crate::usage::Usage;
use crate::worker::{Phase, PhaseCell, Tally, Worker};
use crate::workload::{Generator, Plan};
use crate::{BenchError, Spec};

/// How often the progress callback is called.
const TICK: Duration = Duration::from_millis(100);

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start, warm-up included.
    pub elapsed: Duration,
    /// Time that the whole run takes.
    pub total: Duration,
    /// Whether this is still the warm-up.
    pub warming_up: bool,
    /// Operations since the start, of all threads.
    pub operations: u64,
}

/// A reading of every counter at the start or the end of the measured time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Instant,
    pub(crate) usage: Usage,
    pub(crate) counters: Counters,
}

impl Reading {
    fn now(db: &Database) -> Self {
        Reading {
            at: Instant::now(),
            usage: Usage::now(),
            counters: Counters::of(db),
        }
    }
}

/// Runs the workload of `spec` on a loaded database; `progress` is called ten times a second.
///
/// Conflicts are retried and counted. `engine` is how `db` was opened.
///
/// # Errors
/// Nonsensical options, or the first error of the database, which ends the run.
pub fn run(
    db: &Database,
    engine: &Engine,
    spec: &Spec,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    spec.check()?;
    let table = open_table(db, spec)?;
    let plan = Plan::new(spec.workload, spec.records, spec.zipf);
    let phase = PhaseCell::new();
    let failed = AtomicBool::new(false);
    let done: Vec<_> = (0..spec.threads)
        .map(|_| CachePadded::new(AtomicU64::new(0)))
        .collect();

    let (tallies, start, end) = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(spec.threads);
        for (i, done) in done.iter().enumerate() {
            let seed = crate::scatter(spec.seed.wrapping_add(i as u64));
            let generator = Generator::new(plan.clone(), seed);
            let (table, phase, failed) = (&table, &phase, &failed);
            threads.push(scope.spawn(move || {
                let worker = Worker::new(
                    db,
                    table,
                    generator,
                    spec.in_flight,
                    spec.value_size,
                    done,
                    phase,
                );
                let result = worker.run();
                if result.is_err() {
                    // Relaxed: only ends the run early; the error itself comes through the join.
                    failed.store(true, Ordering::Relaxed);
                }
                result
            }));
        }
        let watch = Watch {
            done: &done,
            failed: &failed,
            started: Instant::now(),
            spec,
        };
        watch.until(spec.warm_up, progress);
        let start = Reading::now(db);
        phase.set(Phase::Measure);
        watch.until(spec.warm_up + spec.measure, progress);
        phase.set(Phase::Stop);
        let end = Reading::now(db);
        let tallies: Vec<_> = threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        (tallies, start, end)
    });

    let mut sum = Tally::new();
    for tally in tallies {
        sum.add(&tally.map_err(|_| BenchError::Panicked)??);
    }
    Ok(Report::new(engine, spec, &sum, &start, &end))
}

/// The runner's view of its threads while they work.
struct Watch<'a> {
    done: &'a [CachePadded<AtomicU64>],
    failed: &'a AtomicBool,
    started: Instant,
    spec: &'a Spec,
}

impl Watch<'_> {
    /// Reports progress until `deadline` after the start, or until a thread has failed.
    fn until(&self, deadline: Duration, progress: &mut dyn FnMut(Progress)) {
        while !self.failed.load(Ordering::Relaxed) {
            let elapsed = self.started.elapsed();
            let left = deadline.saturating_sub(elapsed);
            if left.is_zero() {
                return;
            }
            progress(Progress {
                elapsed,
                total: self.spec.warm_up + self.spec.measure,
                warming_up: elapsed < self.spec.warm_up,
                operations: self.done.iter().map(|n| n.load(Ordering::Relaxed)).sum(),
            });
            thread::sleep(left.min(TICK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Workload, load};
    use braid::DeviceChoice;

    fn short(workload: Workload, threads: usize, in_flight: usize) -> Report {
        let dir = tempfile::tempdir().unwrap();
        let spec = Spec {
            threads,
            in_flight,
            warm_up: Duration::from_millis(20),
            measure: Duration::from_millis(150),
            records: 2_000,
            ..Spec::new(workload)
        };
        let mut engine = Engine::new(dir.path(), &spec);
        engine.device = DeviceChoice::Memory;
        let db = engine.open().unwrap();
        load(&db, &spec, &mut |_| ()).unwrap();
        let mut ticks = 0;
        let report = run(&db, &engine, &spec, &mut |p| {
            ticks += 1;
            assert!(p.elapsed <= p.total);
        })
        .unwrap();
        assert!(ticks > 0);
        db.close().unwrap();
        report
    }

    #[test]
    fn every_workload_runs_waiting_and_pipelined() {
        for workload in Workload::ALL {
            for (threads, in_flight) in [(2, 1), (2, 16)] {
                let report = short(workload, threads, in_flight);
                assert!(report.tx_per_s > 0.0, "{workload}");
                assert_eq!((report.threads, report.in_flight), (threads, in_flight));
                assert_eq!(report.commits == 0, workload.is_read_only(), "{workload}");
                assert!(
                    report.p50_us > 0.0 && report.p50_us <= report.p99_us,
                    "{workload}"
                );
                assert!(report.p99_us <= report.p999_us, "{workload}");
                if workload != Workload::YcsbD {
                    assert_eq!(
                        report.missing, 0,
                        "{workload}: every loaded record is found"
                    );
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let spec = Spec {
            threads: 0,
            ..Spec::new(Workload::U1)
        };
        let mut engine = Engine::new(dir.path(), &spec);
        engine.device = DeviceChoice::Memory;
        let db = engine.open().unwrap();
        assert!(matches!(
            run(&db, &engine, &spec, &mut |_| ()),
            Err(BenchError::Option { .. })
        ));
    }
}
