//! Checks of a log's options.

use braid_rt::to_usize;

use crate::LogError;
use crate::flush::reservation::SpaceState;
use crate::format::BLOCK;
use crate::options::{LogOptions, SLOTS_PER_STRAND};
use crate::protocol;

fn invalid(option: &'static str, reason: String) -> LogError {
    LogError::Options { option, reason }
}

/// Checks a count from 1 to `most`.
fn check_count(option: &'static str, count: usize, most: usize) -> Result<(), LogError> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(invalid(
        option,
        format!("{count} given; must be from 1 to {most}"),
    ))
}

impl LogOptions {
    /// Checks the limits.
    ///
    /// # Errors
    /// [`LogError::Options`] with the option and the violated limit.
    pub fn check(&self) -> Result<(), LogError> {
        self.clone().checked().map(drop)
    }

    /// Checks the limits, and applies the requirements of the protocol: one strand for `serial` and
    /// `aether`, buffers that fit into one segment with closed flushes.
    ///
    /// # Errors
    /// [`LogError::Options`] with the option and the violated limit.
    pub(crate) fn checked(mut self) -> Result<Self, LogError> {
        if let Some(strands) = protocol::of(self.protocol).forced_strands() {
            self.strands = strands;
            self.lanes = self.lanes.min(strands);
        }
        check_count("strands", self.strands, Self::MAX_STRANDS)?;
        self.check_lanes()?;
        self.check_side_lanes()?;
        check_count(
            "flushes_in_flight",
            self.flushes_in_flight,
            Self::MAX_IN_FLIGHT,
        )?;
        self.check_slot_bytes()?;
        if self.epoch.is_zero() {
            return Err(invalid("epoch", "0 given; must be more than 0".to_owned()));
        }
        if protocol::of(self.protocol).has_closed_flushes() {
            self.fit_slots()?;
        }
        self.check_segment_bytes()?;
        self.check_log_bytes()?;
        Ok(self)
    }

    fn check_lanes(&self) -> Result<(), LogError> {
        if (1..=self.strands.min(Self::MAX_LANES)).contains(&self.lanes) {
            return Ok(());
        }
        Err(invalid(
            "lanes",
            format!(
                "{} given; must be from 1 to {}, and at most the {} strands",
                self.lanes,
                Self::MAX_LANES,
                self.strands
            ),
        ))
    }

    fn check_side_lanes(&self) -> Result<(), LogError> {
        if self.side_lanes > 0 && !self.protocol.has_side_lanes() {
            let reason = format!(
                "{} given; protocol {} has a single log, choose glsn or another one",
                self.side_lanes, self.protocol
            );
            return Err(invalid("side_lanes", reason));
        }
        let most = Self::MAX_LANES - self.lanes;
        let fits = self.side_lanes <= most && self.all_strands() <= Self::MAX_STRANDS;
        if fits {
            return Ok(());
        }
        let reason = format!(
            "{} given; with {} lanes and {} strands, must be at most {}",
            self.side_lanes,
            self.lanes,
            self.strands,
            most.min((Self::MAX_STRANDS - self.strands) / self.side_strands())
        );
        Err(invalid("side_lanes", reason))
    }

    fn check_slot_bytes(&self) -> Result<(), LogError> {
        let fits = (2 * BLOCK..=64 << 20).contains(&self.slot_bytes);
        if fits && self.slot_bytes.is_multiple_of(BLOCK) {
            return Ok(());
        }
        Err(invalid(
            "slot_bytes",
            format!(
                "{} given; must be a multiple of {BLOCK} from {} to 64 MiB",
                self.slot_bytes,
                2 * BLOCK
            ),
        ))
    }

    /// Shortens the buffers so that a closed flush, which takes all of its lane's buffers, fits
    /// into one segment.
    fn fit_slots(&mut self) -> Result<(), LogError> {
        let slots = (self.strands.div_ceil(self.lanes) * SLOTS_PER_STRAND) as u64;
        let fits = self.segment_bytes.saturating_sub(BLOCK as u64) / slots;
        let fits = to_usize(fits - fits % BLOCK as u64);
        if fits < 2 * BLOCK {
            return Err(invalid(
                "segment_bytes",
                format!(
                    "{} given; too small for the {slots} buffers that a lane has with protocol {}",
                    self.segment_bytes, self.protocol
                ),
            ));
        }
        self.slot_bytes = self.slot_bytes.min(fits);
        Ok(())
    }

    fn check_segment_bytes(&self) -> Result<(), LogError> {
        let least = (BLOCK + 2 * self.slot_bytes) as u64;
        let fits = (least..=Self::SEGMENT_BYTES_MAX).contains(&self.segment_bytes);
        if fits && self.segment_bytes.is_multiple_of(BLOCK as u64) {
            return Ok(());
        }
        Err(invalid(
            "segment_bytes",
            format!(
                "{} given; must be a multiple of {BLOCK} from {least} (two buffers and a header) to 1 GiB",
                self.segment_bytes
            ),
        ))
    }

    fn check_log_bytes(&self) -> Result<(), LogError> {
        if self.max_log_bytes == 0 {
            return Ok(());
        }
        let least = SpaceState::least_log_bytes(self);
        if self.max_log_bytes < least {
            return Err(invalid(
                "max_log_bytes",
                format!(
                    "{} given; these strands, buffers and segments need at least {least}",
                    self.max_log_bytes
                ),
            ));
        }
        if self.max_log_bytes < self.preallocated_bytes {
            return Err(invalid(
                "preallocated_bytes",
                format!(
                    "{} given; must be at most max_log_bytes, which is {}",
                    self.preallocated_bytes, self.max_log_bytes
                ),
            ));
        }
        Ok(())
    }
}
