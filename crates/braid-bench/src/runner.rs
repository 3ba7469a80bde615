//! Runs a workload and measures it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::driver::Driver;
use crate::engines::{Counters, KvEngine};
use crate::report::Report;
use crate::tally::{Phase, PhaseCell, Tally};
use crate::usage::Usage;
use crate::worker::Worker;
use crate::{BenchError, Spec};

/// Interval at which the progress callback is called.
const TICK: Duration = Duration::from_millis(100);

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start, including the warm-up.
    pub elapsed: Duration,
    /// Duration of the whole run.
    pub total: Duration,
    /// Whether the warm-up is still running.
    pub warming_up: bool,
    /// Number of operations of all threads since the start.
    pub operations: u64,
}

/// Values of all counters at the start or the end of the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Instant,
    pub(crate) usage: Usage,
    pub(crate) counters: Counters,
}

impl Reading {
    fn now(engine: &dyn KvEngine) -> Self {
        Reading {
            at: Instant::now(),
            usage: Usage::now().with_server(engine.server_usage()),
            counters: engine.counters(),
        }
    }
}

/// Runs a loaded workload; `progress` is called ten times per second. `driver` is that of `spec`.
///
/// Conflicts are retried and counted. All commits are durable when this function returns; the last
/// ones are not counted.
///
/// # Errors
///
/// Invalid options, [`BenchError::Lacking`] if the engine lacks an ability that the workload needs,
/// or the engine's first error, which ends the run.
pub fn run(
    engine: &dyn KvEngine,
    driver: &dyn Driver,
    spec: &Spec,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    spec.check()?;
    if let Some(ability) = engine.abilities().missing(driver.needs()) {
        return Err(BenchError::Lacking {
            engine: engine.name().into(),
            ability,
            workload: driver.name().into(),
        });
    }
    let kinds = driver.kinds().len();
    // A workload that ends by itself is measured from its first transaction to its last.
    let phase = PhaseCell::new(if driver.is_finite() {
        Phase::Measure
    } else {
        Phase::WarmUp
    });
    let over = AtomicUsize::new(0);
    let done: Vec<_> = (0..spec.threads)
        .map(|_| CachePadded::new(AtomicU64::new(0)))
        .collect();
    let mut start = Reading::now(engine);

    let (tallies, end) = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(spec.threads);
        for (i, done) in done.iter().enumerate() {
            let seed = crate::scatter(spec.seed.wrapping_add(i as u64));
            let (phase, over) = (&phase, &over);
            threads.push(scope.spawn(move || {
                let _mark = MarkOver(over);
                let client = driver.client(i, seed);
                let session = engine.session()?;
                Worker::new(session, client, kinds, spec.in_flight, done, phase).run()
            }));
        }
        let watch = Watch {
            done: &done,
            over: &over,
            all: if driver.is_finite() { spec.threads } else { 1 },
            started: Instant::now(),
            spec,
        };
        let join = |threads: Vec<thread::ScopedJoinHandle<'_, _>>| {
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined.collect::<Vec<_>>()
        };
        if driver.is_finite() {
            watch.until(Duration::MAX, progress);
            let tallies = join(threads);
            return (tallies, Reading::now(engine));
        }
        watch.until(spec.warm_up, progress);
        start = Reading::now(engine);
        phase.set(Phase::Measure);
        watch.until(spec.warm_up + spec.measure, progress);
        phase.set(Phase::Stop);
        let end = Reading::now(engine);
        (join(threads), end)
    });

    let mut sum = Tally::new(kinds);
    for tally in tallies {
        sum.add(&tally.map_err(|_| BenchError::Panicked)??);
    }
    Ok(Report::new(engine, driver, spec, &sum, &start, &end))
}

/// Counts a thread as finished when it ends, in whatever way.
struct MarkOver<'a>(&'a AtomicUsize);

impl Drop for MarkOver<'_> {
    fn drop(&mut self) {
        // Relaxed: only ends the watching; joining the threads orders results and errors.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The runner's view of its threads while they work.
struct Watch<'a> {
    done: &'a [CachePadded<AtomicU64>],
    /// Number of threads that have finished.
    over: &'a AtomicUsize,
    /// Number of finished threads that ends the run: one, if threads end only by failing.
    all: usize,
    started: Instant,
    spec: &'a Spec,
}

impl Watch<'_> {
    /// Reports progress until `deadline` after the start, or until the threads have finished.
    fn until(&self, deadline: Duration, progress: &mut dyn FnMut(Progress)) {
        while self.over.load(Ordering::Relaxed) < self.all {
            let elapsed = self.started.elapsed();
            let left = deadline.saturating_sub(elapsed);
            if left.is_zero() {
                return;
            }
            progress(Progress {
                elapsed,
                total: elapsed.max(self.spec.warm_up + self.spec.measure),
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
    use crate::Workload;
    use crate::workload_tests::in_memory;

    #[test]
    fn nonsense_is_refused() {
        let good = Spec::new(Workload::U1);
        let driver = good.driver().unwrap();
        let spec = Spec { threads: 0, ..good };
        let engine = in_memory(driver.as_ref());
        assert!(matches!(
            run(&engine, driver.as_ref(), &spec, &mut |_| ()),
            Err(BenchError::Option { .. })
        ));
    }
}
