//! Restoring a database from backups and an archive.

mod archived;
mod chain;
mod place;
mod written;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock};

use self::archived::replay_archive;
use self::chain::{Chain, target};
use self::place::{begin, begin_log, check_empty, end, first_stamp};
use self::written::{Pages, Restored, Written};
use crate::error::{BackupError, Error, Result};
use crate::format::meta::Meta;
use crate::options::{Builder, LogPlace, SpacePlace, SpacePlaces, check_file_mode};
use crate::recovery::tablespaces::{RestoredSpace, attach_restored, record_restored};
use crate::recovery::{locking, log_directory, opening};
use crate::services::archive::{Archive, ON_DEVICE, Until};
use crate::services::backup::BackupProgress;
use crate::services::backup::format::{Manifest, ManifestSpace};
use crate::services::backup::source::{Part, Reader, name_of, read_manifest};

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
    /// Places of the tablespaces, by name.
    spaces: SpacePlaces,
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
            spaces: SpacePlaces::default(),
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

    /// Sets the directory for a tablespace, which must be empty or missing. Each tablespace of the
    /// last backup needs a place; [`BackupInfo::tablespaces`](crate::backup::BackupInfo::tablespaces)
    /// names them.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(path.join("db"))?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # let options = TablespaceOptions::in_directory(path.join("disk")).pool_bytes(1 << 20);
    /// # db.create_tablespace("disk", options)?;
    /// use braid::backup::Restore;
    /// db.backup(path.join("monday"))?;
    /// let restore = Restore::new().backup(path.join("monday"));
    /// let restore = restore.tablespace_directory("disk", path.join("restored-disk"));
    /// restore.run(path.join("restored"))?;
    /// let restored = braid::Database::open(path.join("restored"))?;
    /// assert_eq!(restored.tablespace_names(), ["disk"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.spaces.add(name, place);
        self
    }

    /// Sets a directory for the log of a tablespace that has one of its own, which must be empty or missing;
    /// see [`TablespaceOptions::log_directory`](crate::tablespace::TablespaceOptions::log_directory). Default:
    /// the log is with the tablespace's data file, wherever the log of the original was.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open(path.join("db"))?;
    /// # use braid::tablespace::TablespaceOptions;
    /// # let options = TablespaceOptions::in_directory(path.join("disk")).pool_bytes(1 << 20);
    /// # db.create_tablespace("disk", options.log_directory(path.join("fast")))?;
    /// use braid::backup::Restore;
    /// db.backup(path.join("monday"))?;
    /// let restore = Restore::new().backup(path.join("monday"));
    /// let restore = restore.tablespace_directory("disk", path.join("restored-disk"));
    /// let restore = restore.tablespace_log_directory("disk", path.join("restored-fast"));
    /// restore.run(path.join("restored"))?;
    /// let restored = braid::Database::open(path.join("restored"))?;
    /// assert!(restored.stats().tablespaces[0].log_directory.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_log_directory(mut self, name: &str, path: impl AsRef<Path>) -> Self {
        let place = SpacePlace::Directory(path.as_ref().to_owned());
        self.spaces.add_log(name, place);
        self
    }

    /// Sets the device for a tablespace, which must be empty; see [`Restore::tablespace_directory`].
    /// Every opening of the restored database needs
    /// [`Builder::tablespace_device`](crate::Builder::tablespace_device).
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # use std::sync::Arc;
    /// # use braid::tablespace::TablespaceOptions;
    /// use braid::backup::Restore;
    /// use braid::device::MemoryDevice;
    /// # let db = braid::Database::builder().pool_bytes(1 << 20).open_on(Arc::new(MemoryDevice::new()))?;
    /// # let options = TablespaceOptions::on_device(Arc::new(MemoryDevice::new()));
    /// # db.create_tablespace("disk", options.pool_bytes(1 << 20))?;
    /// # let mut copy: Vec<u8> = Vec::new();
    /// # db.backup_to(&mut copy)?;
    /// let [main, disk]: [Arc<MemoryDevice>; 2] = Default::default();
    /// let restore = Restore::new().stream(&copy[..]);
    /// restore.tablespace_device("disk", disk.clone()).run_on(main.clone())?;
    /// let restored = braid::Database::builder().pool_bytes(1 << 20);
    /// let restored = restored.tablespace_device("disk", disk).open_on(main)?;
    /// assert_eq!(restored.tablespace_names(), ["disk"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tablespace_device(mut self, name: &str, device: Arc<dyn Device>) -> Self {
        self.spaces.add(name, SpacePlace::device(device));
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
    ///
    /// [`Error::Backup`]: crate::Error::Backup
    /// [`Error::InvalidOption`]: crate::Error::InvalidOption
    /// [`Error::Corrupted`]: crate::Error::Corrupted
    /// [`Error::OutOfSpace`]: crate::Error::OutOfSpace
    /// [`Error::Io`]: crate::Error::Io
    /// [`Error::Locked`]: crate::Error::Locked
    pub fn run(mut self, path: impl AsRef<Path>) -> Result<RestoreReport> {
        let path = path.as_ref();
        let opening = |error| opening(path, error);
        check_file_mode(self.file_mode)?;
        // Before any file is created: most errors are detectable at the ends of the input files.
        self.archive = self.open_archive()?.map(ArchiveSource::Open);
        self.check_files()?;
        check_empty(path)?;
        for (_, place) in self.spaces.data.iter().chain(&self.spaces.logs) {
            if let SpacePlace::Directory(path) = place {
                check_empty(path)?;
            }
        }
        braid_io::create_directory_with_mode(path, self.file_mode).map_err(opening)?;
        let _lock = DirectoryLock::acquire_with_mode(path, self.file_mode)
            .map_err(|error| locking(path, error))?;
        let device = braid_io::open_directory_with_mode(path, self.place.device, self.file_mode)
            .map_err(opening)?;
        let place = self.place.clone().file_mode(self.file_mode);
        let attached = log_directory::attach(path, device, &place)?;
        self.log_place = attached.place.clone();
        self.place.log_place = attached.place;
        self.place.directory = Some(braid_io::resolve(path).map_err(opening)?);
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
        self.check_places(&chain)?;
        let (manifest, _) = chain.last.ok_or(BackupError::Nothing)?;
        let archive = match &self.archive {
            Some(ArchiveSource::Open(archive)) => Some(archive),
            _ => None,
        };
        target(archive, self.until, &manifest).map(drop)
    }

    /// Checks that each tablespace of the last backup has a place, and each place a tablespace in one
    /// of the backups.
    fn check_places(&self, chain: &Chain) -> Result<()> {
        let is_placed = |name: &str| self.spaces.of(name).is_some();
        let mut last = chain
            .last
            .iter()
            .flat_map(|(last, _)| last.names_of_spaces());
        if let Some(name) = last.find(|name| !is_placed(name)) {
            let name = name.to_owned();
            return Err(BackupError::NoPlace { name }.into());
        }
        let is_known = |name: &String| chain.spaces.contains(name);
        let mut named = self.spaces.data.iter().chain(&self.spaces.logs);
        if let Some((name, _)) = named.find(|(name, _)| !is_known(name)) {
            return Err(BackupError::UnknownTablespace { name: name.clone() }.into());
        }
        let spaces = chain.last.iter().flat_map(|(last, _)| &last.spaces);
        let mut shared = spaces.filter(|space| !space.entry.has_log);
        if let Some(space) = shared.find(|space| self.spaces.log_of(&space.entry.name).is_some()) {
            return Err(Error::InvalidOption {
                option: "tablespace_log_directory",
                reason: format!("tablespace {:?} has no log of its own", space.entry.name),
            });
        }
        Ok(())
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
        self.place.file_mode = self.file_mode;
        let places = attach_restored(&self.place, &self.spaces)?;
        let (manifest, written, pages) = self.write_pages(&device, &places)?;
        let (meta, start) = Meta::decode(&manifest.meta)?;
        let until = target(archive.as_ref(), self.until, &manifest)?;
        let restored = Restored {
            meta: meta.encode(&start, None, first_stamp(&manifest)),
            seqno: start.seqno,
            manifest: &manifest,
            pool_bytes: self.pool_bytes,
        };
        let (store, spaces) = restored.finish(written)?;
        let transactions = match &archive {
            None => 0,
            Some(archive) => replay_archive(archive, (&store, &spaces), &manifest, until)?,
        };
        let stores = (&store, &spaces[..], &manifest);
        begin_log(&device, stores, &meta, until, self.log_place.as_ref())?;
        let place_of = |space: &ManifestSpace| {
            let mut places = places.iter();
            places.find(|place| place.name == space.entry.name)
        };
        let of_spaces = manifest.spaces.iter();
        let of_spaces = of_spaces.filter_map(|space| Some((&space.entry, place_of(space)?)));
        let database = self.place.directory.clone().unwrap_or_default();
        record_restored(&*device, &database, of_spaces)?;
        end(&*device)?;
        Ok(RestoreReport {
            seqno: until,
            backup_seqno: manifest.seqno,
            pages,
            transactions,
        })
    }

    /// Returns the identities of the last backup's tablespaces; `None` if a stream comes before it.
    fn wanted_spaces(&self) -> Result<Option<Vec<u128>>> {
        let mut wanted = None;
        for source in &self.sources {
            let Source::File(path) = source else {
                return Ok(None);
            };
            let spaces = read_manifest(path)?.spaces.into_iter();
            wanted = Some(spaces.map(|space| space.entry.identity).collect());
        }
        Ok(wanted)
    }

    /// Writes the pages of all backups. Returns the manifest of the last one, what was written, and
    /// the number of pages.
    fn write_pages(
        &mut self,
        device: &Arc<dyn Device>,
        places: &[RestoredSpace],
    ) -> Result<(Manifest, Written, u64)> {
        let mut chain = Chain::default();
        let mut pages = 0;
        let mut written = Written {
            main: Pages::create(device)?,
            spaces: Vec::new(),
            wanted: self.wanted_spaces()?,
        };
        for (index, source) in std::mem::take(&mut self.sources).into_iter().enumerate() {
            let mut reader = match source {
                Source::File(path) => Reader::open(&path)?,
                Source::Stream(stream) => Reader::new(format!("stream {}", index + 1), stream)?,
            };
            let name = reader.name().to_owned();
            let mut of = Some(&mut written.main);
            while let Some(part) = reader.part()? {
                let mut batch = match part {
                    Part::Pages(batch) => batch,
                    Part::Space(entry) => {
                        of = written.begin_space(&entry, places)?;
                        continue;
                    }
                };
                if let Some(of) = &mut of {
                    of.put(&mut batch)?;
                }
                pages += batch.len() as u64;
                if let Some(progress) = &self.progress {
                    progress(BackupProgress {
                        pages,
                        pages_total: 0,
                    });
                }
            }
            let manifest = reader.manifest()?;
            written.note(&manifest);
            chain.add(manifest, &name)?;
        }
        self.check_places(&chain)?;
        let Some((manifest, name)) = chain.last else {
            return Err(BackupError::Nothing.into());
        };
        if !written.has_all_of(&manifest) {
            return Err(BackupError::Damaged {
                backup: name,
                what: "it builds on pages that none of the backups has".into(),
            }
            .into());
        }
        Ok((manifest, written, pages))
    }
}
