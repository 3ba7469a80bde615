//! The pool of transaction contexts.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use braid_rt::atomic::{AtomicU64, Ordering};
use braid_rt::{Latch, Mutex};
use crossbeam_utils::CachePadded;

use super::Engine;
use super::context::Context;
use crate::locks::wait_graph::{User, first_owner};
use crate::mvcc::range_reads::RangeReads;

const SHARDS: usize = 16;

/// Maximum number of pooled contexts. More are freed: a burst of transactions must not keep its
/// memory.
const POOLED_MAX: usize = 64;

/// A context and its engine. The pool keeps both together, so that beginning a transaction touches
/// no shared reference count.
pub(crate) struct PooledContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) state: RefCell<Box<Context>>,
    /// Range reads of the transaction. Scans record them here, possibly on other threads, while the
    /// transaction continues.
    pub(crate) ranges: Box<Mutex<RangeReads>>,
}

impl Drop for PooledContext {
    /// Releases the locks and the snapshot of a context that a panic in a commit dropped;
    /// otherwise, other transactions would wait for the locks forever. Contexts are otherwise
    /// dropped when the pool is full or emptied, and then hold only room in the data file.
    fn drop(&mut self) {
        if !braid_rt::mutant!("keep_locks_on_unwind") {
            let state = &mut **self.state.get_mut();
            self.engine.unlock_all(state);
            self.engine.close_snapshot(state);
        }
        self.engine.release_room(self.state.get_mut());
    }
}

impl fmt::Debug for PooledContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledContext").finish_non_exhaustive()
    }
}

/// Wraps a context for one transaction's single thread.
pub(super) fn cell(context: Context) -> RefCell<Box<Context>> {
    RefCell::new(Box::new(context))
}

/// Contexts of ended transactions, by thread, for reuse.
pub(super) struct ContextPool {
    shards: Box<[CachePadded<Latch<Vec<PooledContext>>>]>,
    next: AtomicU64,
}

impl ContextPool {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            next: AtomicU64::new(1),
        }
    }

    #[inline(always)]
    fn shard(&self) -> &Latch<Vec<PooledContext>> {
        &self.shards[braid_rt::thread::index() % SHARDS]
    }
}

impl Engine {
    /// Returns a context for a transaction, from the pool if it has one.
    #[inline]
    pub(crate) fn context(self: &Arc<Self>) -> PooledContext {
        if self.is_closed() {
            // In a child made by `fork`, the pool's lock may be held forever.
            return self.new_context();
        }
        let pooled = self.contexts.shard().lock().pop();
        match pooled {
            Some(context) => context,
            None => self.new_context(),
        }
    }

    #[cold]
    fn new_context(self: &Arc<Self>) -> PooledContext {
        let owner = first_owner(self.contexts.next.fetch_add(1, Ordering::Relaxed));
        let user = if self.is_inherited() {
            User::unregistered(owner)
        } else {
            self.locks.user(owner)
        };
        PooledContext {
            engine: self.clone(),
            state: cell(Context::new(owner, user)),
            ranges: Box::default(),
        }
    }

    /// Makes a context ready for the next transaction and returns it to the pool.
    #[inline(always)]
    pub(crate) fn recycle(mut context: PooledContext) {
        context.state.get_mut().clear();
        context.ranges.get_mut().clear();
        // The engine's pointer is read without touching the shared reference count, which every
        // transaction of every core would otherwise write to twice.
        let engine = Arc::as_ptr(&context.engine);
        // SAFETY: `context.engine` keeps the engine alive until `context` is moved into the pool.
        // From then on the pool's copy does, because only `empty_pool`, whose caller has a
        // reference, empties it. If the database is closed, the context is dropped last, after the
        // guard.
        let engine = unsafe { &*engine };
        let mut pool = engine.contexts.shard().lock();
        // The flag is read under the pool's lock, and closing sets it before it takes that lock.
        if !engine.is_closed() && pool.len() < POOLED_MAX {
            pool.push(context);
        } else {
            drop(pool);
            drop(context);
        }
    }

    /// Makes idle contexts release dropped tables. A context that is in use does so when it is
    /// recycled.
    pub(crate) fn forget_dropped_tables(&self) {
        if braid_rt::mutant!("remember_dropped_tables") {
            return;
        }
        for shard in &self.contexts.shards {
            for context in &mut *shard.lock() {
                context.state.get_mut().forget_dropped_tables();
            }
        }
    }

    /// Makes idle contexts release the room in the data file that they keep.
    pub(crate) fn release_idle_room(&self) {
        for shard in &self.contexts.shards {
            for context in &mut *shard.lock() {
                self.release_room(context.state.get_mut());
            }
        }
        self.stores().for_each(|store| store.give_room_back());
    }

    /// Empties the pool, whose contexts refer back to the engine.
    pub(crate) fn empty_pool(&self) {
        for shard in &self.contexts.shards {
            let contexts = std::mem::take(&mut *shard.lock());
            drop(contexts);
        }
    }
}

#[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
mod tests {
    use std::sync::Arc;

    use braid_io::MemoryDevice;

    use crate::engine::hint_cache::TABLES;
    use crate::{Database, Table};

    /// Each table that a context does not keep costs the next transaction two changes of a reference
    /// count, which all threads share.
    #[test]
    fn a_context_keeps_as_many_tables_as_have_hints() {
        let builder = Database::builder().background_threads(false);
        let builder = builder.pool_bytes(1 << 20);
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let open = |i: usize| db.open_table(&format!("t{i}")).unwrap();
        let tables: Vec<Table<u64, u64>> = (0..TABLES + 2).map(open).collect();
        let mut tx = db.begin();
        tables
            .iter()
            .for_each(|table| tx.insert(table, &1, &1).unwrap());
        tx.commit().unwrap();
        assert_eq!(db.begin().state().borrow().tables.len(), TABLES);
    }

    /// A thread of the parent may have held the pool's locks at the fork.
    #[test]
    fn a_child_made_by_fork_ends_a_transaction_without_locks() {
        let builder = Database::builder().background_threads(false);
        let builder = builder.pool_bytes(1 << 20);
        let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let t: Table<u64, u64> = db.open_table("t").unwrap();
        let mut tx = db.begin();
        tx.insert(&t, &1, &1).unwrap();
        let shards = &db.engine().contexts.shards;
        let held: Vec<_> = shards.iter().map(|shard| shard.lock()).collect();
        // SAFETY: the child only drops a transaction, and ends without running any other code of
        // the parent. The C library makes the allocator usable in it.
        let child = match unsafe { libc::fork() } {
            0 => {
                // SAFETY: as above. The system kills a child that waits for a lock.
                unsafe { libc::alarm(10) };
                tx.abort();
                // SAFETY: as above.
                unsafe { libc::_exit(0) }
            }
            child => child,
        };
        assert!(child > 0, "a child");
        let mut status = 0;
        // SAFETY: `status` is valid, and the child is this process's.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "how the child ended");
        drop(held);
        tx.commit().unwrap();
        assert_eq!(db.get(&t, &1).unwrap(), Some(1));
    }
}
