//! Entry points for fuzzers of the parsers. Each function panics if it finds a defect. They are no
//! part of the interface.

use std::sync::Arc;

use braid::{Database, Durability};
use bytes::{Bytes, BytesMut};

use crate::acl::Acl;
use crate::channels::mailbox;
use crate::command::{Run, commands, find};
use crate::executor::{Attempt, Outcome, execute};
use crate::failure::Failure;
use crate::keyspace::{Data, Keyspace, Scope};
use crate::options::ServerOptions;
use crate::rdb;
use crate::resp::{Limits, Protocol, ProtocolError, Reply, RequestParser};
use crate::server::share;
use crate::session::Session;
use crate::shared::Shared;

/// Longest value of the state that programs work on: a command may make one of this length.
const VALUE_MAX: usize = 1 << 20;

fn database() -> Database {
    Database::builder()
        .background_threads(false)
        .pool_bytes(4 << 20)
        .segment_bytes(1 << 20)
        .strands(1)
        .open_on(Arc::new(braid::device::MemoryDevice::new()))
        .expect("a database in memory opens")
}

type Parsed = (Vec<Vec<Bytes>>, Option<ProtocolError>);

fn parse(packets: impl Iterator<Item = Vec<u8>>, limits: Limits) -> Parsed {
    let (mut parser, mut input) = (RequestParser::default(), BytesMut::new());
    let mut requests = Vec::new();
    for packet in packets {
        input.extend_from_slice(&packet);
        loop {
            match parser.next(&mut input, limits) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

/// Parses requests, at once and byte by byte: both find the same.
pub fn requests(bytes: &[u8]) {
    let authenticated = Limits {
        arguments: 1 << 20,
        bulk: 1 << 20,
    };
    for limits in [authenticated, Limits::UNAUTHENTICATED] {
        let at_once = parse(std::iter::once(bytes.to_vec()), limits);
        let by_byte = parse(bytes.iter().map(|byte| vec![*byte]), limits);
        assert_eq!(at_once, by_byte);
        let len: usize = at_once.0.iter().flatten().map(Bytes::len).sum();
        assert!(len <= bytes.len(), "arguments from nowhere");
    }
}

/// Reads the text of a file of configuration.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = crate::Config::parse(&text, "fuzzed.toml".as_ref()) {
        assert!(!error.to_string().is_empty());
    }
}

/// Reads the text of a file of users. Users that it makes are made again by their description.
pub fn acl(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let acl = |text: &str| {
        let acl = Acl::new(None, |name| find(name.as_bytes()).is_some());
        acl.replace(text).map(|_| acl.lines().join("\n"))
    };
    if let Ok(described) = acl(&text) {
        let again = acl(&described).unwrap_or_else(|error| panic!("{described}: {error}"));
        assert_eq!(again, described);
    }
}

/// Restores a value, whose version and checksum are made right if the first byte is odd. What can be
/// restored is dumped and restored again, and is the same.
pub fn restore(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let payload = if first % 2 == 1 {
        rdb::seal(rest.to_vec(), 11)
    } else {
        Bytes::copy_from_slice(rest)
    };
    let keyspace = Arc::new(Keyspace::open(database()).expect("the tables open"));
    let scope = Scope {
        database: 0,
        stripe: 0,
        writes: true,
        durability: Durability::None,
    };
    let outcome = keyspace.transact(scope, |data| {
        run(data, &[b"RESTORE", b"one", b"0", &payload])?;
        let Reply::Bulk(dumped) = run(data, &[b"DUMP", b"one"])? else {
            // Of a hash, all fields of which have expired, nothing is left.
            return Ok(());
        };
        run(data, &[b"RESTORE", b"other", b"0", &dumped])
            .unwrap_or_else(|failure| panic!("what DUMP returned is refused: {failure:?}"));
        assert_eq!(run(data, &[b"DUMP", b"other"])?, Reply::Bulk(dumped));
        Ok(())
    });
    if let Err(failure) = outcome {
        assert!(matches!(failure, Failure::Client(_)), "{failure:?}");
    }
}

fn run(data: &mut Data, args: &[&[u8]]) -> Result<Reply, Failure> {
    let args: Vec<Bytes> = args.iter().map(|arg| Bytes::copy_from_slice(arg)).collect();
    match find(&args[0]).expect("a command").run {
        Run::Data(run) => run(data, &args),
        _ => unreachable!("a command on data"),
    }
}

/// Arguments of which programs are made: keys of every type, members, numbers at limits, and words of
/// options.
const WORDS: &[&str] = &[
    "string",
    "number",
    "hash",
    "list",
    "set",
    "zset",
    "stream",
    "hll",
    "geo",
    "missing",
    "new",
    "a",
    "b",
    "c",
    "0",
    "1",
    "-1",
    "2",
    "3",
    "10",
    "1.5",
    "-0",
    "inf",
    "-inf",
    "nan",
    "(1",
    "[a",
    "-",
    "+",
    "(a",
    "*",
    "$",
    ">",
    "0-0",
    "1-1",
    "5-*",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551615-18446744073709551615",
    "4294967295",
    "1e308",
    "1e-308",
    "0x10",
    "",
    " ",
    "?*[a-",
    "h?llo",
    "COUNT",
    "LIMIT",
    "MATCH",
    "WITHSCORES",
    "WITHVALUES",
    "BYSCORE",
    "BYLEX",
    "REV",
    "BYRADIUS",
    "BYBOX",
    "FROMMEMBER",
    "FROMLONLAT",
    "ASC",
    "DESC",
    "STORE",
    "STOREDIST",
    "WITHCOORD",
    "m",
    "km",
    "NX",
    "XX",
    "GT",
    "LT",
    "CH",
    "INCR",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "KEEPTTL",
    "PERSIST",
    "GET",
    "SET",
    "INCRBY",
    "OVERFLOW",
    "SAT",
    "FAIL",
    "WRAP",
    "u8",
    "i64",
    "u63",
    "u64",
    "#1",
    "AND",
    "OR",
    "XOR",
    "NOT",
    "BIT",
    "BYTE",
    "LEN",
    "IDX",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "AFTER",
    "RANK",
    "MAXLEN",
    "MINID",
    "~",
    "=",
    "NOMKSTREAM",
    "GROUP",
    "STREAMS",
    "BLOCK",
    "NOACK",
    "CREATE",
    "MKSTREAM",
    "SETID",
    "DESTROY",
    "CREATECONSUMER",
    "DELCONSUMER",
    "group",
    "consumer",
    "IDLE",
    "TIME",
    "RETRYCOUNT",
    "FORCE",
    "JUSTID",
    "LASTID",
    "STREAM",
    "GROUPS",
    "CONSUMERS",
    "FULL",
    "WEIGHTS",
    "AGGREGATE",
    "MIN",
    "MAX",
    "SUM",
    "BY",
    "ALPHA",
    "weight_*",
    "hash->a",
    "REPLACE",
    "ABSTTL",
    "FIELDS",
    "FNX",
    "TYPE",
    "ENCODING",
    "REFCOUNT",
    "IDLETIME",
    "FREQ",
    "USAGE",
    "SAMPLES",
    "ON",
    "OFF",
    "BCAST",
    "PREFIX",
    "OPTIN",
    "OPTOUT",
    "NOLOOP",
    "REDIRECT",
    "YES",
    "NO",
    "TRACKING",
    "LIST",
    "INFO",
    "ID",
    "SETNAME",
    "DOCS",
    "GETKEYS",
    "HISTOGRAM",
    "GRAPH",
    "RESET",
    "LATEST",
    "DOCTOR",
];

/// Requests that make a key of each type.
const SEED: &str = "SET string text\r\nSET number 7\r\nHSET hash a 1 b 2 c 3\r\nRPUSH list a b c a\r\n\
     SADD set a b c 1\r\nZADD zset 1 a 2 b 3 c -inf d\r\nXADD stream 1-1 f v\r\nXADD stream 2-0 f w\r\n\
     XGROUP CREATE stream group 0\r\nXREADGROUP GROUP group consumer COUNT 1 STREAMS stream >\r\n\
     PFADD hll a b\r\nGEOADD geo 13.36 38.11 a 15.08 37.5 b\r\nHPEXPIRE hash 100000000 FIELDS 1 a\r\n";

/// Runs a program of requests: a byte names a command, the next how many arguments it has, and each
/// argument is a word that a byte names, or bytes that follow.
pub fn program(mut bytes: &[u8]) {
    let mut next = || {
        let (first, rest) = bytes.split_first()?;
        bytes = rest;
        Some(*first)
    };
    let mut requests = Vec::new();
    while requests.len() < 32
        && let (Some(low), Some(high), Some(count)) = (next(), next(), next())
    {
        let number = usize::from(low) | usize::from(high) << 8;
        let command = &commands()[number % commands().len()];
        let mut args = vec![Bytes::from_static(command.name.as_bytes())];
        for _ in 0..count % 12 {
            args.push(match next() {
                None => break,
                Some(255) => {
                    let len = next().unwrap_or(0) % 24;
                    (0..len).map_while(|_| next()).collect::<Vec<u8>>().into()
                }
                Some(word) => Bytes::from_static(WORDS[usize::from(word) % WORDS.len()].as_bytes()),
            });
        }
        requests.push(args);
    }
    run_requests(requests);
}

/// Runs requests as they come over a connection.
pub fn session(bytes: &[u8]) {
    let limits = Limits {
        arguments: 1 << 20,
        bulk: 1 << 20,
    };
    let (requests, _) = parse(std::iter::once(bytes.to_vec()), limits);
    run_requests(requests);
}

fn run_requests(requests: Vec<Vec<Bytes>>) {
    let options = ServerOptions {
        proto_max_bulk_len: VALUE_MAX,
        ..ServerOptions::default()
    };
    let keyspace = Keyspace::open(database()).expect("the tables open");
    let shared = share(keyspace, options, 1).expect("the state of a server");
    let mut session = new_session(&shared);
    let limits = Limits {
        arguments: 100,
        bulk: 100,
    };
    let (seed, error) = parse(std::iter::once(SEED.into()), limits);
    assert_eq!(error, None);
    for mut request in seed {
        let outcome = execute(&shared, &mut session, &mut request, Attempt::FIRST);
        let is_right =
            matches!(&outcome, Outcome::Reply(reply, _) if !matches!(reply, Reply::Error(_)));
        assert!(is_right, "{request:?}: {outcome:?}");
    }
    for mut request in requests {
        if is_executed(&request) {
            show(&execute(
                &shared,
                &mut session,
                &mut request,
                Attempt::FIRST,
            ));
        }
    }
    // Whatever happened, the data is sound: every value can be dumped, and keys are counted.
    for end in ["DISCARD", "RESET", "UNSUBSCRIBE"] {
        execute(
            &shared,
            &mut session,
            &mut vec![Bytes::from_static(end.as_bytes())],
            Attempt::FIRST,
        );
    }
    let mut ask = |words: &[&[u8]]| {
        let mut args: Vec<Bytes> = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word))
            .collect();
        match execute(&shared, &mut session, &mut args, Attempt::FIRST) {
            Outcome::Reply(reply, _) => reply,
            Outcome::Within(_) | Outcome::Wait(_) | Outcome::Load(_) | Outcome::Missing(..) => {
                Reply::Null
            }
        }
    };
    let Reply::Array(keys) = ask(&[b"KEYS", b"*"]) else {
        // The user may do nothing any more, or the client has to authenticate.
        return;
    };
    for key in keys {
        let Reply::Bulk(key) = key else {
            panic!("KEYS lists no key, but {key:?}");
        };
        let dumped = ask(&[b"DUMP", &key]);
        assert!(!matches!(dumped, Reply::Error(_)), "{key:?}: {dumped:?}");
    }
}

/// Returns whether a request is for a fuzzer: none waits, ends the process or fills the memory by
/// what it is for.
fn is_executed(request: &[Bytes]) -> bool {
    let Some(command) = request.first().and_then(|name| find(name)) else {
        return !request.is_empty();
    };
    let may_be_long = matches!(command.name, "setrange" | "setbit" | "bitfield");
    let is_large = |arg: &Bytes| arg.len() > 6 && arg.iter().any(u8::is_ascii_digit);
    let is_left_out = matches!(command.name, "shutdown" | "debug" | "bgsave");
    !(is_left_out || may_be_long && request.iter().any(is_large))
}

fn show(outcome: &Outcome) {
    let reply = match outcome {
        Outcome::Reply(reply, _) => reply,
        Outcome::Within(within) => &within.otherwise,
        Outcome::Wait(wait) => &wait.otherwise,
        Outcome::Load(_) | Outcome::Missing(..) => &Reply::Null,
    };
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut out = BytesMut::new();
        reply.encode(protocol, &mut out);
    }
}

fn new_session(shared: &Shared) -> Session {
    let (mailbox, inbox) = mailbox(VALUE_MAX);
    // Messages to the session are not read.
    drop(inbox);
    Session {
        durability: Durability::None,
        ..Session::new(shared.new_client(), &shared.acl, mailbox, 0)
    }
}
