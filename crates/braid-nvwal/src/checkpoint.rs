//! The newest images of a log, for the caller's database.

use crate::chain::Chain;
use crate::error::LogError;
use crate::format::Mark;
use crate::images::{frame_before, read_image};
use crate::index::Index;

/// The pages of a log and their newest images, ascending by page; from
/// [`Writer::checkpoint`](crate::Writer::checkpoint).
#[derive(Debug)]
pub struct Checkpoint<'a> {
    chain: &'a Chain,
    index: &'a Index,
    page_size: usize,
    mark: Mark,
    pages: std::vec::IntoIter<u64>,
}

impl<'a> Checkpoint<'a> {
    pub(crate) fn new(chain: &'a Chain, index: &'a Index, page_size: usize, mark: Mark) -> Self {
        Self {
            chain,
            index,
            page_size,
            mark,
            pages: index.pages().into_iter(),
        }
    }

    /// The place in the log of which these are the images.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.mark
    }

    fn image(&self, page: u64) -> Result<Option<Vec<u8>>, LogError> {
        let newest = self.index.committed(page).expect("a page of the index");
        let end = self.mark.position;
        let frame = frame_before(self.chain, self.page_size, newest.position, end)?;
        let Some(position) = frame else {
            return Ok(None);
        };
        let mut image = vec![0; self.page_size];
        read_image(self.chain, Some(page), position, &mut image)?;
        Ok(Some(image))
    }
}

impl Iterator for Checkpoint<'_> {
    type Item = Result<(u64, Vec<u8>), LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let page = self.pages.next()?;
            match self.image(page) {
                Ok(Some(image)) => return Some(Ok((page, image))),
                // All frames of the page are after the mark.
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
