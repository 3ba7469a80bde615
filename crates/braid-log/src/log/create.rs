//! Creating a log.

use std::sync::Arc;

use crate::LogError;
use crate::base::numbers::{LaneId, SeqNo};
use crate::flush::begin::{Beginning, first_lane, preallocate};
use crate::flush::core::CoreParts;
use crate::format::chunk::NUMBERS_MAX;
use crate::format::segment::{is_unfinished_name, parse_segment_name};
use crate::log::Log;
use crate::options::LogOptions;
use crate::protocol::Kept;
use crate::segments::quota::Quota;
use braid_io::Device;

impl Log {
    /// Assigns a fresh identity, by which the files of two logs are distinguished.
    pub fn new_identity() -> u128 {
        let half = || u128::from(braid_rt::entropy());
        half() << 64 | half()
    }

    /// Creates a log on a device that holds no log.
    ///
    /// # Errors
    /// [`LogError::Options`]; [`LogError::Incompatible`] if there are segments of a log;
    /// [`LogError::OutOfSpace`] or [`LogError::Io`] from the device.
    pub fn create(device: Arc<dyn Device>, options: LogOptions) -> Result<Log, LogError> {
        Self::create_after(device, options, SeqNo::NONE)
    }

    /// Creates a log whose numbers begin after `seqno`: for a database that was restored as of
    /// `seqno`.
    ///
    /// # Errors
    /// As [`Log::create`].
    pub fn create_after(
        device: Arc<dyn Device>,
        options: LogOptions,
        seqno: SeqNo,
    ) -> Result<Log, LogError> {
        Self::create_as(device, options, seqno, Self::new_identity())
    }

    /// Creates a log as [`Log::create_after`] does, with an identity that was assigned before.
    ///
    /// # Errors
    /// As [`Log::create`].
    pub fn create_as(
        device: Arc<dyn Device>,
        options: LogOptions,
        seqno: SeqNo,
        identity: u128,
    ) -> Result<Log, LogError> {
        if seqno.get() >= NUMBERS_MAX / 2 {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot create a log that continues from sequence number {seqno}: the number is out of range"
                ),
            });
        }
        let options = options.checked()?;
        clear_device(&*device)?;
        let quota = Quota::default();
        let first = Beginning {
            identity,
            incarnation: 1,
            base: seqno,
            kept: Kept::Numbers(seqno).words(options.all_lanes()),
        };
        let lanes = (0..options.all_lanes())
            .map(|index| first_lane(LaneId::new(index), &*device, &options, &first, &quota))
            .collect::<Result<Box<[_]>, _>>()?;
        preallocate(&lanes, &*device, &options, &quota)?;
        // Names before contents: a header counts only in a file that is found.
        device
            .sync_directory()
            .map_err(|error| LogError::io("cannot make the log's file names durable", error))?;
        for lane in &lanes {
            let seal = lane.seal.lock();
            let block = seal.header.encode(&*device);
            seal.segment.write_header(lane.index, &block)?;
        }
        Self::start(CoreParts {
            device,
            kept: first.kept,
            options,
            id: identity,
            incarnation: 1,
            begun: true,
            base: seqno,
            lanes,
            quota,
        })
    }
}

/// Rejects a device that holds segments, and removes files that never became segments.
fn clear_device(device: &dyn Device) -> Result<(), LogError> {
    let entries = device
        .list()
        .map_err(|error| LogError::io("cannot list the device", error))?;
    for entry in entries {
        if parse_segment_name(&entry.name).is_some() {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot create the log: {} already exists; choose an empty directory",
                    entry.name
                ),
            });
        }
        if is_unfinished_name(&entry.name) {
            device
                .remove(&entry.name)
                .map_err(|error| LogError::io(format!("cannot remove {}", entry.name), error))?;
        }
    }
    Ok(())
}
