//! Images of pages from their frames.

use std::ops::Range;

use crate::chain::Chain;
use crate::difference;
use crate::error::LogError;
use crate::format::{HEADER, Kind, NONE};
use crate::scan::read_record;

/// Makes the image to which the frame at a position leads; of this page, if one is given.
pub(crate) fn read_image(
    chain: &Chain,
    page: Option<u64>,
    position: u64,
    image: &mut [u8],
) -> Result<(), LogError> {
    // The newest frame first. A valid difference is after its base and has a greater depth, so that
    // there are at most 256.
    let mut frames: Vec<(Range<usize>, u16)> = Vec::new();
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    let (mut at, mut page) = (position, page);
    loop {
        let record = read_record(chain, at, image.len(), &mut bytes)?;
        let header = record.map(|record| record.header).filter(|header| {
            header.kind != Kind::Commit && page.is_none_or(|page| header.page == page)
        });
        let Some(header) = header else {
            if page.is_none() {
                return Err(LogError::NoFrame { position });
            }
            return Err(LogError::Corrupted {
                offset: chain.offset_of(at),
                what: "the frame of a page that was valid before is not there",
            });
        };
        page = Some(header.page);
        let start = all.len();
        all.extend_from_slice(&bytes[HEADER..]);
        frames.push((start..all.len(), header.ranges));
        if header.kind == Kind::Whole {
            break;
        }
        at = header.previous;
    }
    image.fill(0);
    let page_size = image.len();
    for (body, ranges) in frames.into_iter().rev() {
        let applied = difference::decode(
            &all[body],
            usize::from(ranges),
            page_size,
            |start, range| image[start..start + range.len()].copy_from_slice(range),
        );
        debug_assert!(applied.is_some(), "a valid record");
    }
    Ok(())
}

/// Position of the newest frame before `end` among a frame and the earlier ones of its page.
pub(crate) fn frame_before(
    chain: &Chain,
    page_size: usize,
    position: u64,
    end: u64,
) -> Result<Option<u64>, LogError> {
    let mut at = position;
    let mut bytes = Vec::new();
    while at >= end {
        let record = read_record(chain, at, page_size, &mut bytes)?;
        let previous = record.map(|record| record.header.previous);
        match previous.ok_or(LogError::NoFrame { position: at })? {
            NONE => return Ok(None),
            // A valid frame is after its previous one.
            previous => at = previous,
        }
    }
    Ok(Some(at))
}
