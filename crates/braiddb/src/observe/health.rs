//! Whether the database works, and telling whoever wants to know that it does not.

use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;

use braid_rt::Mutex;

use crate::engine::Inner;
use crate::error::Error;
use crate::observe::stats::Health;
use crate::observe::trace::call_user;
use crate::services::archive::Archiver;

pub(crate) type HealthCallback = Arc<dyn Fn(&Health) + Send + Sync>;

/// What was noticed of the database's health.
pub(crate) struct HealthWatch {
    /// What a commit lacked space for, and the newest number then: a number assigned since shows
    /// that there is space again.
    no_space: Mutex<Option<(u64, String)>>,
    listener: Option<HealthCallback>,
    /// What the listener knows.
    told: Mutex<Health>,
}

impl HealthWatch {
    pub(crate) fn new(listener: Option<HealthCallback>) -> Self {
        Self {
            no_space: Mutex::default(),
            listener,
            told: Mutex::new(Health::Good),
        }
    }
}

impl fmt::Debug for HealthWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthWatch").finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn health(&self) -> Health {
        if let Some(cause) = self.poisoned() {
            return Health::Poisoned { cause };
        }
        if self.is_closed() {
            return Health::Closed;
        }
        if let Some(what) = self.damage.get() {
            return Health::Damaged { what: what.clone() };
        }
        let no_space = self.health.no_space.lock().clone();
        if let Some((seqno, what)) = no_space
            && seqno == self.log.last_seqno()
        {
            return Health::OutOfSpace { what };
        }
        if let Some(error) = self.maintenance.last_error.lock().clone() {
            return Health::CheckpointFailing { error };
        }
        match self.archiver.as_ref().and_then(Archiver::error) {
            Some(error) => Health::ArchiveFailing { error },
            None => Health::Good,
        }
    }

    /// Looks at what a commit failed with. Called without locks.
    #[cold]
    pub(crate) fn note_failure(&self, error: &Error) {
        if let Error::OutOfSpace { what } = error {
            let noted = (self.log.last_seqno(), what.clone());
            *self.health.no_space.lock() = Some(noted);
        }
        self.tell_health();
    }

    /// Tells the listener, if there is one, when something has changed.
    pub(crate) fn tell_health(&self) {
        let Some(listener) = &self.health.listener else {
            return;
        };
        let health = self.health();
        let before = std::mem::replace(&mut *self.health.told.lock(), health.clone());
        if discriminant(&before) != discriminant(&health) {
            call_user("the health listener", || listener(&health));
        }
    }
}
