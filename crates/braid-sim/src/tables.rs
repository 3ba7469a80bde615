//! The tables of a history, and how the simulator reads them.

use std::collections::BTreeSet;
use std::time::Duration;

use braid::{Bytes, Compression, Database, Error, Readable, Result, Snapshot, Table, TableOptions};

use crate::keys::TableKey;
use crate::plan::Plan;
use crate::record::{Found, Key, State, TxId, Version};

/// The tables of a history.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) values: Table<TableKey, Bytes>,
    /// One key for each transaction that wrote.
    pub(crate) marks: Table<u64, Bytes>,
    /// Entries with a time to live, see [`crate::background`].
    pub(crate) leases: Option<Table<u64, Bytes>>,
    /// More data than the pool holds: reading it evicts everything else.
    pub(crate) ballast: Option<Table<u8, Bytes>>,
}

impl Tables {
    pub(crate) fn open(db: &Database, plan: &Plan) -> Result<Self> {
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
        let leases = plan.leases.then(|| db.open_table_with("leases", timed));
        Ok(Self {
            values: db.open_table_with("values", options)?,
            marks: db.open_table("marks")?,
            leases: leases.transpose()?,
            ballast: plan.tight.then(|| db.open_table("ballast")).transpose()?,
        })
    }

    /// Opens the tables of a copy.
    pub(crate) fn existing(db: &Database) -> Result<Self> {
        let missing = |name: &str| Error::TableNotFound { name: name.into() };
        let values = db.existing_table("values")?;
        let marks = db.existing_table("marks")?;
        Ok(Self {
            values: values.ok_or_else(|| missing("values"))?,
            marks: marks.ok_or_else(|| missing("marks"))?,
            leases: None,
            ballast: None,
        })
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
        let seen = reader.get(&self.values, &key)?;
        Ok(seen.map(|bytes| decode(&bytes)))
    }

    /// Reads the versions of a range of keys.
    pub(crate) fn scan(
        &self,
        reader: &impl Readable,
        from: Key,
        to: Key,
    ) -> Result<Vec<(Key, Version)>> {
        let entries = reader.range(&self.values, from..to)?;
        entries
            .map(|entry| entry.map(|(key, bytes)| (key.0, decode(&bytes))))
            .collect()
    }

    /// A transaction that reads everything, and writes one value again as it is.
    pub(crate) fn commit_alone(&self, db: &Database) -> Result<()> {
        let mut tx = db.begin();
        let state = self.scan(&tx, 0, u8::MAX)?;
        let absent = tx.get(&self.values, &u8::MAX)?;
        debug_assert!(absent.is_none(), "no client writes the last key");
        if let Some((key, version)) = state.first() {
            tx.insert(&self.values, key, &version.encode()[..])?;
        }
        tx.commit().map(drop)
    }
}

/// Decodes a value, which a client wrote.
pub(crate) fn decode(bytes: &[u8]) -> Version {
    Version::decode(bytes).unwrap_or_else(|| panic!("a value that nobody wrote: {bytes:02x?}"))
}
