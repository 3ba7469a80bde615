//! A device over a volume on a drive, without a file system.
//!
//! The files of a database are those of the volume whose names begin with the database's name and a
//! slash, so that a volume contains several databases.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use braid_nvme::volume::VolumeFile;
use braid_nvme::{DrivePath, Volume, VolumeError};

use crate::directory::named;
use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReadOp, WriteOp};

/// The unit of all reads and writes.
const BLOCK: usize = 4096;

/// A value that keeps the drive open.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// A [`Device`] over the files of one name in a [`Volume`].
///
/// A durable write is a write with forced unit access if the drive has a volatile cache, and a plain
/// write otherwise. The caller ensures that a name is in use once at a time.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use braid_io::{Device, OpenMode, VolumeDevice};
/// use braid_nvme::volume::FormatOptions;
/// use braid_nvme::{Blocking, MemoryDrive, Volume};
/// let drive = Blocking::new(Arc::new(MemoryDrive::new(1 << 15)));
/// let volume = Volume::format(drive, FormatOptions::default())?;
/// let device = VolumeDevice::new(volume, "library")?;
/// let file = device.open("data", OpenMode::CreateNew)?;
/// file.write_durable_at(&[&device.allocate(4096)], 0)?;
/// assert_eq!(device.list()?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct VolumeDevice {
    volume: Volume,
    /// The name and a slash.
    prefix: String,
    /// The name for error messages, as a directory.
    path: PathBuf,
    /// Keeps the drive open, unless a lock does.
    _keeps: Option<Keeper>,
}

impl VolumeDevice {
    /// Returns the device for the files of a name.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the name is empty, contains a slash, or has more than 255 bytes.
    pub fn new(volume: Volume, name: &str) -> io::Result<Self> {
        check_name(name)?;
        Ok(Self::of_checked(volume, name, name.into(), None))
    }

    pub(crate) fn of_checked(
        volume: Volume,
        name: &str,
        path: PathBuf,
        keeps: Option<Keeper>,
    ) -> Self {
        Self {
            volume,
            prefix: format!("{name}/"),
            path,
            _keeps: keeps,
        }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    fn full(&self, name: &str) -> io::Result<String> {
        let is_plain = !name.is_empty() && name != "." && name != "..";
        if is_plain && !name.contains(['/', '\0']) {
            return Ok(format!("{}{name}", self.prefix));
        }
        let what = "the name is not a plain file name";
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    /// Adds the operation and the file to an error.
    fn named(&self, what: &'static str, name: &str) -> impl FnOnce(io::Error) -> io::Error {
        let path = self.path.join(name);
        move |error| named(what, &path, error)
    }
}

/// # Errors
///
/// `InvalidInput` if the text is no name of a database on a volume.
pub(crate) fn check_name(name: &str) -> io::Result<()> {
    if !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) {
        return Ok(());
    }
    let what = format!(
        "{name:?} is no name of a database on a volume: choose 1 to 255 bytes without a slash"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

impl Device for VolumeDevice {
    fn kind(&self) -> DeviceKind {
        match self.volume.drive().info().path {
            DrivePath::Memory => DeviceKind::Memory,
            _ => DeviceKind::Nvme,
        }
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::with_align(len, BLOCK.max(self.volume.drive().info().alignment))
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let (what, opened) = match mode {
            OpenMode::Existing => {
                let opened = self.full(name).map(|full| self.volume.open_file(&full));
                ("open", opened)
            }
            OpenMode::CreateNew => {
                let created = self.full(name).map(|full| self.volume.create(&full));
                ("create", created)
            }
        };
        let file = opened.and_then(|file| Ok(file?));
        Ok(Arc::new(OnVolume {
            file: file.map_err(self.named(what, name))?,
            path: self.path.join(name),
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self
            .full(name)
            .and_then(|full| Ok(self.volume.remove(&full)?));
        removed.map_err(self.named("remove", name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let rename = || Ok(self.volume.rename(&self.full(from)?, &self.full(to)?)?);
        rename().map_err(self.named("rename", from))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let all = self.volume.list().into_iter();
        Ok(all
            .filter_map(|(name, len)| {
                let name = name.strip_prefix(&self.prefix)?.to_owned();
                Some(Entry { name, len })
            })
            .collect())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let committed = self.volume.commit();
        committed.map_err(|error| named("sync", &self.path, error.into()))
    }
}

/// A [`File`] of a volume.
struct OnVolume {
    file: VolumeFile,
    /// The name for error messages.
    path: PathBuf,
}

impl fmt::Debug for OnVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnVolume({})", self.path.display())
    }
}

impl OnVolume {
    fn named(&self, what: &'static str, outcome: Result<(), VolumeError>) -> io::Result<()> {
        outcome.map_err(|error| named(what, &self.path, error.into()))
    }
}

/// The places of buffers that are written one after the other.
fn placed<'a>(bufs: &[&'a [u8]], offset: u64) -> Vec<(u64, &'a [u8])> {
    let mut at = offset;
    let place = bufs.iter().map(|buf| {
        let start = at;
        // An end beyond 2^64 is refused with the first buffer that goes beyond 2^63.
        at = at.saturating_add(buf.len() as u64);
        (start, *buf)
    });
    place.collect()
}

impl File for OnVolume {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.named("resize", self.file.set_len(len))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.named("resize", self.file.reserve(len))
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.named("write", self.file.fill_zero(range))
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.named("write", self.file.punch_hole(range))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.named("read", self.file.read_batch([(offset, buf)]))
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.named("write", self.file.write_batch(&placed(bufs, offset)))
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let written = self.file.write_durable_batch(&placed(bufs, offset));
        self.named("write", written)
    }

    fn sync(&self) -> io::Result<()> {
        self.named("sync", self.file.sync())
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        let reads = ops.iter_mut().map(|op| (op.offset, &mut *op.buf));
        self.named("read", self.file.read_batch(reads))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        let writes: Vec<(u64, &[u8])> = ops.iter().map(|op| (op.offset, op.buf)).collect();
        self.named("write", self.file.write_batch(&writes))
    }
}
