//! Reopening a log: from a scan of its files to a running log.

use std::sync::Arc;

use braid_io::Device;

use crate::LogError;
use crate::base::numbers::SeqNo;
use crate::format::checkpoint_position::CheckpointPosition;
use crate::log::Log;
use crate::options::LogOptions;
use crate::recovery::early::DuringScan;
use crate::recovery::files::oldest_position;
use crate::recovery::recovered::{Recovered, ScanProgress};

impl Log {
    /// Scans the log from `start`, a position given by [`Log::quiesce`], on all lanes in parallel,
    /// and finds the cut of its protocol: the last number that recovery keeps. Without a
    /// checkpoint, pass [`Log::recovery_position`]. Writes nothing.
    ///
    /// # Errors
    /// [`LogError::Corrupted`] if the log lacks what it acknowledged, [`LogError::Incompatible`] if
    /// the options do not fit it, [`LogError::Options`], [`LogError::Io`].
    pub fn recover(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        Recovered::scan(device, options.checked()?, start, None, progress, None)
    }

    /// As [`Log::recover`] for a log that another process may be writing: recovery keeps exactly
    /// the transactions up to `durable`, which that process announced before this call. Fails if
    /// any of them is missing, also because the log was released meanwhile. With a protocol whose
    /// sequence numbers do not reveal this, check [`Recovered::is_still_there`] after the last use.
    /// `device` must not pass on any writes (see [`braid_io::OverlayDevice`]).
    ///
    /// # Errors
    /// As [`Log::recover`].
    pub fn recover_up_to(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        durable: SeqNo,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        Recovered::scan(
            device,
            options.checked()?,
            start,
            Some(durable),
            progress,
            None,
        )
    }

    /// As [`Log::recover`], or, with `durable`, as [`Log::recover_up_to`], and replays log records
    /// during the scan, so that the log is read once.
    ///
    /// # Errors
    /// As [`Log::recover`]. What was replayed then has no meaning.
    pub fn recover_and_replay(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        durable: Option<SeqNo>,
        progress: &(dyn Fn(ScanProgress) + Sync),
        during: &DuringScan<'_>,
    ) -> Result<Recovered, LogError> {
        let during = Some(during);
        Recovered::scan(device, options.checked()?, start, durable, progress, during)
    }

    /// As [`Log::recover`] for a log of which side lanes are missing, to read the others: `start` lacks the
    /// missing lanes, and recovery keeps the transactions, as far as they are in the others, up to the
    /// greatest number that is proven durable in all lanes: a chunk says so, or the caller, who has a later
    /// checkpoint (`known`). Later numbers may have been acknowledged. With `durable`, another process has
    /// announced that number, as for [`Log::recover_up_to`]. Not meant for [`Recovered::into_log`]; only for
    /// protocols with side lanes.
    ///
    /// # Errors
    /// As [`Log::recover`].
    pub fn recover_proven(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
        known: SeqNo,
        durable: Option<SeqNo>,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        let reach = (known, durable);
        Recovered::scan_proven(device, options.checked()?, start, reach, progress)
    }

    /// Returns the side lanes whose files are damaged or missing, with the damage of each, if
    /// [`Log::recover`] found damage: the others can be read without them, see [`Log::recover_proven`].
    /// Returns none if another lane is damaged, or if the lanes are sound each by itself but do not fit
    /// together.
    ///
    /// # Errors
    /// As [`Log::recover`], except for [`LogError::Corrupted`].
    pub fn damaged_side_lanes(
        device: &Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
    ) -> Result<Vec<(usize, LogError)>, LogError> {
        let options = options.checked()?;
        if !options.fit(start) {
            return Ok(Vec::new());
        }
        Recovered::damaged_side_lanes(device, &options, start)
    }

    /// As [`Log::recover`] for a damaged log: if acknowledged records are missing, this ends the
    /// log before them, and reports that. The result is the state after a prefix of the committed
    /// transactions, so it is consistent. Not meant for [`Recovered::into_log`].
    ///
    /// # Errors
    /// [`LogError::Corrupted`] if the log from `start` on is missing; as [`Log::recover`]
    /// otherwise.
    pub fn salvage(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &CheckpointPosition,
    ) -> Result<(Recovered, Vec<String>), LogError> {
        Recovered::salvage(device, options.checked()?, start)
    }

    /// Returns the start of the oldest log on a device, for callers that keep no checkpoints.
    ///
    /// # Errors
    /// [`LogError::Incompatible`] if there is no log, [`LogError::Io`].
    pub fn recovery_position(device: &dyn Device) -> Result<CheckpointPosition, LogError> {
        oldest_position(device)
    }
}

impl Recovered {
    /// Begins a new incarnation and continues the log. Records after the cut are discarded
    /// permanently.
    ///
    /// # Errors
    /// [`LogError::OutOfSpace`], [`LogError::Io`]. Nothing is lost then; recovery may be repeated.
    pub fn into_log(self) -> Result<Log, LogError> {
        let log = self.into_idle_log()?;
        log.begin()?;
        Ok(log)
    }

    /// As [`Recovered::into_log`], but the first commit, or [`Log::begin`], begins the new
    /// incarnation. Makes the recovered records durable, and writes nothing.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn into_idle_log(self) -> Result<Log, LogError> {
        Log::start(self.into_parts()?)
    }
}
