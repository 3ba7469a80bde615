//! Named snapshots.
//!
//! Named snapshots hold old versions in memory, like all snapshots, and end when the database is
//! closed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock, Weak};

use braid_log::SeqNo;
use braid_rt::Mutex;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::mvcc::registry::Registration;
use crate::read::snapshot::Snapshot;

/// Snapshot registration that the name and the opened snapshots share.
#[derive(Debug)]
pub(crate) struct NamedHold {
    /// Weak: the engine's owner also owns the names.
    engine: Weak<Engine>,
    registration: Registration,
    /// Current time for tables with timed entries; all snapshots opened by this name share it.
    pub(crate) time: OnceLock<u64>,
}

impl NamedHold {
    pub(crate) fn seqno(&self) -> SeqNo {
        self.registration.seqno()
    }
}

impl Drop for NamedHold {
    fn drop(&mut self) {
        let engine = self.engine.upgrade();
        if let Some(engine) = engine.filter(|engine| !engine.is_inherited()) {
            engine.snapshots.close(&self.registration);
        }
    }
}

/// The named snapshots of an opened database.
#[derive(Debug, Default)]
pub(crate) struct NamedSnapshots(Mutex<BTreeMap<String, Arc<NamedHold>>>);

impl NamedSnapshots {
    pub(crate) fn create(&self, engine: &Arc<Engine>, name: &str) -> Result<Snapshot> {
        engine.check_open()?;
        // Outside the lock: opening a snapshot may wait for a flush.
        let hold = Arc::new(NamedHold {
            engine: Arc::downgrade(engine),
            registration: engine.open_snapshot(),
            time: OnceLock::new(),
        });
        match self.0.lock().entry(name.to_owned()) {
            Entry::Occupied(_) => Err(Error::SnapshotExists {
                name: name.to_owned(),
            }),
            Entry::Vacant(free) => {
                free.insert(hold.clone());
                Ok(Snapshot::named(engine.clone(), hold))
            }
        }
    }

    pub(crate) fn open(&self, engine: &Arc<Engine>, name: &str) -> Result<Snapshot> {
        engine.check_open()?;
        let hold = self.0.lock().get(name).cloned();
        let hold = hold.ok_or_else(|| Error::SnapshotNotFound {
            name: name.to_owned(),
        })?;
        engine.check_not_ended(hold.seqno())?;
        Ok(Snapshot::named(engine.clone(), hold))
    }

    pub(crate) fn names(&self, engine: &Engine) -> Vec<String> {
        if engine.is_inherited() {
            return Vec::new();
        }
        self.0.lock().keys().cloned().collect()
    }

    /// Removes a name. Returns whether it existed.
    pub(crate) fn remove(&self, engine: &Engine, name: &str) -> bool {
        if engine.is_inherited() {
            return false;
        }
        // Drop the registration without holding the lock.
        let hold = self.0.lock().remove(name);
        hold.is_some()
    }
}
