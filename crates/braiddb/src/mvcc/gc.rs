//! Old versions and tombstones that wait until no snapshot can see them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_rt::{Mutex, MutexGuard};
use crossbeam_utils::CachePadded;

use crate::base::sync::AtomicU64;
use crate::mvcc::versions::SpareVersions;
use crate::schema::table::TableCore;

const SHARDS: usize = 16;

/// Something that can go once the watermark reaches `end`.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) end: u64,
    pub(crate) stripe: usize,
    pub(crate) tombstone: Option<Box<Tombstone>>,
}

#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) table: Arc<TableCore>,
    pub(crate) key: Box<[u8]>,
}

impl Retired {
    /// A version in a stripe's chain that was replaced by commit `end`.
    pub(crate) fn version(end: u64, stripe: usize) -> Self {
        Self {
            end,
            stripe,
            tombstone: None,
        }
    }

    /// The mark that commit `end` left in the tree where it removed a key.
    pub(crate) fn tombstone(end: u64, stripe: usize, table: Arc<TableCore>, key: &[u8]) -> Self {
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

/// One thread's part of the versions to collect.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    /// Nearly in the order of the numbers.
    pub(crate) retired: VecDeque<Retired>,
    pub(crate) spare: SpareVersions,
}

impl Shard {
    /// Adds what can go once the watermark reaches its end.
    pub(crate) fn retire(&mut self, retired: Retired) {
        self.retired.push_back(retired);
    }

    /// The same, for what can go at once.
    pub(crate) fn retire_first(&mut self, retired: Retired) {
        self.retired.push_front(retired);
    }
}

/// What waits for the watermark, by thread.
#[derive(Debug)]
pub(crate) struct Gc {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// The greatest number of a removal whose tombstone is gone.
    purged: AtomicU64,
}

impl Gc {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            purged: AtomicU64::new(0),
        }
    }

    /// Whether no tombstone of `seqno` or a greater one is gone from what this thread read of the
    /// trees before: the absences that it found have been ones at `seqno`, too.
    pub(crate) fn none_purged_from(&self, seqno: u64) -> bool {
        // Acquire: with the latch of the leaf, whose reader sees what was stored before the removal; pairs
        // with the Release in `note_purge`.
        self.purged.load(Ordering::Acquire) < seqno || braid_rt::mutant!("forget_purges")
    }

    /// This thread's shard.
    pub(crate) fn lock_shard(&self) -> MutexGuard<'_, Shard> {
        self.shards[braid_rt::thread::index() % SHARDS].lock()
    }

    /// Notes that the tombstone of commit `end` goes. Called before it goes.
    pub(crate) fn note_purge(&self, end: u64) {
        // Release: see `none_purged_from`.
        self.purged.fetch_max(end, Ordering::Release);
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
