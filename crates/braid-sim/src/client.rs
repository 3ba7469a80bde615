//! The clients of a history, and the notes that they take.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use std::collections::BTreeSet;

use braid::backup::BackupError;
use braid::{
    Bytes, Compression, Database, Durability, Error, Health, Isolation, Protocol, Readable, Result,
    Snapshot, Table, TableOptions, Ticket, Transaction, TransactionOptions,
};
use braid_rt::{Deliberate, panic_deliberately};
use fastrand::Rng;

use crate::background::{Background, Checked, Reader};
use crate::check::Violation;
use crate::keys::{LONG, TableKey};
use crate::plan::Plan;
use crate::record::{Found, Key, Op, Outcome, Round, State, Tx, TxId, Version, View};

/// Longest list of writers in a value.
const LIST_MAX: usize = 5;

/// Errors that do not end the database after which a client continues.
const ERRORS_MAX: u32 = 20;

/// The beginning of a forbidden error: a logged transaction that lacks space.
const NO_ROOM: &str = "cannot apply a logged transaction: out of space";

/// The tables of a history.
#[derive(Clone)]
pub(crate) struct Tables {
    values: Table<TableKey, Bytes>,
    /// One key for each transaction that wrote.
    marks: Table<u64, Bytes>,
    /// Entries with a time to live, see [`crate::background`].
    leases: Option<Table<u64, Bytes>>,
    /// More data than the pool holds: reading it evicts everything else.
    ballast: Option<Table<u8, Bytes>>,
}

/// Values in the ballast, and the bytes of each: 1.5 times the pool in all.
const BALLAST: u8 = 24;
const BALLAST_BYTES: usize = 64_000;

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

    pub(crate) fn leases(&self) -> Option<&Table<u64, Bytes>> {
        self.leases.as_ref()
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

    /// A transaction that reads everything, and writes one value again as it is.
    pub(crate) fn commit_alone(&self, db: &Database) -> Result<()> {
        let mut tx = db.begin();
        let state = scan(&tx, &self.values, 0, u8::MAX)?;
        let absent = tx.get(&self.values, &u8::MAX)?;
        debug_assert!(absent.is_none(), "no client writes the last key");
        if let Some((key, version)) = state.first() {
            tx.insert(&self.values, key, &version.encode()[..])?;
        }
        tx.commit().map(drop)
    }

    /// Reads everything in a snapshot.
    pub(crate) fn found_in(&self, snapshot: &Snapshot) -> Result<Found> {
        let state = scan(snapshot, &self.values, 0, u8::MAX)?;
        Ok(Found {
            state: state.into_iter().collect::<State>(),
            marks: self.marks(snapshot)?,
        })
    }
}

fn decode(bytes: &[u8]) -> Version {
    Version::decode(bytes).unwrap_or_else(|| panic!("a value that nobody wrote: {bytes:02x?}"))
}

fn scan(
    reader: &impl Readable,
    table: &Table<TableKey, Bytes>,
    from: Key,
    to: Key,
) -> Result<Vec<(Key, Version)>> {
    let entries = reader.range(table, from..to)?;
    entries
        .map(|entry| entry.map(|(key, bytes)| (key.0, decode(&bytes))))
        .collect()
}

/// The notes of all clients. No task is interrupted while it holds their lock.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<NotesInner>>);

#[derive(Default)]
struct NotesInner {
    round: Round,
    clock: u64,
    tickets: Vec<(usize, Ticket)>,
}

impl Notes {
    pub(crate) fn new(base: State) -> Self {
        let notes = Self::default();
        notes.lock().round.base = base;
        notes
    }

    fn lock(&self) -> MutexGuard<'_, NotesInner> {
        self.0.lock().expect("nobody panics while it is locked")
    }

    fn now(&self) -> u64 {
        let mut notes = self.lock();
        notes.clock += 1;
        notes.clock
    }

    /// Takes the round, after polling the tickets that no client has polled.
    pub(crate) fn finish(&self) -> Round {
        let tickets = std::mem::take(&mut self.lock().tickets);
        let durable = tickets.iter().filter(|(_, ticket)| ticket.is_durable());
        let durable: Vec<usize> = durable.map(|(place, _)| *place).collect();
        // Dropping tickets may flush, so not under the lock.
        drop(tickets);
        let mut round = std::mem::take(&mut self.lock().round);
        for place in durable {
            round.txs[place].acknowledged = true;
        }
        round
    }

    /// The transaction at this place is durable. Does nothing once the round is over.
    fn acknowledge(&self, place: usize) {
        if let Some(tx) = self.lock().round.txs.get_mut(place) {
            tx.acknowledged = true;
        }
    }

    /// As [`Notes::finish`], after the database was closed: every ticket then has an outcome.
    pub(crate) fn finish_closed(&self) -> std::result::Result<Round, Violation> {
        let tickets = std::mem::take(&mut self.lock().tickets);
        let open = tickets
            .iter()
            .find(|(_, ticket)| ticket.try_wait().is_none());
        if let Some((place, _)) = open {
            let id = self.lock().round.txs[*place].id;
            return Err(format!("I9: the ticket of {id} has no answer after close"));
        }
        self.lock().tickets = tickets;
        Ok(self.finish())
    }

    /// Records the contents of a snapshot.
    pub(crate) fn view(&self, view: View) {
        self.lock().round.views.push(view);
    }

    /// The greatest number that was acknowledged.
    fn acknowledged(&self) -> u64 {
        let notes = self.lock();
        let acknowledged = notes.round.txs.iter().filter(|tx| tx.acknowledged);
        let seqno = |tx: &Tx| match tx.outcome {
            Outcome::Committed(seqno) => seqno,
            _ => 0,
        };
        acknowledged.map(seqno).max().unwrap_or(0)
    }

    /// Everything that had returned before `time` is durable.
    pub(crate) fn acknowledge_before(&self, time: u64) {
        for tx in &mut self.lock().round.txs {
            if tx.ended < time && matches!(tx.outcome, Outcome::Committed(_)) {
                tx.acknowledged = true;
            }
        }
    }

    /// Everything is durable.
    pub(crate) fn acknowledge_all(&self) {
        self.acknowledge_before(u64::MAX);
    }
}

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
}

/// A transaction that is ready to commit, or has failed.
struct Started {
    tx: Transaction,
    id: TxId,
    durability: Durability,
    /// Whether the database had failed before it began.
    was_poisoned: bool,
    begun: u64,
    ops: Vec<Op>,
    body: Result<()>,
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
        }
    }

    /// Runs until the client has done its work, or the database has failed. Returns the next free
    /// name.
    pub(crate) fn run(mut self) -> TxId {
        for _ in 0..self.plan.transactions {
            let next = match self.rng.u32(..32) {
                0..3 => self.view(),
                24 | 25 => self.peek(),
                16..24 if self.plan.tight => self.stir(),
                3 => self.sync(),
                4 if self.plan.checkpoints => self.checkpoint(),
                5 | 6 if self.plan.named => self.named(),
                7 if self.plan.loads => self.load(),
                8 if self.plan.loads && self.rng.bool() => {
                    let looked = self.background.batches.look(&self.db);
                    self.or_complain(looked)
                }
                8 if self.plan.loads => {
                    let looked = self.background.loads.look(&self.db, &mut self.rng);
                    self.or_complain(looked)
                }
                9 | 10 if self.plan.leases => self.look_at_leases(),
                11 if self.plan.leases => {
                    let removed = self.db.remove_expired();
                    self.or_failed(removed)
                }
                12 if self.plan.copies => self.copy(),
                13 if self.plan.archive => {
                    match self.db.archive_now() {
                        // An opening left the archive out.
                        Err(Error::Backup(BackupError::ArchiveGap { .. })) => Next::Go,
                        archived => self.or_failed(archived),
                    }
                }
                14 | 15 if self.plan.reopens => self.exercise(),
                // The record of the round lacks the writes of its other openings.
                16..20 if self.plan.readers && !self.plan.reopens => self.read_elsewhere(),
                _ => self.transaction(),
            };
            if matches!(next, Next::End) {
                break;
            }
            if self.rng.u32(..6) == 0 {
                braid_rt::sleep(Duration::from_micros(self.rng.u64(1..200)));
            }
        }
        self.next
    }

    /// Decides whether the client continues after an error.
    fn failed(&mut self, error: &Error) -> Next {
        match error {
            Error::Conflict(_) | Error::SelfDeadlock => {
                braid_rt::thread::yield_now();
                Next::Go
            }
            // The client also tries other operations on the closed database.
            Error::Closed if self.plan.reopens => {
                braid_rt::thread::yield_now();
                Next::Go
            }
            Error::Closed => Next::End,
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
            | Error::Decode { .. } => {
                self.errors += 1;
                braid_rt::sleep(Duration::from_millis(1));
                if self.errors < ERRORS_MAX {
                    Next::Go
                } else {
                    Next::End
                }
            }
            error => panic!("nobody asked for this: {error}"),
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

    fn view(&mut self) -> Next {
        let snapshot = self.db.snapshot();
        self.look(&snapshot)
    }

    /// Reads a part of the ballast, creating the ballast if it is missing.
    fn stir(&mut self) -> Next {
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

    /// Reads single keys at the durable seqno; if the durable seqno is unchanged afterwards, the
    /// reads belong to one state.
    fn peek(&mut self) -> Next {
        let seqno = self.db.durable_seqno();
        let key = self.key();
        let seen = match self.db.get(&self.tables.values, &key) {
            Ok(seen) => seen,
            Err(error) => return self.failed(&error),
        };
        if self.db.durable_seqno() == seqno {
            let ops = vec![Op::Get(key, seen.map(|bytes| decode(&bytes)))];
            self.notes.view(View { seqno, ops });
        }
        Next::Go
    }

    /// Whether the database has failed. A failed database accepts no more commits, and still shows
    /// the durable state.
    fn is_poisoned(&self) -> bool {
        matches!(self.db.health(), Health::Poisoned { .. })
    }

    /// Reports an operation that a failed database must not accept.
    fn accepted(&mut self, what: &str) -> Next {
        let violation = format!("I8: {what} after a failure");
        self.background.complain(violation);
        Next::End
    }

    /// Reads a named snapshot, which other clients may also read while it has its name.
    fn named(&mut self) -> Next {
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
    fn read_elsewhere(&mut self) -> Next {
        // `gsn` acknowledges transactions before snapshots show them.
        let acknowledged = match self.plan.protocol {
            Protocol::Gsn => 0,
            _ => self.notes.acknowledged(),
        };
        let looked = self.look_elsewhere(acknowledged);
        match looked {
            Ok(Ok(view)) => {
                self.notes.lock().round.views.push(view);
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
        if let Err(violation) = reader.go_on(acknowledged, &mut self.rng)? {
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

    fn load(&mut self) -> Next {
        let id = self.next;
        self.next += 16;
        let done = match self.rng.u32(..3) {
            0 => self.background.loads.load(&self.db, id, &mut self.rng),
            _ => self.background.batches.add(&self.db, &mut self.rng),
        };
        self.or_failed(done)
    }

    fn look_at_leases(&mut self) -> Next {
        let Some(table) = self.tables.leases() else {
            return Next::Go;
        };
        let snapshot = self.db.snapshot();
        let checked = self.background.leases.check(&snapshot, &self.tables, table);
        self.or_complain(checked)
    }

    fn copy(&mut self) -> Next {
        let was_poisoned = self.is_poisoned();
        match self.background.copies.make(&self.db, &mut self.rng) {
            Ok(_) if was_poisoned => self.accepted("a backup"),
            Ok(view) => {
                self.notes.lock().round.views.push(view);
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Calls functions that the rest of the plan may not use, on a database that may be closed
    /// meanwhile.
    fn exercise(&mut self) -> Next {
        match self.rng.u32(..5) {
            0 => {
                let copied = self.background.copies.make_of_any_round(&self.db);
                self.or_failed(copied)
            }
            1 => {
                let feed = self.db.feed("left over");
                let acknowledged = feed.and_then(|feed| {
                    self.linger();
                    feed.acknowledge(self.db.position())
                });
                self.or_failed(acknowledged)
            }
            2 => {
                let changes = self.db.changes(self.db.position());
                let next = changes.and_then(|mut changes| {
                    let time = Duration::from_micros(self.rng.u64(1..500));
                    changes.next_within(time)
                });
                match next {
                    // The database keeps log only for feeds.
                    Err(Error::PositionLost { .. }) => Next::Go,
                    next => self.or_failed(next),
                }
            }
            3 => {
                let compacted = self.db.compact();
                self.or_failed(compacted)
            }
            _ => self.load_in_vain(),
        }
    }

    /// Starts a bulk load that is dropped before its table has a name.
    fn load_in_vain(&mut self) -> Next {
        let name = format!("left-{}", self.next);
        self.next += 16;
        let mut load = || {
            let mut loader = self.db.bulk_load::<u64, Bytes>(&name)?;
            for key in 0..self.rng.u64(1..600) {
                loader.insert(&key, &[7; 300][..])?;
                if key % 64 == 0 {
                    braid_rt::sleep(Duration::from_micros(self.rng.u64(1..60)));
                }
            }
            Ok(())
        };
        let loaded = load();
        self.or_failed(loaded)
    }

    /// Pauses, so that the database may be closed meanwhile.
    fn linger(&mut self) {
        if self.plan.reopens && self.rng.u32(..3) == 0 {
            braid_rt::sleep(Duration::from_micros(self.rng.u64(1..400)));
        }
    }

    fn look(&mut self, snapshot: &Snapshot) -> Next {
        let mut ops = Vec::new();
        for _ in 0..self.rng.u32(1..4) {
            match self.read(snapshot) {
                Ok(op) => ops.push(op),
                Err(error) => return self.failed(&error),
            }
            braid_rt::yield_point();
            self.linger();
        }
        let seqno = snapshot.seqno();
        self.notes.lock().round.views.push(View { seqno, ops });
        Next::Go
    }

    fn sync(&mut self) -> Next {
        let time = self.notes.now();
        match self.db.sync() {
            Ok(()) => {
                self.notes.acknowledge_before(time);
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    fn checkpoint(&mut self) -> Next {
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

    fn read(&mut self, reader: &impl Readable) -> Result<Op> {
        if self.rng.u32(..4) == 0 {
            let from = self.key();
            let to = self.end_of_range(from);
            // A forgotten scan never releases its page, and so the pool's memory is leaked: only in
            // few histories, otherwise a long simulation fills the machine's memory.
            let may_forget = self.plan.careless && self.plan.seed.is_multiple_of(32);
            if may_forget && self.rng.bool() {
                return self.scan_and_forget(reader, from, to);
            }
            let seen = scan(reader, &self.tables.values, from, to)?;
            return Ok(Op::Scan(from, to, seen));
        }
        let key = self.key();
        let seen = reader.get(&self.tables.values, &key)?;
        Ok(Op::Get(key, seen.map(|bytes| decode(&bytes))))
    }

    /// Reads the first entries of a range, and forgets the scan.
    fn scan_and_forget(&mut self, reader: &impl Readable, from: Key, to: Key) -> Result<Op> {
        let entries = self.rng.usize(1..4);
        let mut range = reader.range(&self.tables.values, from..to)?;
        let first = range.by_ref().take(entries);
        let seen = first.map(|entry| entry.map(|(key, bytes)| (key.0, decode(&bytes))));
        let seen = seen.collect::<Result<Vec<_>>>()?;
        std::mem::forget(range);
        braid_rt::coverage_point("a scan is forgotten");
        let to = match seen.last() {
            Some((last, _)) if seen.len() == entries => last + 1,
            _ => to,
        };
        Ok(Op::Scan(from, to, seen))
    }

    /// A transaction's reads and writes, until it is ready to commit.
    fn body(&mut self, tx: &mut Transaction, id: TxId, ops: &mut Vec<Op>) -> Result<()> {
        let begun = braid_rt::wall_clock();
        if self.plan.seesaw {
            return self.seesaw(tx, id, ops);
        }
        let table = self.tables.values.clone();
        let reads_only = self.rng.u32(..6) == 0;
        let often = if self.plan.reopens { 4 } else { 16 };
        if !reads_only && self.rng.u32(..often) == 0 {
            self.many(tx, id, ops)?;
        }
        if id.is_multiple_of(4) {
            tx.prefetch::<TableKey, _, Key>(&table, &[0, 1, 2])?;
        }
        for _ in 0..self.rng.u32(1..6) {
            match self.rng.u32(..10) {
                0..4 => ops.push(self.read(tx)?),
                _ if reads_only => ops.push(self.read(tx)?),
                4 => {
                    let key = self.key();
                    // Removing a missing key is a read.
                    ops.push(if tx.remove(&table, &key)? {
                        Op::Remove(key)
                    } else {
                        Op::Get(key, None)
                    });
                }
                5 => {
                    // Locked and not written.
                    let key = self.key();
                    let seen = tx.get_for_update(&table, &key)?;
                    ops.push(Op::Get(key, seen.map(|bytes| decode(&bytes))));
                }
                6..8 => {
                    let key = self.key();
                    // Appends to the version that it reads, with or without a lock from then on.
                    let old = if self.rng.bool() {
                        tx.get_for_update(&table, &key)?
                    } else {
                        tx.get(&table, &key)?
                    };
                    let old = old.map(|bytes| decode(&bytes));
                    ops.push(Op::Get(key, old.clone()));
                    let mut writers = old.map_or(Vec::new(), |version| version.writers);
                    if writers.last() != Some(&id) {
                        writers.push(id);
                    }
                    let writers = writers.split_off(writers.len().saturating_sub(LIST_MAX));
                    self.put(tx, key, writers, ops)?;
                }
                _ => {
                    let key = self.key();
                    self.put(tx, key, vec![id], ops)?;
                }
            }
            if self.plan.savepoints && self.rng.u32(..3) == 0 {
                self.detour(tx, id)?;
            }
            if self.plan.careless && self.rng.u32(..4) == 0 {
                self.stumble(tx);
            }
            braid_rt::yield_point();
        }
        if ops
            .iter()
            .any(|op| matches!(op, Op::Put(..) | Op::Remove(_)))
        {
            // Marks the versions that their own writer overwrote as intermediate.
            let mut last: std::collections::BTreeMap<Key, Option<Version>> = Default::default();
            for op in ops.iter() {
                match op {
                    Op::Put(key, version) => last.insert(*key, Some(version.clone())),
                    Op::Remove(key) => last.insert(*key, None),
                    _ => None,
                };
            }
            for (key, version) in last {
                if let Some(mut version) = version.filter(|version| version.intermediate) {
                    version.intermediate = false;
                    tx.insert(&table, &key, &version.encode()[..])?;
                    ops.push(Op::Put(key, version));
                }
            }
            tx.insert(&self.tables.marks, &id, &b""[..])?;
            if let Some(leases) = self.tables.leases()
                && self.rng.bool()
            {
                self.background.leases.write(tx, leases, id, begun)?;
            }
        }
        Ok(())
    }

    /// Key 1 is inserted with a new key 2 and removed with a new key 0. So a reader that saw key 1
    /// missing, with an old 0 and a new 2, saw a state that never existed; and a purged removal
    /// leaves no trace that could reveal this.
    fn seesaw(&mut self, tx: &mut Transaction, id: TxId, ops: &mut Vec<Op>) -> Result<()> {
        let table = self.tables.values.clone();
        match self.rng.u32(..6) {
            kind @ 0..3 => {
                for key in 0..3_u8 {
                    if kind == 0 && key == 1 {
                        // Validated after the other reads, whose numbers may be old by then.
                        let seen = scan(tx, &table, 1, 2)?;
                        ops.push(Op::Scan(1, 2, seen));
                        continue;
                    }
                    let seen = tx.get(&table, &key)?;
                    ops.push(Op::Get(key, seen.map(|bytes| decode(&bytes))));
                    braid_rt::yield_point();
                }
                return Ok(());
            }
            3 => {
                self.put(tx, 1, vec![id], ops)?;
                self.put(tx, 2, vec![id], ops)?;
            }
            _ => {
                self.put(tx, 0, vec![id], ops)?;
                if tx.remove(&table, &1)? {
                    ops.push(Op::Remove(1));
                } else {
                    ops.push(Op::Get(1, None));
                }
            }
        }
        tx.insert(&self.tables.marks, &id, &b""[..]).map(drop)
    }

    /// Writes, then rolls the writes back: no transaction may ever see them.
    fn detour(&mut self, tx: &mut Transaction, id: TxId) -> Result<()> {
        let savepoint = tx.savepoint();
        for _ in 0..self.rng.u32(1..4) {
            let version = Version {
                writers: vec![id; LIST_MAX],
                intermediate: true,
            };
            let key = self.key();
            tx.insert(&self.tables.values, &key, &version.encode()[..])?;
        }
        tx.rollback_to(&savepoint)
    }

    /// Calls the engine with a closure that panics, if it is called, and continues the transaction
    /// as if nothing had happened.
    fn stumble(&mut self, tx: &mut Transaction) {
        let (table, key, which) = (self.tables.values.clone(), self.key(), self.rng.u32(..4));
        let call = AssertUnwindSafe(|| match which {
            0 => drop(tx.get_with(&table, &key, |_| panic_deliberately())),
            1 => drop(tx.fetch_update(&table, &key, |_| panic_deliberately())),
            2 => drop(tx.retain(&table, key.., |_, _| panic_deliberately())),
            _ => drop(self.db.get_with(&table, &key, |_| panic_deliberately())),
        });
        match catch_unwind(call) {
            // The call failed, or found nothing to show.
            Ok(()) => {}
            Err(panic) if panic.is::<Deliberate>() => braid_rt::coverage_point("a closure panics"),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Writes so many keys that the transaction acquires its locks in the commit.
    fn many(&mut self, tx: &mut Transaction, id: TxId, ops: &mut Vec<Op>) -> Result<()> {
        let (first, second) = (self.key(), self.key());
        let version = Version {
            writers: vec![id; LIST_MAX],
            intermediate: true,
        };
        let bytes = version.encode();
        for n in 0..70 {
            let key = if n % 2 == 0 { first } else { second };
            tx.insert(&self.tables.values, &key, &bytes[..])?;
        }
        self.put(tx, first, vec![id], ops)?;
        self.put(tx, second, vec![id], ops)
    }

    fn put(
        &mut self,
        tx: &mut Transaction,
        key: Key,
        writers: Vec<TxId>,
        ops: &mut Vec<Op>,
    ) -> Result<()> {
        let version = Version {
            writers,
            intermediate: !self.plan.seesaw && self.rng.u32(..5) == 0,
        };
        tx.insert(&self.tables.values, &key, &version.encode()[..])?;
        ops.push(Op::Put(key, version));
        Ok(())
    }

    fn transaction(&mut self) -> Next {
        let started = self.start();
        if self.plan.careless && self.rng.u32(..4) == 0 {
            // Another transaction of the same thread, within the first.
            let inside = self.start();
            if let Next::End = self.conclude(inside) {
                started.tx.abort();
                return Next::End;
            }
        }
        self.conclude(started)
    }

    /// Begins a transaction, and performs its operations.
    fn start(&mut self) -> Started {
        let id = self.next;
        self.next += 16;
        let durability = match self.rng.u32(..16) {
            0 => Durability::None,
            1 => Durability::Buffered(Duration::from_micros(self.rng.u64(1..500))),
            _ => Durability::Immediate,
        };
        let options = TransactionOptions {
            isolation: if self.plan.snapshot {
                Isolation::Snapshot
            } else {
                Isolation::Serializable
            },
            durability,
        };
        let was_poisoned = self.is_poisoned();
        let durable_seqno = self.db.durable_seqno();
        let begun = self.notes.now();
        let mut tx = self.db.begin_with(options);
        let mut ops = Vec::new();
        let body = self.body(&mut tx, id, &mut ops);
        if was_poisoned {
            self.seen_after_failure(durable_seqno, &ops);
        }
        self.linger();
        Started {
            tx,
            id,
            durability,
            was_poisoned,
            begun,
            ops,
            body,
        }
    }

    fn conclude(&mut self, started: Started) -> Next {
        let Started {
            tx,
            id,
            durability,
            was_poisoned,
            begun,
            ops,
            body,
        } = started;
        let mut next = Next::Go;
        let mut ticket = None;
        let mut acknowledged = false;
        let mut outcome = Outcome::Aborted;
        match body {
            Err(error) => {
                next = self.failed(&error);
                tx.abort();
            }
            Ok(()) if self.rng.u32(..16) == 0 => tx.abort(),
            Ok(()) if self.rng.u32(..3) == 0 => match tx.commit() {
                Ok(commit) => {
                    outcome = Outcome::Committed(commit.seqno());
                    acknowledged = durability == Durability::Immediate;
                }
                Err(error) => (outcome, next) = self.commit_failed(&error),
            },
            Ok(()) => match tx.commit_async() {
                Ok(granted) => {
                    outcome = Outcome::Committed(granted.seqno());
                    ticket = Some(granted);
                }
                Err(error) => (outcome, next) = self.commit_failed(&error),
            },
        }
        if was_poisoned && outcome != Outcome::Aborted {
            let wrote = ops
                .iter()
                .any(|op| matches!(op, Op::Put(..) | Op::Remove(_)));
            match outcome {
                Outcome::Committed(_) if wrote => return self.accepted("a commit"),
                Outcome::Committed(_) => {}
                // It was refused before it was logged.
                _ => outcome = Outcome::Aborted,
            }
        }
        let ended = self.notes.now();
        let place = {
            let mut notes = self.notes.lock();
            let snapshot = self.plan.snapshot;
            notes.round.txs.push(Tx {
                id,
                ops,
                outcome,
                acknowledged,
                snapshot,
                begun,
                ended,
            });
            notes.round.txs.len() - 1
        };
        if let Some(ticket) = ticket {
            return self.settle(place, ticket);
        }
        next
    }

    /// Records that a transaction begun after a failure saw the state at the durable seqno, whether
    /// it commits or not.
    fn seen_after_failure(&self, seqno: u64, ops: &[Op]) {
        let reads = ops
            .iter()
            .take_while(|op| matches!(op, Op::Get(..) | Op::Scan(..)));
        let ops: Vec<Op> = reads.cloned().collect();
        if self.db.durable_seqno() == seqno {
            self.notes.view(View { seqno, ops });
        }
    }

    /// Waits for a ticket, or keeps it to poll it later.
    fn settle(&mut self, place: usize, ticket: Ticket) -> Next {
        if self.plan.careless && self.rng.u32(..3) == 0 {
            let (notes, panics) = (self.notes.clone(), self.rng.bool());
            let durable = move || notes.acknowledge(place);
            self.background.callbacks.register(ticket, panics, durable);
            return Next::Go;
        }
        if self.rng.bool() {
            self.notes.lock().tickets.push((place, ticket));
            return Next::Go;
        }
        match ticket.wait() {
            Ok(_) => {
                self.notes.lock().round.txs[place].acknowledged = true;
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    fn commit_failed(&mut self, error: &Error) -> (Outcome, Next) {
        let next = self.failed(error);
        let known = match error {
            // Closing waits for those that are logged.
            Error::Conflict(_) | Error::SelfDeadlock | Error::Closed => true,
            // Refused before it was logged, unless this error ended the database.
            Error::OutOfSpace { .. } => !matches!(self.db.health(), Health::Poisoned { .. }),
            _ => false,
        };
        let outcome = if known {
            Outcome::Aborted
        } else {
            Outcome::InDoubt
        };
        (outcome, next)
    }
}
