//! Where readers of changes sleep until there is something to read.

use std::sync::Arc;
use std::time::Instant;

use braid_rt::{Condvar, Mutex};

use crate::database::Inner;
use crate::error::{Error, Result};

/// Rung by the log's progress, while somebody waits for it. With nobody waiting nothing is registered with the
/// log, and a flush does nothing for it.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rings: u64,
    /// Of each kind of progress, whether the log will ring for it.
    armed: Vec<bool>,
}

impl Bell {
    /// Wakes all who wait.
    pub(crate) fn ring(&self) {
        self.state.lock().rings += 1;
        self.rung.notify_all();
    }

    fn ring_for(&self, kind: usize) {
        let mut state = self.state.lock();
        state.armed[kind] = false;
        state.rings += 1;
        drop(state);
        self.rung.notify_all();
    }
}

impl Inner {
    /// Waits until something behind `number` is durable, or the time has come; says which.
    pub(crate) fn wait_for_progress(&self, number: u64, deadline: Option<Instant>) -> Result<bool> {
        loop {
            let rings = self.bell.state.lock().rings;
            self.check_open()?;
            // `gsn` acknowledges ahead of the horizon: what other lanes had before is flushed for it.
            let acknowledged = self.log.acknowledged();
            if acknowledged > self.log.horizon() {
                self.log.ticket(acknowledged).wait()?;
            }
            if self.log.horizon() > number {
                return Ok(true);
            }
            if let Some(cause) = self.poisoned() {
                return Err(Error::Poisoned { cause });
            }
            self.arm_bell(number);
            let mut state = self.bell.state.lock();
            while state.rings == rings {
                let rung = &self.bell.rung;
                if rung.wait_until_or_forever(&mut state, deadline) {
                    return Ok(self.log.horizon() > number);
                }
            }
        }
    }

    /// Sees to it that the bell rings when anything behind `number` is acknowledged.
    fn arm_bell(&self, number: u64) {
        let kinds = self.log.progress_kinds();
        let unarmed: Vec<usize> = {
            let mut state = self.bell.state.lock();
            state.armed.resize(kinds, false);
            let unarmed = (0..kinds).filter(|&kind| !state.armed[kind]).collect();
            state.armed.fill(true);
            unarmed
        };
        // Outside of the lock: it may ring at once.
        for kind in unarmed {
            let bell = Arc::clone(&self.bell);
            self.log
                .on_progress(kind, number, move || bell.ring_for(kind));
        }
    }
}
