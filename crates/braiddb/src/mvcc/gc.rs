//! Collection of old versions and tombstones that no snapshot can see.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use braid_log::SeqNo;
use braid_rt::Mutex;
use crossbeam_utils::CachePadded;

use crate::base::sync::AtomicU64;
use crate::mvcc::versions::{Dropped, SpareVersions};
use crate::schema::table::TableCore;

/// Number of shards.
pub(crate) const SHARDS: usize = 16;

/// A chain of versions, or a tombstone, that is collected once the watermark reaches `end`.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) end: SeqNo,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// The versions of a bucket of the lock table; `end` is at least the end of the oldest.
    Chain { bucket: usize },
    /// A tombstone that commit `end` left in the tree when it removed a key.
    Tombstone(Box<Tombstone>),
}

#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) table: Arc<TableCore>,
    pub(crate) key: Box<[u8]>,
}

impl Retired {
    /// The versions of a bucket, the oldest of which commit `end` replaced, or an earlier one.
    pub(crate) fn chain(end: SeqNo, bucket: usize) -> Self {
        let what = What::Chain { bucket };
        Self { end, what }
    }

    /// The space that the entry takes, in bytes, if it is a tombstone. The entry of a chain is small
    /// compared with the chain.
    pub(crate) fn space(&self) -> isize {
        match &self.what {
            What::Chain { .. } => 0,
            What::Tombstone(tombstone) => {
                let bytes = size_of::<Self>() + size_of::<Tombstone>() + tombstone.key.len();
                bytes.cast_signed()
            }
        }
    }

    /// A tombstone that commit `end` left in the tree when it removed a key.
    pub(crate) fn tombstone(end: SeqNo, table: Arc<TableCore>, key: &[u8]) -> Self {
        let key = key.into();
        let what = What::Tombstone(Box::new(Tombstone { table, key }));
        Self { end, what }
    }
}

/// One thread's share of the versions and tombstones to collect. No thread reads a page or frees a
/// version while it holds a shard's lock.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Roughly in the order of `end`.
    retired: VecDeque<Retired>,
    /// Tombstones that can be collected, but whose leaves are not in memory. The background thread
    /// collects them, so that no commit reads a page for another one's removal.
    cold: VecDeque<Retired>,
    /// Number of tombstones in both queues.
    tombstones: usize,
    /// Number of versions that this shard's threads added to chains, minus those that they dropped.
    /// Modulo the size of the type, since one thread may drop what another added.
    pub(crate) versions: usize,
    /// The space of these versions and of the tombstones, in bytes. May be negative, for the same
    /// reason.
    pub(crate) bytes: isize,
    /// The value of `bytes` beyond which a commit requests a collection.
    pub(crate) bytes_max: isize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            retired: VecDeque::new(),
            cold: VecDeque::new(),
            tombstones: 0,
            versions: 0,
            bytes: 0,
            bytes_max: isize::MAX,
        }
    }
}

impl Shard {
    /// Adds a version or tombstone to collect once the watermark reaches its `end`.
    pub(crate) fn retire(&mut self, retired: Retired) {
        self.count_tombstone(&retired);
        self.retired.push_back(retired);
    }

    /// Adds a version or tombstone that can be collected at once.
    pub(crate) fn retire_first(&mut self, retired: Retired) {
        self.count_tombstone(&retired);
        self.retired.push_front(retired);
    }

    /// Adds a tombstone that the background thread collects.
    pub(crate) fn retire_cold(&mut self, tombstone: Retired) {
        self.count_tombstone(&tombstone);
        self.cold.push_back(tombstone);
    }

    fn count_tombstone(&mut self, retired: &Retired) {
        self.tombstones += usize::from(matches!(retired.what, What::Tombstone(_)));
        self.bytes += retired.space();
    }

    fn uncount_tombstone(&mut self, retired: &Retired) {
        self.tombstones -= usize::from(matches!(retired.what, What::Tombstone(_)));
        self.bytes -= retired.space();
    }

    /// Counts versions that were dropped from chains.
    pub(crate) fn count_dropped(&mut self, dropped: Dropped) {
        self.versions = self.versions.wrapping_sub(dropped.versions);
        self.bytes -= dropped.bytes;
    }

    /// Returns whether the shard's space grew beyond `bytes_max` since the last collection. Only one
    /// call returns `true`.
    #[inline]
    pub(crate) fn take_excess(&mut self) -> bool {
        let exceeds = self.bytes > self.bytes_max;
        if exceeds {
            self.bytes_max = isize::MAX;
        }
        exceeds
    }

    /// Calls `examine` with the entries from index `from` on, at most `at_most`. Returns whether
    /// there were any.
    pub(crate) fn examine(
        &self,
        from: usize,
        at_most: usize,
        examine: impl FnMut(&Retired),
    ) -> bool {
        let entries = self.retired.iter().skip(from).take(at_most);
        let is_any = entries.len() > 0;
        entries.for_each(examine);
        is_any
    }

    /// Returns the `end` of the first entry.
    pub(crate) fn first_end(&self) -> Option<SeqNo> {
        self.retired.front().map(|first| first.end)
    }

    /// Removes the first entry if the watermark has reached its `end`.
    pub(crate) fn pop_due(&mut self, watermark: SeqNo) -> Option<Retired> {
        if self.retired.len() == 1 && braid_rt::mutant!("keep_the_last_version") {
            return None;
        }
        let due = self
            .retired
            .pop_front_if(|retired| retired.end <= watermark)?;
        self.uncount_tombstone(&due);
        Some(due)
    }

    /// Takes entries that the watermark has reached, at most `at_most`: buckets of chains, and
    /// tombstones. Returns whether more may be due.
    pub(crate) fn take_due(
        &mut self,
        watermark: SeqNo,
        at_most: usize,
        buffer: &mut GcBuffer,
    ) -> bool {
        for _ in 0..at_most {
            let Some(retired) = self.pop_due(watermark) else {
                return false;
            };
            match retired.what {
                What::Chain { bucket } => buffer.chains.push(bucket),
                What::Tombstone(_) => buffer.due.push(retired),
            }
        }
        true
    }

    pub(crate) fn cold_len(&self) -> usize {
        self.cold.len()
    }

    /// Moves cold tombstones to `due`, at most `at_most`.
    pub(crate) fn take_cold(&mut self, at_most: usize, due: &mut Vec<Retired>) {
        for _ in 0..at_most {
            let Some(tombstone) = self.cold.pop_front() else {
                break;
            };
            self.uncount_tombstone(&tombstone);
            due.push(tombstone);
        }
    }
}

/// A committing transaction's own lists for version collection. They are empty between
/// transactions, apart from the spare versions.
#[derive(Debug, Default)]
pub(crate) struct GcBuffer {
    /// What the transaction adds to its thread's shard.
    pub(crate) retired: Vec<Retired>,
    /// Number of versions that it added to chains.
    pub(crate) versions: usize,
    /// The space of these versions, in bytes.
    pub(crate) bytes: isize,
    /// Buckets whose chains have become long.
    pub(crate) long: Vec<usize>,
    /// Tombstones that it collects.
    pub(crate) due: Vec<Retired>,
    /// Buckets of chains that the collector has taken from a shard, to trim them.
    pub(crate) chains: Vec<usize>,
    pub(crate) spare: SpareVersions,
}

impl GcBuffer {
    /// Adds entries to a shard, the last ones first, at most `at_most`.
    #[inline]
    pub(crate) fn add_to(&mut self, shard: &mut Shard, at_most: usize) {
        shard.versions = shard
            .versions
            .wrapping_add(std::mem::take(&mut self.versions));
        shard.bytes += std::mem::take(&mut self.bytes);
        // One by one: a commit usually has one, and `drain` is slow for few.
        for _ in 0..at_most {
            let Some(retired) = self.retired.pop() else {
                break;
            };
            shard.retire(retired);
        }
    }

    /// Allows a step to be taken without an allocation: `count` entries, and as many cold
    /// tombstones.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.due.reserve(2 * count);
        self.chains.reserve(count);
    }

    /// Counts versions that were dropped from chains.
    pub(crate) fn count_dropped(&mut self, dropped: Dropped) {
        // May wrap: the versions may have been added by other transactions.
        self.versions = self.versions.wrapping_sub(dropped.versions);
        self.bytes -= dropped.bytes;
    }

    /// Discards what a transaction that failed left.
    pub(crate) fn clear(&mut self) {
        self.retired.clear();
        self.versions = 0;
        self.bytes = 0;
        self.long.clear();
        self.due.clear();
        self.chains.clear();
    }
}

/// Function that requests a collection from the background thread.
type RequestCollection = Box<dyn Fn() + Send + Sync>;

/// Versions and tombstones that wait for the watermark, by thread.
pub(crate) struct Gc {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Highest sequence number of a removal whose tombstone was purged.
    purged: AtomicU64,
    /// Requests a collection from the background thread.
    request: OnceLock<RequestCollection>,
    /// Held while everything is collected, so that a thread that collects everything waits for what
    /// another has taken from the shards.
    pub(crate) collecting: Mutex<()>,
}

impl Gc {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            purged: AtomicU64::new(0),
            request: OnceLock::new(),
            collecting: Mutex::default(),
        }
    }

    /// Returns whether the trees that this thread has read so far lack no tombstone of `seqno` or
    /// later. Then a key that the thread found absent was absent at `seqno`, too.
    pub(crate) fn none_purged_from(&self, seqno: SeqNo) -> bool {
        // Acquire, together with the leaf's latch: a reader of the leaf sees what was stored before
        // the removal. Pairs with the Release in `note_purge`.
        self.purged.load(Ordering::Acquire) < seqno.get() || braid_rt::mutant!("forget_purges")
    }

    /// This thread's shard.
    pub(crate) fn shard(&self) -> &Mutex<Shard> {
        &self.shards[braid_rt::thread::index() % SHARDS]
    }

    /// Records that the tombstone of commit `end` is about to be purged. Call before purging it.
    pub(crate) fn note_purge(&self, end: SeqNo) {
        // Release: see `none_purged_from`.
        self.purged.fetch_max(end.get(), Ordering::Release);
    }

    /// The shards of all threads.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.shards.iter().map(|shard| &**shard)
    }

    /// Sets the function that requests a collection from the background thread.
    pub(crate) fn on_request(&self, request: impl Fn() + Send + Sync + 'static) {
        let _ = self.request.set(Box::new(request));
    }

    /// Requests a collection from the background thread.
    pub(crate) fn request_collection(&self) {
        if let Some(request) = self.request.get() {
            request();
        }
    }

    /// Allows each shard to grow by `growth` bytes until a commit requests a collection.
    pub(crate) fn allow_growth(&self, growth: isize) {
        for shard in self.shards() {
            let mut shard = shard.lock();
            shard.bytes_max = shard.bytes.saturating_add(growth);
        }
    }

    /// Returns the number of versions and tombstones, and the space that they take, in bytes.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let (mut versions, mut tombstones, mut bytes) = (0usize, 0, 0);
        for shard in self.shards() {
            let shard = shard.lock();
            versions = versions.wrapping_add(shard.versions);
            tombstones += shard.tombstones;
            bytes += shard.bytes;
        }
        // A version that is dropped while the shards are read may be counted on one side only.
        let versions = usize::try_from(versions.cast_signed()).unwrap_or(0);
        (versions + tombstones, usize::try_from(bytes).unwrap_or(0))
    }
}
