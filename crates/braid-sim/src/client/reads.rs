//! Reads outside of transactions: snapshots, single keys, and readers in other processes.

use braid::{Durability, Error, Readable, Result, Snapshot};

use super::{Client, Next};
use crate::record::{Op, View};
use crate::tables::decode;

/// Values in the ballast, and the bytes of each: 1.5 times the pool in all.
const BALLAST: u8 = 24;
const BALLAST_BYTES: usize = 64_000;

impl Client {
    /// Reads a key or a range, through a transaction or a snapshot.
    pub(super) fn read(&mut self, reader: &impl Readable) -> Result<Op> {
        if self.rng.u32(..4) == 0 {
            let from = self.key();
            let to = self.end_of_range(from);
            // A forgotten scan never releases its page, and so the pool's memory is leaked: only in
            // few histories, otherwise a long simulation fills the machine's memory.
            let may_forget = self.plan.careless && self.plan.seed.is_multiple_of(32);
            if let Some(table) = self.tables.single().cloned().filter(|_| may_forget)
                && self.rng.bool()
            {
                return self.scan_and_forget(reader, &table, from, to);
            }
            let seen = self.tables.scan(reader, from, to)?;
            return Ok(Op::Scan(from, to, seen));
        }
        let key = self.key();
        Ok(Op::Get(key, self.tables.get(reader, key)?))
    }

    /// Reads a new snapshot.
    pub(super) fn view(&mut self) -> Next {
        let acknowledged = self.notes.acknowledged();
        let snapshot = self.db.snapshot();
        let seqno = snapshot.seqno();
        // In a poisoned database, acknowledged transactions after one that was not applied
        // completely are invisible.
        if seqno < acknowledged && !self.is_poisoned() {
            return self.or_complain(Ok(Err(format!(
                "a snapshot at {seqno} lacks transaction {acknowledged}, which was acknowledged before it"
            ))));
        }
        self.look(&snapshot)
    }

    /// Reads an old snapshot, which may have ended.
    pub(super) fn hold(&mut self) -> Next {
        let snapshot = match self.held.take() {
            Some(snapshot) => snapshot,
            None => self.db.snapshot(),
        };
        let next = self.look(&snapshot);
        if self.rng.u32(..8) > 0 {
            self.held = Some(snapshot);
        }
        next
    }

    /// Reads single keys at the visible seqno; if the visible seqno is unchanged afterwards, the
    /// reads belong to one state.
    pub(super) fn peek(&mut self) -> Next {
        let seqno = self.db.snapshot().seqno();
        let key = self.key();
        let seen = match self.db.get(self.tables.of(key), &key) {
            Ok(seen) => seen,
            Err(error) => return self.failed(&error),
        };
        if self.db.snapshot().seqno() == seqno {
            let ops = vec![Op::Get(key, seen.map(|bytes| decode(&bytes)))];
            self.notes.view(View { seqno, ops });
        }
        Next::Go
    }

    /// Reads a part of the ballast, creating the ballast if it is missing.
    pub(super) fn stir(&mut self) -> Next {
        let Some(table) = self.tables.ballast.clone() else {
            return Next::Go;
        };
        let stirred = (0..6).try_for_each(|_| {
            let key = self.rng.u8(..BALLAST);
            if self.db.get_with(&table, &key, |bytes| bytes.is_some())? {
                return Ok(());
            }
            let mut tx = self.db.begin();
            tx.set_durability(Durability::None);
            tx.insert(&table, &key, &vec![key; BALLAST_BYTES][..])?;
            tx.commit().map(drop)
        });
        self.or_failed(stirred)
    }

    /// Reads a named snapshot, which other clients may also read while it has its name.
    pub(super) fn named(&mut self) -> Next {
        let name = ["monday", "tuesday"][self.rng.usize(..2)];
        let snapshot = match self.rng.u32(..8) {
            0 => {
                self.db.drop_snapshot(name);
                return Next::Go;
            }
            1..3 => self.db.create_snapshot(name),
            _ => self.db.open_snapshot(name),
        };
        match snapshot {
            Ok(snapshot) => self.look(&snapshot),
            Err(Error::SnapshotExists { .. } | Error::SnapshotNotFound { .. }) => Next::Go,
            Err(error) => self.failed(&error),
        }
    }

    /// Reads the database as another process does, then also its earlier snapshot.
    pub(super) fn read_elsewhere(&mut self) -> Next {
        let acknowledged = self.notes.acknowledged();
        let looked = self.look_elsewhere(acknowledged);
        match looked {
            Ok(Ok(view)) => {
                self.notes.view(view);
                Next::Go
            }
            Ok(Err(violation)) => self.or_complain(Ok(Err(violation))),
            Err(Error::TableNotFound { .. } | Error::Locked { .. }) => Next::Go,
            Err(error)
                if !self.plan.media_faults && !self.background.readers.is_excused(&error) =>
            {
                self.or_complain(Ok(Err(format!("a reader's state is torn: {error}"))))
            }
            Err(error) => {
                self.reader = None;
                self.failed(&error)
            }
        }
    }

    fn look_elsewhere(&mut self, acknowledged: u64) -> Result<std::result::Result<View, String>> {
        let ended = self.rng.u32(..6) == 0;
        let mut reader = match self.reader.take().filter(|_| !ended) {
            Some(reader) => reader,
            None => self.background.readers.open()?,
        };
        if let Err(violation) = reader.continue_reading(acknowledged, &mut self.rng)? {
            return Ok(Err(violation));
        }
        let own = std::mem::replace(&mut self.tables, reader.tables.clone());
        let ops = (0..self.rng.u32(1..4)).map(|_| self.read(&reader.snapshot));
        let ops: Result<Vec<Op>> = ops.collect();
        self.tables = own;
        let seqno = reader.snapshot.seqno();
        self.reader = Some(reader);
        Ok(Ok(View { seqno, ops: ops? }))
    }

    fn look(&mut self, snapshot: &Snapshot) -> Next {
        let mut ops = Vec::new();
        for _ in 0..self.rng.u32(1..4) {
            match self.read(snapshot) {
                Ok(op) => ops.push(op),
                // What it read before is the snapshot's state.
                Err(Error::SnapshotTooOld { .. }) if self.plan.short_snapshots => break,
                Err(error) => return self.failed(&error),
            }
            braid_rt::yield_point();
            self.linger();
        }
        let seqno = snapshot.seqno();
        self.notes.view(View { seqno, ops });
        Next::Go
    }
}
