//! Tablespaces: tables in data files of their own, which share the log.

mod agents;
mod archives;
mod backups;
mod changes;
mod compacting;
mod crashes;
mod failures;
mod interrupted;
mod lagging;
mod loads;
mod log_places;
mod logs;
mod lost_logs;
mod moves;
mod opening;
mod readers;
mod reading;
mod salvage;
mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid::device::{Device, DeviceChoice, MemoryDevice};
use braid::tablespace::{TablespaceError, TablespaceOptions};
use braid::{Builder, Bytes, Database, Error, Health, Protocol, Readable, Table};
use braid_io::SimDevice;

fn small() -> Builder {
    Database::builder()
        .device(DeviceChoice::File)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
}

/// A database with the tablespaces `one` and `two`, in directories.
struct Directories {
    _temporary: tempfile::TempDir,
    data: PathBuf,
}

impl Directories {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self {
            data: temporary.path().join("data"),
            _temporary: temporary,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.data.with_file_name(name)
    }

    fn with_tablespaces() -> Self {
        let directories = Self::new();
        let db = small().open(&directories.data).unwrap();
        for name in ["one", "two"] {
            db.create_tablespace(name, directories.options(name))
                .unwrap();
        }
        fill(&db, 1);
        db.close().unwrap();
        directories
    }

    fn options(&self, name: &str) -> TablespaceOptions {
        TablespaceOptions::in_directory(self.at(name)).pool_bytes(1 << 20)
    }

    /// All files of the database and the tablespaces, with their contents.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for directory in [self.data.clone(), self.at("one"), self.at("two")] {
            let Ok(entries) = fs::read_dir(directory) else {
                continue;
            };
            for entry in entries {
                let path = entry.unwrap().path();
                if !["LOCK", "READERS"].iter().any(|name| path.ends_with(name)) {
                    files.push((path.clone(), fs::read(path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

/// Copies the files of a directory. The threads of an open database may delete or rename files of the log
/// meanwhile that nothing needs yet or any more.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match fs::copy(entry.path(), to.join(entry.file_name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
}

fn tables(db: &Database) -> [Table<u64, Bytes>; 3] {
    [
        db.open_table("in main").unwrap(),
        db.open_table_in("one", "in one", Default::default())
            .unwrap(),
        db.open_table_in("two", "in two", Default::default())
            .unwrap(),
    ]
}

/// Writes the same to a table of each tablespace, in one transaction.
fn put(db: &Database, tables: &[Table<u64, Bytes>], key: u64, value: &[u8]) -> braid::Result<()> {
    db.transact(|tx| {
        let mut tables = tables.iter();
        tables.try_for_each(|table| tx.insert(table, &key, value))
    })
}

fn fill(db: &Database, value: u8) {
    let tables = tables(db);
    for key in 0..200 {
        put(db, &tables, key, &[value; 100]).unwrap();
    }
}

#[track_caller]
fn check(db: &Database, value: u8) {
    for table in tables(db) {
        for key in 0..200 {
            let found = db.get(&table, &key).unwrap();
            assert_eq!(
                found.as_deref(),
                Some(&[value; 100][..]),
                "{} {key}",
                table.name()
            );
        }
    }
}

fn fault(opened: braid::Result<Database>) -> TablespaceError {
    match opened {
        Err(Error::Tablespace(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The protocols under which the power fails.
const PROTOCOLS: [Protocol; 4] = [
    Protocol::Glsn,
    Protocol::Serial,
    Protocol::Gsn,
    Protocol::Gwsn,
];

/// A database on simulated devices: one for itself, one for each tablespace.
struct Simulated {
    devices: Vec<SimDevice>,
}

const NAMES: [&str; 3] = ["one", "two", "three"];

impl Simulated {
    fn new(seed: u64, tablespaces: usize) -> Self {
        let device = |i| SimDevice::new(seed * 8 + i as u64);
        Self {
            devices: (0..=tablespaces).map(device).collect(),
        }
    }

    fn builder(&self) -> Builder {
        // A segment has room for the buffers of two strands under `gsn`.
        let builder = small().strands(2).segment_bytes(128 << 10);
        let builder = builder.background_threads(false);
        let spaces = NAMES.iter().zip(&self.devices[1..]);
        spaces.fold(builder, |builder, (name, device)| {
            builder.tablespace_device(name, Arc::new(device.clone()))
        })
    }

    fn open_as(&self, builder: Builder) -> braid::Result<Database> {
        builder.open_on(Arc::new(self.devices[0].clone()))
    }

    fn open(&self) -> braid::Result<Database> {
        self.open_as(self.builder())
    }

    fn options(&self, space: usize) -> TablespaceOptions {
        let device = Arc::new(self.devices[1 + space].clone());
        TablespaceOptions::on_device(device).pool_bytes(1 << 20)
    }

    fn create_all(&self, db: &Database) -> braid::Result<()> {
        for (space, name) in NAMES.iter().enumerate().take(self.devices.len() - 1) {
            if !db.tablespace_names().iter().any(|found| found == name) {
                db.create_tablespace(name, self.options(space))?;
            }
        }
        Ok(())
    }

    fn tables(&self, db: &Database) -> braid::Result<Vec<Table<u64, Bytes>>> {
        let mut tables = vec![db.open_table("main")?];
        for name in &NAMES[..self.devices.len() - 1] {
            tables.push(db.open_table_in(name, &format!("in {name}"), Default::default())?);
        }
        Ok(tables)
    }

    /// The power fails everywhere.
    fn crash(&mut self) {
        self.devices.iter().for_each(SimDevice::power_off);
        self.devices = self.devices.iter().map(SimDevice::after_crash).collect();
    }

    fn kill(&mut self) {
        self.devices.iter().for_each(SimDevice::kill);
        self.devices = self.devices.iter().map(SimDevice::after_kill).collect();
    }
}

/// What a key has: the number of the transaction that wrote it, and filling.
fn value(number: u64, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + len, number as u8);
    value
}
