//! A file of a volume.

use std::ops::Range;
use std::sync::Arc;

use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use braid_rt::{Mutex, RwLock, to_usize};

use super::VolumeError;
use super::image::{Extent, Layout};
use super::medium::BLOCK;
use super::open::Inner;

/// The part of a file that its handles share.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u64,
    /// Held while the file gets units or valid bytes, or loses them.
    changing: Mutex<()>,
    /// Held for reading during I/O, so that no unit leaves the file meanwhile.
    pub(super) layout: RwLock<Layout>,
    /// Whether the file has lost its name.
    pub(super) removed: AtomicBool,
    /// Number of changes of the layout.
    pub(super) changes: AtomicU64,
    /// Changes that the journal has.
    pub(super) journaled: AtomicU64,
}

impl Node {
    pub(super) fn new(id: u64, layout: Layout) -> Self {
        Self {
            id,
            changing: Mutex::new(()),
            layout: RwLock::new(layout),
            removed: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            journaled: AtomicU64::new(0),
        }
    }

    /// Whether the journal lacks a change.
    fn is_dirty(&self) -> bool {
        // Acquire pairs with the release in `Volume::commit`: what the journal has is durable.
        self.journaled.load(Ordering::Acquire) != self.changes.load(Ordering::Acquire)
    }
}

/// A file of a [`Volume`](super::Volume): positioned reads and writes in multiples of 4,096 bytes.
///
/// The file exists until its last handle is dropped, even without a name.
#[derive(Clone, Debug)]
pub struct VolumeFile {
    pub(super) inner: Arc<Inner>,
    pub(super) node: Arc<Node>,
}

fn check_aligned(offset: u64, len: u64) -> Result<u64, VolumeError> {
    let end = offset.checked_add(len);
    match end.filter(|end| i64::try_from(*end).is_ok()) {
        Some(end) if offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) => Ok(end),
        Some(_) => Err(VolumeError::Invalid {
            what: format!("{len} bytes at offset {offset} are not blocks of {BLOCK} bytes"),
        }),
        None => Err(VolumeError::Invalid {
            what: format!("{len} bytes at offset {offset} end beyond 2^63"),
        }),
    }
}

/// The parts of a range of a file: their bytes in the range, and where they are on the drive; `None`
/// for a hole.
fn parts(
    layout: &Layout,
    unit: u64,
    data: u64,
    range: Range<u64>,
) -> Vec<(Range<u64>, Option<u64>)> {
    let mut parts = Vec::new();
    let mut start = 0;
    for extent in &layout.extents {
        let end = start + extent.units * unit;
        let (low, high) = (range.start.max(start), range.end.min(end));
        if low < high {
            let at = extent.at.map(|at| data + at * unit + (low - start));
            parts.push((low - range.start..high - range.start, at));
        }
        if end >= range.end {
            break;
        }
        start = end;
    }
    parts
}

impl VolumeFile {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.node.layout.read().len
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all buffers, each from an offset on.
    ///
    /// # Errors
    ///
    /// [`VolumeError::PastEnd`], [`VolumeError::Invalid`], or the drive's error.
    pub fn read_batch<'a>(
        &self,
        reads: impl IntoIterator<Item = (u64, &'a mut [u8])>,
    ) -> Result<(), VolumeError> {
        let (unit, data) = self.inner.geometry;
        let layout = self.node.layout.read();
        let mut all = Vec::new();
        for (offset, mut buffer) in reads {
            let end = check_aligned(offset, buffer.len() as u64)?;
            if end > layout.len {
                let len = layout.len;
                return Err(VolumeError::PastEnd { offset: end, len });
            }
            // V6: bytes that were not written read as zero.
            let valid = if braid_rt::mutant!("volume_read_invalid_bytes") {
                end
            } else {
                layout.valid.clamp(offset, end)
            };
            for (part, at) in parts(&layout, unit, data, offset..valid) {
                let (now, rest) = buffer.split_at_mut(to_usize(part.end - part.start));
                buffer = rest;
                match at {
                    Some(at) => all.push((at, now)),
                    None => now.fill(0),
                }
            }
            buffer.fill(0);
        }
        self.inner.medium.read_all(all)
    }

    /// Writes all buffers, in any order; volatile until [`VolumeFile::sync`].
    ///
    /// # Errors
    ///
    /// [`VolumeError::Full`], [`VolumeError::Invalid`], or the drive's error.
    pub fn write_batch(&self, writes: &[(u64, &[u8])]) -> Result<(), VolumeError> {
        self.write(writes, false)
    }

    /// Writes all buffers; durable when this returns `Ok`: with forced unit access if the drive has
    /// a volatile cache.
    ///
    /// # Errors
    ///
    /// As [`VolumeFile::write_batch`]; nothing is known about the bytes then (invariant I8).
    pub fn write_durable_batch(&self, writes: &[(u64, &[u8])]) -> Result<(), VolumeError> {
        self.write(writes, true)?;
        if self.node.is_dirty() {
            // V6: the bytes are durable only with the entry that says where they are.
            self.inner.commit()?;
        }
        self.inner.medium.check()
    }

    fn write(&self, writes: &[(u64, &[u8])], durable: bool) -> Result<(), VolumeError> {
        let mut end = 0;
        for (offset, buffer) in writes {
            end = end.max(check_aligned(*offset, buffer.len() as u64)?);
        }
        if self.write_in_place(writes, end, durable)? {
            return Ok(());
        }
        let _changing = self.node.changing.lock();
        self.provide(end)?;
        for (offset, buffer) in writes {
            self.fill_holes(*offset..offset + buffer.len() as u64)?;
        }
        self.zero_gaps(writes, end)?;
        let layout = self.node.layout.read();
        self.put(&layout, writes, durable)?;
        drop(layout);
        self.change(|layout| {
            layout.valid = layout.valid.max(end);
            Vec::new()
        });
        Ok(())
    }

    /// Writes if that changes no layout; returns whether it did.
    fn write_in_place(
        &self,
        writes: &[(u64, &[u8])],
        end: u64,
        durable: bool,
    ) -> Result<bool, VolumeError> {
        let layout = self.node.layout.read();
        if end > layout.valid {
            return Ok(false);
        }
        let (unit, data) = self.inner.geometry;
        let holes = layout.extents.iter().any(|extent| extent.at.is_none());
        if holes {
            let mut ranges = writes
                .iter()
                .map(|(at, bytes)| *at..at + bytes.len() as u64);
            if ranges.any(|range| {
                parts(&layout, unit, data, range)
                    .iter()
                    .any(|p| p.1.is_none())
            }) {
                return Ok(false);
            }
        }
        self.put(&layout, writes, durable)?;
        Ok(true)
    }

    /// Writes to units that the file has.
    fn put(
        &self,
        layout: &Layout,
        writes: &[(u64, &[u8])],
        durable: bool,
    ) -> Result<(), VolumeError> {
        let (unit, data) = self.inner.geometry;
        let mut all = Vec::with_capacity(writes.len());
        for (offset, bytes) in writes {
            let range = *offset..offset + bytes.len() as u64;
            for (part, at) in parts(layout, unit, data, range) {
                let at = at.expect("holes are filled before a write");
                all.push((at, &bytes[to_usize(part.start)..to_usize(part.end)]));
            }
        }
        self.inner.medium.write_all(&all, durable)
    }

    /// Changes the layout; the closure returns the extents that leave the file.
    fn change(&self, change: impl FnOnce(&mut Layout) -> Vec<Extent>) {
        let mut layout = self.node.layout.write();
        let removed = change(&mut layout);
        // Release pairs with the acquire in `is_dirty`.
        self.node.changes.fetch_add(1, Ordering::Release);
        self.inner.note_change(&self.node, removed);
    }

    /// Extends the file to `len` bytes if it is shorter, with units for them. The caller holds
    /// `changing`.
    fn provide(&self, len: u64) -> Result<(), VolumeError> {
        let (now, units, last) = {
            let layout = self.node.layout.read();
            (layout.len, layout.units(), layout.extents.last().copied())
        };
        if len <= now {
            return Ok(());
        }
        let needed = len.div_ceil(self.inner.geometry.0) - units;
        let near = last.and_then(|last| Some(last.at? + last.units));
        let new = self.inner.take_units(near, needed)?;
        self.change(|layout| {
            new.into_iter().for_each(|extent| layout.push(extent));
            // V1: extents cover the length, and nothing more.
            layout.len = len;
            Vec::new()
        });
        Ok(())
    }

    /// Gives units to the holes of a range, and fills them with zeros first. The caller holds
    /// `changing`.
    fn fill_holes(&self, range: Range<u64>) -> Result<(), VolumeError> {
        let (unit, data) = self.inner.geometry;
        let units = range.start / unit..range.end.div_ceil(unit);
        let layout = self.node.layout.read();
        let whole = units.start * unit..units.end * unit;
        let holes: Vec<Range<u64>> = parts(&layout, unit, data, whole)
            .into_iter()
            .filter(|(_, at)| at.is_none())
            .map(|(part, _)| units.start + part.start / unit..units.start + part.end / unit)
            .collect();
        drop(layout);
        for hole in holes {
            let new = self.inner.take_units(None, hole.end - hole.start)?;
            for extent in &new {
                let at = data + extent.at.expect("units of the drive") * unit;
                let zeroed = self.inner.medium.zero(at..at + extent.units * unit);
                if zeroed.is_err() {
                    self.inner.note_change(&self.node, new.clone());
                }
                zeroed?;
            }
            self.change(|layout| layout.replace(hole.start, &new));
        }
        Ok(())
    }

    /// Writes zeros to the bytes between the valid ones and `end` that the writes leave out. The
    /// caller holds `changing`, and the file has units for them.
    fn zero_gaps(&self, writes: &[(u64, &[u8])], end: u64) -> Result<(), VolumeError> {
        let layout = self.node.layout.read();
        let mut covered: Vec<Range<u64>> = writes
            .iter()
            .map(|(at, bytes)| *at..at + bytes.len() as u64)
            .collect();
        covered.sort_unstable_by_key(|range| range.start);
        let mut from = layout.valid;
        for range in covered.into_iter().chain(std::iter::once(end..end)) {
            if range.start > from {
                self.zero(&layout, from..range.start)?;
            }
            from = from.max(range.end);
        }
        Ok(())
    }

    /// Writes zeros to the units of a range; leaves out holes.
    fn zero(&self, layout: &Layout, range: Range<u64>) -> Result<(), VolumeError> {
        let (unit, data) = self.inner.geometry;
        for (part, at) in parts(layout, unit, data, range) {
            if let Some(at) = at {
                self.inner.medium.zero(at..at + (part.end - part.start))?;
            }
        }
        Ok(())
    }

    /// Truncates or extends the file; new bytes read as zero. Durable after [`VolumeFile::sync`].
    ///
    /// # Errors
    ///
    /// [`VolumeError::Full`] or [`VolumeError::Invalid`].
    pub fn set_len(&self, len: u64) -> Result<(), VolumeError> {
        check_aligned(len, 0)?;
        let _changing = self.node.changing.lock();
        self.provide(len)?;
        if len >= self.len() {
            return Ok(());
        }
        self.change(|layout| {
            layout.len = len;
            layout.valid = layout.valid.min(len);
            layout.truncate(len.div_ceil(self.inner.geometry.0))
        });
        Ok(())
    }

    /// Extends the file to `len` bytes if it is shorter.
    ///
    /// # Errors
    ///
    /// As [`VolumeFile::set_len`].
    pub fn reserve(&self, len: u64) -> Result<(), VolumeError> {
        check_aligned(len, 0)?;
        let _changing = self.node.changing.lock();
        self.provide(len)
    }

    /// Writes zeros over a range, and extends the file if needed.
    ///
    /// # Errors
    ///
    /// As [`VolumeFile::write_batch`].
    pub fn fill_zero(&self, range: Range<u64>) -> Result<(), VolumeError> {
        if range.is_empty() {
            return Ok(());
        }
        check_aligned(range.start, range.end - range.start)?;
        let _changing = self.node.changing.lock();
        self.provide(range.end)?;
        self.fill_holes(range.clone())?;
        let layout = self.node.layout.read();
        self.zero(&layout, range.start.min(layout.valid)..range.end)?;
        drop(layout);
        self.change(|layout| {
            layout.valid = layout.valid.max(range.end);
            Vec::new()
        });
        Ok(())
    }

    /// Returns the whole units of a range to the volume; the range reads as zero.
    ///
    /// # Errors
    ///
    /// The drive's error.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<(), VolumeError> {
        check_aligned(range.start, range.end.saturating_sub(range.start))?;
        let unit = self.inner.geometry.0;
        let _changing = self.node.changing.lock();
        let layout = self.node.layout.read();
        let end = range.end.min(layout.len);
        // The last unit goes as a whole if the range reaches the end of the file.
        let last = if end == layout.len {
            layout.units()
        } else {
            end / unit
        };
        let units = range.start.div_ceil(unit)..last;
        let (valid, whole) = (layout.valid, units.start * unit..units.end * unit);
        let cut = |part: Range<u64>| part.start.min(valid)..part.end.min(valid);
        if whole.start >= whole.end {
            self.zero(&layout, cut(range.start..end))?;
            return Ok(());
        }
        self.zero(&layout, cut(range.start..whole.start))?;
        self.zero(&layout, cut(whole.end..end))?;
        drop(layout);
        let hole = Extent {
            at: None,
            units: units.end - units.start,
        };
        self.change(|layout| layout.replace(units.start, &[hole]));
        Ok(())
    }

    /// Makes all completed writes and the length durable.
    ///
    /// # Errors
    ///
    /// The drive's error; nothing is acknowledged any more then (invariant I8).
    pub fn sync(&self) -> Result<(), VolumeError> {
        if self.node.is_dirty() {
            self.inner.commit()
        } else {
            self.inner.medium.flush()
        }
    }
}
