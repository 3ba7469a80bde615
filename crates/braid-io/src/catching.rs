//! A device that converts panics to errors.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReadOp, ReaderTable, WriteOp};

/// Wraps a device that a program supplies. If the device panics, the operation fails with an error
/// that says so. The engine handles the uncertain state after a failed operation, but a panic would
/// unwind through all of its state.
#[derive(Debug)]
pub struct CatchingDevice(Arc<dyn Device>);

impl CatchingDevice {
    /// Wraps `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self(device)
    }
}

fn call<T>(step: &str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    braid_rt::call_user(operation).unwrap_or_else(|message| {
        Err(io::Error::other(format!(
            "the device panicked in {step}: {message}"
        )))
    })
}

impl Device for CatchingDevice {
    fn kind(&self) -> DeviceKind {
        self.0.kind()
    }

    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn kind_of(&self, name: &str) -> DeviceKind {
        self.0.kind_of(name)
    }

    fn block_size_of(&self, name: &str) -> usize {
        self.0.block_size_of(name)
    }

    fn writes_at_once(&self, name: &str) -> bool {
        self.0.writes_at_once(name)
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        self.0.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = call("open", || self.0.open(name, mode))?;
        Ok(Arc::new(CatchingFile(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        call("remove", || self.0.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        call("rename", || self.0.rename(from, to))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        call("list", || self.0.list())
    }

    fn sync_directory(&self) -> io::Result<()> {
        call("sync_directory", || self.0.sync_directory())
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        call("reader_table", || self.0.reader_table(create))
    }
}

#[derive(Debug)]
struct CatchingFile(Arc<dyn File>);

impl File for CatchingFile {
    fn len(&self) -> io::Result<u64> {
        call("len", || self.0.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        call("set_len", || self.0.set_len(len))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        call("reserve", || self.0.reserve(len))
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        call("fill_zero", || self.0.fill_zero(range))
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        call("punch_hole", || self.0.punch_hole(range))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        call("read_at", || self.0.read_at(buf, offset))
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        call("write_at", || self.0.write_at(bufs, offset))
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        call("write_durable_at", || self.0.write_durable_at(bufs, offset))
    }

    fn sync(&self) -> io::Result<()> {
        call("sync", || self.0.sync())
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        call("read_batch", || self.0.read_batch(ops))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        call("write_batch", || self.0.write_batch(ops))
    }
}
