//! Mappings: bytes of persistent memory, and what makes stores into them durable.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_rt::to_usize;

use crate::counters::{Counters, MappingStats};
use crate::error::{FenceError, MapError, MediaError};
use crate::flush::{FlushMethod, LONG_COPY};
use crate::options::{MapAs, MapOptions, MappingKind};
use crate::simulated::SimulatedMemory;
use crate::words::{self, WORD};

#[cfg(unix)]
use crate::claim::Claim;
#[cfg(unix)]
use crate::file_backed::{Lines, Pages};

/// Bytes of persistent memory.
///
/// Offsets and lengths are in bytes. Threads may access the same bytes at the same time: bytes are
/// read and written as relaxed atomic words of eight bytes, in the byte order of the machine, so
/// that a word is never torn.
///
/// # Durability
///
/// A store is durable after a [`flush`](Self::flush) of its line and a [`fence`](Self::fence) by the
/// thread that flushed. Before that it may be durable already: a line may be written back at any
/// time. There is no order between lines that are not separated by a fence. The stores of one line
/// become durable in the order in which they become visible to other threads; a release store
/// after the stores before it.
///
/// # Panics
///
/// Methods panic if a range is not within the mapping, if an offset of a word is not a multiple of
/// 8, and if a method stores into a mapping that is open for reading only.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use braid_pmem::{Mapping, SimulatedMemory, SimulatedOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = SimulatedMemory::new(4096, SimulatedOptions::default());
/// let log = Mapping::simulated(&memory);
/// // A record, then its mark, which must not be durable before the record.
/// log.write(64, b"a record");
/// log.persist(64..72)?;
/// log.store_u64(0, 1, Ordering::Release);
/// log.persist(0..8)?;
/// assert_eq!(log.stats().fences, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mapping {
    backend: Backend,
    counters: Counters,
    /// Dropped after the file is closed.
    #[cfg(unix)]
    claim: Option<Claim>,
}

#[derive(Debug)]
enum Backend {
    #[cfg(unix)]
    Lines(Lines),
    #[cfg(unix)]
    Pages(Pages),
    Simulated(SimulatedMemory),
}

impl Mapping {
    /// Maps the whole pages of an open file.
    ///
    /// # Errors
    ///
    /// [`MapError::NotDax`] and [`MapError::FalseDax`] if direct access is required and missing,
    /// [`MapError::Volatile`] if the file lies in memory and emulation was not asked for,
    /// [`MapError::Unsupported`] and [`MapError::NoFiles`] on other machines, or the error of a
    /// system call.
    #[cfg_attr(not(unix), allow(unused_variables, clippy::needless_pass_by_value))]
    pub fn of_file(file: File, options: &MapOptions) -> Result<Self, MapError> {
        #[cfg(unix)]
        let backend = match options.map_as {
            MapAs::Emulated { line_latency } => {
                Backend::Lines(Lines::emulated(file, options, line_latency)?)
            }
            MapAs::Dax => Backend::Lines(Lines::dax(file, options)?),
            MapAs::File => Backend::Pages(Pages::new(file, options)?),
            MapAs::Auto => {
                let copy = file.try_clone().map_err(crate::mapped::system("dup"))?;
                match Lines::dax(copy, options) {
                    // Nothing of an empty file shows what it is.
                    Ok(lines) if lines.mapped().len() > 0 => Backend::Lines(lines),
                    Ok(_)
                    | Err(MapError::NotDax | MapError::FalseDax | MapError::Unsupported(_)) => {
                        Backend::Pages(Pages::new(file, options)?)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        #[cfg(unix)]
        return Ok(Self::new(backend));
        #[cfg(not(unix))]
        Err(MapError::NoFiles)
    }

    /// Maps simulated memory. Mappings of the same memory share its bytes.
    #[must_use]
    pub fn simulated(memory: &SimulatedMemory) -> Self {
        Self::new(Backend::Simulated(memory.clone()))
    }

    fn new(backend: Backend) -> Self {
        Self {
            backend,
            counters: Counters::default(),
            #[cfg(unix)]
            claim: None,
        }
    }

    /// Keeps a claim of the file as long as the mapping lives.
    #[cfg(unix)]
    pub(crate) fn claimed(mut self, claim: Claim) -> Self {
        self.claim = Some(claim);
        self
    }

    /// The kind of memory.
    #[must_use]
    pub fn kind(&self) -> MappingKind {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.kind(),
            #[cfg(unix)]
            Backend::Pages(_) => MappingKind::File,
            Backend::Simulated(_) => MappingKind::Simulated,
        }
    }

    /// How lines become durable.
    #[must_use]
    pub fn flush_method(&self) -> FlushMethod {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.flush_method(),
            #[cfg(unix)]
            Backend::Pages(_) => FlushMethod::SystemCall,
            Backend::Simulated(_) => FlushMethod::Simulated,
        }
    }

    /// Bytes of a cache line, a power of two.
    #[must_use]
    pub fn line_size(&self) -> usize {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.line_size(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.line_size(),
            Backend::Simulated(memory) => memory.line_size(),
        }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().len(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().len(),
            Backend::Simulated(memory) => memory.len(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Largest length in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().capacity(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().capacity(),
            Backend::Simulated(memory) => memory.capacity(),
        }
    }

    /// Whether storing panics.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().is_read_only(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().is_read_only(),
            Backend::Simulated(_) => false,
        }
    }

    /// Extends the mapping durably with zeros to at least `len` bytes, in a system call. Addresses
    /// do not change: slices of [`words`](Self::words) stay valid. A smaller length has no effect.
    ///
    /// # Errors
    ///
    /// [`MapError::NoSpace`], [`MapError::Capacity`], [`MapError::ReadOnly`], or the error of a
    /// system call. The mapping keeps its length.
    pub fn grow(&self, len: u64) -> Result<(), MapError> {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.grow(len),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().grow(len),
            Backend::Simulated(memory) => memory.grow(len),
        }
    }

    /// Makes the pages of a range ready for stores, in a system call: no later store waits for the file
    /// system to allocate its page. Returns `false` if the system or the kind of memory has no such
    /// call; a store of each page has the same effect.
    ///
    /// # Panics
    ///
    /// As the [type](Self) says.
    #[must_use]
    pub fn populate(&self, range: Range<u64>) -> bool {
        self.expect_within(&range);
        self.expect_writable();
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().populate(range),
            _ => false,
        }
    }

    /// Maps what another process has appended to the file, also if this mapping is for reading only.
    /// Addresses do not change.
    ///
    /// # Errors
    ///
    /// [`MapError::Capacity`], or the error of a system call. The mapping keeps its length.
    pub fn follow(&self) -> Result<(), MapError> {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().follow(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().follow(),
            Backend::Simulated(_) => Ok(()),
        }
    }

    /// Forgets the whole pages after `len` bytes, which the file is about to lose, in a system call.
    /// Threads may still read [`reserved_words`](Self::reserved_words) there, but must not use the
    /// mapping otherwise. A larger length has no effect, as it has on simulated memory.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn shrink(&self, len: u64) -> Result<(), MapError> {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().shrink(len),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().shrink(len),
            Backend::Simulated(_) => {
                let _ = len;
                Ok(())
            }
        }
    }

    /// Returns the words up to [`capacity`](Self::capacity), for reads alone: words that the mapping
    /// does not have are zero. [`check`](Self::check) tells afterwards whether bytes were lost.
    /// `None` for simulated memory.
    #[inline]
    #[must_use]
    pub fn reserved_words(&self) -> Option<&[AtomicU64]> {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => Some(lines.mapped().reserved_words()),
            #[cfg(unix)]
            Backend::Pages(pages) => Some(pages.mapped().reserved_words()),
            Backend::Simulated(_) => None,
        }
    }

    /// All words, without noting that they may be changed.
    #[inline]
    fn all_words(&self) -> &[AtomicU64] {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().words(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().words(),
            Backend::Simulated(memory) => memory.all_words(),
        }
    }

    /// Reads bytes.
    ///
    /// # Errors
    ///
    /// [`MediaError`] if the medium lost some of them.
    #[inline]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let range = offset..offset + bytes.len() as u64;
        self.expect_within(&range);
        // Touching bytes that are known to be lost would only raise another signal.
        self.check(range.clone())?;
        words::load(self.all_words(), to_usize(offset), bytes);
        self.check(range)
    }

    /// Fails if the medium lost bytes of the range, as far as the kernel's list of bad blocks and
    /// earlier accesses show. Call it after reading [`words`](Self::words) or a word.
    ///
    /// # Errors
    ///
    /// [`MediaError`] with the first such byte.
    #[inline]
    pub fn check(&self, range: Range<u64>) -> Result<(), MediaError> {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().damage().check(range),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().damage().check(range),
            Backend::Simulated(memory) => memory.check(range),
        }
    }

    /// Records bytes as lost, so that reading them fails.
    pub(crate) fn record_damage(&self, range: Range<u64>) {
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.mapped().damage().record(range),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.mapped().damage().record(range),
            Backend::Simulated(memory) => memory.lose(range),
        }
    }

    /// Returns the words of a range whose bounds are multiples of 8. The mapping does not count
    /// stores through them, and does not check what is read.
    #[must_use]
    pub fn words(&self, range: Range<u64>) -> &[AtomicU64] {
        self.expect_within(&range);
        self.expect_writable();
        assert!(
            range.start.is_multiple_of(WORD as u64) && range.end.is_multiple_of(WORD as u64),
            "words {range:?} are not aligned to {WORD} bytes"
        );
        let range = to_usize(range.start) / WORD..to_usize(range.end) / WORD;
        match &self.backend {
            Backend::Simulated(memory) => memory.view(range),
            #[cfg(unix)]
            _ => &self.all_words()[range],
        }
    }

    /// Writes bytes. Words in part keep what other threads store into their other bytes.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.expect_within(&(offset..offset + bytes.len() as u64));
        self.expect_writable();
        self.counters.wrote(bytes.len());
        match &self.backend {
            Backend::Simulated(memory) => memory.write(to_usize(offset), bytes),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.write(offset, bytes),
            #[cfg(unix)]
            Backend::Lines(_) => words::store(self.all_words(), to_usize(offset), bytes),
        }
    }

    /// Writes bytes and flushes their lines. From [`LONG_COPY`] bytes on, whole lines bypass the
    /// cache where the processor has instructions for it. As after a flush, a fence must follow.
    pub fn write_flushed(&self, offset: u64, bytes: &[u8]) {
        #[cfg(unix)]
        if let Backend::Lines(lines) = &self.backend
            && bytes.len() >= LONG_COPY
        {
            self.expect_within(&(offset..offset + bytes.len() as u64));
            self.expect_writable();
            self.counters.wrote(bytes.len());
            self.counters.flushed(lines.write_flushed(offset, bytes));
            return;
        }
        self.write(offset, bytes);
        self.flush(offset..offset + bytes.len() as u64);
    }

    /// Stores a word. [`Ordering::Release`] orders it after earlier stores of the same line, also
    /// for durability.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64, order: Ordering) {
        let index = self.word_at(offset);
        self.expect_writable();
        self.counters.wrote(WORD);
        match &self.backend {
            Backend::Simulated(memory) => memory.store(index, value, order),
            #[cfg(unix)]
            _ => self.all_words()[index].store(value, order),
        }
    }

    /// Loads a word. Lost bytes read as zeros; [`check`](Self::check) tells.
    #[inline]
    #[must_use]
    pub fn load_u64(&self, offset: u64, order: Ordering) -> u64 {
        self.all_words()[self.word_at(offset)].load(order)
    }

    /// Replaces a word if it has the value `current`. A failed exchange loads with relaxed order.
    ///
    /// # Errors
    ///
    /// The word's value, if it differs.
    #[inline]
    pub fn compare_exchange_u64(
        &self,
        offset: u64,
        current: u64,
        new: u64,
        order: Ordering,
    ) -> Result<u64, u64> {
        let index = self.word_at(offset);
        self.expect_writable();
        match &self.backend {
            Backend::Simulated(memory) => memory.compare_exchange(index, current, new, order),
            #[cfg(unix)]
            _ => self.all_words()[index].compare_exchange(current, new, order, Ordering::Relaxed),
        }
        .inspect(|_| self.counters.wrote(WORD))
    }

    /// Starts to make the lines of a range durable. A [`fence`](Self::fence) by the same thread
    /// completes it.
    #[inline]
    pub fn flush(&self, range: Range<u64>) {
        self.expect_within(&range);
        let lines = match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.flush(range),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.flush(range),
            Backend::Simulated(memory) => memory.flush(range),
        };
        self.counters.flushed(lines);
    }

    /// Waits until everything that the calling thread flushed is durable. Later stores become
    /// durable after that.
    ///
    /// # Errors
    ///
    /// [`FenceError`]. Nothing that depends on the flushed stores may then be acknowledged, and
    /// every later fence fails as well.
    #[inline]
    pub fn fence(&self) -> Result<(), FenceError> {
        self.counters.fenced();
        match &self.backend {
            #[cfg(unix)]
            Backend::Lines(lines) => lines.fence(),
            #[cfg(unix)]
            Backend::Pages(pages) => pages.fence(),
            Backend::Simulated(memory) => memory.fence(),
        }
    }

    /// Makes a range durable: [`flush`](Self::flush), then [`fence`](Self::fence).
    ///
    /// # Errors
    ///
    /// As [`fence`](Self::fence).
    #[inline]
    pub fn persist(&self, range: Range<u64>) -> Result<(), FenceError> {
        self.flush(range);
        self.fence()
    }

    /// Returns the first byte of the range that a crash of simulated memory could lose. `None` if
    /// there is none, or if the memory is not simulated. For assertions.
    #[must_use]
    pub fn not_durable(&self, range: Range<u64>) -> Option<u64> {
        match &self.backend {
            Backend::Simulated(memory) => memory.not_durable(range),
            #[cfg(unix)]
            _ => None,
        }
    }

    /// Counts of what was done to the mapping.
    #[must_use]
    pub fn stats(&self) -> MappingStats {
        self.counters.sum()
    }

    #[inline]
    fn expect_within(&self, range: &Range<u64>) {
        let len = self.len();
        if range.start > range.end || range.end > len {
            out_of_bounds(range, len);
        }
    }

    #[inline]
    fn expect_writable(&self) {
        assert!(!self.is_read_only(), "the mapping is open for reading only");
    }

    /// Returns the index of the word at an offset.
    #[inline]
    fn word_at(&self, offset: u64) -> usize {
        if !offset.is_multiple_of(WORD as u64) || offset >= self.len() {
            out_of_bounds(&(offset..offset + WORD as u64), self.len());
        }
        to_usize(offset) / WORD
    }
}

#[cold]
#[inline(never)]
fn out_of_bounds(range: &Range<u64>, len: u64) -> ! {
    panic!("{range:?} is not a range, or word, of a mapping of {len} bytes")
}

#[cfg(test)]
mod tests;
