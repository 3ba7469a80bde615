//! Reads that leave the device to the commits of the process that has the database open.
//!
//! A check of a database reads all of it. While a writer has the database open, the check reads in
//! pieces, and pauses after each piece during which the writer has announced commits, as the
//! writer's own background work does.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use braid_io::{Device, File, Layer, LayeredDevice, ReadOp, ReaderTable};
use braid_log::{Pacer, SeqNo};
use braid_rt::Mutex;

use crate::services::readers::announced_progress;

/// Bytes that are read between two looks at the writer's commits.
const PIECE: usize = 256 << 10;

/// The layer over a device that is read in pieces. Clones share the pauses.
#[derive(Clone)]
pub(super) struct PacedReads(Arc<Shared>);

struct Shared {
    table: Arc<dyn ReaderTable>,
    pacer: Pacer,
    /// Whether the newest piece ended with a pause.
    is_device_needed: AtomicBool,
    piece: Mutex<Piece>,
}

/// The piece that is being read.
struct Piece {
    begun: Instant,
    bytes: usize,
}

impl fmt::Debug for PacedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedReads")
            .field("pacer", &self.0.pacer)
            .finish_non_exhaustive()
    }
}

/// Wraps a device whose writer announces its commits in `table`.
pub(super) fn paced(device: Arc<dyn Device>, table: Arc<dyn ReaderTable>) -> Arc<dyn Device> {
    Arc::new(LayeredDevice::over(device, PacedReads::new(table)))
}

impl PacedReads {
    fn new(table: Arc<dyn ReaderTable>) -> Self {
        let announced = table.announcement().ok().flatten();
        let durable = announced.map_or(0, |announced| announced.durable);
        Self(Arc::new(Shared {
            table,
            pacer: Pacer::new(SeqNo::new(durable)),
            is_device_needed: AtomicBool::new(false),
            piece: Mutex::new(Piece {
                begun: braid_rt::now(),
                bytes: 0,
            }),
        }))
    }

    /// Ends the piece if it is large enough, and pauses if the writer has committed meanwhile. Other
    /// threads that read wait for the end of the pause.
    fn note(&self, bytes: usize) {
        let shared = &*self.0;
        let mut piece = shared.piece.lock();
        piece.bytes += bytes;
        if piece.bytes < PIECE || braid_rt::mutant!("verify_without_pauses") {
            return;
        }
        // Without an announcement, there is nothing to leave the device to.
        let announced = shared.table.announcement().ok().flatten();
        let pause = announced.map_or_else(Default::default, |announced| {
            let progress = announced_progress(Some(announced));
            shared.pacer.pause_after(piece.begun, progress)
        });
        // Relaxed: a hint.
        let is_needed = !pause.is_zero();
        shared.is_device_needed.store(is_needed, Ordering::Relaxed);
        if is_needed {
            braid_rt::sleep(pause);
        }
        *piece = Piece {
            begun: braid_rt::now(),
            bytes: 0,
        };
    }

    fn is_device_needed(&self) -> bool {
        // Relaxed: a hint.
        self.0.is_device_needed.load(Ordering::Relaxed)
    }
}

impl Layer for PacedReads {
    fn read_at(&self, file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if !self.is_device_needed() {
            file.read_at(buf, offset)?;
            self.note(buf.len());
            return Ok(());
        }
        for (at, part) in (offset..).step_by(PIECE).zip(buf.chunks_mut(PIECE)) {
            file.read_at(part, at)?;
            self.note(part.len());
        }
        Ok(())
    }

    fn read_batch(&self, file: &dyn File, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        let bytes = |ops: &[ReadOp<'_>]| ops.iter().map(|op| op.buf.len()).sum::<usize>();
        if !self.is_device_needed() || bytes(ops) <= PIECE {
            file.read_batch(ops)?;
            self.note(bytes(ops));
            return Ok(());
        }
        ops.iter_mut()
            .try_for_each(|op| self.read_at(file, op.buf, op.offset))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use braid_io::{Announcement, MemoryDevice, OpenMode};

    use super::*;

    /// Returns a device with a file of eight pieces, its reader table, and the layer over both.
    fn device() -> (Arc<MemoryDevice>, Arc<dyn ReaderTable>, PacedReads) {
        let device = Arc::new(MemoryDevice::new());
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> = (0..8 * PIECE).map(|at| (at / 4096) as u8).collect();
        file.write_at(&[&bytes], 0).unwrap();
        let table = device.reader_table(true).unwrap().unwrap();
        let reads = PacedReads::new(table.clone());
        (device, table, reads)
    }

    fn announce(table: &dyn ReaderTable, durable: u64) {
        announce_as(table, durable, true);
    }

    fn announce_as(table: &dyn ReaderTable, durable: u64, exact: bool) {
        let announcement = Announcement {
            durable,
            exact,
            ..Announcement::default()
        };
        table.announce(&announcement).unwrap();
    }

    #[test]
    fn reads_pause_after_pieces_during_which_the_writer_commits() {
        let (device, table, reads) = device();
        let layered = LayeredDevice::over(device, reads.clone());
        let file = layered.open("x", OpenMode::Existing).unwrap();
        let mut page = vec![0; 8192];
        let mut read_piece = |piece: usize| {
            for at in (piece * PIECE..(piece + 1) * PIECE).step_by(page.len()) {
                file.read_at(&mut page, at as u64).unwrap();
                assert!(page[..4096].iter().all(|&byte| byte == (at / 4096) as u8));
            }
        };
        announce(&*table, 1);
        let pauses = || reads.0.pacer.pauses();
        read_piece(0);
        assert_eq!(pauses(), 1);
        (1..4).for_each(&mut read_piece);
        assert_eq!(pauses(), 1, "the writer is idle");
        for piece in 4..8 {
            announce(&*table, piece as u64);
            read_piece(piece);
            assert_eq!(pauses(), piece as u64 - 2);
        }
    }

    /// The writer announces its commits at intervals that are longer than a piece.
    #[test]
    fn reads_pause_while_announcements_are_not_exact() {
        let (device, table, reads) = device();
        let layered = LayeredDevice::over(device, reads.clone());
        let file = layered.open("x", OpenMode::Existing).unwrap();
        let mut piece = vec![0; PIECE];
        let mut read_with = |exact| {
            announce_as(&*table, 1, exact);
            file.read_at(&mut piece, 0).unwrap();
            reads.0.pacer.pauses()
        };
        assert_eq!([true, false, false, false].map(&mut read_with), [1, 2, 3, 4]);
        assert_eq!([true, true].map(&mut read_with), [4, 4]);
    }

    #[test]
    fn a_batch_is_read_in_pieces_while_the_writer_commits() {
        let (device, table, reads) = device();
        let layered = LayeredDevice::over(device, reads.clone());
        let file = layered.open("x", OpenMode::Existing).unwrap();
        let mut halves = [vec![0; 4 * PIECE], vec![0; 4 * PIECE]];
        let mut read = || {
            let offsets = [0, 4 * PIECE as u64];
            let bufs = halves.iter_mut().zip(offsets);
            let mut ops: Vec<_> = bufs.map(|(buf, offset)| ReadOp { buf, offset }).collect();
            file.read_batch(&mut ops).unwrap();
            assert!(
                (0..8 * PIECE)
                    .all(|at| { halves[at / (4 * PIECE)][at % (4 * PIECE)] == (at / 4096) as u8 })
            );
        };
        read();
        assert!(!reads.is_device_needed());
        announce(&*table, 1);
        // As a whole: the writer was idle before.
        read();
        assert_eq!(reads.0.pacer.pauses(), 1);
        assert!(reads.is_device_needed());
        // The first piece shows that it is idle again.
        read();
        assert_eq!(reads.0.pacer.pauses(), 1);
        assert!(!reads.is_device_needed());
    }

    #[test]
    fn reads_without_an_announcement_do_not_pause() {
        let (device, _, reads) = device();
        let layered = LayeredDevice::over(device, reads.clone());
        let file = layered.open("x", OpenMode::Existing).unwrap();
        file.read_at(&mut vec![0; 8 * PIECE], 0).unwrap();
        assert_eq!(reads.0.pacer.pauses(), 0);
    }
}
