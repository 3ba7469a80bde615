//! Images of pages in ordinary memory, so that a difference needs no reading of the log.

use std::collections::VecDeque;
use std::ops::Range;

use crate::page_map::PageMap;

/// The images of the pages that were appended last. The image of a page is that of its newest frame.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    images: PageMap<Vec<u8>>,
    /// Pages in the order in which they came into the cache.
    order: VecDeque<u64>,
    /// Most pages.
    limit: usize,
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    pub(crate) fn get(&self, page: u64) -> Option<&[u8]> {
        self.images.get(&page).map(Vec::as_slice)
    }

    /// Changes the cached image of a page in the ranges in which the new one differs.
    pub(crate) fn change(&mut self, page: u64, image: &[u8], ranges: &[Range<usize>]) {
        if let Some(cached) = self.images.get_mut(&page) {
            for range in ranges {
                cached[range.clone()].copy_from_slice(&image[range.clone()]);
            }
            debug_assert!(cached == image, "the ranges have all differences");
        }
    }

    /// Replaces the image of a page.
    pub(crate) fn put(&mut self, page: u64, image: &[u8]) {
        if self.limit == 0 {
            return;
        }
        if let Some(cached) = self.images.get_mut(&page) {
            cached.copy_from_slice(image);
            return;
        }
        // The memory of the page that leaves the cache is used again.
        let mut bytes = Vec::new();
        while self.order.len() >= self.limit {
            let oldest = self.order.pop_front();
            let removed = oldest.and_then(|page| self.images.remove(&page));
            bytes = removed.unwrap_or(bytes);
        }
        bytes.clear();
        bytes.extend_from_slice(image);
        self.images.insert(page, bytes);
        self.order.push_back(page);
    }

    /// Removes the image of a page.
    pub(crate) fn remove(&mut self, page: u64) {
        self.images.remove(&page);
    }

    pub(crate) fn clear(&mut self) {
        self.images.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_page_leaves_a_full_cache() {
        let mut cache = Cache::new(2);
        cache.put(1, &[1]);
        cache.put(2, &[2]);
        cache.put(1, &[3]);
        cache.put(4, &[4]);
        assert_eq!(cache.get(1), None);
        assert_eq!(cache.get(2), Some(&[2][..]));
        assert_eq!(cache.get(4), Some(&[4][..]));
        cache.change(2, &[3], std::slice::from_ref(&(0..1)));
        cache.change(1, &[3], std::slice::from_ref(&(0..1)));
        assert_eq!((cache.get(1), cache.get(2)), (None, Some(&[3][..])));
        cache.remove(2);
        for page in 0..100 {
            cache.put(2, &[5]);
            cache.remove(2);
            cache.put(page, &[6]);
        }
        assert!(cache.images.len() <= 2 && cache.order.len() <= 2);
        cache.clear();
        assert_eq!(cache.get(99), None);
        let mut none = Cache::new(0);
        none.put(1, &[1]);
        assert_eq!(none.get(1), None);
    }
}
