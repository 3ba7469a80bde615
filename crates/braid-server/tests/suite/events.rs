//! Keyspace notifications: which events every command publishes, and in which order.

use redis::Connection;

use super::support::{TestServer, redis_server, run};

/// Commands, and the events that Redis 7.0 publishes for them; those of another database begin with its
/// number.
const EVENTS: [(&str, &str); 45] = [
    (
        "SET k 1; SET k 2 EX 100; SET k 3 KEEPTTL",
        "set k, set k, expire k, set k",
    ),
    (
        "SET k 1; GETEX k EX 100; GETEX k PERSIST; GETEX k PXAT 1",
        "set k, expire k, persist k, del k",
    ),
    (
        "SETEX k 100 v; PSETEX k 100000 v; SETNX n 1; SETNX n 2; GETSET n 3",
        "set k, expire k, set k, expire k, set n, set n",
    ),
    ("GETDEL k; SET k 1; GETDEL k", "set k, del k"),
    (
        "MSET a 1 b 2; MSETNX a 1 c 2; MSETNX c 1 d 2",
        "set a, set b, set c, set d",
    ),
    (
        "APPEND k a; APPEND k b; SETRANGE k 1 x; SETRANGE k 0 ''",
        "append k, append k, setrange k",
    ),
    (
        "INCR k; DECR k; INCRBY k 2; DECRBY k 2; INCRBYFLOAT k 1.5",
        "incrby k, incrby k, incrby k, incrby k, incrbyfloat k",
    ),
    (
        "SETBIT k 1 1; BITFIELD k SET u8 0 1; BITOP AND d k k; BITOP AND d x y; \
         BITFIELD k GET u8 0",
        "setbit k, setbit k, set d, del d",
    ),
    (
        "DEL k; SET k 1; DEL k k; SET k 1; UNLINK k",
        "set k, del k, set k, del k",
    ),
    (
        "SET k 1; EXPIRE k 100; PEXPIRE k 100000; PERSIST k; PERSIST k; EXPIRE k -1",
        "set k, expire k, expire k, persist k, del k",
    ),
    ("SET k 1; EXPIREAT k 1", "set k, del k"),
    (
        "SET k 1; RENAME k l; SET k 2; RENAME k l; RENAMENX l k; SET l 2; RENAMENX l k",
        "set k, rename_from k, rename_to l, set k, rename_from k, rename_to l, \
         rename_from l, rename_to k, set l",
    ),
    (
        "SET k 1; COPY k l; COPY k l; COPY k l REPLACE; COPY k l DB 1",
        "set k, copy_to l, copy_to l, 1:copy_to l",
    ),
    (
        "SET k 1; MOVE k 1; MOVE k 1",
        "set k, move_from k, 1:move_to k",
    ),
    (
        "LPUSH l 1; RPUSH l 2; LPUSHX l 3; LPUSHX none 3; LINSERT l BEFORE 1 0; \
         LSET l 0 9; LREM l 0 9; LREM l 0 nothing; LTRIM l 0 0; LTRIM l 5 6",
        "lpush l, rpush l, lpush l, linsert l, lset l, lrem l, ltrim l, ltrim l, del l",
    ),
    (
        "RPUSH l 1 2 3; LPOP l; RPOP l 2; RPUSH l 1; LPOP l 0",
        "rpush l, lpop l, rpop l, del l, rpush l",
    ),
    (
        "RPUSH l 1 2; LMOVE l m LEFT RIGHT; RPOPLPUSH l m; LMOVE m m LEFT RIGHT; \
         LMPOP 1 m LEFT COUNT 5",
        "rpush l, rpush m, lpop l, lpush m, rpop l, del l, rpush m, lpop m, lpop m, del m",
    ),
    (
        "RPUSH l 1 2; BLPOP l 0; BRPOP l 0",
        "rpush l, lpop l, rpop l, del l",
    ),
    (
        "RPUSH l 1 2; BLMOVE l m LEFT LEFT 0; BRPOPLPUSH l m 0; BLMPOP 0 1 m LEFT",
        "rpush l, lpush m, lpop l, lpush m, rpop l, del l, lpop m",
    ),
    (
        "RPUSH l 3 1 2; SORT l STORE d; SORT none STORE d",
        "rpush l, sortstore d, del d",
    ),
    (
        "SADD s a b c; SADD s a; SREM s a; SREM s x; SPOP s 1; SMOVE s t b; SMOVE s t c; \
         SMOVE s t zz",
        "sadd s, srem s, spop s, srem s, del s, sadd t",
    ),
    (
        "SADD s a; SADD t a b; SINTERSTORE d s t; SUNIONSTORE d s t; SDIFFSTORE d s t; \
         SPOP s 5",
        "sadd s, sadd t, sinterstore d, sunionstore d, del d, spop s, del s",
    ),
    (
        "SADD s a b; SPOP s; SPOP s",
        "sadd s, spop s, spop s, del s",
    ),
    (
        "HSET h a 1; HSET h a 1; HSETNX h a 2; HSETNX h b 2; HINCRBY h n 1; \
         HINCRBYFLOAT h n 1; HDEL h a b; HDEL h none; HDEL h n",
        "hset h, hset h, hset h, hincrby h, hincrbyfloat h, hdel h, hdel h, del h",
    ),
    ("HMSET h a 1 b 2; HDEL h a b", "hset h, hdel h, del h"),
    (
        "ZADD z 1 a; ZADD z 1 a; ZADD z 2 a; ZADD z INCR 1 a; ZINCRBY z 1 a; ZREM z a; \
         ZREM z a",
        "zadd z, zadd z, zincr z, zincr z, zrem z, del z",
    ),
    (
        "ZADD z 1 a 2 b 3 c; ZPOPMIN z; ZPOPMAX z; ZADD z NX 5 c; ZADD z XX 6 q",
        "zadd z, zpopmin z, zpopmax z, zadd z",
    ),
    (
        "ZADD z 1 a 2 b 3 c; ZREMRANGEBYRANK z 0 0; ZREMRANGEBYSCORE z 2 2; \
         ZREMRANGEBYLEX z - +",
        "zadd z, zremrangebyrank z, zremrangebyscore z, zremrangebylex z, del z",
    ),
    (
        "ZADD z 1 a 2 b; ZUNIONSTORE d 1 z; ZINTERSTORE d 2 z x; ZDIFFSTORE d 1 z; \
         ZRANGESTORE d z 0 0; ZRANGESTORE d z 5 6",
        "zadd z, zunionstore d, del d, zdiffstore d, zrangestore d, del d",
    ),
    (
        "ZADD z 1 a 2 b 3 c; BZPOPMIN z 0; BZPOPMAX z 0; ZMPOP 1 z MIN; ZMPOP 1 z MIN",
        "zadd z, zpopmin z, zpopmax z, zpopmin z, del z",
    ),
    ("ZADD z 1 a; BZMPOP 0 1 z MAX", "zadd z, zpopmax z, del z"),
    (
        "GEOADD g 13 38 a; GEOADD g 13 38 a; \
         GEOSEARCHSTORE d g FROMMEMBER a BYRADIUS 1 km; \
         GEOSEARCHSTORE d none FROMLONLAT 1 1 BYRADIUS 1 km; \
         GEORADIUS g 13 38 1 km STORE d",
        "zadd g, geosearchstore d, del d, georadiusstore d",
    ),
    (
        "PFADD p a; PFADD p a; PFMERGE q p; PFCOUNT p",
        "pfadd p, pfadd q",
    ),
    (
        "XADD s 1-1 a 1; XADD s MAXLEN 1 2-1 a 1; XTRIM s MAXLEN 0; XADD s 3-1 a 1; \
         XDEL s 3-1; XDEL s 3-1; XSETID s 9-9; XADD none NOMKSTREAM * a 1",
        "xadd s, xadd s, xtrim s, xtrim s, xadd s, xdel s, xsetid s",
    ),
    (
        "XGROUP CREATE s g $ MKSTREAM; XADD s 1-1 a 1; XREADGROUP GROUP g c STREAMS s >; \
         XACK s g 1-1; XGROUP SETID s g 0; XGROUP CREATECONSUMER s g d; \
         XGROUP CREATECONSUMER s g d; XGROUP DELCONSUMER s g d; XGROUP DESTROY s g; \
         XGROUP DESTROY s g",
        "xgroup-create s, xadd s, xgroup-createconsumer s, xgroup-setid s, \
         xgroup-createconsumer s, xgroup-delconsumer s, xgroup-destroy s",
    ),
    (
        "XADD s 1-1 a 1; XGROUP CREATE s g 0; XREADGROUP GROUP g c STREAMS s >; \
         XCLAIM s g e 0 1-1; XAUTOCLAIM s g f 0 0; XDEL s 1-1; XAUTOCLAIM s g f 0 0",
        "xadd s, xgroup-create s, xgroup-createconsumer s, xgroup-createconsumer s, \
         xgroup-createconsumer s, xdel s",
    ),
    ("MULTI; SET a 1; LPUSH a 1; INCR a; EXEC", "set a, incrby a"),
    (
        "SET a 1; SELECT 1; SET a 2; SWAPDB 0 1; DEL a; FLUSHDB",
        "set a, 1:set a, 1:del a",
    ),
    (
        "SET k 1; SET k 2 XX; SET k 3 NX; SET k 3 GET",
        "set k, set k, set k",
    ),
    ("SETRANGE k 0 abc; LCS k k; SUBSTR k 0 1", "setrange k"),
    (
        "RPUSH l a; LPUSH l b; RPOPLPUSH l l",
        "rpush l, lpush l, lpush l, rpop l",
    ),
    (
        "HSET h a 1; RENAME h k; COPY k j; TOUCH k; OBJECT ENCODING k",
        "hset h, rename_from h, rename_to k, copy_to j",
    ),
    ("SADD s a; SINTERSTORE s none none2", "sadd s, del s"),
    ("ZADD z 1 a; ZUNIONSTORE z 1 none", "zadd z, del z"),
    (
        "SET k v EX 100; SET k v; EXPIRE k 50 NX; EXPIRE k 20 GT; EXPIRE k 10 LT; \
         PEXPIREAT k 99999999999999",
        "set k, expire k, set k, expire k, expire k, expire k",
    ),
];

/// Publishes events of certain classes, and returns those of some commands.
fn events(
    connect: impl Fn() -> Connection,
    classes: &str,
    commands: impl IntoIterator<Item = &'static str>,
) -> Vec<String> {
    let mut connection = connect();
    let mut listening = connect();
    let config = format!("CONFIG SET notify-keyspace-events {classes}");
    let _: String = run(&mut connection, &config);
    let mut subscriber = listening.as_pubsub();
    subscriber.psubscribe("__keyevent@*__:*").unwrap();
    let mut all = Vec::new();
    for commands in commands {
        let _: String = run(&mut connection, "FLUSHALL");
        let _: String = run(&mut connection, "SELECT 0");
        for command in commands.split(';') {
            // Errors are a part of it.
            let _ = super::support::show(&mut connection, command);
        }
        let _: i64 = run(&mut connection, "PUBLISH __keyevent@0__:end x");
        let mut events = Vec::new();
        loop {
            let message = subscriber.get_message().unwrap();
            let channel = message.get_channel_name().replace("__keyevent@", "");
            let event = channel.replace("0__:", "").replace("__:", ":");
            if event == "end" {
                break;
            }
            events.push(format!(
                "{event} {}",
                message.get_payload::<String>().unwrap()
            ));
        }
        all.push(events.join(", "));
    }
    all
}

#[test]
fn commands_publish_the_events_of_redis() {
    let server = TestServer::new();
    let commands = || EVENTS.iter().map(|(commands, _)| *commands);
    let mut published = vec![("Braid", events(|| server.connect(), "EA", commands()))];
    // Without Redis, its events are those of the table.
    if let Some((redis, _process)) = redis_server() {
        let connect = || redis.get_connection().unwrap();
        published.push(("Redis", events(connect, "EA", commands())));
    }
    for (name, published) in published {
        for ((commands, expected), events) in EVENTS.iter().zip(published) {
            assert_eq!(events, *expected, "{name}: {commands}");
        }
    }
}

/// These classes are not a part of `A`.
#[test]
fn new_keys_and_reads_without_a_key_are_events() {
    let commands = [
        "SET k 1; SET k 2; DEL k; SET k 1; GET k",
        "LPUSH l 1; RENAME l m; HSET h f 1; ZADD z 1 a; COPY z y",
        "GET k; EXISTS k; STRLEN k; LLEN k; OBJECT ENCODING k; TTL k; INCR k",
        "MGET a b; SET a 1; MGET a b; DEL b",
        "MULTI; GET k; SET k 1; GET k; EXEC",
    ];
    let expected = [
        "new k, new k",
        "new l, new m, new h, new z, new y",
        "keymiss k, keymiss k, keymiss k, keymiss k, keymiss k, new k",
        "keymiss a, keymiss b, new a, keymiss b",
        "keymiss k, new k",
    ];
    let server = TestServer::new();
    assert_eq!(events(|| server.connect(), "Enm", commands), expected);
    if let Some((redis, _process)) = redis_server() {
        let connect = || redis.get_connection().unwrap();
        assert_eq!(events(connect, "Enm", commands), expected);
    }
}
