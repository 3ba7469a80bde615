//! Restoring a database from backups and an archive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{
    AlignedBuf, Device, DeviceChoice, DirectoryLock, LOCK_FILE_NAME, OpenMode, READERS_FILE_NAME,
};
use braid_log::{CheckpointPosition, FlushMode, Log, LogOptions, LogRecord, SeqNo};
use braid_rt::to_usize;
use bytes::Bytes;

use braid_store::{PageId, Store, StoreOptions, StoreWriter};

use crate::error::{BackupError, Error, Result};
use crate::format::meta::Meta;
use crate::format::redo::{self, Redo};
use crate::format::space::{ListedSpace, SpaceMeta};
use crate::options::{Builder, LogPlace, SpacePlace, check_file_mode};
use crate::recovery::replay::{Replay, gathered_bytes_max};
use crate::recovery::tablespaces::{RestoredSpace, attach_restored, record_restored};
use crate::recovery::{DATA_FILE, locking, log_directory, opening};
use crate::schema::entry::{CATALOG_ID, SpaceEntry, loaded_table, space_of_entry, table_of_entry};
use crate::services::archive::{Archive, ArchivedTransaction, ON_DEVICE, Until};
use crate::services::backup::format::{Manifest, ManifestSpace};
use crate::services::backup::source::{Part, Reader, name_of, read_manifest};
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
    /// Places of the tablespaces, by name.
    spaces: Vec<(String, SpacePlace)>,
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
            spaces: Vec::new(),
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
        self.spaces.push((name.to_owned(), place));
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
        self.spaces
            .push((name.to_owned(), SpacePlace::device(device)));
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
        check_empty(path)?;
        for (_, place) in &self.spaces {
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
        let is_placed = |name: &str| self.spaces.iter().any(|(placed, _)| placed == name);
        let mut last = chain
            .last
            .iter()
            .flat_map(|(last, _)| last.names_of_spaces());
        if let Some(name) = last.find(|name| !is_placed(name)) {
            let name = name.to_owned();
            return Err(BackupError::NoPlace { name }.into());
        }
        let is_known = |name: &String| chain.spaces.contains(name);
        match self.spaces.iter().find(|(name, _)| !is_known(name)) {
            Some((name, _)) => Err(BackupError::UnknownTablespace { name: name.clone() }.into()),
            None => Ok(()),
        }
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

/// The pages written to a data file.
struct Pages {
    writer: StoreWriter,
    /// Pages of the backup that is being read.
    ids: Vec<PageId>,
    /// The map entry of each page's newest version. A hash map, because the page numbers are
    /// untrusted input.
    newest: HashMap<PageId, u64>,
}

impl Pages {
    fn create(device: &Arc<dyn Device>) -> Result<Self> {
        Ok(Self {
            writer: StoreWriter::create(device.clone())?,
            ids: Vec::new(),
            newest: HashMap::new(),
        })
    }

    fn put(&mut self, batch: &mut [(PageId, AlignedBuf)]) -> Result<()> {
        self.writer.put(batch)?;
        self.ids.extend(batch.iter().map(|(id, _)| *id));
        Ok(())
    }

    /// Records the map entries that a backup has for its pages.
    fn note(&mut self, entries: &[u64]) {
        for id in self.ids.drain(..) {
            let entry = entries.get(to_usize(id));
            self.newest.insert(id, entry.copied().unwrap_or(0));
        }
    }

    fn has_all_of(&self, entries: &[u64]) -> bool {
        let differs =
            |(id, wanted): (PageId, &u64)| *wanted != 0 && self.newest.get(&id) != Some(wanted);
        !(0..).zip(entries).any(differs)
    }

    /// Completes the data file.
    fn finish(self, trees: &BTreeMap<u32, PageId>, entries: &[u64], meta: Vec<u8>) -> Result<()> {
        let exists = |id: PageId| entries.get(to_usize(id)).is_some_and(|entry| *entry != 0);
        let next_page = entries.len() as u64;
        Ok(self.writer.finish(next_page, trees.clone(), meta, exists)?)
    }
}

/// The data files that a restore writes.
struct Written {
    main: Pages,
    spaces: Vec<WrittenSpace>,
    /// Identities of the tablespaces to be restored; `None` if they are not known yet.
    wanted: Option<Vec<u128>>,
}

struct WrittenSpace {
    identity: u128,
    name: String,
    device: Arc<dyn Device>,
    pages: Pages,
}

impl Written {
    /// Begins with the pages that a backup has of a tablespace. Returns `None` if the last backup
    /// does not have the tablespace any more.
    fn begin_space(
        &mut self,
        entry: &ListedSpace,
        places: &[RestoredSpace],
    ) -> Result<Option<&mut Pages>> {
        let identity = entry.identity;
        let is_wanted = |wanted: &Vec<u128>| wanted.contains(&identity);
        if !self.wanted.as_ref().is_none_or(is_wanted) {
            return Ok(None);
        }
        let known = self
            .spaces
            .iter()
            .position(|space| space.identity == identity);
        let index = match known {
            Some(index) => index,
            None => {
                let Some(place) = places.iter().find(|place| place.name == entry.name) else {
                    let name = entry.name.clone();
                    return Err(BackupError::NoPlace { name }.into());
                };
                // An earlier tablespace of this name was dropped between two backups.
                if let Some(index) = self
                    .spaces
                    .iter()
                    .position(|space| space.name == entry.name)
                {
                    drop(self.spaces.swap_remove(index));
                    remove_data_file(&*place.device)?;
                }
                self.spaces.push(WrittenSpace {
                    identity,
                    name: entry.name.clone(),
                    device: place.device.clone(),
                    pages: Pages::create(&place.device)?,
                });
                self.spaces.len() - 1
            }
        };
        Ok(Some(&mut self.spaces[index].pages))
    }

    fn note(&mut self, manifest: &Manifest) {
        self.main.note(&manifest.entries);
        for space in &mut self.spaces {
            let of_it = manifest.space(space.identity);
            space
                .pages
                .note(of_it.map_or(&[][..], |of_it| &of_it.entries));
        }
    }

    /// Whether all pages of a backup were written.
    fn has_all_of(&self, manifest: &Manifest) -> bool {
        let has = |space: &ManifestSpace| {
            let identity = space.entry.identity;
            let written = self.spaces.iter().find(|space| space.identity == identity);
            written.is_some_and(|written| written.pages.has_all_of(&space.entries))
        };
        self.main.has_all_of(&manifest.entries) && manifest.spaces.iter().all(has)
    }
}

/// Removes the data file of a tablespace that was dropped between two backups.
fn remove_data_file(device: &dyn Device) -> Result<()> {
    let removed = device.remove(DATA_FILE);
    removed.map_err(|e| Error::io("cannot restore the database", e))
}

/// Returns the stamp of a restored database's first checkpoint; 0 if there are no tablespaces.
fn first_stamp(manifest: &Manifest) -> u64 {
    u64::from(!manifest.spaces.is_empty())
}

/// A database whose pages were written.
struct Restored<'a> {
    manifest: &'a Manifest,
    /// The superblock's metadata of the main tablespace.
    meta: Vec<u8>,
    seqno: SeqNo,
    pool_bytes: usize,
}

impl Restored<'_> {
    /// Completes the data files, and opens them. Returns the stores of the main tablespace and, by
    /// number, of the others.
    fn finish(self, written: Written) -> Result<(Store, Vec<(u8, Store)>)> {
        let manifest = self.manifest;
        let mut spaces = Vec::new();
        for WrittenSpace {
            identity,
            device,
            pages,
            ..
        } in written.spaces
        {
            let Some(space) = manifest.space(identity) else {
                drop(pages);
                remove_data_file(&*device)?;
                continue;
            };
            let number = space.entry.number;
            let meta = SpaceMeta {
                identity,
                number,
                stamp: first_stamp(manifest),
                follows: 0,
                seqno: self.seqno,
            };
            pages.finish(&space.trees, &space.entries, meta.encode())?;
            let options = StoreOptions {
                number,
                ..StoreOptions::of_pool(self.pool_bytes)
            };
            spaces.push((number, Store::open(device, options)?.0));
        }
        let Written { main, .. } = written;
        let device = main.writer.device().clone();
        main.finish(&manifest.trees, &manifest.entries, self.meta)?;
        let (store, _) = Store::open(device, StoreOptions::of_pool(self.pool_bytes))?;
        Ok((store, spaces))
    }
}

/// Replays the archived transactions up to `until`. Returns how many there were.
fn replay_archive(
    archive: &Archive,
    (store, spaces): (&Store, &[(u8, Store)]),
    manifest: &Manifest,
    until: u64,
) -> Result<u64> {
    let replay = Replay::new(store, gathered_bytes_max(0)).with_spaces(spaces);
    let mut transactions = 0;
    archive.read(
        manifest.seqno,
        until,
        &mut |transaction: ArchivedTransaction<'_>| {
            transactions += 1;
            check_spaces(manifest, transaction)?;
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

/// Refuses a transaction that creates a tablespace: the backup has no place for it.
fn check_spaces(manifest: &Manifest, transaction: ArchivedTransaction<'_>) -> Result<()> {
    for redo in redo::decode(transaction.payload) {
        let redo = redo?;
        let created = (redo.table == CATALOG_ID)
            .then(|| space_of_entry(redo.key, redo.value?))
            .flatten();
        let is_new = |space: &SpaceEntry| manifest.space(space.identity).is_none();
        if let Some(space) = created.filter(is_new)
            && !braid_rt::mutant!("restore_past_a_new_tablespace")
        {
            return Err(BackupError::NewTablespace {
                name: space.name,
                seqno: transaction.seqno,
            }
            .into());
        }
    }
    Ok(())
}

/// Refuses a transaction that creates a bulk-loaded table, unless the backup has the table's tree.
fn check_loaded(manifest: &Manifest, transaction: ArchivedTransaction<'_>) -> Result<()> {
    for redo in redo::decode(transaction.payload) {
        let redo = redo?;
        let loaded = (redo.table == CATALOG_ID && redo.value.is_none())
            .then(|| loaded_table(redo.key))
            .flatten();
        let Some(id) = loaded.filter(|id| !manifest.has_tree(*id)) else {
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
    /// Names of the tablespaces of all backups.
    spaces: BTreeSet<String>,
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
        let names = manifest.names_of_spaces().map(str::to_owned);
        self.spaces.extend(names);
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

fn check_empty(path: &Path) -> Result<()> {
    let entries = braid_io::list_directory(path).map_err(|error| opening(path, error))?;
    match entries.into_iter().next() {
        None => Ok(()),
        Some(found) => Err(BackupError::DestinationInUse {
            path: path.to_owned(),
            found,
        }
        .into()),
    }
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

fn write_checkpoint(store: &Store, meta: Vec<u8>) -> Result<()> {
    let mut checkpoint = store.begin_checkpoint(meta)?;
    checkpoint.write(&|_| {})?;
    checkpoint.publish()?;
    Ok(())
}

/// Begins a log after `seqno` in its place, and writes a checkpoint whose log begins there.
fn begin_log(
    device: &Arc<dyn Device>,
    (store, spaces, manifest): (&Store, &[(u8, Store)], &Manifest),
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
    let first = first_stamp(manifest);
    let mut stamps = std::iter::repeat_with(braid_rt::entropy);
    let stamp = match first {
        0 => 0,
        // Random, because no other database has a checkpoint with this stamp.
        first => stamps
            .find(|stamp| ![0, first].contains(stamp))
            .expect("random numbers do not end"),
    };
    for space in &manifest.spaces {
        let (identity, number) = (space.entry.identity, space.entry.number);
        let store = spaces.iter().find(|(other, _)| *other == number);
        let Some((_, store)) = store else { continue };
        let meta = SpaceMeta {
            identity,
            number,
            stamp,
            follows: first,
            seqno: start.seqno,
        };
        write_checkpoint(store, meta.encode())?;
    }
    write_checkpoint(store, meta.encode(&start, None, stamp))?;
    log.close()?;
    Ok(())
}
