//! Agents: threads that read and write a tablespace for threads of other memory nodes. On any machine:
//! a hook says that all threads are on another node than the tablespaces.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use braid::tablespace::{AgentHook, AgentWork, RemoteAccess};

use super::*;

/// A machine on which every thread is on another node than the tablespaces.
#[derive(Default)]
struct Machine {
    by_agents: AtomicU64,
    by_callers: AtomicU64,
    /// Whether agents panic after their next work.
    panics: AtomicBool,
    /// Whether agents stop after their next work.
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Closed,
    /// An agent waits at the gate.
    Holds,
}

impl Machine {
    /// Closes the gate until the result is dropped, also by a failed assertion.
    fn close_gate(&self) -> Opener<'_> {
        self.set(Gate::Closed);
        Opener(self)
    }

    fn set(&self, gate: Gate) {
        *self.gate.lock().unwrap() = gate;
        self.changed.notify_all();
    }

    fn holds(&self) -> bool {
        *self.gate.lock().unwrap() == Gate::Holds
    }

    fn worked_by_agents(&self) -> u64 {
        self.by_agents.load(Ordering::SeqCst)
    }
}

/// Opens a machine's gate when it is dropped.
struct Opener<'a>(&'a Machine);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.set(Gate::Open);
    }
}

impl AgentHook for Machine {
    fn is_remote(&self, _tablespace: u8) -> bool {
        true
    }

    fn worked(&self, work: AgentWork) {
        if !work.by_agent {
            self.by_callers.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if self.panics.swap(false, Ordering::SeqCst) {
            resume_unwind(Box::new("deliberately"));
        }
        let mut gate = self.gate.lock().unwrap();
        while *gate != Gate::Open {
            *gate = Gate::Holds;
            gate = self.changed.wait(gate).unwrap();
        }
        self.by_agents.fetch_add(1, Ordering::SeqCst);
    }
}

/// A database in memory with the tablespaces `one` and `two`, which have agents.
struct Remote {
    machine: Arc<Machine>,
    devices: [Arc<MemoryDevice>; 3],
    db: Database,
}

impl Remote {
    fn new() -> Self {
        let (machine, devices) = (Arc::new(Machine::default()), Default::default());
        let db = open(&machine, &devices, Database::builder());
        for (name, device) in ["one", "two"].iter().zip(&devices[1..]) {
            let options = TablespaceOptions::on_device(device.clone()).pool_bytes(1 << 20);
            db.create_tablespace(name, options).unwrap();
        }
        Self {
            machine,
            devices,
            db,
        }
    }

    /// Closes the database, and opens it with agents and these options.
    fn reopen(self, builder: Builder) -> Database {
        self.db.close().unwrap();
        open(&self.machine, &self.devices, builder)
    }

    /// The table of the same name in a tablespace.
    fn table(&self, space: &str) -> Table<u64, Bytes> {
        let table = self.db.open_table_in(space, space, Default::default());
        table.unwrap()
    }

    fn tables(&self) -> [Table<u64, Bytes>; 3] {
        let main = self.db.open_table("main").unwrap();
        [main, self.table("one"), self.table("two")]
    }

    /// Reads until an agent does what was asked of it next.
    fn read_until(&self, is_done: impl Fn() -> bool) {
        let table = self.table("one");
        while !is_done() {
            self.db.get(&table, &1).unwrap();
        }
    }
}

fn open(machine: &Arc<Machine>, devices: &[Arc<MemoryDevice>; 3], builder: Builder) -> Database {
    open_as(machine, devices, builder.remote_access(RemoteAccess::Agent))
}

fn open_as(machine: &Arc<Machine>, devices: &[Arc<MemoryDevice>; 3], builder: Builder) -> Database {
    let builder = builder
        .pool_bytes(1 << 20)
        .agent_hook(machine.clone())
        .tablespace_device("one", devices[1].clone())
        .tablespace_device("two", devices[2].clone());
    builder.open_on(devices[0].clone()).unwrap()
}

type Model = BTreeMap<(usize, u64), Vec<u8>>;

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u32(0..20) {
        0 => rng.usize(2_000..30_000),
        _ => rng.usize(0..200),
    };
    vec![rng.u8(..); len]
}

/// Compares what a reader sees with the model.
fn compare(reader: &impl Readable, tables: &[Table<u64, Bytes>; 3], model: &Model, seed: u64) {
    let of_model = |at: usize| {
        let entries = model.range((at, 0)..=(at, u64::MAX));
        let entries = entries.map(|((_, key), value)| (*key, Bytes::from(value.clone())));
        entries.collect::<Vec<_>>()
    };
    for (at, table) in tables.iter().enumerate() {
        let expected = of_model(at);
        let found: Result<Vec<_>, _> = reader.iter(table).unwrap().collect();
        assert_eq!(found.unwrap(), expected, "seed {seed}");
        let reverse: Result<Vec<_>, _> = reader.iter(table).unwrap().rev().collect();
        let reverse: Vec<_> = reverse.unwrap().into_iter().rev().collect();
        assert_eq!(reverse, expected, "seed {seed}");
        let keys: Vec<u64> = (0..60).collect();
        let found = reader.get_many(table, &keys).unwrap();
        for (key, found) in keys.iter().zip(found) {
            let expected = model.get(&(at, *key));
            assert_eq!(found.as_deref(), expected.map(Vec::as_slice), "seed {seed}");
            let single = reader.get(table, key).unwrap();
            assert_eq!(single.as_deref(), expected.map(Vec::as_slice));
        }
    }
}

/// Transactions, snapshots and readers of a database with agents see what they would see without.
#[test]
fn agents_change_no_result() {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let remote = Remote::new();
    let (db, tables) = (&remote.db, remote.tables());
    let mut model = Model::new();
    let mut snapshots = Vec::new();
    for _ in 0..60 {
        let mut changed = model.clone();
        let mut tx = db.begin();
        for _ in 0..rng.usize(1..12) {
            let (at, key) = (rng.usize(0..3), rng.u64(0..60));
            let table = &tables[at];
            match rng.u32(0..4) {
                0 => {
                    tx.remove(table, &key).unwrap();
                    changed.remove(&(at, key));
                }
                1 => {
                    let found = tx.get_for_update(table, &key).unwrap();
                    let expected = changed.get(&(at, key));
                    assert_eq!(found.as_deref(), expected.map(Vec::as_slice), "seed {seed}");
                }
                _ => {
                    let value = value(&mut rng);
                    tx.insert(table, &key, &value).unwrap();
                    changed.insert((at, key), value);
                }
            }
        }
        if rng.bool() {
            compare(&tx, &tables, &changed, seed);
        }
        if rng.u32(0..5) == 0 {
            tx.abort();
        } else {
            tx.commit().unwrap();
            model = changed;
        }
        if rng.u32(0..10) == 0 {
            snapshots.push((db.snapshot(), model.clone()));
        }
        for (at, table) in tables.iter().enumerate() {
            let key = rng.u64(0..60);
            let expected = model.get(&(at, key)).map(Vec::as_slice);
            assert_eq!(
                db.get(table, &key).unwrap().as_deref(),
                expected,
                "seed {seed}"
            );
        }
    }
    compare(&db.snapshot(), &tables, &model, seed);
    for (snapshot, model) in &snapshots {
        compare(snapshot, &tables, model, seed);
    }
    let stats = db.stats().tablespaces;
    assert!(
        stats
            .iter()
            .all(|space| space.remote_access == RemoteAccess::Agent)
    );
    let requests =
        |space: &braid::stats::TablespaceStats| space.agent_requests + space.agent_refusals;
    assert!(stats.iter().all(|space| requests(space) > 0), "{stats:?}");
    // Recovery does not know of agents.
    let db = remote.reopen(Database::builder());
    let tables = ["main", "one", "two"].map(|name| db.open_table(name).unwrap());
    compare(&db.snapshot(), &tables, &model, seed);
}

/// While an agent is stuck, others do their work themselves, also when its ring is full.
#[test]
fn a_full_ring_delays_nobody() {
    let remote = &Remote::new();
    let (db, one, two) = (&remote.db, remote.table("one"), remote.table("two"));
    db.transact(|tx| tx.insert(&one, &1, &[1])).unwrap();
    std::thread::scope(|scope| {
        let gate = remote.machine.close_gate();
        let before = remote.machine.worked_by_agents();
        let stuck =
            scope.spawn(move || remote.read_until(|| remote.machine.worked_by_agents() > before));
        // This thread's requests must not be those at which the agent stops.
        while !remote.machine.holds() {
            std::thread::yield_now();
        }
        for key in 2..150 {
            db.transact(|tx| {
                tx.insert(&one, &key, &[7])?;
                assert!(tx.get(&one, &(key - 1))?.is_some());
                Ok(())
            })
            .unwrap();
            assert_eq!(db.get(&one, &key).unwrap().as_deref(), Some(&[7][..]));
        }
        drop(gate);
        stuck.join().unwrap();
    });
    db.transact(|tx| tx.insert(&two, &1, &[2])).unwrap();
    assert_eq!(db.snapshot().len(&one).unwrap(), 149);
    let refusals = db.stats().tablespaces[0].agent_refusals;
    assert!(refusals >= 148, "{refusals}");
}

/// A commit returns after its agents have applied their parts.
#[test]
fn a_commit_waits_for_its_agents() {
    let remote = Remote::new();
    let (db, machine) = (&remote.db, &*remote.machine);
    let (one, two) = (remote.table("one"), remote.table("two"));
    let returned = AtomicBool::new(false);
    for round in 0_u64..20 {
        returned.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let gate = machine.close_gate();
            let commit = scope.spawn(|| {
                db.transact(|tx| {
                    tx.insert(&one, &round, &[1])?;
                    tx.insert(&two, &round, &[2])
                })
                .unwrap();
                returned.store(true, Ordering::SeqCst);
            });
            // Unless the thread has done the work itself, an agent has it now.
            while !machine.holds() && !returned.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            if machine.holds() {
                for _ in 0..200 {
                    assert!(
                        !returned.load(Ordering::SeqCst),
                        "an agent still has its part"
                    );
                    std::thread::yield_now();
                }
            }
            drop(gate);
            commit.join().unwrap();
        });
        let snapshot = db.snapshot();
        for table in [&one, &two] {
            assert!(
                snapshot.contains_key(table, &round).unwrap(),
                "round {round}"
            );
        }
    }
}

/// A panic in an agent is one of the thread that asked, and of no other.
#[test]
fn a_panic_of_an_agent_ends_its_request() {
    let remote = Remote::new();
    let (db, machine, one) = (&remote.db, &*remote.machine, remote.table("one"));
    db.transact(|tx| tx.insert(&one, &1, &[1])).unwrap();
    machine.panics.store(true, Ordering::SeqCst);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        remote.read_until(|| !machine.panics.load(Ordering::SeqCst));
    }));
    assert!(panicked.is_err());
    // The agent is there, and so is the database.
    let before = machine.worked_by_agents();
    remote.read_until(|| machine.worked_by_agents() > before);
    db.transact(|tx| tx.insert(&one, &2, &[2])).unwrap();
    assert!(matches!(db.health(), Health::Good), "{:?}", db.health());
}

/// A panic while an agent applies a transaction stops the database, as one without agents.
#[test]
fn a_panic_of_an_agent_that_applies_a_transaction_stops_the_database() {
    let remote = Remote::new();
    let (db, machine) = (&remote.db, &*remote.machine);
    let (one, two) = (remote.table("one"), remote.table("two"));
    machine.panics.store(true, Ordering::SeqCst);
    let mut round = 0;
    let insert = |round: u64| {
        db.transact(|tx| {
            tx.insert(&one, &round, &[1])?;
            tx.insert(&two, &round, &[2])
        })
    };
    let panicked = loop {
        round += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| insert(round)));
        if !machine.panics.load(Ordering::SeqCst) {
            break outcome;
        }
        outcome.unwrap().unwrap();
    };
    assert!(
        panicked.is_err(),
        "the panic goes on in the thread that commits"
    );
    assert!(
        matches!(db.health(), Health::Poisoned { .. }),
        "{:?}",
        db.health()
    );
    assert!(matches!(insert(round + 1), Err(Error::Poisoned { .. })));
    let Remote {
        machine,
        devices,
        db,
    } = remote;
    let _ = db.close();
    let db = open(&machine, &devices, Database::builder());
    let tables: [Table<u64, Bytes>; 2] = ["one", "two"].map(|name| db.open_table(name).unwrap());
    let snapshot = db.snapshot();
    for round in 1..=round {
        let [one, two] = [0, 1].map(|at| snapshot.contains_key(&tables[at], &round).unwrap());
        assert_eq!(one, two, "transaction {round} is there as a whole");
    }
    assert!(snapshot.len(&tables[0]).unwrap() >= round - 1);
}

/// What the writes of agents replace is kept for snapshots, and collected afterwards.
#[test]
fn versions_that_agents_replace_are_counted() {
    let remote = Remote::new();
    let (db, one) = (&remote.db, remote.table("one"));
    let put = |value: u8| {
        db.transact(|tx| (0..10).try_for_each(|key| tx.insert(&one, &key, &[value])))
            .unwrap();
    };
    put(1);
    let snapshot = db.snapshot();
    put(2);
    assert!(db.stats().old_versions >= 10);
    assert_eq!(snapshot.get(&one, &3).unwrap().as_deref(), Some(&[1][..]));
}

/// Closing a database ends its agents; threads that still use it get its error, or their result.
#[test]
fn agents_end_with_the_database() {
    for _ in 0..5 {
        let remote = Remote::new();
        let (db, table) = (&remote.db, remote.table("one"));
        db.transact(|tx| tx.insert(&table, &1, &[1])).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        match db.transact(|tx| tx.get(&table, &1)) {
                            Ok(found) => assert_eq!(found.as_deref(), Some(&[1][..])),
                            Err(error) => break assert!(matches!(error, Error::Closed), "{error}"),
                        }
                    }
                });
            }
            remote.read_until(|| remote.machine.worked_by_agents() > 0);
            db.clone().close().unwrap();
        });
    }
}

/// Two threads that read what the other writes: one of both fails, whichever way they read.
#[test]
fn reads_by_agents_are_validated() {
    let remote = Remote::new();
    let (db, one, two) = (&remote.db, remote.table("one"), remote.table("two"));
    let put = |tx: &mut braid::Transaction, table, value: u8| tx.insert(table, &1, &[value]);
    db.transact(|tx| put(tx, &one, 0).and_then(|()| put(tx, &two, 0)))
        .unwrap();
    for scans in [false, true] {
        let read = |tx: &braid::Transaction, table: &Table<u64, Bytes>| {
            if scans {
                tx.range(table, 0..9).unwrap().count()
            } else {
                usize::from(tx.get(table, &1).unwrap().is_some())
            }
        };
        let (mut first, mut second) = (db.begin(), db.begin());
        assert_eq!([read(&first, &one), read(&second, &two)], [1, 1]);
        put(&mut first, &two, 1).unwrap();
        put(&mut second, &one, 1).unwrap();
        first.commit().unwrap();
        assert!(matches!(second.commit(), Err(Error::Conflict(_))));
    }
}

/// Several keys of a transaction are one request, and are validated like other reads.
#[test]
fn several_keys_are_one_request() {
    let remote = Remote::new();
    let (db, one) = (&remote.db, remote.table("one"));
    let keys: Vec<u64> = (0..16).collect();
    db.transact(|tx| keys.iter().try_for_each(|key| tx.insert(&one, key, &[1])))
        .unwrap();
    let requests = || {
        let space = &db.stats().tablespaces[0];
        space.agent_requests + space.agent_refusals
    };
    let before = requests();
    let mut tx = db.begin();
    tx.insert(&one, &3, &[3]).unwrap();
    let found = tx.get_many(&one, &keys).unwrap();
    for (key, found) in keys.iter().zip(found) {
        let expected = if *key == 3 { [3] } else { [1] };
        assert_eq!(found.as_deref(), Some(&expected[..]));
    }
    assert_eq!(requests() - before, 1);
    db.transact(|tx| tx.insert(&one, &7, &[2])).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
}

/// A transaction that announces what it reads, of several tables and also under locks, makes one request
/// for all of it, and one for its writes.
#[test]
fn announced_reads_are_one_request_and_writes_another() {
    let remote = Remote::new();
    let (db, one) = (&remote.db, remote.table("one"));
    let other: Table<u64, Bytes> = db
        .open_table_in("one", "other", Default::default())
        .unwrap();
    let tables = [&one, &other];
    let write = |tx: &mut braid::Transaction, value: u8| {
        let put = |table: &&Table<u64, Bytes>| tx.insert(table, &1, &[value]);
        tables.iter().try_for_each(put)
    };
    db.transact(|tx| write(tx, 1)).unwrap();
    let requests = || {
        let space = &db.stats().tablespaces[0];
        space.agent_requests + space.agent_refusals
    };
    for (round, locks) in [(1, false), (2, true)] {
        let before = requests();
        let mut tx = db.begin();
        for table in tables {
            tx.prefetch(table, &[1, 2]).unwrap();
        }
        assert_eq!(requests(), before, "nothing is read before it is needed");
        for table in tables {
            let found = if locks {
                tx.get_for_update(table, &1).unwrap()
            } else {
                tx.get(table, &1).unwrap()
            };
            assert_eq!(found.as_deref(), Some(&[round][..]));
            assert_eq!(tx.get(table, &2).unwrap(), None);
        }
        assert_eq!(requests() - before, 1);
        write(&mut tx, round + 1).unwrap();
        tx.commit().unwrap();
        assert_eq!(requests() - before, 2);
    }
}

/// A read under a lock returns what is newest then, although an agent has read the key before.
#[test]
fn a_read_under_a_lock_is_not_older_than_the_lock() {
    let remote = Remote::new();
    let (db, one) = (&remote.db, remote.table("one"));
    let put = |value: u8| db.transact(|tx| tx.insert(&one, &1, &[value])).unwrap();
    put(1);
    let mut tx = db.begin();
    tx.prefetch(&one, &[1, 2]).unwrap();
    assert_eq!(tx.get(&one, &2).unwrap(), None);
    put(2);
    let found = tx.get_for_update(&one, &1).unwrap();
    assert_eq!(found.as_deref(), Some(&[2][..]));
    tx.insert(&one, &1, &[3]).unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get(&one, &1).unwrap().as_deref(), Some(&[3][..]));
}

/// The mode `auto` decides at each opening, by what it measures.
#[test]
fn auto_chooses() {
    let Remote {
        machine,
        devices,
        db,
    } = Remote::new();
    db.close().unwrap();
    let reopen = |access: RemoteAccess| {
        let builder = Database::builder().remote_access(access);
        open_as(&machine, &devices, builder)
    };
    let access = |db: &Database| db.stats().tablespaces[0].remote_access;
    let db = reopen(RemoteAccess::Auto);
    assert_eq!(access(&db), RemoteAccess::Direct, "empty");
    let table: Table<u64, Bytes> = db.open_table_in("one", "one", Default::default()).unwrap();
    for key in (0..2_000).step_by(100) {
        let put = |tx: &mut braid::Transaction, key| tx.insert(&table, &key, &[7; 400]);
        db.transact(|tx| (key..key + 100).try_for_each(|key| put(tx, key)))
            .unwrap();
    }
    db.close().unwrap();
    let worked = machine.by_callers.load(Ordering::SeqCst) + machine.worked_by_agents();
    let db = reopen(RemoteAccess::Auto);
    let measured = machine.by_callers.load(Ordering::SeqCst) + machine.worked_by_agents() - worked;
    assert!(
        measured >= 32,
        "{measured} leaves that were measured by the agent"
    );
    assert_ne!(access(&db), RemoteAccess::Auto);
    let table: Table<u64, Bytes> = db.open_table("one").unwrap();
    assert_eq!(db.snapshot().len(&table).unwrap(), 2_000);
}

/// Without other memory nodes, nobody needs an agent; without background threads, there is none.
#[test]
fn agents_are_where_they_can_be() {
    let device = Arc::new(MemoryDevice::new());
    let builder = Database::builder().pool_bytes(1 << 20);
    let builder = builder.remote_access(RemoteAccess::Agent);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let options = TablespaceOptions::on_device(device).pool_bytes(1 << 20);
    db.create_tablespace("near", options).unwrap();
    let access = |db: &Database| db.stats().tablespaces[0].remote_access;
    assert_eq!(access(&db), RemoteAccess::Direct);
    let remote = Remote::new();
    assert_eq!(access(&remote.db), RemoteAccess::Agent);
    let builder = Database::builder().background_threads(false);
    let db = remote.reopen(builder);
    assert_eq!(access(&db), RemoteAccess::Direct);
}
