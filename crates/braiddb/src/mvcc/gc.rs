//! Collection of old versions and tombstones that no snapshot can see.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use braid_log::SeqNo;
use braid_rt::{Latch, Mutex};
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::base::chunked::ChunkedQueue;
use crate::base::sync::AtomicU64;
use crate::mvcc::versions::{Dropped, FAST_BIN_MAX, SpareVersions, VersionHint};
use crate::schema::table::TableCore;

/// Number of shards.
pub(crate) const SHARDS: usize = 16;

/// The versions of a bucket of the lock table, the oldest of which commit `end` replaced, or an
/// earlier one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetiredChain {
    pub(crate) end: SeqNo,
    pub(crate) bucket: usize,
    /// Where the oldest version probably is.
    pub(crate) oldest: VersionHint,
}

/// Keys up to this length have no block of memory of their own.
const INLINE_KEY: usize = 32;

/// A tombstone that commit `end` left in the tree when it removed a key.
#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) end: SeqNo,
    pub(crate) table: Arc<TableCore>,
    pub(crate) key: SmallVec<[u8; INLINE_KEY]>,
}

impl Tombstone {
    /// A tombstone that commit `end` left in the tree when it removed a key.
    pub(crate) fn new(end: SeqNo, table: Arc<TableCore>, key: &[u8]) -> Self {
        let mut bytes = SmallVec::new();
        if key.len() > INLINE_KEY {
            bytes.reserve_exact(key.len().max(FAST_BIN_MAX + 1));
        }
        bytes.extend_from_slice(key);
        let key = bytes;
        Self { end, table, key }
    }

    /// The memory that it takes in a queue, in bytes.
    pub(crate) fn space(&self) -> isize {
        let spilled = if self.key.spilled() {
            self.key.capacity()
        } else {
            0
        };
        (ChunkedQueue::<Self>::ENTRY_BYTES + spilled).cast_signed()
    }
}

/// One thread's share of the versions and tombstones to collect. No thread reads a page or frees a
/// version while it holds a shard's lock.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Roughly in the order of `end`. Their space is not counted: it is small compared with that of
    /// the versions.
    chains: ChunkedQueue<RetiredChain>,
    /// The `end` of the first chain, [`SeqNo::MAX`] if there is none: each commit looks at it.
    first_chain: SeqNo,
    /// Roughly in the order of `end`.
    tombstones: ChunkedQueue<Tombstone>,
    /// Tombstones that can be collected, but whose leaves are not in memory. The background thread
    /// collects them, so that no commit reads a page for another one's removal.
    cold: ChunkedQueue<Tombstone>,
    /// Number of transactions that this shard's threads committed. Here, because each commit holds
    /// the shard anyway: an atomic counter would cost as much as the latch.
    pub(crate) commits: u64,
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
            chains: ChunkedQueue::default(),
            first_chain: SeqNo::MAX,
            tombstones: ChunkedQueue::default(),
            cold: ChunkedQueue::default(),
            commits: 0,
            versions: 0,
            bytes: 0,
            bytes_max: isize::MAX,
        }
    }
}

impl Shard {
    /// Adds versions to collect once the watermark reaches their `end`.
    #[inline]
    pub(crate) fn retire_chain(&mut self, chain: RetiredChain) {
        if self.chains.is_empty() {
            self.first_chain = chain.end;
        }
        self.chains.push_back(chain);
    }

    /// Adds a tombstone to collect once the watermark reaches its `end`.
    pub(crate) fn retire(&mut self, tombstone: Tombstone) {
        self.bytes += tombstone.space();
        self.tombstones.push_back(tombstone);
    }

    /// Adds versions that are collected next.
    pub(crate) fn retire_chain_first(&mut self, chain: RetiredChain) {
        self.first_chain = chain.end;
        self.chains.push_front(chain);
    }

    /// Adds a tombstone that is collected next.
    pub(crate) fn retire_first(&mut self, tombstone: Tombstone) {
        self.bytes += tombstone.space();
        self.tombstones.push_front(tombstone);
    }

    /// Adds a tombstone that the background thread collects.
    pub(crate) fn retire_cold(&mut self, tombstone: Tombstone) {
        self.bytes += tombstone.space();
        self.cold.push_back(tombstone);
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

    /// The chains from index `from` on, at most `at_most`.
    pub(crate) fn chains(
        &self,
        from: usize,
        at_most: usize,
    ) -> impl Iterator<Item = &RetiredChain> {
        self.chains.range(from, at_most)
    }

    /// The tombstones from index `from` on, at most `at_most`.
    pub(crate) fn tombstones(
        &self,
        from: usize,
        at_most: usize,
    ) -> impl Iterator<Item = &Tombstone> {
        self.tombstones.range(from, at_most)
    }

    /// Number of chains and tombstones that wait for the watermark.
    #[inline]
    pub(crate) fn entries(&self) -> usize {
        self.chains.len() + self.tombstones.len()
    }

    /// Returns the `end` of the entry that is due first.
    #[inline]
    pub(crate) fn first_end(&self) -> Option<SeqNo> {
        let tombstone = self.tombstones.front();
        let first = tombstone.map_or(SeqNo::MAX, |first| first.end);
        let first = first.min(self.first_chain);
        (first != SeqNo::MAX).then_some(first)
    }

    /// Removes chains that the watermark has reached, at most `at_most`, and passes them to `take`.
    /// Returns their number.
    #[inline]
    pub(crate) fn take_due_chains(
        &mut self,
        watermark: SeqNo,
        mut at_most: usize,
        take: impl FnMut(RetiredChain),
    ) -> usize {
        if braid_rt::mutant!("keep_the_last_version") {
            at_most = at_most.min(self.chains.len().saturating_sub(1));
        }
        let is_due = |chain: &RetiredChain| chain.end <= watermark;
        let taken = self.chains.drain_front(at_most, is_due, take);
        let first = self.chains.front();
        self.first_chain = first.map_or(SeqNo::MAX, |first| first.end);
        taken
    }

    /// Moves tombstones that the watermark has reached to `due`, at most `at_most`. Returns whether
    /// more may be due.
    #[inline]
    pub(crate) fn take_due_tombstones(
        &mut self,
        watermark: SeqNo,
        at_most: usize,
        due: &mut Vec<Tombstone>,
    ) -> bool {
        if self.tombstones.is_empty() {
            return false;
        }
        for _ in 0..at_most {
            let is_due = |tombstone: &Tombstone| tombstone.end <= watermark;
            let Some(tombstone) = self.tombstones.pop_front_if(is_due) else {
                return false;
            };
            self.bytes -= tombstone.space();
            due.push(tombstone);
        }
        true
    }

    /// Takes entries that the watermark has reached, at most `at_most` of each kind: buckets of
    /// chains, and tombstones. Returns whether more may be due.
    pub(crate) fn take_due(
        &mut self,
        watermark: SeqNo,
        at_most: usize,
        buffer: &mut GcBuffer,
    ) -> bool {
        let is_more = self.take_due_tombstones(watermark, at_most, &mut buffer.due);
        let chains = &mut buffer.chains;
        let taken = self.take_due_chains(watermark, at_most, |chain| chains.push(chain.bucket));
        is_more || taken == at_most
    }

    pub(crate) fn cold_len(&self) -> usize {
        self.cold.len()
    }

    /// Moves cold tombstones to `due`, at most `at_most`.
    pub(crate) fn take_cold(&mut self, at_most: usize, due: &mut Vec<Tombstone>) {
        for _ in 0..at_most {
            let Some(tombstone) = self.cold.pop_front() else {
                break;
            };
            self.bytes -= tombstone.space();
            due.push(tombstone);
        }
    }
}

/// A committing transaction's own lists for version collection. They are empty between
/// transactions, apart from the spare versions.
#[derive(Debug, Default)]
pub(crate) struct GcBuffer {
    /// Chains that the transaction adds to its thread's shard.
    pub(crate) retired: Vec<RetiredChain>,
    /// Tombstones that it adds to the shard.
    pub(crate) tombstones: Vec<Tombstone>,
    /// Number of versions that it added to chains.
    pub(crate) versions: usize,
    /// The space of these versions, in bytes.
    pub(crate) bytes: isize,
    /// Buckets whose chains have become long.
    pub(crate) long: Vec<usize>,
    /// Tombstones that it collects.
    pub(crate) due: Vec<Tombstone>,
    /// Buckets of chains that the collector has taken from a shard, to trim them.
    pub(crate) chains: Vec<usize>,
    pub(crate) spare: SpareVersions,
}

impl GcBuffer {
    /// Adds entries to a shard, the last ones first, at most `at_most` of each kind.
    //
    // Inlined, because the usual commit adds one chain: the call would cost as much.
    #[inline(always)]
    pub(crate) fn add_to(&mut self, shard: &mut Shard, at_most: usize) {
        shard.versions = shard
            .versions
            .wrapping_add(std::mem::take(&mut self.versions));
        shard.bytes += std::mem::take(&mut self.bytes);
        // One by one: a commit usually has one, and `drain` is slow for few.
        let mut left = at_most;
        while left > 0
            && let Some(chain) = self.retired.pop()
        {
            shard.retire_chain(chain);
            left -= 1;
        }
        if !self.tombstones.is_empty() {
            self.add_tombstones(shard, at_most);
        }
    }

    #[inline(never)]
    fn add_tombstones(&mut self, shard: &mut Shard, at_most: usize) {
        let left = self.tombstones.len().saturating_sub(at_most);
        for tombstone in self.tombstones.drain(left..).rev() {
            shard.retire(tombstone);
        }
    }

    /// Whether it has entries for the shard.
    #[inline]
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty() || !self.tombstones.is_empty()
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
        self.tombstones.clear();
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
    shards: Box<[CachePadded<Latch<Shard>>]>,
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
    pub(crate) fn shard(&self) -> &Latch<Shard> {
        &self.shards[braid_rt::thread::index() % SHARDS]
    }

    /// Records that the tombstone of commit `end` is about to be purged. Call before purging it.
    pub(crate) fn note_purge(&self, end: SeqNo) {
        // Release: see `none_purged_from`.
        self.purged.fetch_max(end.get(), Ordering::Release);
    }

    /// The shards of all threads.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Latch<Shard>> {
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

    /// Adds up the shards, of which commits wait for one at a time.
    pub(crate) fn totals(&self) -> Totals {
        let (mut commits, mut versions, mut tombstones, mut bytes) = (0, 0usize, 0, 0);
        for shard in self.shards() {
            let shard = shard.lock();
            commits += shard.commits;
            versions = versions.wrapping_add(shard.versions);
            tombstones += shard.tombstones.len() + shard.cold.len();
            bytes += shard.bytes;
        }
        // A version that is dropped while the shards are read may be counted on one side only.
        let versions = usize::try_from(versions.cast_signed()).unwrap_or(0);
        Totals {
            commits,
            versions: versions + tombstones,
            bytes: usize::try_from(bytes).unwrap_or(0),
        }
    }
}

/// The sums of all shards of [`Gc`].
pub(crate) struct Totals {
    /// Transactions that have committed writes.
    pub(crate) commits: u64,
    /// Versions and tombstones.
    pub(crate) versions: usize,
    /// The space that these take, in bytes.
    pub(crate) bytes: usize,
}
