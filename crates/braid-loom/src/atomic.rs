//! Atomics with the C++20 semantics of `SeqCst`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use loom::thread::{ThreadId, current};

use crate::lock::Queue;

thread_local! {
    /// Counts stores and `SeqCst` fences. All threads of a model are coroutines of one thread.
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    /// Time of each thread's last `SeqCst` fence.
    static FENCES: RefCell<HashMap<ThreadId, u64>> = RefCell::default();
}

fn tick() -> u64 {
    CLOCK.set(CLOCK.get() + 1);
    CLOCK.get()
}

/// Returns the time of the thread's last `SeqCst` fence; 0 if there was none.
fn last_fence(thread: ThreadId) -> u64 {
    FENCES.with_borrow(|fences| fences.get(&thread).copied().unwrap_or(0))
}

/// Resets the state; call it at the start of a model.
pub(crate) fn reset() {
    FENCES.with_borrow_mut(HashMap::clear);
}

/// As `std::sync::atomic::fence`.
pub fn fence(order: Ordering) {
    loom::sync::atomic::fence(order);
    if order == Ordering::SeqCst {
        FENCES.with_borrow_mut(|fences| fences.insert(current().id(), tick()));
    }
}

#[derive(Clone, Copy, Debug)]
struct Store<T> {
    value: T,
    /// Position in the order of stores.
    place: usize,
    thread: ThreadId,
    time: u64,
    seq_cst: bool,
}

/// The stores to an atomic. Loom sees only their ids.
#[derive(Debug)]
struct Stores<T> {
    /// `None` until the store has happened.
    by_id: Vec<Option<Store<T>>>,
    newest: usize,
}

impl<T> Store<T> {
    fn now(value: T, place: usize, order: Ordering) -> Self {
        Self {
            value,
            place,
            thread: current().id(),
            time: tick(),
            seq_cst: order == Ordering::SeqCst,
        }
    }
}

impl<T: Copy> Stores<T> {
    fn announce(&mut self) -> usize {
        self.by_id.push(None);
        self.by_id.len() - 1
    }

    fn get(&self, id: usize) -> Store<T> {
        self.by_id[id].expect("what is read was stored")
    }

    fn happened(&mut self, id: usize, value: T, order: Ordering) {
        let place = self.get(self.newest).place + 1;
        self.by_id[id] = Some(Store::now(value, place, order));
        self.newest = id;
    }

    /// Returns whether the calling thread may read this store with a load of this order.
    fn is_readable(&self, id: usize, order: Ordering) -> bool {
        let place = self.get(id).place;
        let my_fence = last_fence(current().id());
        !self.by_id.iter().flatten().any(|newer| {
            newer.place > place
                && if order == Ordering::SeqCst {
                    newer.seq_cst || newer.time < last_fence(newer.thread)
                } else {
                    newer.seq_cst && newer.time < my_fence
                }
        })
    }
}

/// An atomic as described in the crate's documentation. Every store is a `swap` of ids, which loom
/// orders.
#[derive(Debug)]
struct Atomic<T> {
    id: loom::sync::atomic::AtomicUsize,
    /// Never changes. Loom compares a store only with the last access to the same atomic. So a
    /// thread's own load hides an earlier load of another thread, and loom does not try the order
    /// "store, then that load". A read-modify-write of this atomic before each load makes the loads
    /// depend on each other.
    turn: loom::sync::atomic::AtomicUsize,
    /// Never locked while loom may switch threads.
    stores: Mutex<Stores<T>>,
}

const NO_ID: usize = usize::MAX;

impl<T: Copy + PartialEq> Atomic<T> {
    fn new(value: T) -> Self {
        Self {
            id: loom::sync::atomic::AtomicUsize::new(0),
            turn: loom::sync::atomic::AtomicUsize::new(0),
            stores: Mutex::new(Stores {
                by_id: vec![Some(Store::now(value, 0, Ordering::SeqCst))],
                newest: 0,
            }),
        }
    }

    fn stores(&self) -> std::sync::MutexGuard<'_, Stores<T>> {
        self.stores.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Reads the newest store, as a failed read-modify-write does.
    fn newest(&self, order: Ordering) -> usize {
        match self.id.compare_exchange(NO_ID, NO_ID, order, order) {
            Ok(id) | Err(id) => id,
        }
    }

    fn load(&self, order: Ordering) -> T {
        // Relaxed: imposes no order in the model.
        let _ = self
            .turn
            .compare_exchange(NO_ID, NO_ID, Ordering::Relaxed, Ordering::Relaxed);
        let id = self.id.load(order);
        let stores = self.stores();
        if stores.is_readable(id, order) {
            return stores.get(id).value;
        }
        drop(stores);
        let id = self.newest(order);
        self.stores().get(id).value
    }

    fn update(&self, order: Ordering, f: impl FnOnce(T) -> T) -> T {
        let id = self.stores().announce();
        // No other thread runs between the swap and the recording of its value.
        let before = self.id.swap(id, order);
        let mut stores = self.stores();
        let before = stores.get(before).value;
        stores.happened(id, f(before), order);
        before
    }

    fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        loop {
            let mut stores = self.stores();
            let newest = stores.newest;
            if stores.get(newest).value == current {
                let id = stores.announce();
                drop(stores);
                let exchanged = self
                    .id
                    .compare_exchange(newest, id, success, Ordering::Relaxed);
                if exchanged.is_ok() {
                    self.stores().happened(id, new, success);
                    return Ok(current);
                }
            } else {
                drop(stores);
                let seen = self.newest(failure);
                let seen = self.stores().get(seen).value;
                if seen != current {
                    return Err(seen);
                }
            }
        }
    }

    fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        mut f: impl FnMut(T) -> Option<T>,
    ) -> Result<T, T> {
        let mut before = self.load(fetch);
        while let Some(next) = f(before) {
            match self.compare_exchange(before, next, set, fetch) {
                Ok(before) => return Ok(before),
                Err(now) => before = now,
            }
        }
        Err(before)
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty, $extra:ty) => {
        #[doc = concat!("As `std::sync::atomic::", stringify!($name), "`.")]
        #[derive(Debug)]
        pub struct $name {
            inner: Atomic<$value>,
            #[allow(dead_code, reason = "only one kind has one")]
            pub(crate) queue: $extra,
        }

        #[allow(missing_docs, reason = "as in the standard library")]
        impl $name {
            pub fn new(value: $value) -> Self {
                Self {
                    inner: Atomic::new(value),
                    queue: Default::default(),
                }
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.inner.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.inner.update(order, |_| value);
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.inner.update(order, |_| value)
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.inner.compare_exchange(current, new, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.inner.compare_exchange(current, new, success, failure)
            }

            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.inner.fetch_update(set, fetch, f)
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.inner.update(order, |before| before | value)
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.inner.update(order, |before| before & value)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(Default::default())
            }
        }
    };
}

macro_rules! numbers {
    ($name:ident, $value:ty) => {
        #[allow(missing_docs, reason = "as in the standard library")]
        impl $name {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.inner
                    .update(order, |before| before.wrapping_add(value))
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.inner
                    .update(order, |before| before.wrapping_sub(value))
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.inner.update(order, |before| before.max(value))
            }

            pub fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                self.inner.update(order, |before| before.min(value))
            }
        }
    };
}

atomic!(AtomicBool, bool, ());
atomic!(AtomicU32, u32, Queue);
atomic!(AtomicU64, u64, ());
atomic!(AtomicUsize, usize, ());
numbers!(AtomicU32, u32);
numbers!(AtomicU64, u64);
numbers!(AtomicUsize, usize);
