//! Reading a range in place, as bindings do, returns the same entries as an iterator.

use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Bytes, Compression, Database, Range, Readable, Result, Table, TableOptions};

type Pairs = Vec<(Bytes, Bytes)>;

fn database() -> Database {
    let builder = Database::builder().pool_bytes(4 << 20);
    builder.open_on(Arc::new(MemoryDevice::new())).unwrap()
}

fn in_place(mut range: Range<'_, Bytes, Bytes>, from_back: impl Fn(usize) -> bool) -> Pairs {
    let mut entries = Vec::new();
    loop {
        let next = if from_back(entries.len()) {
            range.next_back_in_place()
        } else {
            range.next_in_place()
        };
        let Some(entry) = next else { return entries };
        let (key, value) = entry.unwrap();
        entries.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
    }
}

fn iterated(mut range: Range<'_, Bytes, Bytes>, from_back: impl Fn(usize) -> bool) -> Pairs {
    let mut entries = Vec::new();
    loop {
        let next = if from_back(entries.len()) {
            range.next_back()
        } else {
            range.next()
        };
        let Some(entry) = next else { return entries };
        entries.push(entry.unwrap());
    }
}

/// Compares both forward, backward and from both ends; returns the number of entries.
fn compare(reader: &impl Readable, table: &Table) -> usize {
    let orders: [fn(usize) -> bool; 3] = [|_| false, |_| true, |i| i % 3 == 0];
    let range = || reader.iter(table).unwrap();
    for order in orders {
        assert_eq!(in_place(range(), order), iterated(range(), order));
    }
    range().count()
}

#[test]
fn reading_in_place_equals_iterating() -> Result<()> {
    let db = database();
    let compressed = TableOptions {
        compression: Compression::Lz4,
        ..TableOptions::default()
    };
    for options in [TableOptions::default(), compressed] {
        let name = format!("{:?}", options.compression);
        let table: Table = db.open_table_with(&name, options)?;
        let large = vec![7; 100_000];
        db.transact(|tx| {
            for n in 0..2_000u32 {
                let value = match n % 500 {
                    0 => &large[..],
                    _ => &[1; 40][..],
                };
                tx.insert(&table, &n.to_be_bytes()[..], value)?;
            }
            Ok(())
        })?;
        let before = db.snapshot();
        // Old versions for the snapshot, removed keys for later readers.
        db.transact(|tx| {
            for n in (0..2_000u32).step_by(3) {
                tx.insert(&table, &n.to_be_bytes()[..], b"new")?;
                tx.remove(&table, &(n + 1).to_be_bytes()[..])?;
            }
            Ok(())
        })?;
        assert_eq!(compare(&before, &table), 2_000);
        let after = compare(&db.snapshot(), &table);
        assert!((1_300..1_400).contains(&after), "{after}");
        // The transaction's own writes: before, in place of, and after other entries.
        let mut tx = db.begin();
        for n in (0..4_000u32).step_by(7) {
            tx.insert(&table, &n.to_be_bytes()[..], b"own")?;
        }
        tx.remove(&table, &6u32.to_be_bytes()[..])?;
        assert!(compare(&tx, &table) > after);
        tx.commit()?;
    }
    Ok(())
}
