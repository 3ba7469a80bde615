//! Replay during the scan: of the log records that recovery certainly keeps.
//!
//! A chunk records the durable seqno of the moment when it was sealed. Every log record of its
//! incarnation up to this number was durable, so the cut includes it, or recovery fails (I1). The
//! scan hands such log records over while they are in memory, and the log is read once. The log
//! records after the newest durable seqno wait for the cut.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use braid_rt::atomic::{AtomicBool, Ordering};
use braid_rt::{Condvar, Mutex};

use crate::LogError;
use crate::base::numbers::{LaneId, SeqNo};
use crate::protocol::Kept;
use crate::recovery::items::{Item, LogRecord, Newest};
use crate::recovery::windows::Windows;

/// How [`Log::recover`](crate::Log::recover) hands log records over during the scan.
pub struct DuringScan<'a> {
    /// Receives log records that recovery keeps if it succeeds, several at once, in no particular
    /// order. Returns whether it accepts them; if it does not, [`Recovered::for_each_parallel`]
    /// replays the rest, and may repeat some of the log records.
    ///
    /// [`Recovered::for_each_parallel`]: crate::Recovered::for_each_parallel
    pub accept: &'a (dyn Fn(&[LogRecord<'_>]) -> bool + Sync),
    /// Number of threads that call it, besides those that read; 0 if only those do.
    pub threads: usize,
    /// Most bytes of log in memory that wait for a call. The rest is read again.
    pub waiting_bytes: usize,
}

impl std::fmt::Debug for DuringScan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DuringScan")
            .field("threads", &self.threads)
            .field("waiting_bytes", &self.waiting_bytes)
            .finish_non_exhaustive()
    }
}

/// The state of the replay during a scan.
pub(super) struct Early<'a> {
    during: &'a DuringScan<'a>,
    /// Numbers up to here are skipped.
    after: SeqNo,
    windows: Arc<Windows>,
    queue: Mutex<Queue>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Item>,
    /// Number of lanes that are being scanned.
    scanning: usize,
    /// Number of items that are being replayed.
    replaying: usize,
    replayed: Replayed,
}

/// The outcome of the replay during a scan.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    /// Items that remain to be replayed.
    pub(super) left: Vec<Item>,
    /// Count of the log records replayed.
    pub(super) log_records: u64,
    /// The newest log records replayed of each lane and incarnation.
    newest: BTreeMap<(LaneId, u32), Newest>,
}

/// Replay of an item ends early.
struct Stop;

impl From<LogError> for Stop {
    fn from(_: LogError) -> Self {
        // The item was checked, so this is a defect of the writer. The later replay reports it.
        Self
    }
}

impl<'a> Early<'a> {
    pub(super) fn new(
        during: &'a DuringScan<'a>,
        after: SeqNo,
        windows: &Arc<Windows>,
        lanes: usize,
    ) -> Self {
        Self {
            during,
            after,
            windows: Arc::clone(windows),
            queue: Mutex::new(Queue {
                scanning: lanes,
                ..Queue::default()
            }),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.during.threads
    }

    /// Adds an item that the cut certainly includes. May replay some of those that wait.
    pub(super) fn add(&self, mut item: Item) {
        // Relaxed: a stop that is noticed late costs a repetition.
        if self.stopped.load(Ordering::Relaxed) {
            if self.windows.is_full() {
                item.forget();
            }
            self.queue.lock().replayed.left.push(item);
            return;
        }
        self.queue.lock().ready.push_back(item);
        self.changed.notify_one();
        if self.threads() == 0 {
            self.replay_next();
        }
    }

    /// Whether too much log is in memory, even after everything was replayed that may be.
    pub(super) fn is_full(&self) -> bool {
        while self.windows.is_full() {
            if self.replay_next() {
                continue;
            }
            let mut queue = self.queue.lock();
            if queue.ready.is_empty() {
                if queue.replaying == 0 {
                    return self.windows.is_full();
                }
                self.changed.wait(&mut queue);
            }
        }
        false
    }

    /// Scans a lane. The replay stops if that fails.
    pub(super) fn scanning<T>(
        &self,
        scan: impl FnOnce() -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let _end = self.at_end(|queue| queue.scanning -= 1);
        let scanned = scan();
        if scanned.is_err() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        scanned
    }

    fn at_end(&self, change: fn(&mut Queue)) -> AtEnd<'_> {
        AtEnd {
            early: self,
            change,
        }
    }

    /// Replays what the scan adds, until all lanes are scanned.
    pub(super) fn work(&self) {
        loop {
            if self.replay_next() {
                continue;
            }
            let mut queue = self.queue.lock();
            while queue.ready.is_empty() {
                if queue.scanning == 0 {
                    return;
                }
                self.changed.wait(&mut queue);
            }
        }
    }

    /// Replays an item that waits; returns whether there was one.
    fn replay_next(&self) -> bool {
        let mut queue = self.queue.lock();
        let Some(item) = queue.ready.pop_front() else {
            return false;
        };
        queue.replaying += 1;
        drop(queue);
        let _end = self.at_end(|queue| queue.replaying -= 1);
        self.replay(item);
        true
    }

    fn replay(&self, item: Item) {
        let mut log_records = 0;
        let done = item.for_each(&self.windows, |_, mut found| {
            found.retain(|log_record| log_record.seqno > self.after);
            log_records += found.len() as u64;
            let stopped = self.stopped.load(Ordering::Relaxed);
            let accepted = !stopped && (self.during.accept)(&found);
            if accepted { Ok(()) } else { Err(Stop) }
        });
        let mut queue = self.queue.lock();
        let replayed = &mut queue.replayed;
        match done {
            Ok(()) => {
                replayed.log_records += log_records;
                let newest = replayed.newest.entry((item.lane(), item.incarnation()));
                let newest = newest.or_default();
                *newest = newest.max(item.newest());
            }
            Err(Stop) => {
                self.stopped.store(true, Ordering::Relaxed);
                replayed.left.push(item);
            }
        }
    }

    pub(super) fn into_replayed(self) -> Replayed {
        let Queue {
            ready, replayed, ..
        } = self.queue.into_inner();
        debug_assert!(ready.is_empty());
        replayed
    }
}

/// Changes the queue and wakes all threads when it is dropped, also by a panic.
struct AtEnd<'a> {
    early: &'a Early<'a>,
    change: fn(&mut Queue),
}

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        (self.change)(&mut self.early.queue.lock());
        self.early.changed.notify_all();
    }
}

impl Replayed {
    /// Returns a log record that was replayed and that the cut does not include: its lane, its
    /// incarnation and its number. There is none, unless the log contradicts itself (I1).
    pub(super) fn beyond(
        &self,
        kept: &BTreeMap<u32, Kept>,
        ceiling: SeqNo,
    ) -> Option<(LaneId, u32, SeqNo)> {
        let is_kept = |incarnation: u32, newest: &Newest| {
            let kept = kept.get(&incarnation);
            newest.seqno <= ceiling
                && kept.is_some_and(|kept| kept.holds_up_to(newest.seqno, newest.flush))
        };
        let mut replayed = self.newest.iter();
        replayed.find_map(|(&(lane, incarnation), newest)| {
            let is_kept = is_kept(incarnation, newest);
            (!is_kept).then_some((lane, incarnation, newest.seqno))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers::FlushNo;

    /// The log contradicts itself if the cut excludes what a chunk called durable.
    #[test]
    fn what_was_replayed_must_be_kept() {
        let lane = LaneId::new(1);
        let newest = Newest {
            seqno: SeqNo::new(7),
            flush: FlushNo::new(3),
        };
        let replayed = Replayed {
            newest: BTreeMap::from([((lane, 2), newest)]),
            ..Replayed::default()
        };
        let beyond = |incarnation: u32, kept: Kept, ceiling: u64| {
            let kept = BTreeMap::from([(incarnation, kept)]);
            let found = replayed.beyond(&kept, SeqNo::new(ceiling));
            assert!(found.is_none_or(|found| found == (lane, 2, newest.seqno)));
            found.is_some()
        };
        let numbers = |last| Kept::Numbers(SeqNo::new(last));
        assert!(!beyond(2, numbers(7), 7));
        assert!(beyond(2, numbers(6), 7));
        assert!(beyond(2, numbers(7), 6));
        assert!(beyond(1, numbers(7), 7));
        let flushes = |last, up_to| Kept::Flushes {
            last: FlushNo::new(last),
            up_to: SeqNo::new(up_to),
        };
        assert!(!beyond(2, flushes(3, 7), 7));
        assert!(beyond(2, flushes(2, 7), 7));
        assert!(beyond(2, flushes(3, 6), 7));
        let lanes = |last| Kept::Lanes {
            lanes: 2,
            last: [9, last].map(SeqNo::new).to_vec(),
        };
        assert!(!beyond(2, lanes(7), 7));
        assert!(beyond(2, lanes(6), 7));
    }
}
