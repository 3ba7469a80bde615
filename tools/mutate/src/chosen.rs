//! Mutants of the build: the tool adds this module to its copy of `braid-rt`, with `COUNT` at its
//! end.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

static CHOSEN: AtomicUsize = AtomicUsize::new(usize::MAX);
static HITS: [AtomicU8; COUNT] = [const { AtomicU8::new(0) }; COUNT];

/// Chooses a mutant.
pub fn choose(id: usize) {
    CHOSEN.store(id, Ordering::Relaxed);
}

/// Returns the mutants that would have made a difference since the last call, as far as a single
/// step shows.
pub fn take_hits() -> Vec<usize> {
    (0..COUNT).filter(|&id| HITS[id].swap(0, Ordering::Relaxed) != 0).collect()
}

/// Returns whether the mutant is chosen.
#[inline]
pub fn is(id: usize) -> bool {
    HITS[id].store(1, Ordering::Relaxed);
    CHOSEN.load(Ordering::Relaxed) == id
}

/// Returns one of two values; they differ where the mutant makes a difference.
#[inline]
pub fn pick(id: usize, original: bool, mutated: bool) -> bool {
    if original == mutated { original } else { original ^ is(id) }
}

/// Returns a condition: false with the mutant `id`, true with the next one.
#[inline]
pub fn cond(id: usize, original: bool) -> bool {
    if original { !is(id) } else { is(id + 1) }
}

/// Returns a condition: false with the mutant.
#[inline]
pub fn only_if(id: usize, original: bool) -> bool {
    original && !is(id)
}

extern "C" fn begin() {
    if let Some(id) = std::env::var("BRAID_MUTATION").ok().and_then(|id| id.parse().ok()) {
        choose(id);
    }
    if std::env::var_os("BRAID_MUTATION_HITS").is_some() {
        // SAFETY: the handler only reads atomics and writes a file.
        unsafe { libc::atexit(end) };
    }
}

extern "C" fn end() {
    use std::io::Write;
    let path = std::env::var_os("BRAID_MUTATION_HITS").unwrap_or_default();
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    if let Ok(mut file) = file {
        let text: String = take_hits().iter().map(|id| format!("{id}\n")).collect();
        let _ = file.write_all(text.as_bytes());
    }
}

// SAFETY: `begin` uses nothing that is initialized later.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
