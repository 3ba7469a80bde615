//! How long the file is: it grows before its blocks are needed, and its free end is cut off.

use std::io;

use braid_rt::atomic::Ordering;

use super::{BLOCKS_MAX, DataFile};
use crate::error::StoreError;
use crate::page::PAGE_SIZE;

/// Bounds of the blocks by which the file is extended at once, an eighth of its blocks.
const GROWTH_MIN: u64 = 16;
const GROWTH_MAX: u64 = 8192;

/// The part of what a file keeps when its end is cut off, as a divisor, at which it grows again.
const KEPT_LOW: i64 = 16;

/// Blocks that are cut off at once. Where the file system discards what it frees, 16 MiB kept a
/// virtual disk busy for 3 ms, and 1 MiB for less than half a millisecond.
const CUT: u64 = 128;

/// Larger pieces than [`CUT`] are this part of what is to be cut off: the end of a very large file
/// would otherwise take as many calls as it has pieces.
const CUT_PART: u64 = 1 << 14;

/// Returns how many of `excess` blocks are cut off at once.
fn piece_of(excess: u64) -> u64 {
    CUT.max(excess / CUT_PART)
}

/// Whether an operation failed only for lack of space.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The number of blocks by which a file of `blocks` blocks is extended.
pub(super) fn growth(blocks: u64) -> u64 {
    (blocks / 8).clamp(GROWTH_MIN, GROWTH_MAX)
}

impl DataFile {
    /// Extends the file, so that spares stay with their owners. If the medium refuses, others take
    /// the spares until the next checkpoint.
    pub(super) fn grow_for_spares(&self, blocks: u64) {
        let _growing = self.growing.lock();
        let end = self.space.lock().end();
        let end = end.max(self.extent.load(Ordering::Relaxed)) + blocks;
        let len = (end + growth(end)).min(BLOCKS_MAX);
        let extended = self.extend(len, false);
        if extended.is_err() || self.extent.load(Ordering::Relaxed) < end.min(BLOCKS_MAX) {
            braid_rt::coverage_point("store: the data file can't grow for spares");
            self.cannot_grow.store(true, Ordering::Relaxed);
        }
    }

    /// Lets the file grow for the sake of spares again.
    pub(crate) fn allow_growth(&self) {
        self.cannot_grow.store(false, Ordering::Relaxed);
    }

    /// Makes the file longer than these blocks need, because the file system serializes writes that
    /// extend a file. [`DataFile::trim`] releases unused blocks.
    pub(super) fn make_room(&self, blocks: impl Iterator<Item = u64>) {
        let end = blocks.max().map_or(0, |last| last + 1);
        // Relaxed: a thread that reads an old number checks again.
        if end <= self.extent.load(Ordering::Relaxed) {
            return;
        }
        let _growing = self.growing.lock();
        if end > self.extent.load(Ordering::Relaxed) {
            // Without room, the write itself reveals whether there is space.
            let _ = self.extend((end + growth(end)).min(BLOCKS_MAX), false);
        }
    }

    /// Whether there is room to purge a key's obsolete record from its tree. Extends the file if
    /// necessary.
    pub(crate) fn has_room_to_purge(&self, key: &[u8]) -> bool {
        let floor = self.room.for_purge(key.len());
        self.room.surplus() >= floor || self.grow(floor).is_ok()
    }

    /// Extends the file until the surplus is not below a floor. Ignores errors of the medium other
    /// than a lack of space: the next write reports them.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`].
    pub(crate) fn grow(&self, floor: i64) -> Result<(), StoreError> {
        let _growing = self.growing.lock();
        let short = floor - self.room.surplus();
        if short <= 0 {
            return Ok(());
        }
        let end = self.space.lock().end();
        let extent = self.extent.load(Ordering::Relaxed);
        let least = (extent + short.unsigned_abs()).max(end);
        if least > BLOCKS_MAX {
            return Err(self.longest());
        }
        let extended = match self.extend((least + growth(end)).min(BLOCKS_MAX), true) {
            Err(error) if is_full(&error) => self.extend(least, true),
            extended => extended,
        };
        match extended {
            Err(error) if is_full(&error) => {
                braid_rt::coverage_point("store: the data file can't grow");
                let missing = least.saturating_sub(extent) * PAGE_SIZE as u64;
                let name = self.name();
                let what = format!("{missing} more bytes of {name}, for the pages to be changed");
                Err(StoreError::OutOfSpace { what })
            }
            _ => Ok(()),
        }
    }

    /// Extends the file to at least `blocks` blocks; with `must`, by writing zeroes if the medium
    /// can't allocate space. The caller holds `growing`.
    pub(super) fn extend(&self, blocks: u64, must: bool) -> io::Result<()> {
        let len = blocks * PAGE_SIZE as u64;
        match self.file.reserve(len) {
            Err(error) if is_full(&error) || !must => return Err(error),
            _ => {}
        }
        if self.file.len()? < len {
            if !must {
                return Ok(());
            }
            // No thread takes blocks from the end on meanwhile; blocks before it may be being
            // written.
            let space = self.space.lock();
            let from = self.file.len()?.max(space.end() * PAGE_SIZE as u64);
            if from < len {
                self.file.fill_zero(from..len)?;
            }
        }
        let before = self.extent.fetch_max(blocks, Ordering::Relaxed);
        self.room.add(blocks.saturating_sub(before));
        self.note_growth(blocks);
        Ok(())
    }

    /// Takes `blocks` blocks from the surplus, for pages without promised room. The caller returns
    /// them to the surplus once it has allocated the blocks.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`].
    pub(crate) fn claim(&self, blocks: u64) -> Result<(), StoreError> {
        if self.room.take(blocks) >= 0 {
            return Ok(());
        }
        self.grow(0).inspect_err(|_| self.room.add(blocks))
    }

    /// Gives the free tail up, except the blocks that keep the surplus at a floor.
    /// [`DataFile::cut_off_some`] cuts it off. If the floor is not negative, commits do not wait for the
    /// file to be extended afterwards.
    pub(crate) fn trim_to(&self, floor: i64) {
        let _growing = self.growing.lock();
        while self.holds.space.of(self.space.lock()).trim_some() {}
        let mut space = self.holds.space.of(self.space.lock());
        let extent = self.extent.load(Ordering::Relaxed);
        let spare = self.room.take_down_to(floor);
        let blocks = space.trim().max(extent.saturating_sub(spare));
        // Under the lock, and before the file is cut without it: a thread that takes a block from
        // the tail afterwards finds that the file is too short, and waits for `growing`.
        if blocks < extent {
            self.extent.store(blocks, Ordering::Relaxed);
        }
        // The blocks that remain are room for the next transactions: the file should grow again
        // only after they have used it.
        let low = self.room.low();
        self.room.set_low(low.min(floor / KEPT_LOW).max(0));
        self.room.add(spare - extent.saturating_sub(blocks));
    }

    /// Gives up the unneeded tail of a file with `pages` pages. Keeps room for `expected` changed
    /// pages, within a limit: otherwise, the next transactions would have to extend the file again.
    pub(crate) fn trim(&self, pages: u64, expected: u64) {
        self.trim_to(if !self.room.has_writers() {
            self.room.lowest(pages)
        } else if braid_rt::mutant!("cut_off_what_commits_need") {
            0
        } else {
            // A quarter more, so that transactions like the last ones do not make the file grow.
            let expected = self.ahead.expect(expected);
            (expected + expected / 4).min(GROWTH_MAX).cast_signed()
        });
    }

    /// Shortens the file by a piece, towards the blocks that it is known to have or that are in use.
    /// Returns whether there may be more: file systems take long for large pieces, commits need the
    /// device, and others may wait to extend the file. A file that stays longer does no harm.
    pub(crate) fn cut_off_some(&self) -> bool {
        let _growing = self.growing.lock();
        let extent = self.extent.load(Ordering::Relaxed);
        // No block after the end is in use. A thread that takes one afterwards waits for `growing`.
        let least = self.space.lock().end().max(extent);
        let len = self.len_blocks().unwrap_or(least);
        if len <= least {
            return false;
        }
        braid_rt::coverage_point("store: the data file's end is cut off");
        let piece = if braid_rt::mutant!("cut_off_the_end_at_once") {
            len
        } else {
            piece_of(len - least)
        };
        let to = least.max(len.saturating_sub(piece));
        self.file.set_len(to * PAGE_SIZE as u64).is_ok() && to > least
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_any_file_is_cut_off_in_bounded_steps() {
        let pieces = |excess: u64| {
            let next = |left: &u64| left.checked_sub(piece_of(*left));
            std::iter::successors(Some(excess), next)
                .filter(|left| *left > 0)
                .count()
        };
        let mebibyte = (1 << 20) / PAGE_SIZE as u64;
        assert_eq!(pieces(10 * mebibyte + 1), 11);
        assert!((16_000..17_000).contains(&pieces(mebibyte << 14)));
        assert!(pieces(mebibyte << 30) < 300_000, "a pebibyte");
    }
}
