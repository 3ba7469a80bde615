//! The change feed: committed, durable transactions in commit order.
//!
//! A reader tails the log ([`braid_log::TailReader`]), so commits do no extra work. A reader
//! returns only transactions up to the durable seqno: like the contents of a snapshot (I4), they
//! exist after every crash.

mod feed;
mod position;

pub use feed::Feed;
pub(crate) use feed::load_feeds;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use braid_log::{LogError, SeqNo, TailReader};
use braid_rt::atomic::{AtomicU64, Ordering};
use bytes::Bytes;

use crate::base::position::Position;
use crate::base::table_options::TableOptions;
use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::format::redo;
use crate::schema::entry::{CATALOG_ID, copied_table, loaded_table, table_of_entry};
use crate::schema::value_format::ValueFormat;
use crate::services::instance::Instance;
use crate::services::retention::Retention;

/// Maximum number of bytes of transactions to read ahead.
const READ_BYTES: usize = 256 << 10;

/// Change of one key by a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Number of the table, which stays when the table is renamed, and changes when it
    /// [moves](crate::Database::move_table) to another tablespace.
    pub table_id: u32,
    /// Name of the table; `None` if it was dropped before the change was read.
    pub table: Option<Arc<str>>,
    /// The key, encoded as by [`crate::Key`].
    pub key: Bytes,
    /// The new value, encoded as by [`crate::Value`]; `None` if the key was removed. If the table
    /// was dropped before the change was read, the value is in its stored form.
    pub value: Option<Bytes>,
}

/// Committed transaction with its writes, each key once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeSet {
    /// Sequence number of the transaction, that of its [`crate::Commit`].
    pub seqno: u64,
    /// Position after the transaction.
    pub position: Position,
    /// Writes to tables. The engine's own writes, such as names of tables, are not included.
    pub changes: Vec<Change>,
    /// Tables that became visible with the transaction and were
    /// [bulk-loaded](crate::Database::bulk_load) without the log: their entries are not reported as
    /// changes; read them from a snapshot.
    pub loaded: Vec<Arc<str>>,
}

/// Reader of committed, durable transactions in commit order, from
/// [`Database::changes`](crate::Database::changes).
///
/// As an iterator it ends when no further transaction is durable, and continues when there is one;
/// [`Changes::next_within`] waits. While it is open, the log that it has not read is kept, up to
/// [`crate::Builder::feed_log_bytes`].
pub struct Changes {
    instance: Arc<Instance>,
    tail: TailReader,
    /// Position of `tail`: less than `read_to` at first, because a tail starts at a checkpoint
    /// position.
    tail_at: SeqNo,
    ahead: VecDeque<(SeqNo, Vec<u8>)>,
    /// Everything up to this sequence number was read into `ahead`.
    read_to: SeqNo,
    position: SeqNo,
    /// Sequence number after which log is kept for this reader, see
    /// [`crate::services::retention::Retention`].
    held: Arc<AtomicU64>,
    /// Tables of changes so far; `None` for dropped tables. A table's number is never reused.
    tables: HashMap<u32, Option<TableInfo>>,
    /// Number of scans of the whole catalog.
    catalog_scans: u64,
}

/// Name and value format of a table.
#[derive(Clone)]
struct TableInfo {
    name: Arc<str>,
    value_format: Option<ValueFormat>,
}

impl TableInfo {
    fn new(name: String, options: TableOptions) -> Self {
        Self {
            name: name.into(),
            value_format: options.value_format(),
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns the position after the transaction with this sequence number.
    pub(crate) fn position(&self, seqno: SeqNo) -> Position {
        Position {
            identity: self.log.identity(),
            seqno,
        }
    }

    fn check_position(&self, position: Position) -> Result<()> {
        let is_own = position.identity == self.log.identity();
        if is_own && position.seqno <= self.log.durable_seqno() {
            return Ok(());
        }
        Err(Error::ForeignPosition { position })
    }
}

fn position_lost(retention: &Retention, asked: SeqNo) -> Error {
    Error::PositionLost {
        asked: asked.get(),
        oldest: retention.oldest().get(),
    }
}

impl Changes {
    pub(crate) fn open(instance: &Arc<Instance>, from: Position) -> Result<Self> {
        instance.engine.check_open()?;
        instance.engine.check_position(from)?;
        let seqno = from.seqno;
        let lost = || position_lost(&instance.retention, seqno);
        if let Some(view) = instance.view.get() {
            view.pin_log();
        }
        let held = instance.retention.add_reader(seqno).ok_or_else(lost)?;
        let tail = tail(instance, seqno)?;
        Ok(Self {
            instance: instance.clone(),
            tail,
            tail_at: SeqNo::NONE,
            ahead: VecDeque::new(),
            read_to: seqno,
            position: seqno,
            held,
            tables: HashMap::new(),
            catalog_scans: 0,
        })
    }

    /// Returns the position after the transactions returned so far, and after those without changes
    /// that followed them.
    pub fn position(&self) -> Position {
        self.instance.engine.position(self.position)
    }

    /// Returns the next transaction, waiting for one at most for `time`.
    ///
    /// # Errors
    /// As the iterator's items; [`Error::Poisoned`](crate::Error::Poisoned) if no transaction
    /// follows because a write failed, and [`Error::Closed`](crate::Error::Closed).
    pub fn next_within(&mut self, time: Duration) -> Result<Option<ChangeSet>> {
        let deadline = braid_rt::now_plus(time);
        loop {
            if let Some(next) = self.next() {
                return next.map(Some);
            }
            let instance = self.instance.clone();
            if !instance
                .notifier
                .wait(&instance.engine, self.position, deadline)?
            {
                return Ok(None);
            }
        }
    }

    fn advance(&mut self) -> Result<Option<ChangeSet>> {
        self.instance.engine.check_open()?;
        loop {
            while let Some((seqno, payload)) = self.ahead.pop_front() {
                self.go_to(seqno);
                let set = self.decode(seqno, payload)?;
                if !set.changes.is_empty() || !set.loaded.is_empty() {
                    return Ok(Some(set));
                }
            }
            self.go_to(self.read_to);
            if self.read_to >= self.instance.engine.log.durable_seqno() || !self.read()? {
                return Ok(None);
            }
        }
    }

    fn go_to(&mut self, seqno: SeqNo) {
        self.position = seqno;
        // Relaxed: a thread that sees the store late keeps more log.
        self.held.store(seqno.get(), Ordering::Relaxed);
    }

    /// Reads ahead. Returns whether the tail advanced.
    fn read(&mut self) -> Result<bool> {
        let (ahead, after) = (&mut self.ahead, self.read_to);
        let read = self.tail.read(READ_BYTES, &mut |log_record| {
            let skipped = log_record.seqno.get() % 16 == 5 && braid_rt::mutant!("feed_skips");
            if log_record.seqno > after && !skipped {
                ahead.push_back((log_record.seqno, log_record.payload.to_vec()));
            }
        });
        let to = match read {
            Ok(to) => to,
            Err(LogError::Released { .. }) => {
                self.ahead.clear();
                self.tail = tail(&self.instance, after)?;
                self.tail_at = SeqNo::NONE;
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        self.read_to = to.max(after);
        Ok(std::mem::replace(&mut self.tail_at, to) != to)
    }

    fn decode(&mut self, seqno: SeqNo, payload: Vec<u8>) -> Result<ChangeSet> {
        let payload = Bytes::from(payload);
        let mut changes = Vec::new();
        let mut loaded = Vec::new();
        let mut copied = None;
        for redo in redo::decode(&payload) {
            let redo = redo?;
            let key = payload.slice_ref(redo.key);
            let value = redo.value.map(|value| payload.slice_ref(value));
            if redo.table != CATALOG_ID {
                changes.push(Change {
                    table_id: redo.table,
                    table: None,
                    key,
                    value,
                });
            } else if let Some(value) = value {
                if let Some((id, name, options)) = table_of_entry(&key, &value) {
                    self.tables.insert(id, Some(TableInfo::new(name, options)));
                }
            } else {
                loaded.extend(loaded_table(&key));
                copied = copied.or(copied_table(&key));
            }
        }
        if copied.is_some() && !braid_rt::mutant!("report_copies_as_changes") {
            // The records of a table that moves, which were reported when they were written.
            changes.retain(|change: &Change| Some(change.table_id) != copied);
        }
        for change in &mut changes {
            if let Some(table) = self.table(change.table_id)? {
                change.table = Some(table.name.clone());
                if let (Some(value_format), Some(stored)) = (&table.value_format, &change.value) {
                    // The value as it was written, even if it has expired.
                    change.value = value_format.open(stored, || 0)?;
                }
            }
        }
        let mut names = Vec::new();
        for id in loaded {
            names.extend(self.table(id)?.map(|table| table.name.clone()));
        }
        Ok(ChangeSet {
            seqno: seqno.get(),
            position: self.instance.engine.position(seqno),
            changes,
            loaded: names,
        })
    }

    /// Returns a table, with the name it had when the newest change read so far was committed, as
    /// far as known.
    fn table(&mut self, id: u32) -> Result<Option<&TableInfo>> {
        if !self.tables.contains_key(&id) {
            self.catalog_scans += 1;
            for (id, name, options) in Catalog::of(&self.instance.engine).tables()? {
                let info = || Some(TableInfo::new(name, options));
                self.tables.entry(id).or_insert_with(info);
            }
            for (former, present) in Catalog::of(&self.instance.engine).former_numbers(|_| true)? {
                if let Some(Some(table)) = self.tables.get(&present) {
                    let table = table.clone();
                    self.tables.entry(former).or_insert(Some(table));
                }
            }
            if !braid_rt::mutant!("look_for_dropped_tables_again") {
                self.tables.entry(id).or_insert(None);
            }
        }
        Ok(self.tables.get(&id).and_then(Option::as_ref))
    }
}

/// Tails the log from a checkpoint position before `seqno`.
fn tail(instance: &Instance, seqno: SeqNo) -> Result<TailReader> {
    let start = instance.retention.position_before(seqno);
    let start = start.ok_or_else(|| position_lost(&instance.retention, seqno))?;
    instance
        .engine
        .log
        .tail(&start)
        .map_err(|error| match error {
            LogError::Released { .. } => position_lost(&instance.retention, seqno),
            error => error.into(),
        })
}

/// # Errors
/// The items are [`Error::PositionLost`](crate::Error::PositionLost) if the reader was too slow and
/// its log is gone, [`Error::Corrupted`](crate::Error::Corrupted), [`Error::Io`](crate::Error::Io),
/// or [`Error::Closed`](crate::Error::Closed).
impl Iterator for Changes {
    type Item = Result<ChangeSet>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use crate::device::MemoryDevice;
    use crate::{Database, Table};

    /// One catalog scan finds that a table was dropped, however many of its changes follow.
    #[test]
    fn a_dropped_table_is_looked_for_once() {
        let builder = Database::builder().strands(2).pool_bytes(1 << 20);
        let device = Arc::new(MemoryDevice::new());
        let db = builder.segment_bytes(64 << 10).open_on(device).unwrap();
        let kept: Table<u64, u64> = db.open_table("kept").unwrap();
        let dropped: Table<u64, u64> = db.open_table("dropped").unwrap();
        let from = db.position_after(db.durable_seqno());
        for n in 0..50 {
            db.transact(|tx| {
                tx.insert(&kept, &n, &n)?;
                tx.insert(&dropped, &n, &n)
            })
            .unwrap();
        }
        db.drop_table("dropped").unwrap();
        let mut changes = db.changes(from).unwrap();
        for n in 0..50 {
            let set = changes.next().unwrap().unwrap();
            let names: Vec<_> = set.changes.iter().map(|c| c.table.as_deref()).collect();
            assert_eq!(names, [Some("kept"), None], "{n}");
        }
        assert!(changes.catalog_scans <= 2, "{}", changes.catalog_scans);
    }
}
