//! Streams and groups of consumers.

use std::collections::{BTreeMap, BTreeSet};

use redis::Connection;

use super::blocking::{blocked, waiting};
use super::models::seed;
use super::support::{TestServer, run, script};

#[test]
fn entries() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        XADD s 1-1 a 1 b 2 => 1-1
        XADD s 1-1 a 1 => (ERR)
        XADD s 0-0 a 1 => (ERR)
        XADD s x a 1 => (ERR)
        XADD s 2 a => (ERR)
        XADD s 1-* a 3 => 1-2
        XADD s 5 a 4 => 5-0
        TYPE s => stream
        XLEN s => 3
        XLEN missing => 0
        XRANGE s - + => [[1-1 [a 1 b 2]] [1-2 [a 3]] [5-0 [a 4]]]
        XRANGE s 1 1 => [[1-1 [a 1 b 2]] [1-2 [a 3]]]
        XRANGE s (1-1 (5 => [[1-2 [a 3]]]
        XRANGE s - + COUNT 1 => [[1-1 [a 1 b 2]]]
        XRANGE s 9 3 => []
        XRANGE s - x => (ERR)
        XREVRANGE s + - COUNT 2 => [[5-0 [a 4]] [1-2 [a 3]]]
        XREVRANGE s 1 - => [[1-2 [a 3]] [1-1 [a 1 b 2]]]
        XADD missing NOMKSTREAM * a 1 => nil
        EXISTS missing => 0
        XDEL s 1-2 7-7 => 1
        XDEL s x => (ERR)
        XLEN s => 2
        XADD s 1-3 a 1 => (ERR)
        XSETID s 9-9 ENTRIESADDED 7 MAXDELETEDID 3-3 => OK
        XSETID s 4-4 => (ERR)
        XSETID missing 1-1 => (ERR)
        XADD s 9-* a 5 => 9-10
        SET t 1 => OK
        XADD t * a 1 => (WRONGTYPE)
        XLEN t => (WRONGTYPE)
        XDEL s 1-1 5-0 9-10 => 3
        EXISTS s => 1
        XADD s 9-10 a 1 => (ERR)
        COPY s u => 1
        XADD u 9-11 a 1 => 9-11
        XLEN s => 0
        OBJECT ENCODING s => stream
        DEL s u => 2
        XADD s * a 1 b => (ERR)
        ",
    );
}

#[test]
fn trimming() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    for id in 1..=250 {
        let _: String = run(connection, &format!("XADD s {id} n {id}"));
    }
    script(
        connection,
        "
        XTRIM s MAXLEN 248 => 2
        XTRIM s MAXLEN ~ 150 => 0
        XTRIM s MAXLEN ~ 20 LIMIT 150 => 100
        XTRIM s MAXLEN ~ 20 LIMIT 0 => 100
        XLEN s => 48
        XTRIM s MINID 240 => 37
        XTRIM s MINID ~ 250 => 0
        XRANGE s - + COUNT 1 => [[240-0 [n 240]]]
        XADD s MAXLEN = 2 300 n 300 => 300-0
        XRANGE s - + => [[250-0 [n 250]] [300-0 [n 300]]]
        XADD s MINID 301 301-1 n 301 => 301-1
        XLEN s => 1
        XTRIM s MAXLEN ~ 0 => 1
        XTRIM s MAXLEN -1 => (ERR)
        XTRIM s MAXLEN 1 LIMIT 3 => (ERR)
        XTRIM s MAXLEN 1 MINID 3 => (ERR)
        XADD s LIMIT 3 * a 1 => (ERR)
        XTRIM s => (ERR)
        ",
    );
}

#[test]
fn reading() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        XADD a 1 n 1 => 1-0
        XADD a 2 n 2 => 2-0
        XADD b 3 n 3 => 3-0
        XREAD STREAMS a 0 => [[a [[1-0 [n 1]] [2-0 [n 2]]]]]
        XREAD COUNT 1 STREAMS a b 0 0 => [[a [[1-0 [n 1]]]] [b [[3-0 [n 3]]]]]
        XREAD STREAMS a b 2 $ => nil
        XREAD BLOCK 1 STREAMS a b 2 $ => nil
        XREAD STREAMS a => (ERR)
        XREAD BLOCK -1 STREAMS a 0 => (ERR)
        XREAD BLOCK x STREAMS a 0 => (ERR)
        XREAD STREAMS a > => (ERR)
        XREAD GROUP g c STREAMS a 0 => (ERR)
        XREADGROUP NOACK COUNT 1 STREAMS a > > => (ERR)
        COMMAND GETKEYS XREAD COUNT 1 STREAMS a b 0 0 => [a b]
        ",
    );
    script(
        &mut server.connect_with("?protocol=resp3"),
        "XREAD STREAMS a b 1 5 => [a [[2-0 [n 2]]]]",
    );
}

#[test]
fn groups() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        XGROUP CREATE s g $ => (ERR)
        XGROUP CREATE s g $ MKSTREAM => OK
        XGROUP CREATE s g $ => (BUSYGROUP)
        XADD s 1 n 1 => 1-0
        XADD s 2 n 2 => 2-0
        XADD s 3 n 3 => 3-0
        XREADGROUP GROUP g c COUNT 2 STREAMS s > => [[s [[1-0 [n 1]] [2-0 [n 2]]]]]
        XREADGROUP GROUP g d STREAMS s > => [[s [[3-0 [n 3]]]]]
        XREADGROUP GROUP g d STREAMS s > => nil
        XREADGROUP GROUP g d STREAMS s 0 => [[s [[3-0 [n 3]]]]]
        XREADGROUP GROUP g d STREAMS s 3 => [[s []]]
        XREADGROUP GROUP g d STREAMS s $ => (ERR)
        XREADGROUP GROUP h d STREAMS s > => (NOGROUP)
        XPENDING s g => [3 1-0 3-0 [[c 2] [d 1]]]
        XACK s g 1-0 9-9 => 1
        XACK s g 1-0 => 0
        XACK s h 1-0 => 0
        XPENDING s g => [2 2-0 3-0 [[c 1] [d 1]]]
        XCLAIM s g c 0 3-0 JUSTID => [3-0]
        XCLAIM s g c 99999999 2-0 => []
        XCLAIM s g c 0 1-0 => []
        XCLAIM s g e 0 1-0 FORCE RETRYCOUNT 7 IDLE 5000 => [[1-0 [n 1]]]
        XCLAIM s g e 0 1-0 NONSENSE => (ERR)
        XPENDING s g => [3 1-0 3-0 [[c 2] [e 1]]]
        XPENDING s g IDLE 99999999 - + 10 e => []
        XPENDING s g IDLE 5000 - + => (ERR)
        XPENDING s g - + 10 nobody => []
        XPENDING s h => (NOGROUP)
        ",
    );
    let idle: Vec<(String, String, u64, u64)> =
        run(&mut server.connect(), "XPENDING s g IDLE 5000 - + 10");
    assert_eq!((&idle[0].0[..], &idle[0].1[..], idle[0].3), ("1-0", "e", 7));
    assert!(idle.len() == 1 && idle[0].2 >= 5000);
}

#[test]
fn deleted_entries_and_consumers() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        XADD s 1 n 1 => 1-0
        XADD s 2 n 2 => 2-0
        XADD s 3 n 3 => 3-0
        XGROUP CREATE s g 0 => OK
        XGROUP CREATECONSUMER s g idle => 1
        XGROUP CREATECONSUMER s g idle => 0
        XREADGROUP GROUP g c STREAMS s > => [[s [[1-0 [n 1]] [2-0 [n 2]] [3-0 [n 3]]]]]
        XDEL s 2 => 1
        XREADGROUP GROUP g c STREAMS s 0 => [[s [[1-0 [n 1]] [2-0 nil] [3-0 [n 3]]]]]
        XAUTOCLAIM s g d 0 - COUNT 2 => [3-0 [[1-0 [n 1]]] [2-0]]
        XAUTOCLAIM s g d 0 3-0 JUSTID => [0-0 [3-0] []]
        XAUTOCLAIM s g d 0 - COUNT 0 => (ERR)
        XPENDING s g => [2 1-0 3-0 [[d 2]]]
        XGROUP SETID s g 1 => OK
        XREADGROUP GROUP g e NOACK STREAMS s > => [[s [[3-0 [n 3]]]]]
        XPENDING s g => [2 1-0 3-0 [[d 2]]]
        XGROUP SETID s g 1 => OK
        XREADGROUP GROUP g e STREAMS s > => [[s [[3-0 [n 3]]]]]
        XPENDING s g => [2 1-0 3-0 [[d 1] [e 1]]]
        XGROUP DELCONSUMER s g d => 1
        XGROUP DELCONSUMER s g d => 0
        XPENDING s g => [1 3-0 3-0 [[e 1]]]
        RENAME s t => OK
        XPENDING t g => [1 3-0 3-0 [[e 1]]]
        COPY t u => 1
        XACK t g 3-0 => 1
        XPENDING u g => [1 3-0 3-0 [[e 1]]]
        XGROUP DESTROY u g => 1
        XGROUP DESTROY u g => 0
        XPENDING u g => (NOGROUP)
        XGROUP CREATE u g 0 => OK
        XPENDING u g => [0 nil nil nil]
        XINFO CONSUMERS u g => []
        XGROUP NONSENSE u g => (ERR)
        XGROUP CREATE u => (ERR)
        ",
    );
}

#[test]
fn information() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "
        XADD s 1 n 1 => 1-0
        XADD s 2 n 2 => 2-0
        XADD s 3 n 3 => 3-0
        XGROUP CREATE s g 0 => OK
        XGROUP CREATE s h $ ENTRIESREAD 2 => OK
        XINFO GROUPS s => [[name g consumers 0 pending 0 last-delivered-id 0-0 entries-read nil lag 3] [name h consumers 0 pending 0 last-delivered-id 3-0 entries-read 2 lag 1]]
        XREADGROUP GROUP g c COUNT 1 STREAMS s > => [[s [[1-0 [n 1]]]]]
        XDEL s 2 => 1
        XINFO STREAM s => [length 2 radix-tree-keys 2 radix-tree-nodes 3 last-generated-id 3-0 max-deleted-entry-id 2-0 entries-added 3 recorded-first-entry-id 1-0 groups 2 first-entry [1-0 [n 1]] last-entry [3-0 [n 3]]]
        XINFO GROUPS s => [[name g consumers 1 pending 1 last-delivered-id 1-0 entries-read 1 lag nil] [name h consumers 0 pending 0 last-delivered-id 3-0 entries-read 2 lag 1]]
        XINFO STREAM missing => (ERR)
        XINFO CONSUMERS s nogroup => (NOGROUP)
        XINFO STREAM s FULL COUNT 1 EXTRA => (ERR)
        ",
    );
    let full: redis::Value = run(connection, "XINFO STREAM s FULL COUNT 1");
    let full = format!("{full:?}");
    for part in ["pel-count", "seen-time", "active-time", "entries-read"] {
        assert!(full.contains(part), "{part}: {full}");
    }
    let consumers: Vec<BTreeMap<String, redis::Value>> = run(connection, "XINFO CONSUMERS s g");
    assert_eq!(consumers[0]["pending"], redis::Value::Int(1));
    // More entries read than were added.
    script(
        connection,
        "
        XGROUP DESTROY s g => 1
        XGROUP DESTROY s h => 1
        XGROUP CREATE s i 0 ENTRIESREAD 7 => OK
        XINFO GROUPS s => [[name i consumers 0 pending 0 last-delivered-id 0-0 entries-read 7 lag nil]]
        XTRIM s MINID 3 => 1
        XINFO GROUPS s => [[name i consumers 0 pending 0 last-delivered-id 0-0 entries-read 7 lag -4]]
        ",
    );
}

#[test]
fn readers_wait_for_entries() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(connection, "XADD s 1 n 1 => 1-0\nXGROUP CREATE s g $ => OK");
    // Everybody gets an entry that XREAD waits for.
    let mut readers: Vec<_> = (0..3)
        .map(|count| {
            let reader = waiting(&server, "XREAD BLOCK 0 STREAMS other s $ $");
            blocked(&server, count + 1);
            reader
        })
        .collect();
    script(connection, "XADD s 2 n 2 => 2-0");
    for reader in &mut readers {
        let lines = reader.lines(13);
        assert_eq!((&lines[3][..], &lines[7][..]), ("s", "2-0"));
    }
    blocked(&server, 0);
    // Readers of a group get entries in the order in which they began to wait.
    script(
        connection,
        "XREADGROUP GROUP g c STREAMS s > => [[s [[2-0 [n 2]]]]]",
    );
    let mut readers: Vec<_> = (0..4)
        .map(|count| {
            let command = format!("XREADGROUP GROUP g c{count} COUNT 1 BLOCK 0 STREAMS s >");
            let reader = waiting(&server, &command);
            blocked(&server, count + 1);
            reader
        })
        .collect();
    script(
        connection,
        "MULTI\nXADD s 3 n 3 => QUEUED\nXADD s 4 n 4 => QUEUED\nEXEC => [3-0 4-0]\nXADD s 5 n 5 => 5-0",
    );
    for (reader, id) in readers.iter_mut().zip(["3-0", "4-0", "5-0"]) {
        assert_eq!(reader.lines(13)[7], id);
    }
    script(
        connection,
        "XPENDING s g => [4 2-0 5-0 [[c 1] [c0 1] [c1 1] [c2 1]]]\nXGROUP DESTROY s g => 1",
    );
    assert!(readers[3].line().starts_with("-NOGROUP"));
    // A client that waits for another type waits on.
    let mut popping = waiting(&server, "BLPOP q 0");
    blocked(&server, 1);
    script(
        connection,
        "XADD q 1 n 1 => 1-0\nDEL q => 1\nRPUSH q x => 1",
    );
    assert_eq!(popping.lines(5)[4], "x");
}

#[test]
fn databases_are_exchanged_under_waiting_clients() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    let mut client = waiting(&server, "BLPOP q 0");
    blocked(&server, 1);
    script(
        connection,
        "SELECT 1\nRPUSH other 1 => 1\nSWAPDB 0 1\nRPUSH q wrong => 1\nSELECT 0\nRPUSH q right => 1",
    );
    assert_eq!(client.lines(5)[4], "right");
    let mut client = waiting(&server, "BLPOP q 0");
    blocked(&server, 1);
    script(connection, "SWAPDB 0 1");
    assert_eq!(client.lines(5)[4], "wrong");
}

/// Id and fields of an entry.
type Item = (String, Vec<String>);

/// A stream with one group, as a model.
#[derive(Default)]
struct Model {
    entries: BTreeSet<u64>,
    last: u64,
    delivered: u64,
    /// Consumer and number of deliveries of pending entries.
    pending: BTreeMap<u64, (u8, u64)>,
}

#[test]
fn a_group_delivers_each_entry_once_and_remembers_it() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let connection = &mut server.connect();
    let mut model = Model::default();
    let _: String = run(connection, "XGROUP CREATE s g 0 MKSTREAM");
    for round in 0..1_500 {
        step(connection, &mut random, &mut model);
        if round % 50 == 49 {
            compare(connection, &model);
        }
    }
}

fn step(connection: &mut Connection, random: &mut fastrand::Rng, model: &mut Model) {
    let (consumer, count) = (random.u8(..4), random.usize(1..4));
    let some = random.u64(..=model.last);
    match random.u8(..12) {
        0..4 => {
            model.last += random.u64(1..3);
            model.entries.insert(model.last);
            let _: String = run(connection, &format!("XADD s {} n 1", model.last));
        }
        4..7 => {
            let reply: Option<Vec<(String, Vec<Item>)>> = run(
                connection,
                &format!("XREADGROUP GROUP g c{consumer} COUNT {count} STREAMS s >"),
            );
            let items = reply.into_iter().flatten().flat_map(|(_, items)| items);
            let ids: Vec<u64> = items.map(|(id, _)| of(&id)).collect();
            let after = model.entries.range(model.delivered + 1..);
            let expected: Vec<u64> = after.copied().take(count).collect();
            assert_eq!(ids, expected);
            for id in ids {
                model.delivered = id;
                model.pending.insert(id, (consumer, 1));
            }
        }
        7 => {
            let acknowledged: bool = run(connection, &format!("XACK s g {some}"));
            assert_eq!(acknowledged, model.pending.remove(&some).is_some());
        }
        8 => {
            let deleted: bool = run(connection, &format!("XDEL s {some}"));
            assert_eq!(deleted, model.entries.remove(&some));
        }
        9 => {
            let kept = random.usize(5..30);
            let trimmed: usize = run(connection, &format!("XTRIM s MAXLEN {kept}"));
            assert_eq!(trimmed, model.entries.len().saturating_sub(kept));
            for _ in 0..trimmed {
                model.entries.pop_first();
            }
        }
        10 => {
            let ids: Vec<String> = run(
                connection,
                &format!("XCLAIM s g c{consumer} 0 {some} JUSTID"),
            );
            let is_there = model.entries.contains(&some);
            let pending = model.pending.get_mut(&some);
            assert_eq!(ids.len(), usize::from(is_there && pending.is_some()));
            match pending {
                Some(pending) if is_there => pending.0 = consumer,
                _ => drop(model.pending.remove(&some)),
            }
        }
        _ => {
            let _: redis::Value = run(
                connection,
                &format!("XAUTOCLAIM s g c{consumer} 0 {some} COUNT {count}"),
            );
            let all: Vec<u64> = model.pending.range(some..).map(|(id, _)| *id).collect();
            for id in all.into_iter().take(count) {
                if model.entries.contains(&id) {
                    if let Some(pending) = model.pending.get_mut(&id) {
                        *pending = (consumer, pending.1 + 1);
                    }
                } else {
                    model.pending.remove(&id);
                }
            }
        }
    }
}

fn of(id: &str) -> u64 {
    id.split('-').next().unwrap().parse().unwrap()
}

fn compare(connection: &mut Connection, model: &Model) {
    let items: Vec<Item> = run(connection, "XRANGE s - +");
    let ids: Vec<u64> = items.iter().map(|(id, _)| of(id)).collect();
    assert!(ids.iter().eq(&model.entries));
    let len: usize = run(connection, "XLEN s");
    assert_eq!(len, model.entries.len());
    let pending: Vec<(String, String, u64, u64)> = run(connection, "XPENDING s g - + 9999");
    assert_eq!(pending.len(), model.pending.len());
    for ((id, consumer, _, count), (expected, (owner, times))) in pending.iter().zip(&model.pending)
    {
        assert_eq!(*id, format!("{expected}-0"));
        assert_eq!(*consumer, format!("c{owner}"));
        assert_eq!(count, times);
    }
    for owner in 0..4 {
        // By consumer, the same entries are found.
        let own: Vec<(String, String, u64, u64)> =
            run(connection, &format!("XPENDING s g - + 9999 c{owner}"));
        let expected = model.pending.iter().filter(|(_, (of, _))| *of == owner);
        assert!(
            own.iter()
                .map(|(id, ..)| id.clone())
                .eq(expected.map(|(id, _)| format!("{id}-0")))
        );
    }
    let consumers: Vec<BTreeMap<String, redis::Value>> = run(connection, "XINFO CONSUMERS s g");
    let counted: i64 = consumers
        .iter()
        .map(|consumer| redis::from_redis_value::<i64>(consumer["pending"].clone()).unwrap())
        .sum();
    assert_eq!(counted, model.pending.len() as i64);
}
