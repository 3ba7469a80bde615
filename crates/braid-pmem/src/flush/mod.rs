//! Moves cache lines to persistent memory: the only module with instructions of a processor.
//!
//! A store to persistent memory stays in the caches until the line is written back. A *flush* starts
//! that for each line of a range; a *fence* waits until all flushes of the calling thread have
//! reached the persistence domain. The processor may also write a line back at any earlier time.
//!
//! | processor | flush | fence |
//! |---|---|---|
//! | x86-64 | `clwb`, otherwise `clflushopt`, otherwise `clflush` | `sfence` |
//! | 64-bit Arm | `dc cvap`, otherwise `dc civac` | `dsb sy` |
//! | POWER | `dcbstps` (ISA 3.1), otherwise `dcbf` | `phwsync`, otherwise `hwsync` |

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
#[path = "aarch64.rs"]
mod instructions;
#[cfg(all(target_arch = "powerpc64", target_os = "linux", not(miri)))]
#[path = "powerpc64.rs"]
mod instructions;
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[path = "x86_64.rs"]
mod instructions;
#[cfg(not(all(
    not(miri),
    any(
        target_arch = "x86_64",
        all(
            target_os = "linux",
            any(target_arch = "aarch64", target_arch = "powerpc64")
        )
    )
)))]
#[path = "other.rs"]
mod instructions;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// How lines reach the persistence domain.
///
/// A region records the method of its last opening; see [`FlushMethod::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushMethod {
    /// The caches belong to the persistence domain, so that a fence is enough.
    CachesPersist,
    /// x86-64: writes a line back and keeps it in the cache.
    Clwb,
    /// x86-64: evicts a line; unordered with other lines.
    ClflushOpt,
    /// x86-64: evicts a line; one after the other.
    Clflush,
    /// 64-bit Arm: cleans a line to the point of persistence.
    DcCvap,
    /// 64-bit Arm without a point of persistence: cleans and invalidates a line to the point of
    /// coherency.
    DcCivac,
    /// POWER since ISA 3.1: stores a line to persistent storage.
    Dcbstps,
    /// POWER before ISA 3.1: flushes a line.
    Dcbf,
    /// The operating system writes pages of a file back (`msync`).
    SystemCall,
    /// Nothing is written: the memory is simulated.
    Simulated,
}

impl FlushMethod {
    const ALL: [Self; 10] = [
        Self::CachesPersist,
        Self::Clwb,
        Self::ClflushOpt,
        Self::Clflush,
        Self::DcCvap,
        Self::DcCivac,
        Self::Dcbstps,
        Self::Dcbf,
        Self::SystemCall,
        Self::Simulated,
    ];

    /// Returns the number that stands for the method in a region's header, from 1.
    #[must_use]
    pub fn code(self) -> u32 {
        self as u32 + 1
    }

    /// Returns the method of a [code](Self::code).
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.code() == code)
    }
}

impl fmt::Display for FlushMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CachesPersist => "none (caches persist)",
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
            Self::DcCivac => "dc civac",
            Self::Dcbstps => "dcbstps",
            Self::Dcbf => "dcbf",
            Self::SystemCall => "msync",
            Self::Simulated => "simulated",
        })
    }
}

/// No instruction is known that flushes a cache line on this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot flush cache lines on this processor ({}): no such instruction is known; use an ordinary \
     file, which msync makes durable",
    std::env::consts::ARCH
)]
pub struct Unsupported;

/// Length from which a copy bypasses the cache where the processor can, in bytes. Below it, storing
/// and flushing takes less time (PMDK uses the same length).
pub const LONG_COPY: usize = 256;

/// The instructions with which this machine flushes lines.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// match braid_pmem::Flusher::detect() {
///     Ok(flusher) => {
///         let word = AtomicU64::new(0);
///         word.store(7, Ordering::Relaxed);
///         assert_eq!(flusher.flush(std::slice::from_ref(&word)), 1);
///         flusher.fence();
///     }
///     Err(unsupported) => println!("{unsupported}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flusher {
    method: FlushMethod,
    line_size: usize,
}

impl Flusher {
    /// Selects the best instruction that this processor has.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if no such instruction is known.
    pub fn detect() -> Result<Self, Unsupported> {
        let (method, line_size) = instructions::detect()?;
        debug_assert!(line_size.is_power_of_two() && line_size >= 8);
        Ok(Self { method, line_size })
    }

    /// Leaves out the flushes if caches belong to the persistence domain.
    #[must_use]
    pub fn for_domain(self, domain: PersistenceDomain) -> Self {
        match domain {
            PersistenceDomain::Caches => Self {
                method: FlushMethod::CachesPersist,
                ..self
            },
            PersistenceDomain::Memory => self,
        }
    }

    /// The method that flushes use.
    #[must_use]
    pub fn method(self) -> FlushMethod {
        self.method
    }

    /// Bytes of a cache line, a power of two.
    #[must_use]
    pub fn line_size(self) -> usize {
        self.line_size
    }

    /// Starts to write back every line that contains one of the words. Returns the number of lines,
    /// also if no instruction is needed for them.
    #[inline]
    pub fn flush(self, words: &[AtomicU64]) -> u64 {
        if words.is_empty() {
            return 0;
        }
        let first = words.as_ptr().addr();
        let end = first + size_of_val(words);
        let aligned = first & !(self.line_size - 1);
        let lines = (end - aligned).div_ceil(self.line_size);
        if self.method != FlushMethod::CachesPersist {
            for line in 0..lines {
                // The first line may begin before the words.
                let at = (aligned + line * self.line_size).max(first) - first;
                instructions::flush_line(self.method, &words[at / 8]);
            }
        }
        lines as u64
    }

    /// Waits until everything that the calling thread flushed is in the persistence domain. Stores
    /// after the fence become visible, and durable, after stores before it that were flushed.
    #[inline]
    pub fn fence(self) {
        instructions::fence(self.method);
    }

    /// Stores bytes into whole lines and flushes them. Uses stores that bypass the cache, if the
    /// processor has them. When it returns, other threads see the bytes as after ordinary relaxed
    /// stores. Returns the number of lines.
    ///
    /// # Panics
    ///
    /// If the lengths differ: `bytes` has eight bytes for each word.
    pub(crate) fn store_lines(self, words: &[AtomicU64], bytes: &[u8]) -> u64 {
        assert_eq!(size_of_val(words), bytes.len());
        let is_whole = |size: usize| size.is_multiple_of(self.line_size);
        debug_assert!(is_whole(words.as_ptr().addr()) && is_whole(bytes.len()));
        if instructions::store_around_cache(words, bytes) {
            return (bytes.len() / self.line_size) as u64;
        }
        crate::words::store(words, 0, bytes);
        self.flush(words)
    }
}

/// Where stores survive a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceDomain {
    /// In memory and its controller; a line must be flushed.
    Memory,
    /// In the caches, too: energy is stored to write them back (on x86, eADR).
    Caches,
}

impl PersistenceDomain {
    /// Reads the persistence domain that the kernel reports for this machine's persistent memory.
    #[must_use]
    pub fn read() -> Self {
        Self::read_from(Path::new("/sys/bus/nd/devices"))
    }

    /// As [`read`](Self::read), from another directory than `/sys/bus/nd/devices`.
    ///
    /// The caches count only if every region of the machine says so: nothing is concluded from the
    /// region that a file happens to lie in, as files move.
    #[must_use]
    pub fn read_from(devices: &Path) -> Self {
        let mut regions = 0;
        for entry in fs::read_dir(devices).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with("region") {
                continue;
            }
            let domain = fs::read_to_string(entry.path().join("persistence_domain"));
            if domain.is_ok_and(|domain| domain.trim() == "cpu_cache") {
                regions += 1;
            } else {
                return Self::Memory;
            }
        }
        match regions {
            0 => Self::Memory,
            _ => Self::Caches,
        }
    }
}
