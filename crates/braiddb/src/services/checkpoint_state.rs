//! State of checkpointing: the log that the newest checkpoint covers.

use braid_rt::atomic::{AtomicU64, AtomicUsize, Ordering};

use braid_log::SeqNo;
use braid_rt::Mutex;

use crate::format::meta::Meta;

/// The state of checkpointing.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// Held while a checkpoint is written; see [`Instance::hold_checkpoints`].
    ///
    /// [`Instance::hold_checkpoints`]: super::instance::Instance::hold_checkpoints
    pub(super) running: Mutex<()>,
    /// Threads that wait for `running`.
    waiters: AtomicUsize,
    pub(crate) meta: Meta,
    /// Bytes of log after which a checkpoint is due.
    pub(super) log_bytes_due: u64,
    /// Sequence number of the newest published checkpoint.
    checkpointed: AtomicU64,
    /// Sequence number up to which checkpoints contain every transaction.
    covered: AtomicU64,
    /// Stamp of the newest checkpoint of the main tablespace; 0 without further tablespaces.
    stamp: AtomicU64,
    /// Bytes of log written before the newest published checkpoint.
    log_bytes_at_checkpoint: AtomicU64,
    /// Bytes of log that were replayed by the open and that no checkpoint covers yet.
    replayed_bytes: AtomicU64,
}

impl Checkpoints {
    pub(crate) fn new(meta: Meta, log_bytes_due: u64) -> Self {
        Self {
            running: Mutex::default(),
            waiters: AtomicUsize::new(0),
            meta,
            log_bytes_due,
            checkpointed: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
            log_bytes_at_checkpoint: AtomicU64::new(0),
            replayed_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn add_waiter(&self) {
        // Relaxed, here and below: a hint, which the ticker's lock orders before a pause.
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a thread waits for the running checkpoint.
    pub(super) fn has_waiter(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Records the checkpoint that recovery started from, and the bytes of log that it replayed.
    pub(crate) fn set_recovered(&self, checkpointed: SeqNo, covered: SeqNo, replayed_bytes: u64) {
        self.checkpointed
            .store(checkpointed.get(), Ordering::Release);
        self.covered.store(covered.get(), Ordering::Release);
        self.replayed_bytes.store(replayed_bytes, Ordering::Relaxed);
    }

    /// Records a published checkpoint, before which `log_bytes` bytes of log were written, and the
    /// sequence number up to which every tablespace's has every transaction.
    pub(super) fn set_published(&self, seqno: SeqNo, covered: SeqNo, log_bytes: u64) {
        self.checkpointed.store(seqno.get(), Ordering::Release);
        self.covered.store(covered.get(), Ordering::Release);
        self.log_bytes_at_checkpoint
            .store(log_bytes, Ordering::Relaxed);
        self.replayed_bytes.store(0, Ordering::Relaxed);
    }

    /// Records the stamp of the newest published checkpoint.
    pub(crate) fn set_stamp(&self, stamp: u64) {
        // Relaxed, here and below: only the holder of `running` uses it.
        self.stamp.store(stamp, Ordering::Relaxed);
    }

    /// Returns the stamp of the newest published checkpoint.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }

    /// Returns the sequence number of the newest published checkpoint.
    pub(super) fn checkpointed(&self) -> SeqNo {
        SeqNo::new(self.checkpointed.load(Ordering::Acquire))
    }

    /// Returns the sequence number up to which checkpoints contain every transaction.
    pub(super) fn covered(&self) -> SeqNo {
        SeqNo::new(self.covered.load(Ordering::Acquire))
    }

    /// Returns the bytes of log that no checkpoint covers, if `written` bytes were written in all.
    pub(crate) fn log_bytes_to_recover(&self, written: u64) -> u64 {
        // Relaxed: a checkpoint that is just ending may be seen in part; the next call corrects
        // that.
        let replayed = self.replayed_bytes.load(Ordering::Relaxed);
        let before = self.log_bytes_at_checkpoint.load(Ordering::Relaxed);
        (written + replayed).saturating_sub(before)
    }
}
