//! Backups, made under load: each restores the state at its number.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use braid::backup::Restore;
use braid::device::MemoryDevice;
use braid::{Database, Result};
use fastrand::Rng;

use super::{Shared, exactly_up_to};
use crate::check::Violation;
use crate::record::{Found, Round, TxId, View, whole};
use crate::tables::Tables;

/// A backup, with the backups that it builds on.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) seqno: u64,
    /// The backups from the full one to this one.
    pub(crate) chain: Vec<Arc<Vec<u8>>>,
    pub(crate) found: Found,
}

#[derive(Default)]
struct Made {
    /// Backups of all rounds.
    copies: Vec<Copy>,
    /// Backups of this round, with their transactions.
    of_round: Vec<(u64, BTreeSet<TxId>)>,
    /// The first violation by a backup that could not be restored.
    broken: Option<Violation>,
}

/// A new backup: its number and its contents, unless it could not be restored.
struct Kept {
    seqno: u64,
    found: Option<Found>,
}

/// The backups of a round.
pub(crate) struct CopiesOfRound {
    made: Vec<(u64, BTreeSet<TxId>)>,
    broken: Option<Violation>,
}

impl CopiesOfRound {
    /// Checks that each backup has exactly the transactions up to its number.
    pub(crate) fn check(self, round: &Round) -> std::result::Result<(), Violation> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        for (seqno, marks) in self.made {
            exactly_up_to(round, seqno, &marks).map_err(|what| format!("a backup: {what}"))?;
        }
        Ok(())
    }
}

/// The backups of a history.
#[derive(Clone, Default)]
pub(crate) struct Copies(Shared<Made>);

/// Restores a chain of backups with the other options of `restore`, opens the restored database, and
/// reads it.
pub(crate) fn look(chain: &[Arc<Vec<u8>>], restore: Restore<'_>) -> Result<Found> {
    // A stream comes before it is known which tablespaces the last backup has.
    let mut names = BTreeSet::new();
    for backup in chain {
        let file = in_file(backup).expect("a temporary file can be written");
        names.extend(braid::backup::info(file.path())?.tablespaces);
    }
    let streams = chain
        .iter()
        .map(|bytes| bytes.to_vec())
        .map(io::Cursor::new);
    let mut restore = streams.fold(restore, Restore::stream);
    let mut builder = Database::builder()
        .pool_bytes(1 << 20)
        .segment_bytes(512 << 10)
        .background_threads(false);
    for name in names {
        let device = Arc::new(MemoryDevice::new());
        restore = restore.tablespace_device(&name, device.clone());
        builder = builder.tablespace_device(&name, device);
    }
    let device = Arc::new(MemoryDevice::new());
    restore.run_on(device.clone())?;
    let db = builder.open_on(device)?;
    let found = Tables::existing(&db)?.found(&db)?;
    db.close()?;
    Ok(found)
}

fn in_file(backup: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), backup)?;
    Ok(file)
}

impl Copies {
    /// Makes a full or incremental backup, restores it, and records its contents like those of a
    /// snapshot.
    pub(crate) fn make(&self, db: &Database, rng: &mut Rng) -> Result<View> {
        let parent = {
            let made = self.0.lock();
            let any = rng.usize(..made.copies.len() + 1);
            made.copies.get(any).cloned()
        };
        let copy = self.keep(db, parent)?;
        let ops = match copy.found {
            Some(found) => {
                let mut made = self.0.lock();
                made.of_round.push((copy.seqno, found.marks));
                vec![whole(found.state)]
            }
            None => Vec::new(),
        };
        Ok(View {
            seqno: copy.seqno,
            ops,
        })
    }

    /// Makes a full backup of a database that may be closed meanwhile, so that the round to which
    /// the backup belongs is unknown. It is kept nevertheless: the archive may begin at any backup.
    pub(crate) fn make_of_any_round(&self, db: &Database) -> Result<()> {
        self.keep(db, None).map(drop)
    }

    /// Makes a backup, restores it, and keeps it.
    fn keep(&self, db: &Database, parent: Option<Copy>) -> Result<Kept> {
        let mut bytes = Vec::new();
        let (report, mut chain) = match parent {
            None => (db.backup_to(&mut bytes)?, Vec::new()),
            Some(parent) => {
                let newest = parent.chain.last().expect("a chain has a full backup");
                let file = in_file(newest).expect("a temporary file can be written");
                let backup = db.backup_options().incremental_from(file.path());
                (backup.to_writer(&mut bytes)?, parent.chain)
            }
        };
        chain.push(Arc::new(bytes));
        let found = look(&chain, Restore::new().pool_bytes(1 << 20));
        let seqno = report.seqno;
        let mut made = self.0.lock();
        let found = match found {
            Ok(found) => Some(found),
            Err(error) => {
                let broken = format!("a backup can't be restored: {error}");
                made.broken.get_or_insert(broken);
                None
            }
        };
        if let Some(found) = found.clone() {
            made.copies.push(Copy {
                seqno,
                chain,
                found,
            });
        }
        Ok(Kept { seqno, found })
    }

    /// Takes the record of a round's backups.
    pub(crate) fn take_round(&self) -> CopiesOfRound {
        let mut made = self.0.lock();
        CopiesOfRound {
            made: std::mem::take(&mut made.of_round),
            broken: made.broken.take(),
        }
    }

    /// Returns the backup with the greatest number, if there are any.
    pub(crate) fn newest(&self) -> Option<Copy> {
        let made = self.0.lock();
        made.copies.iter().max_by_key(|copy| copy.seqno).cloned()
    }

    /// Returns the first and the last backup, if there are any.
    pub(crate) fn ends(&self) -> Option<(Copy, Copy)> {
        let made = self.0.lock();
        Some((made.copies.first()?.clone(), made.copies.last()?.clone()))
    }
}
