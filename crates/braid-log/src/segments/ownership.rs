//! Deciding which files of a directory a log has created.

use braid_io::{Device, Entry, OpenMode};
use braid_rt::to_usize;

use crate::LogError;
use crate::format::BLOCK;
use crate::format::segment::{HeaderFound, SegmentHeader, is_unfinished_name, parse_segment_name};

/// Bytes read at once.
const STEP: usize = 256 * BLOCK;

/// Whether the log with the given identity created a file: a segment whose header bears the
/// identity, or a segment without contents, of whose header a crash may have left a part. A file with any other name or contents does not belong
/// to the log.
///
/// # Errors
/// [`LogError::Io`].
pub fn is_file_of(device: &dyn Device, entry: &Entry, identity: u128) -> Result<bool, LogError> {
    let is_segment = parse_segment_name(&entry.name).is_some();
    if !is_segment && !is_unfinished_name(&entry.name) {
        return Ok(false);
    }
    let opened = device.open(&entry.name, OpenMode::Existing);
    let file = opened.map_err(|e| LogError::io(format!("cannot open {}", entry.name), e))?;
    let mut at = 0;
    if is_segment && entry.len >= BLOCK as u64 {
        match SegmentHeader::read_or_torn(device, &*file, &entry.name, identity)? {
            HeaderFound::Valid(header) => return Ok(header.log == identity),
            HeaderFound::Torn => at = BLOCK as u64,
            HeaderFound::Foreign => return Ok(false),
        }
    }
    let mut buf = device.allocate(STEP);
    while at < entry.len {
        let len = to_usize((entry.len - at).min(STEP as u64));
        if !len.is_multiple_of(device.block_size_of(&entry.name)) {
            // Segments are made of whole blocks.
            return Ok(false);
        }
        let read = file.read_at(&mut buf[..len], at);
        read.map_err(|e| LogError::io(format!("cannot read {}", entry.name), e))?;
        if buf[..len].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
