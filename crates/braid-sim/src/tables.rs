//! The tables of a history, and how the simulator reads them.

use std::collections::BTreeSet;
use std::time::Duration;

use braid::tablespace::TablespaceError;
use braid::{Bytes, Compression, Database, Error, Readable, Result, Snapshot, Table, TableOptions};

use crate::keys::TableKey;
use crate::plan::{Plan, SPACES_MAX};
use crate::record::{Found, Key, State, TxId, Version};
use crate::spaces::{self, Spaces};

/// The tables of a history.
#[derive(Clone)]
pub(crate) struct Tables {
    /// The keys, divided among the tablespaces by their remainders.
    values: Vec<Table<TableKey, Bytes>>,
    /// One key for each transaction that wrote.
    pub(crate) marks: Table<u64, Bytes>,
    /// Entries with a time to live, see [`crate::background`].
    pub(crate) leases: Option<Table<u64, Bytes>>,
    /// More data than the pool holds: reading it evicts everything else.
    pub(crate) ballast: Option<Table<u8, Bytes>>,
}

impl Tables {
    /// Opens the tables, and creates them and their tablespaces if they are missing.
    pub(crate) fn open(db: &Database, plan: &Plan, spaces: &Spaces) -> Result<Self> {
        let compression = if plan.compressed {
            Compression::Lz4
        } else {
            Compression::None
        };
        let options = TableOptions {
            compression,
            time_to_live: None,
        };
        let timed = TableOptions {
            compression,
            time_to_live: Some(Duration::from_millis(1 << (plan.seed % 7))),
        };
        spaces.create_missing(db)?;
        let count = u64::from(plan.spaces) + 1;
        let leases = plan.leases.then(|| db.open_table_with("leases", timed));
        // `None` is the main tablespace.
        let name = |space: u64| (space > 0).then(|| spaces::name(space as usize));
        let values =
            (0..count).map(|space| open_in(db, name(space).as_deref(), &values_in(space), options));
        let values = values.collect::<Result<_>>()?;
        // Any of the tablespaces may lack what the others have.
        let plain = TableOptions::default();
        let of_ballast = name(plan.seed / 8 % count);
        let ballast = || open_in(db, of_ballast.as_deref(), "ballast", plain);
        Ok(Self {
            values,
            marks: open_in(db, name(plan.seed % count).as_deref(), "marks", plain)?,
            leases: leases.transpose()?,
            ballast: plan.tight.then(ballast).transpose()?,
        })
    }

    /// Opens the tables of a copy.
    pub(crate) fn existing(db: &Database) -> Result<Self> {
        let missing = |name: &str| Error::TableNotFound { name: name.into() };
        let mut values = Vec::new();
        for space in 0..=u64::from(SPACES_MAX) {
            values.extend(db.existing_table(&values_in(space))?);
        }
        if values.is_empty() {
            return Err(missing(&values_in(0)));
        }
        let marks = db.existing_table("marks")?;
        Ok(Self {
            values,
            marks: marks.ok_or_else(|| missing("marks"))?,
            leases: None,
            ballast: None,
        })
    }

    /// Returns the table of a key.
    pub(crate) fn of(&self, key: Key) -> &Table<TableKey, Bytes> {
        &self.values[usize::from(key) % self.values.len()]
    }

    /// Returns the table of all keys, if there is only one.
    pub(crate) fn single(&self) -> Option<&Table<TableKey, Bytes>> {
        (self.values.len() == 1).then(|| &self.values[0])
    }

    /// Returns the transactions that are present.
    pub(crate) fn marks(&self, reader: &impl Readable) -> Result<BTreeSet<TxId>> {
        let marks = reader.iter(&self.marks)?.map(|entry| Ok(entry?.0));
        marks.collect()
    }

    /// Reads everything in the database.
    pub(crate) fn found(&self, db: &Database) -> Result<Found> {
        self.found_in(&db.snapshot())
    }

    /// Reads everything in a snapshot.
    pub(crate) fn found_in(&self, snapshot: &Snapshot) -> Result<Found> {
        let state = self.scan(snapshot, 0, u8::MAX)?;
        Ok(Found {
            state: state.into_iter().collect::<State>(),
            marks: self.marks(snapshot)?,
        })
    }

    /// Reads one version.
    pub(crate) fn get(&self, reader: &impl Readable, key: Key) -> Result<Option<Version>> {
        let seen = reader.get(self.of(key), &key)?;
        Ok(seen.map(|bytes| decode(&bytes)))
    }

    /// Reads the versions of a range of keys.
    pub(crate) fn scan(
        &self,
        reader: &impl Readable,
        from: Key,
        to: Key,
    ) -> Result<Vec<(Key, Version)>> {
        let mut found = Vec::new();
        for table in &self.values {
            let entries = reader.range(table, from..to)?;
            for entry in entries {
                let (key, bytes) = entry?;
                found.push((key.0, decode(&bytes)));
            }
        }
        found.sort_by_key(|(key, _)| *key);
        Ok(found)
    }

    /// A transaction that reads everything, and writes one value again as it is.
    pub(crate) fn commit_alone(&self, db: &Database) -> Result<()> {
        let mut tx = db.begin();
        let state = self.scan(&tx, 0, u8::MAX)?;
        let absent = tx.get(self.of(u8::MAX), &u8::MAX)?;
        debug_assert!(absent.is_none(), "no client writes the last key");
        if let Some((key, version)) = state.first() {
            tx.insert(self.of(*key), key, &version.encode()[..])?;
        }
        tx.commit().map(drop)
    }
}

/// The tables that can be read without a tablespace.
pub(crate) struct Partial {
    /// The tables of keys, as in [`Tables`].
    values: Vec<Option<Table<TableKey, Bytes>>>,
    pub(crate) marks: Option<Table<u64, Bytes>>,
}

impl Partial {
    /// Opens the tables of a database that lacks a tablespace.
    pub(crate) fn existing(db: &Database, missing: &str) -> Result<Self> {
        let mut values = Vec::new();
        for space in 0..=u64::from(SPACES_MAX) {
            match existing_in(db, &values_in(space), missing)? {
                Existing::None => {}
                Existing::Missing => values.push(None),
                Existing::Table(table) => values.push(Some(table)),
            }
        }
        let marks = match existing_in(db, "marks", missing)? {
            Existing::Table(table) => Some(table),
            _ => None,
        };
        Ok(Self { values, marks })
    }

    /// Whether the table of a key can be read.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.values[usize::from(key) % self.values.len()].is_some()
    }

    /// Reads everything that can be read.
    pub(crate) fn found_in(&self, snapshot: &Snapshot) -> Result<Found> {
        let mut found = Found::default();
        for table in self.values.iter().flatten() {
            for entry in snapshot.range(table, 0..u8::MAX)? {
                let (key, bytes): (TableKey, Bytes) = entry?;
                found.state.insert(key.0, decode(&bytes));
            }
        }
        if let Some(marks) = &self.marks {
            let marks = snapshot.iter(marks)?.map(|entry| Ok(entry?.0));
            found.marks = marks.collect::<Result<_>>()?;
        }
        Ok(found)
    }
}

/// Whether a table exists.
enum Existing<K: braid::Key> {
    None,
    /// Its tablespace is missing.
    Missing,
    Table(Table<K, Bytes>),
}

fn existing_in<K: braid::Key>(db: &Database, table: &str, missing: &str) -> Result<Existing<K>> {
    match db.existing_table(table) {
        Ok(None) => Ok(Existing::None),
        Ok(Some(table)) => Ok(Existing::Table(table)),
        Err(Error::Tablespace(
            TablespaceError::Missing { name, .. } | TablespaceError::Damaged { name, .. },
        )) if name == missing => Ok(Existing::Missing),
        Err(error) => Err(error),
    }
}

/// The name of the table with the keys of a tablespace, which has this number from 0.
fn values_in(space: u64) -> String {
    match space {
        0 => "values".to_owned(),
        space => format!("values-{space}"),
    }
}

/// Opens a table wherever it is, and creates it in a tablespace if it does not exist; `None` is the
/// main one.
pub(crate) fn open_in<K: braid::Key>(
    db: &Database,
    space: Option<&str>,
    table: &str,
    options: TableOptions,
) -> Result<Table<K, Bytes>> {
    let Some(space) = space else {
        return db.open_table_with(table, options);
    };
    match db.open_table_in(space, table, options) {
        // It has moved.
        Err(Error::Tablespace(TablespaceError::OtherTablespace { .. })) => {
            db.open_table_with(table, options)
        }
        opened => opened,
    }
}

/// Decodes a value, which a client wrote.
pub(crate) fn decode(bytes: &[u8]) -> Version {
    Version::decode(bytes).unwrap_or_else(|| panic!("a value that nobody wrote: {bytes:02x?}"))
}
