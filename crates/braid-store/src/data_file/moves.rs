//! Copying pages to the beginning of the file, so that its end becomes free.

use braid_io::AlignedBuf;

use super::block::{check, seal};
use super::lines::Place;
use super::{DataFile, block_of, check_address};
use crate::error::StoreError;
use crate::page::{PAGE_SIZE, PageId};

/// A page that was copied.
pub(crate) struct Moved {
    pub(crate) id: PageId,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A page that is being copied to the block of a place.
struct Copying {
    id: PageId,
    from: u64,
    place: Place,
    buf: AlignedBuf,
}

impl DataFile {
    /// Copies pages from their durable block addresses to the lowest free blocks, in one batch, if
    /// these lie before them. A smaller file is not worth a failed checkpoint, nor a block that is
    /// promised to a transaction: damaged pages are left out. Returns `None` if there is no room.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn copy_down(
        &self,
        pages: &[(PageId, u64)],
    ) -> Result<Option<Vec<Moved>>, StoreError> {
        let count = pages.len() as u64;
        if self.claim(count).is_err() {
            return Ok(None);
        }
        let mut pages = self.take_lower(pages);
        self.room.add(count);
        let read = self.read_blocks(pages.iter_mut().map(|page| (page.from, &mut page.buf)));
        let (mut intact, mut blocks) = (Vec::with_capacity(pages.len()), Vec::new());
        let sequence = self.sequence();
        for page in pages {
            let is_intact = read.is_ok()
                && check(&page.buf, page.id, sequence).is_ok()
                && check_address(&page.buf, page.from).is_ok();
            if is_intact {
                intact.push(page);
            } else {
                blocks.push(page.place.block);
            }
        }
        self.free(&blocks);
        read.map_err(|e| self.failed("cannot read pages of", e))?;
        match self.write_copies_down(&mut intact) {
            Err(StoreError::OutOfSpace { .. }) => Ok(None),
            written => written.map(Some),
        }
    }

    /// Takes the lowest free block for each page that lies after it.
    fn take_lower(&self, pages: &[(PageId, u64)]) -> Vec<Copying> {
        let mut space = self.space.lock();
        let taken = pages.iter().filter_map(|&(id, from)| {
            let block = space.allocate_below(block_of(from))?;
            let is_spare = false;
            Some(Copying {
                id,
                from,
                place: Place { block, is_spare },
                buf: self.buffer(),
            })
        });
        taken.collect()
    }

    fn write_copies_down(&self, pages: &mut [Copying]) -> Result<Vec<Moved>, StoreError> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<Place> = pages.iter().map(|page| page.place).collect();
        if let Err(error) = self.settle() {
            let blocks: Vec<u64> = places.iter().map(|place| place.block).collect();
            self.free(&blocks);
            return Err(error);
        }
        let sequence = self.next_sequence();
        pages
            .iter_mut()
            .for_each(|page| seal(&mut page.buf, page.id, sequence));
        let bufs: Vec<&[u8]> = pages.iter().map(|page| &page.buf[..PAGE_SIZE]).collect();
        let addresses = self.write_to_places(&bufs, &places)?;
        let moved = pages.iter().zip(addresses).map(|(page, to)| Moved {
            id: page.id,
            from: page.from,
            to,
        });
        Ok(moved.collect())
    }
}
