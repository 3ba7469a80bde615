//! A directory of a file system through positioned reads and writes, on every system.

use std::fs;
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;
#[cfg(unix)]
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

#[cfg(target_os = "linux")]
use braid_rt::atomic::{AtomicBool, Ordering};

use crate::directory::{DEFAULT_FILE_MODE, Directory, named};
#[cfg(windows)]
use crate::positioned::Positioned;
use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReaderTable};

const BLOCK: usize = 4096;

/// What [`File::fill_zero`] writes.
static ZEROES: OnceLock<AlignedBuf> = OnceLock::new();

/// A [`Device`] over a directory: `pread`, `pwrite`, `fdatasync`, and direct I/O if the file system
/// supports it.
///
/// On Linux, a durable write is one `pwritev2` with `RWF_DSYNC` (one system call; the kernel makes
/// it a forced unit access, or a write and a flush of the device). Elsewhere, and where a sandbox
/// or an emulator does not support that call, it is a write and an `fdatasync`. Windows has no call
/// to make names durable, so there [`Device::sync_directory`] relies on the journal of the file
/// system.
///
/// Symbolic links in the directory are not followed. An error names the file and the operation.
#[derive(Debug)]
pub struct FileDevice {
    directory: Directory,
    direct: bool,
    read_only: bool,
    /// Permissions of created files.
    mode: u32,
}

impl FileDevice {
    /// Opens an existing directory.
    ///
    /// # Errors
    ///
    /// `NotFound` or `NotADirectory`.
    pub fn new(directory: &Path) -> io::Result<Self> {
        Self::with_mode(directory, DEFAULT_FILE_MODE)
    }

    /// As [`FileDevice::new`]; created files get these permissions, as in `chmod(2)`.
    ///
    /// # Errors
    ///
    /// `NotFound` or `NotADirectory`.
    pub fn with_mode(directory: &Path, mode: u32) -> io::Result<Self> {
        let directory = Directory::open(directory)?;
        Ok(Self {
            direct: supports_direct_io(&directory),
            directory,
            read_only: false,
            mode,
        })
    }

    /// As [`FileDevice::with_mode`]; reads and writes use the system's page cache.
    #[cfg(unix)]
    pub(crate) fn buffered(directory: &Path, mode: u32) -> io::Result<Self> {
        Ok(Self {
            directory: Directory::open(directory)?,
            direct: false,
            read_only: false,
            mode,
        })
    }

    /// Opens an existing directory for reading only; it need not be writable. Reads use the
    /// system's page cache.
    ///
    /// # Errors
    ///
    /// `NotFound` or `NotADirectory`.
    pub fn read_only(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            directory: Directory::open(directory)?,
            direct: false,
            read_only: true,
            mode: DEFAULT_FILE_MODE,
        })
    }

    /// Returns whether files bypass the system's page cache.
    #[cfg(uring)]
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn open_file(&self, name: &str, mode: OpenMode) -> io::Result<PosixFile> {
        let file = match mode {
            OpenMode::CreateNew => {
                self.check_writable()?;
                self.directory.create_file(name, self.mode, self.direct)?
            }
            OpenMode::Existing => {
                let (read_only, direct) = (self.read_only, self.direct);
                self.directory.open_file(name, read_only, direct)?
            }
        };
        let path = self.directory.path_of(name).into();
        Ok(PosixFile { file, path })
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        } else {
            Ok(())
        }
    }
}

/// File with which a directory is probed. All processes use the same name, so the next probe
/// removes the file of a process that ended in the middle.
const PROBE: &str = ".braid-probe";

/// Returns whether files of the directory can be opened with and written by direct I/O: some file
/// systems refuse the flag, others only the first write.
fn supports_direct_io(directory: &Directory) -> bool {
    let create = || directory.create_file(PROBE, DEFAULT_FILE_MODE, true);
    let probe = create().or_else(|error| match error.kind() {
        // This also removes a symbolic link, without following it.
        io::ErrorKind::AlreadyExists => directory.remove(PROBE).and_then(|()| create()),
        _ => Err(error),
    });
    let supported = probe.is_ok_and(|file| {
        let written = file.write_all_at(&AlignedBuf::new(BLOCK), 0);
        cfg!(target_os = "linux") && written.map_or_else(|error| is_full(&error), |()| true)
    });
    let _ = directory.remove(PROBE);
    supported
}

/// Returns whether a write failed only for lack of space.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl Device for FileDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::File
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(name, mode)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        self.directory.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        self.directory.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.directory.list()
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync()
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        if create {
            self.check_writable()?;
        }
        let path = self.directory.path_of(crate::READERS_FILE_NAME);
        crate::readers::open(&path, create.then_some(self.mode))
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct PosixFile {
    file: fs::File,
    path: Arc<Path>,
}

pub(crate) fn check_aligned(bufs: &[&[u8]], offset: u64) -> io::Result<()> {
    let is_aligned =
        |buf: &&[u8]| buf.len().is_multiple_of(BLOCK) && buf.as_ptr().addr().is_multiple_of(BLOCK);
    if offset.is_multiple_of(BLOCK as u64) && bufs.iter().all(is_aligned) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "offset, length or buffer is not aligned",
    ))
}

impl PosixFile {
    #[cfg(uring)]
    pub(crate) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A further handle of the file.
    #[cfg(unix)]
    pub(crate) fn file(&self) -> io::Result<fs::File> {
        self.file.try_clone()
    }

    /// Adds the file to an error.
    pub(crate) fn named(&self, what: &'static str) -> impl FnOnce(io::Error) -> io::Error + '_ {
        move |error| named(what, &self.path, error)
    }

    /// Writes all buffers, continuing after short writes.
    fn write_all(&self, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        check_aligned(bufs, offset)?;
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut done = 0;
        while done < total {
            // The rest, from the buffer in which the last write stopped.
            let mut skip = done;
            let rest: Vec<io::IoSlice<'_>> = bufs
                .iter()
                .filter_map(|buf| {
                    let from = skip.min(buf.len());
                    skip -= from;
                    (from < buf.len()).then(|| io::IoSlice::new(&buf[from..]))
                })
                .take(1024)
                .collect();
            match write_vectored(&self.file, &rest, offset + done as u64, durable) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn write_vectored(
    file: &fs::File,
    bufs: &[io::IoSlice<'_>],
    offset: u64,
    durable: bool,
) -> io::Result<usize> {
    use rustix::io::{Errno, ReadWriteFlags, pwritev2};
    /// Whether the call was refused once; it would be refused each time.
    static REFUSED: AtomicBool = AtomicBool::new(false);

    // Relaxed: a thread that does not see it yet tries once more.
    if durable && !REFUSED.load(Ordering::Relaxed) {
        match pwritev2(file.as_fd(), bufs, offset, ReadWriteFlags::DSYNC) {
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => REFUSED.store(true, Ordering::Relaxed),
            done => return Ok(done?),
        }
    }
    write_and_sync(file, bufs, offset, durable)
}

#[cfg(target_os = "linux")]
fn write_and_sync(
    file: &fs::File,
    bufs: &[io::IoSlice<'_>],
    offset: u64,
    durable: bool,
) -> io::Result<usize> {
    let written = rustix::io::pwritev(file.as_fd(), bufs, offset)?;
    if durable {
        file.sync_data()?;
    }
    Ok(written)
}

#[cfg(not(target_os = "linux"))]
fn write_vectored(
    file: &fs::File,
    bufs: &[io::IoSlice<'_>],
    offset: u64,
    durable: bool,
) -> io::Result<usize> {
    // As much as one call writes; the caller's next round writes the rest.
    file.write_all_at(&bufs[0], offset)?;
    if durable {
        file.sync_data()?;
    }
    Ok(bufs[0].len())
}

impl File for PosixFile {
    fn len(&self) -> io::Result<u64> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(self.named("inspect"))?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let changed = self.file.set_len(len);
        changed.map_err(self.named("change the length of"))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        braid_rt::allocate_blocks(&self.file, 0..len).map_err(self.named("extend"))?;
        let _ = len;
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let zeroes = ZEROES.get_or_init(|| AlignedBuf::new(256 << 10));
        let mut at = range.start;
        while at < range.end {
            let len = braid_rt::to_usize((range.end - at).min(1 << 20));
            let mut bufs = vec![&zeroes[..]; len / zeroes.len()];
            bufs.push(&zeroes[..len % zeroes.len()]);
            bufs.retain(|buf| !buf.is_empty());
            let written = self.write_all(&bufs, at, false);
            written.map_err(self.named("write"))?;
            at += len as u64;
        }
        Ok(())
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if braid_rt::free_blocks(&self.file, range.clone()).map_err(self.named("free space of"))? {
            return Ok(());
        }
        let end = range.end.min(self.len()?);
        if range.start < end {
            self.fill_zero(range.start..end)
        } else {
            Ok(())
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        check_aligned(&[buf], offset)?;
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(self.named("read"))
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let written = self.write_all(bufs, offset, false);
        written.map_err(self.named("write"))
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let written = self.write_all(bufs, offset, true);
        written.map_err(self.named("write"))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().map_err(self.named("sync"))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// As where `pwritev2` is refused, which only an emulator or a sandbox does.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no pwritev")]
    fn a_durable_write_needs_no_special_call() {
        let mut path = std::env::temp_dir();
        path.push(format!("braid-posix-test-{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = options.open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        for durable in [false, true] {
            let bufs = [io::IoSlice::new(b"abc"), io::IoSlice::new(b"defg")];
            let offset = 10 + u64::from(durable);
            assert_eq!(write_and_sync(&file, &bufs, offset, durable).unwrap(), 7);
        }
        let mut read = [1; 8];
        file.read_exact_at(&mut read, 10).unwrap();
        assert_eq!(&read, b"aabcdefg");
    }
}
