//! Writing blocks in persistent memory by cache line.
//!
//! A block is never changed while a superblock leads to it, so the two newest images of a page lie in
//! two blocks, which take turns: the older one is the page's [spare](super::spares). It lacks what
//! changed in the page since, and nothing else. So a write to the spare compares the sealed image
//! with the block's contents, which persistent memory reads cheaply, and writes only the lines that
//! differ. Afterwards the block has the bytes of the image, whatever it contained before.
//!
//! - I11: a line is left out only if it already has the bytes of the image, and those bytes are
//!   durable after the next sync. Contents that are unknown after a crash, after a failed write or
//!   after a failed sync make no spare, so such a block is written whole.
//!
//! Everything else is as for whole blocks, because a spare is a free block: a crash in the middle
//! leaves a free block with useless contents, and neither superblock leads to it. See
//! `docs/decisions/0038-write-changed-lines-to-the-older-block.md`.

use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use braid_io::WriteOp;

use super::{DataFile, MAP, block_of, u64_at};
use crate::page::PAGE_SIZE;
use crate::sync::Counter;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Most lines of a block that are written one by one: a block of which more than three quarters
/// changed is copied in one piece.
const LINES_MAX: usize = PAGE_SIZE / LINE * 3 / 4;

/// Whether a device is written in units so small that single lines can be written.
pub(super) fn suit(device: &dyn braid_io::Device) -> bool {
    device.block_size_of(super::FILE_NAME) <= LINE
}

/// A free block that was taken for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: u64,
    /// Whether the block was the spare of the same identity.
    pub(super) is_spare: bool,
}

/// Counts of written blocks.
#[derive(Debug, Default)]
pub(crate) struct WriteCounters {
    pub(crate) blocks: Counter,
    pub(crate) blocks_by_line: Counter,
    pub(crate) lines: Counter,
    pub(crate) bytes: Counter,
}

/// The parts of a block that change when `new` replaces `old`: whole lines. Returns `None` if so
/// much changes that the whole block is to be written.
fn changes(old: &[u8], new: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut lines = 0;
    for (line, (old, new)) in old.chunks(LINE).zip(new.chunks(LINE)).enumerate() {
        if old == new {
            continue;
        }
        lines += 1;
        let place = line * LINE..(line + 1) * LINE;
        match parts.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => parts.push(place),
        }
    }
    if braid_rt::mutant!("leave_out_a_line")
        && let Some(last) = parts.last_mut()
    {
        last.end -= LINE;
    }
    (lines <= LINES_MAX).then_some(parts)
}

impl DataFile {
    /// The parts of a sealed image to be written to a place.
    fn parts_to_write(&self, place: Place, image: &[u8]) -> Vec<Range<usize>> {
        let count = |counter: &Counter, n: usize| {
            counter.fetch_add(n as u64, Ordering::Relaxed);
        };
        let written = &self.written;
        count(&written.blocks, 1);
        let parts = if place.is_spare {
            self.changed_parts(place.block, image)
        } else {
            None
        };
        let Some(parts) = parts else {
            count(&written.bytes, PAGE_SIZE);
            return std::iter::once(0..PAGE_SIZE).collect();
        };
        braid_rt::coverage_point("store: lines of a block are written");
        let bytes = parts.iter().map(Range::len).sum::<usize>();
        count(&written.blocks_by_line, 1);
        count(&written.lines, bytes / LINE);
        count(&written.bytes, bytes);
        parts
    }

    /// Compares a block with an image; `None` if the block is to be written whole.
    fn changed_parts(&self, block: u64, image: &[u8]) -> Option<Vec<Range<usize>>> {
        let block = if braid_rt::mutant!("compare_with_the_newest_block") {
            let identity = u64_at(image, 8);
            match self.durable_address(identity % MAP) {
                0 => block,
                newest => block_of(newest),
            }
        } else {
            block
        };
        let mut old = self.buffer();
        if self.read_run(block, &mut old).is_err() {
            // The write may succeed nevertheless.
            braid_rt::coverage_point("store: a spare can't be read");
            return None;
        }
        let parts = changes(&old, image);
        if parts.is_none() {
            braid_rt::coverage_point("store: too many lines of a block changed");
        }
        parts
    }

    /// Writes sealed images, each to its place. Parts that follow each other in memory and in the
    /// file make one write.
    pub(super) fn write_images(&self, bufs: &[&[u8]], places: &[Place]) -> io::Result<()> {
        let mut ops: Vec<WriteOp<'_>> = Vec::with_capacity(bufs.len());
        let mut next = places;
        for buf in bufs {
            let (of_buf, rest) = next.split_at(buf.len() / PAGE_SIZE);
            next = rest;
            let mut parts: Vec<(Range<usize>, u64)> = Vec::with_capacity(of_buf.len());
            for (at, &place) in (0..).step_by(PAGE_SIZE).zip(of_buf) {
                for part in self.parts_to_write(place, &buf[at..at + PAGE_SIZE]) {
                    let offset = place.block * PAGE_SIZE as u64 + part.start as u64;
                    let part = at + part.start..at + part.end;
                    match parts.last_mut() {
                        Some((last, first))
                            if last.end == part.start && *first + last.len() as u64 == offset =>
                        {
                            last.end = part.end;
                        }
                        _ => parts.push((part, offset)),
                    }
                }
            }
            ops.extend(parts.into_iter().map(|(part, offset)| WriteOp {
                buf: &buf[part],
                offset,
            }));
        }
        // Release: pairs with readers in place, which must see that their page left this block before
        // they see the new bytes; see `buffer_pool::in_place`.
        fence(Ordering::Release);
        let bytes: usize = ops.iter().map(|op| op.buf.len()).sum();
        let unsynced = &self.unsynced.bytes;
        unsynced.fetch_add(bytes as u64, Ordering::Relaxed);
        match &ops[..] {
            // A plain write costs less setup than a batch of one.
            [op] if bufs.len() == 1 => self.file.write_at(&[op.buf], op.offset)?,
            ops => self.file.write_batch(ops)?,
        }
        if braid_rt::simulation::is_on() {
            self.check_written(bufs, places);
        }
        Ok(())
    }

    /// Checks that blocks written by line have the bytes of their images (I11).
    fn check_written(&self, bufs: &[&[u8]], places: &[Place]) {
        let mut found = self.buffer();
        for (image, place) in placed(bufs, places).filter(|(_, place)| place.is_spare) {
            if self.read_run(place.block, &mut found).is_ok() {
                let is_same = found[..] == *image;
                assert!(is_same, "block {} lacks lines of its image", place.block);
            }
        }
    }
}

/// Images with their places.
pub(super) fn placed<'a>(
    bufs: &'a [&'a [u8]],
    places: &'a [Place],
) -> impl Iterator<Item = (&'a [u8], Place)> {
    let images = bufs.iter().flat_map(|buf| buf.chunks_exact(PAGE_SIZE));
    images.zip(places.iter().copied())
}

#[cfg(all(test, not(loom)))]
mod tests;
