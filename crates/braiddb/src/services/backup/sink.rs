//! The file of a backup: it gets its name only when it is complete and durable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::failed;
use crate::error::{BackupError, Error, Result};

/// Number of bytes after which the file is made durable. Otherwise the last sync would write the
/// whole backup at once, and a commit next to it would wait behind all of it.
const SYNC_BYTES: usize = 8 << 20;

/// Number of bytes after which the system starts to write them to the medium. The pieces are few and
/// small at a time, so that a flush of the log, which the device serves after them, hardly waits.
const PIECE_BYTES: u64 = 256 << 10;

/// A backup's file; see the module documentation.
pub(super) struct FileSink {
    file: File,
    /// Bytes written since the last sync.
    unsynced: usize,
    /// Bytes written.
    len: u64,
    /// Ranges that the system writes to the medium: the newest one, at whose end those bytes begin
    /// that it has only in memory.
    in_flight: Range<u64>,
    partial: PathBuf,
    /// Path of the backup, unless a directory was given.
    path: Option<PathBuf>,
    directory: PathBuf,
}

impl FileSink {
    /// Creates a temporary file for a backup at `path`, or in `path`, if that is a directory.
    pub(super) fn create(path: &Path, mode: u32) -> Result<Self> {
        let opening = |error| {
            Error::io(
                format!("cannot create the backup {}", path.display()),
                error,
            )
        };
        let (directory, path) = match fs::metadata(path) {
            Ok(found) if found.is_dir() => (path.to_owned(), None),
            Ok(_) => return Err(in_use(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent,
                    _ => Path::new("."),
                };
                (directory.to_owned(), Some(path.to_owned()))
            }
            Err(error) => return Err(opening(error)),
        };
        let name = path.as_ref().and_then(|path| path.file_name());
        let mut name = name.map_or_else(|| "backup".into(), |name| name.to_owned());
        name.push(".partial");
        let partial = directory.join(name);
        // An interrupted backup left this file, which is useless.
        let file = braid_io::create_file(&partial, mode).map_err(opening)?;
        Ok(Self {
            file,
            unsynced: 0,
            len: 0,
            in_flight: 0..0,
            partial,
            path,
            directory,
        })
    }

    /// Has the system write a full piece to the medium, while the next one is prepared.
    fn write_back(&mut self) -> io::Result<()> {
        let begins = self.in_flight.end;
        if self.len - begins < PIECE_BYTES || braid_rt::mutant!("write_a_backup_at_its_syncs") {
            return Ok(());
        }
        braid_io::start_write_back(&self.file, begins..self.len)?;
        let before = std::mem::replace(&mut self.in_flight, begins..self.len);
        braid_io::finish_write_back(&self.file, before)
    }

    /// Makes the file durable and gives it its final name. Returns its path.
    pub(super) fn finish(self, seqno: u64) -> Result<PathBuf> {
        let name = || self.directory.join(format!("backup-{seqno:020}.braid"));
        let path = self.path.unwrap_or_else(name);
        self.file.sync_all().map_err(failed)?;
        // Never replace another backup. (The caller must not write two backups to one name
        // concurrently.)
        if path.try_exists().map_err(failed)? {
            let _ = fs::remove_file(&self.partial);
            return Err(in_use(&path));
        }
        fs::rename(&self.partial, &path).map_err(failed)?;
        let directory = File::open(&self.directory).map_err(failed)?;
        directory.sync_all().map_err(failed)?;
        Ok(path)
    }
}

fn in_use(path: &Path) -> Error {
    let found = path.file_name().unwrap_or_default().to_string_lossy();
    BackupError::DestinationInUse {
        path: path.to_owned(),
        found: found.into_owned(),
    }
    .into()
}

impl Write for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.unsynced += written;
        self.len += written as u64;
        self.write_back()?;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn little_of_a_backup_waits_for_its_last_sync() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = FileSink::create(&dir.path().join("full"), 0o600).unwrap();
        let piece = vec![7; 1 << 20];
        for _ in 0..20 {
            sink.write_all(&piece).unwrap();
            assert!(sink.unsynced < SYNC_BYTES);
        }
        assert_eq!(sink.unsynced, 4 << 20);
        let path = sink.finish(1).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), 20 << 20);
    }

    #[test]
    fn the_medium_receives_a_backup_piece_by_piece() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = FileSink::create(&dir.path().join("full"), 0o600).unwrap();
        for part in 1..100 {
            sink.write_all(&[7; 100_000]).unwrap();
            assert_eq!(sink.len, part * 100_000);
            assert!(sink.len - sink.in_flight.end < PIECE_BYTES);
            assert!(sink.in_flight.end - sink.in_flight.start < 2 * PIECE_BYTES);
        }
    }
}
