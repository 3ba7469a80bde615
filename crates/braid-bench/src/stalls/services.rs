//! What the load runs on: waited commits of an engine, buffered commits of Braid, and a bare log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use braid::{Database, Durability, Table};
use fastrand::Rng;
use hdrhistogram::Histogram;

use super::load::{Operation, Service};
use crate::bare_log::BareLog;
use crate::driver::Driver;
use crate::engines::{KvEngine, Mode, Stop, Wait};
use crate::load::failure;
use crate::tally::{histogram, nanos};
use crate::{BenchError, Spec, scatter};

/// Durable commits of a workload on any engine, each waited for.
pub(super) struct Waited<'a> {
    pub(super) engine: &'a dyn KvEngine,
    pub(super) driver: &'a dyn Driver,
    pub(super) seed: u64,
}

impl Service for Waited<'_> {
    fn client(&self, thread: usize) -> Result<Operation<'_>, BenchError> {
        let mut session = self.engine.session()?;
        let mut client = self
            .driver
            .client(thread, scatter(self.seed + thread as u64));
        Ok(Box::new(move |_| {
            client.draw();
            loop {
                let write =
                    session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| client.execute(tx));
                match write {
                    Ok(_) => return Ok(()),
                    Err(Stop::Conflict) => {}
                    Err(stop) => return Err(failure(stop)),
                }
            }
        }))
    }
}

/// Commits of a bare log.
pub(super) struct Bare<'a> {
    pub(super) log: BareLog<'a>,
    pub(super) record_bytes: usize,
}

impl Service for Bare<'_> {
    fn client(&self, _thread: usize) -> Result<Operation<'_>, BenchError> {
        let record = vec![0x5a; self.record_bytes];
        Ok(Box::new(move |_| {
            let group = self.log.append(&record);
            group
                .and_then(|group| self.log.wait(group))
                .map_err(|error| BenchError::io("cannot write the bare log", error))
        }))
    }
}

/// Interval at which the watcher of buffered commits looks at what is durable.
const LOOK: Duration = Duration::from_millis(1);

/// A commit that has returned, ordered by its sequence number, and when it has to be durable.
type Pending = (u64, Instant);

/// Commits that are durable within a bound after they return. A watcher compares the bound with the
/// durable sequence number, because a ticket would cause the flush that is to be observed.
pub(super) struct Buffered {
    db: Database,
    table: Table,
    records: u64,
    value_size: usize,
    bound: Duration,
    returned: Mutex<Sender<Pending>>,
}

impl Buffered {
    /// Returns the service, and the source of its commits for [`watch`].
    pub(super) fn new(
        db: &Database,
        table: &str,
        spec: &Spec,
        bound: Duration,
    ) -> Result<(Self, Receiver<Pending>), BenchError> {
        let (returned, commits) = mpsc::channel();
        let service = Buffered {
            db: db.clone(),
            table: db.open_table(table)?,
            records: spec.records,
            value_size: spec.value_size,
            bound,
            returned: Mutex::new(returned),
        };
        Ok((service, commits))
    }

    fn sender(&self) -> Sender<Pending> {
        let sender = self.returned.lock();
        sender.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Service for Buffered {
    fn client(&self, thread: usize) -> Result<Operation<'_>, BenchError> {
        let returned = self.sender();
        let mut rng = Rng::with_seed(thread as u64);
        let mut value = vec![0; self.value_size];
        Ok(Box::new(move |window| {
            rng.fill(&mut value[..8]);
            let key = rng.u64(0..self.records).to_be_bytes();
            let mut tx = self.db.begin();
            tx.set_durability(Durability::Buffered(self.bound));
            tx.insert(&self.table, &key, &value)?;
            let commit = tx.commit()?;
            if window.counts(window.now()) {
                // The watcher ends after the clients.
                let _ = returned.send((commit.seqno(), Instant::now() + self.bound));
            }
            Ok(())
        }))
    }
}

/// Returns how late commits became durable, in nanoseconds after their bound; ends when their
/// service is dropped and all are durable, or [`GIVE_UP`] later.
pub(super) fn watch(db: &Database, commits: &Receiver<Pending>) -> Histogram<u64> {
    let mut lateness = histogram();
    let mut pending = BinaryHeap::new();
    let mut give_up = None;
    while give_up.is_none_or(|at| Instant::now() < at) {
        loop {
            match commits.try_recv() {
                Ok(commit) => pending.push(Reverse(commit)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    give_up.get_or_insert_with(|| Instant::now() + GIVE_UP);
                    break;
                }
            }
        }
        let durable = db.durable_seqno();
        let now = Instant::now();
        while let Some(&Reverse((seqno, due))) = pending.peek()
            && seqno <= durable
        {
            lateness.saturating_record(nanos(now.saturating_duration_since(due)));
            pending.pop();
        }
        if give_up.is_some() && pending.is_empty() {
            break;
        }
        thread::sleep(LOOK);
    }
    for Reverse((_, due)) in pending {
        lateness.saturating_record(nanos(due.elapsed()));
    }
    lateness
}

/// Time after the end of the load in which its commits have to become durable.
const GIVE_UP: Duration = Duration::from_secs(60);
