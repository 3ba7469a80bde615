//! Opening a log again: from a scan of its files to a running log.

use std::sync::Arc;

use braid_io::Device;

use crate::LogError;
use crate::format::checkpoint_position::CheckpointPosition;
use crate::log::Log;
use crate::options::LogOptions;
use crate::recovery::files::oldest_position;
use crate::recovery::recovered::{Recovered, ScanProgress};

impl Log {
    /// Scans the log from `start`, a position given by [`Log::quiesce`], on all lanes in parallel, and
    /// finds the cut of its protocol: the last number that counts. Without a checkpoint, give
    /// [`Log::recovery_position`]. Writes nothing.
    ///
    /// # Errors
    /// [`LogError::Corrupted`] if the log lacks what it acknowledged, [`LogError::Incompatible`] if the
    /// options do not fit it, [`LogError::Options`], [`LogError::Io`].
    pub fn recover(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        Recovered::scan(device, options.checked()?, start, None, progress)
    }

    /// As [`Log::recover`] for a log that another process may be writing: what counts is everything up to
    /// `durable`, which that process announced before this was called, and nothing else. Fails if not all of
    /// that is there, also because the log was released meanwhile. Where a protocol's sequence numbers do not tell,
    /// [`Recovered::is_still_there`] does, after the last use. `device` must keep to itself what is
    /// written (see [`braid_io::OverlayDevice`]).
    ///
    /// # Errors
    /// As [`Log::recover`].
    pub fn recover_up_to(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        durable: u64,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        Recovered::scan(device, options.checked()?, start, Some(durable), progress)
    }

    /// As [`Log::recover`] for a damaged log: where that fails for what was acknowledged and is gone, this
    /// ends the log before it, and says so. What is returned is the state after a prefix of what was
    /// committed, so it is consistent. Not meant for [`Recovered::into_log`].
    ///
    /// # Errors
    /// [`LogError::Corrupted`] if the log is not there from `start` on; as [`Log::recover`] otherwise.
    pub fn salvage(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
    ) -> Result<(Recovered, Vec<String>), LogError> {
        Recovered::salvage(device, options.checked()?, start)
    }

    /// The start of the oldest log on a device: for a user of the log who keeps no checkpoints.
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if there is no log, [`LogError::Io`].
    pub fn recovery_position(device: &dyn Device) -> Result<CheckpointPosition, LogError> {
        oldest_position(device)
    }
}

impl Recovered {
    /// Begins a new incarnation and goes on with the log. What lies behind the cut is dead from here on.
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`], [`LogError::Io`]. Nothing is lost then; recovery may be repeated.
    pub fn into_log(self) -> Result<Log, LogError> {
        let log = self.into_idle_log()?;
        log.begin()?;
        Ok(log)
    }

    /// As [`Recovered::into_log`], but leaves the new incarnation to the first entry, or to [`Log::begin`].
    /// Makes what was recovered durable, and writes nothing.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn into_idle_log(self) -> Result<Log, LogError> {
        Log::start(self.into_parts()?)
    }
}
