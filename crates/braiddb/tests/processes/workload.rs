//! The child's writes, and the parent's check that all of them exist.

use braid::device::DeviceChoice;
use braid::{Builder, Bytes, Database, Error, Protocol, Readable, Table, Transaction};
use std::time::Duration;

/// The table of the threads' counters, which may be in a tablespace.
pub(crate) const COUNTERS: &str = "counters";

/// Threads that commit.
pub(crate) const THREADS: u64 = 4;

/// Small files, so that every run crosses segments and checkpoints release them.
pub(crate) fn builder(protocol: Protocol, device: DeviceChoice) -> Builder {
    let strands = protocol.forced_strands().unwrap_or(2);
    Database::builder()
        .protocol(protocol)
        .device(device)
        .strands(strands)
        .epoch(Duration::from_millis(1))
        .segment_bytes(256 << 10)
        .checkpoint_log_bytes(512 << 10)
        .pool_bytes(32 << 20)
}

/// The tables.
pub(crate) struct Tables {
    /// One record per transaction: thread, and sequence number within the thread, from 1.
    journal: Table<u64, Bytes>,
    /// A thread's newest transaction.
    counters: Table<u64, u64>,
}

fn key(thread: u64, sequence: u64) -> u64 {
    thread << 48 | sequence
}

/// A record: the other thread's transaction that this one read, and bytes that follow from the key.
fn record(thread: u64, sequence: u64, saw: u64) -> Vec<u8> {
    let len = match (sequence * 7 + thread) % 64 {
        0 => 20_000,
        n => 4 * n as usize,
    };
    let mut bytes = saw.to_le_bytes().to_vec();
    bytes.resize(8 + len, (sequence ^ thread << 3) as u8);
    bytes
}

/// Returns the thread whose counter a transaction reads.
fn neighbour(thread: u64, sequence: u64) -> u64 {
    (thread + 1 + sequence % (THREADS - 1)) % THREADS
}

impl Tables {
    pub(crate) fn open(db: &Database) -> Result<Self, Error> {
        Ok(Self {
            journal: db.open_table("journal")?,
            counters: db.open_table(COUNTERS)?,
        })
    }

    /// Returns the newest transaction of a thread, as a read outside of transactions shows it.
    pub(crate) fn newest(&self, db: &Database, thread: u64) -> Result<u64, Error> {
        Ok(db.get(&self.counters, &thread)?.unwrap_or(0))
    }

    /// Writes a thread's next transaction: two records. Every fourth one depends on another thread,
    /// whose counter it reads and records.
    pub(crate) fn write(
        &self,
        tx: &mut Transaction,
        thread: u64,
        sequence: u64,
    ) -> Result<(), Error> {
        let other = neighbour(thread, sequence);
        let saw = match sequence % 4 {
            0 => tx.get(&self.counters, &other)?.unwrap_or(0),
            _ => 0,
        };
        let bytes = record(thread, sequence, saw);
        tx.insert(&self.journal, &key(thread, sequence), &bytes)?;
        tx.insert(&self.counters, &thread, &sequence)
    }
}

/// Checks that the database contains everything promised to each thread; returns each thread's
/// newest transaction. A promise is a sequence number within a thread: that transaction and all
/// before it exist.
pub(crate) fn check(db: &Database, promised: &[u64], what: &str) -> Vec<u64> {
    let tables = Tables::open(db).unwrap();
    let snapshot = db.snapshot();
    let newest: Vec<u64> = (0..THREADS)
        .map(|thread| {
            snapshot
                .get(&tables.counters, &thread)
                .unwrap()
                .unwrap_or(0)
        })
        .collect();
    for (thread, (&newest, &promised)) in newest.iter().zip(promised).enumerate() {
        assert!(
            newest >= promised,
            "{what}: thread {thread} was promised {promised} and has {newest}"
        );
    }
    let mut found = vec![0; THREADS as usize];
    for entry in snapshot.iter(&tables.journal).unwrap() {
        let (key, bytes) = entry.unwrap();
        let (thread, sequence) = (key >> 48, key & ((1 << 48) - 1));
        let last = &mut found[thread as usize];
        *last += 1;
        assert_eq!(sequence, *last, "{what}: a gap in thread {thread}");
        let saw = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let right = record(thread, sequence, saw) == bytes;
        assert!(right, "{what}: thread {thread}, {sequence}: other bytes");
        let other = neighbour(thread, sequence) as usize;
        assert!(
            saw <= newest[other],
            "{what}: thread {thread} saw {saw} of thread {other}, which has {}",
            newest[other]
        );
    }
    assert_eq!(found, newest, "{what}: half a transaction");
    newest
}
