//! Blocks of files: allocating and freeing them, whatever signals the process receives.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// The shortest piece that [`in_pieces`] asks for after interruptions.
const PIECE_MIN: u64 = 64 << 10;

/// Gives a file blocks for a range of bytes, and extends it to the range's end. Returns whether the
/// file system can do so.
///
/// # Errors
///
/// Those of the file system, for example that it is full.
pub fn allocate_blocks(file: &File, range: Range<u64>) -> io::Result<bool> {
    let mode = FallocateFlags::empty();
    in_pieces(range, |at, len| rustix::fs::fallocate(file, mode, at, len))
}

/// Returns the blocks of a range of bytes to the file system; the file keeps its length, and the range
/// reads as zeroes. Returns whether the file system can do so.
///
/// # Errors
///
/// Those of the file system.
pub fn free_blocks(file: &File, range: Range<u64>) -> io::Result<bool> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    in_pieces(range, |at, len| rustix::fs::fallocate(file, mode, at, len))
}

/// Calls `change` with the beginning and the length of a range of bytes, and of shorter pieces after a
/// signal has interrupted it. On Linux before 6.11, a file system in memory forgets all that an
/// interrupted call has allocated; so a process whose timer sends signals would else repeat a long call
/// without end.
fn in_pieces(
    range: Range<u64>,
    mut change: impl FnMut(u64, u64) -> Result<(), Errno>,
) -> io::Result<bool> {
    let mut at = range.start;
    let mut piece = range.end.saturating_sub(at);
    loop {
        let len = piece.min(range.end.saturating_sub(at));
        match change(at, len) {
            Ok(()) => at += len,
            Err(Errno::INTR) => piece = (piece / 2).max(PIECE_MIN),
            Err(Errno::OPNOTSUPP) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if at >= range.end {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_interrupted_change_goes_on_in_shorter_pieces() {
        let mut calls = Vec::new();
        let done = in_pieces(MIB..13 * MIB, |at, len| {
            calls.push((at / MIB, len / MIB));
            // A signal arrives in each call for more than 4 MiB.
            if len > 4 * MIB {
                Err(Errno::INTR)
            } else {
                Ok(())
            }
        });
        assert!(done.unwrap());
        let pieces = [(1, 12), (1, 6), (1, 3), (4, 3), (7, 3), (10, 3)];
        assert_eq!(calls, pieces);
    }

    #[test]
    fn the_shortest_pieces_are_repeated() {
        let mut interruptions = 100;
        let done = in_pieces(0..PIECE_MIN + 1, |_, _| {
            interruptions -= 1;
            if interruptions > 0 {
                Err(Errno::INTR)
            } else {
                Ok(())
            }
        });
        assert!(done.unwrap());
    }

    #[test]
    fn what_the_file_system_says_is_passed_on() {
        assert!(!in_pieces(0..MIB, |_, _| Err(Errno::OPNOTSUPP)).unwrap());
        let full = in_pieces(0..MIB, |_, _| Err(Errno::NOSPC)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such call")]
    fn blocks_come_and_go() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        if !allocate_blocks(&file, 0..MIB).unwrap() {
            return;
        }
        assert_eq!(file.metadata().unwrap().len(), MIB);
        assert!(file.metadata().unwrap().blocks() >= MIB / 512);
        if free_blocks(&file, 0..MIB).unwrap() {
            assert_eq!(file.metadata().unwrap().len(), MIB);
            assert!(file.metadata().unwrap().blocks() < MIB / 512);
        }
    }
}
