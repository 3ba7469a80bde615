//! Access control: whether this process may currently read and write the database.

use std::sync::OnceLock;

use braid_log::SeqNo;
use braid_rt::Process;
use braid_rt::atomic::{AtomicU64, Ordering};

use super::Engine;
use crate::error::{Error, Result};
use crate::observe::trace::PoisonReported;

/// State that decides whether the database may be used.
#[derive(Debug)]
pub(super) struct Access {
    process: Process,
    /// The number of `process`; after the database is closed, the number that stands for no
    /// process.
    open_in: AtomicU64,
    /// Whether the medium must stay unchanged, whatever changes in memory.
    opened_read_only: bool,
    /// The damage for which the database was opened read-only.
    damage: OnceLock<String>,
    poison_reported: PoisonReported,
}

impl Access {
    pub(super) fn new(opened_read_only: bool) -> Self {
        let process = Process::current();
        Self {
            process,
            open_in: AtomicU64::new(process.number()),
            opened_read_only,
            damage: OnceLock::new(),
            poison_reported: PoisonReported::default(),
        }
    }
}

impl Engine {
    /// Whether the database is closed, or open in the parent of this process only.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: a transaction that begins while another thread closes may come before or after
        // the close.
        !Process::from_number(self.access.open_in.load(Ordering::Relaxed)).is_current()
    }

    /// Refuses all further use. Returns whether the database was open.
    pub(crate) fn refuse_users(&self) -> bool {
        let none = Process::none().number();
        // SeqCst: a transaction that does not see this store is in the log before the log is
        // sealed, or fails to enter the log.
        self.access.open_in.swap(none, Ordering::SeqCst) != none
    }

    /// Checks that this process may use the database.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(self.not_open());
        }
        Ok(())
    }

    #[cold]
    fn not_open(&self) -> Error {
        if self.access.process.is_current() {
            Error::Closed
        } else {
            Error::Forked
        }
    }

    /// Whether a parent of this process opened the database. Threads that this process does not
    /// have may then hold its locks, so the process must not touch it.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.access.process.is_current()
    }

    /// Whether the database was opened read-only.
    pub(crate) fn was_opened_read_only(&self) -> bool {
        self.access.opened_read_only
    }

    /// Records the damage for which the database was opened read-only. Only the first call counts.
    pub(crate) fn set_damage(&self, damage: String) {
        let _ = self.access.damage.set(damage);
    }

    /// The damage for which the database was opened read-only.
    pub(crate) fn damage(&self) -> Option<&String> {
        self.access.damage.get()
    }

    /// Poisons the log (I8): after a failure that leaves the state in doubt, no transaction is
    /// acknowledged and no checkpoint is published. The log stores the cause, because the log
    /// acknowledges transactions.
    pub(crate) fn poison(&self, cause: &str) {
        self.log.poison(cause);
        self.access.poison_reported.tell(Some(cause));
    }

    /// Returns why the database is poisoned, if it is.
    pub(crate) fn poisoned(&self) -> Option<String> {
        let cause = self.log.poisoned();
        self.access.poison_reported.tell(cause.as_deref());
        cause
    }

    /// Checks that the database is not poisoned (I8).
    pub(crate) fn check_not_poisoned(&self) -> Result<()> {
        match self.poisoned() {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(()),
        }
    }

    /// Checks that a transaction may return what it read in place, where `newest` is the newest
    /// version that it read.
    ///
    /// After a failure, versions above the visible seqno may belong to an incomplete transaction.
    /// All transactions up to the visible seqno are complete, so a reader that meets no greater
    /// version sees the state at the visible seqno.
    #[inline(always)]
    pub(crate) fn check_shown(&self, newest: impl FnOnce() -> SeqNo) -> Result<()> {
        if self.log.is_poisoned() {
            self.check_visible(newest())
        } else {
            Ok(())
        }
    }

    #[cold]
    fn check_visible(&self, newest: SeqNo) -> Result<()> {
        if newest <= self.log.visible_seqno() || braid_rt::mutant!("read_failed_transactions") {
            return Ok(());
        }
        self.check_not_poisoned()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.access.opened_read_only || self.is_closed() || self.log.is_poisoned()
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(self.not_writable());
        }
        Ok(())
    }

    #[cold]
    fn not_writable(&self) -> Error {
        match self.check_not_poisoned() {
            Err(error) => error,
            Ok(()) if self.is_closed() => self.not_open(),
            Ok(()) if let Some(damage) = self.damage() => Error::Corrupted {
                what: "cannot write: the database is damaged and was opened read-only".into(),
                location: damage.clone(),
            },
            Ok(()) => Error::OpenedReadOnly,
        }
    }
}
