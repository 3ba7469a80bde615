//! Programs for the API, compared with a `BTreeMap`, with commits, aborts, checkpoints and
//! reopening.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::{Bytes, Database, Protocol, Readable, Table};
use braid_io::MemoryDevice;

use super::Target;
use crate::edit::Input;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

const PROTOCOLS: [Protocol; 7] = [
    Protocol::Serial,
    Protocol::Aether,
    Protocol::Epoch,
    Protocol::Glsn,
    Protocol::Gwsn,
    Protocol::GwsnStrict,
    Protocol::Gsn,
];

pub(super) const OPERATIONS: Target = Target {
    name: "operations",
    run,
    corpus: || {
        let program = |protocol: u8| {
            let mut program = vec![protocol];
            for i in 0..24u8 {
                program.extend([i % 12, i * 5, i.wrapping_mul(31), i]);
            }
            program
        };
        (0..7).map(program).collect()
    },
    runs: 250,
};

fn open(device: &Arc<MemoryDevice>, protocol: Protocol) -> (Database, Table<Bytes, Bytes>) {
    let builder = Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(256 << 10)
        .strands(protocol.forced_strands().unwrap_or(2))
        .protocol(protocol);
    let db = builder.open_on(device.clone()).expect("it opens");
    let table = db.open_table("rows").expect("there is a table");
    (db, table)
}

/// Returns a key: few different ones, so that operations meet, of all lengths.
fn key(input: &mut Input<'_>) -> Vec<u8> {
    let byte = input.byte();
    let len = match byte % 8 {
        0..=5 => byte as usize % 6,
        6 => 40,
        _ => 1024,
    };
    let mut key = vec![byte / 16; len];
    if let Some(last) = key.last_mut() {
        *last = byte;
    }
    key
}

/// Returns the bounds of a range, in order.
fn bounds(input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
    let (a, b) = (key(input), key(input));
    if a <= b { (a, b) } else { (b, a) }
}

fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let protocol = PROTOCOLS[usize::from(input.byte()) % PROTOCOLS.len()];
    let device = Arc::new(MemoryDevice::new());
    let (mut db, mut table) = open(&device, protocol);
    let mut state = State::new();
    let mut steps = 0;
    while !input.is_empty() && steps < 300 {
        steps += 1;
        match input.byte() % 12 {
            0 => {
                db.checkpoint().expect("a checkpoint");
            }
            1 => {
                db.close().expect("it closes");
                (db, table) = open(&device, protocol);
            }
            2 => {
                // As after the end of a process.
                db.sync().expect("it is durable");
                drop((db, table));
                (db, table) = open(&device, protocol);
            }
            3 => scan(&db, &table, &mut input, &state),
            4 => {
                db.sync().expect("it is durable");
                let key = key(&mut input);
                let found = db.get(&table, &key[..]).expect("a read");
                assert_eq!(found.as_deref(), state.get(&key).map(|v| &v[..]), "a read");
            }
            10 => {
                let mut entries = State::new();
                for _ in 0..input.byte() % 16 {
                    let key = key(&mut input);
                    entries.insert(key, vec![input.byte(); 30]);
                }
                db.ingest(
                    &table,
                    entries.iter().map(|(key, value)| (&key[..], &value[..])),
                )
                .expect("an ingest");
                state.extend(entries);
            }
            11 => {
                let (from, to) = bounds(&mut input);
                let is_empty = from == to;
                let range = Bytes::from(from)..Bytes::from(to);
                let estimate = db.estimate(&table, range).expect("an estimate");
                assert!(!is_empty || estimate.entries == 0, "an empty range");
            }
            _ => transaction(&db, &table, &mut input, &mut state),
        }
    }
    db.close().expect("it closes");
    let (db, table) = open(&device, protocol);
    let snapshot = db.snapshot();
    let all = snapshot.iter(&table).expect("a scan");
    let all: State = all
        .map(|entry| entry.expect("an entry"))
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect();
    assert_eq!(all, state, "the end");
}

/// Reads a range from both ends, as the program says.
fn scan(db: &Database, table: &Table<Bytes, Bytes>, input: &mut Input<'_>, state: &State) {
    db.sync().expect("it is durable");
    let snapshot = db.snapshot();
    let (from, to) = bounds(input);
    let range = Bytes::from(from.clone())..Bytes::from(to.clone());
    let mut found = snapshot.range(table, range).expect("a range");
    let mut expected = state.range(from..to);
    for _ in 0..=state.len() {
        let reverse = input.byte() % 2 == 1;
        let next = if reverse {
            found.next_back()
        } else {
            found.next()
        };
        let next = next.map(|entry| entry.expect("an entry"));
        let other = if reverse {
            expected.next_back()
        } else {
            expected.next()
        };
        let next = next.map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(next, other.map(|(k, v)| (k.clone(), v.clone())), "a range");
    }
}

/// Runs some writes and reads, then commits or aborts.
fn transaction(
    db: &Database,
    table: &Table<Bytes, Bytes>,
    input: &mut Input<'_>,
    state: &mut State,
) {
    let mut tx = db.begin();
    let mut own = state.clone();
    let end = input.byte();
    for _ in 0..end % 8 {
        let op = input.byte();
        let key = key(input);
        match op % 4 {
            0 => {
                let gone = tx.take(table, &key[..]).expect("a removal");
                assert_eq!(gone.map(|value| value.to_vec()), own.remove(&key), "taken");
            }
            1 => {
                let found = tx.get(table, &key[..]).expect("a read");
                assert_eq!(found.as_deref(), own.get(&key).map(|v| &v[..]), "own write");
            }
            _ => {
                let len = match op / 4 {
                    0..=40 => usize::from(op),
                    41..=60 => usize::from(op) * 20,
                    _ => usize::from(op) * 100,
                };
                let value = vec![op; len];
                tx.insert(table, &key[..], &value[..]).expect("a write");
                own.insert(key, value);
            }
        }
    }
    match end / 8 % 4 {
        0 => tx.abort(),
        1 => {
            drop(tx.commit_async().expect("a commit"));
            *state = own;
        }
        _ => {
            tx.commit().expect("a commit");
            *state = own;
        }
    }
}
