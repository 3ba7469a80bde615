//! One damaged page costs only the keys in it: the database opens, and every other key of every
//! table can be read, even if the log contains writes to the damaged page.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::{Builder, Bytes, Database, Error, Health, Protocol, Readable, Table};
use braid_io::{AlignedBuf, Device, OpenMode, SimDevice};

const PAGE: usize = 8192;
const DATA: &str = "data.braid";

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn builder(protocol: Protocol) -> Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(4 << 20)
        .segment_bytes(256 << 10)
        .strands(if protocol.forced_strands().is_some() {
            1
        } else {
            2
        })
        .protocol(protocol)
}

fn key(i: u32) -> Vec<u8> {
    // Long keys, so that there are inner nodes.
    format!("{i:05}{}", "-".repeat(300)).into_bytes()
}

/// Contents of a medium after a crash that follows a checkpoint, and the expected tables.
fn crashed(protocol: Protocol) -> (SimDevice, BTreeMap<&'static str, Rows>) {
    let device = SimDevice::new(7);
    let db = builder(protocol).open_on(Arc::new(device.clone())).unwrap();
    let mut expected = BTreeMap::new();
    for name in ["first", "second", "large"] {
        let table: Table<Bytes, Bytes> = db.open_table(name).unwrap();
        let len = if name == "large" { 9_000 } else { 200 };
        let mut rows = Rows::new();
        for i in 0..if name == "large" { 8 } else { 150 } {
            rows.insert(key(i), vec![i as u8; len]);
        }
        db.transact(|tx| {
            rows.iter()
                .try_for_each(|(key, value)| tx.insert(&table, &key[..], &value[..]))
        })
        .unwrap();
        expected.insert(name, rows);
    }
    db.checkpoint().unwrap();
    // Blind writes, so that only recovery has to read the pages.
    for (name, rows) in &mut expected {
        let table: Table<Bytes, Bytes> = db.open_table(name).unwrap();
        let wanted = rows.iter_mut().step_by(3);
        for (key, value) in wanted {
            *value = vec![0xee; value.len()];
            db.transact(|tx| tx.insert(&table, &key[..], &value[..]))
                .unwrap();
        }
    }
    db.sync().unwrap();
    let image = device.after_crash();
    drop(db);
    (image, expected)
}

fn read(device: &SimDevice, name: &str) -> Vec<u8> {
    let file = device.open(name, OpenMode::Existing).unwrap();
    let mut bytes = AlignedBuf::new(file.len().unwrap() as usize);
    file.read_at(&mut bytes, 0).unwrap();
    bytes.to_vec()
}

fn files(device: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let entries = device.list().unwrap().into_iter();
    entries
        .map(|entry| (entry.name.clone(), read(device, &entry.name)))
        .collect()
}

/// The identities of a data file's blocks; see `docs/file-format.md`.
fn identities(device: &SimDevice) -> Vec<u64> {
    let bytes = read(device, DATA);
    let blocks = bytes.chunks_exact(PAGE);
    blocks
        .map(|block| u64::from_le_bytes(block[8..16].try_into().unwrap()))
        .collect()
}

/// Offset of the magic of superblocks, and of a flag in blocks that are not pages.
fn is_page(identity: u64) -> bool {
    (1..1 << 48).contains(&identity)
}

/// Reads every key separately, and scans every table from both ends. Returns the number of keys of
/// each table that cannot be read; all others must be right.
fn look(
    db: &Database,
    expected: &BTreeMap<&'static str, Rows>,
    what: &str,
) -> BTreeMap<String, usize> {
    let mut lost = BTreeMap::new();
    for (name, rows) in expected {
        let table: Table<Bytes, Bytes> = match db.existing_table(name) {
            Ok(table) => table.unwrap_or_else(|| panic!("{what}: the table {name} is missing")),
            Err(error) => {
                assert!(matches!(error, Error::Corrupted { .. }), "{what}: {error}");
                lost.insert((*name).to_owned(), rows.len());
                continue;
            }
        };
        let mut errors = Vec::new();
        for (place, (key, value)) in rows.iter().enumerate() {
            match db.get(&table, &key[..]) {
                Ok(found) => {
                    assert_eq!(found.as_deref(), Some(&value[..]), "{what}: {name} {place}")
                }
                Err(Error::Corrupted { location, .. }) => {
                    assert!(
                        location.contains(" of tree ")
                            && (location.contains("keys") || location.contains("the value of")),
                        "{what}: no range is named: {location}"
                    );
                    errors.push(place);
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        if let (Some(first), Some(last)) = (errors.first(), errors.last()) {
            assert_eq!(last - first + 1, errors.len(), "{what}: {name}: one range");
            // The values of a scan are right up to the damage.
            let snapshot = db.snapshot();
            let before = snapshot.iter(&table).unwrap().map_while(Result::ok);
            let before: Rows = before.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert!(
                before.len() <= *first && before.iter().all(|(k, v)| rows.get(k) == Some(v)),
                "{what}"
            );
            let behind = rows.keys().nth(last + 1).cloned();
            if let Some(behind) = behind {
                let behind = snapshot.range(&table, &behind[..]..).unwrap();
                assert_eq!(
                    behind.map(Result::unwrap).count(),
                    rows.len() - last - 1,
                    "{what}"
                );
            }
            lost.insert((*name).to_owned(), errors.len());
        } else {
            let snapshot = db.snapshot();
            assert_eq!(
                snapshot.iter(&table).unwrap().map(Result::unwrap).count(),
                rows.len()
            );
        }
    }
    lost
}

#[test]
fn one_damaged_page_costs_its_own_keys_and_nothing_else() {
    for &protocol in Protocol::ALL {
        let (image, expected) = crashed(protocol);
        let identities = identities(&image);
        let (mut pages, mut read_only, mut catalogs) = (0, 0, 0);
        for (block, identity) in identities
            .iter()
            .enumerate()
            .filter(|(_, id)| is_page(**id))
        {
            let what = format!("{protocol}, block {block}, page {identity}");
            let damaged = image.after_crash();
            assert!(damaged.flip_bit(DATA, block * PAGE + 4_000, 3));
            let before = files(&damaged);
            let db = builder(protocol).open_on(Arc::new(damaged.clone()));
            let db = db.unwrap_or_else(|error| panic!("{what}: {error}"));
            let lost = look(&db, &expected, &what);
            assert!(
                lost.len() <= 1 || lost.len() == expected.len(),
                "{what}: {lost:?}"
            );
            catalogs += usize::from(lost.len() == expected.len());
            pages += 1;
            if let Health::Damaged { what: named } = db.health() {
                read_only += 1;
                let table = lost.keys().next().expect("something is lost").clone();
                assert!(
                    named.contains(&table) || named.contains("catalog") || lost.len() > 1,
                    "{named}"
                );
                let error = db.transact(|tx| {
                    let table: Table<Bytes, Bytes> = db.open_table("first")?;
                    tx.insert(&table, &b"new"[..], &b"value"[..])
                });
                assert!(
                    matches!(&error, Err(Error::Corrupted { .. })),
                    "{what}: {error:?}"
                );
                drop(db);
                // Nothing is written, so the log keeps the changes to the page, however often the
                // database is opened.
                assert!(
                    files(&damaged) == before,
                    "{what}: a damaged database was changed"
                );
                let again = builder(protocol).open_on(Arc::new(damaged)).unwrap();
                assert_eq!(look(&again, &expected, &what), lost, "{what}");
            }
        }
        assert!(
            pages > 40 && read_only > 20 && catalogs > 0,
            "{pages} {read_only} {catalogs}"
        );
    }
}

/// Changes from the log apply to leaves that were read before. A page that becomes readable again,
/// or that is read in another way, must not show its state before the log.
#[test]
fn a_page_that_was_left_out_stays_unreadable() {
    let (image, expected) = crashed(Protocol::default());
    let identities = identities(&image);
    let mut checked = 0;
    for (block, _) in identities
        .iter()
        .enumerate()
        .filter(|(_, id)| is_page(**id))
    {
        let damaged = image.after_crash();
        assert!(damaged.flip_bit(DATA, block * PAGE + 4_000, 3));
        let db = builder(Protocol::default())
            .open_on(Arc::new(damaged.clone()))
            .unwrap();
        if !matches!(db.health(), Health::Damaged { .. }) {
            continue;
        }
        assert!(
            damaged.flip_bit(DATA, block * PAGE + 4_000, 3),
            "it is good again"
        );
        look(&db, &expected, &format!("block {block}"));
        checked += 1;
    }
    assert!(checked > 20, "{checked}");
}

/// A damaged value does not matter if the log replaces it.
#[test]
fn a_damaged_large_value_that_was_replaced_costs_nothing() {
    let (image, expected) = crashed(Protocol::default());
    let bytes = read(&image, DATA);
    let is_overflow = |block: &[u8]| {
        is_page(u64::from_le_bytes(block[8..16].try_into().unwrap())) && block[16] == 3
    };
    let overflow: Vec<usize> = (0..bytes.len() / PAGE)
        .filter(|block| is_overflow(&bytes[block * PAGE..][..PAGE]))
        .collect();
    assert!(overflow.len() >= 16, "{overflow:?}");
    let mut kept = 0;
    for block in overflow {
        let damaged = image.after_crash();
        assert!(damaged.flip_bit(DATA, block * PAGE + 4_000, 3));
        let db = builder(Protocol::default())
            .open_on(Arc::new(damaged))
            .unwrap();
        assert!(matches!(db.health(), Health::Good), "{:?}", db.health());
        let lost = look(&db, &expected, &format!("block {block}"));
        kept += usize::from(lost.is_empty());
        db.close().unwrap();
    }
    // The log replaced the value of every third key.
    assert!(kept >= 6, "{kept}");
}

#[test]
fn a_lost_leaf_of_the_page_map_costs_the_pages_that_it_leads_to() {
    let device = SimDevice::new(3);
    let open = |device: &SimDevice| {
        Database::builder()
            .background_threads(false)
            .pool_bytes(32 << 20)
            .segment_bytes(256 << 10)
            .open_on(Arc::new(device.clone()))
    };
    let db = open(&device).unwrap();
    let small: Table<u64, u64> = db.open_table("small").unwrap();
    db.transact(|tx| (0..500).try_for_each(|k| tx.insert(&small, &k, &k)))
        .unwrap();
    let mut loader = db.bulk_load::<u64, Bytes>("filler").unwrap();
    // About 1,300 pages: more than one leaf of the map has entries for.
    (0..5_000).for_each(|k| loader.insert(&k, &[7; 2_000][..]).unwrap());
    loader.finish().unwrap();
    db.transact(|tx| {
        (0..500)
            .step_by(7)
            .try_for_each(|k| tx.insert(&small, &k, &(k + 1)))
    })
    .unwrap();
    db.sync().unwrap();
    let image = device.after_crash();
    drop((small, db));
    let leaves: Vec<usize> = identities(&image)
        .iter()
        .enumerate()
        .filter(|(_, id)| (1 << 62..1 << 63).contains(*id) && **id != 1 << 62)
        .map(|(block, _)| block)
        .collect();
    let mut damages = 0;
    for block in leaves {
        let damaged = image.after_crash();
        assert!(damaged.flip_bit(DATA, block * PAGE + 4_000, 3));
        let db = open(&damaged).unwrap();
        if matches!(db.health(), Health::Damaged { .. }) {
            damages += 1;
        }
        let small: Table<u64, u64> = db.open_table("small").unwrap();
        if matches!(db.health(), Health::Damaged { .. }) {
            // A checkpoint would forget the pages that the leaf leads to.
            let refused = db.transact(|tx| tx.insert(&small, &0, &1));
            assert!(matches!(refused, Err(Error::Corrupted { .. })));
        }
        for k in 0..500 {
            assert_eq!(db.get(&small, &k).unwrap(), Some(k + u64::from(k % 7 == 0)));
        }
        let filler: Table<u64, Bytes> = db.open_table("filler").unwrap();
        let (mut found, mut lost) = (0, 0);
        for k in 0..5_000 {
            match db.get(&filler, &k) {
                Ok(Some(value)) => {
                    assert_eq!(value, [7; 2_000][..]);
                    found += 1;
                }
                Err(Error::Corrupted { .. }) => lost += 1,
                other => panic!("{k}: {other:?}"),
            }
        }
        assert!(
            found + lost == 5_000 && (lost > 500) == matches!(db.health(), Health::Damaged { .. }),
            "{found} {lost}"
        );
    }
    assert!(damages > 0);
}
