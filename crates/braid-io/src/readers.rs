//! The reader table: it connects readers in other processes with the writer of a database.
//!
//! Readers pin checkpoints in it, and the writer announces the durable sequence number. A pin in a
//! directory is a lock on one byte of a file, whose offset is the checkpoint's number. The kernel
//! releases the lock when the reader ends in any way. So a pin never outlives its reader, no
//! cleanup is needed, and a reader writes nothing. See
//! `docs/decisions/0022-readers-in-other-processes.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use braid_rt::Mutex;

/// Name of the file that holds the reader table of a directory.
pub const READERS_FILE_NAME: &str = "READERS";

/// Checkpoint numbers that can be pinned are below this.
const CHECKPOINTS_MAX: u64 = 1 << 61;

/// A writer's announcement to readers in other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Random number of the writer, which distinguishes it from earlier writers.
    pub writer: u64,
    /// Process ID of the writer.
    pub process: u32,
    /// Whether the writer has recovered the log. `durable` counts only after that.
    pub recovered: bool,
    /// Whether the writer announces a transaction before it acknowledges it. Otherwise the
    /// announcement may be late.
    pub exact: bool,
    /// Every transaction up to this sequence number is durable.
    pub durable: u64,
    /// Number of announcements so far that contain everything that was acknowledged when the writer
    /// began them. A reader that sees this number grow by two has waited for one that began after
    /// the reader did.
    pub rounds: u64,
}

/// The part of a checkpoint that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReaderNeeds {
    /// Blocks of the data file.
    Pages,
    /// The log from the checkpoint's position on.
    Log,
}

/// A guard in a [`ReaderTable`]: a reader's pin, or a writer's claim. Released when dropped.
pub trait ReaderGuard: Send + Sync + fmt::Debug {}

/// See the module's documentation.
pub trait ReaderTable: Send + Sync + fmt::Debug {
    /// Registers the caller as the writer.
    ///
    /// # Errors
    /// `WouldBlock` if there is one, or the medium's error.
    fn claim(&self) -> io::Result<Box<dyn ReaderGuard>>;

    /// Returns whether a writer is registered.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn is_claimed(&self) -> io::Result<bool>;

    /// Replaces the announcement. Not durable, and not meant to be.
    ///
    /// # Errors
    /// The medium's error.
    fn announce(&self, announcement: &Announcement) -> io::Result<()>;

    /// Returns the last announcement, if there is one.
    ///
    /// # Errors
    ///
    /// `InvalidData` if it cannot be decoded, or the medium's error.
    fn announcement(&self) -> io::Result<Option<Announcement>>;

    /// Pins a checkpoint. The writer honours the pin if the checkpoint is still the newest one
    /// after this method has returned.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no checkpoint has the number, or the medium's error.
    fn pin(&self, checkpoint: u64, needs: ReaderNeeds) -> io::Result<Box<dyn ReaderGuard>>;

    /// Returns whether a reader pins one of the checkpoints.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn is_pinned(&self, checkpoints: Range<u64>, needs: ReaderNeeds) -> io::Result<bool>;
}

fn checked(checkpoint: u64) -> io::Result<u64> {
    if checkpoint < CHECKPOINTS_MAX {
        Ok(checkpoint)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no checkpoint has this number",
        ))
    }
}

/// The reader table of a device in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryReaderTable(Arc<Mutex<MemoryState>>);

#[derive(Debug, Default)]
struct MemoryState {
    claims: usize,
    announcement: Option<Announcement>,
    /// Number of readers of each pin.
    pins: BTreeMap<(ReaderNeeds, u64), usize>,
}

#[derive(Debug)]
struct MemoryGuard {
    table: MemoryReaderTable,
    /// The pin; `None` for a claim.
    pin: Option<(ReaderNeeds, u64)>,
}

impl ReaderGuard for MemoryGuard {}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        let mut state = self.table.0.lock();
        let Some(pin) = self.pin else {
            state.claims -= 1;
            return;
        };
        let Some(count) = state.pins.get_mut(&pin) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            state.pins.remove(&pin);
        }
    }
}

impl ReaderTable for MemoryReaderTable {
    fn claim(&self) -> io::Result<Box<dyn ReaderGuard>> {
        // The caller that opens a device ensures that there is one writer, see `Device`.
        self.0.lock().claims += 1;
        let table = self.clone();
        Ok(Box::new(MemoryGuard { table, pin: None }))
    }

    fn is_claimed(&self) -> io::Result<bool> {
        Ok(self.0.lock().claims > 0)
    }

    fn announce(&self, announcement: &Announcement) -> io::Result<()> {
        self.0.lock().announcement = Some(*announcement);
        Ok(())
    }

    fn announcement(&self) -> io::Result<Option<Announcement>> {
        Ok(self.0.lock().announcement)
    }

    fn pin(&self, checkpoint: u64, needs: ReaderNeeds) -> io::Result<Box<dyn ReaderGuard>> {
        let pin = (needs, checked(checkpoint)?);
        *self.0.lock().pins.entry(pin).or_default() += 1;
        let (table, pin) = (self.clone(), Some(pin));
        Ok(Box::new(MemoryGuard { table, pin }))
    }

    fn is_pinned(&self, checkpoints: Range<u64>, needs: ReaderNeeds) -> io::Result<bool> {
        let range = (needs, checkpoints.start)..(needs, checkpoints.end.max(checkpoints.start));
        Ok(self.0.lock().pins.range(range).next().is_some())
    }
}

#[cfg(target_os = "linux")]
pub(crate) use self::locks::open;

/// Other systems have no locks that belong to an open file and can be tested without acquiring
/// them.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open(
    _: &std::path::Path,
    _: Option<u32>,
) -> io::Result<Option<Arc<dyn ReaderTable>>> {
    Ok(None)
}

#[cfg(target_os = "linux")]
mod locks {
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::directory::{named, open_regular};

    const MAGIC: &[u8; 8] = b"BRAIDRT\x01";
    const RECORD: usize = 64;
    /// Offset of the byte that the writer locks.
    const WRITER: u64 = 0;
    /// Offset of checkpoint 0's byte in each of the two regions.
    const PAGES: u64 = 1;
    const LOG: u64 = 1 << 62;

    /// Maximum number of reads of a record that is being replaced.
    const TRIES: u32 = 1000;

    /// A reader table in a file. Locks belong to open file descriptions, so each guard has one of
    /// its own: readers in the writer's process count like any other, and closing the file releases
    /// the lock.
    #[derive(Debug)]
    struct FileReaderTable {
        path: PathBuf,
        file: fs::File,
    }

    /// Opens the reader table in a file. If the file is missing, creates it with these permissions,
    /// or returns `None` if there are none.
    pub(crate) fn open(path: &Path, mode: Option<u32>) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        let file = match mode {
            None => open_file(path, false),
            Some(mode) => match open_file(path, true) {
                Ok(file) => check_own(path, file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    crate::create_file(path, mode)
                }
                Err(error) => Err(error),
            },
        };
        let path = path.to_owned();
        match file {
            Ok(file) => Ok(Some(Arc::new(FileReaderTable { path, file }))),
            Err(error) if mode.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_file(path: &Path, write: bool) -> io::Result<fs::File> {
        open_regular(fs::OpenOptions::new().read(true).write(write), path, false)
            .map_err(|error| named("open", path, error))
    }

    /// Refuses a file that is not a reader table: the writer would overwrite it. A new table that
    /// has no announcement yet is empty or zeroes, and has no other name.
    fn check_own(path: &Path, file: fs::File) -> io::Result<fs::File> {
        let found = file.metadata()?;
        let mut record = Vec::new();
        (&file).take(RECORD as u64 + 1).read_to_end(&mut record)?;
        let is_new = found.nlink() == 1 && record.iter().all(|byte| *byte == 0);
        if record.len() <= RECORD && (is_new || record.starts_with(MAGIC)) {
            return Ok(file);
        }
        let foreign = "it is not a reader table; move it away";
        let error = io::Error::new(io::ErrorKind::InvalidData, foreign);
        Err(named("use", path, error))
    }

    #[derive(Debug)]
    struct PinGuard {
        /// Closing it releases the lock. It is not unlocked explicitly: a forked child that drops
        /// its copy must not release the parent's pin.
        _file: fs::File,
    }

    #[derive(Debug)]
    struct ClaimGuard {
        file: fs::File,
        process: u32,
    }

    impl ReaderGuard for PinGuard {}
    impl ReaderGuard for ClaimGuard {}

    impl Drop for ClaimGuard {
        fn drop(&mut self) {
            // A forked child must not release its parent's claim.
            if std::process::id() != self.process {
                return;
            }
            // Closing would not suffice: a child process that is being started has the file open,
            // too. An error is harmless, because the system releases the lock with the last of
            // these files.
            let bytes = WRITER..WRITER + 1;
            let _ = lock(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes);
        }
    }

    /// Makes one `fcntl` call on a range of bytes. Returns the kind of the conflicting lock.
    fn lock(
        file: &fs::File,
        command: libc::c_int,
        kind: libc::c_int,
        bytes: Range<u64>,
    ) -> io::Result<libc::c_short> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let mut lock = libc::flock {
            l_type: short(kind),
            l_whence: short(libc::SEEK_SET),
            l_start: bytes.start.try_into().map_err(invalid)?,
            l_len: (bytes.end - bytes.start).try_into().map_err(invalid)?,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open as long as `file`, and the structure is valid during the
        // call.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(lock.l_type),
        }
    }

    /// Converts a constant of `fcntl` to the type of the structure's member; all of them fit.
    fn short(constant: libc::c_int) -> libc::c_short {
        constant.try_into().unwrap_or(libc::c_short::MAX)
    }

    fn byte(checkpoint: u64, needs: ReaderNeeds) -> u64 {
        match needs {
            ReaderNeeds::Pages => PAGES + checkpoint,
            ReaderNeeds::Log => LOG + checkpoint,
        }
    }

    impl FileReaderTable {
        /// Returns whether a lock of `kind` on the bytes would conflict with another one.
        fn is_locked(&self, kind: libc::c_int, bytes: Range<u64>) -> io::Result<bool> {
            if bytes.is_empty() {
                return Ok(false);
            }
            let found = lock(&self.file, libc::F_OFD_GETLK, kind, bytes)?;
            Ok(found != short(libc::F_UNLCK))
        }
    }

    impl ReaderTable for FileReaderTable {
        fn claim(&self) -> io::Result<Box<dyn ReaderGuard>> {
            let file = open_file(&self.path, true)?;
            lock(&file, libc::F_OFD_SETLK, libc::F_WRLCK, WRITER..WRITER + 1)?;
            let process = std::process::id();
            Ok(Box::new(ClaimGuard { file, process }))
        }

        fn is_claimed(&self) -> io::Result<bool> {
            self.is_locked(libc::F_RDLCK, WRITER..WRITER + 1)
        }

        fn announce(&self, announcement: &Announcement) -> io::Result<()> {
            self.file.write_all_at(&encode(announcement), 0)
        }

        fn announcement(&self) -> io::Result<Option<Announcement>> {
            let mut record = [0; RECORD];
            for _ in 0..TRIES {
                match self.file.read_exact_at(&mut record, 0) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                    read => read?,
                }
                if let Some(announcement) = decode(&record) {
                    return Ok(Some(announcement));
                }
                // A part is older than the rest: the record is being replaced.
                std::thread::yield_now();
            }
            Err(io::ErrorKind::InvalidData.into())
        }

        fn pin(&self, checkpoint: u64, needs: ReaderNeeds) -> io::Result<Box<dyn ReaderGuard>> {
            let at = byte(checked(checkpoint)?, needs);
            let file = open_file(&self.path, false)?;
            lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK, at..at + 1)?;
            Ok(Box::new(PinGuard { _file: file }))
        }

        fn is_pinned(&self, checkpoints: Range<u64>, needs: ReaderNeeds) -> io::Result<bool> {
            let end = checkpoints.end.min(CHECKPOINTS_MAX);
            let bytes = byte(checkpoints.start.min(end), needs)..byte(end, needs);
            self.is_locked(libc::F_WRLCK, bytes)
        }
    }

    fn encode(announcement: &Announcement) -> [u8; RECORD] {
        let flags = u32::from(announcement.recovered) | u32::from(announcement.exact) << 1;
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(MAGIC);
        record[8..16].copy_from_slice(&announcement.writer.to_le_bytes());
        record[16..24].copy_from_slice(&announcement.durable.to_le_bytes());
        record[24..28].copy_from_slice(&announcement.process.to_le_bytes());
        record[28..32].copy_from_slice(&flags.to_le_bytes());
        record[32..40].copy_from_slice(&announcement.rounds.to_le_bytes());
        let sum = checksum(&record);
        record[56..].copy_from_slice(&sum.to_le_bytes());
        record
    }

    fn decode(record: &[u8; RECORD]) -> Option<Announcement> {
        let word = |at: usize| record[at..at + 8].iter().rev();
        let word = |at: usize| word(at).fold(0, |word, &byte| word << 8 | u64::from(byte));
        if record[..8] != *MAGIC || word(56) != checksum(record) {
            return None;
        }
        let (process, flags) = (word(24), word(24) >> 32);
        Some(Announcement {
            writer: word(8),
            process: (process & 0xffff_ffff) as u32,
            recovered: flags & 1 != 0,
            exact: flags & 2 != 0,
            durable: word(16),
            rounds: word(32),
        })
    }

    /// Computes FNV-1a over all bytes except the sum: enough to detect a record that is being
    /// replaced.
    fn checksum(record: &[u8; RECORD]) -> u64 {
        record[..56]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |sum: u64, &byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn records_round_trip_and_torn_ones_are_reported() {
            let announcement = Announcement {
                writer: u64::MAX - 7,
                process: u32::MAX - 1,
                recovered: true,
                exact: false,
                durable: 1 << 40,
                rounds: 1 << 50,
            };
            let record = encode(&announcement);
            assert_eq!(decode(&record), Some(announcement));
            let other = encode(&Announcement {
                durable: (1 << 40) + 1,
                ..announcement
            });
            for cut in 1..RECORD {
                let mut torn = record;
                torn[..cut].copy_from_slice(&other[..cut]);
                assert!(
                    torn == record || torn == other || decode(&torn).is_none(),
                    "{cut}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_a_table(table: &dyn ReaderTable, reader: &dyn ReaderTable) {
        use ReaderNeeds::{Log, Pages};
        assert!(!reader.is_claimed().unwrap());
        let claim = table.claim().unwrap();
        assert!(reader.is_claimed().unwrap());
        drop(claim);
        assert!(!reader.is_claimed().unwrap());
        assert_eq!(reader.announcement().unwrap(), None);
        let announcement = Announcement {
            writer: 5,
            durable: 17,
            ..Announcement::default()
        };
        table.announce(&announcement).unwrap();
        assert_eq!(reader.announcement().unwrap(), Some(announcement));
        let first = reader.pin(7, Pages).unwrap();
        let second = reader.pin(7, Pages).unwrap();
        let log = reader.pin(0, Log).unwrap();
        let is_pinned = |range, needs| table.is_pinned(range, needs).unwrap();
        for (range, pages, log) in [
            (7..8, true, false),
            (0..7, false, true),
            (8..u64::MAX, false, false),
            (0..1, false, true),
            (3..3, false, false),
        ] {
            assert_eq!(is_pinned(range.clone(), Pages), pages, "{range:?}");
            assert_eq!(is_pinned(range.clone(), Log), log, "{range:?}");
        }
        drop(first);
        assert!(is_pinned(7..8, Pages));
        drop((second, log));
        assert!(!is_pinned(0..u64::MAX, Pages) && !is_pinned(0..u64::MAX, Log));
        assert!(reader.pin(u64::MAX / 2, Pages).is_err());
    }

    #[test]
    fn a_table_in_memory() {
        let table = MemoryReaderTable::default();
        use_a_table(&table, &table.clone());
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no locks of open files")]
    fn a_table_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(READERS_FILE_NAME);
        assert!(open(&path, None).unwrap().is_none());
        let table = open(&path, Some(0o600)).unwrap().unwrap();
        let reader = open(&path, None).unwrap().unwrap();
        use_a_table(&*table, &*reader);
        let claim = table.claim().unwrap();
        assert_eq!(table.claim().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(claim);
    }
}
