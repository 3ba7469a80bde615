//! Batched reads: the values are those of single reads, in transactions and snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use braid::{
    Bytes, Compression, ConflictKind, Database, Error, Readable, Result, Table, TableOptions,
    Transaction,
};

const KEYS: u32 = 2_000;

fn filled() -> Result<(Database, Table<u32, Bytes>)> {
    let db = Database::in_memory()?;
    let table = db.open_table("t")?;
    db.transact(|tx| (0..KEYS).try_for_each(|key| put(tx, &table, key, 1)))?;
    Ok((db, table))
}

/// A value that occasionally needs pages of its own.
fn value(key: u32, version: u8) -> Vec<u8> {
    let len = if key.is_multiple_of(97) { 5_000 } else { 100 };
    let mut value = vec![version; len];
    value[..4].copy_from_slice(&key.to_le_bytes());
    value
}

fn put(tx: &mut Transaction, table: &Table<u32, Bytes>, key: u32, version: u8) -> Result<()> {
    tx.insert(table, &key, &value(key, version)[..])
}

fn check(reader: &impl Readable, table: &Table<u32, Bytes>, keys: &[u32]) -> Result<Vec<bool>> {
    let found = reader.get_many(table, keys)?;
    assert_eq!(found.len(), keys.len());
    for (key, value) in keys.iter().zip(&found) {
        assert_eq!(*value, reader.get(table, key)?, "{key}");
    }
    Ok(found.iter().map(Option::is_some).collect())
}

#[test]
fn the_values_are_those_of_single_reads() -> Result<()> {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (db, table) = filled()?;
    let before = db.snapshot();
    let mut model: BTreeMap<u32, u8> = (0..KEYS).map(|key| (key, 1)).collect();
    for version in 2..if cfg!(miri) { 4 } else { 40 } {
        let mut tx = db.begin();
        for _ in 0..rng.u32(0..20) {
            let key = rng.u32(..KEYS);
            if rng.bool() {
                put(&mut tx, &table, key, version)?;
                model.insert(key, version);
            } else {
                tx.remove(&table, &key)?;
                model.remove(&key);
            }
        }
        // Missing keys, repeated keys, or no keys at all.
        let keys: Vec<u32> = (0..rng.usize(0..70))
            .map(|_| rng.u32(..KEYS + KEYS / 5))
            .collect();
        // The transaction's own writes, then the committed state.
        let own = check(&tx, &table, &keys)?;
        tx.commit()?;
        let committed = check(&db.snapshot(), &table, &keys)?;
        let wanted: Vec<bool> = keys.iter().map(|key| model.contains_key(key)).collect();
        assert_eq!((&own, &committed), (&wanted, &wanted), "seed {seed}");
        // The older snapshot still shows the replaced values.
        let old = before.get_many(&table, &keys)?;
        for (&key, old) in keys.iter().zip(old) {
            let wanted = (key < KEYS).then(|| value(key, 1));
            assert_eq!(old.as_deref(), wanted.as_deref(), "seed {seed}");
        }
    }
    Ok(())
}

#[test]
fn borrowed_keys_and_tables_with_options() -> Result<()> {
    let db = Database::in_memory()?;
    let options = TableOptions {
        compression: Compression::Lz4,
        time_to_live: Some(Duration::from_secs(3_600)),
    };
    let words: Table<String, String> = db.open_table_with("words", options)?;
    let long = "abc".repeat(1_000);
    db.transact(|tx| tx.insert(&words, "long", &long))?;
    let found = db.snapshot().get_many(&words, ["long", "short"])?;
    assert_eq!(found, [Some(long), None]);
    Ok(())
}

#[test]
fn prefetched_keys_are_not_read() -> Result<()> {
    let (db, table) = filled()?;
    let mut tx = db.begin();
    tx.prefetch(&table, &[1, 2, 3])?;
    put(&mut tx, &table, 7, 2)?;
    db.transact(|other| put(other, &table, 1, 2))?;
    tx.commit()?;
    // Keys of a batched read belong to the read set.
    let mut tx = db.begin();
    tx.get_many(&table, &[1, 2, 3])?;
    put(&mut tx, &table, 7, 3)?;
    db.transact(|other| put(other, &table, 1, 3))?;
    assert!(matches!(
        tx.commit(),
        Err(Error::Conflict(ConflictKind::Read))
    ));
    Ok(())
}

#[test]
fn a_missing_table_is_reported() -> Result<()> {
    let (db, table) = filled()?;
    let (_other, foreign) = filled()?;
    let snapshot = db.snapshot();
    for outcome in [
        snapshot.prefetch(&foreign, &[1]),
        db.begin().prefetch(&foreign, &[1]),
        snapshot.get_many(&foreign, &[1]).map(drop),
    ] {
        assert!(matches!(outcome, Err(Error::ForeignTable { .. })));
    }
    db.drop_table("t")?;
    let outcome = db.snapshot().prefetch(&table, &[1]);
    assert!(matches!(outcome, Err(Error::TableDropped { .. })));
    Ok(())
}

#[test]
fn an_iterator_of_keys_may_read_in_the_same_transaction() -> Result<()> {
    let (db, table) = filled()?;
    let mut tx = db.begin();
    let keys: Vec<u32> = (0..40).collect();
    let read = |key: &&u32| assert!(tx.get(&table, *key).unwrap().is_some());
    tx.prefetch(&table, keys.iter().inspect(read))?;
    put(&mut tx, &table, 3, 2)?;
    tx.commit()?;
    let found = db.get(&table, &3)?;
    assert_eq!(found.as_deref(), Some(&value(3, 2)[..]));
    Ok(())
}
