//! Atomics. With `--cfg braid_counts` every access is recorded; see `record`.
//!
//! # Which writes scale
//!
//! A write to a cache line that another core has accessed last takes as long as hundreds of
//! instructions, and writes of many cores to one line happen one after the other. So the number of
//! such writes that a transaction makes decides how its throughput grows with cores, and can be
//! counted on any machine.

#[cfg(not(braid_counts))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};

pub use std::sync::atomic::{Ordering, fence};

#[cfg(braid_counts)]
pub use counted::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};

/// The standard library's atomic inside.
#[cfg(not(braid_counts))]
pub(crate) fn plain(atomic: &AtomicU32) -> &std::sync::atomic::AtomicU32 {
    atomic
}

/// The standard library's atomic inside.
#[cfg(braid_counts)]
pub(crate) fn plain(atomic: &AtomicU32) -> &std::sync::atomic::AtomicU32 {
    &atomic.0
}

/// Counts an access of a lock, which is a write wherever `parking_lot` keeps its state.
#[inline(always)]
#[cfg_attr(braid_counts, track_caller)]
pub(crate) fn note_lock<T>(lock: &T) {
    #[cfg(braid_counts)]
    record::note(std::ptr::from_ref(lock).addr(), true);
    #[cfg(not(braid_counts))]
    let _ = lock;
}

/// The cache lines that threads would exchange if each had a core of its own.
///
/// The counts of `Arc` and of the standard library's own types are not recorded.
#[cfg(braid_counts)]
pub mod record {
    use std::collections::HashMap;
    use std::panic::Location;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The accesses of one thread from one place.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Counts {
        /// Writes. An exchange that fails counts, since it acquires the line as a write does.
        pub writes: u64,
        /// Writes to lines that another thread had used since this thread's last write.
        pub taken: u64,
        /// Reads of lines that another thread had written since this thread's last access.
        pub fetched: u64,
    }

    /// Which [`thread`], from which place.
    pub type Accesses = HashMap<(usize, &'static Location<'static>), Counts>;

    const LINE: usize = 64;

    #[derive(Default)]
    struct Recorder {
        /// The threads whose cores would have a valid copy of each line, by its address divided by
        /// its length.
        copies: HashMap<usize, Vec<usize>>,
        accesses: Accesses,
    }

    static IS_ON: AtomicBool = AtomicBool::new(false);
    static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

    fn recorder() -> MutexGuard<'static, Option<Recorder>> {
        RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
    }

    thread_local! {
        static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    static THREADS: AtomicUsize = AtomicUsize::new(0);

    /// A number for the calling thread.
    pub fn thread() -> usize {
        THREAD.with(|thread| *thread)
    }

    /// Begins to record. One recording at a time.
    pub fn begin() {
        *recorder() = Some(Recorder::default());
        IS_ON.store(true, Ordering::SeqCst);
    }

    /// Returns the accesses since the beginning or the last call, and keeps recording.
    pub fn take() -> Accesses {
        let mut recorder = recorder();
        let recorder = recorder.as_mut().expect("`begin` comes first");
        std::mem::take(&mut recorder.accesses)
    }

    /// Ends the recording.
    pub fn end() {
        IS_ON.store(false, Ordering::SeqCst);
        *recorder() = None;
    }

    #[track_caller]
    pub(super) fn note(address: usize, is_write: bool) {
        if !IS_ON.load(Ordering::Relaxed) {
            return;
        }
        let thread = thread();
        let place = Location::caller();
        let mut recorder = recorder();
        let Some(recorder) = recorder.as_mut() else {
            return;
        };
        let counts = recorder.accesses.entry((thread, place)).or_default();
        let copies = recorder.copies.entry(address / LINE).or_default();
        if is_write {
            counts.writes += 1;
            // The first use of a line takes it from nobody.
            counts.taken += u64::from(copies.iter().any(|&copy| copy != thread));
            copies.clear();
            copies.push(thread);
        } else if !copies.contains(&thread) {
            counts.fetched += u64::from(!copies.is_empty());
            copies.push(thread);
        }
    }
}

#[cfg(braid_counts)]
mod counted {
    use std::sync::atomic::Ordering;

    use super::record::note;

    macro_rules! atomic {
        ($name:ident, $value:ty, $($operation:ident)*) => {
            /// As in `std::sync::atomic`.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(pub(super) std::sync::atomic::$name);

            #[allow(missing_docs, clippy::missing_errors_doc)]
            impl $name {
                pub const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }

                fn address(&self) -> usize {
                    std::ptr::from_ref(self).addr()
                }

                #[track_caller]
                pub fn load(&self, order: Ordering) -> $value {
                    note(self.address(), false);
                    self.0.load(order)
                }

                #[track_caller]
                pub fn store(&self, value: $value, order: Ordering) {
                    note(self.address(), true);
                    self.0.store(value, order);
                }

                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    note(self.address(), true);
                    self.0.compare_exchange(current, new, success, failure)
                }

                #[track_caller]
                pub fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    note(self.address(), true);
                    self.0.compare_exchange_weak(current, new, success, failure)
                }

                pub fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }

                pub fn into_inner(self) -> $value {
                    self.0.into_inner()
                }

                $(
                    #[track_caller]
                    pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                        note(self.address(), true);
                        self.0.$operation(value, order)
                    }
                )*
            }

            impl From<$value> for $name {
                fn from(value: $value) -> Self {
                    Self::new(value)
                }
            }
        };
    }

    macro_rules! number {
        ($name:ident, $value:ty) => {
            atomic!($name, $value, swap fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min);

            #[allow(missing_docs, clippy::missing_errors_doc)]
            impl $name {
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    note(self.address(), true);
                    self.0.fetch_update(set, fetch, f)
                }
            }
        };
    }

    number!(AtomicU32, u32);
    number!(AtomicU64, u64);
    number!(AtomicI64, i64);
    number!(AtomicUsize, usize);
    atomic!(AtomicBool, bool, swap fetch_or fetch_and);
}
