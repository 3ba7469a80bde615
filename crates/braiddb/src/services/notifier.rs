//! Notifier of change readers, which wait here until there are transactions to read.

use std::sync::Arc;
use std::time::Instant;

use braid_log::{Log, SeqNo};
use braid_rt::{Condvar, Mutex};

use crate::engine::Engine;
use crate::error::{Error, Result};

/// Notified by the log's progress while a reader waits. With no waiting reader, nothing is
/// registered with the log, and a flush does no extra work.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    state: Mutex<State>,
    notified: Condvar,
}

#[derive(Debug, Default)]
struct State {
    notifications: u64,
    /// Whether the log will notify, for each kind of progress.
    armed: Vec<bool>,
}

impl Notifier {
    /// Wakes all waiting readers.
    pub(crate) fn notify(&self) {
        self.state.lock().notifications += 1;
        self.notified.notify_all();
    }

    fn notify_for(&self, kind: usize) {
        let mut state = self.state.lock();
        state.armed[kind] = false;
        state.notifications += 1;
        drop(state);
        self.notified.notify_all();
    }
}

impl Notifier {
    /// Waits until a transaction after `seqno` is durable, or until the deadline. Returns which.
    pub(crate) fn wait(
        self: &Arc<Self>,
        engine: &Engine,
        seqno: SeqNo,
        deadline: Option<Instant>,
    ) -> Result<bool> {
        loop {
            let notifications = self.state.lock().notifications;
            engine.check_open()?;
            // `gsn` acknowledges ahead of the durable seqno: flush the earlier transactions of
            // other lanes.
            let acknowledged = engine.log.acknowledged();
            if acknowledged > engine.log.durable_seqno() {
                engine.log.ticket(acknowledged).wait()?;
            }
            if engine.log.durable_seqno() > seqno {
                return Ok(true);
            }
            if let Some(cause) = engine.poisoned() {
                return Err(Error::Poisoned { cause });
            }
            self.arm(&engine.log, seqno);
            let mut state = self.state.lock();
            while state.notifications == notifications {
                let notified = &self.notified;
                if notified.wait_until_or_forever(&mut state, deadline) {
                    return Ok(engine.log.durable_seqno() > seqno);
                }
            }
        }
    }

    /// Arms the notifier for the moment when anything after `seqno` is acknowledged.
    fn arm(self: &Arc<Self>, log: &Log, seqno: SeqNo) {
        let kinds = log.progress_kinds();
        let unarmed: Vec<usize> = {
            let mut state = self.state.lock();
            state.armed.resize(kinds, false);
            let unarmed = (0..kinds).filter(|&kind| !state.armed[kind]).collect();
            state.armed.fill(true);
            unarmed
        };
        // Without the lock: the log may notify at once.
        for kind in unarmed {
            let notifier = Arc::clone(self);
            log.on_progress(kind, seqno, move || notifier.notify_for(kind));
        }
    }
}
