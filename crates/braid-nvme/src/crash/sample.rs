//! Images at moments that are distributed over a record.

use std::io::{Error, Read, Result};

use super::{Replay, WriteLog};
use crate::MemoryDrive;

/// Makes about `images` images of a drive of `bytes` bytes, at all moments of its record after the
/// first acknowledgement, and passes each to `check` with the payload of the last acknowledgement.
/// `seeds` returns the seed of an image. Returns the number of images.
///
/// `record` opens the record; it is read twice.
///
/// # Errors
///
/// The first error of `check`, with the moment and the seed; a description of what is wrong with the
/// record.
pub fn sample<R: Read>(
    record: impl Fn() -> Result<R>,
    bytes: u64,
    images: u64,
    mut seeds: impl FnMut() -> u64,
    mut check: impl FnMut(&[u8], &MemoryDrive) -> std::result::Result<(), String>,
) -> std::result::Result<u64, String> {
    let text = |error: Error| error.to_string();
    let replay = || Ok(Replay::new(WriteLog::new(record()?)?, bytes));
    let (mut counted, mut moments) = (replay().map_err(text)?, 0);
    while counted.advance().map_err(text)? {
        moments += u64::from(counted.acknowledged().is_some());
    }
    if moments == 0 {
        return Err("the record has no acknowledgement".into());
    }
    let mut replay = replay().map_err(text)?;
    let (mut done, mut moment) = (0, 0);
    while replay.advance().map_err(text)? {
        let Some(payload) = replay.acknowledged() else {
            continue;
        };
        moment += 1;
        // So many in all moments up to this one.
        while done < images * moment / moments {
            let seed = seeds();
            check(payload, &replay.image(seed))
                .map_err(|error| format!("moment {moment}, image {seed}: {error}"))?;
            done += 1;
        }
    }
    Ok(done)
}
