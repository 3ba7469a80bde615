//! The scripts and libraries that all threads know.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use bytes::Bytes;

use super::Library;

/// Scripts of EVAL that are kept for EVALSHA.
const EVALUATED_MAX: usize = 500;

/// Most bytes of the scripts that SCRIPT LOAD keeps.
const LOADED_MAX: usize = 64 << 20;

/// Libraries by name.
pub(crate) type Libraries = BTreeMap<String, Arc<Library>>;

/// Texts of scripts by their digest.
#[derive(Debug, Default)]
struct Texts {
    texts: HashMap<String, Bytes>,
    /// Those of EVAL, the oldest first.
    evaluated: VecDeque<String>,
    /// Bytes of those of SCRIPT LOAD.
    loaded: usize,
}

/// A script that runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) args: Vec<Bytes>,
    pub(crate) since: Instant,
    pub(crate) is_function: bool,
    pub(crate) killed: Arc<AtomicBool>,
}

/// The scripts and libraries that all threads know, and the scripts that run.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Table of the code of libraries by their names.
    pub(crate) table: braid::Table<Bytes, Bytes>,
    texts: Mutex<Texts>,
    libraries: RwLock<Arc<Libraries>>,
    /// Held while libraries change.
    change: Mutex<()>,
    running: Mutex<BTreeMap<u64, Running>>,
    next: AtomicU64,
}

/// Removes a script from those that run.
pub(crate) struct Turn<'a> {
    scripts: &'a Scripts,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.scripts.running().remove(&self.number);
    }
}

impl Scripts {
    pub(crate) fn open(db: &braid::Database) -> braid::Result<Scripts> {
        Ok(Scripts {
            table: db.open_table("functions")?,
            texts: Mutex::default(),
            libraries: RwLock::default(),
            change: Mutex::default(),
            running: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a script that EVAL runs; the oldest goes if there are too many.
    pub(crate) fn keep_evaluated(&self, sha: &str, code: &Bytes) {
        let mut texts = self.texts();
        if texts.texts.contains_key(sha) {
            return;
        }
        texts
            .texts
            .insert(sha.to_owned(), Bytes::copy_from_slice(code));
        texts.evaluated.push_back(sha.to_owned());
        if texts.evaluated.len() > EVALUATED_MAX
            && let Some(oldest) = texts.evaluated.pop_front()
        {
            texts.texts.remove(&oldest);
        }
    }

    /// Keeps a script until SCRIPT FLUSH; returns whether there was room.
    pub(crate) fn keep_loaded(&self, sha: &str, code: &Bytes) -> bool {
        let mut texts = self.texts();
        let evaluated = texts.evaluated.iter().position(|known| known == sha);
        if evaluated.is_none() && texts.texts.contains_key(sha) {
            return true;
        }
        if texts.loaded + code.len() > LOADED_MAX {
            return false;
        }
        if let Some(at) = evaluated {
            texts.evaluated.remove(at);
        }
        texts.loaded += code.len();
        texts
            .texts
            .insert(sha.to_owned(), Bytes::copy_from_slice(code));
        true
    }

    pub(crate) fn text(&self, sha: &str) -> Option<Bytes> {
        self.texts().texts.get(sha).cloned()
    }

    /// Returns the number of scripts, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let texts = self.texts();
        (
            texts.texts.len(),
            texts.texts.values().map(Bytes::len).sum(),
        )
    }

    pub(crate) fn flush(&self) {
        *self.texts() = Texts::default();
    }

    pub(crate) fn libraries(&self) -> Arc<Libraries> {
        let libraries = self
            .libraries
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&libraries)
    }

    /// Lets nobody else change the libraries.
    pub(crate) fn lock_libraries(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_libraries(&self, libraries: Libraries) {
        *self
            .libraries
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(libraries);
    }

    /// Returns a number that no other load or run has.
    pub(crate) fn new_number(&self) -> u64 {
        // Relaxed: the numbers only have to differ.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a script runs until the result is dropped.
    pub(crate) fn begin(&self, running: Running) -> Turn<'_> {
        let number = self.new_number();
        self.running().insert(number, running);
        Turn {
            scripts: self,
            number,
        }
    }

    /// Asks the scripts that run to stop; returns whether there are any.
    pub(crate) fn kill(&self, functions: bool) -> bool {
        let running = self.running();
        let mut meant = running
            .values()
            .filter(|script| script.is_function == functions)
            .peekable();
        let any = meant.peek().is_some();
        for script in meant {
            // Relaxed: the flag carries nothing but itself.
            script.killed.store(true, Ordering::Relaxed);
        }
        any
    }
}
