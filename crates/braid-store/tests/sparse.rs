//! A device for files that are much longer than memory.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use braid_io::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode};

const BLOCK: usize = 4096;

/// A device whose files take memory only for the blocks that were written.
#[derive(Debug, Default)]
pub(crate) struct SparseDevice(Mutex<BTreeMap<String, Arc<SparseFile>>>);

#[derive(Debug, Default)]
struct SparseFile(Mutex<Contents>);

#[derive(Debug, Default)]
struct Contents {
    len: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Device for SparseDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Memory
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut files = self.0.lock().unwrap();
        match mode {
            OpenMode::Existing => match files.get(name) {
                Some(file) => Ok(file.clone()),
                None => Err(io::ErrorKind::NotFound.into()),
            },
            OpenMode::CreateNew => Ok(files.entry(name.to_owned()).or_default().clone()),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.0.lock().unwrap().remove(name);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

impl File for SparseFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap();
        file.len = len;
        file.blocks.split_off(&len.div_ceil(BLOCK as u64));
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap();
        file.len = file.len.max(len);
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.reserve(range.end)
    }

    fn punch_hole(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.0.lock().unwrap();
        if offset + buf.len() as u64 > file.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (at, part) in (offset / BLOCK as u64..).zip(buf.chunks_mut(BLOCK)) {
            match file.blocks.get(&at) {
                Some(block) => part.copy_from_slice(block),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap();
        let parts = bufs.iter().flat_map(|buf| buf.chunks(BLOCK));
        for (at, part) in (offset / BLOCK as u64..).zip(parts) {
            file.len = file.len.max((at + 1) * BLOCK as u64);
            file.blocks.insert(at, part.into());
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
