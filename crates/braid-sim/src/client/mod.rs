//! The clients of a history. Each file but `notes` contains one kind of their actions.

mod body;
mod careless;
mod notes;
mod old_handles;
mod reads;
mod services;
mod transaction;

use std::time::Duration;

use braid::tablespace::TablespaceError;
use braid::{Database, Error, Health, Result, Snapshot};
use fastrand::Rng;

pub(crate) use self::notes::Notes;
use crate::background::{Background, Checked, Reader};
use crate::keys::LONG;
use crate::plan::Plan;
use crate::record::{Key, TxId};
use crate::tables::Tables;

/// Errors that do not end the database after which a client continues.
const ERRORS_MAX: u32 = 20;

/// The beginning of a forbidden error: a logged transaction that lacks space.
const NO_ROOM: &str = "cannot apply a logged transaction: out of space";

/// One client: transactions, snapshots, syncs, checkpoints.
pub(crate) struct Client {
    db: Database,
    tables: Tables,
    plan: Plan,
    notes: Notes,
    background: Background,
    rng: Rng,
    /// The name of the next transaction; the lowest bits identify the client.
    next: TxId,
    errors: u32,
    /// A reader that appears to the engine as another process.
    reader: Option<Reader>,
    /// A snapshot that the client keeps for several actions.
    held: Option<Snapshot>,
}

/// Whether the client continues.
enum Next {
    Go,
    End,
}

impl Client {
    /// Creates a client. No transaction of the history has the name `first`, or `first` plus a
    /// multiple of 16.
    pub(crate) fn new(
        db: Database,
        tables: Tables,
        plan: &Plan,
        notes: Notes,
        background: Background,
        seed: u64,
        first: TxId,
    ) -> Self {
        Self {
            db,
            tables,
            plan: plan.clone(),
            notes,
            background,
            rng: Rng::with_seed(seed),
            next: first,
            errors: 0,
            reader: None,
            held: None,
        }
    }

    /// Runs until the client has done its work, or the database has failed. Returns the next free
    /// name.
    pub(crate) fn run(mut self) -> TxId {
        for _ in 0..self.plan.transactions {
            if matches!(self.act(), Next::End) {
                break;
            }
            if self.rng.u32(..6) == 0 {
                braid_rt::sleep(Duration::from_micros(self.rng.u64(1..200)));
            }
        }
        self.next
    }

    /// Performs one action, usually a transaction.
    fn act(&mut self) -> Next {
        match self.rng.u32(..32) {
            23 | 31 if self.plan.compacts => self.compact(),
            0..3 => self.view(),
            24 | 25 => self.peek(),
            20..23 if self.plan.has_moves() => self.move_table(),
            16..24 if self.plan.tight => self.stir(),
            26..29 if self.plan.short_snapshots => self.hold(),
            3 => self.sync(),
            4 if self.plan.checkpoints => self.checkpoint(),
            5 | 6 if self.plan.named => self.named(),
            7 if self.plan.loads => self.load(),
            8 if self.plan.loads => self.look_at_loads(),
            9 | 10 if self.plan.leases => self.read_leases(),
            11 if self.plan.leases => {
                let removed = self.db.remove_expired();
                self.or_failed(removed)
            }
            12 if self.plan.copies => self.copy(),
            13 if self.plan.archive => self.archive(),
            14 | 15 if self.plan.reopens => self.exercise(),
            29 | 30 if self.plan.spaces > 0 && !self.plan.reopens => self.change_spare(),
            // The record of the round lacks the writes of its other openings.
            16..20 if self.plan.readers && !self.plan.reopens => self.read_elsewhere(),
            _ => self.transaction(),
        }
    }

    /// Compacts the data files, while other clients go on.
    fn compact(&mut self) -> Next {
        let compacted = self.db.compact();
        self.or_failed(compacted)
    }

    /// Decides whether the client continues after an error.
    fn failed(&mut self, error: &Error) -> Next {
        match error {
            Error::Conflict(_) | Error::SelfDeadlock | Error::LockTimeout { .. } => {
                braid_rt::thread::yield_now();
                Next::Go
            }
            // The next transaction may find them.
            Error::NotInMemory(pages) => match self.db.load_pages(pages) {
                Ok(()) => Next::Go,
                Err(error) => self.failed(&error),
            },
            Error::SnapshotTooOld { .. } if self.plan.short_snapshots => {
                braid_rt::thread::yield_now();
                Next::Go
            }
            // The client also tries other operations on the closed database.
            Error::Closed if self.plan.reopens => {
                braid_rt::thread::yield_now();
                Next::Go
            }
            Error::Closed => Next::End,
            // A database with tablespaces.
            Error::Tablespace(TablespaceError::Unsupported { .. }) if self.plan.spaces > 0 => {
                Next::Go
            }
            // Room is reserved before a transaction is logged.
            Error::Poisoned { cause } if cause.contains(NO_ROOM) => {
                self.background
                    .complain(format!("a commit found no room: {cause}"));
                Next::End
            }
            // A failed database shows the durable state for as long as it is open.
            Error::Poisoned { .. }
            | Error::OutOfSpace { .. }
            | Error::Io { .. }
            | Error::Corrupted { .. }
            | Error::Decode { .. }
            | Error::Tablespace(TablespaceError::Failed { .. }) => {
                self.errors += 1;
                braid_rt::sleep(Duration::from_millis(1));
                if self.errors < ERRORS_MAX {
                    Next::Go
                } else {
                    Next::End
                }
            }
            error => panic!("unexpected error: {error}"),
        }
    }

    fn or_failed<T>(&mut self, result: Result<T>) -> Next {
        match result {
            Ok(_) => Next::Go,
            Err(error) => self.failed(&error),
        }
    }

    fn or_complain(&mut self, checked: Checked) -> Next {
        match checked {
            Ok(Ok(())) => Next::Go,
            Ok(Err(violation)) => {
                self.background.complain(violation);
                Next::End
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Whether the database has failed. A failed database accepts no more commits, and still shows
    /// the visible state.
    fn is_poisoned(&self) -> bool {
        matches!(self.db.health(), Health::Poisoned { .. })
    }

    /// Reports an operation that a failed database must not accept.
    fn accepted(&mut self, what: &str) -> Next {
        let violation = format!("I8: {what} after a failure");
        self.background.complain(violation);
        Next::End
    }

    /// Returns a name for a transaction or a load.
    fn next_name(&mut self) -> TxId {
        let name = self.next;
        self.next += 16;
        name
    }

    fn key(&mut self) -> Key {
        // Some keys are hot.
        let keys = self.plan.keys;
        let key = if self.rng.bool() {
            self.rng.u8(..keys.min(3))
        } else {
            self.rng.u8(..keys)
        };
        if self.plan.long && !key.is_multiple_of(4) {
            LONG + key
        } else {
            key
        }
    }

    /// The end of a range that begins at a key.
    fn end_of_range(&mut self, from: Key) -> Key {
        let to = from + self.rng.u8(1..=self.plan.keys);
        if self.plan.long && from < LONG && to.is_multiple_of(2) {
            LONG + to
        } else {
            to
        }
    }

    /// Pauses, so that the database may be closed meanwhile.
    fn linger(&mut self) {
        if self.plan.reopens && self.rng.u32(..3) == 0 {
            braid_rt::sleep(Duration::from_micros(self.rng.u64(1..400)));
        }
    }
}
