//! The limit on the space of old versions: ends the oldest snapshots if those that are open retain
//! more. The space is memory, and the pages of large values.
//!
//! Only what snapshots retain counts. Versions that no snapshot can see are collected first, and
//! versions whose replacement is not durable yet stay for snapshots that are opened later.
//!
//! Each commit counts what it adds in its thread's shard, under the lock that it takes anyway. A
//! commit whose shard has grown by its part of what is left requests a collection, so the limit
//! holds however fast commits are.

use braid_log::SeqNo;

use super::Engine;
use super::collect::STEP_MAX;
use crate::error::{Error, Result};
use crate::mvcc::gc::{GcBuffer, SHARDS};
use crate::mvcc::registry::OpenSnapshots;

/// The part of the limit by which a shard may grow in any case until a commit requests a collection.
/// All shards together can exceed the limit by a quarter of it.
const GROWTH_MIN_PART: usize = 4 * SHARDS;

/// The space that open snapshots retain.
struct Retained {
    /// The bytes that are released when the snapshot at the same place in the list of open
    /// snapshots ends, after all older ones.
    by_snapshot: Vec<isize>,
}

impl Retained {
    fn new(open: &OpenSnapshots) -> Self {
        Self {
            by_snapshot: vec![0; open.seqnos().len()],
        }
    }

    /// Counts what commit `end` replaced or removed.
    fn add(&mut self, open: &OpenSnapshots, end: SeqNo, bytes: isize) {
        if let Some(newest) = open.retaining(end).checked_sub(1) {
            self.by_snapshot[newest] += bytes;
        }
    }

    /// Returns the newest snapshot to end, so that those that are left retain at most `limit` bytes.
    fn newest_to_end(&self, open: &OpenSnapshots, limit: usize) -> Option<SeqNo> {
        let mut left = limit.cast_signed();
        for (&bytes, &seqno) in self.by_snapshot.iter().zip(open.seqnos()).rev() {
            left = left.saturating_sub(bytes);
            if left < 0 {
                return Some(seqno);
            }
        }
        None
    }
}

impl Engine {
    /// Checks that a snapshot has not ended. Call after reading at `seqno`, before what was read is
    /// used: versions that an ended snapshot sees are collected.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    #[inline]
    pub(crate) fn check_not_ended(&self, seqno: SeqNo) -> Result<()> {
        if self.snapshots.is_ended(seqno) && !braid_rt::mutant!("read_ended_snapshots") {
            return Err(self.snapshot_too_old(seqno));
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn snapshot_too_old(&self, seqno: SeqNo) -> Error {
        braid_rt::coverage_point("snapshots: a read finds that its snapshot has ended");
        Error::SnapshotTooOld {
            seqno: seqno.get(),
            max: self.settings.max_version_bytes,
        }
    }

    /// Collects everything below the watermark, and ends snapshots that retain more than the limit.
    pub(crate) fn collect_within_limit(&self) {
        self.collect_all_versions();
        if self.settings.max_version_bytes > 0 {
            self.end_snapshots_beyond_limit();
            self.watch_version_space();
        }
    }

    /// Collects soon, after the space of old versions has grown.
    #[cold]
    #[inline(never)]
    pub(super) fn request_collection(&self) {
        if self.settings.background {
            self.gc.request_collection();
        } else {
            self.collect_within_limit();
        }
    }

    /// Sets how much the space of old versions may grow until a commit requests a collection.
    pub(super) fn watch_version_space(&self) {
        let limit = self.settings.max_version_bytes;
        if limit > 0 {
            let bytes = self.gc.totals().bytes;
            let part = limit.saturating_sub(bytes) / SHARDS;
            let growth = part.max(limit / GROWTH_MIN_PART);
            self.gc.allow_growth(growth.cast_signed());
        }
    }

    fn end_snapshots_beyond_limit(&self) {
        let limit = self.settings.max_version_bytes;
        let bytes = self.gc.totals().bytes;
        let visible_seqno = self.log.visible_seqno();
        let is_retained = |seqno: Option<SeqNo>| seqno.is_some_and(|end| end <= visible_seqno);
        if bytes <= limit || !self.gc.shards().any(|s| is_retained(s.lock().first_end())) {
            return;
        }
        let open = self.snapshots.wait_survey(visible_seqno);
        let Some(newest) = self.retained(&open).newest_to_end(&open, limit) else {
            return;
        };
        braid_rt::coverage_point("snapshots: the oldest end because of their space");
        let ended = self.snapshots.end_through(newest);
        self.counters.snapshots_ended(ended as u64);
        self.collect_all_versions();
    }

    /// Drops the versions between the open snapshots from all chains, and counts what is left for
    /// each snapshot.
    fn retained(&self, open: &OpenSnapshots) -> Retained {
        let mut retained = Retained::new(open);
        let (mut buffer, mut buckets) = (GcBuffer::default(), Vec::with_capacity(STEP_MAX));
        for shard in self.gc.shards() {
            // Commits may collect entries meanwhile, which moves others past the index: those are
            // not counted this time.
            for from in (0..).step_by(STEP_MAX) {
                let shard = self.holds.garbage.of(shard.lock());
                let mut tombstones = shard.tombstones(from, STEP_MAX).peekable();
                if tombstones.peek().is_none() {
                    break;
                }
                for tombstone in tombstones {
                    retained.add(open, tombstone.end, tombstone.space());
                }
            }
            for from in (0..).step_by(STEP_MAX) {
                {
                    let shard = self.holds.garbage.of(shard.lock());
                    buckets.extend(shard.chains(from, STEP_MAX).map(|chain| chain.bucket));
                }
                if buckets.is_empty() {
                    break;
                }
                for bucket in buckets.drain(..) {
                    let chain = self.locks.versions(bucket).lock();
                    let mut chain = self.holds.versions.of(chain);
                    let pruned = chain.prune(open, &mut buffer.spare);
                    buffer.count_dropped(pruned);
                    chain
                        .space()
                        .for_each(|(end, bytes)| retained.add(open, end, bytes));
                }
                buffer.add_to(&mut shard.lock(), 0);
                self.free_trimmed(&mut buffer);
            }
        }
        retained
    }
}
