//! Whether to let go of the interpreter's lock for a read of one key.
//!
//! A read from memory takes a few hundred nanoseconds. To let go of the lock for it costs a tenth of that while
//! nobody else wants the lock, and a change of threads, which is many times as much as the read, when somebody does.
//! A read from the disk takes a hundred microseconds, for which no other thread should stand still. So the lock
//! is kept as long as the reads before found their pages in memory. See "The interpreter's lock" in docs/python.md.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use braid::{Database, Protocol};

/// How many reads there are between two looks: a look costs as much as a few reads.
const LOOK_EVERY: u32 = 256;

/// What is known of where reads find their pages. All relaxed: it is a guess, and being wrong costs only time.
#[derive(Debug)]
pub(crate) struct Residency {
    in_memory: AtomicBool,
    reads: AtomicU32,
    /// Pages loaded until the last look.
    page_loads: AtomicU64,
}

impl Residency {
    pub(crate) fn new() -> Self {
        Self {
            in_memory: AtomicBool::new(false),
            reads: AtomicU32::new(0),
            page_loads: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether the next read will likely find its pages in memory.
    #[inline]
    pub(crate) fn is_likely(&self, database: &Database) -> bool {
        if self
            .reads
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(LOOK_EVERY)
        {
            self.look(database);
        }
        self.in_memory.load(Ordering::Relaxed)
    }

    #[cold]
    fn look(&self, database: &Database) {
        let stats = database.stats();
        let loads = stats.store.page_loads;
        let unchanged = self.page_loads.swap(loads, Ordering::Relaxed) == loads;
        // Under this protocol a read of what is not durable yet waits for a flush.
        let waits = stats.protocol == Protocol::Gsn;
        self.in_memory.store(unchanged && !waits, Ordering::Relaxed);
    }
}
