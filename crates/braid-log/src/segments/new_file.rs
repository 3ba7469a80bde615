//! A file of zeroes that becomes a segment when it gets the segment's name.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use braid_io::{Device, File, OpenMode};

use crate::LogError;
use crate::format::BLOCK;
use crate::format::chunk::NUMBERS_MAX;
use crate::format::segment::Segment;
use crate::options::LogOptions;
use crate::segments::quota::Quota;

/// Bytes of a file made ahead of need that are written at once: so few that a flush, which the device
/// may serve after them, hardly waits.
const PIECE: u64 = 256 << 10;

/// Called after each piece of a file but the last, with the bytes that are left and when the piece
/// began. May pause.
pub(crate) type Pause<'a> = &'a dyn Fn(u64, Instant);

/// Why a file is made.
#[derive(Clone, Copy)]
pub(super) enum Reason<'a> {
    /// A commit or a flush waits for it.
    Need,
    /// Ahead of need, with pauses for commits, which use the device.
    Ahead(Pause<'a>),
}

/// A durable file of zeroes under the name of an unfinished segment.
#[derive(Debug)]
pub(super) struct NewFile {
    file: Arc<dyn File>,
    len: u64,
    unfinished: String,
}

impl NewFile {
    /// The number in the name of a file that is made ahead of need. No segment has it: which number
    /// the file gets is decided once it is finished.
    pub(super) const AHEAD: u64 = NUMBERS_MAX - 1;

    /// Creates a file of `len` bytes under the name `unfinished`, or of at least `least` bytes if the
    /// limit has no room for `len`. Returns `None` if the limit has no room for `least` bytes.
    ///
    /// # Errors
    /// Errors of the device. Then the file does not count against the limit.
    pub(super) fn make(
        device: &dyn Device,
        unfinished: &str,
        (len, least): (u64, u64),
        options: &LogOptions,
        quota: &Quota,
        reason: Reason<'_>,
    ) -> Result<Option<Self>, LogError> {
        let Some(len) = quota.take(len, least, options) else {
            return Ok(None);
        };
        if len > least {
            braid_rt::coverage_point("log: segments grow");
        }
        match create_zeroed(device, unfinished, len, reason) {
            Ok(file) => Ok(Some(Self {
                file,
                len,
                unfinished: unfinished.to_owned(),
            })),
            Err(error) => {
                quota.release(len);
                // The next attempt or opening removes a leftover file.
                let _ = device.remove(unfinished);
                Err(LogError::io(format!("cannot prepare {unfinished}"), error))
            }
        }
    }

    /// The length of the file, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Makes the file segment `sequence`, named `name`.
    ///
    /// # Errors
    /// Errors of the device. The file is removed then.
    pub(super) fn name(
        self,
        device: &dyn Device,
        sequence: u64,
        name: &str,
    ) -> Result<Segment, LogError> {
        match device.rename(&self.unfinished, name) {
            Ok(()) => Ok(Segment {
                sequence,
                len: self.len,
                file: self.file,
            }),
            Err(error) => {
                let unfinished = &self.unfinished;
                let what = format!("cannot rename {unfinished} to {name}");
                let _ = device.remove(unfinished);
                Err(LogError::io(what, error))
            }
        }
    }
}

/// Creates a file of `len` real zeroes, and makes it durable.
fn create_zeroed(
    device: &dyn Device,
    name: &str,
    len: u64,
    reason: Reason<'_>,
) -> io::Result<Arc<dyn File>> {
    debug_assert!(len.is_multiple_of(BLOCK as u64));
    let file = match device.open(name, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            device.remove(name)?;
            device.open(name, OpenMode::CreateNew)?
        }
        other => other?,
    };
    match reason {
        Reason::Need => file.fill_zero(0..len)?,
        Reason::Ahead(_) if braid_rt::mutant!("zero_a_file_at_once") => file.fill_zero(0..len)?,
        Reason::Ahead(pause) => {
            let mut at = 0;
            while at < len {
                let end = len.min(at + PIECE);
                let begun = braid_rt::now();
                file.fill_zero(at..end)?;
                if end < len {
                    pause(len - end, begun);
                }
                at = end;
            }
        }
    }
    file.sync()?;
    Ok(file)
}
