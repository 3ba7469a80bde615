//! The database's record of its copies: its newest backup, and how far it is archived.
//!
//! The record is in a separate file in the database's directory, because it changes with copies and
//! not with checkpoints. Losing it costs no data: the next write of the archive then requests a new
//! backup.

use std::path::Path;
use std::sync::Arc;

use braid_io::{Device, Entry};
use braid_rt::Mutex;

use crate::error::{BackupError, Error, Result};
use crate::format::note::{self, Found};

/// Refuses a location for a backup or an archive inside the database's directory: losing the
/// directory would destroy the copy, too.
pub(crate) fn check_outside(database: Option<&Path>, place: &Path) -> Result<()> {
    // A missing location is checked by its existing parent; creating it reports a missing parent.
    let existing = place.ancestors().map(|above| match above {
        above if above.as_os_str().is_empty() => Path::new("."),
        above => above,
    });
    let existing = existing
        .into_iter()
        .find_map(|above| braid_io::resolve(above).ok());
    match (database, existing) {
        (Some(database), Some(existing)) if existing.starts_with(database) => {
            Err(BackupError::InsideDatabase {
                path: place.to_owned(),
                database: database.to_owned(),
            }
            .into())
        }
        _ => Ok(()),
    }
}

const COPIES_FILE: &str = "COPIES";
const MAGIC: [u8; 8] = *b"BRAIDCP\x01";

/// The record in the file `COPIES`.
///
/// | bytes | field |
/// |---|---|
/// | 0..16 | identity of the log |
/// | 16..32 | the instance of the database that its archive knows, 0 if it has none |
/// | 32..40 | archived up to this sequence number; the greatest one if there is no archive |
/// | 40..48 | the newest backup reaches this sequence number, 0 if there is none |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    identity: u128,
    instance: u128,
    archived: u64,
    backup: u64,
}

const FIELDS: usize = 48;
const NOT_ARCHIVED: u64 = u64::MAX;

impl Record {
    fn new(identity: u128) -> Self {
        Self {
            identity,
            instance: 0,
            archived: NOT_ARCHIVED,
            backup: 0,
        }
    }

    fn encode(&self) -> [u8; FIELDS] {
        let mut fields = [0; FIELDS];
        fields[..16].copy_from_slice(&self.identity.to_le_bytes());
        fields[16..32].copy_from_slice(&self.instance.to_le_bytes());
        fields[32..40].copy_from_slice(&self.archived.to_le_bytes());
        fields[40..48].copy_from_slice(&self.backup.to_le_bytes());
        fields
    }

    fn decode(fields: &[u8; FIELDS]) -> Self {
        Self {
            identity: note::u128_at(fields, 0),
            instance: note::u128_at(fields, 16),
            archived: note::u64_at(fields, 32),
            backup: note::u64_at(fields, 40),
        }
    }
}

/// The record of copies, in memory and in its file; see the module documentation.
#[derive(Debug)]
pub(crate) struct Copies {
    device: Arc<dyn Device>,
    record: Mutex<Record>,
}

impl Copies {
    /// Reads the record of the database whose log has this identity. A damaged record, or one of
    /// another database, is ignored.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn open(device: Arc<dyn Device>, identity: u128) -> Result<Self> {
        let found = note::read::<FIELDS>(&*device, COPIES_FILE, MAGIC)
            .map_err(|e| Error::io(format!("cannot read {COPIES_FILE}"), e))?;
        let record = match found {
            Found::Fields(fields) => Record::decode(&fields),
            Found::Nothing | Found::Damaged => Record::new(identity),
        };
        let record = if record.identity == identity {
            record
        } else {
            Record::new(identity)
        };
        Ok(Self {
            device,
            record: Mutex::new(record),
        })
    }

    /// Returns whether the database with this identity wrote a file: the record, complete or not,
    /// or a blank file with its name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn is_file_of(device: &dyn Device, entry: &Entry, identity: u128) -> Result<bool> {
        if entry.name != COPIES_FILE && entry.name.strip_suffix(".new") != Some(COPIES_FILE) {
            return Ok(false);
        }
        let failed = |e| Error::io(format!("cannot read {}", entry.name), e);
        match note::read::<FIELDS>(device, &entry.name, MAGIC).map_err(failed)? {
            Found::Fields(fields) => Ok(Record::decode(&fields).identity == identity),
            Found::Nothing | Found::Damaged => {
                note::is_blank(device, &entry.name, MAGIC).map_err(failed)
            }
        }
    }

    /// Returns the instance that the archive knows; 0 if there was no archive yet.
    pub(crate) fn instance(&self) -> u128 {
        self.record.lock().instance
    }

    /// Returns the recorded sequence number up to which the database is archived; `None` without an
    /// archive.
    pub(crate) fn archived(&self) -> Option<u64> {
        let archived = self.record.lock().archived;
        (archived != NOT_ARCHIVED).then_some(archived)
    }

    /// Returns the sequence number that the newest backup reaches; 0 without a backup.
    pub(crate) fn backup(&self) -> u64 {
        self.record.lock().backup
    }

    /// Changes the record durably. After an error the old record remains valid.
    fn change(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut record = self.record.lock();
        let mut changed = *record;
        change(&mut changed);
        if changed == *record {
            return Ok(());
        }
        note::write(&*self.device, COPIES_FILE, MAGIC, &changed.encode())
            .map_err(|e| Error::io(format!("cannot write {COPIES_FILE}"), e))?;
        *record = changed;
        Ok(())
    }

    /// Records a complete backup.
    pub(crate) fn note_backup(&self, seqno: u64) -> Result<()> {
        self.change(|record| record.backup = record.backup.max(seqno))
    }

    /// Records the instance that the archive knows, and how far the archive reaches.
    pub(crate) fn note_archive(&self, instance: u128, archived: u64) -> Result<()> {
        self.change(|record| {
            record.instance = instance;
            record.archived = archived;
        })
    }

    /// Records that the database is no longer archived.
    pub(crate) fn end_archive(&self) -> Result<()> {
        self.change(|record| record.archived = NOT_ARCHIVED)
    }
}
