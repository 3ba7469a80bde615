//! The handles' protocol in every order of its steps, with all values that the memory model lets a
//! load return.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p braid-c --lib --profile loom loom`; see
//! docs/testing.md.
//! Both sides of the barrier ([`super::barrier`]) are full barriers here, as on systems without
//! `membarrier`. A barrier that makes all threads pass a full barrier gives the same guarantee
//! between the two sides.

use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_loom::{AtomicUsize, UnsafeCell, explore, spawn};

use super::exclusive::Exclusive;
use super::free::FreeList;
use super::shared::Shared;
use super::user::OF_ALL;
use super::{Ended, HandleError, braid_table, braid_tx};

/// An object whose accesses loom checks: its end must follow all of its uses.
struct Watched {
    content: UnsafeCell<u32>,
    ends: Arc<AtomicUsize>,
}

// SAFETY: loom checks that a writer has exclusive access.
unsafe impl Send for Watched {}
// SAFETY: the same.
unsafe impl Sync for Watched {}

impl Watched {
    fn look(&self) {
        // SAFETY: no thread writes to it meanwhile, which loom checks.
        self.content
            .with(|content| assert_eq!(unsafe { *content }, 1));
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: no thread reads it meanwhile, which loom checks.
        self.content.with_mut(|content| unsafe { *content = 2 });
        self.ends.fetch_add(1, Ordering::Relaxed);
    }
}

fn watched() -> (Watched, Arc<AtomicUsize>) {
    let ends = Arc::new(AtomicUsize::new(0));
    let object = Watched {
        content: UnsafeCell::new(1),
        ends: Arc::clone(&ends),
    };
    (object, ends)
}

/// A user, with its own counter or the shared one, and a thread that ends the object: the object is
/// dropped once, after the use.
///
/// Needs: the light side in `pin` and in `drop`, the heavy side in `reap`, the release when a count
/// is decremented.
fn an_end_and_uses(preemptions: usize, users: &'static [usize]) {
    explore(preemptions, move || {
        let objects = Arc::new(Shared::<braid_table, Watched>::with(FreeList::leaked()));
        let (object, ends) = watched();
        let handle = objects.insert(object, 1).unwrap().addr();
        let threads: Vec<_> = users
            .iter()
            .map(|&user| {
                let objects = Arc::clone(&objects);
                spawn(
                    move || match objects.pin_as(user, without_provenance_mut(handle)) {
                        Ok(object) => object.look(),
                        Err(error) => assert!(matches!(error, HandleError::Stale(..))),
                    },
                )
            })
            .collect();
        let handle = without_provenance_mut(handle);
        objects.end(handle, Ended::Freed).unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(ends.load(Ordering::Relaxed), 1);
        assert!(objects.pin_as(0, handle).is_err());
    });
}

#[test]
fn loom_an_object_ends_after_its_user() {
    an_end_and_uses(3, &[1]);
}

#[test]
fn loom_an_object_ends_after_users_of_one_counter() {
    an_end_and_uses(1, &[OF_ALL, OF_ALL]);
}

#[test]
fn loom_an_object_ends_after_all_its_users() {
    an_end_and_uses(1, &[0, OF_ALL]);
}

/// Two threads end an object, one of them with its whole database: it ends once.
#[test]
fn loom_an_object_ends_once() {
    explore(usize::MAX, || {
        let objects = Arc::new(Shared::<braid_table, Watched>::with(FreeList::leaked()));
        let (object, ends) = watched();
        let handle = objects.insert(object, 7).unwrap();
        let others = Arc::clone(&objects);
        let other = spawn(move || others.end_all_of(7, Ended::DatabaseClosed));
        let _either = objects.end(handle, Ended::Freed);
        other.join().unwrap();
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    });
}

/// An exclusive object: two threads use it, and one ends its whole database.
///
/// Needs: the acquire of `lock`, and the release of its end.
#[test]
fn loom_one_thread_at_a_time() {
    explore(2, || {
        let objects = Arc::new(Exclusive::<braid_tx, Watched>::with(FreeList::leaked()));
        let (object, ends) = watched();
        let handle = objects.insert(object, 7).unwrap().addr();
        let threads = [(); 2].map(|()| {
            let objects = Arc::clone(&objects);
            spawn(move || {
                if let Ok(object) = objects.lock(without_provenance_mut(handle)) {
                    // SAFETY: this thread has exclusive access, which loom checks.
                    object.content.with_mut(|content| unsafe { *content = 1 });
                }
            })
        });
        objects.end_all_of(7, Ended::DatabaseClosed);
        for thread in threads {
            thread.join().unwrap();
        }
        // A thread that is using it continues; the object is freed afterwards.
        let left = objects.end(without_provenance_mut(handle), Ended::Freed);
        drop(left);
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    });
}
