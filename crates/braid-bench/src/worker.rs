//! One thread of a run.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid::{Bytes, Database, Readable, Table, Ticket};
use hdrhistogram::Histogram;

use crate::BenchError;
use crate::workload::{Generator, Op};

/// One read in so many is timed: two clock readings would be a good part of a cached read.
const READ_SAMPLE: u64 = 16;

/// Bytes of a YCSB field, the part of a record that an update changes.
const FIELD_BYTES: usize = 100;

/// What the threads of a run are doing; the runner moves it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    WarmUp = 0,
    Measure = 1,
    Stop = 2,
}

/// The phase, shared by all threads.
#[derive(Debug)]
pub(crate) struct PhaseCell(AtomicU8);

impl PhaseCell {
    pub(crate) fn new() -> Self {
        PhaseCell(AtomicU8::new(Phase::WarmUp as u8))
    }

    // Relaxed throughout: the phase orders no other memory; results come through thread joins.
    pub(crate) fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }
}

/// What one thread, or all together, counted while measuring.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Writing transactions acknowledged as durable.
    pub(crate) commits: u64,
    /// Read-only transactions that returned.
    pub(crate) reads: u64,
    /// Attempts that ended in a conflict and were retried.
    pub(crate) aborts: u64,
    /// Reads that found nothing: inserts not yet acknowledged, in the workload of latest reads.
    pub(crate) missing: u64,
    /// Nanoseconds from the call of commit to durable.
    pub(crate) commit_latency: Histogram<u64>,
    /// Nanoseconds of the timed reads and scans.
    pub(crate) read_latency: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Tally {
            commits: 0,
            reads: 0,
            aborts: 0,
            missing: 0,
            commit_latency: histogram(),
            read_latency: histogram(),
        }
    }

    fn reset(&mut self) {
        (self.commits, self.reads, self.aborts, self.missing) = (0, 0, 0, 0);
        self.commit_latency.reset();
        self.read_latency.reset();
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.commits += other.commits;
        self.reads += other.reads;
        self.aborts += other.aborts;
        self.missing += other.missing;
        for (sum, part) in [
            (&mut self.commit_latency, &other.commit_latency),
            (&mut self.read_latency, &other.read_latency),
        ] {
            sum.add(part).expect("all histograms have the same bounds");
        }
    }
}

/// 64 ns to 1,000 s with three digits; a longer wait counts as the longest.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, 1_000_000_000_000, 3).expect("the bounds are in order")
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A commit whose durability is awaited.
struct Outstanding {
    ticket: Ticket,
    called: Instant,
    inserted: Option<u64>,
}

/// One thread's state. All of it is private to the thread but for the two references to counters.
pub(crate) struct Worker<'a> {
    db: &'a Database,
    table: &'a Table<u64, Bytes>,
    generator: Generator,
    in_flight: usize,
    /// Operations done, for the progress display.
    done: &'a AtomicU64,
    phase: &'a PhaseCell,
    tally: Tally,
    outstanding: VecDeque<Outstanding>,
    /// The value being written, kept so that no transaction allocates one.
    value: Vec<u8>,
    keys: Vec<u64>,
    writes: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        db: &'a Database,
        table: &'a Table<u64, Bytes>,
        mut generator: Generator,
        in_flight: usize,
        value_size: usize,
        done: &'a AtomicU64,
        phase: &'a PhaseCell,
    ) -> Self {
        let mut value = vec![0; value_size];
        generator.rng().fill(&mut value);
        Worker {
            db,
            table,
            generator,
            in_flight,
            done,
            phase,
            tally: Tally::new(),
            outstanding: VecDeque::with_capacity(in_flight),
            value,
            keys: Vec::with_capacity(16),
            writes: 0,
        }
    }

    /// Issues operations until the phase says stop; then waits for what is outstanding, uncounted.
    pub(crate) fn run(mut self) -> Result<Tally, BenchError> {
        let mut phase = Phase::WarmUp;
        let mut done = 0_u64;
        loop {
            let now = self.phase.get();
            if now != phase {
                phase = now;
                match phase {
                    Phase::Measure => self.tally.reset(),
                    Phase::Stop => break,
                    Phase::WarmUp => {}
                }
            }
            match self.generator.next() {
                Op::Update { updates } => self.update(updates)?,
                Op::Modify(ordinal) => self.modify(ordinal)?,
                Op::Insert(ordinal) => self.insert(ordinal)?,
                Op::Read(ordinal) => self.timed_read(|w| w.read(ordinal))?,
                Op::Scan { from, len } => self.timed_read(|w| w.scan(from, len))?,
            }
            done += 1;
            self.done.store(done, Ordering::Relaxed);
        }
        let tally = self.tally;
        for commit in self.outstanding {
            commit.ticket.wait()?;
        }
        Ok(tally)
    }

    fn update(&mut self, updates: usize) -> Result<(), BenchError> {
        self.keys.clear();
        for _ in 0..updates {
            let key = self.generator.uniform();
            self.keys.push(self.generator.plan().key(key));
        }
        self.next_value();
        loop {
            let attempt = self.attempt(None, |w, tx| {
                for key in &w.keys {
                    tx.insert(w.table, key, &w.value[..])?;
                }
                Ok(())
            })?;
            if attempt {
                return Ok(());
            }
        }
    }

    fn modify(&mut self, ordinal: u64) -> Result<(), BenchError> {
        let key = self.generator.plan().key(ordinal);
        let fields = (self.value.len() / FIELD_BYTES).max(1);
        let start = self.generator.rng().usize(0..fields) * FIELD_BYTES;
        let end = self.value.len().min(start + FIELD_BYTES);
        let fresh = self.generator.rng().u8(..);
        loop {
            let attempt = self.attempt(None, |w, tx| {
                if let Some(old) = tx.get_for_update(w.table, &key)?
                    && old.len() == w.value.len()
                {
                    w.value.copy_from_slice(&old);
                }
                w.value[start..end].fill(fresh);
                tx.insert(w.table, &key, &w.value[..])?;
                Ok(())
            })?;
            if attempt {
                return Ok(());
            }
        }
    }

    fn insert(&mut self, ordinal: u64) -> Result<(), BenchError> {
        let key = self.generator.plan().key(ordinal);
        self.next_value();
        loop {
            let attempt = self.attempt(Some(ordinal), |w, tx| {
                tx.insert(w.table, &key, &w.value[..])?;
                Ok(())
            })?;
            if attempt {
                return Ok(());
            }
        }
    }

    /// One attempt at a writing transaction; `Ok(false)` asks for another after a conflict.
    #[inline]
    fn attempt(
        &mut self,
        inserted: Option<u64>,
        body: impl FnOnce(&mut Self, &mut braid::Transaction) -> braid::Result<()>,
    ) -> Result<bool, BenchError> {
        let mut tx = self.db.begin();
        if let Err(error) = body(self, &mut tx) {
            tx.abort();
            return self.conflict(error);
        }
        let called = Instant::now();
        if self.in_flight == 1 {
            return match tx.commit() {
                Ok(_) => {
                    self.acknowledged(called, Instant::now(), inserted);
                    Ok(true)
                }
                Err(error) => self.conflict(error),
            };
        }
        match tx.commit_async() {
            Ok(ticket) => {
                self.outstanding.push_back(Outstanding {
                    ticket,
                    called,
                    inserted,
                });
                self.settle()?;
                Ok(true)
            }
            Err(error) => self.conflict(error),
        }
    }

    fn conflict(&mut self, error: braid::Error) -> Result<bool, BenchError> {
        if !error.is_retryable() {
            return Err(error.into());
        }
        self.tally.aborts += 1;
        // The other side holds what this one wants; on few cores it must get to run.
        std::thread::yield_now();
        Ok(false)
    }

    /// Acknowledges the leading durable commits; waits for the oldest if all places are taken.
    #[inline]
    fn settle(&mut self) -> Result<(), BenchError> {
        if self.outstanding.len() >= self.in_flight
            && let Some(oldest) = self.outstanding.pop_front()
        {
            oldest.ticket.wait()?;
            self.acknowledged(oldest.called, Instant::now(), oldest.inserted);
        }
        if self
            .outstanding
            .front()
            .is_some_and(|oldest| oldest.ticket.is_durable())
        {
            // One clock reading for all that became durable together.
            let now = Instant::now();
            while let Some(oldest) = self.outstanding.front()
                && oldest.ticket.is_durable()
            {
                let (called, inserted) = (oldest.called, oldest.inserted);
                self.outstanding.pop_front();
                self.acknowledged(called, now, inserted);
            }
        }
        Ok(())
    }

    #[inline]
    fn acknowledged(&mut self, called: Instant, now: Instant, inserted: Option<u64>) {
        self.tally.commits += 1;
        self.tally
            .commit_latency
            .saturating_record(nanos(now.duration_since(called)));
        if let Some(ordinal) = inserted {
            self.generator.plan().inserted(ordinal);
        }
    }

    #[inline]
    fn timed_read(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let sampled = self
            .tally
            .reads
            .is_multiple_of(READ_SAMPLE)
            .then(Instant::now);
        read(self)?;
        if let Some(start) = sampled {
            self.tally
                .read_latency
                .saturating_record(nanos(start.elapsed()));
        }
        self.tally.reads += 1;
        Ok(())
    }

    #[inline]
    fn read(&mut self, ordinal: u64) -> Result<(), BenchError> {
        let key = self.generator.plan().key(ordinal);
        match self.db.get(self.table, &key)? {
            Some(value) => {
                black_box(value.len());
            }
            None => self.tally.missing += 1,
        }
        Ok(())
    }

    fn scan(&mut self, from: u64, len: usize) -> Result<(), BenchError> {
        let key = self.generator.plan().key(from);
        let snapshot = self.db.snapshot();
        for record in snapshot.range(self.table, key..)?.take(len) {
            black_box(record?.1.len());
        }
        Ok(())
    }

    /// Makes the value differ from all others that this thread wrote.
    #[inline]
    fn next_value(&mut self) {
        self.writes += 1;
        self.value[..8].copy_from_slice(&self.writes.to_le_bytes());
    }
}
