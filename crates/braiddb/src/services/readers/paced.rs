//! Reads that leave the device to the commits of the process that has the database open, or that have
//! a limit of bytes per second.
//!
//! A check of a database reads all of it. While a writer has the database open, the check reads in
//! pieces, and pauses after each piece during which the writer has announced commits, as the
//! writer's own background work does. With a rate, it pauses after each piece that was too fast.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use braid_io::{Announcement, Device, File, Layer, LayeredDevice, ReadOp, ReaderTable};
use braid_log::{CommitProgress, Pacer, SeqNo};
use braid_rt::Mutex;

use crate::services::rate::Rate;

/// Bytes that are read between two pauses.
const PIECE: usize = 256 << 10;

/// The layer over a device that is read in pieces. Clones share the pauses.
#[derive(Clone)]
pub(super) struct PacedReads(Arc<Shared>);

struct Shared {
    /// Where the writer announces its commits, if there is one.
    table: Option<Arc<dyn ReaderTable>>,
    pacer: Pacer,
    /// The limit that replaces pauses for commits.
    rate: Option<Rate>,
    /// Whether to read in pieces: there is a rate, or the newest piece ended with a pause.
    is_in_pieces: AtomicBool,
    piece: Mutex<Piece>,
}

/// The piece that is being read.
struct Piece {
    begun: Instant,
    bytes: usize,
    /// Bytes of all pieces.
    total: u64,
}

impl fmt::Debug for PacedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedReads")
            .field("pacer", &self.0.pacer)
            .finish_non_exhaustive()
    }
}

/// Returns the newest announcement in a table.
fn newest(table: Option<&Arc<dyn ReaderTable>>) -> Option<Announcement> {
    table.and_then(|table| table.announcement().ok()).flatten()
}

/// How far the writer's commits are, for background work: while its announcements are not exact,
/// there are commits that they do not contain.
pub(super) fn announced_progress(announced: Option<Announcement>) -> CommitProgress {
    let durable = announced.map_or(0, |announced| announced.durable);
    let is_late = announced.is_some_and(|announced| !announced.exact)
        && !braid_rt::mutant!("take_late_announcements_for_idle_writers");
    CommitProgress {
        assigned: SeqNo::new(durable + u64::from(is_late)),
        acknowledged: SeqNo::new(durable),
    }
}

impl PacedReads {
    /// Reads that have a limit of bytes per second, or pause for the commits of a writer that
    /// announces them in `table`.
    pub(super) fn new(table: Option<Arc<dyn ReaderTable>>, max_rate: Option<u64>) -> Self {
        let durable = newest(table.as_ref()).map_or(0, |announced| announced.durable);
        Self(Arc::new(Shared {
            table,
            pacer: Pacer::new(SeqNo::new(durable)),
            rate: max_rate.map(Rate::new),
            is_in_pieces: AtomicBool::new(max_rate.is_some()),
            piece: Mutex::new(Piece {
                begun: braid_rt::now(),
                bytes: 0,
                total: 0,
            }),
        }))
    }

    /// Wraps a device.
    pub(super) fn of(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(LayeredDevice::over(device, self.clone()))
    }

    /// Ends the piece if it is large enough, and pauses if it was too fast for the rate, or the
    /// writer has committed meanwhile. Other threads that read wait for the end of the pause.
    fn note(&self, bytes: usize) {
        let shared = &*self.0;
        let mut piece = shared.piece.lock();
        piece.bytes += bytes;
        piece.total += bytes as u64;
        if let Some(rate) = &shared.rate {
            if piece.bytes >= PIECE && !braid_rt::mutant!("verify_at_any_rate") {
                rate.pause(piece.total);
                piece.bytes = 0;
            }
            return;
        }
        if piece.bytes < PIECE || braid_rt::mutant!("verify_without_pauses") {
            return;
        }
        // Without an announcement, there is nothing to leave the device to.
        let pause = newest(shared.table.as_ref()).map_or_else(Default::default, |announced| {
            let progress = announced_progress(Some(announced));
            shared.pacer.pause_after(piece.begun, progress)
        });
        // Relaxed: a hint.
        let is_needed = !pause.is_zero();
        shared.is_in_pieces.store(is_needed, Ordering::Relaxed);
        if is_needed {
            braid_rt::sleep(pause);
        }
        piece.begun = braid_rt::now();
        piece.bytes = 0;
    }

    fn is_in_pieces(&self) -> bool {
        // Relaxed: a hint.
        self.0.is_in_pieces.load(Ordering::Relaxed)
    }
}

impl Layer for PacedReads {
    fn read_at(&self, file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if !self.is_in_pieces() {
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
        if !self.is_in_pieces() || bytes(ops) <= PIECE {
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
    use braid_io::{MemoryDevice, OpenMode};

    use super::*;

    /// Returns a device with a file of eight pieces, its reader table, and the layer over both.
    fn device() -> (Arc<MemoryDevice>, Arc<dyn ReaderTable>, PacedReads) {
        let device = Arc::new(MemoryDevice::new());
        let file = device.open("x", OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> = (0..8 * PIECE).map(|at| (at / 4096) as u8).collect();
        file.write_at(&[&bytes], 0).unwrap();
        let table = device.reader_table(true).unwrap().unwrap();
        let reads = PacedReads::new(Some(table.clone()), None);
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
        assert_eq!(
            [true, false, false, false].map(&mut read_with),
            [1, 2, 3, 4]
        );
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
        assert!(!reads.is_in_pieces());
        announce(&*table, 1);
        // As a whole: the writer was idle before.
        read();
        assert_eq!(reads.0.pacer.pauses(), 1);
        assert!(reads.is_in_pieces());
        // The first piece shows that it is idle again.
        read();
        assert_eq!(reads.0.pacer.pauses(), 1);
        assert!(!reads.is_in_pieces());
    }

    #[test]
    fn reads_with_a_rate_keep_it_and_do_not_pause_for_commits() {
        let (device, table, _) = device();
        let reads = PacedReads::new(Some(table.clone()), Some(64 << 20));
        let layered = LayeredDevice::over(device, reads.clone());
        let file = layered.open("x", OpenMode::Existing).unwrap();
        let begun = Instant::now();
        file.read_at(&mut vec![0; 4 * PIECE], 0).unwrap();
        announce(&*table, 1);
        let mut half = vec![0; 4 * PIECE];
        let buf = &mut half[..];
        let offset = 4 * PIECE as u64;
        file.read_batch(&mut [ReadOp { buf, offset }]).unwrap();
        assert_eq!(reads.0.pacer.pauses(), 0);
        // 2 MiB.
        assert!(begun.elapsed() >= std::time::Duration::from_secs(1) / 32);
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
