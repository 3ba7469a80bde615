//! Times of expiration of fields of hashes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid::{Bytes, Database, Readable};

use super::models::seed;
use super::support::{TestServer, run, script, show};

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64
}

#[test]
fn fields_have_times() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        HSET h a 1 b 2 c 3 => 3
        HEXPIRE h 1000 FIELDS 2 a x => [1 -2]
        HTTL h FIELDS 3 a b x => [~1000 -1 -2]
        HPEXPIREAT h 4000000000000 FIELDS 1 a => [1]
        HPEXPIRETIME h FIELDS 1 a => [4000000000000]
        HEXPIRETIME h FIELDS 1 a => [4000000000]
        HEXPIRE h 1000 NX FIELDS 2 a b => [0 1]
        HEXPIRE h 2000 XX FIELDS 2 b c => [1 0]
        HEXPIRE h 1000 GT FIELDS 2 b c => [0 0]
        HEXPIRE h 1000 LT FIELDS 2 b c => [1 1]
        HTTL h FIELDS 2 b c => [~1000 ~1000]
        HPERSIST h FIELDS 4 a b x c => [1 1 -2 1]
        HPERSIST h FIELDS 1 a => [-1]
        HTTL missing FIELDS 2 a b => [-2 -2]
        HEXPIRE missing 10 FIELDS 1 a => [-2]
        HPERSIST missing FIELDS 1 a => [-2]
        EXISTS missing => 0
        HEXPIRE h 0 FIELDS 2 a x => [2 -2]
        HMGET h a b c => [nil 2 3]
        HEXPIREAT h 1 FIELDS 2 b c => [2 2]
        EXISTS h => 0
        ",
    );
    let connection = &mut server.connect();
    script(
        connection,
        "
        HSET h a 1 b 2 => 2
        HPEXPIRE h 100000 FIELDS 1 a => [1]
        HSET h a 2 => 0
        HTTL h FIELDS 1 a => [-1]
        HPEXPIRE h 100000 FIELDS 1 a => [1]
        HINCRBY h a 3 => 5
        HTTL h FIELDS 1 a => [~100]
        HDEL h a => 1
        HSET h a 1 => 1
        HTTL h FIELDS 1 a => [-1]
        SET s 1
        HTTL s FIELDS 1 a => (WRONGTYPE)
        HEXPIRE h -1 FIELDS 1 a => (ERR)
        HEXPIRE h x FIELDS 1 a => (ERR)
        HEXPIRE h 10 FIELDS 0 a => (ERR)
        HEXPIRE h 10 FIELDS 2 a => (ERR)
        HEXPIRE h 10 FIELD 1 a => (ERR)
        HEXPIRE h 9223372036854775807 FIELDS 1 a => (ERR)
        ",
    );
}

#[test]
fn fields_are_read_and_set_with_times() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        HSETEX h FIELDS 2 a 1 b 2 => 1
        HSETEX h FNX FIELDS 2 b 3 c 3 => 0
        HSETEX h FXX FIELDS 2 b 3 c 3 => 0
        HSETEX h FXX EX 100 FIELDS 2 a 3 b 4 => 1
        HTTL h FIELDS 2 a b => [~100 ~100]
        HSETEX h KEEPTTL FIELDS 1 a 5 => 1
        HSETEX h FIELDS 1 b 5 => 1
        HTTL h FIELDS 2 a b => [~100 -1]
        HGETEX h FIELDS 3 a b x => [5 5 nil]
        HGETEX h PERSIST FIELDS 1 a => [5]
        HTTL h FIELDS 1 a => [-1]
        HGETEX h PX 50000 FIELDS 1 a => [5]
        HTTL h FIELDS 1 a => [~50]
        HGETEX h EXAT 1 FIELDS 1 a => [5]
        HEXISTS h a => 0
        HGETEX missing FIELDS 1 a => [nil]
        HGETDEL h FIELDS 2 b x => [5 nil]
        EXISTS h => 0
        HGETDEL h FIELDS 1 b => [nil]
        HSETEX h PXAT 1 FIELDS 1 a 1 => 1
        EXISTS h => 0
        HSETEX h FNX FXX FIELDS 1 a 1 => (ERR)
        HSETEX h EX 1 PX 1 FIELDS 1 a 1 => (ERR)
        HSETEX h EX 0 FIELDS 1 a 1 => (ERR)
        HSETEX h FIELDS 1 a => (ERR)
        HGETEX h EX FIELDS 1 a => (ERR)
        ",
    );
}

/// Fields whose time has passed are gone for every command, at once and in the background.
#[test]
fn expired_fields_are_gone() {
    let db = Database::in_memory().unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    let connection = &mut server.connect();
    // While clients are paused, the background removes nothing, and reads continue.
    let mut raw = server.raw();
    script(connection, "HSET h a 1 b 2 c 3 => 3\nHSET all a 1 => 1");
    let soon = now_ms() + 1;
    run::<()>(connection, &format!("HPEXPIREAT h {soon} FIELDS 2 a b"));
    run::<()>(connection, &format!("HPEXPIREAT all {soon} FIELDS 1 a"));
    run::<()>(connection, "CLIENT PAUSE 600000 WRITE");
    while now_ms() <= soon {}
    script(
        connection,
        "
        HGET h a => nil
        HMGET h a b c => [nil nil 3]
        HLEN h => 1
        HGETALL h => [c 3]
        HKEYS h => [c]
        HVALS h => [3]
        HEXISTS h b => 0
        HSTRLEN h b => 0
        HRANDFIELD h => c
        HRANDFIELD h 5 => [c]
        HRANDFIELD h -3 => [c c c]
        HSCAN h 0 => [0 [c 3]]
        HTTL h FIELDS 2 a c => [-2 -1]
        HLEN all => 0
        HRANDFIELD all => nil
        DUMP all => nil
        ",
    );
    raw.send("HSET h a 9\r\n");
    run::<()>(connection, "CLIENT UNPAUSE");
    assert_eq!(raw.line(), ":1");
    script(connection, "HTTL h FIELDS 1 a => [-1]\nHLEN h => 2");
    let tables =
        ["field_deadlines", "garbage"].map(|name| db.open_table::<Bytes, Bytes>(name).unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while run::<i64>(connection, "EXISTS all") == 1
        || !tables
            .iter()
            .all(|table| db.snapshot().is_empty(table).unwrap())
    {
        assert!(Instant::now() < deadline, "an expired field is left");
        std::thread::yield_now();
    }
    // A field and its value, and nothing of times.
    let elements = db.open_table::<Bytes, Bytes>("elements").unwrap();
    let count = || db.snapshot().range(&elements, ..).unwrap().count();
    while count() != 2 {
        assert!(Instant::now() < deadline, "{} elements are left", count());
        std::thread::yield_now();
    }
}

#[test]
fn times_go_with_their_hash() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "
        HSET h a 1 b 2 => 2
        HPEXPIREAT h 4000000000000 FIELDS 1 a => [1]
        RENAME h i
        COPY i j => 1
        HPEXPIRETIME i FIELDS 2 a b => [4000000000000 -1]
        HPEXPIRETIME j FIELDS 2 a b => [4000000000000 -1]
        HPERSIST j FIELDS 1 a => [1]
        HPEXPIRETIME i FIELDS 1 a => [4000000000000]
        MOVE i 3 => 1
        SELECT 3
        HPEXPIRETIME i FIELDS 1 a => [4000000000000]
        ",
    );
    let payload: Vec<u8> = redis::cmd("DUMP").arg("i").query(connection).unwrap();
    redis::cmd("RESTORE")
        .arg("k")
        .arg(0)
        .arg(payload)
        .exec(connection)
        .unwrap();
    script(
        connection,
        "HPEXPIRETIME k FIELDS 2 a b => [4000000000000 -1]\nHMGET k a b => [1 2]",
    );
    // Each of them is found in the background.
    let soon = now_ms() + 1;
    for (key, other) in [("a1", "a2"), ("b1", "b2")] {
        run::<()>(connection, &format!("HSET {key} a 1"));
        run::<()>(
            connection,
            &format!("HPEXPIREAT {key} {} FIELDS 1 a", soon + 20),
        );
        let how = if key == "a1" { "RENAME" } else { "COPY" };
        let _ = show(connection, &format!("{how} {key} {other}"));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while run::<i64>(connection, "EXISTS a1 a2 b1 b2") > 0 {
        assert!(Instant::now() < deadline, "an expired hash is left");
        std::thread::yield_now();
    }
}

/// What the model has of a field: its value, and its time.
type Model = BTreeMap<String, (u32, Option<u64>)>;

#[test]
fn random_commands_and_a_model() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let connection = &mut server.connect();
    let mut model = Model::new();
    for round in 0..1_500u32 {
        let field = format!("f{}", random.u8(..40));
        let time = 4_000_000_000_000 + random.u64(..50);
        match random.u8(..8) {
            0..3 => {
                let added: usize = run(connection, &format!("HSET h {field} {round}"));
                assert_eq!(
                    added,
                    usize::from(model.insert(field, (round, None)).is_none())
                );
            }
            3 => {
                let removed: usize = run(connection, &format!("HDEL h {field}"));
                assert_eq!(removed, usize::from(model.remove(&field).is_some()));
            }
            4 => {
                let past = random.u8(..6) == 0;
                let at = if past { 1 } else { time };
                let answer: Vec<i64> =
                    run(connection, &format!("HPEXPIREAT h {at} FIELDS 1 {field}"));
                let expected = match model.get_mut(&field) {
                    None => -2,
                    Some(_) if past => {
                        model.remove(&field);
                        2
                    }
                    Some(found) => {
                        found.1 = Some(time);
                        1
                    }
                };
                assert_eq!(answer, [expected]);
            }
            5 => {
                let answer: Vec<i64> = run(connection, &format!("HPERSIST h FIELDS 1 {field}"));
                let found = model.get_mut(&field);
                let expected = found.map_or(-2, |found| found.1.take().map_or(-1, |_| 1));
                assert_eq!(answer, [expected]);
            }
            6 => {
                let request = format!("HSETEX h PXAT {time} FIELDS 1 {field} {round}");
                assert_eq!(run::<i64>(connection, &request), 1);
                model.insert(field, (round, Some(time)));
            }
            _ => {
                let times: Vec<i64> = run(connection, &format!("HPEXPIRETIME h FIELDS 1 {field}"));
                let found = model.get(&field);
                let expected = found.map_or(-2, |(_, time)| time.map_or(-1, |time| time as i64));
                assert_eq!(times, [expected]);
            }
        }
        if round % 50 == 0 {
            let all: BTreeMap<String, u32> = run(connection, "HGETALL h");
            let expected = model
                .iter()
                .map(|(field, (value, _))| (field.clone(), *value));
            assert_eq!(all, expected.collect());
            assert_eq!(run::<usize>(connection, "HLEN h"), model.len());
            let scanned: (u64, Vec<String>) = run(connection, "HSCAN h 0 COUNT 1000 NOVALUES");
            assert_eq!((scanned.0, scanned.1.len()), (0, model.len()));
        }
    }
}
