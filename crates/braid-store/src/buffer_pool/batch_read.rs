//! Reading pages that are requested together.
//!
//! A batch of reads takes little longer than a single read. So a caller that knows the next pages
//! reads them in one batch, instead of one after the other.

use braid_io::AlignedBuf;
use braid_rt::narrow;

use super::latch;
use super::{ABSENT, Pool, UNWRITTEN, check_page};
use super::{refusal, state};
use crate::data_file::{LOST, check, check_address};
use crate::error::StoreError;
use crate::page::PageId;
use crate::page_table::PAGES_MAX;
use crate::sync::AtomicU64;

/// A page that is about to be read: its latch and its frame are acquired.
struct Wanted<'a> {
    id: PageId,
    state: &'a AtomicU64,
    /// The state word to continue from.
    empty: u64,
    address: u64,
    /// The newest checkpoint to which the page can belong.
    newest: u64,
    frame: usize,
    buf: AlignedBuf,
}

impl Pool {
    /// Loads missing pages in one batch of reads, without waiting for other threads. Pages that
    /// can't be read are left out: a later read of such a page returns the error.
    ///
    /// # Errors
    /// [`StoreError::NotInMemory`] if the calling thread refuses to load.
    #[cold]
    pub(crate) fn read_batch(&self, ids: &[PageId]) -> Result<(), StoreError> {
        if self.reads_in_place() {
            // Reads of memory gain nothing from a batch. Errors are left to the later accesses.
            ids.iter().for_each(|&id| drop(self.read(id)));
            return Ok(());
        }
        if refusal::is_active() {
            return Err(self.not_in_memory(ids));
        }
        let mut wanted: Vec<_> = (ids.iter().take(self.batch_max()))
            .filter_map(|&id| self.want(id))
            .collect();
        let blocks = wanted.iter_mut().map(|page| (page.address, &mut page.buf));
        let is_read = self.file.read_blocks(blocks).is_ok();
        for page in &wanted {
            self.put_read(page, is_read);
        }
        Ok(())
    }

    /// The most pages of a batch, which uses only a small part of the pool.
    pub(super) fn batch_max(&self) -> usize {
        self.frame_count() / 8
    }

    fn want(&self, id: PageId) -> Option<Wanted<'_>> {
        if !(1..PAGES_MAX).contains(&id) || self.address(id) == ABSENT {
            return None;
        }
        let state = self.states.get_or_make(id);
        let word = latch::open(state);
        if state::is_latched(word) || state::is_resident(word) {
            return None;
        }
        let empty = state::take(state, word)?;
        // Under the latch, no thread moves the page.
        let address = self.address(id);
        let frame = match address {
            ABSENT | UNWRITTEN | LOST => None,
            _ if self.check_condemned(id).is_err() => None,
            address if self.file.is_in_doubt(id, address) => None,
            _ => self.take_frame().ok(),
        };
        let Some(frame) = frame else {
            latch::release(state, empty);
            return None;
        };
        Some(Wanted {
            id,
            state,
            empty,
            address,
            newest: self.file.newest_of(id, address),
            frame,
            buf: self.file.buffer(),
        })
    }

    /// Completes a read that [`Pool::want`] began.
    fn put_read(&self, page: &Wanted<'_>, is_read: bool) {
        let Wanted { id, ref buf, .. } = *page;
        let is_good = is_read
            && check(buf, id, page.newest).is_ok()
            && check_address(buf, page.address).is_ok()
            && check_page(buf).is_ok()
            && !self.file.is_in_doubt(id, page.address);
        if is_good {
            braid_rt::coverage_point("store: a page is read in a batch");
            self.bring_in((page.state, page.empty), page.frame, id, buf);
        } else {
            self.free_frames.lock().push(narrow(page.frame));
            latch::release(page.state, page.empty);
            self.arrivals.notify(id);
        }
    }
}
