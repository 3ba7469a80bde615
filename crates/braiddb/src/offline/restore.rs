//! Restoring a database from backups and an archive.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock, LOCK_FILE_NAME, OpenMode, READERS_FILE_NAME};
use braid_log::{CheckpointPosition, FlushMode, Log, LogOptions, LogRecord, SeqNo};
use braid_rt::to_usize;
use bytes::Bytes;

use braid_store::{PageId, Store, StoreOptions, StoreWriter};

use crate::error::{BackupError, Error, Result};
use crate::format::meta::Meta;
use crate::format::redo::{self, Redo};
use crate::options::{Builder, LogPlace, check_file_mode};
use crate::recovery::replay::{Replay, gathered_bytes_max};
use crate::recovery::{locking, log_directory, opening};
use crate::schema::entry::{CATALOG_ID, loaded_table, table_of_entry};
use crate::services::archive::{Archive, ArchivedTransaction, ON_DEVICE, Until};
use crate::services::backup::format::Manifest;
use crate::services::backup::source::{Reader, name_of, read_manifest};
use crate::services::backup::{BackupProgress, RESTORING_FILE};

/// Result of a restore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The database contains exactly the transactions up to this sequence number. New transactions
    /// get greater ones.
    pub seqno: u64,
    /// Last sequence number in the backups.
    pub backup_seqno: u64,
    /// Pages read from the backups.
    pub pages: u64,
    /// Transactions applied from the archive.
    pub transactions: u64,
}

/// Restores a full backup, then the incremental ones that build on it, oldest first, into a
/// directory that is empty or missing.
///
/// # Errors
/// As [`Restore::run`].
pub fn restore(backups: &[impl AsRef<Path>], path: impl AsRef<Path>) -> Result<RestoreReport> {
    let restore = backups.iter().fold(Restore::new(), Restore::backup);
    restore.run(path)
}

enum Source<'a> {
    File(PathBuf),
    Stream(Box<dyn Read + 'a>),
}

enum ArchiveSource {
    Open(Archive),
    Directory(PathBuf),
    Device(Arc<dyn Device>),
}

/// Options of a restore, which then performs it.
///
/// ```no_run
/// use std::time::{Duration, SystemTime};
///
/// # fn main() -> braid::Result<()> {
/// let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
/// let report = braid::backup::Restore::new()
///     .backup("/backups/sunday")
///     .backup("/backups/monday")
///     .archive("/backups/archive")
///     .until(braid::backup::Until::Time(an_hour_ago))
///     .run("/data/restored")?;
/// println!("restored up to transaction {}", report.seqno);
/// # Ok(())
/// # }
/// ```
///
/// A backup can also be read from a stream, and the database or the archive can be on another
/// [`Device`]. The result is a [`RestoreReport`]:
///
/// ```
/// use std::sync::Arc;
///
/// use braid::backup::Restore;
/// use braid::device::MemoryDevice;
///
/// # fn main() -> braid::Result<()> {
/// # let db = braid::Database::in_memory()?;
/// # let mut connection: Vec<u8> = Vec::new();
/// # db.backup_to(&mut connection)?;
/// # let connection = &connection[..];
/// let device = Arc::new(MemoryDevice::new());
/// let report = Restore::new()
///     .stream(connection)
///     .progress(|progress| println!("{} pages", progress.pages))
///     .run_on(device.clone())?;
/// assert_eq!(report.transactions, 0); // no archive was applied
/// let restored = braid::Database::builder().open_on(device)?;
/// # Ok(())
/// # }
/// ```
///
/// [`Restore::device`], [`Restore::file_mode`] and [`Restore::pool_bytes`] are as in
/// [`Builder`](crate::Builder); [`Restore::archive_on`] is the archive of
/// [`Builder::archive_on`](crate::Builder::archive_on).
#[must_use]
pub struct Restore<'a> {
    sources: Vec<Source<'a>>,
    archive: Option<ArchiveSource>,
    until: Until,
    progress: Option<Box<dyn Fn(BackupProgress) + 'a>>,
    /// How the directories are accessed, and where the log is.
    place: Builder,
    /// The log's directory, once it is open.
    log_place: Option<LogPlace>,
    file_mode: u32,
    pool_bytes: usize,
}

impl std::fmt::Debug for Restore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restore")
            .field("backups", &self.sources.len())
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl Default for Restore<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Restore<'a> {
    /// Creates options without any backup.
    pub fn new() -> Self {
        Self {
            sources: Vec::new(),
            archive: None,
            until: Until::End,
            progress: None,
            place: Builder::default(),
            log_place: None,
            file_mode: braid_io::DEFAULT_FILE_MODE,
            pool_bytes: 64 << 20,
        }
    }

    /// Adds a backup file: the full one first, then the incremental ones from the oldest to the
    /// newest.
    pub fn backup(mut self, path: impl AsRef<Path>) -> Self {
        self.sources.push(Source::File(path.as_ref().to_owned()));
        self
    }

    /// Adds a backup that is read from a stream, from its beginning to its end.
    pub fn stream(mut self, stream: impl Read + 'a) -> Self {
        self.sources.push(Source::Stream(Box::new(stream)));
        self
    }

    /// Adds the archive of the database's log, see [`crate::Builder::archive`]: the restore applies
    /// its transactions after the last backup.
    pub fn archive(mut self, path: impl AsRef<Path>) -> Self {
        self.archive = Some(ArchiveSource::Directory(path.as_ref().to_owned()));
        self
    }

    /// Adds an archive on a [`Device`].
    pub fn archive_on(mut self, device: Arc<dyn Device>) -> Self {
        self.archive = Some(ArchiveSource::Device(device));
        self
    }

    /// Sets the point to which the database is restored. Default: [`Until::End`].
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Calls `progress` during the operation.
    pub fn progress(mut self, progress: impl Fn(BackupProgress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Sets the memory for pages while the archive is applied, in bytes, at least 512 KiB. Default:
    /// 64 MiB.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// Sets the permissions of the database's files, see [`crate::Builder::file_mode`]. Default:
    /// `0o600`.
    pub fn file_mode(mut self, mode: u32) -> Self {
        self.file_mode = mode;
        self
    }

    /// Sets how the medium is accessed.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.place = self.place.device(device);
        self
    }

    /// Sets a separate directory for the database's log, which must be empty or missing, see
    /// [`crate::Builder::log_directory`]. Default: the log is in the database's directory, wherever
    /// the log of the original was.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # let db = braid::Database::in_memory()?;
    /// # let mut copy: Vec<u8> = Vec::new();
    /// # db.backup_to(&mut copy)?;
    /// use braid::backup::Restore;
    /// let restore = Restore::new().stream(&copy[..]).log_directory(path.join("log"));
    /// restore.run(path.join("data"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_directory(mut self, path: impl AsRef<Path>) -> Self {
        self.place = self.place.log_directory(path);
        self
    }

    /// Sets how the medium of [`Restore::log_directory`] is accessed, see
    /// [`crate::Builder::log_device`].
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # let db = braid::Database::in_memory()?;
    /// # let mut copy: Vec<u8> = Vec::new();
    /// # db.backup_to(&mut copy)?;
    /// use braid::backup::Restore;
    /// use braid::device::DeviceChoice;
    /// let restore = Restore::new().stream(&copy[..]).log_directory(path.join("log"));
    /// restore.log_device(DeviceChoice::File).run(path.join("data"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_device(mut self, device: DeviceChoice) -> Self {
        self.place = self.place.log_device(device);
        self
    }

    /// Restores into a directory, which must be empty or missing. Everything is durable when this
    /// returns. After a failure, the directory is not a database; empty it before the next attempt.
    ///
    /// The restored database is a new one: positions in change feeds, incremental backups and
    /// archives of the old database cannot be continued with it.
    ///
    /// # Errors
    /// [`Error::Backup`] if the backups, the archive, the requested point or the directory cannot
    /// be used; [`Error::InvalidOption`], [`Error::Corrupted`], [`Error::OutOfSpace`],
    /// [`Error::Io`], [`Error::Locked`].
    pub fn run(mut self, path: impl AsRef<Path>) -> Result<RestoreReport> {
        let path = path.as_ref();
        let opening = |error| opening(path, error);
        check_file_mode(self.file_mode)?;
        // Before any file is created: most errors are detectable at the ends of the input files.
        self.archive = self.open_archive()?.map(ArchiveSource::Open);
        self.check_files()?;
        let entries = braid_io::list_directory(path).map_err(opening)?;
        if let Some(found) = entries.into_iter().next() {
            return Err(BackupError::DestinationInUse {
                path: path.to_owned(),
                found,
            }
            .into());
        }
        braid_io::create_directory_with_mode(path, self.file_mode).map_err(opening)?;
        let _lock = DirectoryLock::acquire_with_mode(path, self.file_mode)
            .map_err(|error| locking(path, error))?;
        let device = braid_io::open_directory_with_mode(path, self.place.device, self.file_mode)
            .map_err(opening)?;
        let place = self.place.clone().file_mode(self.file_mode);
        let attached = log_directory::attach(path, device, &place)?;
        self.log_place = attached.place;
        let _log_lock = attached.lock;
        self.run_on(attached.device)
    }

    fn check_files(&self) -> Result<()> {
        let mut chain = Chain::default();
        for source in &self.sources {
            let Source::File(path) = source else {
                // A stream is checked while it is read.
                return Ok(());
            };
            chain.add(read_manifest(path)?, &name_of(path))?;
        }
        let (manifest, _) = chain.last.ok_or(BackupError::Nothing)?;
        let archive = match &self.archive {
            Some(ArchiveSource::Open(archive)) => Some(archive),
            _ => None,
        };
        target(archive, self.until, &manifest).map(drop)
    }

    fn open_archive(&mut self) -> Result<Option<Archive>> {
        Ok(match self.archive.take() {
            None => None,
            Some(ArchiveSource::Open(archive)) => Some(archive),
            Some(ArchiveSource::Device(device)) => Some(Archive::open_on(device, ON_DEVICE)?),
            Some(ArchiveSource::Directory(path)) => Some(Archive::open(&path)?),
        })
    }

    /// Restores to an empty [`Device`].
    ///
    /// # Errors
    /// As [`Restore::run`].
    pub fn run_on(mut self, device: Arc<dyn Device>) -> Result<RestoreReport> {
        let archive = self.open_archive()?;
        begin(&*device)?;
        let mut writer = StoreWriter::create(device.clone())?;
        let (manifest, pages) = self.write_pages(&mut writer)?;
        let (meta, start) = Meta::decode(&manifest.meta)?;
        let until = target(archive.as_ref(), self.until, &manifest)?;
        let exists = |id: PageId| {
            manifest
                .entries
                .get(to_usize(id))
                .is_some_and(|entry| *entry != 0)
        };
        let next_page = manifest.entries.len() as u64;
        writer.finish(
            next_page,
            manifest.trees.clone(),
            meta.encode(&start, None, 0),
            exists,
        )?;
        let store_options = StoreOptions::of_pool(self.pool_bytes);
        let (store, _) = Store::open(device.clone(), store_options)?;
        let transactions = match &archive {
            None => 0,
            Some(archive) => replay_archive(archive, &store, &manifest, until)?,
        };
        begin_log(&device, &store, &meta, until, self.log_place.as_ref())?;
        end(&*device)?;
        Ok(RestoreReport {
            seqno: until,
            backup_seqno: manifest.seqno,
            pages,
            transactions,
        })
    }

    /// Writes the pages of all backups. Returns the manifest of the last one, and the number of
    /// pages.
    fn write_pages(&mut self, writer: &mut StoreWriter) -> Result<(Manifest, u64)> {
        let mut chain = Chain::default();
        let mut pages = 0;
        // The map entry of each page's newest version. A hash map, because the page numbers are
        // untrusted input.
        let mut put: HashMap<PageId, u64> = HashMap::new();
        for (index, source) in std::mem::take(&mut self.sources).into_iter().enumerate() {
            let mut reader = match source {
                Source::File(path) => Reader::open(&path)?,
                Source::Stream(stream) => Reader::new(format!("stream {}", index + 1), stream)?,
            };
            let name = reader.name().to_owned();
            let mut ids: Vec<PageId> = Vec::new();
            while let Some(mut batch) = reader.pages()? {
                writer.put(&mut batch)?;
                ids.extend(batch.iter().map(|(id, _)| *id));
                pages += batch.len() as u64;
                if let Some(progress) = &self.progress {
                    progress(BackupProgress {
                        pages,
                        pages_total: 0,
                    });
                }
            }
            let manifest = reader.manifest()?;
            for id in ids {
                let entry = manifest.entries.get(to_usize(id));
                put.insert(id, entry.copied().unwrap_or(0));
            }
            chain.add(manifest, &name)?;
        }
        let Some((manifest, name)) = chain.last else {
            return Err(BackupError::Nothing.into());
        };
        let differs = |(id, wanted): (PageId, &u64)| *wanted != 0 && put.get(&id) != Some(wanted);
        if (0..).zip(&manifest.entries).any(differs) {
            return Err(BackupError::Damaged {
                backup: name,
                what: "it builds on pages that none of the backups has".into(),
            }
            .into());
        }
        Ok((manifest, pages))
    }
}

/// Replays the archived transactions up to `until`. Returns how many there were.
fn replay_archive(
    archive: &Archive,
    store: &Store,
    manifest: &Manifest,
    until: u64,
) -> Result<u64> {
    let replay = Replay::new(store, gathered_bytes_max(0));
    let mut transactions = 0;
    archive.read(
        manifest.seqno,
        until,
        &mut |transaction: ArchivedTransaction<'_>| {
            transactions += 1;
            check_loaded(manifest, transaction)?;
            replay.add(LogRecord {
                seqno: SeqNo::new(transaction.seqno),
                records: 1,
                payload: transaction.payload,
            })
        },
    )?;
    replay.finish(braid_rt::thread::parallelism())?;
    Ok(transactions)
}

/// Refuses a transaction that creates a bulk-loaded table, unless the backup has the table's tree.
fn check_loaded(manifest: &Manifest, transaction: ArchivedTransaction<'_>) -> Result<()> {
    for redo in redo::decode(transaction.payload) {
        let redo = redo?;
        let loaded = (redo.table == CATALOG_ID && redo.value.is_none())
            .then(|| loaded_table(redo.key))
            .flatten();
        let Some(id) = loaded.filter(|id| !manifest.trees.contains_key(id)) else {
            continue;
        };
        let named = |redo: Redo<'_>| {
            let value = Bytes::copy_from_slice(redo.value?);
            table_of_entry(redo.key, &value).filter(|(named, ..)| *named == id)
        };
        let mut all = redo::decode(transaction.payload).filter_map(|redo| named(redo.ok()?));
        return Err(BackupError::LoadedTable {
            table: all.next().map_or_else(String::new, |(_, name, _)| name),
            seqno: transaction.seqno,
        }
        .into());
    }
    Ok(())
}

/// A sequence of backups, each building on the previous one.
#[derive(Default)]
struct Chain {
    last: Option<(Manifest, String)>,
}

impl Chain {
    fn add(&mut self, manifest: Manifest, name: &str) -> Result<()> {
        let backup = || name.to_owned();
        match (&self.last, manifest.parent) {
            (None, None) => {}
            (None, Some(parent)) => {
                return Err(BackupError::NotFull {
                    backup: backup(),
                    parent: parent.seqno,
                }
                .into());
            }
            (Some((last, _)), _) if last.identity != manifest.identity => {
                return Err(BackupError::OtherDatabase { backup: backup() }.into());
            }
            (Some((last, _)), parent) => {
                if parent.is_none_or(|parent| parent.digest != last.digest()) {
                    return Err(BackupError::BrokenChain {
                        backup: backup(),
                        // A full backup needs no parent.
                        needs: parent.map_or(0, |parent| parent.seqno),
                        found: last.seqno,
                    }
                    .into());
                }
            }
        }
        self.last = Some((manifest, backup()));
        Ok(())
    }
}

/// Returns the sequence number to which a database is restored.
fn target(archive: Option<&Archive>, until: Until, manifest: &Manifest) -> Result<u64> {
    if let Some(archive) = archive {
        return archive.target(until, manifest.identity, manifest.seqno, manifest.time);
    }
    let asked = match until {
        Until::End => return Ok(manifest.seqno),
        Until::Seqno(seqno) if seqno == manifest.seqno => return Ok(seqno),
        Until::Seqno(seqno) => format!("sequence number {seqno}"),
        Until::Time(_) => "a time without an archive".to_owned(),
    };
    Err(BackupError::OutOfReach {
        asked,
        from: manifest.seqno,
        to: manifest.seqno,
    }
    .into())
}

fn begin(device: &dyn Device) -> Result<()> {
    let failed = |e| Error::io("cannot restore the database", e);
    let entries = device.list().map_err(failed)?;
    let is_other = |name: &str| name != LOCK_FILE_NAME && name != READERS_FILE_NAME;
    if let Some(entry) = entries.iter().find(|entry| is_other(&entry.name)) {
        return Err(BackupError::DestinationInUse {
            path: PathBuf::from("the device"),
            found: entry.name.clone(),
        }
        .into());
    }
    let marker = device.open(RESTORING_FILE, OpenMode::CreateNew);
    drop(marker.map_err(failed)?);
    device.sync_directory().map_err(failed)
}

fn end(device: &dyn Device) -> Result<()> {
    let failed = |e| Error::io("cannot restore the database", e);
    device.sync_directory().map_err(failed)?;
    device.remove(RESTORING_FILE).map_err(failed)?;
    device.sync_directory().map_err(failed)
}

/// Begins a log after `seqno` in its place, and writes a checkpoint whose log begins there.
fn begin_log(
    device: &Arc<dyn Device>,
    store: &Store,
    meta: &Meta,
    seqno: u64,
    place: Option<&LogPlace>,
) -> Result<()> {
    let identity = Log::new_identity();
    if let Some(place) = place {
        log_directory::record(&**device, identity, place)?;
    }
    // Nothing is written to this log: make it as small as its protocol allows.
    let slot_bytes = 8 << 10;
    let slots = 4 * u64::from(meta.strands) * slot_bytes as u64;
    let options = LogOptions {
        slot_bytes,
        segment_bytes: (2 * slots).max(256 << 10),
        protocol: meta.protocol,
        strands: meta.strands.into(),
        lanes: meta.lanes.into(),
        flush_mode: FlushMode::Callers,
        ..LogOptions::default()
    };
    let log = Log::create_as(device.clone(), options, SeqNo::new(seqno), identity)?;
    let start: CheckpointPosition = log.quiesce(|start| start);
    let mut checkpoint = store.begin_checkpoint(meta.encode(&start, None, 0))?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish()?;
    log.close()?;
    Ok(())
}
