//! Calls of the engine's services: syncs, checkpoints, loads, expiring entries, backups, archives.

use braid::Error;
use braid::backup::BackupError;
use braid::tablespace::TablespaceError;

use super::{Client, Next};

impl Client {
    pub(super) fn sync(&mut self) -> Next {
        let time = self.notes.now();
        match self.db.sync() {
            Ok(()) => {
                self.notes.acknowledge_before(time);
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    pub(super) fn checkpoint(&mut self) -> Next {
        let time = self.notes.now();
        let was_poisoned = self.is_poisoned();
        match self.db.checkpoint() {
            Ok(()) if was_poisoned => self.accepted("a checkpoint"),
            Ok(()) => {
                self.notes.acknowledge_before(time);
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Makes a bulk load, or adds a sorted batch.
    pub(super) fn load(&mut self) -> Next {
        let id = self.next_name();
        if self.rng.u32(..3) == 0 {
            let loaded = self.background.loads.load(&self.db, id, &mut self.rng);
            self.or_complain(loaded)
        } else {
            let added = self.background.batches.add(&self.db, &mut self.rng);
            self.or_failed(added)
        }
    }

    /// Checks what was loaded or added.
    pub(super) fn look_at_loads(&mut self) -> Next {
        let looked = if self.rng.bool() {
            self.background.batches.look(&self.db)
        } else {
            self.background.loads.look(&self.db, &mut self.rng)
        };
        self.or_complain(looked)
    }

    /// Creates, uses or drops the spare tablespace.
    pub(super) fn change_spare(&mut self) -> Next {
        let changed = self.background.spare.change(&self.db, &mut self.rng);
        self.or_failed(changed)
    }

    /// Moves a table to other tablespaces, while this client and others use it.
    pub(super) fn move_table(&mut self) -> Next {
        let (db, moves) = (self.db.clone(), self.background.moves.clone());
        let was_poisoned = self.is_poisoned();
        let (table, route) = match moves.choose(&db, &mut self.rng) {
            Ok(chosen) => chosen,
            Err(error) => return self.failed(&error),
        };
        // Few: a step of a large table is one of hundreds.
        let mut left = self.rng.u32(..6);
        let mut own = Next::Go;
        for target in route {
            let moved = moves.make(&db, &table, &target, || {
                if left > 0 && self.rng.bool() && matches!(own, Next::Go) {
                    left -= 1;
                    own = self.transaction();
                }
                braid_rt::yield_point();
            });
            let next = match moved {
                Ok(()) if was_poisoned => self.accepted("a move"),
                // Other clients move and drop it, or drop the tablespace.
                Err(
                    Error::Tablespace(TablespaceError::NotFound { .. })
                    | Error::Tablespace(TablespaceError::Moving { .. })
                    | Error::TableNotFound { .. }
                    | Error::TableDropped { .. },
                ) => Next::Go,
                moved => self.or_failed(moved),
            };
            if matches!(next, Next::End) {
                return next;
            }
        }
        own
    }

    /// Checks entries with a time to live.
    pub(super) fn read_leases(&mut self) -> Next {
        let Some(table) = &self.tables.leases else {
            return Next::Go;
        };
        let snapshot = self.db.snapshot();
        let checked = self.background.leases.check(&snapshot, &self.tables, table);
        self.or_complain(checked)
    }

    /// Makes a backup.
    pub(super) fn copy(&mut self) -> Next {
        let was_poisoned = self.is_poisoned();
        match self.background.copies.make(&self.db, &mut self.rng) {
            Ok(_) if was_poisoned => self.accepted("a backup"),
            Ok(view) => {
                self.notes.view(view);
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Brings the archive up to date.
    pub(super) fn archive(&mut self) -> Next {
        match self.db.archive_now() {
            // An opening left the archive out.
            Err(Error::Backup(BackupError::ArchiveGap { .. })) => Next::Go,
            archived => self.or_failed(archived),
        }
    }
}
