//! Which checkpoint the data file of a tablespace has, and why it has no newer one.
//!
//! If a tablespace cannot be written, the others go on: their checkpoints are published, and the main
//! one names the tablespaces that lag ([`crate::format::meta::Lagging`]). The log is kept from
//! their position, and transactions that write to them are refused. So nothing acknowledged is lost:
//! the next opening that finds the data file replays the log from there.

use std::ops::Range;
use std::sync::Arc;

use braid_log::CheckpointPosition;
use braid_rt::Mutex;

use super::spaces::{Space, Spaces};
use crate::error::{Error, Result, TablespaceError};
use crate::format::meta::{Lagging, LaggingSpace};

/// The checkpoint of a tablespace's data file.
#[derive(Debug, Default)]
pub(crate) struct SpaceState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Stamps of which the data file has one: that of its checkpoint, and that of a later one whose
    /// superblock may have been written, or 0.
    stamps: [u64; 2],
    /// The log position of that checkpoint, or an older one; `None` before the first.
    start: Option<CheckpointPosition>,
    /// Why there is no newer checkpoint.
    failure: Option<Error>,
    /// The oldest checkpoint of the main tablespace whose readers may need this one: the newest one when
    /// this one was published; 0 if a previous process published it.
    needed_since: u64,
}

impl SpaceState {
    /// Records the checkpoint that was found, and a log position that is not newer.
    pub(crate) fn set_found(&self, stamp: u64, start: &CheckpointPosition) {
        let mut state = self.0.lock();
        state.stamps = [stamp, 0];
        state.start = Some(start.clone());
        state.failure = None;
    }

    /// Records that the tablespace has a checkpoint with this stamp, before the main one has it, whose
    /// newest checkpoint is `main`.
    pub(crate) fn set_written(&self, stamp: u64, main: u64) {
        let mut state = self.0.lock();
        state.stamps = [stamp, 0];
        state.needed_since = main;
    }

    /// Returns the checkpoints of the main tablespace whose readers may need this one's, if the newest
    /// checkpoint is `main`.
    pub(crate) fn needed_by(&self, main: u64) -> Range<u64> {
        self.0.lock().needed_since..main + 1
    }

    /// Records why the checkpoint with this stamp was not written. If its superblock `may_be_written`,
    /// it is unknown which one the data file has.
    pub(crate) fn set_failed(&self, stamp: u64, may_be_written: bool, failure: Error) {
        let mut state = self.0.lock();
        if may_be_written && state.stamps[1] == 0 {
            state.stamps[1] = stamp;
        }
        state.failure = Some(failure);
    }
}

impl Space {
    fn failed(&self, failure: &Error) -> Error {
        Error::Tablespace(TablespaceError::Failed {
            name: self.name.clone(),
            path: self.directory.clone().unwrap_or_default(),
            cause: failure.to_string(),
        })
    }

    /// Returns why transactions that write to the tablespace are refused: its data file could not be
    /// written. One that lacks space refuses them by itself.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match &self.state.0.lock().failure {
            Some(Error::OutOfSpace { .. }) | None => None,
            Some(_) if braid_rt::mutant!("write_to_a_failed_tablespace") => None,
            Some(failure) => Some(self.failed(failure)),
        }
    }

    /// Checks that transactions may write to the tablespace.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.refusal().map_or(Ok(()), Err)
    }

    /// Whether the tablespace has no checkpoint as new as the main one's.
    pub(crate) fn is_lagging(&self) -> bool {
        self.state.0.lock().failure.is_some()
    }

    /// Returns the position from which log is kept for the tablespace alone.
    pub(crate) fn kept_from(&self) -> Option<CheckpointPosition> {
        let state = self.state.0.lock();
        state.start.clone().filter(|_| state.failure.is_some())
    }
}

impl Spaces {
    /// Describes the tablespaces that lag.
    pub(crate) fn lagging(&self) -> Option<Lagging> {
        let (mut starts, mut spaces) = (Vec::new(), Vec::new());
        for space in self.all() {
            let state = space.state.0.lock();
            if state.failure.is_none() {
                continue;
            }
            starts.extend(state.start.clone());
            spaces.push(LaggingSpace {
                number: space.number,
                stamps: state.stamps,
            });
        }
        let start = starts.into_iter().reduce(CheckpointPosition::older)?;
        Some(Lagging { start, spaces })
    }

    /// Returns a tablespace that lags.
    pub(crate) fn first_lagging(&self) -> Option<Arc<Space>> {
        self.all().into_iter().find(|space| space.is_lagging())
    }

    /// Refuses a change of the tablespaces while one cannot be written: such a change needs a checkpoint
    /// of all.
    pub(crate) fn check_none_lags(&self) -> Result<()> {
        let lagging = self.all().into_iter().find_map(|space| {
            let state = space.state.0.lock();
            state.failure.as_ref().map(|failure| space.failed(failure))
        });
        lagging.map_or(Ok(()), Err)
    }
}
