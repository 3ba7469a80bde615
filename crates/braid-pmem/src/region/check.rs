//! Finds damage in a region without changing it.

use std::fmt;
use std::ops::Range;

use braid_rt::to_usize;

use super::Region;
use crate::header::Header;

/// Bytes that are read at a time: the smallest page of a machine, which is what a medium loses.
const STEP: u64 = 4096;

/// Damage that [`Region::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegionDamage {
    /// One of the two copies of the header is invalid. The next opening for writing repairs it from
    /// the other copy.
    HeaderCopy {
        /// Offset of the copy.
        offset: u64,
    },
    /// The medium lost these bytes.
    Lost(Range<u64>),
}

impl fmt::Display for RegionDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderCopy { offset } => write!(
                f,
                "the copy of the header at offset {offset} is invalid; the next opening for writing \
                 repairs it from the other copy"
            ),
            Self::Lost(range) => write!(
                f,
                "the medium lost the bytes from offset {} to {}",
                range.start, range.end
            ),
        }
    }
}

impl Region {
    /// Reads every byte of the region, and both copies of its header. Calls `found` for each damage.
    /// Changes nothing. Of a region that another process has open for writing, both copies of the
    /// header are read again before one counts as damaged.
    pub fn check(&self, found: &mut dyn FnMut(RegionDamage)) {
        let damaged = Header::damaged_copies(&self.mapping);
        let again = Header::damaged_copies(&self.mapping);
        for offset in damaged.into_iter().filter(|copy| again.contains(copy)) {
            found(RegionDamage::HeaderCopy { offset });
        }
        let mut bytes = [0; 4096];
        let mut lost: Option<Range<u64>> = None;
        let len = self.mapping.len();
        for start in (0..len).step_by(to_usize(STEP)) {
            let end = (start + STEP).min(len);
            let read = self
                .mapping
                .read(start, &mut bytes[..to_usize(end - start)]);
            match (read, &mut lost) {
                (Err(_), Some(lost)) => lost.end = end,
                (Err(error), None) => lost = Some(error.offset..end),
                (Ok(()), _) => found_lost(lost.take(), found),
            }
        }
        found_lost(lost, found);
    }
}

fn found_lost(lost: Option<Range<u64>>, found: &mut dyn FnMut(RegionDamage)) {
    if let Some(range) = lost {
        found(RegionDamage::Lost(range));
    }
}
