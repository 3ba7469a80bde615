//! Ranges of keys.

use std::ffi::c_int;
use std::ops::Bound;

use crate::boundary::{Failure, Outcome};
use crate::memory::{braid_slice, bytes, optional};
use crate::objects::Bounds;

/// Kind of bound at one end of a range.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum braid_bound_kind {
    /// No bound; the key is ignored.
    BRAID_UNBOUNDED = 0,
    /// The range includes the key.
    BRAID_INCLUDED = 1,
    /// The range excludes the key.
    BRAID_EXCLUDED = 2,
}

/// One end of a range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_bound {
    /// A `braid_bound_kind`.
    pub kind: c_int,
    /// The key.
    pub key: braid_slice,
}

/// A range of keys. With all fields zero, it contains all keys.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct braid_range {
    /// Lower end.
    pub lower: braid_bound,
    /// Upper end.
    pub upper: braid_bound,
}

impl braid_bound {
    /// # Safety
    ///
    /// If the bound has a key, as for [`bytes`].
    unsafe fn parse(&self, name: &'static str) -> Outcome<Bound<Vec<u8>>> {
        use braid_bound_kind::*;
        // SAFETY: this function's contract.
        let key = || unsafe { bytes(self.key.data, self.key.len, name) }.map(<[u8]>::to_vec);
        if self.kind == BRAID_UNBOUNDED as c_int {
            Ok(Bound::Unbounded)
        } else if self.kind == BRAID_INCLUDED as c_int {
            Ok(Bound::Included(key()?))
        } else if self.kind == BRAID_EXCLUDED as c_int {
            Ok(Bound::Excluded(key()?))
        } else {
            let what = format!(
                "invalid {name} bound kind {}: use BRAID_UNBOUNDED, BRAID_INCLUDED or BRAID_EXCLUDED",
                self.kind
            );
            Err(Failure::argument(what))
        }
    }
}

/// # Safety
///
/// `range` is NULL or points to a range whose keys meet the contract of [`bytes`].
pub(crate) unsafe fn bounds_of(range: *const braid_range) -> Outcome<Bounds> {
    // SAFETY: this function's contract.
    let Some(range) = (unsafe { optional(range) }) else {
        return Ok((Bound::Unbounded, Bound::Unbounded));
    };
    // SAFETY: this function's contract.
    Ok(unsafe { (range.lower.parse("lower")?, range.upper.parse("upper")?) })
}
