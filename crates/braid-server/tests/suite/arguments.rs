//! Every command with arguments of every kind: each request is answered, whatever it says.

use redis::{ConnectionLike, ErrorKind, Value};

use super::support::{TestServer, run};

/// Requests for each command.
const REQUESTS: usize = 60;

/// Commands that end or change the connection or the server, or stop it for a while.
const LEFT_OUT: [&str; 19] = [
    "acl",
    "auth",
    "client",
    "config",
    "debug",
    "discard",
    "exec",
    "hello",
    "monitor",
    "multi",
    "psubscribe",
    "punsubscribe",
    "quit",
    "reset",
    "shutdown",
    "ssubscribe",
    "subscribe",
    "sunsubscribe",
    "unsubscribe",
];

const WORDS: &str = "0 1 2 3 -1 -2 7 64 1000 1.5 -0.0 1e308 1e-308 nan inf +inf -inf \
    4294967295 4294967296 2147483648 9223372036854775807 -9223372036854775808 \
    18446744073709551615 99999999999999999999 k1 k2 k3 k4 k5 k6 a b z (1 [a (a + - * ? [^ \\ \
    COUNT LIMIT MATCH TYPE GET SET EX PX EXAT PXAT NX XX GT LT CH INCR KEEPTTL PERSIST WITHSCORES \
    WITHSCORE WITHVALUES REV BYSCORE BYLEX STORE STOREDIST AGGREGATE SUM WEIGHTS MAX MIN LEFT RIGHT \
    BEFORE AFTER RANK MAXLEN LEN IDX MINMATCHLEN WITHMATCHLEN REPLACE DB ABSTTL FREQ IDLETIME \
    AND OR XOR NOT BIT BYTE u8 i8 u63 i64 u64 i65 #1 OVERFLOW WRAP SAT FAIL INCRBY \
    STREAMS GROUP BLOCK NOACK MKSTREAM ENTRIESREAD CREATE DESTROY SETID CREATECONSUMER DELCONSUMER \
    MINID ~ = NOMKSTREAM IDLE TIME RETRYCOUNT FORCE JUSTID LASTID FULL CONSUMERS GROUPS STREAM \
    $ > * 0-0 0-1 1-1 1-* 5-18446744073709551615 g c \
    FROMMEMBER FROMLONLAT BYRADIUS BYBOX m km ASC DESC ANY WITHCOORD WITHDIST WITHHASH 13.36 38.11 \
    USAGE ENCODING REFCOUNT FREQ ENCODING CHANNELS NUMSUB NUMPAT INFO DOCS GETKEYS LIST";

/// Requests that fill the keys with values of all types.
const FILL: &str = "
    SET k1 12
    SET k2 text-that-is-a-little-longer
    DEL k3 k4 k5 k6
    RPUSH k3 a b 1 2
    SADD k4 a b 1 2
    ZADD k5 1 a 2 b 3 z
    HSET k6 a 1 b text
    XADD k7 1-1 a b
    XGROUP CREATE k7 g 0
    GEOADD k8 13.36 38.11 a
    PFADD k9 a b";

#[test]
fn every_request_is_answered() {
    let seed: u64 = match std::env::var("BRAID_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    println!("BRAID_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::new();
    let mut connection = server.connect();
    let commands: Vec<Vec<Value>> = run(&mut connection, "COMMAND");
    let mut words: Vec<Vec<u8>> = WORDS
        .split_whitespace()
        .chain(["k7", "k8", "k9", "''"])
        .map(|word| word.trim_matches('\'').into())
        .collect();
    words.push(vec![0, 0xff, b'\r', b'\n']);
    words.push(vec![b'x'; 9_000]);
    for command in commands {
        let name: String = redis::from_redis_value(command[0].clone()).unwrap();
        let arity: i64 = redis::from_redis_value(command[1].clone()).unwrap();
        let flags: Vec<String> = redis::from_redis_value(command[2].clone()).unwrap();
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        // In a transaction nothing waits.
        let blocks = flags.iter().any(|flag| flag == "blocking");
        for number in 0..REQUESTS {
            if number % 20 == 0 {
                for line in FILL.lines().filter(|line| !line.trim().is_empty()) {
                    // What an earlier request left may be of another type.
                    let _ = super::support::show(&mut connection, line);
                }
            }
            let least = arity.unsigned_abs() as usize - 1;
            let count = if arity < 0 {
                least + random.usize(0..8)
            } else {
                least
            };
            let mut request = redis::cmd(&name);
            let mut shown = name.clone();
            for at in 0..count {
                // A key first, more often than not.
                let word = if at == 0 && random.bool() {
                    format!("k{}", random.u8(1..10)).into_bytes()
                } else {
                    random.choice(&words).unwrap().clone()
                };
                shown += &format!(" {}", word[..word.len().min(40)].escape_ascii());
                request.arg(word);
            }
            if blocks {
                run::<()>(&mut connection, "MULTI");
            }
            let mut answers = vec![connection.req_command(&request)];
            if blocks {
                answers.push(connection.req_command(&redis::cmd("EXEC")));
            }
            for answer in answers {
                if let Err(error) = answer {
                    assert_ne!(error.kind(), ErrorKind::Io, "{shown}: {error}");
                    assert_ne!(error.kind(), ErrorKind::Parse, "{shown}: {error}");
                }
            }
        }
        assert_eq!(run::<String>(&mut connection, "PING"), "PONG", "{name}");
    }
}
