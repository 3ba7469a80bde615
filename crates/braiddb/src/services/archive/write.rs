//! Writing the archive while the database is in use.

use std::path::Path;
use std::sync::Arc;

use braid_io::{Device, DirectoryLock, File, Gate, LockError, OpenMode};
use braid_log::{Log, LogError, SeqNo, TailReader};
use braid_rt::atomic::{AtomicU64, Ordering};
use braid_rt::{Mutex, narrow, to_usize};

use super::batch::{BATCH_HEADER, BLOCK, BatchHeader, FileHeader};
use super::owner::Owner;
use super::read::{Archive, Hole, file_name, open_device};
use crate::error::{BackupError, Error, Result};
use crate::services::copies::Copies;
use crate::services::retention::Retention;

/// Approximate number of bytes of transactions in a batch.
const BATCH_BYTES: usize = 1 << 20;

/// Length in bytes after which the archive continues in a new file.
const FILE_BYTES: u64 = 64 << 20;

/// Writer of an archive; see the module documentation of `archive`.
pub(crate) struct Archiver {
    device: Arc<dyn Device>,
    name: String,
    /// Everything after `begins` up to this sequence number is durable in the archive.
    archived: AtomicU64,
    /// The archive is complete after this sequence number: only a backup that reaches it can be
    /// continued from the archive.
    begins: u64,
    /// The transactions missing before `begins`.
    missing: Option<Hole>,
    state: Mutex<State>,
    /// Excludes other processes from the archive's directory.
    lock: Mutex<Option<DirectoryLock>>,
}

#[derive(Default)]
struct State {
    /// Whether the archive records where its last part begins.
    marked: bool,
    /// The number that identifies this open of the database to the archive; `owns` tells whether
    /// the archive has recorded it.
    instance: Option<u128>,
    owns: bool,
    tail: Option<TailReader>,
    /// The file being written, and the offset of its next batch.
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
    Error::io("cannot write the archive", error)
}

impl Archiver {
    /// Opens the archive in a directory, which is created if it is missing, for a database whose
    /// log can be read from sequence number `oldest` on.
    pub(crate) fn open(
        gate: &Gate,
        path: &Path,
        mode: u32,
        log: &Log,
        oldest: u64,
        copies: &Copies,
    ) -> Result<Self> {
        let opening = |e| Error::io(format!("cannot open archive {}", path.display()), e);
        braid_io::create_directory_with_mode(path, mode).map_err(opening)?;
        let lock = DirectoryLock::acquire_with_mode(path, mode).map_err(|error| match error {
            LockError::Held => Error::locked(path),
            LockError::Io(error) => opening(error),
        })?;
        let name = path.display().to_string();
        let device = gate.device(open_device(path, mode)?);
        let mut archiver = Self::open_on(device, &name, log, oldest, copies)?;
        archiver.lock = Mutex::new(Some(lock));
        Ok(archiver)
    }

    pub(crate) fn open_on(
        device: Arc<dyn Device>,
        name: &str,
        log: &Log,
        oldest: u64,
        copies: &Copies,
    ) -> Result<Self> {
        let archive = Archive::open_on(device.clone(), name)?;
        if let Some(owner) = archive.owner() {
            owner.check(name, log.identity(), copies.instance())?;
        }
        if archive.identity().is_some_and(|id| id != log.identity()) {
            return Err(BackupError::OtherArchive {
                archive: name.to_owned(),
            }
            .into());
        }
        let (last, database) = (archive.last(), log.durable_seqno().get());
        if let Some(archived) = last.filter(|&last| last > database) {
            return Err(BackupError::ArchiveAhead {
                archive: name.to_owned(),
                archived,
                database,
            }
            .into());
        }
        archive.settle()?;
        // The transactions in between are lost: a hole.
        let archived = if braid_rt::mutant!("archive_starts_over") {
            database
        } else {
            last.unwrap_or(0).max(oldest)
        };
        let (begins, missing) = archive.begins(oldest);
        Ok(Self {
            device,
            name: name.to_owned(),
            archived: AtomicU64::new(archived),
            begins,
            missing,
            state: Mutex::new(State {
                marked: archive.mentions(archived),
                ..State::default()
            }),
            lock: Mutex::default(),
        })
    }

    /// Releases the lock on the archive's directory.
    pub(crate) fn release(&self) {
        *self.lock.lock() = None;
    }

    /// Returns the sequence number up to which everything is durable in the archive.
    pub(crate) fn archived(&self) -> u64 {
        self.archived.load(Ordering::Acquire)
    }

    /// Returns why the last attempt to write failed.
    pub(crate) fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    /// Archives everything that is currently durable.
    ///
    /// # Errors
    /// Those of the medium, and [`BackupError::ArchiveGap`] if everything available was
    /// archived, but no backup reaches the beginning of the archive.
    pub(crate) fn run(&self, log: &Log, retention: &Retention, copies: &Copies) -> Result<()> {
        let mut state = self.state.lock();
        let outcome = self.archive(&mut state, log, retention, copies);
        if outcome.is_err() {
            // The outcome of the write is unknown: the next attempt starts again after the last
            // durable batch.
            state.file = None;
            state.tail = None;
        }
        let outcome = outcome.and_then(|()| self.check_backup(copies));
        state.error = outcome.clone().err();
        outcome
    }

    /// Checks that a backup reaches the beginning of the archive. A new database needs no backup.
    fn check_backup(&self, copies: &Copies) -> Result<()> {
        let backup = copies.backup();
        let Some(Hole { from, to, since }) = self.missing.filter(|_| backup < self.begins) else {
            return Ok(());
        };
        if braid_rt::mutant!("archive_begins_anywhere") {
            return Ok(());
        }
        Err(BackupError::ArchiveGap {
            archive: self.name.clone(),
            from: from.max(backup + 1),
            to,
            since,
            archived: self.archived(),
        }
        .into())
    }

    /// Ensures that this open of the database, and no copy of it, owns the archive. Call before
    /// each write: a copy may have become the owner since.
    fn own(&self, state: &mut State, log: &Log, copies: &Copies) -> Result<()> {
        let (device, name) = (&*self.device, self.name.as_str());
        let found = Owner::read(device, name)?;
        let identity = log.identity();
        let instance = *state.instance.get_or_insert_with(|| {
            let half = || u128::from(braid_rt::entropy());
            half() << 64 | half()
        });
        let ours = |instances| Owner {
            identity,
            instances,
            archived: found.map_or(0, |found| found.archived),
        };
        if state.owns {
            let lost = ours([0; 2]);
            return found.unwrap_or(lost).check(name, identity, instance);
        }
        let before = copies.instance();
        if let Some(found) = found {
            found.check(name, identity, before)?;
        }
        // After a crash before the database records its new number, the archive still accepts the
        // old one.
        ours([before, instance]).write(device, name)?;
        copies.note_archive(instance, self.archived())?;
        ours([instance; 2]).write(device, name)?;
        state.owns = true;
        Ok(())
    }

    /// Records how far the archive is, in the archive and in the database, when the database is
    /// closed.
    pub(crate) fn note(&self, log: &Log, copies: &Copies) -> Result<()> {
        let mut state = self.state.lock();
        let archived = self.archived();
        let Some(instance) = state.instance.filter(|_| state.owns) else {
            return Ok(());
        };
        self.own(&mut state, log, copies)?;
        let owner = Owner {
            identity: log.identity(),
            instances: [instance; 2],
            archived,
        };
        owner.write(&*self.device, &self.name)?;
        copies.note_archive(instance, archived)
    }

    fn archive(
        &self,
        state: &mut State,
        log: &Log,
        retention: &Retention,
        copies: &Copies,
    ) -> Result<()> {
        if !state.marked {
            self.own(state, log, copies)?;
            let header = FileHeader {
                identity: log.identity(),
                after: self.archived(),
                time: braid_rt::wall_clock(),
            };
            state.file = Some(self.begin_file(header)?);
            state.marked = true;
        }
        loop {
            // Read the clock before the durable seqno: everything acknowledged by then is in this
            // batch or before.
            let time = braid_rt::wall_clock();
            let after = self.archived();
            if after >= log.durable_seqno().get() {
                return Ok(());
            }
            let mut batch = vec![0; BATCH_HEADER];
            let mut count = 0;
            let tail = match &mut state.tail {
                Some(tail) => tail,
                none => {
                    let start = retention.position_before(SeqNo::new(after));
                    let start = start.ok_or_else(|| {
                        Error::from(LogError::Released {
                            file: "needed for the archive".into(),
                        })
                    })?;
                    none.insert(log.tail(&start)?)
                }
            };
            let last = tail.read(BATCH_BYTES, &mut |log_record| {
                let seqno = log_record.seqno.get();
                if seqno > after {
                    batch.extend(seqno.to_le_bytes());
                    batch.extend(narrow::<u32>(log_record.payload.len()).to_le_bytes());
                    batch.extend_from_slice(log_record.payload);
                    count += 1;
                }
            })?;
            let last = last.get();
            if last <= after {
                // Between the checkpoint position and the first transaction to archive.
                continue;
            }
            let header = BatchHeader {
                after,
                last,
                time,
                len: u32::try_from(batch.len() - BATCH_HEADER)
                    .expect("a batch has at most BATCH_BYTES and one transaction of 1 GiB"),
                count,
                crc: crc32c::crc32c(&batch[BATCH_HEADER..]),
                identity: log.identity(),
            };
            header.encode(&mut batch);
            if braid_rt::mutant!("archived_before_written") {
                self.archived.store(last, Ordering::Release);
            }
            self.own(state, log, copies)?;
            self.write(state, header, &batch)?;
            // Release: a thread that releases log because of this value finds the batch durable.
            self.archived.store(last, Ordering::Release);
        }
    }

    fn write(&self, state: &mut State, header: BatchHeader, batch: &[u8]) -> Result<()> {
        let (file, offset) = match state.file.take() {
            Some((file, offset)) if offset < FILE_BYTES => (file, offset),
            _ => self.begin_file(FileHeader {
                identity: header.identity,
                after: header.after,
                time: header.time,
            })?,
        };
        let size = to_usize(header.size());
        let mut buf = self.device.allocate(size);
        buf[..batch.len()].copy_from_slice(batch);
        file.write_at(&[&buf[..size]], offset).map_err(failed)?;
        if !braid_rt::mutant!("archive_unsynced") {
            file.sync().map_err(failed)?;
        }
        state.file = Some((file, offset + size as u64));
        Ok(())
    }

    fn begin_file(&self, header: FileHeader) -> Result<(Arc<dyn File>, u64)> {
        let name = file_name(header.after);
        let file = match self.device.open(&name, OpenMode::CreateNew) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // The file is from a failed attempt: nothing in it was reported as archived.
                self.device.remove(&name).map_err(failed)?;
                self.device.open(&name, OpenMode::CreateNew)
            }
            opened => opened,
        };
        let file = file.map_err(failed)?;
        let mut block = self.device.allocate(BLOCK);
        header.encode(&mut block[..BLOCK]);
        file.write_at(&[&block[..BLOCK]], 0).map_err(failed)?;
        file.sync().map_err(failed)?;
        self.device.sync_directory().map_err(failed)?;
        Ok((file, BLOCK as u64))
    }
}
