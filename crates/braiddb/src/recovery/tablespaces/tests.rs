//! Damaged entries whose checksums are right, of the catalog and of the list of tablespaces: each is
//! reported, or does no harm to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_io::SimDevice;
use bytes::Bytes;
use fastrand::Rng;

use super::list::{read_list, write_list};
use crate::catalog::Catalog;
use crate::format::space::ListedSpace;
use crate::schema::entry::name_key;
use crate::tablespace::TablespaceOptions;
use crate::{Builder, Database, Error, Health, Readable, Result, Table};

const SPACES: [&str; 2] = ["one", "two"];

/// Each table, and the tablespace in which it is.
const TABLES: [(&str, Option<&str>); 6] = [
    ("a", None),
    ("b", None),
    ("c", Some("one")),
    ("d", Some("one")),
    ("e", Some("two")),
    ("moved", Some("two")),
];

const ROWS: u64 = 40;

/// The devices of a database: the main one, and one for each tablespace.
#[derive(Clone)]
struct Devices([SimDevice; 3]);

impl Devices {
    /// Returns a copy of the files.
    fn copy(&self) -> Self {
        Self(self.0.each_ref().map(SimDevice::after_kill))
    }

    fn builder(&self) -> Builder {
        let builder = Database::builder()
            .pool_bytes(1 << 20)
            .segment_bytes(64 << 10)
            .strands(1)
            .background_threads(false);
        let spaces = SPACES.iter().zip(&self.0[1..]);
        spaces.fold(builder, |builder, (name, device)| {
            builder.tablespace_device(name, Arc::new(device.clone()))
        })
    }

    fn open(&self) -> Result<Database> {
        self.builder().open_on(Arc::new(self.0[0].clone()))
    }

    fn read(&self) -> Result<Database> {
        let device = Arc::new(self.0[0].clone());
        self.builder().open_read_only_on(device)
    }
}

/// The contents of a table.
fn rows(db: &Database, table: &Table<u64, Bytes>) -> Result<BTreeMap<u64, Bytes>> {
    db.snapshot().iter(table)?.collect()
}

fn expected(name: &str) -> BTreeMap<u64, Bytes> {
    let value = Bytes::from(name.repeat(30).into_bytes());
    (0..ROWS).map(|key| (key, value.clone())).collect()
}

fn make() -> Devices {
    let devices = Devices([1, 2, 3].map(SimDevice::new));
    let db = devices.open().unwrap();
    for (name, device) in SPACES.iter().zip(&devices.0[1..]) {
        let options = TablespaceOptions::on_device(Arc::new(device.clone()));
        let options = options.pool_bytes(1 << 20).own_log(*name == "two");
        db.create_tablespace(name, options).unwrap();
    }
    for (name, space) in TABLES {
        let table: Table<u64, Bytes> = match space {
            Some(space) if name != "moved" => db.open_table_in(space, name, Default::default()),
            _ => db.open_table(name),
        }
        .unwrap();
        let expected = expected(name);
        db.transact(|tx| {
            let mut all = expected.iter();
            all.try_for_each(|(key, value)| tx.insert(&table, key, value))
        })
        .unwrap();
    }
    db.move_table("moved", Some("two")).unwrap();
    // Numbers that no table has any more.
    for space in SPACES {
        db.open_table_in::<u64, u64>(space, "dropped", Default::default())
            .unwrap();
        db.drop_table("dropped").unwrap();
    }
    db.close().unwrap();
    devices
}

/// An operation succeeds, or fails with an error that leaves the database as it is.
fn typed<T>(result: Result<T>, what: &str) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(error @ (Error::Poisoned { .. } | Error::Io { .. })) => panic!("{what}: {error}"),
        Err(_) => None,
    }
}

/// Checks the tables other than `touched`; `all` says that each must be there.
fn check(db: &Database, touched: Option<&str>, all: bool, what: &str) {
    for (name, _) in TABLES.iter().filter(|(name, _)| Some(*name) != touched) {
        let table = db.existing_table::<u64, Bytes>(name);
        let found = table.and_then(|table| table.map(|table| rows(db, &table)).transpose());
        match found {
            Ok(found) => assert!(
                found.as_ref() == Some(&expected(name)),
                "{what}: {name} lost rows"
            ),
            Err(error) => assert!(!all, "{what}: {name}: {error}"),
        }
    }
}

/// Opens a database with a damaged entry, and uses it. `touched` is the table whose entry it is.
fn exercise(devices: &Devices, touched: Option<&str>, what: &str) -> bool {
    let Some(db) = typed(devices.open(), what) else {
        // For reading, the rest is there.
        if let Some(db) = typed(devices.read(), what) {
            check(&db, touched, false, what);
        }
        return false;
    };
    check(&db, touched, true, what);
    for name in typed(db.table_names(), what).unwrap_or_default() {
        let table = typed(db.untyped_table(&name), what).flatten();
        if let Some(table) = table {
            typed(db.snapshot().len(&table), what);
        }
    }
    if matches!(db.health(), Health::Damaged { .. }) {
        // It is open for reading only.
        return false;
    }
    // A new table is empty, whatever numbers the entries say.
    for (index, space) in [None, Some("one"), Some("two")].into_iter().enumerate() {
        let name = format!("new {index}");
        let table = match space {
            None => db.open_table::<u64, Bytes>(&name),
            Some(space) => db.open_table_in(space, &name, Default::default()),
        };
        if let Some(table) = typed(table, what) {
            assert_eq!(rows(&db, &table).unwrap().len(), 0, "{what}: {name}");
            typed(db.transact(|tx| tx.insert(&table, &1, b"new")), what);
        }
        for (name, _) in TABLES.iter().filter(|(name, _)| Some(*name) == touched) {
            typed(db.move_table(name, space), what);
        }
    }
    typed(db.move_table("a", Some("one")), what);
    typed(db.rename_table("new 0", "renamed"), what);
    typed(db.drop_table("new 1"), what);
    db.checkpoint().unwrap();
    typed(db.compact(), what);
    check(&db, touched, true, what);
    db.close().unwrap();
    let db = devices.open();
    let db = db.unwrap_or_else(|error| panic!("{what}: opened before, and now: {error}"));
    check(&db, touched, true, what);
    true
}

/// Changes an entry: its value, or its key.
fn mutate(rng: &mut Rng, key: &mut Vec<u8>, value: &mut Vec<u8>, others: &[Bytes]) {
    let numbers = [
        0,
        1,
        2,
        3,
        4,
        5,
        1 << 30,
        0x4100_0000,
        0x4200_0001,
        0x4300_0000,
        u32::MAX >> 1,
    ];
    match rng.u32(..7) {
        0 if !value.is_empty() => {
            let at = rng.usize(..value.len());
            value[at] ^= 1 << rng.u32(..8);
        }
        1 => value.truncate(rng.usize(..=value.len())),
        2 => value.extend((0..rng.usize(1..40)).map(|_| rng.u8(..))),
        3 if value.len() >= 4 => {
            let other = &others[rng.usize(..others.len())];
            let number = match other.first_chunk() {
                Some(number) if rng.bool() => *number,
                _ => numbers[rng.usize(..numbers.len())].to_le_bytes(),
            };
            value[..4].copy_from_slice(&number);
        }
        4 => *value = others[rng.usize(..others.len())].to_vec(),
        5 => {
            let at = rng.usize(..key.len());
            key[at] ^= 1 << rng.u32(..8);
        }
        _ => key.truncate(rng.usize(1..=key.len())),
    }
}

#[test]
fn a_damaged_entry_of_the_catalog_harms_no_other_table() {
    let base = make();
    let (mut opened, mut refused) = (0, 0);
    for case in 0..250 {
        let mut rng = Rng::with_seed(case);
        let devices = base.copy();
        let db = devices.open().unwrap();
        let catalog = Catalog::of(db.engine()).table();
        let entries: Vec<(Bytes, Bytes)> = db
            .snapshot()
            .iter(&catalog)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let (key, value) = entries[rng.usize(..entries.len())].clone();
        let values: Vec<Bytes> = entries.into_iter().map(|(_, value)| value).collect();
        let (mut new_key, mut new_value) = (key.to_vec(), value.to_vec());
        mutate(&mut rng, &mut new_key, &mut new_value, &values);
        db.transact(|tx| {
            tx.remove(&catalog, &key)?;
            tx.insert(&catalog, &new_key, &new_value)
        })
        .unwrap();
        drop(catalog);
        // The catalog is read from the data file, or from the log.
        if rng.bool() {
            db.close().unwrap();
        } else {
            drop(db);
        }
        let what = format!("case {case}: {key:?} {value:?} became {new_key:?} {new_value:?}");
        let mut names = TABLES.iter().map(|(name, _)| *name);
        let touched = names.find(|name| key[1..] == *name.as_bytes());
        if exercise(&devices, touched, &what) {
            opened += 1;
        } else {
            refused += 1;
        }
    }
    assert!(opened > 20 && refused > 20, "{opened} {refused}");
}

#[test]
fn a_damaged_list_of_tablespaces_is_refused_and_nothing_is_lost() {
    let base = make();
    let original = read_list(&base.0[0]).unwrap();
    assert_eq!(original.len(), 2);
    let (mut opened, mut refused) = (0, 0);
    for case in 0..120 {
        let mut rng = Rng::with_seed(case);
        let mut list: Vec<ListedSpace> = original.clone();
        let at = rng.usize(..2);
        let other = list[1 - at].clone();
        let entry = &mut list[at];
        match case % 9 {
            0 => entry.number = [0, 2, 3, 63, 64, 100, 127][rng.usize(..7)],
            1 => entry.number = other.number,
            2 => entry.identity = other.identity,
            3 => entry.identity ^= 1 << rng.u32(..128),
            4 => entry.pool_bytes = [0, 1, 1 << 19, 1 << 62, u64::MAX][rng.usize(..5)],
            5 => {
                entry.name = [String::new(), other.name, "x".repeat(5_000)][rng.usize(..3)].clone()
            }
            6 => entry.has_log = !entry.has_log,
            7 => drop(list.remove(at)),
            _ => list.push(other),
        }
        let devices = base.copy();
        write_list(&devices.0[0], &list).unwrap();
        let what = format!("case {case}: {list:?}");
        match typed(devices.open(), &what) {
            Some(db) => {
                check(&db, None, true, &what);
                opened += 1;
            }
            None => {
                refused += 1;
                if let Some(db) = typed(devices.read(), &what) {
                    check(&db, None, false, &what);
                }
                write_list(&devices.0[0], &original).unwrap();
                check(&devices.open().unwrap(), None, true, &what);
            }
        }
    }
    assert!(opened > 5 && refused > 60, "{opened} {refused}");
}

/// An older page of the catalog may have the name that a table had before.
#[test]
fn a_salvaged_table_has_one_name() {
    let devices = make();
    let db = devices.open().unwrap();
    let catalog = Catalog::of(db.engine()).table();
    let entry = db.get(&catalog, &name_key("a").unwrap()).unwrap().unwrap();
    db.transact(|tx| tx.insert(&catalog, &name_key("former").unwrap(), &entry))
        .unwrap();
    drop(catalog);
    db.close().unwrap();
    let (from, into) = (Arc::new(devices.0[0].clone()), Arc::new(SimDevice::new(9)));
    let options = devices.builder();
    let (_, db) = crate::fuzzing::salvage(from, into.clone(), &options, &mut |_| ()).unwrap();
    db.close().unwrap();
    let db = Database::builder()
        .pool_bytes(1 << 20)
        .open_on(into)
        .unwrap();
    assert!(matches!(db.health(), Health::Good), "{:?}", db.health());
    let names = db.table_names().unwrap();
    assert!(names.contains(&"a".to_owned()) && !names.contains(&"former".to_owned()));
    let table = db.open_table::<u64, Bytes>("a").unwrap();
    assert!(rows(&db, &table).unwrap() == expected("a"));
}
