//! The process that created an object, as opposed to a child created by `fork`.
//!
//! A forked child has a copy of the parent's memory and shares its open files, but has only the
//! thread that called `fork`. It must not use an object that depends on files, locks or threads of
//! the parent.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the first process and this one. Written only by a child that still has a
/// single thread.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process in which an object was created.
///
/// A child created by `fork` is a different process. A process started by `exec` inherits no
/// objects. A child created by a raw `clone` system call, which bypasses the C library, is not
/// detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the current process. Forks are detected from the first call on.
    pub fn current() -> Self {
        watch();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the calling thread runs in this process. Costs one load and a comparison.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        // Relaxed: the generation changes only in a new process, before its only thread continues.
        self.0 == GENERATION.load(Ordering::Relaxed)
    }

    /// A value that never equals the current process.
    pub const fn none() -> Self {
        Self(u64::MAX)
    }

    /// The number that [`Process::from_number`] converts back to this process.
    #[inline(always)]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the process with the given [`Process::number`].
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
        // SAFETY: the handler only adds to an atomic, which a child of a multi-threaded process may
        // do. `pthread_atfork` fails only without memory; forks then stay undetected, as before the
        // first call.
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
