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
use std::time::Instant;

use braid_store::{PAGE_SIZE, PinnedCheckpoint};

use crate::engine::spaces::SpaceUse;
use crate::error::{BackupError, Error, Result};
use crate::format::meta::Meta;
use crate::format::space::ListedSpace;
use crate::services::copies::check_outside;
use crate::services::instance::Instance;
use crate::services::rate::Rate;
use format::{Batches, Manifest, ManifestSpace, Parent};

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
    /// Bytes read from the data files.
    pub read_bytes: u64,
    /// Bytes written to the backup.
    pub written_bytes: u64,
    /// The file; `None` for a stream.
    pub path: Option<PathBuf>,
}

/// Checkpoint number in backups made by a read-only process: its checkpoints are in its own memory,
/// so their numbers, and those in their page maps, cannot be compared with the writer's.
const READERS_SEQUENCE: u64 = u64::MAX / 2;

/// Pages copied between two pauses for commits.
const PIECE_PAGES: usize = (256 << 10) / PAGE_SIZE;

/// Options of a backup, from [`Database::backup_options`](crate::Database::backup_options).
///
/// A backup contains all tablespaces. It goes to a file ([`Backup::to_path`]) or to a stream, such as a connection to another
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
    max_rate: Option<u64>,
}

impl std::fmt::Debug for Backup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup")
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

impl Backup<'_> {
    fn copy_pages(
        &self,
        pinned: &PinnedCheckpoint,
        changed: &[u64],
        (rate, is_local): (Option<&Rate>, bool),
        batches: &mut Batches<'_>,
        progress: &mut BackupProgress,
    ) -> Result<()> {
        for ids in changed.chunks(PIECE_PAGES) {
            let begun = braid_rt::now();
            let mut pages: Vec<_> = ids.iter().map(|&id| (id, pinned.buffer())).collect();
            pinned.read(&mut pages)?;
            // A stream has a device of its own, which may be slow.
            if !is_local {
                self.pause(begun);
            }
            batches.put(&pages)?;
            if is_local {
                self.pause(begun);
            }
            progress.pages += pages.len() as u64;
            if let Some(rate) = rate {
                rate.pause(progress.pages * PAGE_SIZE as u64);
            }
            if let Some(callback) = &self.progress {
                callback(*progress);
            }
        }
        Ok(())
    }
}

impl<'a> Backup<'a> {
    pub(crate) fn new(instance: &'a Instance) -> Self {
        Self {
            instance,
            parent: None,
            progress: None,
            max_rate: None,
        }
    }

    /// Copies only the pages that changed since an earlier full or incremental backup of this
    /// database. To restore the new backup, give it together with the earlier one and all that the
    /// earlier one builds on.
    pub fn incremental_from(mut self, parent: impl AsRef<Path>) -> Self {
        self.parent = Some(parent.as_ref().to_owned());
        self
    }

    /// Copies at most this many bytes per second. Otherwise a backup is as fast as the device
    /// allows, but leaves three quarters of the time to transactions while they commit; with a rate,
    /// it does not pause for them.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let mut connection: Vec<u8> = Vec::new();
    /// let backup = db.backup_options().max_rate(100 << 20);
    /// backup.to_writer(&mut connection)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_rate(mut self, bytes_per_second: u64) -> Self {
        self.max_rate = Some(bytes_per_second);
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
    /// here, the file exists, or the path is inside a directory of the database, and
    /// [`Error::Tablespace`](crate::Error::Tablespace) if the database was opened without a
    /// tablespace. At most a file `….partial` remains then.
    pub fn to_path(self, path: impl AsRef<Path>) -> Result<BackupReport> {
        self.instance.engine.check_open()?;
        self.check_complete()?;
        let files = &self.instance.files;
        check_outside(files.directory.as_deref(), path.as_ref())?;
        let log = files.log.as_ref().map(|log| log.directory.as_path());
        check_outside(log, path.as_ref())?;
        for space in self.instance.engine.spaces.all() {
            let mut places = space.places();
            places.try_for_each(|(_, place)| check_outside(Some(&place), path.as_ref()))?;
        }
        let parent = self.read_parent()?;
        let mut sink = sink::FileSink::create(path.as_ref(), self.instance.files.mode)?;
        let mut report = self.copy(parent, &mut sink, true)?;
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
        self.check_complete()?;
        let parent = self.read_parent()?;
        let report = self.copy(parent, writer, false)?;
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

    /// Refuses a database of which a tablespace is missing.
    fn check_complete(&self) -> Result<()> {
        self.instance
            .engine
            .spaces
            .absence(|_| true)
            .map_or(Ok(()), Err)
    }

    /// Writes a checkpoint, and pins it in each tablespace.
    fn pin(&self, is_full: bool) -> Result<(PinnedCheckpoint, Vec<SpaceCopy>)> {
        let engine = &self.instance.engine;
        loop {
            let copies = SpaceUse::all_of(engine);
            let _one_at_a_time = self.instance.hold_checkpoints();
            engine.check_open()?;
            if !braid_rt::mutant!("backup_of_the_last_checkpoint") || !is_full {
                self.instance.checkpoint_locked()?;
            }
            // The catalog of the checkpoint may have a tablespace that was created meanwhile.
            if copies.len() != engine.spaces.all().len() {
                continue;
            }
            let pin = |held: SpaceUse| SpaceCopy {
                pinned: held.space().store.pin_checkpoint(),
                entry: held.space().entry(),
                _held: held,
            };
            let spaces = copies.into_iter().map(pin).collect();
            return Ok((engine.store.pin_checkpoint(), spaces));
        }
    }

    /// Leaves the device to commits after a piece that began at `begun`.
    fn pause(&self, begun: Instant) {
        if self.max_rate.is_some() || braid_rt::mutant!("copy_without_pauses") {
            return;
        }
        match self.instance.view.get() {
            Some(view) => view.pause_background(begun),
            None => self.instance.engine.log.pause_background(begun),
        }
    }

    /// Writes the backup. `is_local` says that writing it uses a device of this machine.
    fn copy(
        &self,
        parent: Option<Manifest>,
        writer: &mut dyn Write,
        is_local: bool,
    ) -> Result<BackupReport> {
        let (pinned, spaces) = self.pin(parent.is_none())?;
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
        let before = parent.as_ref().map_or(&[][..], |parent| &parent.entries);
        let main = changed(&pinned, before);
        let of_space = |space: &SpaceCopy| {
            let parent = parent.as_ref();
            let before = parent.and_then(|parent| parent.space(space.entry.identity));
            changed(
                &space.pinned,
                before.map_or(&[][..], |before| &before.entries),
            )
        };
        let of_spaces: Vec<Vec<u64>> = spaces.iter().map(of_space).collect();
        let lens = of_spaces.iter().map(|changed| changed.len() as u64);
        let mut progress = BackupProgress {
            pages: 0,
            pages_total: main.len() as u64 + lens.sum::<u64>(),
        };
        let mut batches = Batches::begin(writer)?;
        let rate = self.max_rate.map(Rate::new);
        let rate = (rate.as_ref(), is_local);
        self.copy_pages(&pinned, &main, rate, &mut batches, &mut progress)?;
        for (space, changed) in spaces.iter().zip(&of_spaces) {
            batches.begin_space(&space.entry)?;
            self.copy_pages(&space.pinned, changed, rate, &mut batches, &mut progress)?;
        }
        let pages_of = |pinned: &PinnedCheckpoint| {
            let existing = pinned.entries().iter().filter(|entry| **entry != 0);
            existing.count() as u64
        };
        let further: u64 = spaces.iter().map(|space| pages_of(&space.pinned)).sum();
        let pages_total = pages_of(&pinned) + further;
        let copied = progress.pages;
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
            entries: pinned.entries().to_vec(),
            spaces: spaces.iter().map(SpaceCopy::describe).collect(),
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

/// Returns the pages of a checkpoint that changed since the page map `before`.
fn changed(pinned: &PinnedCheckpoint, before: &[u64]) -> Vec<u64> {
    let entries = pinned.entries();
    let before = |id: usize| before.get(id).copied().unwrap_or(0);
    (0..entries.len())
        .filter(|&id| entries[id] != 0 && entries[id] != before(id))
        .filter(|&id| !(id % 4 == 3 && braid_rt::mutant!("backup_forgets_pages")))
        .map(|id| id as u64)
        .collect()
}

/// The checkpoint of a tablespace other than the main one, pinned to be copied.
struct SpaceCopy {
    entry: ListedSpace,
    pinned: PinnedCheckpoint,
    _held: SpaceUse,
}

impl SpaceCopy {
    fn describe(&self) -> ManifestSpace {
        ManifestSpace {
            entry: self.entry.clone(),
            trees: self.pinned.trees().clone(),
            entries: self.pinned.entries().to_vec(),
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("cannot write the backup", error)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::SimDevice;

    use super::*;
    use crate::{Bytes, Database, Table};

    /// Returns a database without background threads, and a table that takes several pieces.
    fn database() -> (Database, Table<u64, Bytes>) {
        let builder = Database::builder().pool_bytes(8 << 20);
        let builder = builder.background_threads(false);
        let db = builder.open_on(Arc::new(SimDevice::new(1))).unwrap();
        let t = db.open_table("t").unwrap();
        db.transact(|tx| (0..2_000).try_for_each(|key| tx.insert(&t, &key, &[1; 1_000])))
            .unwrap();
        db.checkpoint().unwrap();
        (db, t)
    }

    fn pauses(db: &Database) -> u64 {
        db.engine().log.stats().background_pauses
    }

    #[test]
    fn a_backup_of_an_idle_database_does_not_pause() {
        let (db, _) = database();
        let (before, dir) = (pauses(&db), tempfile::tempdir().unwrap());
        let report = db.backup(dir.path().join("full")).unwrap();
        assert!(report.pages > 4 * PIECE_PAGES as u64);
        db.backup_options().to_writer(&mut Vec::new()).unwrap();
        assert_eq!(pauses(&db), before);
    }

    #[test]
    fn a_backup_pauses_after_each_piece_during_which_a_transaction_commits() {
        let (db, t) = database();
        let (before, dir) = (pauses(&db), tempfile::tempdir().unwrap());
        let pieces = std::cell::Cell::new(0);
        let commit = |_| {
            pieces.set(pieces.get() + 1);
            db.transact(|tx| tx.insert(&t, &1, &[2; 10])).unwrap();
        };
        let backup = || db.backup_options().progress(commit);
        backup().to_path(dir.path().join("full")).unwrap();
        // The first piece has no commit.
        assert_eq!(pauses(&db) - before, pieces.get() - 1);
        backup().to_writer(&mut Vec::new()).unwrap();
        assert_eq!(pauses(&db) - before, pieces.get() - 1);
    }

    #[test]
    fn a_backup_with_a_rate_keeps_it_and_does_not_pause_for_commits() {
        let (db, t) = database();
        let commit = |_| db.transact(|tx| tx.insert(&t, &1, &[2; 10])).unwrap();
        let (before, begun) = (pauses(&db), std::time::Instant::now());
        let rate = 40 << 20;
        let backup = db.backup_options().max_rate(rate).progress(commit);
        let report = backup.to_writer(&mut Vec::new()).unwrap();
        assert_eq!(pauses(&db), before);
        let least = report.read_bytes as f64 / rate as f64;
        assert!(begun.elapsed().as_secs_f64() >= least);
    }

    /// No thread flushes the commit, so it is outstanding until the backup has ended.
    #[test]
    fn a_backup_ends_although_a_commit_is_outstanding() {
        let (db, t) = database();
        let (before, dir) = (pauses(&db), tempfile::tempdir().unwrap());
        let pieces = std::cell::Cell::new(0);
        let commit = |_| {
            if pieces.replace(pieces.get() + 1) == 0 {
                let mut tx = db.begin();
                tx.insert(&t, &1, &[2; 10]).unwrap();
                drop(tx.commit_async().unwrap());
            }
        };
        let backup = db.backup_options().progress(commit);
        backup.to_path(dir.path().join("full")).unwrap();
        let log = &db.engine().log;
        assert!(log.acknowledged() < log.last_seqno());
        assert_eq!(pauses(&db) - before, pieces.get() - 1);
    }
}
