//! Allocations of reads, as the documentation of `braid::Readable` promises.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use braid::{Bytes, Database, Readable, Table};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread in a thousand calls.
fn counted(mut read: impl FnMut(u64)) -> u64 {
    (0..100).for_each(&mut read);
    let before = COUNT.get();
    (0..1_000).for_each(&mut read);
    COUNT.get() - before
}

#[test]
fn looking_allocates_nothing_and_getting_once() {
    let db = Database::in_memory().unwrap();
    let t: Table<u64, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| (0..1_000).try_for_each(|key| tx.insert(&t, &key, &[7; 100])))
        .unwrap();
    let all = [7; 100];
    let looked = counted(|key| {
        let seen = db.get_with(&t, &key, |bytes| bytes == Some(&all[..]));
        assert!(seen.unwrap());
    });
    assert_eq!(looked, 0);
    let snapshot = db.snapshot();
    let looked = counted(|key| {
        assert!(
            snapshot
                .get_with(&t, &key, |bytes| bytes.is_some())
                .unwrap()
        );
        assert!(snapshot.contains_key(&t, &key).unwrap());
    });
    assert_eq!(looked, 0);
    let got = counted(|key| assert!(db.get(&t, &key).unwrap().is_some()));
    assert_eq!(got, 1_000);
}
