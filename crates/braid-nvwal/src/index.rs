//! The newest frame of each page, in ordinary memory.

use crate::format::Frame;
use crate::page_map::PageMap;

/// The newest frames of committed transactions, and those of the open one.
#[derive(Debug, Default)]
pub(crate) struct Index {
    committed: PageMap<Frame>,
    /// Frames of the open transaction in the order of the log.
    open: Vec<(u64, Frame)>,
    newest_open: PageMap<Frame>,
}

impl Index {
    /// The newest frame of a page, with those of the open transaction.
    pub(crate) fn newest(&self, page: u64) -> Option<Frame> {
        let open = self.newest_open.get(&page);
        open.or_else(|| self.committed.get(&page)).copied()
    }

    /// The newest committed frame of a page.
    pub(crate) fn committed(&self, page: u64) -> Option<Frame> {
        self.committed.get(&page).copied()
    }

    /// Adds a frame to the open transaction.
    pub(crate) fn append(&mut self, page: u64, frame: Frame) {
        self.open.push((page, frame));
        self.newest_open.insert(page, frame);
    }

    /// Number of frames of the open transaction.
    pub(crate) fn open_frames(&self) -> usize {
        self.open.len()
    }

    /// Frames of the open transaction with their pages, in the order of the log.
    pub(crate) fn open(&self) -> &[(u64, Frame)] {
        &self.open
    }

    /// Pages of the open transaction's frames but the first `frames`.
    pub(crate) fn open_pages(&self, frames: usize) -> impl Iterator<Item = u64> {
        self.open.iter().skip(frames).map(|(page, _)| *page)
    }

    pub(crate) fn commit(&mut self) {
        self.committed.extend(self.newest_open.drain());
        self.open.clear();
    }

    /// Removes all frames of the open transaction but the first `frames`.
    pub(crate) fn roll_back_to(&mut self, frames: usize) {
        self.open.truncate(frames);
        self.newest_open = self.open.iter().copied().collect();
    }

    /// Numbers of the pages with committed frames, ascending.
    pub(crate) fn pages(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.committed.keys().copied().collect();
        pages.sort_unstable();
        pages
    }

    /// Number of pages with committed frames.
    pub(crate) fn len(&self) -> usize {
        self.committed.len()
    }
}
