//! Writing: blocks of images, from the place that each gets to its block address, and blocks that are free
//! again.

use std::io;
use std::time::Instant;

use braid_io::AlignedBuf;
use braid_rt::atomic::Ordering;

use super::block::seal;
use super::lines::{self, Place};
use super::{DataFile, address_of};
use crate::error::StoreError;
use crate::page::{PAGE_SIZE, PageId};

impl DataFile {
    /// Takes a free block for each identity, with room for it in the file: the identity's spare, if
    /// it has one.
    ///
    /// # Errors
    /// [`StoreError::OutOfSpace`] if the file has its greatest length.
    fn allocate(&self, identities: &[u64]) -> Result<Vec<Place>, StoreError> {
        let extent = || self.extent.load(Ordering::Relaxed);
        let mut space = self.space.lock();
        let spares = identities.iter().map(|&id| space.take_spare(id));
        let spares: Vec<Option<u64>> = spares.collect();
        let missing = spares.iter().filter(|spare| spare.is_none()).count();
        let short = space.short_of(missing, extent());
        if short > 0 && !self.cannot_grow.load(Ordering::Relaxed) {
            drop(space);
            self.grow_for_spares(short);
            space = self.space.lock();
        }
        let mut places = Vec::with_capacity(identities.len());
        for &spare in &spares {
            let is_spare = spare.is_some()
                || braid_rt::mutant!("trust_unknown_contents") && space.keeps_spares();
            match spare.or_else(|| space.allocate(extent())) {
                Some(block) => places.push(Place { block, is_spare }),
                None => {
                    let rest = spares[places.len()..].iter().flatten();
                    let taken = places.iter().map(|place| place.block);
                    taken
                        .chain(rest.copied())
                        .for_each(|block| space.free(block));
                    return Err(self.longest());
                }
            }
        }
        drop(space);
        self.make_room(places.iter().map(|place| place.block));
        Ok(places)
    }

    /// Writes a page to a free block; returns its block address.
    pub(crate) fn write_page(&self, id: PageId, buf: &mut [u8]) -> Result<u64, StoreError> {
        let written = self.write_run(&[id], buf).inspect_err(|_| {
            braid_rt::coverage_point("store: an evicted page can't be written");
        });
        Ok(written?[0])
    }

    /// Seals and writes blocks, in one batch; returns their block addresses.
    pub(crate) fn write_blocks(
        &self,
        blocks: &mut [(u64, AlignedBuf)],
    ) -> Result<Vec<u64>, StoreError> {
        self.settle()?;
        let identities: Vec<u64> = blocks.iter().map(|(identity, _)| *identity).collect();
        let places = self.allocate(&identities)?;
        let sequence = self.next_sequence();
        blocks
            .iter_mut()
            .for_each(|(identity, buf)| seal(buf, *identity, sequence));
        let bufs: Vec<&[u8]> = blocks.iter().map(|(_, buf)| &buf[..PAGE_SIZE]).collect();
        self.write_to_places(&bufs, &places)
    }

    /// Seals and writes the pages that follow each other in a buffer; returns their block
    /// addresses.
    pub(crate) fn write_run(&self, ids: &[PageId], buf: &mut [u8]) -> Result<Vec<u64>, StoreError> {
        self.write_run_in_pieces(ids, buf, ids.len(), &|_| {})
    }

    /// As [`DataFile::write_run`], `piece` pages at once. Calls `written` after each piece, with the
    /// time at which the piece began.
    pub(crate) fn write_run_in_pieces(
        &self,
        ids: &[PageId],
        buf: &mut [u8],
        piece: usize,
        written: &dyn Fn(Instant),
    ) -> Result<Vec<u64>, StoreError> {
        self.settle()?;
        let places = self.allocate(ids)?;
        let sequence = self.next_sequence();
        let mut addresses = Vec::with_capacity(ids.len());
        let piece = piece.max(1);
        let pieces = ids.chunks(piece).zip(buf.chunks_mut(piece * PAGE_SIZE));
        for ((ids, buf), of_piece) in pieces.zip(places.chunks(piece)) {
            let begun = braid_rt::now();
            for (&id, page) in ids.iter().zip(buf.chunks_exact_mut(PAGE_SIZE)) {
                seal(page, id, sequence);
            }
            let images: &[&[u8]] = &[buf];
            if let Err(error) = self.write_images(images, of_piece) {
                return Err(self.not_written(&places, error));
            }
            let placed = lines::placed(images, of_piece);
            addresses.extend(placed.map(|(image, place)| address_of(place.block, image)));
            written(begun);
        }
        Ok(addresses)
    }

    /// Writes sealed images to the places that were taken for them; each buffer contains one or more.
    /// After an error, the places are free again, and nothing is known about their contents. Returns
    /// the block addresses.
    pub(super) fn write_to_places(
        &self,
        bufs: &[&[u8]],
        places: &[Place],
    ) -> Result<Vec<u64>, StoreError> {
        if let Err(error) = self.write_images(bufs, places) {
            return Err(self.not_written(places, error));
        }
        let written = lines::placed(bufs, places);
        Ok(written
            .map(|(image, place)| address_of(place.block, image))
            .collect())
    }

    /// Frees the places of images of which some could not be written.
    fn not_written(&self, places: &[Place], error: io::Error) -> StoreError {
        let blocks: Vec<u64> = places.iter().map(|place| place.block).collect();
        self.free(&blocks);
        self.failed("cannot write pages to", error)
    }

    /// Frees blocks that nothing refers to.
    pub(crate) fn free(&self, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        let mut space = self.holds.space.of(self.space.lock());
        blocks.iter().for_each(|&block| space.free(block));
    }

    /// Frees blocks that nothing refers to, each of which has the last contents that were written
    /// for the identity; see [`Space::free_as_spare`].
    pub(crate) fn free_as_spares(&self, blocks: &[(u64, u64)]) {
        if blocks.is_empty() {
            return;
        }
        let mut space = self.holds.space.of(self.space.lock());
        for &(identity, block) in blocks {
            space.free_as_spare(identity, block);
        }
    }

    /// Gives up the spares of identities that no longer exist.
    pub(crate) fn forget_spares(&self, identities: &[u64]) {
        if identities.is_empty() {
            return;
        }
        let mut space = self.holds.space.of(self.space.lock());
        identities.iter().for_each(|&id| space.forget_spare(id));
    }
}
