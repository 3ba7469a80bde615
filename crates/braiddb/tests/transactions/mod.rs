//! Guarantees of transactions to each other and to their callers.

mod commits;
mod isolation;
mod reads;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{
    Builder, BulkLoader, Bytes, Commit, Database, Durability, Error, Health, Isolation, Protocol,
    Range, Readable, Savepoint, Snapshot, Stats, Table, TableOptions, Ticket, Transaction,
    TransactionOptions,
};

fn both(test: impl Fn(&Database)) {
    for &protocol in Protocol::ALL {
        let builder = Database::builder()
            .protocol(protocol)
            .epoch(Duration::from_millis(1))
            .pool_bytes(16 << 20);
        let device = std::sync::Arc::new(braid::device::MemoryDevice::new());
        test(&builder.open_on(device).unwrap());
    }
}

const SNAPSHOT: TransactionOptions = TransactionOptions {
    isolation: Isolation::Snapshot,
    durability: Durability::Immediate,
    lock_timeout: None,
};

/// Longer than anything below takes: a test that waits so long has failed.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs `work` on a separate thread, so that an endless wait fails the test.
pub(crate) fn ends(work: impl FnOnce() + Send + 'static) {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    done.recv_timeout(PATIENCE)
        .expect("it ends without a panic");
}

#[test]
fn tables_are_created_renamed_dropped_and_typed() {
    both(|db| {
        let a: Table<u64, String> = db.open_table("a").unwrap();
        db.transact(|tx| tx.insert(&a, &1, "x")).unwrap();
        assert!(matches!(
            db.open_table::<String, String>("a"),
            Err(Error::TableTypeMismatch { .. })
        ));
        db.rename_table("a", "b").unwrap();
        assert_eq!(
            (a.name(), db.table_names().unwrap()),
            ("b".to_owned(), vec!["b".to_owned()])
        );
        assert!(matches!(
            db.rename_table("a", "c"),
            Err(Error::TableNotFound { .. })
        ));
        db.open_table::<u64, String>("c").unwrap();
        assert!(matches!(
            db.rename_table("b", "c"),
            Err(Error::TableExists { .. })
        ));
        let mut tx = db.begin();
        tx.insert(&a, &2, "y").unwrap();
        assert!(db.drop_table("b").unwrap() && !db.drop_table("b").unwrap());
        assert!(matches!(tx.commit(), Err(Error::TableDropped { .. })));
        assert!(matches!(db.get(&a, &1), Err(Error::TableDropped { .. })));
        let again: Table<u64, String> = db.open_table("b").unwrap();
        assert_eq!(db.get(&again, &1).unwrap(), None);
        assert!(matches!(
            db.open_table::<u64, u64>(""),
            Err(Error::InvalidTableName { .. })
        ));
        let other = Database::in_memory().unwrap();
        assert!(matches!(
            other.get(&again, &1),
            Err(Error::ForeignTable { .. })
        ));
    });
}

/// Handles that were obtained while the table was created, renamed and dropped.
#[test]
fn all_handles_to_a_table_know_when_it_is_gone() {
    both(|db| {
        for round in 0..200 {
            let stop = std::sync::atomic::AtomicBool::new(false);
            let name = format!("a{round}");
            let handles: Vec<Table<u64, u64>> = std::thread::scope(|scope| {
                let seeker = scope.spawn(|| {
                    let mut found = Vec::new();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        found.extend(db.existing_table(&name).unwrap());
                        found.extend(db.existing_table("b").unwrap());
                    }
                    found
                });
                db.open_table::<u64, u64>(&name).unwrap();
                db.rename_table(&name, "b").unwrap();
                db.drop_table("b").unwrap();
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                seeker.join().unwrap()
            });
            for handle in &handles {
                let read = db.get(handle, &1);
                assert!(matches!(read, Err(Error::TableDropped { .. })), "{read:?}");
            }
            assert!(db.existing_table::<u64, u64>("b").unwrap().is_none());
        }
    });
}

#[test]
fn a_closed_database_says_so() {
    let db = Database::in_memory().unwrap();
    let t: Table<u64, u64> = db.open_table("t").unwrap();
    let other = db.clone();
    let mut open = db.begin();
    open.insert(&t, &1, &1).unwrap();
    db.close().unwrap();
    assert!(matches!(other.health(), Health::Closed));
    assert!(matches!(open.commit(), Err(Error::Closed)));
    assert!(matches!(other.get(&t, &1), Err(Error::Closed)));
}

/// Which handles can be sent to, or shared between, threads. Only a range borrows.
#[test]
fn handles_go_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    fn future<T: std::future::Future<Output = Result<Commit, Error>> + Unpin>() {}
    shared::<Database>();
    shared::<Builder>();
    shared::<Table<String, u64>>();
    shared::<Snapshot>();
    shared::<Savepoint>();
    shared::<Ticket>();
    shared::<Commit>();
    shared::<Error>();
    shared::<Health>();
    shared::<Stats>();
    shared::<TableOptions>();
    sent::<Transaction>();
    sent::<Range<'static, u64, Bytes>>();
    sent::<BulkLoader<u64, Bytes>>();
    future::<Ticket>();
}

/// An idle context in the pool does not keep the space of a dropped table.
#[test]
fn a_dropped_table_is_freed_while_contexts_are_idle() {
    let builder = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let t: Table<u64, Vec<u8>> = db.open_table("t").unwrap();
    for key in 0..400 {
        db.transact(|tx| tx.insert(&t, &key, &vec![7; 1_000]))
            .unwrap();
    }
    // Each thread leaves a context that has used the table.
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (db, t, barrier) = (&db, &t, &barrier);
            scope.spawn(move || {
                let tx = db.begin();
                tx.get(t, &thread).unwrap();
                barrier.wait();
                tx.commit().unwrap();
            });
        }
    });
    db.compact().unwrap();
    let before = db.stats().store.file_bytes;
    assert!(db.drop_table("t").unwrap());
    drop(t);
    db.compact().unwrap();
    let after = db.stats().store.file_bytes;
    assert!(before - after > 300_000, "{before} to {after}");
}
