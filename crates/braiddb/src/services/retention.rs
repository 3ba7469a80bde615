//! Retention: log kept beyond what recovery needs, for the archive, change feeds and their readers.
//!
//! Log can be released, and read, from the positions where checkpoints began. So these positions
//! are remembered, from the oldest one that is still needed. Each superblock records that one,
//! because the log after it must survive a restart. If nothing needs older log, a checkpoint
//! releases all log before its own position.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};

use braid_log::{CheckpointPosition, SeqNo};
use braid_rt::Mutex;
use braid_rt::atomic::{AtomicU64, Ordering};

/// Function that returns the bytes of log files between two positions.
type BytesBetween = Box<dyn Fn(&CheckpointPosition, &CheckpointPosition) -> u64 + Send + Sync>;

/// The retained log and its consumers; see the module documentation.
pub(crate) struct Retention {
    state: Mutex<State>,
    bytes: BytesBetween,
    /// Maximum number of bytes of log kept for feeds and readers.
    feed_bytes: u64,
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention")
            .field("state", &self.state)
            .field("feed_bytes", &self.feed_bytes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    /// Positions where checkpoints began, from the oldest from which log exists. Never empty.
    starts: VecDeque<CheckpointPosition>,
    /// The names of feeds, with the sequence number up to which each was acknowledged.
    feeds: BTreeMap<String, SeqNo>,
    /// The sequence number up to which each open reader has read.
    readers: Vec<Weak<AtomicU64>>,
    /// The sequence number up to which the database is archived, if it was opened without its
    /// archive.
    archive: Option<SeqNo>,
}

impl Retention {
    /// Creates a retention; `bytes` returns the bytes of log files between two positions.
    pub(crate) fn new(
        starts: VecDeque<CheckpointPosition>,
        bytes: impl Fn(&CheckpointPosition, &CheckpointPosition) -> u64 + Send + Sync + 'static,
        feed_bytes: u64,
    ) -> Self {
        assert!(!starts.is_empty(), "the log begins somewhere");
        let state = State {
            starts,
            feeds: BTreeMap::new(),
            readers: Vec::new(),
            archive: None,
        };
        Self {
            state: Mutex::new(state),
            bytes: Box::new(bytes),
            feed_bytes,
        }
    }

    /// Adds the position where a checkpoint begins; `archived` is the archive's last sequence
    /// number, if there is an archive. Returns the position from which log is kept once the
    /// checkpoint is published.
    pub(crate) fn begin_checkpoint(
        &self,
        start: &CheckpointPosition,
        archived: Option<SeqNo>,
    ) -> CheckpointPosition {
        let mut state = self.state.lock();
        state.starts.push_back(start.clone());
        let hard = archived.unwrap_or(SeqNo::MAX);
        let soft = if braid_rt::mutant!("forget_feeds") {
            SeqNo::MAX
        } else {
            state.needed()
        };
        let mut kept_from = &state.starts[0];
        for next in state.starts.iter().skip(1) {
            let over_budget = (self.bytes)(kept_from, start) > self.feed_bytes;
            if next.seqno > hard || (next.seqno > soft && !over_budget) {
                break;
            }
            kept_from = next;
        }
        kept_from.clone()
    }

    /// Forgets the positions before `kept_from` after the checkpoint that began at `start` was
    /// published, unless a new reader needs them. Returns the position before which log can be
    /// released. Everything that the checkpoint covers is durable by now, so the log can be read
    /// from any remaining position.
    pub(crate) fn end_checkpoint(
        &self,
        kept_from: &CheckpointPosition,
        start: &CheckpointPosition,
    ) -> CheckpointPosition {
        let mut state = self.state.lock();
        let needed = state.readers.iter().filter_map(Weak::upgrade);
        let needed = needed.map(|reader| read_to(&reader)).min();
        while let Some(next) = state.starts.get(1) {
            let over_budget = (self.bytes)(&state.starts[0], start) > self.feed_bytes;
            let is_needed = needed.is_some_and(|needed| next.seqno > needed) && !over_budget;
            if kept_from.is_before(next) || is_needed {
                break;
            }
            state.starts.pop_front();
        }
        state.starts[0].clone()
    }

    /// Returns the bytes of log that an early checkpoint could release.
    pub(crate) fn releasable(&self, archived: Option<SeqNo>) -> u64 {
        let mut state = self.state.lock();
        let needed = state.needed().min(archived.unwrap_or(SeqNo::MAX));
        let (oldest, starts) = (&state.starts[0], &state.starts);
        let next = starts.iter().take_while(|start| start.seqno <= needed);
        next.last().map_or(0, |next| (self.bytes)(oldest, next))
    }

    /// Describes what keeps log that recovery does not need; `archived` is the archive's last
    /// sequence number, if there is an archive.
    pub(crate) fn holder(&self, archived: Option<SeqNo>) -> Option<String> {
        let state = self.state.lock();
        let (oldest, next) = (state.starts[0].seqno, state.starts.get(1)?.seqno);
        let holds = |&seqno: &SeqNo| (oldest..next).contains(&seqno);
        if let Some(end) = archived.or(state.archive).filter(holds) {
            return Some(format!("the archive, which ends at transaction {end}"));
        }
        if let Some((name, seqno)) = state.feeds.iter().find(|(_, seqno)| holds(seqno)) {
            return Some(format!(
                "the feed {name:?}, which acknowledged transaction {seqno}"
            ));
        }
        let mut readers = state.readers.iter().filter_map(Weak::upgrade);
        let holds_it = readers.any(|reader| holds(&read_to(&reader)));
        holds_it.then(|| "a reader of changes".into())
    }

    /// Returns the newest position from which everything after `seqno` can be read; `None` if some
    /// of it was released.
    pub(crate) fn position_before(&self, seqno: SeqNo) -> Option<CheckpointPosition> {
        let state = self.state.lock();
        let before = state.starts.iter().take_while(|start| start.seqno <= seqno);
        before.last().cloned()
    }

    /// Returns the position where the newest checkpoint began.
    pub(crate) fn newest(&self) -> CheckpointPosition {
        let state = self.state.lock();
        state.starts[state.starts.len() - 1].clone()
    }

    /// Returns the sequence number after which readers need the log; the greatest one if there are
    /// none.
    pub(crate) fn needed_start(&self) -> SeqNo {
        self.state.lock().needed()
    }

    /// Returns the sequence number after which everything can be read.
    pub(crate) fn oldest(&self) -> SeqNo {
        self.state.lock().starts[0].seqno
    }

    /// Keeps the log after `seqno` for a reader, which stores its progress in the returned counter.
    /// Returns `None` if some of that log was released.
    pub(crate) fn add_reader(&self, seqno: SeqNo) -> Option<Arc<AtomicU64>> {
        let mut state = self.state.lock();
        if state.starts[0].seqno > seqno {
            return None;
        }
        let reader = Arc::new(AtomicU64::new(seqno.get()));
        state.readers.push(Arc::downgrade(&reader));
        Some(reader)
    }

    /// Keeps the log after `seqno`, within the limit for feeds, for an archive that the database
    /// was opened without. `None` ends that.
    pub(crate) fn set_archive(&self, seqno: Option<SeqNo>) {
        let mut state = self.state.lock();
        // Transactions before the oldest position were archived, or are a gap of the archive.
        let oldest = state.starts[0].seqno;
        state.archive = seqno.map(|seqno| seqno.max(oldest));
    }

    /// Sets how far a feed was acknowledged; an older value has no effect.
    pub(crate) fn set_feed(&self, name: &str, seqno: SeqNo) {
        let mut state = self.state.lock();
        let feed = state.feeds.entry(name.to_owned()).or_default();
        *feed = seqno.max(*feed);
    }

    pub(crate) fn remove_feed(&self, name: &str) {
        self.state.lock().feeds.remove(name);
    }

    /// Returns how far a feed was acknowledged, if the feed exists.
    pub(crate) fn feed(&self, name: &str) -> Option<SeqNo> {
        self.state.lock().feeds.get(name).copied()
    }

    /// Returns all feeds.
    pub(crate) fn feeds(&self) -> Vec<(String, SeqNo)> {
        let state = self.state.lock();
        let feeds = state.feeds.iter();
        feeds.map(|(name, &seqno)| (name.clone(), seqno)).collect()
    }
}

/// How far a reader has read.
fn read_to(reader: &AtomicU64) -> SeqNo {
    // Relaxed: an older value keeps more log.
    SeqNo::new(reader.load(Ordering::Relaxed))
}

impl State {
    /// Returns the sequence number after which feeds and readers need the log. A feed whose log was
    /// already released needs none.
    fn needed(&mut self) -> SeqNo {
        let oldest = self.starts[0].seqno;
        self.readers.retain(|reader| reader.strong_count() > 0);
        let readers = self.readers.iter().filter_map(Weak::upgrade);
        let readers = readers.map(|reader| read_to(&reader));
        let feeds = self.feeds.values().copied().chain(self.archive);
        let numbers = readers.chain(feeds).filter(|&seqno| seqno >= oldest);
        numbers.min().unwrap_or(SeqNo::MAX)
    }
}

#[cfg(test)]
mod tests {
    use braid_log::LanePosition;

    use super::*;

    fn start(seqno: u64, segment: u64) -> CheckpointPosition {
        let lane = LanePosition {
            segment,
            offset: 4096,
            chunk: 1,
            link: 0,
            incarnation: 1,
        };
        CheckpointPosition {
            seqno: SeqNo::new(seqno),
            flush: braid_log::FlushNo::NONE,
            lanes: vec![lane],
        }
    }

    fn seqno(retention: &Retention, at: u64, archived: Option<u64>) -> u64 {
        let start = start(at * 10, at);
        let kept_from = retention.begin_checkpoint(&start, archived.map(SeqNo::new));
        retention.end_checkpoint(&kept_from, &start).seqno.get()
    }

    #[test]
    fn log_is_kept_while_it_is_needed() {
        let bytes = |from: &CheckpointPosition, to: &CheckpointPosition| {
            (to.lanes[0].segment - from.lanes[0].segment) * 100
        };
        let retention = Retention::new([start(0, 0)].into(), bytes, 350);
        assert_eq!(seqno(&retention, 1, None), 10, "for nobody");
        retention.set_feed("f", SeqNo::new(15));
        assert_eq!(seqno(&retention, 2, None), 10);
        let reader = retention.add_reader(SeqNo::new(22)).unwrap();
        assert_eq!(seqno(&retention, 3, None), 10);
        retention.set_feed("f", SeqNo::new(30));
        assert_eq!(retention.releasable(None), 100);
        assert_eq!(seqno(&retention, 4, None), 20, "for the reader");
        assert!(
            retention.position_before(SeqNo::new(19)).is_none()
                && retention.add_reader(SeqNo::new(19)).is_none()
        );
        assert_eq!(
            retention
                .position_before(SeqNo::new(39))
                .unwrap()
                .seqno
                .get(),
            30
        );
        assert_eq!(seqno(&retention, 5, None), 20);
        assert_eq!(seqno(&retention, 6, None), 30, "beyond the budget");
        assert_eq!(
            seqno(&retention, 7, Some(33)),
            30,
            "for the archive, whatever it takes"
        );
        drop(reader);
        retention.remove_feed("f");
        assert_eq!(seqno(&retention, 8, Some(61)), 60);
        assert_eq!(seqno(&retention, 9, None), 90);
        // Positions of one number, in two incarnations of the log: released is what no kept one needs.
        let (old, new) = (start(90, 9), start(90, 10));
        assert!(old.is_before(&new));
        assert_eq!(retention.begin_checkpoint(&new, None), new);
        assert_eq!(retention.end_checkpoint(&old, &new), old);
        assert_eq!(retention.end_checkpoint(&new, &new), new);
        // A reader that is added during a checkpoint reads from what is durable by then.
        let next = start(100, 10);
        let kept_from = retention.begin_checkpoint(&next, None);
        let reader = retention.add_reader(SeqNo::new(95)).unwrap();
        assert_eq!(retention.end_checkpoint(&kept_from, &next).seqno.get(), 90);
        reader.store(100, Ordering::Relaxed);
        assert_eq!(retention.holder(None), None);
        assert_eq!(seqno(&retention, 11, None), 100);
        retention.set_feed("f", SeqNo::new(105));
        assert_eq!(seqno(&retention, 12, Some(102)), 100);
        let holder = |archived| retention.holder(archived).unwrap();
        assert_eq!(
            holder(Some(SeqNo::new(102))),
            "the archive, which ends at transaction 102"
        );
        assert_eq!(
            holder(Some(SeqNo::new(120))),
            "the feed \"f\", which acknowledged transaction 105"
        );
        retention.remove_feed("f");
        assert_eq!(holder(None), "a reader of changes");
        // The position of a checkpoint that is not published is kept, too.
        reader.store(120, Ordering::Relaxed);
        assert_eq!(retention.holder(None), None);
    }
}
