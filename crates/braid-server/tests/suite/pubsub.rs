//! Channels, patterns and keyspace notifications.

use super::support::{TestServer, script};

#[test]
fn messages_reach_channels_and_patterns() {
    let server = TestServer::new();
    let mut publisher = server.connect();
    let mut subscriber = server.raw();
    subscriber.send("SUBSCRIBE a b\r\nPSUBSCRIBE a*\r\n");
    assert_eq!(
        subscriber.lines(6),
        ["*3", "$9", "subscribe", "$1", "a", ":1"]
    );
    assert_eq!(subscriber.lines(6)[5], ":2");
    assert_eq!(subscriber.lines(6)[5], ":3");
    script(
        &mut publisher,
        "
        PUBLISH a hello => 2
        PUBLISH none hello => 0
        PUBSUB CHANNELS a* => [a]
        PUBSUB NUMSUB a none => [a 1 none 0]
        PUBSUB NUMPAT => 1
        ",
    );
    assert_eq!(
        subscriber.lines(7),
        ["*3", "$7", "message", "$1", "a", "$5", "hello"]
    );
    assert_eq!(
        subscriber.lines(9),
        ["*4", "$8", "pmessage", "$2", "a*", "$1", "a", "$5", "hello"]
    );
    subscriber.send("GET x\r\nPING\r\nUNSUBSCRIBE\r\nPUNSUBSCRIBE a*\r\nGET x\r\n");
    assert!(subscriber.line().starts_with("-ERR Can't execute 'get'"));
    assert_eq!(subscriber.lines(4), ["*2", "$4", "pong", "$0"]);
    subscriber.line();
    assert_eq!(subscriber.lines(6)[5], ":2");
    assert_eq!(subscriber.lines(6)[5], ":1");
    assert_eq!(subscriber.lines(6)[5], ":0");
    assert_eq!(subscriber.line(), "$-1");
    // A subscriber that leaves is forgotten.
    subscriber.send("SUBSCRIBE a\r\nQUIT\r\n");
    subscriber.rest();
    script(&mut publisher, "PUBLISH a x => 0");
}

#[test]
fn notifications_tell_what_happened() {
    let server = TestServer::new();
    let mut connection = server.connect();
    script(
        &mut connection,
        "CONFIG SET notify-keyspace-events Q => (ERR)\nCONFIG SET notify-keyspace-events KEA => OK",
    );
    let mut subscriber = server.raw();
    subscriber.send("PSUBSCRIBE __key*__:*\r\n");
    subscriber.lines(6);
    script(
        &mut connection,
        "SET k 1 => OK\nLPUSH l 1 => 1\nLPOP l => 1",
    );
    let mut events = Vec::new();
    for _ in 0..8 {
        let lines = subscriber.lines(9);
        events.push(format!("{} {}", lines[6], lines[8]));
    }
    assert_eq!(
        events,
        [
            "__keyspace@0__:k set",
            "__keyevent@0__:set k",
            "__keyspace@0__:l lpush",
            "__keyevent@0__:lpush l",
            "__keyspace@0__:l lpop",
            "__keyevent@0__:lpop l",
            "__keyspace@0__:l del",
            "__keyevent@0__:del l",
        ]
    );
}
