//! Bytes of a file in memory, at an address that does not change while the file grows.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use braid_rt::to_usize;
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::damage::Damage;
use crate::error::{MapError, SystemError};
use crate::sigbus::{self, Registration};
use crate::words::WORD;

/// Alignment of the address: pages of 2 MiB can then map it.
const ALIGN: usize = 2 << 20;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct MappedFile {
    base: NonNull<AtomicU64>,
    /// Mapped bytes, a multiple of the page size.
    len: AtomicU64,
    is_read_only: bool,
    damage: Box<Damage>,
    /// Largest length in bytes.
    capacity: u64,
    /// Whether page faults are synchronous (`MAP_SYNC`).
    is_synchronous: bool,
    /// Whether new bytes of the file are written.
    is_prewritten: bool,
    /// Held while the file grows.
    growing: Mutex<()>,
    file: File,
    /// Dropped before the memory is unmapped.
    registration: Option<Registration>,
    /// The reserved addresses.
    reserved: (NonNull<u8>, usize),
}

/// Reserves addresses for `capacity` bytes, or half as often as needed for as many as the process may
/// have, and at least for `len`. Returns the first address, and the number of bytes: whole pages, and
/// `ALIGN` more. They can be read, as zeros, which takes no memory.
fn reserve(len: u64, capacity: u64) -> Result<(NonNull<u8>, usize), MapError> {
    let page = sigbus::page_size() as u64;
    let mut capacity = capacity.max(len);
    loop {
        let whole = capacity.checked_next_multiple_of(page);
        let size = whole.and_then(|whole| usize::try_from(whole).ok()?.checked_add(ALIGN));
        let reserved = size.map(|size| {
            // SAFETY: reserves addresses that nothing uses.
            let start = unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ, flags)
            };
            start.map(|start| (start, size))
        });
        match reserved {
            Some(Ok((start, size))) => {
                let start = NonNull::new(start.cast::<u8>()).expect("an address");
                return Ok((start, size));
            }
            Some(Err(error)) if capacity <= len.max(page) => {
                return Err(system("reserving addresses")(error.into()));
            }
            None if capacity <= len => {
                return Err(MapError::Capacity {
                    len,
                    capacity: u64::MAX,
                });
            }
            // The process has fewer addresses, or a limit of them.
            Some(Err(_)) | None => capacity = (capacity / 2).max(len),
        }
    }
}

// SAFETY: the memory is only accessed through atomic words, and belongs to the value.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps all whole pages of a file. `is_synchronous` asks for `MAP_SYNC`.
    pub(crate) fn new(
        file: File,
        capacity: u64,
        is_read_only: bool,
        is_synchronous: bool,
    ) -> Result<Self, MapError> {
        let metadata = file.metadata().map_err(system("reading its length"))?;
        let page = sigbus::page_size() as u64;
        let len = metadata.len() / page * page;
        let (start, size) = reserve(len, capacity)?;
        let capacity = (size - ALIGN) as u64;
        let skip = start.addr().get().next_multiple_of(ALIGN) - start.addr().get();
        // SAFETY: `skip` is less than ALIGN, which was added to the size.
        let base = unsafe { start.add(skip) }.cast::<AtomicU64>();
        let mut mapped = Self {
            base,
            len: AtomicU64::new(0),
            is_read_only,
            damage: Box::new(Damage::new()),
            capacity,
            is_synchronous,
            is_prewritten: false,
            growing: Mutex::new(()),
            file,
            registration: None,
            reserved: (start, size),
        };
        let address = base.addr().get();
        // SAFETY: `damage` is in a box that lives as long as the registration, which `drop` ends
        // before it unmaps the addresses.
        let registration =
            unsafe { Registration::new(address..address + (size - skip), &mapped.damage) };
        mapped.registration = Some(registration?);
        mapped.map(0..len)?;
        Ok(mapped)
    }

    /// Changes whether growing writes the new bytes, and then asks for single pages in memory: a
    /// store makes all of a large one dirty.
    pub(crate) fn prewritten(mut self, is_prewritten: bool) -> Self {
        self.is_prewritten = is_prewritten;
        self.expect_single_pages(0..self.len());
        self
    }

    pub(crate) fn is_prewritten(&self) -> bool {
        self.is_prewritten
    }

    /// Writes bytes in a system call. They are in the mapping when it returns.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SystemError> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| SystemError(error.raw_os_error().unwrap_or(0)))
    }

    fn expect_single_pages(&self, range: Range<u64>) {
        if !self.is_prewritten || range.is_empty() {
            return;
        }
        let (start, len) = (to_usize(range.start), to_usize(range.end - range.start));
        // SAFETY: the range is mapped, and the advice does not change memory.
        let _ = unsafe {
            let address = self.base.as_ptr().cast::<u8>().add(start);
            // Advice: without it, flushes write more.
            rustix::mm::madvise(address.cast(), len, rustix::mm::Advice::Random)
        };
    }

    /// Maps further bytes of the file.
    fn map(&self, range: Range<u64>) -> Result<(), MapError> {
        if range.is_empty() {
            return Ok(());
        }
        let offset = to_usize(range.start);
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, !self.is_read_only);
        #[cfg(target_os = "linux")]
        let flags = if self.is_synchronous {
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC
        } else {
            MapFlags::SHARED
        };
        #[cfg(not(target_os = "linux"))]
        let flags = MapFlags::SHARED;
        // SAFETY: the addresses are reserved by this value, and nothing was mapped there yet.
        let mapped = unsafe {
            rustix::mm::mmap(
                self.base.as_ptr().cast::<u8>().add(offset).cast(),
                to_usize(range.end) - offset,
                protection,
                flags | MapFlags::FIXED,
                &self.file,
                range.start,
            )
        };
        match mapped {
            Ok(_) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) if self.is_synchronous => {
                return Err(MapError::NotDax);
            }
            Err(error) => return Err(system("mmap")(error.into())),
        }
        self.expect_single_pages(range.clone());
        // Pairs with the acquire load in `len`: who sees the length may access the bytes.
        self.len.store(range.end, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // Pairs with the release store in `map`.
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    #[inline]
    pub(crate) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// All mapped words. They are read-only in memory if the mapping is.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let words = to_usize(self.len()) / WORD;
        // SAFETY: so many bytes are mapped, aligned to a page, and stay mapped as long as `self`
        // lives. Every bit pattern is a valid word. Other threads and processes access them as
        // atomics; what another program does to the file's bytes is the same as an atomic store.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), words) }
    }

    /// The words of all reserved addresses. Those that the mapping does not have are zero, and
    /// loading one changes nothing.
    #[inline]
    pub(crate) fn reserved_words(&self) -> &[AtomicU64] {
        let words = to_usize(self.capacity) / WORD;
        // SAFETY: as in `words`; all reserved addresses can be read as long as `self` lives, since
        // `reserve` and `shrink` map zeros, and `map` replaces them in one step.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), words) }
    }

    /// Forgets whole pages after `len` bytes, which the file is about to lose: they read as zeros.
    pub(crate) fn shrink(&self, len: u64) -> Result<(), MapError> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = len.next_multiple_of(sigbus::page_size() as u64);
        let mapped = self.len();
        if kept >= mapped {
            return Ok(());
        }
        self.len.store(kept, Ordering::Release);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the addresses belong to this value, and stay readable. The caller ensures that no
        // thread stores into them.
        let replaced = unsafe {
            rustix::mm::mmap_anonymous(
                self.base.as_ptr().cast::<u8>().add(to_usize(kept)).cast(),
                to_usize(mapped - kept),
                ProtFlags::READ,
                flags,
            )
        };
        replaced
            .map(|_| ())
            .map_err(|error| system("mmap")(error.into()))
    }

    /// Extends the file durably to `len` bytes, rounded up to whole pages, and maps the new ones.
    pub(crate) fn grow(&self, len: u64) -> Result<(), MapError> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let page = sigbus::page_size() as u64;
        let rounded = len.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let mapped = self.len();
        if rounded <= mapped {
            return Ok(());
        }
        if self.is_read_only {
            return Err(MapError::ReadOnly);
        }
        if rounded > self.capacity {
            let capacity = self.capacity;
            return Err(MapError::Capacity { len, capacity });
        }
        extend(&self.file, rounded, self.is_prewritten)?;
        self.map(mapped..rounded)
    }

    /// Maps what others have appended to the file.
    pub(crate) fn follow(&self) -> Result<(), MapError> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = self.file.metadata();
        let page = sigbus::page_size() as u64;
        let len = metadata.map_err(system("reading its length"))?.len() / page * page;
        if len > self.capacity {
            let capacity = self.capacity;
            return Err(MapError::Capacity { len, capacity });
        }
        let mapped = self.len();
        if len <= mapped {
            return Ok(());
        }
        self.map(mapped..len)
    }

    /// Makes the pages of a range ready for stores. Returns `false` if the system cannot.
    pub(crate) fn populate(&self, range: Range<u64>) -> bool {
        #[cfg(target_os = "linux")]
        {
            let page = sigbus::page_size() as u64;
            let start = to_usize(range.start / page * page);
            let len = to_usize(range.end) - start;
            // SAFETY: the range is mapped; the call does not change its bytes.
            let populated = unsafe {
                let address = self.base.as_ptr().cast::<u8>().add(start);
                rustix::mm::madvise(address.cast(), len, rustix::mm::Advice::LinuxPopulateWrite)
            };
            populated.is_ok()
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = range;
            false
        }
    }

    /// Makes the pages of a range durable.
    pub(crate) fn sync(&self, range: Range<u64>) -> Result<(), SystemError> {
        let page = sigbus::page_size() as u64;
        let start = to_usize(range.start / page * page);
        let len = to_usize(range.end.next_multiple_of(page)) - start;
        // SAFETY: the range is mapped; the call does not change memory.
        let synced = unsafe {
            let address = self.base.as_ptr().cast::<u8>().add(start);
            retry_on_intr(|| rustix::mm::msync(address.cast(), len, MsyncFlags::SYNC))
        };
        synced.map_err(|error| SystemError(error.raw_os_error()))?;
        // There, msync leaves the bytes in the device's cache.
        #[cfg(target_vendor = "apple")]
        self.file
            .sync_data()
            .map_err(|error| SystemError(error.raw_os_error().unwrap_or(0)))?;
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        drop(self.registration.take());
        let (start, size) = self.reserved;
        // SAFETY: the addresses belong to this value, and its borrows have ended.
        let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), size) };
    }
}

/// Extends a file to `len` bytes with blocks, durably, and writes them if `is_prewritten`: the first
/// write to an allocated block changes the file system's metadata.
pub(crate) fn extend(file: &File, len: u64, is_prewritten: bool) -> Result<(), MapError> {
    let current = file.metadata().map_err(system("reading its length"))?.len();
    if len > current {
        allocate(file, len)?;
    }
    if is_prewritten {
        // One page at a time, which the kernel then keeps as single pages.
        let page = vec![0; sigbus::page_size()];
        let mut at = current;
        while at < len {
            let count = (page.len() as u64).min(len - at);
            file.write_all_at(&page[..to_usize(count)], at)
                .map_err(|error| failed_extension(error, len))?;
            at += count;
        }
    }
    file.sync_all()
        .map_err(|error| failed_extension(error, len))
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, len: u64) -> Result<(), MapError> {
    let current = file.metadata().map_err(system("reading its length"))?.len();
    match braid_rt::allocate_blocks(file, current..len) {
        Ok(true) => Ok(()),
        // Without blocks, a full file system shows as a damaged page.
        Ok(false) => set_len(file, len),
        Err(error) => Err(failed_extension(error, len)),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, len: u64) -> Result<(), MapError> {
    set_len(file, len)
}

fn set_len(file: &File, len: u64) -> Result<(), MapError> {
    file.set_len(len)
        .map_err(|error| failed_extension(error, len))
}

fn failed_extension(source: io::Error, len: u64) -> MapError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => MapError::NoSpace { len },
        _ => system("extending the file")(source),
    }
}

pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> MapError {
    move |source| MapError::System { action, source }
}
