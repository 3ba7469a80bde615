//! Random commands on a list and a sorted set, compared with simple models.

use std::collections::{BTreeMap, VecDeque};

use redis::Connection;

use super::support::{TestServer, run};

pub(crate) fn seed() -> u64 {
    let seed = std::env::var("BRAID_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    seed.unwrap_or_else(|| fastrand::u64(..))
}

#[test]
fn a_list_is_a_deque() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let connection = &mut server.connect();
    let mut model: VecDeque<u8> = VecDeque::new();
    for _ in 0..1_500 {
        let value = random.u8(..20);
        match random.u8(..10) {
            0..3 => {
                model.push_back(value);
                let len: usize = run(connection, &format!("RPUSH l {value}"));
                assert_eq!(len, model.len());
            }
            3..5 => {
                model.push_front(value);
                let len: usize = run(connection, &format!("LPUSH l {value}"));
                assert_eq!(len, model.len());
            }
            5 => {
                let popped: Option<u8> = run(connection, "LPOP l");
                assert_eq!(popped, model.pop_front());
            }
            6 => {
                let popped: Option<u8> = run(connection, "RPOP l");
                assert_eq!(popped, model.pop_back());
            }
            7 => {
                let pivot = random.u8(..20);
                let after = random.bool();
                let word = if after { "AFTER" } else { "BEFORE" };
                let len: i64 = run(connection, &format!("LINSERT l {word} {pivot} {value}"));
                match model.iter().position(|found| *found == pivot) {
                    Some(at) => {
                        model.insert(at + usize::from(after), value);
                        assert_eq!(len, model.len() as i64);
                    }
                    None => assert_eq!(len, if model.is_empty() { 0 } else { -1 }),
                }
            }
            8 => {
                let count = random.i64(-2..3);
                let removed: usize = run(connection, &format!("LREM l {count} {value}"));
                assert_eq!(removed, remove(&mut model, count, value));
            }
            _ => {
                let at = random.i64(-30..30);
                let found: Option<u8> = run(connection, &format!("LINDEX l {at}"));
                let position = if at < 0 { at + model.len() as i64 } else { at };
                let expected = usize::try_from(position)
                    .ok()
                    .and_then(|at| model.get(at).copied());
                assert_eq!(found, expected);
            }
        }
    }
    let all: Vec<u8> = run(connection, "LRANGE l 0 -1");
    assert_eq!(all, Vec::from(model));
}

/// LREM on the model.
fn remove(model: &mut VecDeque<u8>, count: i64, value: u8) -> usize {
    let mut hits: Vec<usize> = (0..model.len()).filter(|at| model[*at] == value).collect();
    if count < 0 {
        hits.reverse();
    }
    if count != 0 {
        hits.truncate(count.unsigned_abs() as usize);
    }
    hits.sort_unstable_by(|a, b| b.cmp(a));
    for at in &hits {
        model.remove(*at);
    }
    hits.len()
}

#[test]
fn a_sorted_set_is_ordered_by_score_and_member() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let connection = &mut server.connect();
    let mut model: BTreeMap<String, i64> = BTreeMap::new();
    for round in 0..2_000 {
        let member = format!("m{}", random.u16(..400));
        if random.u8(..3) == 0 {
            let removed: bool = run(connection, &format!("ZREM z {member}"));
            assert_eq!(removed, model.remove(&member).is_some());
        } else {
            let score = random.i64(-50..50);
            let added: bool = run(connection, &format!("ZADD z {score} {member}"));
            assert_eq!(added, model.insert(member, score).is_none());
        }
        if round % 100 == 99 {
            compare(connection, &model);
        }
    }
}

/// Compares members, ranks and counts.
fn compare(connection: &mut Connection, model: &BTreeMap<String, i64>) {
    let mut ordered: Vec<(i64, &String)> = model
        .iter()
        .map(|(member, score)| (*score, member))
        .collect();
    ordered.sort();
    let all: Vec<String> = run(connection, "ZRANGE z 0 -1");
    assert!(all.iter().eq(ordered.iter().map(|(_, member)| *member)));
    for (rank, (_, member)) in ordered.iter().enumerate().step_by(7) {
        let found: usize = run(connection, &format!("ZRANK z {member}"));
        assert_eq!(found, rank);
        let at: Vec<String> = run(connection, &format!("ZRANGE z {rank} {rank}"));
        assert_eq!(at, [(*member).clone()]);
    }
    let counted: usize = run(connection, "ZCOUNT z -10 (20");
    assert_eq!(
        counted,
        ordered
            .iter()
            .filter(|(score, _)| (-10..20).contains(score))
            .count()
    );
}
