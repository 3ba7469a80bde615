//! The two ways in which stores into a mapped file become durable.

use std::fs::File;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_rt::to_usize;

use crate::detect;
use crate::error::{FenceError, MapError};
use crate::flush::{FlushMethod, Flusher, PersistenceDomain};
use crate::mapped::MappedFile;
use crate::options::{MapOptions, MappingKind};
use crate::words::{self, WORD};

/// A mapping whose lines the processor writes back.
#[derive(Debug)]
pub(crate) struct Lines {
    mapped: MappedFile,
    flusher: Flusher,
    /// Time that flushing a line takes in addition, in nanoseconds; `None` with real persistent
    /// memory.
    emulated_latency: Option<u32>,
}

impl Lines {
    pub(crate) fn dax(file: File, options: &MapOptions) -> Result<Self, MapError> {
        let flusher = Flusher::detect()?.for_domain(PersistenceDomain::read());
        let mapped = detect::map_synchronously(file, options.capacity, options.read_only)?;
        Ok(Self {
            mapped,
            flusher,
            emulated_latency: None,
        })
    }

    pub(crate) fn emulated(
        file: File,
        options: &MapOptions,
        line_latency: u32,
    ) -> Result<Self, MapError> {
        Ok(Self {
            flusher: Flusher::detect()?,
            mapped: MappedFile::new(file, options.capacity, options.read_only, false)?,
            emulated_latency: Some(line_latency),
        })
    }

    /// Maps more of the file; what an empty file gets is verified as an opening verifies it.
    pub(crate) fn grow(&self, len: u64) -> Result<(), MapError> {
        let is_first = self.mapped.len() == 0;
        self.mapped.grow(len)?;
        if is_first && self.emulated_latency.is_none() {
            detect::is_direct(&self.mapped)?;
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> MappingKind {
        match self.emulated_latency {
            Some(_) => MappingKind::Emulated,
            None => MappingKind::Dax,
        }
    }

    pub(crate) fn flush_method(&self) -> FlushMethod {
        self.flusher.method()
    }

    pub(crate) fn line_size(&self) -> usize {
        self.flusher.line_size()
    }

    #[inline]
    pub(crate) fn mapped(&self) -> &MappedFile {
        &self.mapped
    }

    #[inline]
    pub(crate) fn flush(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let words = to_usize(range.start) / WORD..to_usize(range.end).div_ceil(WORD);
        let lines = self.flusher.flush(&self.mapped.words()[words]);
        self.emulate(lines);
        lines
    }

    /// Writes bytes and flushes their lines, whole ones around the cache. Returns the number of
    /// lines.
    pub(crate) fn write_flushed(&self, offset: u64, bytes: &[u8]) -> u64 {
        let size = self.line_size() as u64;
        let end = offset + bytes.len() as u64;
        let first = offset.next_multiple_of(size).min(end);
        let last = (end / size * size).max(first);
        let words = self.mapped.words();
        let (head, rest) = bytes.split_at(to_usize(first - offset));
        let (whole, tail) = rest.split_at(to_usize(last - first));
        words::store(words, to_usize(offset), head);
        words::store(words, to_usize(last), tail);
        let whole_words = &words[to_usize(first) / WORD..to_usize(last) / WORD];
        let lines = match whole {
            // Without a whole line, the bounds need not be aligned.
            [] => 0,
            _ => self.flusher.store_lines(whole_words, whole),
        };
        self.emulate(lines);
        lines + self.flush(offset..first) + self.flush(last..end)
    }

    #[inline]
    pub(crate) fn fence(&self) -> Result<(), FenceError> {
        self.flusher.fence();
        if self.mapped.damage().has_faulted() {
            return Err(FenceError::Media);
        }
        Ok(())
    }

    #[inline]
    fn emulate(&self, lines: u64) {
        if let Some(latency @ 1..) = self.emulated_latency {
            spin(Duration::from_nanos(u64::from(latency) * lines));
        }
    }
}

/// Waits without giving the processor away, as an instruction would.
#[cold]
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A mapping whose pages the operating system writes back.
#[derive(Debug)]
pub(crate) struct Pages {
    mapped: MappedFile,
    line_size: usize,
    pending: Mutex<Pending>,
}

/// What was flushed and is not durable. Locked during the system call: a thread whose range another
/// thread's fence is writing waits for it.
#[derive(Debug, Default)]
struct Pending {
    /// Covers all flushed ranges. The kernel writes only changed pages of it.
    range: Option<Range<u64>>,
    /// A write that failed; or a fence, after which the kernel may have marked pages as clean that it did
    /// not write.
    failed: Option<FenceError>,
}

impl Pages {
    pub(crate) fn new(file: File, options: &MapOptions) -> Result<Self, MapError> {
        if detect::is_volatile(&file) {
            return Err(MapError::Volatile);
        }
        Ok(Self {
            mapped: MappedFile::new(file, options.capacity, options.read_only, false)?
                .prewritten(options.prewritten),
            line_size: Flusher::detect().map_or(64, Flusher::line_size),
            pending: Mutex::default(),
        })
    }

    pub(crate) fn line_size(&self) -> usize {
        self.line_size
    }

    #[inline]
    pub(crate) fn mapped(&self) -> &MappedFile {
        &self.mapped
    }

    /// Writes bytes: in a system call if the file is prewritten. A store into a clean page is a fault, in
    /// which the file system prepares the page for writing, after each fence again.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        if self.mapped.is_prewritten() {
            match self.mapped.write(offset, bytes) {
                Ok(()) => return,
                // No fence succeeds any more, and this process still reads what it wrote.
                Err(error) => {
                    let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                    pending.failed.get_or_insert(FenceError::Sync(error));
                }
            }
        }
        words::store(self.mapped.words(), to_usize(offset), bytes);
    }

    pub(crate) fn flush(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let size = self.line_size as u64;
        let lines = range.end.div_ceil(size) - range.start / size;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.range = Some(match pending.range.take() {
            None => range,
            Some(old) => old.start.min(range.start)..old.end.max(range.end),
        });
        lines
    }

    pub(crate) fn fence(&self) -> Result<(), FenceError> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failed) = pending.failed {
            return Err(failed);
        }
        let synced = match pending.range.take() {
            None => Ok(()),
            Some(range) => self.mapped.sync(range).map_err(FenceError::Sync),
        };
        let result = match synced {
            Ok(()) if self.mapped.damage().has_faulted() => Err(FenceError::Media),
            synced => synced,
        };
        pending.failed = result.err();
        result
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    #[test]
    fn no_fence_succeeds_after_a_failed_write() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("braid", flags).unwrap());
        file.set_len(1 << 17).unwrap();
        let sealed = file.try_clone().unwrap();
        let pages = Pages {
            mapped: MappedFile::new(file, 1 << 17, false, false)
                .unwrap()
                .prewritten(true),
            line_size: 64,
            pending: Mutex::default(),
        };
        pages.write(100, b"first");
        pages.flush(100..105);
        pages.fence().unwrap();
        let mut found = [0; 5];
        words::load(pages.mapped.words(), 100, &mut found);
        assert_eq!(&found, b"first");
        // The mapping can still be stored into, but the file cannot be written.
        fcntl_add_seals(&sealed, SealFlags::FUTURE_WRITE).unwrap();
        pages.write(100, b"other");
        words::load(pages.mapped.words(), 100, &mut found);
        assert_eq!(&found, b"other");
        pages.flush(100..105);
        for _ in 0..2 {
            assert!(matches!(pages.fence(), Err(FenceError::Sync(_))));
        }
    }
}
