//! Loads a server and runs clients against it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redis::RedisError;

use super::client::{self, Layout, Records};
use super::report::quantile_us;
use super::{OperationReport, ServerReport, ServerSpec};
use crate::records::{Generator, Op, Plan};
use crate::tally::{Phase, PhaseCell, histogram, nanos};
use crate::{BenchError, Spec, Workload};

/// Number of records that the load sends in one round trip.
const BATCH: u64 = 100;

/// The kinds of operations, in the order in which they are reported.
const KINDS: [&str; 6] = [
    "read",
    "update",
    "insert",
    "scan",
    "read-modify-write",
    "transaction",
];

pub(super) fn measure(
    server: &ServerSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<ServerReport, BenchError> {
    let spec = &server.spec;
    let plan = Plan::new(spec);
    let mut first = client::connect(server)?;
    let mut prepare = || {
        let version = client::version(&mut first)?;
        let prefix = client::prefix(&mut first, spec.workload, spec.records, spec.value_size)?;
        Ok((version, prefix))
    };
    let (version, prefix) = prepare().map_err(|error| client::failed(server, error))?;
    let layout = Arc::new(Layout::new(prefix, spec.value_size));
    if is_loaded(spec.workload) {
        let mut records = Records::new(first, Arc::clone(&layout));
        let found = records.is_loaded(spec.records);
        if !found.map_err(|error| client::failed(server, error))? {
            progress("loading");
            load(server, &plan, &layout)?;
            let marked = records.mark_loaded(spec.records);
            marked.map_err(|error| client::failed(server, error))?;
        }
    }
    progress("running");
    let (tally, seconds) = run(server, &plan, &layout)?;
    Ok(report(server, version, &tally, seconds))
}

/// Returns whether a workload needs records that exist.
fn is_loaded(workload: Workload) -> bool {
    workload.is_ycsb() && workload != Workload::YcsbInsert
}

/// Writes the records, in as many connections as the workload has clients.
fn load(server: &ServerSpec, plan: &Plan, layout: &Arc<Layout>) -> Result<(), BenchError> {
    let (records, clients) = (server.spec.records, server.spec.threads as u64);
    let part = |client: u64| records * client / clients;
    join(server, clients as usize, |client| {
        let client = client as u64;
        let mut connection = Records::new(client::connect(server)?, Arc::clone(layout));
        let mut ordinals = part(client)..part(client + 1);
        while !ordinals.is_empty() {
            let end = ordinals.end.min(ordinals.start + BATCH);
            let keys: Vec<u64> = (ordinals.start..end).map(|n| plan.key(n)).collect();
            let inserted = connection.insert(&keys);
            inserted.map_err(|error| client::failed(server, error))?;
            ordinals.start = end;
        }
        Ok(())
    })
    .map(|_| ())
}

/// Runs `body` in a thread for each client, numbered from 0.
fn join<T: Send>(
    server: &ServerSpec,
    clients: usize,
    body: impl Fn(usize) -> Result<T, BenchError> + Sync,
) -> Result<Vec<T>, BenchError> {
    let spawning = |error| BenchError::Server {
        address: server.address.clone(),
        source: Box::new(error),
    };
    thread::scope(|scope| {
        let body = &body;
        let threads: Result<Vec<_>, _> = (0..clients)
            .map(|client| thread::Builder::new().spawn_scoped(scope, move || body(client)))
            .collect();
        let threads = threads.map_err(spawning)?;
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .map(|result| result.map_err(|_| BenchError::Panicked)?)
            .collect()
    })
}

/// Counters of one client, or of all.
struct Tally {
    kinds: [Histogram<u64>; KINDS.len()],
    missing: u64,
    unfinished: u64,
}

impl Tally {
    fn new() -> Self {
        Tally {
            kinds: std::array::from_fn(|_| histogram()),
            missing: 0,
            unfinished: 0,
        }
    }
}

/// Runs all clients; returns their counters, and for how many seconds they counted.
fn run(
    server: &ServerSpec,
    plan: &Arc<Plan>,
    layout: &Arc<Layout>,
) -> Result<(Tally, f64), BenchError> {
    let spec = &server.spec;
    // Every client is connected before the first one begins.
    let connected: Result<Vec<_>, _> = (0..spec.threads).map(|_| client::connect(server)).collect();
    let connected: Vec<_> = connected?.into_iter().map(|c| Some(c).into()).collect();
    let connected: Vec<std::sync::Mutex<Option<redis::Connection>>> = connected;
    let phase = PhaseCell::new(Phase::WarmUp);
    let (tallies, seconds) = thread::scope(|scope| {
        let clock = Clock {
            start: Instant::now(),
            clients: spec.threads,
            rate: server.rate,
        };
        let (phase, clock) = (&phase, &clock);
        let timer = scope.spawn(move || {
            thread::sleep(spec.warm_up);
            phase.set(Phase::Measure);
            let measured = Instant::now();
            thread::sleep(spec.measure);
            phase.set(Phase::Stop);
            measured.elapsed().as_secs_f64()
        });
        let tallies = join(server, spec.threads, |number| {
            let taken = connected[number]
                .lock()
                .map_err(|_| BenchError::Panicked)?
                .take();
            let connection = match taken {
                Some(connection) => connection,
                None => client::connect(server)?,
            };
            let seed = crate::scatter(spec.seed.wrapping_add(number as u64));
            let client = Client {
                records: Records::new(connection, Arc::clone(layout)),
                generator: Generator::new(Arc::clone(plan), seed),
                spec,
                clock,
                phase,
                tally: Tally::new(),
            };
            client
                .run(number)
                .map_err(|error| client::failed(server, error))
        });
        (tallies, timer.join())
    });
    let mut all = Tally::new();
    for tally in tallies? {
        for (all, one) in all.kinds.iter_mut().zip(&tally.kinds) {
            *all += one;
        }
        all.missing += tally.missing;
        all.unfinished += tally.unfinished;
    }
    Ok((all, seconds.map_err(|_| BenchError::Panicked)?))
}

/// When operations are due.
struct Clock {
    start: Instant,
    clients: usize,
    rate: Option<f64>,
}

impl Clock {
    /// Waits until an operation of a client is due; returns when that was, or `None` without a
    /// rate. Clients take turns at regular intervals.
    fn wait(&self, client: usize, operation: u64) -> Option<Instant> {
        let due = self.due(client, operation)?;
        let early = due.saturating_duration_since(Instant::now());
        if !early.is_zero() {
            thread::sleep(early);
        }
        Some(due)
    }

    fn due(&self, client: usize, operation: u64) -> Option<Instant> {
        let position = operation as f64 * self.clients as f64 + client as f64;
        let rate = self.rate?;
        Some(self.start + Duration::from_secs_f64(position / rate))
    }
}

/// One client.
struct Client<'a> {
    records: Records,
    generator: Generator,
    spec: &'a Spec,
    clock: &'a Clock,
    phase: &'a PhaseCell,
    tally: Tally,
}

impl Client<'_> {
    fn run(mut self, number: usize) -> Result<Tally, RedisError> {
        let mut phase = Phase::WarmUp;
        for operation in 0.. {
            let due = self.clock.wait(number, operation);
            let now = self.phase.get();
            if now != phase {
                phase = now;
                match phase {
                    Phase::Measure => self.tally = Tally::new(),
                    Phase::Stop => {
                        self.tally.unfinished = self.unfinished(number, operation);
                        break;
                    }
                    Phase::WarmUp => {}
                }
            }
            let begun = due.unwrap_or_else(Instant::now);
            let kind = self.operate()?;
            self.tally.kinds[kind].saturating_record(nanos(begun.elapsed()));
        }
        Ok(self.tally)
    }

    /// Returns how many operations from this one on were due by now.
    fn unfinished(&self, number: usize, operation: u64) -> u64 {
        let now = Instant::now();
        let is_due = |n: &u64| self.clock.due(number, *n).is_some_and(|due| due < now);
        (operation..).take_while(is_due).count() as u64
    }

    /// Makes the next operation; returns its kind.
    fn operate(&mut self) -> Result<usize, RedisError> {
        if !self.spec.workload.is_ycsb() {
            let (rng, records) = (self.generator.rng(), self.spec.records);
            let keys: Vec<u64> = (0..self.spec.workload.writes())
                .map(|_| rng.u64(0..records))
                .collect();
            self.records.set(&keys)?;
            return Ok(5);
        }
        let op = self.generator.next();
        let plan = self.generator.plan();
        Ok(match op {
            Op::Read(ordinal) => {
                let found = self.records.read(plan.key(ordinal))?;
                self.tally.missing += u64::from(!found);
                0
            }
            Op::Modify(ordinal) if self.spec.workload == Workload::YcsbF => {
                let key = plan.key(ordinal);
                let found = self.records.read(key)?;
                self.tally.missing += u64::from(!found);
                self.records.update(key)?;
                4
            }
            Op::Modify(ordinal) => {
                self.records.update(plan.key(ordinal))?;
                1
            }
            Op::Insert(ordinal) => {
                self.records.insert(&[plan.key(ordinal)])?;
                plan.inserted(ordinal);
                2
            }
            Op::Scan { from, len } => {
                let found = self.records.scan(plan.key(from), len)?;
                self.tally.missing += u64::from(found == 0);
                3
            }
        })
    }
}

fn report(server: &ServerSpec, version: String, tally: &Tally, seconds: f64) -> ServerReport {
    let spec = &server.spec;
    let mut all = histogram();
    for kind in &tally.kinds {
        all += kind;
    }
    let kinds = KINDS.iter().zip(&tally.kinds);
    ServerReport {
        workload: match spec.workload {
            Workload::YcsbInsert => "ycsb-load".into(),
            other => other.to_string(),
        },
        server: version,
        address: server.address.clone(),
        clients: spec.threads,
        records: if is_loaded(spec.workload) {
            spec.records
        } else {
            0
        },
        value_size: spec.value_size,
        rate: server.rate,
        seconds,
        ops_per_s: all.len() as f64 / seconds,
        operations: all.len(),
        unfinished: tally.unfinished,
        missing: tally.missing,
        mean_us: all.mean() / 1_000.0,
        p50_us: quantile_us(&all, 0.5),
        p99_us: quantile_us(&all, 0.99),
        p999_us: quantile_us(&all, 0.999),
        max_us: all.max() as f64 / 1_000.0,
        kinds: kinds
            .filter(|(_, latency)| !latency.is_empty())
            .map(|(kind, latency)| OperationReport::new(kind, latency))
            .collect(),
    }
}
