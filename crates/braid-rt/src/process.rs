//! The process that made an object, to tell it from a child made by `fork`.
//!
//! A child made by `fork` has a copy of the parent's memory, but only the thread that forked, and it shares the
//! parent's open files. An object that stands for files, locks or threads of the parent must not be used there.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the first process and this one. Stored only by a child that has one thread.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process in which an object was made.
///
/// A child made by `fork` is another process; a process started by `exec` has none of the objects. A child made by
/// a plain `clone` system call, past the C library, is not noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// This process. From the first call on, forks are noticed.
    pub fn current() -> Self {
        watch();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the calling thread runs in this process: one load and a comparison.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        // Relaxed: the generation changes only in a new process, before its only thread goes on.
        self.0 == GENERATION.load(Ordering::Relaxed)
    }

    /// A process that is never the current one.
    pub const fn none() -> Self {
        Self(u64::MAX)
    }

    /// The number of the process, for [`Process::from_number`].
    #[inline(always)]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The process with a [`Process::number`].
    #[inline(always)]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

#[cfg(all(unix, not(miri)))]
fn watch() {
    static WATCHED: std::sync::Once = std::sync::Once::new();
    extern "C" fn in_child() {
        if !crate::mutant!("ignore_forks") {
            GENERATION.fetch_add(1, Ordering::Relaxed);
        }
    }
    WATCHED.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child of a process with threads. It
        // fails for lack of memory alone; forks are not noticed then, as before the first call.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cfg(not(all(unix, not(miri))))]
fn watch() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_its_own() {
        let process = Process::current();
        assert!(process.is_current());
        assert_eq!(process, Process::current());
        assert!(Process::from_number(process.number()).is_current());
        assert!(!Process::none().is_current());
    }
}
