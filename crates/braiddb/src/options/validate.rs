//! Validation of the options.

use std::time::Duration;

use braid_io::DeviceChoice;
use braid_log::LogOptions;
use braid_store::POOL_BYTES_MAX;

use super::Builder;
use crate::error::{Error, Result};

impl Builder {
    /// Returns the options of a reader: no background work, the stored protocol and layout, and nothing
    /// that must fit them. A writer may use fewer strands than are stored, and so shorter segments.
    pub(crate) fn reading(self) -> Self {
        Self {
            read_only: true,
            archive: None,
            stats_directory: None,
            background: false,
            create_if_missing: false,
            protocol: None,
            strands: None,
            lanes: None,
            segment_bytes: Self::default().segment_bytes,
            max_log_bytes: 0,
            preallocated_log_bytes: 0,
            ..self
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let check = |ok: bool, option: &'static str, reason: &str| {
            if ok {
                Ok(())
            } else {
                Err(Error::InvalidOption {
                    option,
                    reason: reason.into(),
                })
            }
        };
        let strands = self.strands.unwrap_or(1);
        check(
            (1..=256).contains(&strands),
            "strands",
            "must be from 1 to 256",
        )?;
        let lanes = self.lanes.unwrap_or(1);
        let lanes_fit = (1..=LogOptions::MAX_LANES).contains(&lanes)
            && (self.strands.is_none() || lanes <= strands);
        check(
            lanes_fit,
            "lanes",
            "must be from 1 to 32, and at most the number of strands",
        )?;
        check(
            (1 << 20..=POOL_BYTES_MAX).contains(&(self.pool_bytes as u64)),
            "pool_bytes",
            "must be from 1 MiB to 4 TiB",
        )?;
        let segment_fits = (64 << 10..=1 << 30).contains(&self.segment_bytes);
        check(
            segment_fits,
            "segment_bytes",
            "must be from 64 KiB to 1 GiB",
        )?;
        let checkpoint_fits = self.checkpoint_log_bytes >= 64 << 10;
        check(
            checkpoint_fits,
            "checkpoint_log_bytes",
            "must be at least 64 KiB",
        )?;
        let log_fits =
            self.max_log_bytes == 0 || self.max_log_bytes / 2 >= self.checkpoint_log_bytes;
        check(
            log_fits,
            "max_log_bytes",
            "must be 0, or at least twice checkpoint_log_bytes",
        )?;
        let preallocated_fits =
            self.max_log_bytes == 0 || self.preallocated_log_bytes <= self.max_log_bytes;
        check(
            preallocated_fits,
            "preallocated_log_bytes",
            "must be at most max_log_bytes",
        )?;
        let transaction_fits = (1 << 10..=1 << 30).contains(&self.transaction_bytes_max);
        check(
            transaction_fits,
            "transaction_bytes_max",
            "must be from 1 KiB to 1 GiB",
        )?;
        check(
            self.log_device != Some(DeviceChoice::Memory),
            "log_device",
            "must keep the log after the process has ended",
        )?;
        let epoch_fits =
            (Duration::from_micros(10)..=Duration::from_secs(10)).contains(&self.epoch);
        check(epoch_fits, "epoch", "must be from 10 µs to 10 s")?;
        let interval_fits = !self.archive_interval.is_zero();
        check(interval_fits, "archive_interval", "must be more than zero")?;
        check_file_mode(self.file_mode)?;
        let flushes = self.flushes_in_flight.unwrap_or(1);
        let flushes_fit = (1..=LogOptions::MAX_IN_FLIGHT).contains(&flushes);
        check(flushes_fit, "flushes_in_flight", "must be from 1 to 16")
    }
}

/// Checks that files can have these permissions.
///
/// # Errors
/// [`Error::InvalidOption`].
pub(crate) fn check_file_mode(mode: u32) -> Result<()> {
    if mode & 0o600 == 0o600 && mode & !0o666 == 0 {
        return Ok(());
    }
    let reason = "must grant the owner reading and writing (0o600), and no one executing";
    Err(Error::InvalidOption {
        option: "file_mode",
        reason: reason.into(),
    })
}
