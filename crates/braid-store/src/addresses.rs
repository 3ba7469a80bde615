//! The block address of each page: the current one, and the one in the page map of the durable
//! superblock, the *durable* one.
//!
//! Most pages are unchanged since the newest checkpoint. Their current address is the durable one,
//! so they need one word. A page whose addresses differ has a further entry, which its first change
//! since the checkpoint adds, and which the publication of the next checkpoint removes. So the
//! entries take memory for changed pages only, and a checkpoint finds the changed pages in them.
//!
//! Detached pages belong to no later page map (see [`crate::buffer_pool::detached`]), so they count
//! as absent here: a detached page has an entry while its block is in the durable map.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use braid_rt::{Mutex, MutexGuard, to_usize};

use crate::page::PageId;
use crate::page_table::PageTable;

/// The block address of a page that does not exist.
pub(crate) const ABSENT: u64 = 0;

/// The block address of a page that was never written to the medium.
pub(crate) const UNWRITTEN: u64 = u64::MAX >> 1;

/// Flag in the word of a page that is detached.
const DETACHED: u64 = 1 << 63;

/// Consecutive pages whose entries have one lock.
const GROUP: u64 = 32;

/// Locks of entries.
const SHARDS: u64 = 64;

/// Durable block addresses that differ from the current ones.
type Entries = BTreeMap<PageId, u64>;

/// The block addresses of all pages; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// A block, `ABSENT` or `UNWRITTEN`, and the flag `DETACHED`. Changed only by the holder of the
    /// entries' lock.
    words: PageTable,
    shards: Box<[Mutex<Entries>]>,
}

/// A page's state before a change of its current address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) address: u64,
    pub(crate) is_detached: bool,
    /// The durable address, which the change keeps.
    pub(crate) durable: u64,
}

impl Before {
    /// The address that a page map would have had.
    pub(crate) fn attached(self) -> u64 {
        if self.is_detached {
            ABSENT
        } else {
            self.address
        }
    }
}

/// The address that a page map has for a page with this word.
fn attached(word: u64) -> u64 {
    if word & DETACHED != 0 && !braid_rt::mutant!("checkpoint_the_detached") {
        return ABSENT;
    }
    word & !DETACHED
}

impl Addresses {
    pub(crate) fn new() -> Self {
        Self {
            words: PageTable::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn entries(&self, id: PageId) -> MutexGuard<'_, Entries> {
        self.shards[to_usize(id / GROUP % SHARDS)].lock()
    }

    fn word(&self, id: PageId) -> u64 {
        // Acquire: pairs with `change`; a reader of the address also sees what preceded it.
        let word = self.words.get(id);
        word.map_or(ABSENT, |word| word.load(Ordering::Acquire))
    }

    /// The current block address of a page.
    pub(crate) fn current(&self, id: PageId) -> u64 {
        self.word(id) & !DETACHED
    }

    /// The current block address of a page that belongs to a tree.
    pub(crate) fn attached(&self, id: PageId) -> u64 {
        attached(self.word(id))
    }

    /// Whether an existing page is detached, so no tree refers to it.
    pub(crate) fn is_detached(&self, id: PageId) -> bool {
        self.word(id) & DETACHED != 0
    }

    /// The block address of a page as of the durable superblock.
    pub(crate) fn durable(&self, id: PageId) -> u64 {
        let entries = self.entries(id);
        let entry = entries.get(&id).copied();
        entry.unwrap_or_else(|| self.attached(id))
    }

    /// The durable block addresses of consecutive pages.
    pub(crate) fn durable_of(&self, ids: Range<PageId>) -> Vec<u64> {
        let mut durable = Vec::with_capacity(to_usize(ids.end.saturating_sub(ids.start)));
        for group in groups(ids) {
            let entries = self.entries(group.start);
            durable.extend(group.clone().map(|id| self.attached(id)));
            let of_group = durable.len() - to_usize(group.end - group.start);
            for (&id, &address) in entries.range(group.clone()) {
                durable[of_group + to_usize(id - group.start)] = address;
            }
        }
        durable
    }

    /// Passes the pages whose next page map differs from the durable one if no page changes, in the
    /// order of their ids, with the current block address.
    pub(crate) fn for_changed(&self, ids: Range<PageId>, mut f: impl FnMut(PageId, u64)) {
        for group in groups(ids) {
            let entries = self.entries(group.start);
            let changed = entries.range(group);
            changed.for_each(|(&id, _)| f(id, self.attached(id)));
        }
    }

    /// Sets the block address of a page that the durable superblock refers to. Only while the file
    /// is being opened.
    pub(crate) fn begin(&self, id: PageId, address: u64) {
        let word = self.words.get_or_make(id);
        word.store(address, Ordering::Relaxed);
    }

    /// Changes a page's word, and keeps its durable address.
    fn change(&self, id: PageId, to: impl FnOnce(u64) -> u64) -> Before {
        let word = self.words.get_or_make(id);
        let mut entries = self.entries(id);
        // Relaxed: the lock orders all changes.
        let before = word.load(Ordering::Relaxed);
        let after = to(before);
        let durable = entries.get(&id).copied();
        let durable = durable.unwrap_or_else(|| attached(before));
        if attached(after) == durable {
            entries.remove(&id);
        } else if !braid_rt::mutant!("forget_durable_addresses") {
            entries.insert(id, durable);
        }
        // Release: pairs with `word`.
        word.store(after, Ordering::Release);
        Before {
            address: before & !DETACHED,
            is_detached: before & DETACHED != 0,
            durable,
        }
    }

    /// Changes the current block address of a page.
    pub(crate) fn set(&self, id: PageId, address: u64) -> Before {
        self.change(id, |word| match address {
            ABSENT => ABSENT,
            address => address | word & DETACHED,
        })
    }

    /// Removes a page from all later page maps.
    pub(crate) fn detach(&self, id: PageId) -> Before {
        self.change(id, |word| word | DETACHED)
    }

    /// Makes a block address the durable one of a page; returns the previous durable one.
    pub(crate) fn set_durable(&self, id: PageId, address: u64) -> u64 {
        let mut entries = self.entries(id);
        let attached = self.attached(id);
        let before = if attached == address && !braid_rt::mutant!("keep_durable_addresses") {
            entries.remove(&id)
        } else {
            entries.insert(id, address)
        };
        before.unwrap_or(attached)
    }
}

/// The parts of a range of pages whose entries have one lock.
fn groups(ids: Range<PageId>) -> impl Iterator<Item = Range<PageId>> {
    let mut next = ids.start;
    std::iter::from_fn(move || {
        let first = next;
        next = ids.end.min((first / GROUP + 1) * GROUP);
        (first < ids.end).then_some(first..next)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, Default)]
    struct Page {
        current: u64,
        is_detached: bool,
        durable: u64,
    }

    impl Page {
        fn attached(self) -> u64 {
            if self.is_detached { 0 } else { self.current }
        }
    }

    /// Two words for each page, as plain as can be.
    fn check(addresses: &Addresses, model: &BTreeMap<PageId, Page>, ids: Range<PageId>) {
        let page = |id| model.get(&id).copied().unwrap_or_default();
        for id in ids.clone() {
            let found = Page {
                current: addresses.current(id),
                is_detached: addresses.is_detached(id),
                durable: addresses.durable(id),
            };
            assert_eq!(format!("{found:?}"), format!("{:?}", page(id)), "page {id}");
            assert_eq!(addresses.attached(id), page(id).attached());
        }
        let durable: Vec<u64> = ids.clone().map(|id| page(id).durable).collect();
        assert_eq!(addresses.durable_of(ids.clone()), durable);
        let mut changed = Vec::new();
        addresses.for_changed(ids.clone(), |id, address| changed.push((id, address)));
        let differs = |id: &PageId| page(*id).attached() != page(*id).durable;
        let wanted = ids.filter(differs).map(|id| (id, page(id).attached()));
        assert_eq!(changed, wanted.collect::<Vec<_>>());
    }

    #[test]
    fn addresses_are_like_two_words_for_each_page() {
        for seed in 0..if cfg!(miri) { 1 } else { 20 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (addresses, mut model) = (Addresses::new(), BTreeMap::<PageId, Page>::new());
            let pages = 3 * GROUP;
            for id in 1..pages / 2 {
                addresses.begin(id, 1_000 + id);
                let page = model.entry(id).or_default();
                (page.current, page.durable) = (1_000 + id, 1_000 + id);
            }
            for step in 2_000..if cfg!(miri) { 2_050 } else { 2_500 } {
                let id = rng.u64(1..pages);
                let page = model.entry(id).or_default();
                let before = Before {
                    address: page.current,
                    is_detached: page.is_detached,
                    durable: page.durable,
                };
                assert_eq!(before.attached(), page.attached());
                match rng.u32(..8) {
                    0..3 => {
                        assert_eq!(addresses.set(id, step), before);
                        page.current = step;
                    }
                    3 => {
                        assert_eq!(addresses.set(id, UNWRITTEN), before);
                        page.current = UNWRITTEN;
                    }
                    4 => {
                        assert_eq!(addresses.set(id, ABSENT), before);
                        (page.current, page.is_detached) = (ABSENT, false);
                    }
                    5 => {
                        assert_eq!(addresses.detach(id), before);
                        page.is_detached = true;
                    }
                    // A publication, of the present state or of an earlier one.
                    6 => {
                        let to = page.attached();
                        assert_eq!(addresses.set_durable(id, to), before.durable);
                        page.durable = to;
                    }
                    _ => {
                        assert_eq!(addresses.set_durable(id, step), before.durable);
                        page.durable = step;
                    }
                }
                let first = rng.u64(..pages);
                check(&addresses, &model, first..rng.u64(first..=pages));
            }
            check(&addresses, &model, 0..pages + GROUP);
        }
    }

    #[test]
    fn only_pages_with_two_addresses_have_entries() {
        let addresses = Addresses::new();
        let entries = || -> usize { addresses.shards.iter().map(|s| s.lock().len()).sum() };
        let pages = 1..GROUP * SHARDS * 2;
        for id in pages.clone() {
            addresses.begin(id, id);
        }
        assert_eq!(entries(), 0);
        for id in pages.clone().step_by(3) {
            addresses.set(id, 1 << 30 | id);
            addresses.set(id, 1 << 31 | id);
        }
        assert_eq!(entries(), pages.clone().step_by(3).count());
        for id in pages.step_by(3) {
            assert_eq!(addresses.set_durable(id, 1 << 31 | id), id);
        }
        assert_eq!(entries(), 0);
        // A page that ceases to exist before a page map has it, and one that leaves the map.
        let new = GROUP * SHARDS * 3;
        addresses.set(new, UNWRITTEN);
        addresses.set(9, ABSENT);
        assert_eq!(entries(), 2);
        addresses.set(new, ABSENT);
        addresses.set_durable(9, ABSENT);
        assert_eq!((entries(), addresses.durable(9)), (0, ABSENT));
    }

    #[test]
    fn groups_cover_a_range() {
        for (ids, wanted) in [
            (0..0, &[][..]),
            (5..GROUP, &[(5, GROUP)]),
            (
                GROUP - 1..GROUP + 1,
                &[(GROUP - 1, GROUP), (GROUP, GROUP + 1)],
            ),
            (0..2 * GROUP, &[(0, GROUP), (GROUP, 2 * GROUP)]),
        ] {
            let found = groups(ids).map(|group| (group.start, group.end));
            assert_eq!(found.collect::<Vec<_>>(), wanted);
        }
    }
}
