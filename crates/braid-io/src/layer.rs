//! Wrappers of devices.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReadOp, ReaderTable, WriteOp};

/// The behaviour of a [`LayeredDevice`] for the operations that make data durable, and for those
/// that tests count. By default, they are passed on.
pub trait Layer: Clone + fmt::Debug + Send + Sync + 'static {
    /// Called before a range of a file is read.
    fn before_read(&self, _name: &str, _range: Range<u64>) {}

    /// Replaces the file's own [`File::read_at`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn read_at(&self, file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_at(buf, offset)
    }

    /// Replaces the file's own [`File::read_batch`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn read_batch(&self, file: &dyn File, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        file.read_batch(ops)
    }

    /// Called before a range of a file is written, except by [`File::write_durable_at`].
    fn before_write(&self, _name: &str, _range: Range<u64>) {}

    /// Replaces the file's own [`File::set_len`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn set_len(&self, file: &dyn File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    /// Called before a buffer is allocated.
    fn before_allocate(&self, _len: usize) {}

    /// Replaces the file's own [`File::write_durable_at`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        file.write_durable_at(bufs, offset)
    }

    /// Replaces the file's own [`File::sync`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn sync(&self, file: &dyn File) -> io::Result<()> {
        file.sync()
    }

    /// Replaces the device's own [`Device::remove`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn remove(&self, device: &dyn Device, name: &str) -> io::Result<()> {
        device.remove(name)
    }

    /// Replaces the device's own [`Device::reader_table`].
    ///
    /// # Errors
    ///
    /// As that method.
    fn reader_table(
        &self,
        device: &dyn Device,
        create: bool,
    ) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        device.reader_table(create)
    }
}

/// Wraps a device, and passes every operation on through its layer.
#[derive(Clone, Debug)]
pub struct LayeredDevice<L> {
    inner: Arc<dyn Device>,
    layer: L,
}

impl<L: Layer> LayeredDevice<L> {
    /// Wraps `inner` with `layer`.
    pub fn over(inner: Arc<dyn Device>, layer: L) -> Self {
        Self { inner, layer }
    }

    /// Returns the layer.
    pub fn layer(&self) -> &L {
        &self.layer
    }
}

impl<L: Layer> Device for LayeredDevice<L> {
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn kind_of(&self, name: &str) -> DeviceKind {
        self.inner.kind_of(name)
    }

    fn block_size_of(&self, name: &str) -> usize {
        self.inner.block_size_of(name)
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        self.layer.before_allocate(len);
        self.inner.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(LayeredFile {
            inner: self.inner.open(name, mode)?,
            layer: self.layer.clone(),
            name: name.to_owned(),
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.layer.remove(&*self.inner, name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.inner.list()
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.inner.sync_directory()
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        self.layer.reader_table(&*self.inner, create)
    }
}

#[derive(Debug)]
struct LayeredFile<L> {
    inner: Arc<dyn File>,
    layer: L,
    /// Its name when it was opened.
    name: String,
}

impl<L: Layer> LayeredFile<L> {
    fn before_read(&self, offset: u64, len: usize) {
        let end = offset.saturating_add(len as u64);
        self.layer.before_read(&self.name, offset..end);
    }

    fn before_write(&self, offset: u64, bufs: &[&[u8]]) {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let end = offset.saturating_add(len as u64);
        self.layer.before_write(&self.name, offset..end);
    }
}

impl<L: Layer> File for LayeredFile<L> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.layer.set_len(&*self.inner, len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.inner.reserve(len)
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.fill_zero(range)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch_hole(range)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.before_read(offset, buf.len());
        self.layer.read_at(&*self.inner, buf, offset)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.before_write(offset, bufs);
        self.inner.write_at(bufs, offset)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.layer.write_durable_at(&*self.inner, bufs, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.layer.sync(&*self.inner)
    }

    fn words(&self) -> Option<&[std::sync::atomic::AtomicU64]> {
        self.inner.words()
    }

    fn check_words(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.check_words(range)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        for op in ops.iter() {
            self.before_read(op.offset, op.buf.len());
        }
        self.layer.read_batch(&*self.inner, ops)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        for op in ops {
            self.before_write(op.offset, &[op.buf]);
        }
        self.inner.write_batch(ops)
    }
}
