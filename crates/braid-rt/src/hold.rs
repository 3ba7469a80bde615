//! How long background work holds a lock for which others may wait.
//!
//! A thread that the system suspends while it holds a lock holds it for long without doing anything.
//! Such holds are recognized: the thread used less processor time than passed, and did not wait for
//! anything itself. Then only the processor time counts as [`HoldTime::longest`].

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::gates::Mark;

/// Longest times for which one lock was held.
pub struct LongestHold {
    gate: &'static str,
    nanos: AtomicU64,
    elapsed_nanos: AtomicU64,
}

/// The result of a [`LongestHold`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldTime {
    /// The longest hold. A hold during which the thread was suspended, without waiting for anything,
    /// counts with its processor time.
    pub longest: Duration,
    /// The longest hold as others saw it, including the time in which the thread was suspended.
    pub elapsed: Duration,
}

impl LongestHold {
    /// Creates the times of the lock, the gate, of this name.
    pub const fn new(gate: &'static str) -> Self {
        Self {
            gate,
            nanos: AtomicU64::new(0),
            elapsed_nanos: AtomicU64::new(0),
        }
    }

    /// The name of the gate.
    pub fn gate(&self) -> &'static str {
        self.gate
    }

    /// Measures for how long a lock is held: from now, just after the lock was acquired, until the
    /// result is dropped, which releases `guard`. Under a simulation, nothing is measured. Meanwhile,
    /// the thread must not do what takes long; see [`expect_no_gate`](crate::expect_no_gate).
    pub fn of<G>(&self, guard: G) -> Held<'_, G> {
        Held {
            _timer: Timer {
                longest: self,
                start: (!crate::simulation::is_on()).then(Start::now),
                _mark: Mark::new(self.gate),
            },
            guard,
        }
    }

    /// The longest times so far.
    pub fn time(&self) -> HoldTime {
        // Relaxed, here and below: statistics.
        let get = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
        HoldTime {
            longest: get(&self.nanos),
            elapsed: get(&self.elapsed_nanos),
        }
    }

    fn add(&self, start: &Start) {
        let elapsed = start.clock.elapsed();
        self.elapsed_nanos
            .fetch_max(nanos(elapsed), Ordering::Relaxed);
        // A short hold needs no further look.
        if nanos(elapsed) > self.nanos.load(Ordering::Relaxed) {
            let longest = nanos(start.usage.without_suspension(Usage::now(), elapsed));
            self.nanos.fetch_max(longest, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for LongestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.time().fmt(f)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A guard whose time is measured; see [`LongestHold::of`].
#[derive(Debug)]
pub struct Held<'a, G> {
    // Dropped before the guard.
    _timer: Timer<'a>,
    guard: G,
}

impl<G: Deref> Deref for Held<'_, G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[derive(Debug)]
struct Timer<'a> {
    longest: &'a LongestHold,
    start: Option<Start>,
    _mark: Mark,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(start) = &self.start {
            self.longest.add(start);
        }
    }
}

#[derive(Debug)]
struct Start {
    usage: Usage,
    clock: Instant,
}

impl Start {
    fn now() -> Self {
        Self {
            usage: Usage::now(),
            clock: Instant::now(),
        }
    }
}

/// What a thread has used so far; `None` where the system does not tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage(Option<ThreadUsage>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadUsage {
    processor: Duration,
    /// How often the thread has waited.
    waits: i64,
}

impl Usage {
    fn now() -> Self {
        Self(thread_usage())
    }

    /// Returns `elapsed`, the time from `self` to `later`, without the time in which the thread was
    /// suspended; all of it if the thread waited, or if that is unknown.
    fn without_suspension(self, later: Self, elapsed: Duration) -> Duration {
        match (self.0, later.0) {
            (Some(before), Some(after)) if before.waits == after.waits => {
                elapsed.min(after.processor.saturating_sub(before.processor))
            }
            _ => elapsed,
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn thread_usage() -> Option<ThreadUsage> {
    let mut clock = std::mem::MaybeUninit::<libc::timespec>::uninit();
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointers are valid for writes of these types, and the values are read only after
    // the calls have succeeded, and so have initialized them.
    let (clock, usage) = unsafe {
        if libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, clock.as_mut_ptr()) != 0
            || libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0
        {
            return None;
        }
        (clock.assume_init(), usage.assume_init())
    };
    let seconds = u64::try_from(clock.tv_sec).ok()?;
    let nanos = u32::try_from(clock.tv_nsec).ok()?;
    Some(ThreadUsage {
        processor: Duration::new(seconds, nanos),
        #[allow(clippy::useless_conversion, reason = "the type depends on the system")]
        waits: usage.ru_nvcsw.into(),
    })
}

#[cfg(any(not(target_os = "linux"), miri))]
fn thread_usage() -> Option<ThreadUsage> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mutex;

    #[test]
    fn the_longest_hold_counts() {
        let (longest, mutex) = (LongestHold::new("gate"), Mutex::new(7));
        assert_eq!(longest.time(), HoldTime::default());
        let start = Instant::now();
        let mut held = longest.of(mutex.lock());
        *held += 1;
        while start.elapsed() < Duration::from_millis(2) {}
        assert_eq!(*held, 8);
        drop(held);
        let time = longest.time();
        assert!(mutex.try_lock().is_some(), "it is released");
        assert!(time.elapsed <= start.elapsed() && time.longest <= time.elapsed);
        drop(longest.of(mutex.lock()));
        assert_eq!(longest.time(), time, "a short hold changes nothing");
    }

    #[test]
    fn only_a_thread_that_waits_for_nothing_is_suspended() {
        let used = |millis, waits| {
            let processor = Duration::from_millis(millis);
            Usage(Some(ThreadUsage { processor, waits }))
        };
        let elapsed = Duration::from_millis(10);
        let held = |before: Usage, after| before.without_suspension(after, elapsed).as_millis();
        assert_eq!(held(used(5, 3), used(6, 3)), 1, "it ran for 1 ms");
        assert_eq!(held(used(5, 3), used(6, 4)), 10, "it waited");
        assert_eq!(held(used(5, 3), used(25, 3)), 10);
        assert_eq!(held(Usage(None), Usage(None)), 10, "unknown");
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn the_system_tells_waits_and_processor_time() {
        let usage = || thread_usage().unwrap();
        let before = usage();
        while usage().processor == before.processor {}
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        // The thread that is waited for ends only after the receiver waits, or before: both are
        // tried until one wait is seen.
        while usage().waits == before.waits {
            let sender = sender.clone();
            let thread = std::thread::spawn(move || sender.send(()));
            receiver.recv().unwrap();
            thread.join().unwrap().unwrap();
        }
    }
}
