//! Health of the engine, and notification of its changes.

use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;

use braid_log::SeqNo;
use braid_rt::Mutex;

use super::Engine;
use crate::error::Error;
use crate::observe::health::{Health, HealthCallback};
use crate::observe::trace::call_user;

/// Returns the error of writing the archive, if writing fails.
pub(crate) type ArchiveError = Arc<dyn Fn() -> Option<Error> + Send + Sync>;

/// Failures that may be temporary.
pub(crate) struct HealthWatch {
    /// What a commit lacked space for, and the newest sequence number at that time. A sequence
    /// number assigned since shows that space is available again.
    no_space: Mutex<Option<(SeqNo, String)>>,
    checkpoint_error: Mutex<Option<Error>>,
    archive_error: Option<ArchiveError>,
    listener: Option<HealthCallback>,
    /// The health last reported to the listener.
    reported: Mutex<Health>,
}

impl HealthWatch {
    pub(super) fn new(
        listener: Option<HealthCallback>,
        archive_error: Option<ArchiveError>,
    ) -> Self {
        Self {
            no_space: Mutex::default(),
            checkpoint_error: Mutex::default(),
            archive_error,
            listener,
            reported: Mutex::new(Health::Good),
        }
    }

    /// Records the outcome of the last checkpoint, or of other maintenance.
    pub(crate) fn set_checkpoint_error(&self, error: Option<Error>) {
        *self.checkpoint_error.lock() = error;
    }
}

impl fmt::Debug for HealthWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthWatch").finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn health(&self) -> Health {
        if let Some(cause) = self.poisoned() {
            return Health::Poisoned { cause };
        }
        if self.is_closed() {
            return Health::Closed;
        }
        if let Some(what) = self.damage() {
            return Health::Damaged { what: what.clone() };
        }
        let no_space = self.health.no_space.lock().clone();
        if let Some((seqno, what)) = no_space
            && seqno == self.log.last_seqno()
        {
            return Health::OutOfSpace { what };
        }
        if let Some(error) = self.checkpoint_error() {
            return Health::CheckpointFailing { error };
        }
        match self.health.archive_error.as_ref().and_then(|error| error()) {
            Some(error) => Health::ArchiveFailing { error },
            None => Health::Good,
        }
    }

    /// Returns why no checkpoint succeeds: the failure of a data file, or of the last checkpoint.
    pub(crate) fn checkpoint_error(&self) -> Option<Error> {
        let cause = self.stores().find_map(|store| store.poisoned());
        let last = || self.health.checkpoint_error.lock().clone();
        cause.map(|cause| Error::Poisoned { cause }).or_else(last)
    }

    /// Records why a commit failed. Call without locks.
    #[cold]
    pub(crate) fn note_failure(&self, error: &Error) {
        if let Error::OutOfSpace { what } = error {
            let noted = (self.log.last_seqno(), what.clone());
            *self.health.no_space.lock() = Some(noted);
        }
        self.report_health();
    }

    /// Calls the listener, if there is one, after the health has changed.
    pub(crate) fn report_health(&self) {
        let Some(listener) = &self.health.listener else {
            return;
        };
        let health = self.health();
        let before = std::mem::replace(&mut *self.health.reported.lock(), health.clone());
        if discriminant(&before) != discriminant(&health) {
            call_user("the health listener", || listener(&health));
        }
    }
}
