//! An archive of the log on its own medium: with the first backup, it restores any later state.
//! Some openings omit it, and then it may lack transactions, which it must not hide; and a copy of
//! the database may try to take it over.

use std::sync::Arc;
use std::time::Duration;

use braid::backup::{BackupError, Restore, Until};
use braid::{Builder, Database, Error, Readable, Result};
use braid_io::SimDevice;
use fastrand::Rng;

use super::copies::{Copies, Copy, look};
use crate::check::Violation;
use crate::record::Found;
use crate::spaces::SPARE;

/// The archive of a history. Its medium loses power with the database's.
pub(crate) struct Archive {
    medium: SimDevice,
    /// Whether the database was opened without its archive, which may then lack transactions.
    left_out: bool,
    /// A copy of the database's files, made while no process had them open.
    twin: Option<SimDevice>,
}

impl Archive {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            medium: SimDevice::new(seed),
            left_out: false,
            twin: None,
        }
    }

    pub(crate) fn medium(&self) -> SimDevice {
        self.medium.clone()
    }

    pub(crate) fn restart(&mut self, kill: bool) {
        self.medium = if kill {
            self.medium.after_kill()
        } else {
            self.medium.after_crash()
        };
    }

    /// Configures the database with its archive, or occasionally without it. Log may then be
    /// released, unless a feed needs it.
    pub(crate) fn ask_for(&mut self, builder: Builder, feed: bool, rng: &mut Rng) -> Builder {
        match rng.u32(..6) {
            0 => {
                self.left_out = true;
                if feed || rng.bool() {
                    builder
                } else {
                    builder.feed_log_bytes(0)
                }
            }
            _ => self.archived(builder, rng),
        }
    }

    fn archived(&self, builder: Builder, rng: &mut Rng) -> Builder {
        let interval = Duration::from_micros(rng.u64(200..5_000));
        let medium = Arc::new(self.medium.clone());
        builder.archive_on(medium).archive_interval(interval)
    }

    /// Occasionally copies the files of the database, which no process has open.
    pub(crate) fn copy_database(&mut self, device: &SimDevice, rng: &mut Rng) {
        if rng.u32(..4) == 0 {
            self.twin = Some(device.after_kill());
        }
    }

    /// Lets the copy of the database try to take over the archive, if there is a copy: the archive
    /// must then reject either the copy or, from then on, the database. Returns whether there was a
    /// copy.
    pub(crate) fn check_twin(
        &mut self,
        db: &Database,
        builder: Builder,
        rng: &mut Rng,
    ) -> std::result::Result<bool, Violation> {
        let Some(twin) = self.twin.take() else {
            return Ok(false);
        };
        let opened = self.archived(builder, rng).open_on(Arc::new(twin));
        let other = match opened {
            Ok(other) => other,
            Err(Error::Backup(
                BackupError::ArchiveOwned { .. } | BackupError::ArchiveAhead { .. },
            )) => return Ok(true),
            Err(error) => return Err(format!("a copy of the database can't be opened: {error}")),
        };
        // A device has no lock, so a database that was about to become the owner may still do so
        // after the copy did. Then the copy notices it.
        if [&other, db, &other]
            .into_iter()
            .all(|db| archives(db).is_ok())
        {
            return Err("two copies of a database write one archive".to_owned());
        }
        Ok(true)
    }

    fn restore(&self, copy: &Copy, until: Until) -> Result<Found> {
        let restore = Restore::new()
            .pool_bytes(1 << 20)
            .archive_on(Arc::new(self.medium.clone()))
            .until(until);
        look(&copy.chain, restore)
    }

    /// Whether the archive may lack transactions.
    pub(crate) fn may_lack(&self) -> bool {
        self.left_out
    }

    /// Checks an archive that was brought up to date. If it claims to be complete, it must lead
    /// from the newest backup to the current state. From the first backup it must also lead there,
    /// and to the last backup's state, unless transactions are missing that it reports.
    pub(crate) fn check(
        &self,
        copies: &Copies,
        now: &Found,
        complete: bool,
    ) -> std::result::Result<(), Violation> {
        let (Some((first, last)), Some(newest)) = (copies.ends(), copies.newest()) else {
            return Ok(());
        };
        let at_last = Until::Seqno(last.seqno);
        let targets = [
            (&first, Until::End, now, !self.left_out),
            (&first, at_last, &last.found, !self.left_out),
            (&newest, Until::End, now, complete),
        ];
        for (backup, until, wanted, must_lead) in targets {
            let found = match self.restore(backup, until) {
                Err(Error::Backup(BackupError::Hole { .. })) if !must_lead => continue,
                // Clients created it again after the backup.
                Err(Error::Backup(BackupError::NewTablespace { name, .. })) if name == SPARE => {
                    continue;
                }
                found => found.map_err(|error| format!("the archive up to {until:?}: {error}"))?,
            };
            if let Some(id) = wanted.marks.symmetric_difference(&found.marks).next() {
                let there = found.marks.contains(id);
                return Err(format!(
                    "the archive up to {until:?} has {}{id}",
                    if there { "" } else { "not " }
                ));
            }
            if found.state != wanted.state {
                return Err(format!(
                    "the archive up to {until:?} leads to another state: {found}"
                ));
            }
        }
        Ok(())
    }
}

/// Commits a transaction, and archives it. A gap in the archive is reported after everything else
/// was archived.
fn archives(db: &Database) -> Result<()> {
    let table = db.open_table::<u64, u64>("of a copy")?;
    let seqno = db.snapshot().len(&table)?;
    db.transact(|tx| tx.insert(&table, &seqno, &seqno))?;
    match db.archive_now() {
        Err(Error::Backup(BackupError::ArchiveGap { .. })) => Ok(()),
        archived => archived.map(drop),
    }
}
