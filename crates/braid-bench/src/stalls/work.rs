//! What a disturbance does to the device and to the processors, in the course of a measurement.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::usage::Usage;

/// Time between two readings of the process's counters.
const INTERVAL: Duration = Duration::from_millis(100);

/// Work since the beginning of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amounts {
    /// Bytes that the process caused to be written.
    pub(super) written: f64,
    /// Bytes that the process caused to be read.
    pub(super) read: f64,
    /// Processor time of all threads, in seconds.
    pub(super) cpu_s: f64,
}

impl Amounts {
    /// Combines the amounts of the same kind.
    fn with(self, other: Amounts, combine: impl Fn(f64, f64) -> f64) -> Self {
        Amounts {
            written: combine(self.written, other.written),
            read: combine(self.read, other.read),
            cpu_s: combine(self.cpu_s, other.cpu_s),
        }
    }

    /// Reads the process's counters; `None` if the system does not count bytes.
    fn now() -> Option<Self> {
        let usage = Usage::now();
        Some(Amounts {
            written: usage.device_bytes? as f64,
            read: usage.device_read_bytes? as f64,
            cpu_s: usage.cpu.as_secs_f64(),
        })
    }
}

/// The amounts of work at some times of a measurement, which grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    course: Vec<(Duration, Amounts)>,
}

impl Work {
    /// Returns no work for as long as this takes.
    pub(super) fn none(length: Duration) -> Self {
        Work {
            course: vec![(length, Amounts::default())],
        }
    }

    /// Returns the result of `run` and the process's work meanwhile; `None` if the system does not
    /// count it.
    pub(super) fn record<R>(run: impl FnOnce() -> R) -> (R, Option<Self>) {
        let Some(before) = Amounts::now() else {
            return (run(), None);
        };
        let start = Instant::now();
        let (over, is_over) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let sampler = scope.spawn(move || {
                let mut course = Vec::new();
                loop {
                    let stop = is_over.recv_timeout(INTERVAL);
                    let at = start.elapsed();
                    if let Some(now) = Amounts::now() {
                        course.push((at, now.with(before, |now, before| now - before)));
                    }
                    if stop != Err(RecvTimeoutError::Timeout) {
                        return course;
                    }
                }
            });
            let result = run();
            drop(over);
            let course = sampler.join().ok();
            (result, course.map(|course| Work { course }))
        })
    }

    /// Returns the duration of the measurement.
    pub(super) fn length(&self) -> Duration {
        self.course.last().map_or(Duration::ZERO, |last| last.0)
    }

    /// Returns all work.
    pub(super) fn total(&self) -> Amounts {
        self.course
            .last()
            .map_or_else(Amounts::default, |last| last.1)
    }

    /// Returns the amounts per second.
    pub(super) fn per_s(&self) -> Amounts {
        let seconds = self.length().as_secs_f64().max(1e-3);
        self.total()
            .with(self.total(), |amount, _| amount / seconds)
    }

    /// Returns the work beyond what is done at these amounts per second.
    pub(super) fn beyond(&self, idle: Amounts) -> Self {
        let mut most = Amounts::default();
        let course = self.course.iter().map(|&(at, amounts)| {
            let seconds = at.as_secs_f64();
            let excess = amounts.with(idle, |amount, idle| amount - idle * seconds);
            // The counters vary around the idle rate, but work that is done stays done.
            most = most.with(excess, f64::max);
            (at, most)
        });
        Work {
            course: course.collect(),
        }
    }

    /// Returns the first part of the work, at most this long.
    pub(super) fn first(mut self, length: Duration) -> Self {
        if self.length() > length {
            let last = (length, self.done_at(length));
            self.course.retain(|&(at, _)| at < length);
            self.course.push(last);
        }
        self
    }

    /// Returns the work done up to a time; it is even between two readings.
    pub(super) fn done_at(&self, time: Duration) -> Amounts {
        let next = self.course.partition_point(|&(at, _)| at < time);
        let Some(&(until, after)) = self.course.get(next) else {
            return self.total();
        };
        let (from, before) = match next.checked_sub(1) {
            Some(previous) => self.course[previous],
            None => (Duration::ZERO, Amounts::default()),
        };
        let share = (time - from).as_secs_f64() / (until - from).as_secs_f64().max(1e-9);
        before.with(after, |before, after| before + (after - before) * share)
    }

    /// Returns the number of processors that the work kept busy in its busiest second, rounded, at
    /// least 1.
    pub(super) fn processors(&self) -> usize {
        let second = Duration::from_secs(1).min(self.length());
        let busy = self.course.iter().map(|&(at, amounts)| {
            let before = self.done_at(at.saturating_sub(second));
            (amounts.cpu_s - before.cpu_s) / second.as_secs_f64().max(1e-3)
        });
        (busy.fold(0.0, f64::max).round() as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of one kind, in steps of a second.
    fn work(written: &[f64]) -> Work {
        let course = written.iter().zip(1..).map(|(&written, second)| {
            let amounts = Amounts {
                written,
                cpu_s: written / 100.0,
                ..Amounts::default()
            };
            (Duration::from_secs(second), amounts)
        });
        Work {
            course: course.collect(),
        }
    }

    fn written(work: &Work) -> Vec<f64> {
        let course = work.course.iter();
        course.map(|(_, amounts)| amounts.written).collect()
    }

    #[test]
    fn work_beyond_the_load_never_shrinks() {
        let idle = work(&[10.0, 20.0]).per_s();
        assert_eq!(idle.written, 10.0);
        let beyond = work(&[110.0, 115.0, 130.0, 190.0]).beyond(idle);
        assert_eq!(written(&beyond), [100.0, 100.0, 100.0, 150.0]);
        assert_eq!(beyond.length(), Duration::from_secs(4));
    }

    #[test]
    fn work_is_even_between_two_readings() {
        let work = work(&[100.0, 300.0]);
        let done = |millis| work.done_at(Duration::from_millis(millis)).written;
        assert_eq!([0, 500, 1_000, 1_500].map(done), [0.0, 50.0, 100.0, 200.0]);
        assert_eq!(done(9_000), 300.0, "no work follows");
        let first = work.clone().first(Duration::from_millis(1_500));
        assert_eq!(written(&first), [100.0, 200.0]);
        assert_eq!(first.length(), Duration::from_millis(1_500));
        assert_eq!(written(&work.clone().first(Duration::MAX)), written(&work));
    }

    #[test]
    fn the_busiest_second_counts_the_processors() {
        for (course, processors) in [
            (&[0.0, 10.0][..], 1),
            (&[100.0, 110.0], 1),
            (&[50.0, 240.0, 250.0], 2),
        ] {
            assert_eq!(work(course).processors(), processors, "{course:?}");
        }
        assert_eq!(Work::none(Duration::ZERO).processors(), 1);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_is_that_of_the_run() {
        let ((), work) = Work::record(|| {
            let before = Usage::now().cpu;
            let mut x = 1_u64;
            while Usage::now().cpu < before + Duration::from_millis(20) {
                x = std::hint::black_box(x.wrapping_mul(3));
            }
        });
        let work = work.unwrap();
        assert!(work.total().cpu_s >= 0.02, "{work:?}");
        assert!(work.length() > Duration::ZERO);
    }
}
