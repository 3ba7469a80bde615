//! Opening read-only: a reader sees the state that a crash left, and writes nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::SystemTime;

use braid::{
    Bytes, Database, Durability, Error, Health, Protocol, Readable, Table, TransactionOptions,
};
use braid_io::{AlignedBuf, Device, OpenMode, SimDevice};

fn builder() -> braid::Builder {
    Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(128 << 10)
        .background_threads(false)
}

fn contents(db: &Database) -> Result<BTreeMap<u32, Vec<u8>>, Error> {
    let Some(table) = db.existing_table::<u32, Bytes>("t")? else {
        return Ok(BTreeMap::new());
    };
    let all = db.snapshot();
    let all = all.iter(&table)?;
    all.map(|entry| entry.map(|(key, value)| (key, value.to_vec())))
        .collect()
}

/// All files' bytes.
fn image(device: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let read = |entry: braid_io::Entry| {
        let mut bytes = AlignedBuf::new((entry.len as usize).max(1));
        let bytes = &mut bytes[..entry.len as usize];
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        file.read_at(bytes, 0).unwrap();
        (entry.name, bytes.to_vec())
    };
    device.list().unwrap().into_iter().map(read).collect()
}

#[test]
fn a_reader_recovers_a_crash_in_memory() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = SimDevice::new(seed);
        let db = builder().open_on(Arc::new(device.clone())).unwrap();
        let table: Table<u32, Bytes> = db.open_table("t").unwrap();
        device.crash_after(rng.u64(1..300));
        for i in 0..rng.u32(..150) {
            let len = if rng.u32(..9) == 0 { 30_000 } else { 300 };
            let committed = db.transact(|tx| {
                if i % 7 == 6 {
                    tx.remove(&table, &rng.u32(..i))?;
                }
                tx.insert(&table, &i, &vec![i as u8; len])
            });
            let checkpointed = if i % 40 == 20 {
                db.checkpoint()
            } else {
                Ok(())
            };
            if committed.and(checkpointed).is_err() {
                break;
            }
        }
        drop((table, db));
        let device = device.after_crash();
        let before = image(&device);
        let first = builder()
            .open_read_only_on(Arc::new(device.clone()))
            .unwrap();
        let second = builder()
            .open_read_only_on(Arc::new(device.clone()))
            .unwrap();
        let seen = contents(&first).unwrap();
        assert_eq!(contents(&second).unwrap(), seen, "seed {seed}");
        first.close().unwrap();
        drop(second);
        assert!(
            image(&device) == before,
            "seed {seed}: something was written"
        );
        let db = builder().open_on(Arc::new(device)).unwrap();
        assert_eq!(contents(&db).unwrap(), seen, "seed {seed}");
    }
}

#[test]
fn writing_is_a_typed_error() {
    let device = Arc::new(SimDevice::new(1));
    let db = builder().open_on(device.clone()).unwrap();
    let table: Table<u32, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &b"one"[..]))
        .unwrap();
    drop((table, db));
    let db = builder().open_read_only_on(device).unwrap();
    let table: Table<u32, Bytes> = db.open_table("t").unwrap();
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::OpenedReadOnly)));
    let mut tx = db.begin();
    assert_eq!(tx.get(&table, &1).unwrap().as_deref(), Some(&b"one"[..]));
    refused(tx.insert(&table, &2, &b"two"[..]));
    refused(tx.get_for_update(&table, &1).map(drop));
    tx.commit().unwrap();
    refused(db.checkpoint());
    refused(db.open_table::<u32, u32>("new").map(drop));
    refused(db.drop_table("t").map(drop));
    refused(db.rename_table("t", "u"));
    refused(db.bulk_load::<u32, u32>("new").map(drop));
    db.sync().unwrap();
    assert!(matches!(db.health(), Health::Good));
    assert_eq!(db.table_names().unwrap(), ["t"]);
    db.create_snapshot("s").unwrap();
    db.close().unwrap();
}

#[test]
fn an_empty_or_unfinished_directory_is_no_database() {
    let device = SimDevice::new(1);
    let open = || builder().open_read_only_on(Arc::new(device.clone()));
    assert!(matches!(open(), Err(Error::NotADatabase { .. })));
    device.open("data.braid", OpenMode::CreateNew).unwrap();
    device.open("CREATING", OpenMode::CreateNew).unwrap();
    assert!(matches!(open(), Err(Error::NotADatabase { .. })));
    assert_eq!(device.list().unwrap().len(), 2);
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path(), &dir.path().join("missing")] {
        let opened = Database::open_read_only(path);
        assert!(matches!(opened, Err(Error::NotADatabase { .. })));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

fn files(path: &Path) -> Vec<(String, Vec<u8>, SystemTime)> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let modified = entry.metadata().unwrap().modified().unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap(), modified)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn readers_share_a_directory_and_leave_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let db = builder().open(dir.path()).unwrap();
    let table: Table<u32, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &vec![1; 50_000]))
        .unwrap();
    drop((table, db));
    let before = files(dir.path());
    let readers = [(); 2].map(|()| builder().open_read_only(dir.path()).unwrap());
    for db in &readers {
        assert_eq!(contents(db).unwrap().len(), 1);
    }
    let [first, second] = readers;
    drop(first);
    assert!(files(dir.path()) == before);
    // Without a reader table, as in a copy of the database from which the file was removed, readers
    // exclude writers.
    std::fs::remove_file(dir.path().join("READERS")).unwrap();
    let third = builder().open_read_only(dir.path()).unwrap();
    let reader_is_in = Database::open(dir.path());
    assert!(matches!(reader_is_in, Err(Error::Locked { .. })));
    drop((second, third));
    Database::open(dir.path()).unwrap();
}

/// Each change is reported once, whichever thread notices it.
#[test]
fn a_listener_hears_of_poison_and_of_a_full_disk_once() {
    let (sender, changes) = mpsc::channel();
    let listen = |builder: braid::Builder| {
        let sender = sender.clone();
        builder.on_health_change(move |health| drop(sender.send(health.clone())))
    };
    let device = SimDevice::new(3);
    let db = listen(
        builder()
            .max_log_bytes(1 << 20)
            .checkpoint_log_bytes(512 << 10),
    )
    .open_on(Arc::new(device.clone()))
    .unwrap();
    let table: Table<u32, Bytes> = db.open_table("t").unwrap();
    let put = |i: u32| db.transact(|tx| tx.insert(&table, &i, &vec![1; 50_000]));
    let full = (0..100).filter(|i| put(*i).is_err()).count();
    assert!(full > 10);
    assert!(matches!(changes.try_recv(), Ok(Health::OutOfSpace { .. })));
    assert!(matches!(db.health(), Health::OutOfSpace { .. }));
    assert!(changes.try_recv().is_err());
    db.checkpoint().unwrap();
    put(1).unwrap();
    assert!(matches!(db.health(), Health::Good));
    device.break_after(1);
    for i in 0..5 {
        put(i).unwrap_err();
    }
    let heard: Vec<Health> = changes.try_iter().collect();
    assert!(matches!(heard[..], [Health::Poisoned { .. }]), "{heard:?}");
    drop((table, db));
    assert!(changes.try_recv().is_err());
}

/// If no thread commits, a background thread notices.
#[test]
fn a_listener_hears_of_background_failures() {
    let (sender, changes) = mpsc::channel();
    let device = SimDevice::new(4);
    let db = Database::builder()
        .pool_bytes(1 << 20)
        .on_health_change(move |health| drop(sender.send(health.clone())))
        .open_on(Arc::new(device.clone()))
        .unwrap();
    let table: Table<u32, u32> = db.open_table("t").unwrap();
    device.break_after(0);
    let options = TransactionOptions {
        durability: Durability::Buffered(std::time::Duration::ZERO),
        ..TransactionOptions::default()
    };
    let mut tx = db.begin_with(options);
    tx.insert(&table, &1, &1).unwrap();
    let _ = tx.commit();
    let heard = changes.recv().unwrap();
    assert!(matches!(heard, Health::Poisoned { .. }), "{heard:?}");
}

/// A writer with one strand may have shorter log files than the stored strands of an earlier one need.
#[test]
fn a_reader_uses_the_stored_strands_whatever_log_files_a_writer_would_make() {
    let device = SimDevice::new(0);
    // A flush of this protocol takes the buffers of all strands, so they must fit a log file.
    let writer = Database::builder().protocol(Protocol::Gwsn).strands(16);
    let db = writer
        .lanes(1)
        .pool_bytes(1 << 20)
        .background_threads(false);
    let db = db.open_on(Arc::new(device.clone())).unwrap();
    let table: Table<u32, Bytes> = db.open_table("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, b"one")).unwrap();
    db.close().unwrap();
    let reader = builder().strands(1).open_read_only_on(Arc::new(device));
    assert_eq!(contents(&reader.unwrap()).unwrap().len(), 1);
}
