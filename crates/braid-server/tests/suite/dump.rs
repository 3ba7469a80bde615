//! SORT, DUMP and RESTORE.

use std::collections::BTreeMap;

use redis::Connection;

use super::models::seed;
use super::support::{TestServer, redis_server, run, script, show};

/// Requests that fill keys with values of all types.
const FILL: &str = "
    SET text hello
    SET empty ''
    RPUSH list a b '' 12 -7
    SADD set a b 12
    SADD numbers 1 2 300000
    HSET hash a 1 b text
    ZADD sorted 1 a -2.5 b inf c
    GEOADD geo 13.36 38.11 palermo
    PFADD hll a b c
    XADD stream 1-1 a b
    XADD stream 2-5 a c d e
    XADD stream 3-0 a d
    XGROUP CREATE stream g 0
    XREADGROUP GROUP g alice COUNT 2 STREAMS stream >
    XREADGROUP GROUP g bob COUNT 1 STREAMS stream >
    XACK stream g 1-1
    XDEL stream 2-5";

/// Requests whose answers tell everything about a key of the same name with a suffix.
const LOOK: [(&str, &str); 13] = [
    ("text", "GET"),
    ("empty", "GET"),
    ("list", "LRANGE _ 0 -1"),
    ("set", "SORT _ ALPHA"),
    ("numbers", "SORT _"),
    ("hash", "HMGET _ a b"),
    ("hash", "HLEN"),
    ("sorted", "ZRANGE _ 0 -1 WITHSCORES"),
    ("geo", "GEOHASH _ palermo"),
    ("hll", "PFCOUNT"),
    ("stream", "XRANGE _ - +"),
    ("stream", "XPENDING _ g"),
    ("stream", "XINFO GROUPS"),
];

fn fill(connection: &mut Connection) {
    for line in FILL.lines().filter(|line| !line.trim().is_empty()) {
        let answer = show(connection, line);
        assert!(!answer.starts_with('('), "{line}: {answer}");
    }
}

fn look(connection: &mut Connection, at: usize, suffix: &str) -> String {
    let (key, request) = LOOK[at];
    let key = format!("{key}{suffix}");
    let request = if request.contains('_') {
        request.replacen('_', &key, 1)
    } else {
        format!("{request} {key}")
    };
    show(connection, &request)
}

fn dump(connection: &mut Connection, key: &str) -> Vec<u8> {
    redis::cmd("DUMP").arg(key).query(connection).unwrap()
}

fn restore(connection: &mut Connection, key: &str, payload: &[u8]) -> redis::RedisResult<String> {
    redis::cmd("RESTORE")
        .arg(key)
        .arg(0)
        .arg(payload)
        .query(connection)
}

#[test]
fn every_type_is_restored() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    fill(connection);
    for (at, (key, _)) in LOOK.iter().enumerate() {
        let payload = dump(connection, key);
        let copy = format!("{key}-{at}");
        restore(connection, &copy, &payload).unwrap();
        let suffix = format!("-{at}");
        assert_eq!(
            look(connection, at, &suffix),
            look(connection, at, ""),
            "{key}"
        );
        assert_eq!(run::<i64>(connection, &format!("PTTL {copy}")), -1);
        // The copy is a value of its own.
        run::<()>(connection, &format!("DEL {copy}"));
        assert_eq!(run::<i64>(connection, &format!("EXISTS {key}")), 1);
    }
    // Groups of a restored stream continue after the last element that they delivered.
    let payload = dump(connection, "stream");
    restore(connection, "s", &payload).unwrap();
    script(
        connection,
        "
        XADD s 9-1 a z => 9-1
        XREADGROUP GROUP g alice COUNT 5 STREAMS s > => [[s [[9-1 [a z]]]]]
        XACK s g 3-0 9-1 2-5 => 3
        XPENDING s g => [0 nil nil nil]
        ",
    );
}

#[test]
fn restoring_has_options() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(connection, "SET a 1\nDUMP missing => nil");
    let payload = dump(connection, "a");
    let mut restore = |words: &str| {
        let mut command = redis::cmd("RESTORE");
        let mut words = words.split(' ');
        command
            .arg(words.next())
            .arg(words.next())
            .arg(&payload[..]);
        for word in words {
            command.arg(word);
        }
        let answer: redis::RedisResult<String> = command.query(connection);
        answer.unwrap_or_else(|error| error.code().unwrap_or("?").to_owned())
    };
    assert_eq!(restore("a 0"), "BUSYKEY");
    assert_eq!(restore("a 0 REPLACE"), "OK");
    assert_eq!(restore("b -1"), "ERR");
    assert_eq!(restore("b x"), "ERR");
    assert_eq!(restore("b 0 IDLETIME -1"), "ERR");
    assert_eq!(restore("b 0 FREQ 256"), "ERR");
    assert_eq!(restore("b 0 IDLETIME 5 FREQ 3"), "OK");
    assert_eq!(restore("c 100000"), "OK");
    assert_eq!(restore("d 4000000000000 ABSTTL"), "OK");
    assert_eq!(restore("e 1 ABSTTL"), "OK");
    assert_eq!(restore("a 1 ABSTTL REPLACE"), "OK");
    let left: i64 = run(connection, "PTTL c");
    assert!((1..=100_000).contains(&left), "{left}");
    script(
        connection,
        "
        PEXPIRETIME d => 4000000000000
        EXISTS e a => 0
        DBSIZE => 3
        ",
    );
}

#[test]
fn damaged_payloads_change_nothing() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    fill(connection);
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let size: i64 = run(connection, "DBSIZE");
    for (key, _) in LOOK {
        let payload = dump(connection, key);
        for _ in 0..40 {
            let mut damaged = payload.clone();
            if random.bool() {
                damaged.truncate(random.usize(..damaged.len()));
            } else {
                let at = random.usize(..damaged.len());
                damaged[at] ^= random.u8(1..);
            }
            let error = restore(connection, "new", &damaged).unwrap_err();
            assert_eq!(
                error.detail(),
                Some("DUMP payload version or checksum are wrong")
            );
        }
    }
    assert_eq!(run::<i64>(connection, "DBSIZE"), size);
}

/// Redis and this server read each other's payloads, if Redis is installed.
#[test]
fn redis_and_braid_restore_each_others_values() {
    let Some((redis, _process)) = redis_server() else {
        println!("SKIPPED: redis-server is not installed");
        return;
    };
    let mut theirs = redis.get_connection().unwrap();
    let server = TestServer::new();
    let ours = &mut server.connect();
    fill(ours);
    fill(&mut theirs);
    // Long lists and hashes have other forms, and long texts are compressed.
    let long = "x".repeat(1_000);
    for connection in [&mut *ours, &mut theirs] {
        for number in 0..600 {
            run::<()>(connection, &format!("RPUSH list {number} {long}"));
            run::<()>(connection, &format!("ZADD sorted {number}.5 m{number}"));
            run::<()>(connection, &format!("SADD set m{number}"));
            run::<()>(
                connection,
                &format!("XADD stream {}-1 a {number} b {long}", number + 10),
            );
        }
        run::<()>(connection, &format!("SET text {long}"));
    }
    let version: String = run(&mut theirs, "INFO server");
    println!("{}", version.lines().nth(1).unwrap());
    for (at, (key, _)) in LOOK.iter().enumerate() {
        let expected = look(ours, at, "");
        assert_eq!(look(&mut theirs, at, ""), expected, "{key}");
        let suffix = format!("-{at}");
        let copy = format!("{key}{suffix}");
        let payload = dump(&mut theirs, key);
        restore(ours, &copy, &payload).unwrap();
        assert_eq!(look(ours, at, &suffix), expected, "{key} from Redis");
        let payload = dump(ours, key);
        restore(&mut theirs, &copy, &payload).unwrap();
        assert_eq!(look(&mut theirs, at, &suffix), expected, "{key} to Redis");
    }
}

#[test]
fn sorting() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        SORT missing => []
        RPUSH l 3 10 1.5 -2 => 4
        SORT l => [-2 1.5 3 10]
        SORT l DESC LIMIT 1 2 => [3 1.5]
        SORT l ALPHA => [-2 1.5 10 3]
        SORT l LIMIT -5 2 => [-2 1.5]
        SORT l LIMIT 0 0 => []
        SADD s a b c => 3
        SORT s => (ERR)
        SORT s ALPHA DESC => [c b a]
        MSET w:a 3 w:b 1 w:c 2 => OK
        SORT s BY w:* => [b c a]
        SORT s BY w:* GET # GET w:* GET none => [b 1 nil c 2 nil a 3 nil]
        HSET h:a n 1 => 1
        HSET h:b n 0 => 1
        SORT s BY h:*->n GET # GET h:*->n => [b 0 c nil a 1]
        SORT s BY nosort GET h:*-> => [nil nil nil]
        SORT s BY w:* STORE out => 3
        LRANGE out 0 -1 => [b c a]
        SORT missing STORE out => 0
        EXISTS out => 0
        ZADD z 1 x 2 a 3 m => 3
        SORT z ALPHA => [a m x]
        SORT z BY nosort => [x a m]
        SORT z BY nosort DESC LIMIT 0 2 => [m a]
        SORT_RO z ALPHA => [a m x]
        SORT_RO z ALPHA STORE out => (ERR)
        SET text 1
        SORT text => (WRONGTYPE)
        SORT l BY => (ERR)
        SORT l STORE l => 4
        LRANGE l 0 -1 => [-2 1.5 3 10]
        ",
    );
}

#[test]
fn sorting_is_ordering_by_weight() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let connection = &mut server.connect();
    let mut weights: BTreeMap<u16, i16> = BTreeMap::new();
    for member in 0..300 {
        if random.u8(..4) > 0 {
            let weight = random.i16(-20..20);
            weights.insert(member, weight);
            run::<()>(connection, &format!("SET weight:{member} {weight}"));
        }
        run::<()>(connection, &format!("SADD members {member}"));
    }
    let weight = |member: u16| weights.get(&member).copied().unwrap_or(0);
    let mut expected: Vec<u16> = (0..300).collect();
    // Equal weights are ordered as texts.
    expected.sort_by_key(|member| (weight(*member), member.to_string()));
    let sorted: Vec<u16> = run(connection, "SORT members BY weight:*");
    assert_eq!(sorted, expected);
    expected.reverse();
    for _ in 0..20 {
        let (offset, count) = (random.usize(..320), random.usize(..320));
        let request = format!("SORT members DESC BY weight:* LIMIT {offset} {count}");
        let sorted: Vec<u16> = run(connection, &request);
        let part: Vec<u16> = expected.iter().copied().skip(offset).take(count).collect();
        assert_eq!(sorted, part);
    }
}

/// Patterns name any key, so they need the permission to read all.
#[test]
fn patterns_need_the_permission_to_read_all_keys() {
    let server = TestServer::new();
    let admin = &mut server.connect();
    script(
        admin,
        "
        ACL SETUSER ann on nopass +@all %R~in* %W~out*
        RPUSH in 1 => 1
        SET secret 7
        ",
    );
    let ann = &mut server.connect();
    script(
        ann,
        "
        AUTH ann x
        SORT in => [1]
        SORT in STORE out => 1
        SORT in STORE in => (NOPERM)
        SORT out => (NOPERM)
        SORT in BY nosort GET # => [1]
        SORT in GET secr* => (NOPERM)
        SORT in BY secr* => (NOPERM)
        SORT_RO in BY secr*->x => (NOPERM)
        DUMP out => (NOPERM)
        RESTORE in 0 x => (NOPERM)
        RESTORE out2 0 x => (ERR)
        ",
    );
    run::<()>(admin, "ACL SETUSER ann %R~*");
    script(ann, "SORT in GET secr* => [nil]");
}
