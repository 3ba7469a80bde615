//! Crash histories on the simulated device.
//!
//! A seed generates a history: transactions from several threads in turn, blocking and pipelined
//! commits, aborts, checkpoints, tables created and dropped, clean reopens, and power failures at
//! any step, also during recovery and checkpoints. After each failure the database must hold the
//! state after some prefix of the commits (I2, I3, I7) that includes everything acknowledged (I1),
//! and everything that a snapshot returned before (I4).

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::{Bytes, Database, Error, Protocol, Readable, Table, Ticket};
use braid_io::SimDevice;

/// Number of histories of a protocol, most for the baseline and the default. `BRAID_HISTORIES`
/// limits it on slow machines, such as emulated ones.
fn histories_of(protocol: Protocol) -> u64 {
    let count = match protocol {
        Protocol::Serial | Protocol::Glsn => 1_000,
        _ => 300,
    };
    let most = std::env::var("BRAID_HISTORIES").ok();
    most.map_or(count, |most| count.min(most.parse().expect("a number")))
}

type State = BTreeMap<Vec<u8>, Vec<u8>>;

struct History {
    seed: u64,
    rng: fastrand::Rng,
    protocol: Protocol,
    device: SimDevice,
    /// The state after each commit, in commit order. The first is the empty state.
    states: Vec<State>,
    /// Tickets of commits that were not known to be durable, with their indices in `states`.
    pending: Vec<(usize, Ticket)>,
    /// Index of the last state that was acknowledged or seen by a snapshot.
    certain: usize,
    crashes: u64,
}

fn place_key() -> Vec<u8> {
    b"place".to_vec()
}

impl History {
    fn new(seed: u64, protocol: Protocol) -> Self {
        Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            protocol,
            device: SimDevice::new(seed),
            states: vec![State::new()],
            pending: Vec::new(),
            certain: 0,
            crashes: 0,
        }
    }

    fn open(&self) -> Result<Database, Error> {
        let several = self.protocol.forced_strands().is_none();
        let builder = Database::builder()
            .background_threads(false)
            .pool_bytes(1 << 20)
            .segment_bytes(128 << 10)
            .discard(self.seed % 4 == 1)
            .strands(if several { 3 } else { 1 })
            .lanes(if several && self.seed.is_multiple_of(3) {
                2
            } else {
                1
            })
            .protocol(self.protocol);
        builder.open_on(Arc::new(self.device.clone()))
    }

    /// Opens the database while the power fails repeatedly.
    fn open_through_crashes(&mut self) -> Database {
        for _ in 0..self.rng.u32(..4) {
            self.device.crash_after(self.rng.u64(1..60));
            match self.open() {
                // The open succeeded; the power may still fail at a later step.
                Ok(db) => return db,
                Err(_) => self.power_comes_back(),
            }
        }
        loop {
            match self.open() {
                Ok(db) => return db,
                Err(_) if self.device.has_crashed() => self.power_comes_back(),
                Err(error) => panic!("seed {}: recovery fails: {error}", self.seed),
            }
        }
    }

    fn power_comes_back(&mut self) {
        self.crashes += 1;
        self.device = self.device.after_crash();
        self.pending.clear();
    }

    fn run(&mut self, rounds: u32) {
        let mut db = self.open_through_crashes();
        for _ in 0..rounds {
            while !self.check(&db) {
                drop(db);
                self.power_comes_back();
                db = self.open_through_crashes();
            }
            if self.rng.bool() {
                self.device.crash_after(self.rng.u64(1..200));
            }
            let steps = self.rng.u32(1..30);
            let alive = (0..steps).all(|_| self.step(&db));
            let ends_clean = alive && self.rng.bool() && db.clone().close().is_ok();
            if ends_clean {
                self.certain = self.states.len() - 1;
                self.pending.clear();
            } else {
                self.collect_acknowledged();
            }
            drop(db);
            if !ends_clean || self.device.has_crashed() {
                self.power_comes_back();
            }
            db = self.open_through_crashes();
        }
        // Unless the power failed at the last moment.
        self.check(&db);
    }

    fn collect_acknowledged(&mut self) {
        for (place, ticket) in self.pending.drain(..) {
            if ticket.is_durable() {
                self.certain = self.certain.max(place);
            }
        }
    }

    /// One operation of a user; returns `false` once the device has failed.
    fn step(&mut self, db: &Database) -> bool {
        match self.rng.u32(..20) {
            0 => db.checkpoint().is_ok(),
            1 => self.create_and_drop_tables(db),
            2 => {
                let Ok(table) = db.open_table::<Bytes, Bytes>("t") else {
                    return false;
                };
                let place = place_of(&db.snapshot(), &table);
                if let Ok(place) = place {
                    // I4: a state that a snapshot showed does not vanish.
                    self.certain = self.certain.max(place);
                }
                place.is_ok()
            }
            3 => {
                let synced = db.sync().is_ok();
                if synced {
                    self.certain = self.states.len() - 1;
                }
                synced
            }
            _ => self.transaction(db),
        }
    }

    fn transaction(&mut self, db: &Database) -> bool {
        let mut rng = self.rng.fork();
        let next = self.states.len();
        let mut state = self.states[next - 1].clone();
        // On its own thread, so that the commits spread over the strands.
        let outcome = std::thread::scope(|scope| {
            scope
                .spawn(|| transact(db, &mut rng, &mut state, next))
                .join()
                .unwrap()
        });
        match outcome {
            Outcome::Aborted => return true,
            Outcome::Failed => return false,
            Outcome::InDoubt => {
                self.states.push(state);
                return false;
            }
            Outcome::Durable => {
                self.states.push(state);
                self.certain = next;
            }
            Outcome::Pending(ticket) => {
                self.states.push(state);
                self.pending.push((next, ticket));
                if self.rng.u32(..4) == 0 {
                    let i = self.rng.usize(..self.pending.len());
                    let (place, ticket) = self.pending.swap_remove(i);
                    if ticket.wait().is_err() {
                        return false;
                    }
                    self.certain = self.certain.max(place);
                }
            }
        }
        true
    }

    fn create_and_drop_tables(&mut self, db: &Database) -> bool {
        let name = format!("extra-{}", self.rng.u32(..3));
        if self.rng.bool() {
            db.open_table::<u64, Bytes>(&name).is_ok()
        } else {
            db.drop_table(&name).is_ok()
        }
    }

    /// Compares the database with the expected states; returns `false` if the power fails
    /// meanwhile, so that nothing is known.
    fn check(&mut self, db: &Database) -> bool {
        let seed = self.seed;
        let found = db.open_table::<Bytes, Bytes>("t").and_then(|table| {
            let snapshot = db.snapshot();
            let place = place_of(&snapshot, &table)?;
            let all = snapshot.iter(&table)?;
            let state = all.map(|e| e.map(|(k, v)| (k.to_vec(), v.to_vec())));
            Ok((place, state.collect::<Result<State, Error>>()?))
        });
        let (place, found) = match found {
            Ok(found) => found,
            Err(_) if self.device.has_crashed() => return false,
            Err(error) => panic!("seed {seed}: a working device fails: {error}"),
        };
        assert!(
            place >= self.certain,
            "seed {seed}: I1: {place}, not {}",
            self.certain
        );
        assert!(
            place < self.states.len(),
            "seed {seed}: {place} was never committed"
        );
        assert!(
            found == self.states[place],
            "seed {seed}: I2, I3, I7: not the state at {place}"
        );
        // Lost transactions never happened.
        self.states.truncate(place + 1);
        self.certain = place;
        true
    }
}

fn place_of(reader: &impl Readable, table: &Table) -> Result<usize, Error> {
    let place = reader.get(table, &place_key())?;
    Ok(place.map_or(0, |p| usize::from_le_bytes(p[..8].try_into().unwrap())))
}

enum Outcome {
    Aborted,
    Failed,
    InDoubt,
    Durable,
    Pending(Ticket),
}

fn transact(db: &Database, rng: &mut fastrand::Rng, state: &mut State, next: usize) -> Outcome {
    let Ok(table) = db.open_table::<Bytes, Bytes>("t") else {
        return Outcome::Failed;
    };
    let mut tx = db.begin();
    let mut write = || {
        for _ in 0..rng.u32(1..6) {
            let key = format!("key-{:02}", rng.u32(..40)).into_bytes();
            if rng.u32(..4) == 0 {
                let was_there = tx.remove(&table, &key)?;
                assert_eq!(was_there, state.remove(&key).is_some());
            } else {
                let len = match rng.u32(..40) {
                    0 => rng.usize(10_000..200_000),
                    1..5 => rng.usize(1_000..4_000),
                    _ => rng.usize(0..100),
                };
                let value = vec![rng.u8(..); len];
                tx.insert(&table, &key, &value)?;
                state.insert(key, value);
            }
        }
        let place = next.to_le_bytes().to_vec();
        tx.insert(&table, &place_key(), &place)?;
        state.insert(place_key(), place);
        Ok::<(), Error>(())
    };
    if write().is_err() {
        return Outcome::Failed;
    }
    match rng.u32(..8) {
        0 => {
            tx.abort();
            Outcome::Aborted
        }
        1..4 => match tx.commit() {
            Ok(_) => Outcome::Durable,
            Err(_) => Outcome::InDoubt,
        },
        _ => match tx.commit_async() {
            Ok(ticket) => Outcome::Pending(ticket),
            Err(_) => Outcome::InDoubt,
        },
    }
}

fn histories(protocol: Protocol) {
    let fixed = std::env::var("BRAID_SEED")
        .ok()
        .map(|seed| seed.parse().expect("a number"));
    let count = histories_of(protocol);
    let seeds = fixed.map_or(0..count, |seed: u64| seed..seed + 1);
    let mut crashes = 0;
    for seed in seeds {
        let mut history = History::new(seed, protocol);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.run(3)));
        if let Err(cause) = caught {
            eprintln!("the history of BRAID_SEED={seed} with {protocol} failed");
            std::panic::resume_unwind(cause);
        }
        crashes += history.crashes;
    }
    assert!(fixed.is_some() || crashes > count, "only {crashes} crashes");
    println!("{protocol}: {crashes} crashes in {count} histories");
}

macro_rules! histories_survive_crashes {
    ($($name:ident: $protocol:ident),*) => {$(
        #[test]
        fn $name() {
            histories(Protocol::$protocol);
        }
    )*};
}

histories_survive_crashes! {
    serial_histories_survive_crashes: Serial,
    aether_histories_survive_crashes: Aether,
    epoch_histories_survive_crashes: Epoch,
    gsn_histories_survive_crashes: Gsn,
    glsn_histories_survive_crashes: Glsn,
    gwsn_strict_histories_survive_crashes: GwsnStrict,
    gwsn_histories_survive_crashes: Gwsn
}
