//! Savepoints, compared with a stack of maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid::device::MemoryDevice;
use braid::{Bytes, ConflictKind, Database, Error, Readable, Savepoint, Table};
use proptest::prelude::*;

fn small() -> Database {
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .background_threads(false);
    builder.open_on(Arc::new(MemoryDevice::new())).unwrap()
}

type State = BTreeMap<u8, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, usize),
    Remove(u8),
    RemoveRange(u8, u8),
    Save,
    /// Rolls back to the savepoint at this depth below the newest, valid or not.
    Return(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..40, 0usize..60).prop_map(|(key, len)| Step::Insert(key, len)),
        2 => (0u8..40).prop_map(Step::Remove),
        1 => (0u8..40, 0u8..8).prop_map(|(from, len)| Step::RemoveRange(from, from + len)),
        2 => Just(Step::Save),
        2 => (0usize..6).prop_map(Step::Return),
    ];
    prop::collection::vec(step, 0..120)
}

fn contents(reader: &impl Readable, table: &Table<u8, Bytes>) -> State {
    let all = reader.iter(table).unwrap();
    all.map(|entry| entry.map(|(key, value)| (key, value.to_vec())))
        .collect::<Result<_, _>>()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_transaction_is_a_stack_of_maps(steps in steps(), before in steps()) {
        let db = small();
        let table: Table<u8, Bytes> = db.open_table("t").unwrap();
        let mut state = State::new();
        db.transact(|tx| {
            for step in &before {
                if let Step::Insert(key, len) = *step {
                    tx.insert(&table, &key, &vec![1; len])?;
                    state.insert(key, vec![1; len]);
                }
            }
            Ok(())
        })
        .unwrap();
        // All savepoints in the order of creation, and the states of the valid ones.
        let mut made: Vec<Savepoint> = Vec::new();
        let mut standing: Vec<(usize, State)> = Vec::new();
        let mut tx = db.begin();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(key, len) => {
                    let value = vec![i as u8; len];
                    tx.insert(&table, &key, &value).unwrap();
                    state.insert(key, value);
                }
                Step::Remove(key) => {
                    prop_assert_eq!(tx.remove(&table, &key).unwrap(), state.remove(&key).is_some());
                }
                Step::RemoveRange(from, to) => {
                    let before = state.len();
                    state.retain(|key, _| !(from..to).contains(key));
                    let removed = tx.remove_range(&table, from..to).unwrap();
                    prop_assert_eq!(removed, (before - state.len()) as u64);
                }
                Step::Save => {
                    standing.push((made.len(), state.clone()));
                    made.push(tx.savepoint());
                }
                Step::Return(below) => {
                    let Some(place) = made.len().checked_sub(below + 1) else { continue };
                    let returned = tx.rollback_to(&made[place]);
                    match standing.iter().position(|(made, _)| *made == place) {
                        Some(at) => {
                            returned.unwrap();
                            standing.truncate(at + 1);
                            state = standing[at].1.clone();
                        }
                        None => prop_assert!(matches!(returned, Err(Error::InvalidSavepoint))),
                    }
                }
            }
            for key in 0..40 {
                let found = tx.get(&table, &key).unwrap();
                prop_assert_eq!(found.as_deref(), state.get(&key).map(|v| &v[..]));
            }
        }
        prop_assert_eq!(contents(&tx, &table), state.clone());
        tx.commit().unwrap();
        prop_assert_eq!(contents(&db.snapshot(), &table), state);
    }
}

#[test]
fn another_transactions_savepoint_is_a_typed_error() {
    let db = small();
    let table: Table<u8, u8> = db.open_table("t").unwrap();
    let mut first = db.begin();
    let of_first = first.savepoint();
    first.insert(&table, &1, &1).unwrap();
    let mut second = db.begin();
    let of_second = second.savepoint();
    second.insert(&table, &2, &2).unwrap();
    assert!(matches!(
        first.rollback_to(&of_second),
        Err(Error::InvalidSavepoint)
    ));
    first.rollback_to(&of_first).unwrap();
    first.commit().unwrap();
    // The first transaction's context is reused.
    let mut third = db.begin();
    third.insert(&table, &3, &3).unwrap();
    assert!(matches!(
        third.rollback_to(&of_first),
        Err(Error::InvalidSavepoint)
    ));
    third.commit().unwrap();
    second.commit().unwrap();
    let found: Vec<u8> = db
        .snapshot()
        .iter(&table)
        .unwrap()
        .map(|e| e.unwrap().0)
        .collect();
    assert_eq!(found, [2, 3]);
}

#[test]
fn reads_before_a_rollback_are_validated() {
    let db = small();
    let table: Table<u8, u8> = db.open_table("t").unwrap();
    let mut tx = db.begin();
    let start = tx.savepoint();
    tx.insert(&table, &1, &1).unwrap();
    assert_eq!(tx.get(&table, &2).unwrap(), None);
    tx.rollback_to(&start).unwrap();
    tx.insert(&table, &3, &3).unwrap();
    db.transact(|other| other.insert(&table, &2, &2)).unwrap();
    let committed = tx.commit();
    assert!(matches!(
        committed,
        Err(Error::Conflict(ConflictKind::Read))
    ));
}

#[test]
fn a_rollback_gives_the_transaction_its_room_back() {
    let builder = Database::builder()
        .pool_bytes(1 << 20)
        .transaction_bytes_max(1 << 10);
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table: Table<u8, Bytes> = db.open_table("t").unwrap();
    let mut tx = db.begin();
    let start = tx.savepoint();
    for i in 0..20 {
        tx.insert(&table, &i, &[i; 900]).unwrap();
        assert!(matches!(
            tx.insert(&table, &i, &[i; 900]),
            Err(Error::TransactionTooLarge { .. })
        ));
        tx.rollback_to(&start).unwrap();
    }
    tx.commit().unwrap();
}
