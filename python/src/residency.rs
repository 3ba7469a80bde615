//! Decides whether a read of one key releases the interpreter's lock.
//!
//! A read from memory takes a few hundred nanoseconds. Releasing the lock costs a tenth of that
//! while no other thread wants it; otherwise it costs a switch of threads, which takes many times
//! as long as the read. A read from the disk takes a hundred microseconds, during which other
//! threads should run. So a read keeps the lock if previous reads found their pages in memory. See
//! "Threads, processes, the interpreter's lock" in docs/python.md.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use braid::{Database, Protocol};

/// Number of reads between two checks: a check costs as much as a few reads.
const LOOK_EVERY: u32 = 256;

/// Whether reads recently found their pages in memory. All accesses are relaxed: this is a guess,
/// and a wrong guess only costs time.
#[derive(Debug)]
pub(crate) struct Residency {
    in_memory: AtomicBool,
    reads: AtomicU32,
    /// Number of pages loaded up to the last check.
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

    /// Returns whether the next read will likely find its pages in memory.
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
        // Under this protocol, a read of data that is not durable yet waits for a flush.
        let waits = stats.protocol == Protocol::Gsn;
        self.in_memory.store(unchanged && !waits, Ordering::Relaxed);
    }
}
