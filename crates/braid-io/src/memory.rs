//! A device in process memory, for tests and for measuring everything except the disk.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use braid_rt::{Mutex, RwLock, to_usize};

use crate::device::end_of;
use crate::readers::MemoryReaderTable;
use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReaderTable};

/// [`Device`] with files in memory. Clones share the same files.
#[derive(Clone, Debug, Default)]
pub struct MemoryDevice {
    /// See [`MemoryDevice::with_block_size`].
    block: Block,
    files: Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>,
    readers: MemoryReaderTable,
}

impl MemoryDevice {
    /// Creates an empty device with blocks of 4,096 bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty device with blocks of this size, such as 64 bytes, as memory that keeps its
    /// contents has.
    ///
    /// # Panics
    /// If it is no power of two.
    pub fn with_block_size(bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "a block size is a power of two");
        Self {
            block: Block(bytes),
            ..Self::default()
        }
    }
}

/// The size of a device's blocks.
#[derive(Clone, Copy, Debug)]
struct Block(usize);

impl Default for Block {
    fn default() -> Self {
        Block(4096)
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("there is no file {name:?}"),
    )
}

impl Device for MemoryDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Memory
    }

    fn block_size(&self) -> usize {
        self.block.0
    }

    fn writes_at_once(&self, _name: &str) -> bool {
        true
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut files = self.files.lock();
        match (files.get(name), mode) {
            (Some(file), OpenMode::Existing) => Ok(file.clone()),
            (None, OpenMode::Existing) => Err(missing(name)),
            (Some(_), OpenMode::CreateNew) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("file {name:?} exists"),
            )),
            (None, OpenMode::CreateNew) => {
                let file = Arc::new(MemoryFile::default());
                files.insert(name.to_owned(), file.clone());
                Ok(file)
            }
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files
            .lock()
            .remove(name)
            .map(drop)
            .ok_or_else(|| missing(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or_else(|| missing(from))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let files = self.files.lock();
        Ok(files
            .iter()
            .map(|(name, file)| Entry {
                name: name.clone(),
                len: file.bytes.read().len() as u64,
            })
            .collect())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn reader_table(&self, _create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        Ok(Some(Arc::new(self.readers.clone())))
    }
}

/// Sets the length; new bytes are zero.
fn resize(bytes: &mut Vec<u8>, len: usize) -> io::Result<()> {
    let more = len.saturating_sub(bytes.len());
    bytes
        .try_reserve(more)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    if cfg!(miri) && bytes.len() < len {
        // In one step: `Vec::resize` would take several steps per byte, and most of a test's time.
        bytes.extend_from_slice(&vec![0; len - bytes.len()]);
    } else {
        bytes.resize(len, 0);
    }
    Ok(())
}

#[derive(Debug, Default)]
struct MemoryFile {
    bytes: RwLock<Vec<u8>>,
}

impl File for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        resize(&mut self.bytes.write(), to_usize(len))
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let (start, end) = (to_usize(range.start), to_usize(range.end));
        let before = bytes.len();
        bytes[start.min(before)..end.min(before)].fill(0);
        if before < end {
            resize(&mut bytes, end)?;
        }
        Ok(())
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let end = to_usize(range.end).min(bytes.len());
        let start = to_usize(range.start).min(end);
        bytes[start..end].fill(0);
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read();
        let source = bytes
            .get(to_usize(offset)..to_usize(end_of(offset, buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(source);
        Ok(())
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let end = to_usize(end_of(offset, bufs.iter().map(|buf| buf.len()).sum())?);
        if bytes.len() < end {
            resize(&mut bytes, end)?;
        }
        let mut at = to_usize(offset);
        for buf in bufs {
            bytes[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_at(bufs, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
