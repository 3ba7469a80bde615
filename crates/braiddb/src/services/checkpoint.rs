//! Checkpoints: when they are due, and writing them.

use std::cell::Cell;
use std::sync::Arc;

use braid_log::{CheckpointPosition, SeqNo};
use braid_store::{Checkpoint, CheckpointProgress, CheckpointReport};

use super::checkpoint_parts::{OtherParts, Published, Scope, publish_keeping};
use super::instance::Instance;
use super::pacing::Pace;
use super::readers::Commits;
use crate::engine::spaces::Space;
use crate::error::{Error, Result};
use crate::format::space::SpaceMeta;
use crate::observe::trace::Phase;
use crate::schema::entry::MAIN_SPACE;

impl Instance {
    /// Whether enough log was written for a checkpoint, or a checkpoint can release enough log that
    /// was kept for the archive or a feed.
    pub(crate) fn is_log_long(&self) -> bool {
        let written = self.engine.log.stats().written_bytes;
        let releasable = self.retention.releasable(self.released_at_most());
        let to_recover = self.checkpoints.log_bytes_to_recover(written);
        to_recover.max(releasable) >= self.checkpoints.log_bytes_due
    }

    /// Returns the sequence number up to which a checkpoint may release log, if not all: that to which the
    /// log is archived, or that of a tablespace which lags.
    fn released_at_most(&self) -> Option<SeqNo> {
        let lagging = self.engine.spaces.lagging();
        let lagging = lagging.map(|lagging| lagging.start.seqno);
        self.archive.archived().into_iter().chain(lagging).min()
    }

    /// Returns whether a transaction was refused for lack of room in the data file, and a
    /// checkpoint may make room: blocks that the newest checkpoint replaced are free only after the
    /// next.
    pub(crate) fn lacks_checkpoint(&self) -> bool {
        let engine = &self.engine;
        let is_any_dirty = || engine.stores().any(|store| store.has_dirty_pages());
        engine.has_refused() && (self.is_checkpoint_due() || is_any_dirty())
    }

    /// Whether a transaction was committed since the newest checkpoint.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.engine.log.last_seqno() != self.checkpoints.covered()
    }

    /// Whether a checkpoint may release log: what was written since the newest one, or what the
    /// archive or a feed needed until now.
    pub(super) fn may_release_log(&self) -> bool {
        let releasable = || self.retention.releasable(self.released_at_most()) > 0;
        let archive_goes_on = || self.lacks_archiving() && !self.archive.is_failing();
        self.is_checkpoint_due() || releasable() || archive_goes_on()
    }

    /// Writes a checkpoint of the state between two transactions. If a tablespace cannot be written, the
    /// others have it nevertheless, and the error is that one's.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.hold_checkpoints();
        self.engine.check_open()?;
        self.checkpoint_locked()
    }

    /// As [`Instance::checkpoint`], for a caller that holds
    /// [`Checkpoints::running`](super::checkpoint_state::Checkpoints).
    pub(crate) fn checkpoint_locked(&self) -> Result<()> {
        complete(self.checkpoint_in(Scope::Writable)?)
    }

    /// As [`Instance::checkpoint_locked`]. Returns the tablespaces that were left behind.
    pub(super) fn checkpoint_in(&self, scope: Scope) -> Result<Vec<(u8, Error)>> {
        self.checkpoint_with(scope, Pace::Requested, |_| {})
    }

    /// Writes a checkpoint in proportion to the growth of the log.
    pub(super) fn paced_checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.hold_checkpoints();
        self.engine.check_open()?;
        complete(self.checkpoint_with(Scope::Writable, Pace::WithLog, |_| {})?)
    }

    /// Writes a checkpoint that makes the data files as short as it can.
    pub(crate) fn shrinking_checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.hold_checkpoints();
        self.engine.check_open()?;
        complete(self.checkpoint_with(Scope::Writable, Pace::Requested, Checkpoint::shrink)?)
    }

    fn checkpoint_with(
        &self,
        scope: Scope,
        pace: Pace,
        prepare: impl Fn(&mut Checkpoint),
    ) -> Result<Vec<(u8, Error)>> {
        let phase = Phase::checkpoint();
        let (report, left) = self
            .write_checkpoint(scope, pace, prepare)
            .inspect_err(|error| phase.failed(error))?;
        phase.published(self.checkpoints.checkpointed(), report.pages_written);
        Ok(left)
    }

    fn check_publishable(&self) -> Result<()> {
        if braid_rt::mutant!("checkpoint_failed_transactions") {
            Ok(())
        } else {
            self.engine.check_not_poisoned()
        }
    }

    fn write_checkpoint(
        &self,
        scope: Scope,
        pace: Pace,
        prepare: impl Fn(&mut Checkpoint),
    ) -> Result<(CheckpointReport, Vec<(u8, Error)>)> {
        let log = &self.engine.log;
        // Commits may wait for log space until this is dropped: after the release below, or after
        // any failure.
        let run = log.begin_checkpoint();
        // Transactions that recovery discarded must be discarded in the log, too, before a
        // checkpoint moves the start of recovery past them.
        if !braid_rt::mutant!("checkpoint_before_discarding") {
            log.begin()?;
        }
        let log_bytes = log.stats().written_bytes;
        let archived = self.archive_at_checkpoint();
        let replaced = self.engine.store.stats().checkpoint_sequence;
        self.keep_log_for_readers(replaced);
        let mut begun = self.begin_checkpoint(scope, archived)?;
        prepare(&mut begun.main);
        begun.others.each(|checkpoint| {
            prepare(checkpoint);
            Ok(())
        })?;
        if braid_rt::mutant!("reuse_log_before_checkpoint") {
            log.release(&begun.start)?;
        }
        if log.durable_seqno() < begun.start.seqno {
            braid_rt::coverage_point("checkpoint: waits for the log");
        }
        let parts = self.engine.spaces.all().len() as u64 + 1;
        let (part, piece) = (Cell::new(0), Cell::new(braid_rt::now()));
        let write = |checkpoint: &mut Checkpoint| {
            let ticker = Arc::clone(&self.maintenance.checkpoint);
            checkpoint.wake_for_copies(Arc::new(move || ticker.wake()));
            checkpoint.write(&|progress| {
                let progress = part_of(progress, part.get(), parts);
                // Then follow the syncs and the page map.
                run.note_progress(progress.pages_written, progress.pages_total / 4 * 5 + 1);
                self.publish_stats();
                self.look_for_readers();
                match pace {
                    Pace::Requested => self.pause_requested_checkpoint(&run, piece.get()),
                    Pace::WithLog => self.pause_checkpoint(&run, progress, log_bytes),
                }
                piece.set(braid_rt::now());
            })?;
            part.set(part.get() + 1);
            Ok(())
        };
        begun.others.each(write)?;
        write(&mut begun.main)?;
        if !braid_rt::mutant!("publish_tablespaces_before_all_logs") {
            self.wait_for_logs(begun.start.seqno)?;
        }
        // I8: a failure since the epoch switch affects no image, but nothing is published after a
        // failure.
        self.check_publishable()?;
        let published = self.publish(begun, (log_bytes, replaced))?;
        // After the log is released, for which commits may wait.
        self.cut_off_ends(&run);
        Ok(published)
    }

    /// Waits until everything in the images of a checkpoint is durable.
    ///
    /// I5: log before checkpoint. Everything in the images is durable in the log before a durable
    /// superblock refers to them. I16: all logs. A transaction that a tablespace's checkpoint contains
    /// has parts in other logs, without which the other tablespaces would lack it.
    fn wait_for_logs(&self, seqno: SeqNo) -> Result<()> {
        let log = &self.engine.log;
        let durable = log.ticket(seqno).wait();
        if !braid_rt::mutant!("checkpoint_failed_transactions") {
            durable?;
            assert!(
                log.durable_seqno() >= seqno,
                "I5: the log before the checkpoint"
            );
        }
        Ok(())
    }

    /// Begins the checkpoint of each tablespace at one instant, so that one position in the log is that
    /// of all.
    fn begin_checkpoint(&self, scope: Scope, archived: Option<SeqNo>) -> Result<Begun> {
        // No transaction changes pages outside of a commit while the epoch switches.
        let pages = |waits| self.engine.hold_pages(waits);
        self.engine.log.quiesce_with(pages, |start| {
            let spaces = self.engine.spaces.all();
            let stamp = self.new_stamp(&spaces);
            // I8: a transaction that could not be applied poisons the log before it leaves its
            // commit slot, so the check detects it here, and its pages are in no image.
            self.check_publishable()?;
            let kept_from = self.retention.begin_checkpoint(&start, archived);
            let meta = self.checkpoints.meta;
            let meta = meta.encode(&start, Some(&kept_from), stamp);
            let main = self.engine.store.begin_checkpoint(meta)?;
            let meta_of = |space: &Space| SpaceMeta {
                identity: space.identity,
                number: space.number,
                stamp,
                follows: self.checkpoints.stamp(),
                seqno: start.seqno,
            };
            let others = OtherParts::begin(&spaces, scope, stamp, meta_of)?;
            Ok(Begun {
                start,
                kept_from,
                stamp,
                main,
                others,
            })
        })
    }

    /// Publishes a checkpoint that was written, and releases the log that it makes unnecessary.
    /// `log_bytes` bytes of log were written before it, and it replaces the checkpoint of the sequence
    /// `replaced`. Also returns the tablespaces that were left behind.
    fn publish(
        &self,
        begun: Begun,
        (log_bytes, replaced): (u64, u64),
    ) -> Result<(CheckpointReport, Vec<(u8, Error)>)> {
        let Begun {
            start,
            kept_from,
            stamp,
            mut main,
            others,
        } = begun;
        let readers = self.readers.as_deref();
        // The main tablespace last: as long as its superblock is the old one, recovery replays the
        // log from the old checkpoint on, into all tablespaces.
        if braid_rt::mutant!("publish_the_main_tablespace_first") {
            let report = publish_keeping(main, readers, MAIN_SPACE, replaced..replaced + 1)?;
            others.publish(readers, replaced)?;
            self.checkpoints.set_stamp(stamp);
            self.checkpoints
                .set_published(start.seqno, start.seqno, log_bytes);
            return Ok((report, Vec::new()));
        }
        let Published { written, left } = others.publish(readers, replaced)?;
        if braid_rt::mutant!("publish_tablespaces_before_all_logs") {
            self.wait_for_logs(start.seqno)?;
        }
        for space in &written {
            space.state.set_found(stamp, &start);
        }
        let lagging = match &left[..] {
            [] => None,
            _ => self.engine.spaces.lagging(),
        };
        let mut kept_from = kept_from;
        if let Some(lagging) = &lagging {
            // I6: the log that leads a tablespace which lags to the others' state is needed.
            if lagging.start.is_before(&kept_from)
                && !braid_rt::mutant!("release_the_log_of_lagging_tablespaces")
            {
                kept_from = lagging.start.clone();
            }
            let listed = Some(lagging).filter(|_| !braid_rt::mutant!("forget_lagging_tablespaces"));
            let meta = self.checkpoints.meta;
            main.set_meta(meta.encode_with(&start, Some(&kept_from), stamp, listed));
        }
        let report = publish_keeping(main, readers, MAIN_SPACE, replaced..replaced + 1)?;
        self.checkpoints.set_stamp(stamp);
        self.keep_log_for_readers(replaced);
        let replay_from = lagging.as_ref().map_or(&start, |lagging| &lagging.start);
        self.checkpoints
            .set_published(start.seqno, replay_from.seqno, log_bytes);
        let failure = left.first().map(|(_, error)| error.clone());
        self.engine.health.set_checkpoint_error(failure);
        self.engine.counters.checkpoint();
        // I6: checkpoint before reuse. The superblock that makes this log unnecessary is durable.
        let kept_from = self.retention.end_checkpoint(&kept_from, &start);
        assert!(
            !replay_from.is_before(&kept_from),
            "I6: the log from where recovery starts"
        );
        self.engine.log.release(&kept_from)?;
        self.look_for_readers();
        Ok((report, left))
    }

    /// Returns a stamp for a checkpoint of these tablespaces and the main one; 0 if there are none.
    fn new_stamp(&self, spaces: &[Arc<Space>]) -> u64 {
        if spaces.is_empty() {
            return 0;
        }
        let stamps = std::iter::repeat_with(braid_rt::entropy);
        let mut fresh = stamps.filter(|stamp| ![0, self.checkpoints.stamp()].contains(stamp));
        fresh.next().expect("random numbers do not end")
    }

    /// Checks for readers in other processes.
    pub(crate) fn look_for_readers(&self) {
        if let Some(readers) = &self.readers {
            readers.look(|| Commits::of(&self.engine.log));
        }
    }

    /// Keeps the log after the newest checkpoint if a reader in another process needs it.
    fn keep_log_for_readers(&self, sequence: u64) {
        if let Some(readers) = &self.readers {
            let seqno = self.checkpoints.checkpointed();
            readers.keep_log(sequence, seqno, &self.retention);
        }
    }
}

/// A checkpoint after the epoch switch.
struct Begun {
    /// The position in the log of all its parts.
    start: CheckpointPosition,
    /// The position from which log is kept.
    kept_from: CheckpointPosition,
    stamp: u64,
    main: Checkpoint,
    others: OtherParts,
}

/// Returns the error of the first tablespace that was left behind.
fn complete(left: Vec<(u8, Error)>) -> Result<()> {
    let first = left.into_iter().next();
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// Returns the progress of all tablespaces' checkpoints, given that of one, each of which counts as
/// much as the others.
fn part_of(mut progress: CheckpointProgress, part: u64, parts: u64) -> CheckpointProgress {
    progress.pages_written += part * progress.pages_total;
    progress.pages_total *= parts;
    progress
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::{Device, ReaderNeeds, SimDevice};
    use braid_log::SeqNo;

    use crate::{Builder, Bytes, Database, Error, Health, Table};

    fn open(device: &SimDevice, log_bytes_due: u64) -> (Database, Table<u64, Bytes>) {
        let builder: Builder = Database::builder()
            .background_threads(false)
            .pool_bytes(1 << 20)
            .segment_bytes(1 << 20)
            .strands(1)
            .preallocated_log_bytes(16 << 20)
            .checkpoint_log_bytes(log_bytes_due)
            .max_log_bytes(16 << 20);
        let db = builder.open_on(Arc::new(device.clone())).unwrap();
        let t = db.open_table("t").unwrap();
        (db, t)
    }

    #[test]
    fn a_checkpoint_is_due_after_a_commit_and_early_after_much_log() {
        let (db, t) = open(&SimDevice::new(1), 1 << 20);
        let instance = db.instance();
        let due = || (instance.is_checkpoint_due(), instance.is_log_long());
        db.checkpoint().unwrap();
        assert_eq!(due(), (false, false));
        let insert = |key| db.transact(|tx| tx.insert(&t, &key, &[1; 1_000])).unwrap();
        insert(0);
        assert_eq!(due(), (true, false));
        // Each commit takes a block of log at least.
        (1..100).for_each(insert);
        assert_eq!(due(), (true, false));
        (100..400).for_each(insert);
        assert_eq!(due(), (true, true));
        assert!(!instance.lacks_checkpoint(), "nothing was refused");
        db.checkpoint().unwrap();
        assert_eq!(due(), (false, false));
    }

    #[test]
    fn a_refused_transaction_asks_for_a_checkpoint_that_may_make_room() {
        let device = SimDevice::new(2);
        let (db, t) = open(&device, 8 << 20);
        let instance = db.instance();
        let insert = |key: u64| db.transact(|tx| tx.insert(&t, &key, &[1; 1_000]));
        (0..1_000).for_each(|key| insert(key).unwrap());
        db.checkpoint().unwrap();
        device.set_capacity(Some(device.used() + (300 << 10)));
        assert!(!instance.lacks_checkpoint());
        let refused = (1_000..).find_map(|key| insert(key).err()).unwrap();
        assert!(matches!(refused, Error::OutOfSpace { .. }));
        assert!(instance.lacks_checkpoint());
        db.checkpoint().unwrap();
        assert!(!instance.engine.store.has_refused(), "not since");
        assert!(!instance.lacks_checkpoint(), "nothing was refused since");
    }

    #[test]
    fn a_checkpoint_ends_the_report_of_a_failed_one() {
        let (db, _) = open(&SimDevice::new(4), 8 << 20);
        let failed = Some(Error::Closed);
        db.engine().health.set_checkpoint_error(failed);
        assert!(matches!(db.health(), Health::CheckpointFailing { .. }));
        db.checkpoint().unwrap();
        assert!(matches!(db.health(), Health::Good));
    }

    /// Pages change without a commit when a tombstone is purged.
    #[test]
    fn a_checkpoint_without_commits_may_make_room() {
        let device = SimDevice::new(5);
        let (db, t) = open(&device, 8 << 20);
        let instance = db.instance();
        let insert = |key: u64| db.transact(|tx| tx.insert(&t, &key, &[1; 1_000]));
        (0..1_000).for_each(|key| insert(key).unwrap());
        let snapshot = db.snapshot();
        db.transact(|tx| (0..500).try_for_each(|key| tx.remove(&t, &key).map(drop)))
            .unwrap();
        db.checkpoint().unwrap();
        device.set_capacity(Some(device.used()));
        let large = db.transact(|tx| tx.insert(&t, &0, &[1; 3 << 20][..]));
        assert!(matches!(large, Err(Error::OutOfSpace { .. })));
        assert!(!instance.is_checkpoint_due());
        drop(snapshot);
        instance.engine.collect_all_versions();
        assert!(instance.engine.store.has_dirty_pages());
        assert!(instance.lacks_checkpoint());
    }

    #[test]
    fn log_that_a_reader_pins_is_kept_until_a_checkpoint_after_it_left() {
        let device = SimDevice::new(6);
        let (db, t) = open(&device, 8 << 20);
        let (instance, table) = (db.instance(), device.reader_table(true));
        let table = table.unwrap().expect("the device has a reader table");
        let insert = |key: u64| db.transact(|tx| tx.insert(&t, &key, &[1; 1_000]));
        insert(1).unwrap();
        db.checkpoint().unwrap();
        let pinned = instance.checkpoints.checkpointed();
        let checkpoint = instance.engine.store.stats().checkpoint_sequence;
        let pin = table.pin(checkpoint, ReaderNeeds::Log).unwrap();
        for key in 2..4 {
            insert(key).unwrap();
            db.checkpoint().unwrap();
            assert_eq!(instance.retention.oldest(), pinned);
            // The next writer keeps it, too.
            let (next, _) = open(&device.after_crash(), 8 << 20);
            assert_eq!(next.instance().retention.oldest(), pinned);
        }
        drop(pin);
        db.checkpoint().unwrap();
        assert_eq!(instance.retention.needed_start(), SeqNo::MAX);
        db.checkpoint().unwrap();
        assert!(instance.retention.oldest() > pinned);
    }

    #[test]
    fn a_closed_database_writes_no_checkpoint() {
        let (db, _) = open(&SimDevice::new(3), 8 << 20);
        db.clone().close().unwrap();
        let instance = db.instance();
        for outcome in [instance.checkpoint(), instance.shrinking_checkpoint()] {
            assert!(matches!(outcome, Err(Error::Closed)));
        }
    }
}
