//! The stages of a commit.
//!
//! [`Staged`] wraps an engine and records when a transaction began, called `commit`, and was
//! durable. [`LogWrites`] wraps Braid's device and records when each durable write began and ended.
//! A commit is assumed to be made durable by the first write that began after the call of `commit`
//! and ended before the acknowledgement. If a commit was not yet in the log when that write began,
//! the next write made it durable, and part of its wait counts as notification.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use braid_io::{File, Layer, LayeredDevice};

use crate::engines::{
    Abilities, Acknowledgement, Body, Counters, KvEngine, Mode, Session, Setting, Stop, TableId,
    Wait,
};
use crate::{BenchError, Usage};

/// One of this many commits is timed.
const SAMPLE: u64 = 8;

/// Times of a sampled commit.
#[derive(Clone, Copy, Debug)]
struct Sample {
    begun: Instant,
    called: Instant,
    durable: Instant,
}

/// Means of the stages, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StageMeans {
    /// Number of commits of the means.
    pub(super) count: usize,
    pub(super) execute_us: Option<f64>,
    /// `None`, as are the following two, if the log's writes are not observed.
    pub(super) queue_us: Option<f64>,
    pub(super) write_us: Option<f64>,
    pub(super) notify_us: Option<f64>,
}

/// Beginnings and ends of durable writes, ordered by their ends.
type Writes = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// An engine whose waiting commits are timed. Commits in flight cannot be timed here.
pub(super) struct Staged {
    inner: Box<dyn KvEngine>,
    samples: Mutex<Vec<Sample>>,
    writes: Option<Writes>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staged {
    /// Wraps an engine; `writes` are the writes of its log, if they are observed.
    pub(super) fn new(inner: Box<dyn KvEngine>, writes: Option<&LogWrites>) -> Self {
        Staged {
            inner,
            samples: Mutex::default(),
            writes: writes.map(|device| device.layer().0.clone()),
        }
    }

    /// Returns the stages of the commits that began after `from`, and discards all samples.
    pub(super) fn take(&self, from: Instant) -> StageMeans {
        let mut samples = std::mem::take(&mut *lock(&self.samples));
        samples.retain(|sample| sample.begun >= from);
        let writes = self.writes.as_ref().map(|w| std::mem::take(&mut *lock(w)));
        means(&samples, writes)
    }
}

fn means(samples: &[Sample], writes: Option<Vec<(Instant, Instant)>>) -> StageMeans {
    let micros = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e6;
    let Some(mut writes) = writes else {
        let execute: f64 = samples.iter().map(|s| micros(s.begun, s.called)).sum();
        return StageMeans {
            count: samples.len(),
            execute_us: (!samples.is_empty()).then(|| execute / samples.len() as f64),
            ..StageMeans::default()
        };
    };
    writes.sort_unstable();
    let mut sums = [0.0; 4];
    let mut count = 0;
    for sample in samples {
        let first = writes.partition_point(|&(begun, _)| begun < sample.called);
        let write = writes[first..]
            .iter()
            .take_while(|&&(begun, _)| begun < sample.durable)
            .find(|&&(_, ended)| ended <= sample.durable);
        // Without one, a commit went along with a write that had begun before it returned from its
        // body.
        let Some(&(begun, ended)) = write else {
            continue;
        };
        count += 1;
        let marks = [sample.begun, sample.called, begun, ended, sample.durable];
        for (sum, stage) in sums.iter_mut().zip(marks.windows(2)) {
            *sum += micros(stage[0], stage[1]);
        }
    }
    if count == 0 {
        return StageMeans::default();
    }
    let [execute, queue, write, notify] = sums.map(|sum| Some(sum / count as f64));
    StageMeans {
        count,
        execute_us: execute,
        queue_us: queue,
        write_us: write,
        notify_us: notify,
    }
}

impl KvEngine for Staged {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(StagedSession {
            inner: self.inner.session()?,
            all: &self.samples,
            samples: Vec::new(),
            commits: 0,
        }))
    }

    fn settle(&self) -> Result<(), BenchError> {
        self.inner.settle()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn setting(&self) -> Setting {
        self.inner.setting()
    }

    fn server_usage(&self) -> Option<Usage> {
        self.inner.server_usage()
    }
}

struct StagedSession<'a> {
    inner: Box<dyn Session + 'a>,
    all: &'a Mutex<Vec<Sample>>,
    samples: Vec<Sample>,
    commits: u64,
}

impl Session for StagedSession<'_> {
    fn transact(
        &mut self,
        mode: Mode,
        wait: Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        if mode == Mode::ReadOnly || wait == Wait::Ticket {
            return self.inner.transact(mode, wait, body);
        }
        self.commits += 1;
        if !self.commits.is_multiple_of(SAMPLE) {
            return self.inner.transact(mode, wait, body);
        }
        let begun = Instant::now();
        let mut called = begun;
        let acknowledged = self.inner.transact(mode, wait, &mut |tx| {
            body(tx)?;
            called = Instant::now();
            Ok(())
        })?;
        self.samples.push(Sample {
            begun,
            called,
            durable: Instant::now(),
        });
        Ok(acknowledged)
    }

    #[inline]
    fn get(
        &mut self,
        table: TableId,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Stop> {
        self.inner.get(table, key, found)
    }
}

impl Drop for StagedSession<'_> {
    fn drop(&mut self) {
        lock(self.all).append(&mut self.samples);
    }
}

/// A device wrapper that records when durable writes begin and end.
pub(super) type LogWrites = LayeredDevice<NotedWrites>;

#[derive(Clone, Debug, Default)]
pub(super) struct NotedWrites(Writes);

impl Layer for NotedWrites {
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let begun = Instant::now();
        file.write_durable_at(bufs, offset)?;
        lock(&self.0).push((begun, Instant::now()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_commit_belongs_to_the_first_write_after_it() {
        let zero = Instant::now();
        let at = |micros| zero + Duration::from_micros(micros);
        let sample = |begun, called, durable| Sample {
            begun: at(begun),
            called: at(called),
            durable: at(durable),
        };
        let writes = vec![(at(100), at(200)), (at(210), at(310)), (at(320), at(420))];
        // One commit that waits for a write in flight, and one whose thread wakes late.
        let samples = [sample(80, 110, 320), sample(30, 90, 330)];
        let found = means(&samples, Some(writes.clone()));
        assert_eq!(found.count, 2);
        assert_eq!(found.execute_us, Some(45.0));
        assert_eq!(found.queue_us, Some(f64::midpoint(100.0, 10.0)));
        assert_eq!(found.write_us, Some(100.0));
        assert_eq!(found.notify_us, Some(f64::midpoint(10.0, 130.0)));
        // Acknowledged before the end of any later write: no stages are known.
        assert_eq!(means(&[sample(80, 110, 300)], Some(writes)).count, 0);
        // Without observed writes.
        let found = means(&samples, None);
        assert_eq!((found.count, found.execute_us), (2, Some(45.0)));
        assert_eq!(found.queue_us, None);
        assert_eq!(means(&[], None), StageMeans::default());
    }
}
