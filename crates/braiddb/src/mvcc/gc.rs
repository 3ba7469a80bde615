//! Collection of old versions and tombstones that no snapshot can see.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_log::SeqNo;
use braid_rt::{Mutex, MutexGuard};
use crossbeam_utils::CachePadded;

use crate::base::sync::AtomicU64;
use crate::mvcc::versions::SpareVersions;
use crate::schema::table::TableCore;

const SHARDS: usize = 16;

/// A version or tombstone that is collected once the watermark reaches `end`.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) end: SeqNo,
    pub(crate) stripe: usize,
    pub(crate) tombstone: Option<Box<Tombstone>>,
}

#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) table: Arc<TableCore>,
    pub(crate) key: Box<[u8]>,
}

impl Retired {
    /// An old version in a stripe's chain, which commit `end` replaced.
    pub(crate) fn version(end: SeqNo, stripe: usize) -> Self {
        Self {
            end,
            stripe,
            tombstone: None,
        }
    }

    /// A tombstone that commit `end` left in the tree when it removed a key.
    pub(crate) fn tombstone(end: SeqNo, stripe: usize, table: Arc<TableCore>, key: &[u8]) -> Self {
        Self {
            end,
            stripe,
            tombstone: Some(Box::new(Tombstone {
                table,
                key: key.into(),
            })),
        }
    }
}

/// One thread's share of the versions and tombstones to collect.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    /// Roughly in the order of `end`.
    pub(crate) retired: VecDeque<Retired>,
    pub(crate) spare: SpareVersions,
}

impl Shard {
    /// Adds a version or tombstone to collect once the watermark reaches its `end`.
    pub(crate) fn retire(&mut self, retired: Retired) {
        self.retired.push_back(retired);
    }

    /// Adds a version or tombstone that can be collected at once.
    pub(crate) fn retire_first(&mut self, retired: Retired) {
        self.retired.push_front(retired);
    }
}

/// Versions and tombstones that wait for the watermark, by thread.
#[derive(Debug)]
pub(crate) struct Gc {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Highest sequence number of a removal whose tombstone was purged.
    purged: AtomicU64,
}

impl Gc {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            purged: AtomicU64::new(0),
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
    pub(crate) fn lock_shard(&self) -> MutexGuard<'_, Shard> {
        self.shards[braid_rt::thread::index() % SHARDS].lock()
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

    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().retired.len())
            .sum()
    }
}
