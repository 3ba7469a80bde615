//! Files after an open: unchanged, unless the database was written to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use braid::device::Device;
use braid::{Builder, Database, Error, Protocol, Table};
use braid_io::SimDevice;

fn builder(protocol: Protocol) -> Builder {
    let builder = Database::builder().pool_bytes(1 << 20).protocol(protocol);
    match protocol.forced_strands() {
        Some(_) => builder,
        None => builder.strands(2).lanes(2),
    }
}

/// All files with their bytes. `READERS` counts only by its length: its contents are valid only
/// while a writer locks it.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let mut bytes = fs::read(entry.path()).unwrap();
            if name == "READERS" {
                bytes.fill(0);
            }
            (name, bytes)
        })
        .collect()
}

fn table(db: &Database) -> Table<u64, u64> {
    db.existing_table("t").unwrap().unwrap()
}

fn create(db: &Database) {
    let table = db.open_table::<u64, u64>("t").unwrap();
    db.transact(|tx| tx.insert(&table, &1, &1)).unwrap();
}

/// Files keep all their bytes, however often the database is opened, even with a feed that
/// acknowledges nothing and so keeps the log.
#[test]
fn an_opening_that_writes_nothing_changes_no_file() {
    for &protocol in Protocol::ALL {
        for consumer in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let builder = || builder(protocol).segment_bytes(1 << 20);
            let db = builder().open(dir.path()).unwrap();
            create(&db);
            if consumer {
                drop(db.feed("consumer").unwrap());
            }
            db.close().unwrap();
            let before = files(dir.path());
            for opening in 0..6 {
                let db = builder()
                    .background_threads(opening % 2 == 0)
                    .open(dir.path())
                    .unwrap();
                assert_eq!(db.get(&table(&db), &1).unwrap(), Some(1));
                db.close().unwrap();
                assert!(files(dir.path()) == before, "{protocol}, opening {opening}");
            }
            // The next open for writing continues.
            let db = builder().open(dir.path()).unwrap();
            db.transact(|tx| tx.insert(&table(&db), &2, &2)).unwrap();
            db.close().unwrap();
            let db = builder().open(dir.path()).unwrap();
            assert_eq!(db.get(&table(&db), &2).unwrap(), Some(2));
        }
    }
}

/// An open that writes a little reuses the files of earlier ones.
#[test]
fn openings_that_write_use_the_files_of_earlier_ones() {
    for &protocol in Protocol::ALL {
        let dir = tempfile::tempdir().unwrap();
        let builder = || {
            builder(protocol)
                .segment_bytes(1 << 20)
                .background_threads(false)
        };
        let db = builder().open(dir.path()).unwrap();
        create(&db);
        db.close().unwrap();
        let mut most = 0;
        for opening in 0..8 {
            let db = builder().open(dir.path()).unwrap();
            db.transact(|tx| tx.insert(&table(&db), &opening, &1))
                .unwrap();
            db.close().unwrap();
            let bytes = files(dir.path()).values().map(Vec::len).sum::<usize>();
            if opening < 3 {
                most = most.max(bytes);
            }
            assert!(
                bytes <= most,
                "{protocol}, opening {opening}: {bytes} bytes"
            );
        }
    }
}

/// A full device can be opened and read, and writes report why they fail.
#[test]
fn a_full_device_is_read() {
    for &protocol in Protocol::ALL {
        let medium = SimDevice::new(1);
        let device = || -> Arc<dyn Device> { Arc::new(medium.clone()) };
        let builder = || builder(protocol).segment_bytes(1 << 20);
        let db = builder().open_on(device()).unwrap();
        create(&db);
        db.close().unwrap();
        medium.set_capacity(Some(medium.used()));
        for background in [true, false] {
            let db = builder()
                .background_threads(background)
                .open_on(device())
                .unwrap();
            assert_eq!(db.get(&table(&db), &1).unwrap(), Some(1));
            db.close().unwrap();
        }
        // Existing files have room for a few more writes.
        let db = builder()
            .background_threads(false)
            .open_on(device())
            .unwrap();
        let full = (0..10_000).find_map(|key| {
            let put = |tx: &mut braid::Transaction| tx.insert(&table(&db), &key, &2);
            db.transact(put).err()
        });
        assert!(matches!(full, Some(Error::OutOfSpace { .. })), "{full:?}");
        assert!(db.get(&table(&db), &1).unwrap().is_some());
        medium.set_capacity(None);
        db.transact(|tx| tx.insert(&table(&db), &1, &3)).unwrap();
        assert_eq!(db.get(&table(&db), &1).unwrap(), Some(3));
        db.close().unwrap();
    }
}

/// Returns the lengths of all files and the space that they take on the medium.
#[cfg(unix)]
fn sizes(dir: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;

    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    // A file that is renamed or removed meanwhile does not count.
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some((metadata.len(), metadata.blocks() * 512))
    });
    sizes.fold((0, 0), |(lengths, blocks), (len, taken)| {
        (lengths + len, blocks + taken)
    })
}

/// A database with the default sizes.
#[cfg(unix)]
fn layout(protocol: Protocol, strands: usize, lanes: usize) -> Builder {
    match protocol.forced_strands() {
        Some(_) => Database::builder().protocol(protocol),
        None => Database::builder()
            .protocol(protocol)
            .strands(strands)
            .lanes(lanes),
    }
}

#[cfg(unix)]
fn assert_small(dir: &Path, what: &str) {
    let (lengths, blocks) = sizes(dir);
    assert!(
        lengths < 1 << 20 && blocks < 1 << 20,
        "{what}: {lengths} bytes, {blocks} on the medium"
    );
}

#[cfg(unix)]
#[test]
fn a_new_database_takes_less_than_a_mebibyte_whatever_its_strands_and_lanes() {
    for &protocol in Protocol::ALL {
        let strands: &[usize] = match protocol.forced_strands() {
            Some(_) => &[1],
            None => &[1, 2, 3, 7, 8, 15, 16],
        };
        for &strands in strands {
            let mut lanes = vec![1, 2, strands.div_ceil(2), strands];
            lanes.retain(|lanes| *lanes <= strands);
            lanes.sort_unstable();
            lanes.dedup();
            for lanes in lanes {
                let dir = tempfile::tempdir().unwrap();
                let check = |when: &str| {
                    let what = format!("{protocol}, {strands} strands, {lanes} lanes, {when}");
                    assert_small(dir.path(), &what);
                };
                let builder = layout(protocol, strands, lanes);
                builder.clone().open(dir.path()).unwrap().close().unwrap();
                check("new");
                let db = builder.open(dir.path()).unwrap();
                create(&db);
                check("a row");
                db.close().unwrap();
                check("closed");
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn a_small_database_takes_less_than_a_mebibyte() {
    let all = Protocol::ALL.iter().map(|&protocol| (protocol, 2, 1));
    let wide = [(Protocol::default(), 16, 1), (Protocol::default(), 16, 16)];
    let wide = wide.into_iter().chain([(Protocol::Gwsn, 16, 1)]);
    for (protocol, strands, lanes) in all.chain(wide) {
        let builder = || layout(protocol, strands, lanes);
        let dir = tempfile::tempdir().unwrap();
        let check = |when: &str| {
            let what = format!("{protocol}, {strands} strands, {lanes} lanes, {when}");
            assert_small(dir.path(), &what);
        };
        builder().open(dir.path()).unwrap().close().unwrap();
        check("new");
        let db = builder().open(dir.path()).unwrap();
        create(&db);
        check("a row");
        db.close().unwrap();
        check("closed");
        for opening in 0..20 {
            let db = builder().open(dir.path()).unwrap();
            db.transact(|tx| tx.insert(&table(&db), &opening, &1))
                .unwrap();
            db.close().unwrap();
            check("opened and changed");
        }
        // A feed that acknowledges nothing keeps the log of every open, and no more.
        let db = builder().open(dir.path()).unwrap();
        drop(db.feed("feed").unwrap());
        db.close().unwrap();
        for opening in 0..20 {
            let db = builder().open(dir.path()).unwrap();
            db.transact(|tx| tx.insert(&table(&db), &opening, &2))
                .unwrap();
            db.close().unwrap();
        }
        // Each open begins a file in each lane.
        let most = (5 << 20) * lanes.max(2) as u64 / 2;
        let (lengths, _) = sizes(dir.path());
        assert!(lengths < most, "{protocol}: {lengths} bytes with a feed");
    }
}
