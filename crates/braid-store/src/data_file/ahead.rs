//! Extending the file before transactions need the room, off their path.

use std::fmt;
use std::sync::OnceLock;

use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};

use super::length::growth;
use super::{BLOCKS_MAX, DataFile};

/// The expected number of changed pages falls by at most this part from one checkpoint to the next,
/// as a divisor.
const FORGOTTEN: u64 = 8;

/// Requests to extend the file before a transaction needs that, and the room that transactions are
/// expected to need.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Wakes the thread that extends the file.
    request: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Whether the thread was woken and has not begun.
    is_requested: AtomicBool,
    /// Pages that transactions probably change until the next checkpoint.
    expected: AtomicU64,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead")
            .field("is_requested", &self.is_requested)
            .finish_non_exhaustive()
    }
}

impl Ahead {
    /// Sets the function that wakes the thread. Only the first call counts.
    pub(crate) fn by(&self, request: Box<dyn Fn() + Send + Sync>) {
        let _ = self.request.set(request);
    }

    /// Whether a thread extends the file ahead.
    pub(crate) fn is_on(&self) -> bool {
        self.request.get().is_some() && !braid_rt::mutant!("extend_only_when_short")
    }

    /// Wakes the thread, once until it begins.
    pub(crate) fn request(&self) {
        // Relaxed: the thread reads the surplus under a lock afterwards.
        if !self.is_requested.load(Ordering::Relaxed)
            && !self.is_requested.swap(true, Ordering::Relaxed)
            && let Some(request) = self.request.get()
        {
            request();
        }
    }

    /// Returns how many pages transactions will probably change until the next checkpoint, given that
    /// they changed `pages` for the last one. The number falls slowly, unless no page changed: a
    /// checkpoint soon after another one finds few changed pages, and the next one may take long.
    pub(crate) fn expect(&self, pages: u64) -> u64 {
        // Relaxed: only the thread that writes checkpoints reads and writes it.
        let before = self.expected.load(Ordering::Relaxed);
        let pages = if pages == 0 || braid_rt::mutant!("expect_what_was_last") {
            pages
        } else {
            pages.max(before - before.div_ceil(FORGOTTEN))
        };
        self.expected.store(pages, Ordering::Relaxed);
        pages
    }

    /// The thread begins.
    pub(crate) fn take_request(&self) {
        self.is_requested.store(false, Ordering::Relaxed);
    }
}

impl DataFile {
    /// Has `request` called when a transaction finds the surplus low, so that a thread calls
    /// [`DataFile::grow_ahead`] soon.
    pub(crate) fn extend_ahead_by(&self, request: Box<dyn Fn() + Send + Sync>) {
        self.ahead.by(request);
        self.note_growth(self.extent.load(Ordering::Relaxed));
    }

    /// Extends the file if the surplus is low, so that transactions need not. If the medium refuses,
    /// only transactions that are short of room try again, and get its error.
    pub(crate) fn grow_ahead(&self) {
        self.ahead.take_request();
        let _growing = self.growing.lock();
        if self.room.surplus() >= self.room.low() {
            return;
        }
        let extent = self.extent.load(Ordering::Relaxed);
        let end = self.space.lock().end().max(extent);
        let extended = self.extend((end + growth(end)).min(BLOCKS_MAX), true);
        // The file may have its greatest length.
        if extended.is_err() || self.extent.load(Ordering::Relaxed) <= extent {
            braid_rt::coverage_point("store: the data file can't grow ahead");
            self.room.set_low(0);
        } else {
            braid_rt::coverage_point("store: the data file grows ahead");
        }
    }

    /// Sets the low surplus for a file of `blocks` blocks: half of what is added at once.
    pub(super) fn note_growth(&self, blocks: u64) {
        if self.ahead.is_on() {
            self.room.set_low((growth(blocks) / 2).cast_signed());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use braid_io::SimDevice;

    use crate::{Change, Store, StoreOptions, WriterRoom};

    const OPTIONS: StoreOptions = StoreOptions::of_pool(2 << 20);

    /// A store, and the number of requests to extend its file.
    fn store() -> (Store, Arc<AtomicU64>) {
        let store = Store::create(Arc::new(SimDevice::new(0)), OPTIONS).unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let counter = requests.clone();
        store.extend_ahead_by(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        (store, requests)
    }

    /// Admits transactions of one write, which add entries, and calls `next` after each.
    fn write(store: &Store, writer: &mut WriterRoom, range: std::ops::Range<u32>, next: impl Fn()) {
        let tree = store.tree(1).unwrap();
        for key in range {
            store.admit(writer, (1, 1_500), || false).unwrap();
            let (version, value) = (1, &[7; 1_500][..]);
            let put = Change::Put { version, value };
            tree.modify(&key.to_be_bytes(), |_| (put, ())).unwrap();
            next();
        }
    }

    /// A transaction extends the file only if nobody has: the first one, whose need is unknown before.
    #[test]
    fn transactions_do_not_extend_the_file_if_a_thread_keeps_up() {
        let (store, requests) = store();
        let mut writer = WriterRoom::default();
        write(&store, &mut writer, 0..1, || ());
        let before = store.stats();
        // The first transaction has asked already.
        let seen = AtomicU64::new(0);
        write(&store, &mut writer, 1..1_000, || {
            let requests = requests.load(Ordering::Relaxed);
            if seen.swap(requests, Ordering::Relaxed) < requests {
                store.extend_ahead();
            }
        });
        let after = store.stats();
        assert!(after.file_bytes > before.file_bytes + (1 << 20));
        assert_eq!(after.extension_waits, before.extension_waits);
        store.release_room(&mut writer);
    }

    /// The thread is woken once, however many transactions follow, and these extend the file
    /// themselves in the end.
    #[test]
    fn transactions_extend_the_file_if_the_thread_does_not_keep_up() {
        let (store, requests) = store();
        let mut writer = WriterRoom::default();
        write(&store, &mut writer, 0..1_000, || ());
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        assert!(store.stats().extension_waits > 1);
        // It finds that there is room, or makes some; then it may be woken again.
        store.extend_ahead();
        let bytes = store.stats().file_bytes;
        store.extend_ahead();
        assert_eq!(store.stats().file_bytes, bytes, "nothing was asked for");
        store.release_room(&mut writer);
    }

    /// What a file keeps when its end is cut off is not soon extended again.
    #[test]
    fn a_file_that_was_cut_off_is_not_extended_before_that_is_used() {
        let (store, requests) = store();
        let mut writer = WriterRoom::default();
        write(&store, &mut writer, 0..1_000, || store.extend_ahead());
        store.release_room(&mut writer);
        store.inner.pool.file.trim_to(20);
        let (bytes, asked) = (store.stats().file_bytes, requests.load(Ordering::Relaxed));
        store.admit(&mut writer, (0, 0), || false).unwrap();
        store.extend_ahead();
        assert_eq!(store.stats().file_bytes, bytes);
        assert_eq!(requests.load(Ordering::Relaxed), asked);
        store.release_room(&mut writer);
    }

    /// A medium without space refuses transactions when they need it, and not before.
    #[test]
    fn a_full_medium_is_not_asked_again_before_a_transaction_needs_room() {
        let device = SimDevice::new(0);
        let store = Store::create(Arc::new(device.clone()), OPTIONS).unwrap();
        let mut writer = WriterRoom::default();
        store.extend_ahead_by(|| ());
        write(&store, &mut writer, 0..100, || ());
        device.set_capacity(Some(0));
        store.inner.pool.file.room.set_low(i64::MAX);
        store.extend_ahead();
        assert_eq!(store.inner.pool.file.room.low(), 0);
        store.release_room(&mut writer);
    }

    /// A store whose pages all fit the pool, and whose file keeps room for as many changes.
    fn changed() -> (Store, WriterRoom) {
        let options = StoreOptions::of_pool(32 << 20);
        let store = Store::create(Arc::new(SimDevice::new(0)), options).unwrap();
        store.extend_ahead_by(|| ());
        let mut writer = WriterRoom::default();
        for _ in 0..3 {
            write(&store, &mut writer, 0..1_000, || ());
            checkpoint(&store, || ());
        }
        (store, writer)
    }

    /// Writes a checkpoint, and calls `before_end` before it is published.
    fn checkpoint(store: &Store, before_end: impl FnOnce()) {
        let mut open = store.begin_checkpoint(Vec::new()).unwrap();
        open.write(&|_| ()).unwrap();
        before_end();
        open.publish().unwrap();
    }

    /// A checkpoint that found no changed page says little about what transactions will need if they
    /// changed pages during it.
    #[test]
    fn a_file_keeps_room_for_pages_that_change_during_a_checkpoint() {
        let (store, mut writer) = changed();
        checkpoint(&store, || ());
        let mut change = || write(&store, &mut writer, 0..1_000, || ());
        checkpoint(&store, || {
            change();
            // The file has more room than transactions need.
            store.inner.pool.file.grow(8_000).unwrap();
        });
        let before = store.stats();
        checkpoint(&store, &mut change);
        assert_eq!(store.stats().extension_waits, before.extension_waits);
        store.release_room(&mut writer);
    }

    /// A checkpoint that follows another one at once finds few changed pages.
    #[test]
    fn a_file_keeps_room_for_more_than_the_last_few_changes() {
        let (store, mut writer) = changed();
        write(&store, &mut writer, 0..1, || ());
        checkpoint(&store, || ());
        let before = store.stats();
        write(&store, &mut writer, 0..1_000, || ());
        assert_eq!(store.stats().extension_waits, before.extension_waits);
        // Without changes, a file keeps nothing.
        checkpoint(&store, || ());
        checkpoint(&store, || ());
        assert!(store.stats().file_bytes < before.file_bytes);
        store.release_room(&mut writer);
    }
}
