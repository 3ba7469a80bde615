//! Regions: persistent memory with a header that says whose it is.

mod check;
#[cfg(unix)]
mod files;

pub use check::RegionDamage;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{FenceError, MapError, MediaError};
use crate::flush::FlushMethod;
use crate::header::{self, Found, HEADER_END, Header};
use crate::mapping::Mapping;
use crate::options::{MapAs, MapOptions};

/// Lengths of regions are multiples of it: pages of every machine.
const UNIT: u64 = 1 << 16;

/// Bytes of a page, unless the options say otherwise.
const DEFAULT_PAGE_SIZE: u32 = 4096;

/// A region that cannot be created or opened. Nothing in the file was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The file exists.
    #[error("cannot create region {0}: the file exists; remove it, or choose another name")]
    AlreadyExists(Name),
    /// There is no file.
    #[error("cannot open region {0}: there is no such file; create the region first")]
    NotFound(Name),
    /// The file is something else.
    #[error(
        "cannot open region {0}: the file is not a region of Braid; choose another file, this one \
         was left as it is"
    )]
    Foreign(Name),
    /// Creating the region was interrupted.
    #[error(
        "cannot open region {0}: its creation was interrupted; remove the file and create the \
         region again"
    )]
    Unfinished(Name),
    /// Both copies of the header are damaged.
    #[error(
        "cannot open region {0}: both copies of its header are damaged; restore it from a backup, \
         or remove it if it was being created"
    )]
    TornHeader(Name),
    /// A newer or older format.
    #[error(
        "cannot open region {name}: it has format version {found}, this program reads version \
         {supported}; use the program that wrote it"
    )]
    Version {
        /// The region.
        name: Name,
        /// The region's version.
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// Fewer bytes than a region needs, or than its header says.
    #[error(
        "cannot use region {name}: it has {found} bytes, and needs {needed}; if the file was cut \
         off, restore it from a backup"
    )]
    TooSmall {
        /// The region.
        name: Name,
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        needed: u64,
    },
    /// Another page size.
    #[error(
        "cannot open region {name}: it has pages of {found} bytes, requested are {requested}; open \
         it with its own page size"
    )]
    PageSize {
        /// The region.
        name: Name,
        /// Its page size in bytes.
        found: u32,
        /// The requested page size in bytes.
        requested: u32,
    },
    /// Another size of cache lines.
    #[error(
        "cannot open region {name}: it was made for cache lines of {found} bytes, this machine has \
         lines of {here}; copy its data with a machine of the first kind"
    )]
    LineSize {
        /// The region.
        name: Name,
        /// Line size of the machine that created it, in bytes.
        found: u32,
        /// Line size of this machine, in bytes.
        here: u32,
    },
    /// This process has it open.
    #[error(
        "cannot open region {0}: this process has it open already; use that handle, or close it"
    )]
    OpenHere(Name),
    /// Another process has it open.
    #[error("cannot open region {0}: another process has it open; stop that process first")]
    OpenElsewhere(Name),
    /// Bytes of the header are lost.
    #[error("cannot open region {name}: {source}")]
    Media {
        /// The region.
        name: Name,
        /// The lost bytes.
        source: MediaError,
    },
    /// The header cannot be made durable.
    #[error("cannot write the header of region {name}: {source}")]
    Fence {
        /// The region.
        name: Name,
        /// Why.
        source: FenceError,
    },
    /// The file cannot be mapped.
    #[error("region {name}: {source}")]
    Map {
        /// The region.
        name: Name,
        /// Why.
        source: MapError,
    },
    /// A system call failed.
    #[error("cannot {action} region {name}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The region.
        name: Name,
        /// Why it failed.
        source: io::Error,
    },
}

/// The name of a region in messages: its path, if it is a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Option<PathBuf>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => write!(f, "{}", path.display()),
            None => f.write_str("(simulated)"),
        }
    }
}

/// Options of [`Region`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RegionOptions {
    /// How to map the file.
    pub map: MapOptions,
    /// Bytes of a page of whatever the region will contain. Opening a region with pages of another
    /// size fails. `None`: pages of 4,096 bytes in a new region, of any size in an existing one.
    pub page_size: Option<u32>,
    /// Whether other processes may open the region for writing at the same time, with this option
    /// as well. Each may open it once. Their turns at growing the region, and everything in it, are
    /// the callers' to order; opening and closing leave the header as it is.
    pub is_shared: bool,
}

impl RegionOptions {
    /// Sets how to map the file.
    #[must_use]
    pub fn map_as(mut self, map_as: MapAs) -> Self {
        self.map.map_as = map_as;
        self
    }

    /// Sets the length that the region can grow to, in bytes.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.map.capacity = bytes;
        self
    }

    /// Sets whether growing an ordinary file [writes](MapOptions::prewritten) its new bytes.
    #[must_use]
    pub fn prewritten(mut self, prewritten: bool) -> Self {
        self.map.prewritten = prewritten;
        self
    }

    /// Sets [`page_size`](Self::page_size).
    #[must_use]
    pub fn page_size(mut self, bytes: u32) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Sets [`is_shared`](Self::is_shared).
    #[must_use]
    pub fn shared(mut self, is_shared: bool) -> Self {
        self.is_shared = is_shared;
        self
    }
}

/// Persistent memory that belongs to Braid.
///
/// The bytes from [`Region::DATA_START`] on are free for use. In front of them are the header and a
/// few [roots](Region::root): words from which a program finds its data.
///
/// A region is open once: a second opening, by this process or another, fails. Any number of
/// processes may open it for reading at the same time.
///
/// ```
/// use braid_pmem::{Mapping, Region, RegionOptions, SimulatedMemory, SimulatedOptions, Survivors};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = SimulatedMemory::new(1 << 20, SimulatedOptions::default());
/// let options = RegionOptions::default();
/// let region = Region::create_in(Mapping::simulated(&memory), &options)?;
/// region.mapping().write(Region::DATA_START, b"data");
/// region.mapping().persist(Region::DATA_START..Region::DATA_START + 4)?;
/// region.set_root(0, Region::DATA_START)?;
///
/// let image = memory.crash(Survivors::Random(7));
/// let memory = SimulatedMemory::from_image(&image, SimulatedOptions::default());
/// let region = Region::open_in(Mapping::simulated(&memory), &options)?;
/// assert!(!region.was_closed());
/// let mut data = [0; 4];
/// region.mapping().read(region.root(0)?, &mut data)?;
/// assert_eq!(&data, b"data");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    header: Mutex<Header>,
    name: Name,
    /// The header when the region was opened.
    found: Header,
    is_shared: bool,
}

impl Region {
    /// Offset of the first byte that is free for use.
    pub const DATA_START: u64 = HEADER_END;
    /// Length of the smallest region in bytes.
    pub const MIN_LEN: u64 = HEADER_END + UNIT;
    /// Number of [roots](Self::root).
    pub const ROOTS: usize = header::ROOTS;

    /// Creates a region of `len` bytes, rounded up to 64 KiB, in a new file.
    ///
    /// # Errors
    ///
    /// [`RegionError::AlreadyExists`], [`RegionError::TooSmall`] below [`Self::MIN_LEN`],
    /// [`RegionError::Map`], or the error of a system call. The file is removed again.
    pub fn create(path: &Path, len: u64, options: &RegionOptions) -> Result<Self, RegionError> {
        let name = Name(Some(path.to_owned()));
        expect_len(&name, len)?;
        #[cfg(unix)]
        return files::create(path, len.next_multiple_of(UNIT), options, name);
        #[cfg(not(unix))]
        Err(no_files(name, options))
    }

    /// Opens the region in a file.
    ///
    /// # Errors
    ///
    /// [`RegionError`]; the file is unchanged.
    pub fn open(path: &Path, options: &RegionOptions) -> Result<Self, RegionError> {
        let name = Name(Some(path.to_owned()));
        #[cfg(unix)]
        return files::open(path, options, name);
        #[cfg(not(unix))]
        Err(no_files(name, options))
    }

    /// Opens the region in a file for reading only, while another process may write it. Storing
    /// panics. The length is that of the opening.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    pub fn open_read_only(path: &Path, options: &RegionOptions) -> Result<Self, RegionError> {
        let mut options = *options;
        options.map.read_only = true;
        Self::open(path, &options)
    }

    /// Creates a region in a mapping, all of which it uses.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooSmall`] or [`RegionError::Fence`].
    pub fn create_in(mapping: Mapping, options: &RegionOptions) -> Result<Self, RegionError> {
        Self::write_new(mapping, options, Name(None))
    }

    /// Opens the region in a mapping.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    pub fn open_in(mapping: Mapping, options: &RegionOptions) -> Result<Self, RegionError> {
        Self::read(mapping, options, Name(None))
    }

    fn write_new(
        mapping: Mapping,
        options: &RegionOptions,
        name: Name,
    ) -> Result<Self, RegionError> {
        expect_len(&name, mapping.len())?;
        let mut header = Header {
            identity: [braid_rt::entropy(), braid_rt::entropy()],
            len: mapping.len(),
            page_size: options.page_size.unwrap_or(DEFAULT_PAGE_SIZE),
            line_size: line_size(&mapping),
            method: mapping.flush_method().code(),
            is_closed: false,
            generation: 0,
        };
        let written = header.write(&mapping);
        let region = Self {
            mapping: Arc::new(mapping),
            header: Mutex::new(header),
            name,
            found: Header {
                is_closed: true,
                ..header
            },
            is_shared: false,
        };
        region.fence_result(written).map(|()| region)
    }

    fn read(mapping: Mapping, options: &RegionOptions, name: Name) -> Result<Self, RegionError> {
        if mapping.len() < Self::MIN_LEN {
            expect_len(&name, mapping.len())?;
        }
        let found = match Header::read(&mapping) {
            Found::Valid(header) => header,
            Found::Empty => return Err(RegionError::Unfinished(name)),
            Found::Foreign => return Err(RegionError::Foreign(name)),
            Found::Torn => return Err(RegionError::TornHeader(name)),
            Found::Lost(source) => return Err(RegionError::Media { name, source }),
            Found::Version(found) => {
                let supported = header::VERSION;
                return Err(RegionError::Version {
                    name,
                    found,
                    supported,
                });
            }
        };
        let needed = found.len;
        // Another process may have extended the region since the file was mapped.
        if mapping.len() < needed
            && let Err(source) = mapping.follow()
        {
            return Err(RegionError::Map { name, source });
        }
        let len = mapping.len();
        if len < needed {
            let found = len;
            return Err(RegionError::TooSmall {
                name,
                found,
                needed,
            });
        }
        if let Some(requested) = options.page_size
            && found.page_size != requested
        {
            let found = found.page_size;
            return Err(RegionError::PageSize {
                name,
                found,
                requested,
            });
        }
        if found.line_size != line_size(&mapping) {
            return Err(RegionError::LineSize {
                name,
                found: found.line_size,
                here: line_size(&mapping),
            });
        }
        let mut header = Header {
            method: mapping.flush_method().code(),
            is_closed: false,
            ..found
        };
        // Also repairs a torn copy.
        let written = if mapping.is_read_only() || options.is_shared {
            Ok(())
        } else {
            header.write(&mapping)
        };
        let region = Self {
            mapping: Arc::new(mapping),
            header: Mutex::new(header),
            name,
            found,
            is_shared: options.is_shared,
        };
        region.fence_result(written).map(|()| region)
    }

    fn fence_result(&self, result: Result<(), FenceError>) -> Result<(), RegionError> {
        result.map_err(|source| RegionError::Fence {
            name: self.name.clone(),
            source,
        })
    }

    /// The memory. It stays open, and claimed, while a clone of the handle exists.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// A random number that this region, and no other, has.
    #[must_use]
    pub fn identity(&self) -> u128 {
        let [low, high] = self.found.identity;
        u128::from(low) | u128::from(high) << 64
    }

    /// Length in bytes, with the header.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.header().len
    }

    /// Whether there are no bytes: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a page, from the options at creation.
    #[must_use]
    pub fn page_size(&self) -> u32 {
        self.found.page_size
    }

    /// Whether the region was closed before this opening, and not left by a crash. A new region
    /// counts as closed.
    #[must_use]
    pub fn was_closed(&self) -> bool {
        self.found.is_closed
    }

    /// The method with which lines were flushed before this opening; `None` if this program does
    /// not know it. The methods of one line size may change from machine to machine.
    #[must_use]
    pub fn previous_flush_method(&self) -> Option<FlushMethod> {
        FlushMethod::from_code(self.found.method)
    }

    /// Loads a root: a word of the program's own, zero in a new region.
    ///
    /// # Errors
    ///
    /// [`MediaError`] if the medium lost it.
    ///
    /// # Panics
    ///
    /// If `index` is not less than [`Self::ROOTS`].
    pub fn root(&self, index: usize) -> Result<u64, MediaError> {
        header::root(&self.mapping, index)
    }

    /// Stores a root durably. What the value leads to must be durable before.
    ///
    /// # Errors
    ///
    /// [`FenceError`].
    ///
    /// # Panics
    ///
    /// If `index` is not less than [`Self::ROOTS`], or the region is open for reading only.
    pub fn set_root(&self, index: usize, value: u64) -> Result<(), FenceError> {
        header::set_root(&self.mapping, index, value)
    }

    /// Extends the region durably to at least `len` bytes.
    ///
    /// # Errors
    ///
    /// [`RegionError::Map`] if there is no space, or [`RegionError::Fence`].
    pub fn grow(&self, len: u64) -> Result<(), RegionError> {
        let mut header = self.header();
        if self.is_shared {
            // Another process may have changed it in its turn.
            self.follow()?;
            if let Found::Valid(newest) = Header::read(&self.mapping) {
                *header = newest;
            }
        }
        if len <= header.len {
            return Ok(());
        }
        let grown = self.mapping.grow(len.next_multiple_of(UNIT));
        grown.map_err(|source| RegionError::Map {
            name: self.name.clone(),
            source,
        })?;
        header.len = self.mapping.len();
        self.fence_result(header.write(&self.mapping))
    }

    /// Maps what other processes have added to a [shared](RegionOptions::is_shared) region.
    ///
    /// # Errors
    ///
    /// [`RegionError::Map`].
    pub fn follow(&self) -> Result<(), RegionError> {
        self.mapping.follow().map_err(|source| RegionError::Map {
            name: self.name.clone(),
            source,
        })
    }

    /// Closes the region, so that its next opening finds it [closed](Self::was_closed). Dropping it
    /// does the same, and ignores errors.
    ///
    /// # Errors
    ///
    /// [`RegionError::Fence`].
    pub fn close(self) -> Result<(), RegionError> {
        self.fence_result(self.mark_closed())
    }

    fn mark_closed(&self) -> Result<(), FenceError> {
        let mut header = self.header();
        if header.is_closed || self.mapping.is_read_only() || self.is_shared {
            return Ok(());
        }
        header.is_closed = true;
        header.write(&self.mapping)
    }

    fn header(&self) -> std::sync::MutexGuard<'_, Header> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // After a panic, the region counts as left by a crash.
        if !std::thread::panicking() {
            let _ = self.mark_closed();
        }
    }
}

fn expect_len(name: &Name, found: u64) -> Result<(), RegionError> {
    if found >= Region::MIN_LEN {
        return Ok(());
    }
    Err(RegionError::TooSmall {
        name: name.clone(),
        found,
        needed: Region::MIN_LEN,
    })
}

fn line_size(mapping: &Mapping) -> u32 {
    u32::try_from(mapping.line_size()).expect("a small power of two")
}

#[cfg(not(unix))]
fn no_files(name: Name, _: &RegionOptions) -> RegionError {
    let source = MapError::NoFiles;
    RegionError::Map { name, source }
}

#[cfg(test)]
mod tests;
