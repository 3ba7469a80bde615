//! Reads of memory only.
//!
//! A thread that must not wait for the medium refuses loads for a while: what needs a page that is not
//! in memory then fails at once. Only what reads may run meanwhile: a change that fails halfway through
//! would leave its caller without a way on.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use crate::error::StoreError;

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread loads no pages while this exists. Reads that need one fail with
/// [`StoreError::Io`] of the kind [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct LoadRefusal {
    before: bool,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl LoadRefusal {
    /// Refuses loads until the result is dropped.
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        Self {
            before: REFUSES.replace(true),
            _thread: PhantomData,
        }
    }
}

impl Drop for LoadRefusal {
    fn drop(&mut self) {
        REFUSES.set(self.before);
    }
}

/// Whether the calling thread loads no pages.
pub(super) fn is_active() -> bool {
    REFUSES.get() && !braid_rt::mutant!("store_load_in_spite_of_refusal")
}

/// The error of a read that would load a page.
#[cold]
pub(super) fn would_block(id: u64) -> StoreError {
    StoreError::Io {
        what: format!("read page {id}, which is not in memory"),
        source: std::sync::Arc::new(io::ErrorKind::WouldBlock.into()),
    }
}
