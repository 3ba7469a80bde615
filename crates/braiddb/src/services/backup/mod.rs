//! Backups of a database that is in use, and restoring them.
//!
//! A checkpoint is a complete state between two transactions, and its blocks do not change before
//! the next one is published. So a backup writes a checkpoint, pins it, and copies its pages while
//! transactions continue. A backup needs no log: its state is that of exactly one sequence number.
//!
//! The page map records the checkpoint in which each page was last written. An incremental backup
//! copies the pages whose entries differ from those in its parent's manifest, and reads no others.
//!
//! Format and use: `docs/backup.md`.

pub(crate) mod format;
mod sink;
pub(crate) mod source;

pub use source::{BackupInfo, info};

/// Marker of an incomplete restore into the directory.
pub(crate) const RESTORING_FILE: &str = "RESTORING";

pub(crate) use format::seal;

use std::io::Write;
use std::path::{Path, PathBuf};

use braid_store::PAGE_SIZE;

use crate::error::{BackupError, Error, Result};
use crate::format::meta::Meta;
use crate::services::copies::check_outside;
use crate::services::instance::Instance;
use format::{BATCH_PAGES, Batches, Manifest, Parent};

/// Progress of a [`Backup`] or a [`Restore`](crate::backup::Restore).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Pages copied so far.
    pub pages: u64,
    /// Total number of pages to copy, as far as known.
    pub pages_total: u64,
}

/// Contents and cost of a backup.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackupReport {
    /// The backup contains exactly the transactions up to this sequence number.
    pub seqno: u64,
    /// Pages of the database.
    pub pages_total: u64,
    /// Pages copied: all of them, or those that changed since the parent.
    pub pages: u64,
    /// Bytes read from the data file.
    pub read_bytes: u64,
    /// Bytes written to the backup.
    pub written_bytes: u64,
    /// The file; `None` for a stream.
    pub path: Option<PathBuf>,
}

/// Checkpoint number in backups made by a read-only process: its checkpoints are in its own memory,
/// so their numbers, and those in their page maps, cannot be compared with the writer's.
const READERS_SEQUENCE: u64 = u64::MAX / 2;

/// Options of a backup, from [`Database::backup_options`](crate::Database::backup_options).
///
/// A backup goes to a file ([`Backup::to_path`]) or to a stream, such as a connection to another
/// machine. The callback gets a [`BackupProgress`]; the result is a [`BackupReport`].
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let mut connection: Vec<u8> = Vec::new();
/// let report = db
///     .backup_options()
///     .progress(|progress| println!("{} of {} pages", progress.pages, progress.pages_total))
///     .to_writer(&mut connection)?;
/// println!("{} bytes, up to transaction {}", report.written_bytes, report.seqno);
/// # assert_eq!(report.written_bytes, connection.len() as u64);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Backup<'a> {
    instance: &'a Instance,
    parent: Option<PathBuf>,
    progress: Option<Box<dyn Fn(BackupProgress) + 'a>>,
}

impl std::fmt::Debug for Backup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup")
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

impl<'a> Backup<'a> {
    pub(crate) fn new(instance: &'a Instance) -> Self {
        Self {
            instance,
            parent: None,
            progress: None,
        }
    }

    /// Copies only the pages that changed since an earlier full or incremental backup of this
    /// database. To restore the new backup, give it together with the earlier one and all that the
    /// earlier one builds on.
    pub fn incremental_from(mut self, parent: impl AsRef<Path>) -> Self {
        self.parent = Some(parent.as_ref().to_owned());
        self
    }

    /// Calls `progress` during the operation.
    pub fn progress(mut self, progress: impl Fn(BackupProgress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Writes the backup to a file, which must not exist, or into an existing directory, under the
    /// name `backup-NUMBER.braid`.
    ///
    /// Transactions continue during the backup; they wait only microseconds, while a checkpoint
    /// begins. The data file may grow, because the blocks being copied are not reused. The file
    /// gets its name once it is complete and durable.
    ///
    /// # Errors
    /// Those of a checkpoint, [`Error::Corrupted`](crate::Error::Corrupted) if a page is damaged,
    /// [`Error::OutOfSpace`](crate::Error::OutOfSpace) or [`Error::Io`](crate::Error::Io) from the
    /// backup's medium, and [`Error::Backup`](crate::Error::Backup) if the parent cannot be used
    /// here, the file exists, or the path is inside the database's directory. At most a file
    /// `….partial` remains then.
    pub fn to_path(self, path: impl AsRef<Path>) -> Result<BackupReport> {
        self.instance.engine.check_open()?;
        self.check_supported()?;
        let files = &self.instance.files;
        check_outside(files.directory.as_deref(), path.as_ref())?;
        let log = files.log.as_ref().map(|log| log.directory.as_path());
        check_outside(log, path.as_ref())?;
        let parent = self.read_parent()?;
        let mut sink = sink::FileSink::create(path.as_ref(), self.instance.files.mode)?;
        let mut report = self.copy(parent, &mut sink)?;
        report.path = Some(sink.finish(report.seqno)?);
        self.note(&report);
        Ok(report)
    }

    /// Writes the backup to a stream, in the same format as to a file. A restore detects a
    /// truncated stream.
    ///
    /// # Errors
    /// As [`Backup::to_path`], and those of the writer as [`Error::Io`](crate::Error::Io).
    pub fn to_writer(self, writer: &mut dyn Write) -> Result<BackupReport> {
        self.instance.engine.check_open()?;
        self.check_supported()?;
        let parent = self.read_parent()?;
        let report = self.copy(parent, writer)?;
        writer.flush().map_err(failed)?;
        self.note(&report);
        Ok(report)
    }

    /// Records the backup, so that an archive knows what it continues. An error does not affect the
    /// backup; the next write of the archive may then request another backup.
    fn note(&self, report: &BackupReport) {
        if !self.instance.engine.is_read_only() {
            let _ = self.instance.copies.note_backup(report.seqno);
        }
    }

    fn read_parent(&self) -> Result<Option<Manifest>> {
        let Some(path) = &self.parent else {
            return Ok(None);
        };
        let manifest = source::read_manifest(path)?;
        if self.instance.view.get().is_some() || manifest.sequence == READERS_SEQUENCE {
            return Err(BackupError::MadeByReader.into());
        }
        let identity = self.instance.engine.log.identity();
        if manifest.identity != identity {
            return Err(BackupError::OtherDatabase {
                backup: source::name_of(path),
            }
            .into());
        }
        Ok(Some(manifest))
    }

    fn check_supported(&self) -> Result<()> {
        let advice = "close the database and copy all of its directories, or export its tables";
        self.instance.check_has_no_spaces("make a backup", advice)
    }

    fn copy(&self, parent: Option<Manifest>, writer: &mut dyn Write) -> Result<BackupReport> {
        let pinned = {
            let _one_at_a_time = self.instance.hold_checkpoints();
            self.instance.engine.check_open()?;
            if !braid_rt::mutant!("backup_of_the_last_checkpoint") || parent.is_some() {
                self.instance.checkpoint_locked()?;
            }
            self.instance.engine.store.pin_checkpoint()
        };
        if let Some(parent) = &parent
            && parent.sequence > pinned.sequence()
        {
            return Err(BackupError::NewerParent {
                parent: parent.seqno,
            }
            .into());
        }
        let sequence = match self.instance.view.get() {
            Some(_) => READERS_SEQUENCE,
            None => pinned.sequence(),
        };
        let (_, start) = Meta::decode(pinned.meta())?;
        let before = |id: usize| {
            let entries = parent.as_ref().map_or(&[][..], |parent| &parent.entries);
            entries.get(id).copied().unwrap_or(0)
        };
        let entries = pinned.entries();
        let changed: Vec<u64> = (0..entries.len())
            .filter(|&id| entries[id] != 0 && entries[id] != before(id))
            .filter(|&id| !(id % 4 == 3 && braid_rt::mutant!("backup_forgets_pages")))
            .map(|id| id as u64)
            .collect();
        let pages_total = entries.iter().filter(|entry| **entry != 0).count() as u64;
        let mut batches = Batches::begin(writer)?;
        let mut copied = 0;
        for ids in changed.chunks(BATCH_PAGES) {
            let mut pages: Vec<_> = ids.iter().map(|&id| (id, pinned.buffer())).collect();
            pinned.read(&mut pages)?;
            batches.put(&pages)?;
            copied += pages.len() as u64;
            if let Some(progress) = &self.progress {
                progress(BackupProgress {
                    pages: copied,
                    pages_total: changed.len() as u64,
                });
            }
        }
        let written_bytes = batches.finish(Manifest {
            identity: self.instance.engine.log.identity(),
            seqno: start.seqno.get(),
            sequence,
            time: braid_rt::wall_clock(),
            parent: parent.as_ref().map(|parent| Parent {
                digest: parent.digest(),
                seqno: parent.seqno,
            }),
            pages: copied,
            pages_digest: 0,
            meta: pinned.meta().to_vec(),
            trees: pinned.trees().clone(),
            entries: entries.to_vec(),
        })?;
        Ok(BackupReport {
            seqno: start.seqno.get(),
            pages_total,
            pages: copied,
            read_bytes: copied * PAGE_SIZE as u64,
            written_bytes,
            path: None,
        })
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("cannot write the backup", error)
}
