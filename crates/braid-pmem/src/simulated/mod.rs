//! Persistent memory that loses cache lines as a seed determines.
//!
//! # What is simulated
//!
//! - A store is volatile. A flush notes how many of its line's stores it covers; a fence of the
//!   same thread makes those durable. Fences and flushes of one thread do nothing for another.
//! - A processor may write any line back at any time. So a crash keeps for each line, independent of
//!   all others, some of its stores that are not durable: none, all, or some in between.
//! - Within a line, a processor writes back what was visible at one moment. On a machine that makes
//!   stores visible in program order, that is a prefix of the line's stores. Arm and POWER may
//!   reorder relaxed stores, so that any subset may survive. Release stores, fences and the hand-over
//!   to another thread are points of order: a store after one survives only together with every
//!   earlier store of its line.
//! - A word is never torn.
//!
//! Stores through [`Mapping::words`](crate::Mapping::words) are found when the line is flushed or a
//! crash occurs. They count as unordered.
//!
//! The model has no threads, no clock and no state outside of the memory, so that it runs under the
//! deterministic scheduler of `braid-rt`; flushes and fences are yield points there.

mod image;
mod line;
#[cfg(test)]
mod tests;

pub use image::Image;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::image::{line_range, lines};
use self::line::{Fate, Line, Store, ThreadKey};
use crate::error::{FenceError, MapError, MediaError};
use crate::words::{self, WORD};

/// Options of [`SimulatedMemory`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimulatedOptions {
    /// Largest length in bytes, reserved at once.
    pub capacity: u64,
    /// Bytes that the device has: growing beyond them fails with [`MapError::NoSpace`].
    pub device_bytes: u64,
    /// Bytes of a cache line: a power of two, at least 8.
    pub line_size: usize,
}

impl Default for SimulatedOptions {
    fn default() -> Self {
        Self {
            capacity: 16 << 20,
            device_bytes: u64::MAX,
            line_size: 64,
        }
    }
}

impl SimulatedOptions {
    /// Sets [`capacity`](Self::capacity).
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets [`device_bytes`](Self::device_bytes).
    #[must_use]
    pub fn device_bytes(mut self, bytes: u64) -> Self {
        self.device_bytes = bytes;
        self
    }

    /// Sets [`line_size`](Self::line_size).
    #[must_use]
    pub fn line_size(mut self, bytes: usize) -> Self {
        self.line_size = bytes;
        self
    }
}

/// What a crash keeps of the stores that no fence made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Nothing: finds code that relies on a line that it never flushed.
    Nothing,
    /// Everything, as if the caches persisted: finds code that relies on losing stores.
    Everything,
    /// For each line what the seed selects.
    Random(u64),
}

/// Memory that survives its mappings and crashes. Clones are handles to the same memory.
///
/// ```
/// use braid_pmem::{Mapping, SimulatedMemory, SimulatedOptions, Survivors};
///
/// # fn main() -> Result<(), braid_pmem::FenceError> {
/// let memory = SimulatedMemory::new(4096, SimulatedOptions::default());
/// let mapping = Mapping::simulated(&memory);
/// mapping.write(0, b"flushed");
/// mapping.persist(0..7)?;
/// mapping.write(64, b"forgotten");
/// let image = memory.crash(Survivors::Nothing);
/// assert_eq!(image.bytes()[..7], *b"flushed");
/// assert_eq!(image.bytes()[64..73], [0; 9]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// What running threads see.
    words: Box<[AtomicU64]>,
    options: SimulatedOptions,
    /// Current length; changed with the lock held.
    len: AtomicU64,
    /// Number of lost lines, so that reading looks for them only if there are any.
    lost_lines: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What a crash keeps in any case.
    durable: Vec<u64>,
    /// What running threads see as far as the model knows.
    seen: Vec<u64>,
    /// Lines with stores that are not durable.
    lines: BTreeMap<u64, Line>,
    /// Lines into which stores may come that the model is not asked about.
    viewed: BTreeSet<u64>,
    threads: HashMap<ThreadKey, Thread>,
    lost: BTreeSet<u64>,
    /// Stores, flushes and fences so far.
    operations: u64,
    /// The operation before which the power fails.
    power_off_at: Option<u64>,
    is_off: bool,
}

#[derive(Debug, Default)]
struct Thread {
    fences: u64,
    /// Flushed lines, and the position of each up to which a fence makes it durable.
    flushed: Vec<(u64, u64)>,
}

impl SimulatedMemory {
    /// Creates memory of `len` zero bytes, rounded up to whole lines.
    ///
    /// # Panics
    ///
    /// If the options are invalid, or `len` exceeds the capacity or the device.
    #[must_use]
    pub fn new(len: u64, options: SimulatedOptions) -> Self {
        let len = len.next_multiple_of(options.line_size as u64);
        let image = Image {
            words: vec![0; words_of(len)],
            line_size: options.line_size,
            lost: BTreeSet::new(),
        };
        Self::from_image(&image, options)
    }

    /// Creates the memory that a machine finds after a crash. The image has its own line size.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    pub fn from_image(image: &Image, options: SimulatedOptions) -> Self {
        let options = options.line_size(image.line_size);
        let size = options.line_size;
        assert!(size.is_power_of_two() && size >= WORD, "line size {size}");
        assert!(image.len() <= options.capacity && image.len() <= options.device_bytes);
        let words = (0..words_of(options.capacity))
            .map(|index| AtomicU64::new(image.words.get(index).copied().unwrap_or(0)))
            .collect();
        let state = State {
            durable: image.words.clone(),
            seen: image.words.clone(),
            lost: image.lost.clone(),
            ..State::default()
        };
        Self(Arc::new(Inner {
            words,
            options,
            len: AtomicU64::new(image.len()),
            lost_lines: AtomicU64::new(state.lost.len() as u64),
            state: Mutex::new(state),
        }))
    }

    /// Returns what a crash at this moment leaves. The memory itself does not change.
    #[must_use]
    pub fn crash(&self, survivors: Survivors) -> Image {
        let mut state = self.lock();
        self.observe_viewed(&mut state);
        let mut words = state.durable.clone();
        let mut random = fastrand::Rng::with_seed(match survivors {
            Survivors::Random(seed) => seed,
            _ => 0,
        });
        for (number, line) in state.lines.iter().filter(|(_, line)| !line.is_empty()) {
            let fate = match survivors {
                Survivors::Nothing => Fate::Nothing,
                Survivors::Everything => Fate::Everything,
                Survivors::Random(_) => Fate::random(&mut random),
            };
            line.survive(fate, &mut random, &mut words[self.words_of_line(*number)]);
        }
        Image {
            words,
            line_size: self.line_size(),
            lost: state.lost.clone(),
        }
    }

    /// Returns the memory that the next process finds if this one is killed at this moment: it reads
    /// every store, and a later crash can still lose those that no fence made durable. Their order is
    /// not kept. The memory itself does not change.
    #[must_use]
    pub fn kill(&self) -> Self {
        let memory = Self::from_image(&self.crash(Survivors::Nothing), self.0.options.clone());
        let visible = self.crash(Survivors::Everything).words;
        let durable = memory.lock().durable.clone();
        for (index, word) in visible.into_iter().enumerate() {
            if durable[index] != word {
                memory.store(index, word, Ordering::Relaxed);
            }
        }
        memory
    }

    /// Returns the first byte of the range that a crash could still lose: a store of its word is
    /// not durable. `None` if the range is durable.
    #[must_use]
    pub fn not_durable(&self, range: Range<u64>) -> Option<u64> {
        let mut state = self.lock();
        let wanted = words_around(&range);
        for number in lines(range.clone(), self.line_size()) {
            self.observe(&mut state, number);
            let first = self.words_of_line(number).start;
            let line = state.lines.get(&number).into_iter();
            let words = line.flat_map(Line::words).map(|word| first + word);
            if let Some(word) = words.filter(|word| wanted.contains(word)).min() {
                return Some(((word * WORD) as u64).max(range.start));
            }
        }
        None
    }

    /// Turns the power off: later stores are lost, and fences fail.
    pub fn power_off(&self) {
        let mut state = self.lock();
        self.observe_viewed(&mut state);
        state.is_off = true;
    }

    /// Turns the power off before the operation of this number; see
    /// [`operations`](Self::operations).
    pub fn power_off_at(&self, operation: u64) {
        self.lock().power_off_at = Some(operation);
    }

    /// Whether the power is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// Number of stores, flushes and fences so far. Storing bytes counts once.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Loses every line of a range: reading it fails with [`MediaError`].
    pub fn lose(&self, range: Range<u64>) {
        let mut state = self.lock();
        state.lost.extend(lines(range, self.line_size()));
        // Relaxed: a reader that misses a line's loss read it before.
        self.0
            .lost_lines
            .store(state.lost.len() as u64, Ordering::Relaxed);
    }

    /// Bytes of a cache line.
    #[must_use]
    pub fn line_size(&self) -> usize {
        self.0.options.line_size
    }

    /// Largest length in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.options.capacity
    }

    pub(crate) fn len(&self) -> u64 {
        // Pairs with the release store in `grow`.
        self.0.len.load(Ordering::Acquire)
    }

    pub(crate) fn all_words(&self) -> &[AtomicU64] {
        &self.0.words[..words_of(self.len())]
    }

    /// Returns words for direct access.
    pub(crate) fn view(&self, range: Range<usize>) -> &[AtomicU64] {
        if !range.is_empty() {
            let bytes = (range.start * WORD) as u64..(range.end * WORD) as u64;
            let mut state = self.lock();
            state.viewed.extend(lines(bytes, self.line_size()));
        }
        &self.all_words()[range]
    }

    pub(crate) fn grow(&self, len: u64) -> Result<(), MapError> {
        let len = len.next_multiple_of(self.line_size() as u64);
        let mut state = self.lock();
        if state.is_off || len <= self.len() {
            return Ok(());
        }
        let capacity = self.capacity();
        if len > capacity {
            return Err(MapError::Capacity { len, capacity });
        }
        if len > self.0.options.device_bytes {
            return Err(MapError::NoSpace { len });
        }
        state.durable.resize(words_of(len), 0);
        state.seen.resize(words_of(len), 0);
        // Pairs with the acquire load in `len`.
        self.0.len.store(len, Ordering::Release);
        Ok(())
    }

    pub(crate) fn check(&self, range: Range<u64>) -> Result<(), MediaError> {
        if self.0.lost_lines.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let state = self.lock();
        let mut touched = lines(range.clone(), self.line_size());
        touched
            .find(|line| state.lost.contains(line))
            .map_or(Ok(()), |line| {
                let offset = (line * self.line_size() as u64).max(range.start);
                Err(MediaError { offset })
            })
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let mut state = self.lock();
        let is_on = self.begin(&mut state);
        let all = self.all_words();
        words::parts(offset, bytes, |index, part| {
            self.before_store(&mut state, index);
            let value = part.merged(all[index].load(Ordering::Relaxed));
            all[index].store(value, Ordering::Relaxed);
            if is_on {
                self.note_store(&mut state, index, value, false);
            }
        });
    }

    pub(crate) fn store(&self, index: usize, value: u64, order: Ordering) {
        let mut state = self.lock();
        let is_on = self.begin(&mut state);
        self.before_store(&mut state, index);
        self.all_words()[index].store(value, order);
        if is_on {
            self.note_store(&mut state, index, value, is_release(order));
        }
    }

    pub(crate) fn compare_exchange(
        &self,
        index: usize,
        current: u64,
        new: u64,
        order: Ordering,
    ) -> Result<u64, u64> {
        let mut state = self.lock();
        let is_on = self.begin(&mut state);
        self.before_store(&mut state, index);
        let word = &self.all_words()[index];
        let was = word.compare_exchange(current, new, order, Ordering::Relaxed)?;
        if is_on {
            self.note_store(&mut state, index, new, is_release(order));
        }
        Ok(was)
    }

    /// Returns the number of lines.
    pub(crate) fn flush(&self, range: Range<u64>) -> u64 {
        braid_rt::yield_point();
        let mut state = self.lock();
        let touched = lines(range, self.line_size());
        let count = touched.end - touched.start;
        if !self.begin(&mut state) {
            return count;
        }
        for number in touched {
            self.observe(&mut state, number);
            let State { lines, threads, .. } = &mut *state;
            if let Some(line) = lines.get(&number) {
                let thread = threads.entry(ThreadKey::current()).or_default();
                thread.flushed.push((number, line.end()));
            }
        }
        count
    }

    pub(crate) fn fence(&self) -> Result<(), FenceError> {
        braid_rt::yield_point();
        let mut state = self.lock();
        if !self.begin(&mut state) {
            return Err(FenceError::PowerOff);
        }
        let State {
            durable,
            lines,
            threads,
            ..
        } = &mut *state;
        let thread = threads.entry(ThreadKey::current()).or_default();
        thread.fences += 1;
        for (number, end) in thread.flushed.drain(..) {
            if let Some(line) = lines.get_mut(&number) {
                line.make_durable(end, &mut durable[self.words_of_line(number)]);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements that may panic: bounds are checked first.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation. Returns whether the power is on.
    fn begin(&self, state: &mut State) -> bool {
        if state.power_off_at == Some(state.operations) && !state.is_off {
            self.observe_viewed(state);
            state.is_off = true;
        }
        state.operations += 1;
        !state.is_off
    }

    /// Notices direct stores of the word's line that precede this one.
    fn before_store(&self, state: &mut State, index: usize) {
        let line = (index * WORD / self.line_size()) as u64;
        self.observe(state, line);
    }

    fn note_store(&self, state: &mut State, index: usize, value: u64, is_ordered: bool) {
        let by = ThreadKey::current();
        let fences = state.threads.get(&by).map_or(0, |thread| thread.fences);
        let number = (index * WORD / self.line_size()) as u64;
        state.seen[index] = value;
        let word = index - self.words_of_line(number).start;
        state.lines.entry(number).or_default().push(Store {
            word,
            value,
            by,
            fences,
            is_ordered,
        });
    }

    /// Notices direct stores into a line.
    fn observe(&self, state: &mut State, number: u64) {
        if state.is_off || !state.viewed.contains(&number) {
            return;
        }
        for index in self.words_of_line(number) {
            let value = self.0.words[index].load(Ordering::Relaxed);
            if state.seen[index] != value {
                self.note_store(state, index, value, false);
            }
        }
    }

    fn observe_viewed(&self, state: &mut State) {
        let viewed: Vec<u64> = state.viewed.iter().copied().collect();
        for number in viewed {
            self.observe(state, number);
        }
    }

    /// The words of a line.
    fn words_of_line(&self, number: u64) -> Range<usize> {
        let bytes = line_range(number, self.line_size());
        words_of(bytes.start)..words_of(bytes.end)
    }
}

fn is_release(order: Ordering) -> bool {
    matches!(
        order,
        Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
    )
}

/// Number of words in this many bytes.
fn words_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a length in memory") / WORD
}

/// The words that contain a range of bytes.
fn words_around(range: &Range<u64>) -> Range<usize> {
    let last = words_of(range.end.next_multiple_of(WORD as u64));
    words_of(range.start)..last
}
