//! Ingesting sorted entries: all or none, whatever the table contains and other transactions write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid::device::MemoryDevice;
use braid::{Bytes, Compression, Database, Error, Readable, Result, Table, TableOptions};

fn contents(db: &Database, table: &Table<u64, Bytes>) -> Result<BTreeMap<u64, Vec<u8>>> {
    let snapshot = db.snapshot();
    let entries = snapshot.iter(table)?;
    entries
        .map(|entry| entry.map(|(key, value)| (key, value.to_vec())))
        .collect()
}

#[test]
fn entries_join_others_and_replace_them() -> Result<()> {
    let device = Arc::new(MemoryDevice::new());
    let options = TableOptions {
        compression: Compression::Lz4,
        time_to_live: Some(Duration::from_secs(3_600)),
    };
    for options in [TableOptions::default(), options] {
        let db = Database::builder().open_on(device.clone())?;
        let name = format!("{:?}", options.compression);
        let table = db.open_table_with::<u64, Bytes>(&name, options)?;
        let mut model = BTreeMap::new();
        let mut rng = fastrand::Rng::with_seed(3);
        for round in 0..8u8 {
            let mut batch = BTreeMap::new();
            for _ in 0..rng.usize(..400) {
                // Some values need pages of their own.
                let len = if rng.u8(..) == 0 { 5_000 } else { 20 };
                batch.insert(rng.u64(..2_000), vec![round; len]);
            }
            let before = db.snapshot();
            let entries = batch.iter().map(|(key, value)| (*key, &value[..]));
            let commit = db.ingest(&table, entries)?;
            assert!(commit.seqno() <= db.durable_seqno());
            assert_eq!(before.len(&table)?, model.len() as u64);
            model.extend(batch);
            assert_eq!(contents(&db, &table)?, model);
        }
        drop((table, db));
        let db = Database::builder().open_on(device.clone())?;
        let table = db.open_table_with::<u64, Bytes>(&name, options)?;
        assert_eq!(contents(&db, &table)?, model);
    }
    Ok(())
}

#[test]
fn a_faulty_entry_changes_nothing() -> Result<()> {
    let db = Database::builder()
        .transaction_bytes_max(100_000)
        .open_on(Arc::new(MemoryDevice::new()))?;
    let table: Table<Bytes, Bytes> = db.open_table("t")?;
    let commits = db.stats().commits;
    let long = vec![1; braid::MAX_KEY_LEN + 1];
    let entries = |keys: &[&[u8]]| -> Vec<(Vec<u8>, &[u8])> {
        keys.iter().map(|key| (key.to_vec(), &b"x"[..])).collect()
    };
    for (keys, expected) in [
        (&[&b"a"[..], b"c", b"b"][..], "OutOfOrder"),
        (&[b"a", b"b", b"b"], "OutOfOrder"),
        (&[b"", b""], "OutOfOrder"),
        (&[b"a", &long], "KeyTooLong"),
    ] {
        let error = db.ingest(&table, entries(keys)).unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{error:?}");
    }
    let endless = (0..u64::MAX).map(|n| (n.to_be_bytes(), [0; 1_000]));
    let error = db.ingest(&table, endless).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { max: 100_000 }));
    assert!(db.snapshot().is_empty(&table)? && db.stats().commits == commits);
    let other = Database::in_memory()?;
    let error = other.ingest(&table, entries(&[b"a"])).unwrap_err();
    assert!(matches!(error, Error::ForeignTable { .. }), "{error:?}");
    Ok(())
}

/// Another transaction reads entries that the ingest changes, and vice versa: one of both is
/// retried.
#[test]
fn concurrent_ingests_are_serial() -> Result<()> {
    let db = Database::in_memory()?;
    let table: Table<u64, Bytes> = db.open_table("t")?;
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (db, table) = (&db, &table);
            scope.spawn(move || {
                for round in 0..30u8 {
                    // Below and above the number of writes from which locks are acquired at commit.
                    let rows = if round % 2 == 0 { 10 } else { 200 };
                    let entries = (0..rows).map(|key| (key, [thread, round]));
                    db.ingest(table, entries).unwrap();
                }
            });
        }
        for _ in 0..200 {
            let snapshot = db.snapshot();
            let first = snapshot.get(&table, &0).unwrap();
            for key in 1..10 {
                assert_eq!(snapshot.get(&table, &key).unwrap(), first);
            }
        }
    });
    Ok(())
}
