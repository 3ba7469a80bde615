//! The drive in bytes, and the stop after a failure.

use std::ops::Range;
use std::sync::OnceLock;

use super::VolumeError;
use crate::{Blocking, DriveError, ReadAt, WriteAt};

/// The unit of everything on a volume: offsets and lengths are multiples of it.
pub(super) const BLOCK: u64 = 4096;

/// A drive, addressed in bytes.
#[derive(Debug)]
pub(super) struct Medium {
    drive: Blocking,
    /// The first failure after which nothing is acknowledged (I8).
    failure: OnceLock<DriveError>,
}

impl Medium {
    pub(super) fn new(drive: Blocking) -> Self {
        Self {
            drive,
            failure: OnceLock::new(),
        }
    }

    pub(super) fn drive(&self) -> &Blocking {
        &self.drive
    }

    /// Bytes of the drive.
    pub(super) fn bytes(&self) -> u64 {
        let info = self.drive.info();
        info.blocks.saturating_mul(info.block_size as u64)
    }

    fn lba(&self, at: u64) -> u64 {
        debug_assert!(at.is_multiple_of(BLOCK));
        at / self.drive.info().block_size as u64
    }

    /// # Errors
    ///
    /// [`VolumeError::Stopped`] after a failure.
    pub(super) fn check(&self) -> Result<(), VolumeError> {
        match self.failure.get() {
            Some(error) if !braid_rt::mutant!("volume_go_on_after_failure") => {
                Err(VolumeError::Stopped(error.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Remembers a failure after which nothing may be acknowledged.
    fn stop(&self, error: DriveError) -> VolumeError {
        let _ = self.failure.set(error.clone());
        error.into()
    }

    pub(super) fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), VolumeError> {
        Ok(self.drive.read(self.lba(at), buffer)?)
    }

    pub(super) fn read_all(&self, parts: Vec<(u64, &mut [u8])>) -> Result<(), VolumeError> {
        let mut reads: Vec<ReadAt<'_>> = parts
            .into_iter()
            .map(|(at, buffer)| ReadAt {
                lba: self.lba(at),
                buffer,
            })
            .collect();
        Ok(self.drive.read_batch(&mut reads)?)
    }

    /// Writes contents of files, in any order.
    pub(super) fn write_all(
        &self,
        parts: &[(u64, &[u8])],
        durable: bool,
    ) -> Result<(), VolumeError> {
        self.check()?;
        let writes: Vec<WriteAt<'_>> = parts
            .iter()
            .map(|&(at, buffer)| WriteAt {
                lba: self.lba(at),
                buffer,
            })
            .collect();
        if durable && !braid_rt::mutant!("volume_plain_durable_writes") {
            Ok(self.drive.write_durable_batch(&writes)?)
        } else {
            Ok(self.drive.write_batch(&writes)?)
        }
    }

    /// Writes zeros durably or not, as the next flush decides.
    pub(super) fn zero(&self, range: Range<u64>) -> Result<(), VolumeError> {
        const PART: u64 = 1 << 20;
        let len = PART.min(range.end.saturating_sub(range.start));
        if len == 0 {
            return Ok(());
        }
        let zeros = self.drive.allocate(braid_rt::to_usize(len));
        let starts = (range.start..range.end).step_by(braid_rt::to_usize(PART));
        for part in starts.collect::<Vec<u64>>().chunks(8) {
            let writes: Vec<(u64, &[u8])> = part
                .iter()
                .map(|&at| {
                    let len = braid_rt::to_usize(len.min(range.end - at));
                    (at, &zeros[..len])
                })
                .collect();
            self.write_all(&writes, false)?;
        }
        Ok(())
    }

    /// Writes a part of the directory durably.
    pub(super) fn write_directory(&self, at: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        self.check()?;
        let lba = self.lba(at);
        let written = if braid_rt::mutant!("volume_skip_fua") {
            self.drive.write(lba, bytes)
        } else {
            self.drive.write_durable(lba, bytes)
        };
        written.map_err(|error| self.stop(error))
    }

    /// Makes all completed writes durable.
    pub(super) fn flush(&self) -> Result<(), VolumeError> {
        self.check()?;
        self.drive.flush().map_err(|error| self.stop(error))
    }

    /// Tells the drive that nobody needs the contents of a range. A failure changes nothing that
    /// anybody relies on.
    pub(super) fn deallocate(&self, range: Range<u64>) {
        let _ = self
            .drive
            .deallocate(self.lba(range.start)..self.lba(range.end));
    }
}
