//! Allocations of reads, as the documentation of `braid::Readable` promises, and the blocks that old
//! versions leave to the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use braid::{Bytes, Database, Readable, Table};

/// Largest block that glibc does not merge with others when it is freed.
const FAST_BIN_MAX: usize = 120;

/// Blocks in use of at most [`FAST_BIN_MAX`] bytes.
static SMALL: AtomicI64 = AtomicI64::new(0);

/// Held by a test, so that no other one uses memory meanwhile.
static ALONE: Mutex<()> = Mutex::new(());

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        if layout.size() <= FAST_BIN_MAX {
            SMALL.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if layout.size() <= FAST_BIN_MAX {
            SMALL.fetch_sub(1, Ordering::Relaxed);
        }
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
    let _alone = ALONE.lock().unwrap();
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

/// glibc merges many small blocks in one go, in whatever thread next allocates a large one: a commit
/// must not pay for a snapshot's end.
#[test]
fn the_end_of_a_snapshot_frees_few_small_blocks() {
    const KEYS: u64 = 20_000;
    let _alone = ALONE.lock().unwrap();
    for (key_len, value_len) in [(8, 8), (8, 100), (40, 100), (8, 300)] {
        let db = Database::in_memory().unwrap();
        let t: Table<Bytes, Bytes> = db.open_table("t").unwrap();
        let key = |key: u64| {
            let mut bytes = vec![0; key_len - 8];
            bytes.extend_from_slice(&key.to_be_bytes());
            bytes
        };
        let insert_all = |byte: u8| {
            for from in (0..KEYS).step_by(100) {
                let all = |tx: &mut braid::Transaction| {
                    let mut keys = from..from + 100;
                    keys.try_for_each(|at| tx.insert(&t, &key(at), &vec![byte; value_len]))
                };
                db.transact(all).unwrap();
            }
        };
        insert_all(0);
        let snapshot = db.snapshot();
        // Several versions for some of the chains, and tombstones.
        insert_all(1);
        let second = db.snapshot();
        insert_all(2);
        for at in 0..KEYS / 2 {
            db.transact(|tx| tx.remove(&t, &key(at))).unwrap();
        }
        assert!(db.stats().old_versions as u64 > 2 * KEYS);
        drop((snapshot, second));
        let before = SMALL.load(Ordering::Relaxed);
        let commit = |tx: &mut braid::Transaction| tx.insert(&t, &key(KEYS), &[7; 100]);
        db.transact(commit).unwrap();
        while db.stats().old_versions > 0 {
            std::thread::yield_now();
        }
        let freed = before - SMALL.load(Ordering::Relaxed);
        assert!(freed < 100, "{freed}, keys of {key_len} bytes");
    }
}
