//! Ownership of an archive by one database.
//!
//! A copy of a database's files has the identity of the original. Two copies that archive to one
//! directory would replace each other's files. So the archive records the one instance of the
//! database that may write it: a number that the instance also stores in its own directory (see
//! [`crate::services::copies`]) and that changes whenever the database is opened with the archive
//! and writes it. An earlier copy has an older number and is refused.

use braid_io::Device;

use crate::error::{BackupError, Error, Result};
use crate::format::note::{self, Found};

const OWNER_FILE: &str = "OWNER";
const MAGIC: [u8; 8] = *b"BRAIDOW\x01";

/// The record in the file `OWNER` of an archive.
///
/// | bytes | field |
/// |---|---|
/// | 0..16 | identity of the log |
/// | 16..32 | the instance that writes the archive |
/// | 32..48 | the same; while the instance changes, the previous instance |
/// | 48..56 | the archive reaches at least this sequence number |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) identity: u128,
    pub(super) instances: [u128; 2],
    pub(super) archived: u64,
}

const FIELDS: usize = 56;

impl Owner {
    /// Reads the record; `None` if the archive has none.
    pub(super) fn read(device: &dyn Device, archive: &str) -> Result<Option<Self>> {
        let found = note::read::<FIELDS>(device, OWNER_FILE, MAGIC)
            .map_err(|e| Error::io(format!("cannot read {OWNER_FILE} of archive {archive}"), e))?;
        match found {
            Found::Nothing => Ok(None),
            Found::Damaged => Err(BackupError::Damaged {
                backup: format!("{archive}, {OWNER_FILE}"),
                what: "the record of the database that writes to it; remove this file".into(),
            }
            .into()),
            Found::Fields(fields) => Ok(Some(Self {
                identity: note::u128_at(&fields, 0),
                instances: [note::u128_at(&fields, 16), note::u128_at(&fields, 32)],
                archived: note::u64_at(&fields, 48),
            })),
        }
    }

    /// Replaces the record durably.
    pub(super) fn write(&self, device: &dyn Device, archive: &str) -> Result<()> {
        let mut fields = [0; FIELDS];
        fields[..16].copy_from_slice(&self.identity.to_le_bytes());
        fields[16..32].copy_from_slice(&self.instances[0].to_le_bytes());
        fields[32..48].copy_from_slice(&self.instances[1].to_le_bytes());
        fields[48..56].copy_from_slice(&self.archived.to_le_bytes());
        note::write(device, OWNER_FILE, MAGIC, &fields)
            .map_err(|e| Error::io(format!("cannot write {OWNER_FILE} of archive {archive}"), e))
    }

    /// Refuses a database with another identity, and a copy of the database that owns the archive.
    pub(super) fn check(&self, archive: &str, identity: u128, instance: u128) -> Result<()> {
        let archive = || archive.to_owned();
        if self.identity != identity {
            return Err(BackupError::OtherArchive { archive: archive() }.into());
        }
        let is_owner = self.instances.contains(&instance);
        if !is_owner && !braid_rt::mutant!("archive_of_any_copy") {
            return Err(BackupError::ArchiveOwned { archive: archive() }.into());
        }
        Ok(())
    }
}
