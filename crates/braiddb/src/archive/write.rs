//! Writing the archive while the database is in use.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_io::{Device, File, OpenMode};
use braid_log::{Follower, Log, LogError};
use braid_rt::Mutex;

use super::batch::{BATCH_HEADER, BLOCK, BatchHeader, FileHeader};
use super::read::{Archive, file_name, open_device};
use crate::backup::BackupError;
use crate::error::{Error, Result};
use crate::retention::Retention;

/// Transactions of about so many bytes make a batch.
const BATCH_BYTES: usize = 1 << 20;

/// A file that is longer is followed by a new one.
const FILE_BYTES: u64 = 64 << 20;

/// See the module's text.
pub(crate) struct Archiver {
    device: Arc<dyn Device>,
    /// Everything up to this number is durable in the archive, or was gone before it began.
    archived: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    follower: Option<Follower>,
    /// The file that is written, and where its next batch goes.
    file: Option<(Arc<dyn File>, u64)>,
    error: Option<Error>,
}

impl std::fmt::Debug for Archiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archiver")
            .field("archived", &self.archived())
            .finish_non_exhaustive()
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("writing the archive", error)
}

impl Archiver {
    /// The archive in a directory, which is created if it is missing, for a database whose log can be followed
    /// from number `oldest` on.
    pub(crate) fn open(path: &Path, log: &Log, oldest: u64) -> Result<Self> {
        braid_io::create_directory(path).map_err(failed)?;
        Self::open_on(open_device(path)?, &path.display().to_string(), log, oldest)
    }

    pub(crate) fn open_on(
        device: Arc<dyn Device>,
        name: &str,
        log: &Log,
        oldest: u64,
    ) -> Result<Self> {
        let archive = Archive::open_on(device.clone(), name)?;
        if archive.identity().is_some_and(|id| id != log.identity()) {
            return Err(BackupError::OtherArchive {
                archive: name.to_owned(),
            }
            .into());
        }
        let last = archive.last();
        if let Some(archived) = last.filter(|&last| last > log.horizon()) {
            return Err(BackupError::ArchiveAhead {
                archive: name.to_owned(),
                archived,
                database: log.horizon(),
            }
            .into());
        }
        Ok(Self {
            device,
            // What is missing in between is gone: a hole.
            archived: AtomicU64::new(match braid_rt::mutant!("archive_begins_anew") {
                true => log.horizon(),
                false => last.unwrap_or(0).max(oldest),
            }),
            state: Mutex::default(),
        })
    }

    /// Everything up to this number is durable in the archive.
    pub(crate) fn archived(&self) -> u64 {
        self.archived.load(Ordering::Acquire)
    }

    /// Why the last attempt to write failed.
    pub(crate) fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    /// Archives everything that is durable by now.
    pub(crate) fn run(&self, log: &Log, retention: &Retention) -> Result<()> {
        let mut state = self.state.lock();
        let outcome = self.archive(&mut state, log, retention);
        if outcome.is_err() {
            // What was written is unknown: the next attempt begins anew behind what is known to be durable.
            state.file = None;
            state.follower = None;
        }
        state.error = outcome.clone().err();
        outcome
    }

    fn archive(&self, state: &mut State, log: &Log, retention: &Retention) -> Result<()> {
        loop {
            // Before the look at what is durable: what was acknowledged by then is in this batch or before.
            let time = braid_rt::wall_clock();
            let after = self.archived();
            if after >= log.horizon() {
                return Ok(());
            }
            let mut batch = vec![0; BATCH_HEADER];
            let mut count = 0;
            let follower = match &mut state.follower {
                Some(follower) => follower,
                none => {
                    let start = retention.start_before(after).ok_or_else(|| {
                        Error::from(LogError::Released {
                            file: "the log that was to be archived".into(),
                        })
                    })?;
                    none.insert(log.follow(&start)?)
                }
            };
            let last = follower.read(BATCH_BYTES, &mut |piece| {
                if piece.number > after {
                    batch.extend(piece.number.to_le_bytes());
                    batch.extend((piece.payload.len() as u32).to_le_bytes());
                    batch.extend_from_slice(piece.payload);
                    count += 1;
                }
            })?;
            if last <= after {
                // On the way from the start to what is not archived.
                continue;
            }
            let header = BatchHeader {
                after,
                last,
                time,
                len: (batch.len() - BATCH_HEADER) as u32,
                count,
                crc: crc32c::crc32c(&batch[BATCH_HEADER..]),
                identity: log.identity(),
            };
            header.encode(&mut batch);
            if braid_rt::mutant!("archived_before_written") {
                self.archived.store(last, Ordering::Release);
            }
            self.write(state, header, &batch)?;
            // Release: who releases log for it finds it durable.
            self.archived.store(last, Ordering::Release);
        }
    }

    fn write(&self, state: &mut State, header: BatchHeader, batch: &[u8]) -> Result<()> {
        let (file, offset) = match state.file.take() {
            Some((file, offset)) if offset < FILE_BYTES => (file, offset),
            _ => self.begin_file(header)?,
        };
        let size = header.size() as usize;
        let mut buf = self.device.allocate(size);
        buf[..batch.len()].copy_from_slice(batch);
        file.write_at(&[&buf[..size]], offset).map_err(failed)?;
        if !braid_rt::mutant!("archive_unsynced") {
            file.sync().map_err(failed)?;
        }
        state.file = Some((file, offset + size as u64));
        Ok(())
    }

    fn begin_file(&self, first: BatchHeader) -> Result<(Arc<dyn File>, u64)> {
        let name = file_name(first.after);
        let file = match self.device.open(&name, OpenMode::CreateNew) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Of an attempt that failed: nothing in it was called archived.
                self.device.remove(&name).map_err(failed)?;
                self.device.open(&name, OpenMode::CreateNew)
            }
            opened => opened,
        };
        let file = file.map_err(failed)?;
        let mut block = self.device.allocate(BLOCK);
        let header = FileHeader {
            identity: first.identity,
            after: first.after,
            time: first.time,
        };
        header.encode(&mut block[..BLOCK]);
        file.write_at(&[&block[..BLOCK]], 0).map_err(failed)?;
        file.sync().map_err(failed)?;
        self.device.sync_directory().map_err(failed)?;
        Ok((file, BLOCK as u64))
    }
}
