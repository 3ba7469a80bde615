//! Reads of memory only.
//!
//! A thread that must not wait for the medium refuses loads for a while: what needs a page that is not
//! in memory then fails at once. Only what reads may run meanwhile: a change that fails halfway through
//! would leave its caller without a way on.

use std::marker::PhantomData;

use super::Pool;
use crate::error::StoreError;
use crate::missing_pages::MissingPages;
use crate::node::value_page;
use crate::page::PageId;

/// The calling thread loads no pages while this exists. Reads that need one fail with
/// [`StoreError::NotInMemory`].
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
            before: braid_rt::set_must_not_wait(true),
            _thread: PhantomData,
        }
    }
}

impl Drop for LoadRefusal {
    fn drop(&mut self) {
        braid_rt::set_must_not_wait(self.before);
    }
}

/// Whether the calling thread loads no pages.
pub(super) fn is_active() -> bool {
    braid_rt::must_not_wait() && !braid_rt::mutant!("store_load_in_spite_of_refusal")
}

impl Pool {
    /// Whether the calling thread must not load a page that is not in memory. Pages in persistent memory
    /// need no load worth the name.
    pub(super) fn refuses_to_load(&self, id: PageId) -> bool {
        is_active() && !self.reads_in_place() && self.address(id) != super::ABSENT
    }

    /// The error of a read that would load these pages.
    #[cold]
    pub(crate) fn not_in_memory(&self, ids: &[PageId]) -> StoreError {
        StoreError::NotInMemory(MissingPages::new(self.number, ids))
    }

    /// Adds pages to those that a read found missing, if it failed for that reason. They are what it would
    /// need next: it is better told of all at once.
    #[cold]
    pub(crate) fn with_next(&self, error: StoreError, next: &[PageId]) -> StoreError {
        let StoreError::NotInMemory(missing) = error else {
            return error;
        };
        let next = next.iter().copied().filter(|&id| self.is_missing(id));
        StoreError::NotInMemory(missing.and(next))
    }

    /// Loads pages that reads found missing, as many as are a small part of the pool, and of large
    /// values the pages after them.
    pub(crate) fn load_missing(&self, missing: &MissingPages) -> Result<(), StoreError> {
        let most = self.batch_max();
        let ids = &missing.ids()[..missing.len().min(most)];
        self.read_batch(ids)?;
        // Others may be loading some of them.
        ids.iter()
            .try_for_each(|&id| self.load_with_rest_of_value(id, most))
    }

    fn load_with_rest_of_value(&self, first: PageId, most: usize) -> Result<(), StoreError> {
        let mut id = first;
        for _ in 0..most {
            let Some(page) = self.read(id)? else { break };
            let words = page.page();
            let (kind, next, here) = (words.word(2), words.word(3), words.word(4));
            let is_part = value_page::check(kind, here).is_ok();
            // A page that has changed meanwhile may be anything.
            let is_last = next == 0 || braid_rt::mutant!("store_load_values_page_by_page");
            if !is_part || !page.validate() || is_last {
                break;
            }
            id = next;
        }
        Ok(())
    }
}
