//! Cleanup when a command is interrupted: removes the directories that the command created for
//! itself.
//!
//! The signals are blocked in every thread, and one thread waits for them, so the removal is not
//! limited to what a signal handler may do. Afterwards the process ends by the signal, as its
//! parent expects.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// The registered directories, locked.
pub(crate) type Registered = MutexGuard<'static, Vec<PathBuf>>;

/// Directories to remove when the process is interrupted.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Whether a signal that ends the process has arrived.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Waits for the end of the process if a signal is ending it: the command fails because its
/// directories are being removed. It must neither report that nor exit before the process ends by
/// the signal.
pub(crate) fn wait_if_interrupted() {
    // Acquire pairs with the release before the directories are removed.
    while INTERRUPTED.load(Ordering::Acquire) {
        std::thread::park();
    }
}

/// A directory that is removed when the process is interrupted during the life of this value.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// Registers a directory. Call this before starting other threads, which have to block the
    /// signals, too.
    pub(crate) fn new(path: &Path) -> Self {
        static LISTENING: Once = Once::new();
        LISTENING.call_once(listen);
        registered().push(path.to_owned());
        Temporary(path.to_owned())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        registered().retain(|path| *path != self.0);
    }
}

fn registered() -> Registered {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets a command create a database in such a directory: an interruption removes the directory
/// before, and then this call does not return, or after the result is dropped. Otherwise the command
/// could create the directory once more after its removal. Keep the result for no longer than that:
/// the interruption waits.
pub(crate) fn delay_removal() -> Registered {
    registered()
}

/// Removes the directories. They stay locked until the result is dropped.
///
/// Retries, because a child process that is ending may still write there.
fn remove_all() -> Registered {
    let registered = registered();
    for path in registered.iter() {
        for _ in 0..20 {
            match fs::remove_dir_all(path) {
                Err(_) if path.exists() => std::thread::sleep(Duration::from_millis(50)),
                _ => break,
            }
        }
    }
    registered
}

#[cfg(unix)]
fn listen() {
    // SAFETY: `set` is initialized by `sigemptyset` before it is used, and nothing else refers to
    // it.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    let wait = move || {
        let mut signal = 0;
        // SAFETY: both point to variables that live until the call returns.
        if unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {
            return;
        }
        // Release: pairs with the acquire of a command that fails because of the removal.
        INTERRUPTED.store(true, Ordering::Release);
        let _locked = remove_all();
        // SAFETY: the calls access no memory except `set`; the default action of these signals ends
        // the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(signal);
        }
    };
    // Without this thread, no thread would handle the signals.
    if std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .is_err()
    {
        // SAFETY: as above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }
}

#[cfg(not(unix))]
fn listen() {
    let _ = remove_all;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_waits_for_what_is_being_created() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("database");
        registered().push(path.clone());
        let creating = delay_removal();
        let removing = std::thread::spawn(|| drop(remove_all()));
        fs::create_dir_all(path.join("log")).unwrap();
        drop(creating);
        removing.join().unwrap();
        assert!(!path.exists());
        registered().retain(|other| *other != path);
    }
}
