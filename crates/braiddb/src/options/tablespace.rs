//! Options of a tablespace.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{CatchingDevice, Device, DeviceChoice};
use braid_store::POOL_BYTES_MAX;

use crate::error::{Error, Result};

/// Place of a tablespace.
#[derive(Clone, Debug)]
pub(crate) enum SpacePlace {
    Directory(PathBuf),
    Device(Arc<dyn Device>),
}

impl SpacePlace {
    pub(crate) fn device(device: Arc<dyn Device>) -> Self {
        Self::Device(Arc::new(CatchingDevice::new(device)))
    }
}

/// Present places of tablespaces and of their logs, by the tablespaces' names. The last one counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpacePlaces {
    pub(crate) data: Vec<(String, SpacePlace)>,
    pub(crate) logs: Vec<(String, SpacePlace)>,
}

impl SpacePlaces {
    pub(crate) fn add(&mut self, name: &str, place: SpacePlace) {
        self.data.push((name.to_owned(), place));
    }

    pub(crate) fn add_log(&mut self, name: &str, place: SpacePlace) {
        self.logs.push((name.to_owned(), place));
    }

    /// Returns the place of a tablespace.
    pub(crate) fn of(&self, name: &str) -> Option<&SpacePlace> {
        find(&self.data, name)
    }

    /// Returns the place of a tablespace's log.
    pub(crate) fn log_of(&self, name: &str) -> Option<&SpacePlace> {
        find(&self.logs, name)
    }
}

fn find<'a>(places: &'a [(String, SpacePlace)], name: &str) -> Option<&'a SpacePlace> {
    let found = places.iter().rev().find(|(of, _)| of == name);
    found.map(|(_, place)| place)
}

/// Options of a new tablespace; see
/// [`Database::create_tablespace`](crate::Database::create_tablespace).
///
/// ```
/// # fn main() -> braid::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (path, fast) = (dir.path().join("db"), dir.path().join("fast"));
/// use braid::tablespace::TablespaceOptions;
/// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
/// db.create_tablespace("fast", TablespaceOptions::in_directory(&fast).pool_bytes(4 << 20))?;
/// let hot = db.open_table_in::<u64, u64>("fast", "hot", Default::default())?;
/// db.transact(|tx| tx.insert(&hot, &1, &2))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct TablespaceOptions {
    pub(crate) place: SpacePlace,
    pub(crate) access: Option<DeviceChoice>,
    pub(crate) pool_bytes: usize,
    pub(crate) own_log: bool,
    /// The place of its log, if that is not with its data file.
    pub(crate) log: Option<SpacePlace>,
    pub(crate) log_access: Option<DeviceChoice>,
    pub(crate) memory_node: Option<usize>,
}

impl TablespaceOptions {
    fn at(place: SpacePlace) -> Self {
        Self {
            place,
            access: None,
            pool_bytes: 64 << 20,
            own_log: false,
            log: None,
            log_access: None,
            memory_node: None,
        }
    }

    /// A tablespace in this directory, which is created if it is missing, and must be empty.
    pub fn in_directory(path: impl AsRef<Path>) -> Self {
        Self::at(SpacePlace::Directory(path.as_ref().to_owned()))
    }

    /// A tablespace on this device, which must be empty. Every later opening needs
    /// [`Builder::tablespace_device`](crate::Builder::tablespace_device).
    pub fn on_device(device: Arc<dyn Device>) -> Self {
        Self::at(SpacePlace::device(device))
    }

    /// Sets how the medium of the directory is accessed. Default: as
    /// [`Builder::device`](crate::Builder::device).
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.access = Some(device);
        self
    }

    /// Sets the size of the tablespace's own page pool, in bytes: from 1 MiB to 4 TiB. The memory is
    /// in addition to [`Builder::pool_bytes`](crate::Builder::pool_bytes), and no other tablespace
    /// uses it. Default: 64 MiB.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// Gives the tablespace a log of its own, with its data file. A transaction writes to the logs of
    /// the tablespaces whose tables it changes, and no others, so their devices share the work. One that
    /// writes to several is durable when its part in each of them is, and recovery keeps it whole or
    /// not at all.
    ///
    /// The log begins when the database is opened the next time: until then, transactions write to that
    /// of the database. From then on, the database can only be read without the tablespace, as far as it
    /// is known to be durable everywhere. With persistent memory, the log of the database must not be on a
    /// device that writes in smaller units.
    ///
    /// The protocols `serial` and `aether` have a single log, and refuse the tablespace.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk) = (dir.path().join("db"), dir.path().join("disk"));
    /// use braid::tablespace::TablespaceOptions;
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// let options = TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20);
    /// db.create_tablespace("disk", options.own_log(true))?;
    /// db.close()?;
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// let history = db.open_table_in::<u64, u64>("disk", "history", Default::default())?;
    /// db.transact(|tx| tx.insert(&history, &1, &2))?;
    /// assert!(db.stats().tablespaces[0].log_bytes > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn own_log(mut self, own_log: bool) -> Self {
        self.own_log = own_log;
        self
    }

    /// Gives the tablespace a [log of its own](TablespaceOptions::own_log) in a directory for the log alone,
    /// perhaps on another device than its data file. The directory is created if it is missing, and must be
    /// empty.
    ///
    /// The database records the directory, and locks it as long as it is open. If it was moved or is
    /// mounted elsewhere, [`Builder::tablespace_log_directory`](crate::Builder::tablespace_log_directory) names
    /// it once. Without it, the database can only be read, as without the tablespace. Earlier versions of
    /// Braid do not open such a database.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, disk, fast) = (dir.path().join("db"), dir.path().join("disk"), dir.path().join("fast"));
    /// use braid::tablespace::TablespaceOptions;
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// let options = TablespaceOptions::in_directory(&disk).pool_bytes(1 << 20);
    /// db.create_tablespace("disk", options.log_directory(&fast))?;
    /// let stats = db.stats();
    /// assert!(stats.tablespaces[0].own_log && stats.tablespaces[0].log_directory.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_directory(mut self, path: impl AsRef<Path>) -> Self {
        self.log = Some(SpacePlace::Directory(path.as_ref().to_owned()));
        self.own_log = true;
        self
    }

    /// Sets how the medium of [`TablespaceOptions::log_directory`] is accessed. Default: as
    /// [`TablespaceOptions::device`].
    ///
    /// ```
    /// use braid::{device::DeviceChoice, tablespace::TablespaceOptions};
    /// let options = TablespaceOptions::in_directory("/disk").log_directory("/fast");
    /// let options = options.log_device(DeviceChoice::File);
    /// ```
    pub fn log_device(mut self, device: DeviceChoice) -> Self {
        self.log_access = Some(device);
        self
    }

    /// Gives the tablespace a [log of its own](TablespaceOptions::own_log) on this device, which must be
    /// empty. Every later opening needs
    /// [`Builder::tablespace_log_on`](crate::Builder::tablespace_log_on), which has an example.
    pub fn log_on(mut self, device: Arc<dyn Device>) -> Self {
        self.log = Some(SpacePlace::device(device));
        self.own_log = true;
        self
    }

    /// Binds the tablespace to a memory node (NUMA) of the machine: its page pool, and the buffers of its
    /// [own log](TablespaceOptions::own_log), lie in the node's memory, and the threads that flush that
    /// log and write checkpoints of the tablespace run on the node's processors. `node` is the system's
    /// number, as [`NodePlacement::node`](crate::stats::NodePlacement::node) has it. Default: none; the
    /// pool is spread over all nodes.
    ///
    /// The database records the node. On a machine without it, or with
    /// [`Builder::numa`](crate::Builder::numa) off, the tablespace works as one without a node, and
    /// [`TablespaceStats::is_on_node`](crate::stats::TablespaceStats::is_on_node) is false. A full
    /// node costs only speed. Without effect on a machine with one node.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, near) = (dir.path().join("db"), dir.path().join("near"));
    /// use braid::tablespace::TablespaceOptions;
    /// let db = braid::Database::builder().pool_bytes(1 << 20).open(&path)?;
    /// let node = db.placement().last().map_or(0, |last| last.node);
    /// let options = TablespaceOptions::in_directory(&near).pool_bytes(4 << 20);
    /// db.create_tablespace("near", options.memory_node(node))?;
    /// assert!(db.stats().tablespaces[0].is_on_node);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_node(mut self, node: usize) -> Self {
        self.memory_node = Some(node);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let fits = (1 << 20..=POOL_BYTES_MAX).contains(&(self.pool_bytes as u64));
        if !fits {
            return Err(Error::InvalidOption {
                option: "pool_bytes",
                reason: "must be from 1 MiB to 4 TiB".into(),
            });
        }
        for (option, access) in [("device", self.access), ("log_device", self.log_access)] {
            if access == Some(DeviceChoice::Memory) {
                return Err(Error::InvalidOption {
                    option,
                    reason: "must keep the tablespace after the process has ended".into(),
                });
            }
        }
        if self.log.is_some() && !self.own_log {
            return Err(Error::InvalidOption {
                option: "own_log",
                reason: "must be on for a log in a directory of its own".into(),
            });
        }
        if self.log_access.is_some() && self.log.is_none() {
            return Err(Error::InvalidOption {
                option: "log_device",
                reason: "needs log_directory".into(),
            });
        }
        Ok(())
    }
}

impl fmt::Debug for TablespaceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TablespaceOptions")
            .field("place", &self.place)
            .field("pool_bytes", &self.pool_bytes)
            .field("own_log", &self.own_log)
            .field("log", &self.log)
            .field("memory_node", &self.memory_node)
            .finish_non_exhaustive()
    }
}
