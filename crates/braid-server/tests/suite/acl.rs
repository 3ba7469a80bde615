//! Access control.

use braid::Database;
use redis::{Connection, Value};

use super::support::{TestServer, run, script, show, try_run};

fn denial(connection: &mut Connection, words: &str) -> String {
    match try_run::<Value>(connection, words) {
        Ok(value) => panic!("{words} was allowed: {value:?}"),
        Err(error) => format!("{} {}", error.code().unwrap(), error.detail().unwrap()),
    }
}

#[test]
fn rules_of_users() {
    let server = TestServer::new();
    let mut admin = server.connect();
    script(
        &mut admin,
        "
        ACL WHOAMI => default
        ACL USERS => [default]
        ACL LIST => [user default on nopass sanitize-payload ~* &* +@all]
        ACL SETUSER alice on >secret ~stock:* %R~prices &orders.* +@read +set +config|get
        SET stock:1 5
        SET prices 3
        SET other 9
        ",
    );
    let mut alice = server.connect_with("?protocol=resp3");
    script(
        &mut alice,
        "
        AUTH alice wrong => (WRONGPASS)
        AUTH alice secret
        ACL WHOAMI => (NOPERM)
        GET stock:1 => 5
        SET stock:1 6
        GET prices => 3
        SET prices 4 => (NOPERM)
        GET other => (NOPERM)
        MGET stock:1 other => (NOPERM)
        INCR stock:1 => (NOPERM)
        CONFIG GET maxclients => [maxclients 10000]
        CONFIG SET maxclients 10000 => (NOPERM)
        PUBLISH orders.1 x => (NOPERM)
        PING => (NOPERM)
        ",
    );
    assert_eq!(
        denial(&mut alice, "INCR stock:1"),
        "NOPERM User alice has no permissions to run the 'incr' command"
    );
    assert_eq!(
        denial(&mut alice, "GET other"),
        "NOPERM No permissions to access a key"
    );
    // Changed rules apply to open connections.
    run::<()>(&mut admin, "ACL SETUSER alice +incr +publish +ping");
    script(
        &mut alice,
        "
        INCR stock:1 => 7
        PUBLISH orders.1 x => 0
        PUBLISH other.1 x => (NOPERM)
        ",
    );
    run::<()>(&mut admin, "ACL SETUSER alice off");
    script(&mut alice, "INCR stock:1 => 8");
    let mut other = server.connect();
    script(&mut other, "AUTH alice secret => (WRONGPASS)");
    let described: String = show(&mut admin, "ACL LIST");
    let line = described.split(", ").next().unwrap();
    assert!(
        line.contains(
            "~stock:* %R~prices resetchannels &orders.* -@all +@read +set +config|get +incr +publish +ping"
        ),
        "{line}"
    );
    // Who is removed is disconnected.
    run::<()>(&mut admin, "ACL SETUSER bob on nopass +@all");
    let mut bob = server.raw();
    bob.send("AUTH bob any\r\n");
    assert_eq!(bob.line(), "+OK");
    script(
        &mut admin,
        "
        ACL DELUSER bob nobody => 1
        ACL GETUSER bob => nil
        ACL DELUSER default => (ERR)
        ",
    );
    assert_eq!(bob.rest(), "");
}

#[test]
fn selectors_and_writing_only() {
    let server = TestServer::new();
    let mut admin = server.connect();
    let mut user = server.connect();
    script(
        &mut admin,
        "
        ACL SETUSER carol on nopass -@all (%W~log:* +append +set +lpop) (+@read ~in:*) ( +copy %R~in:* %W~log:* )
        SET in:1 x
        ",
    );
    script(
        &mut user,
        "
        AUTH carol x
        APPEND log:1 a => 1
        SET log:1 b
        SET log:1 b GET => (NOPERM)
        LPOP log:2 => (NOPERM)
        GET log:1 => (NOPERM)
        GET in:1 => x
        APPEND in:1 x => (NOPERM)
        COPY in:1 log:3 => 1
        COPY log:3 in:2 => (NOPERM)
        ",
    );
    script(
        &mut admin,
        "
        ACL DRYRUN carol COPY in:1 log:3 => OK
        ACL DRYRUN carol GET other => No permissions to access a key
        ACL DRYRUN carol SUBSCRIBE c => User carol has no permissions to run the 'subscribe' command
        ACL DRYRUN nobody GET a => (ERR)
        ACL DRYRUN carol GET => (ERR)
        ACL SETUSER carol clearselectors
        ACL DRYRUN carol GET in:1 => User carol has no permissions to run the 'get' command
        ",
    );
}

#[test]
fn wrong_rules_change_nothing() {
    let server = TestServer::new();
    let mut admin = server.connect();
    let before = show(&mut admin, "ACL LIST");
    for rules in [
        "dave on +nosuchcommand",
        "dave +@nosuchcategory",
        "dave +get|",
        "dave (+get",
        "dave %X~a",
        "dave %R",
        "dave #abc",
        "dave <unknown",
        "dave something",
        "dave allkeys ~a",
        "dave allchannels &a",
    ] {
        let text = denial(&mut admin, &format!("ACL SETUSER {rules}"));
        assert!(text.starts_with("ERR "), "{rules}: {text}");
    }
    assert_eq!(show(&mut admin, "ACL LIST"), before);
    let mut raw = server.raw();
    raw.send("*3\r\n$3\r\nACL\r\n$7\r\nSETUSER\r\n$3\r\na b\r\n");
    assert!(raw.line().starts_with("-ERR Usernames"));
}

/// Returns a request's words after the name of a command that has subcommands.
fn subcommand(command: &str) -> Option<&'static str> {
    Some(match command {
        "acl" => "whoami",
        "braid.feed" => "list",
        "client" => "id",
        "command" => "count",
        "config" => "get 1",
        "function" => "stats",
        "latency" => "latest",
        "memory" => "doctor",
        "object" => "encoding 1",
        "pubsub" => "numpat",
        "script" => "exists 1",
        "slowlog" => "len",
        "xgroup" => "destroy 1 1",
        "xinfo" => "stream 1",
        _ => return None,
    })
}

/// A user without one command cannot run it, and one with only that command can.
#[test]
fn every_command_can_be_forbidden() {
    let server = TestServer::new();
    let mut admin = server.connect();
    let commands: Vec<String> = run(&mut admin, "COMMAND LIST");
    assert!(commands.len() > 150);
    let mut user = server.connect();
    run::<()>(&mut admin, "ACL SETUSER erin on nopass");
    run::<()>(&mut user, "AUTH erin x");
    for name in commands {
        if ["auth", "hello", "quit", "reset"].contains(&name.as_str()) {
            continue;
        }
        let info: Vec<Vec<Value>> = run(&mut admin, &format!("COMMAND INFO {name}"));
        let Value::Int(arity) = info[0][1] else {
            panic!("{info:?}");
        };
        let request = match subcommand(&name) {
            Some(subcommand) => format!("{name} {subcommand}"),
            None => format!("{name}{}", " 1".repeat(arity.unsigned_abs() as usize - 1)),
        };
        run::<()>(&mut admin, &format!("ACL SETUSER erin +@all ~* &* -{name}"));
        // An EXEC that cannot run discards the transaction, and says so first.
        let refusal = if name == "exec" {
            "(EXECABORT)"
        } else {
            "(NOPERM)"
        };
        assert_eq!(show(&mut user, &request), refusal, "{request}");
        run::<()>(&mut admin, &format!("ACL SETUSER erin -@all +{name}"));
        assert_eq!(
            show(&mut admin, &format!("ACL DRYRUN erin {request}")),
            "OK",
            "{request}"
        );
    }
}

#[test]
fn transactions_are_checked_when_they_run() {
    let server = TestServer::new();
    let mut admin = server.connect();
    run::<()>(&mut admin, "ACL SETUSER frank on nopass ~* +@all");
    let mut frank = server.connect();
    script(
        &mut frank,
        "
        AUTH frank x
        MULTI
        SET a 1 => QUEUED
        SET b 1 => QUEUED
        ",
    );
    run::<()>(&mut admin, "ACL SETUSER frank resetkeys ~a");
    // The client's library reports the first error of the list.
    assert_eq!(show(&mut frank, "EXEC"), "(NOPERM)");
    script(
        &mut frank,
        "MULTI\nSET b 1 => (NOPERM)\nEXEC => (EXECABORT)",
    );
    assert_eq!(show(&mut admin, "MGET a b"), "[1 nil]");
}

#[test]
fn refusals_are_logged() {
    let server = TestServer::new();
    let mut admin = server.connect();
    run::<()>(
        &mut admin,
        "ACL SETUSER gina on >pw ~a &c +get +subscribe +psubscribe",
    );
    let mut gina = server.connect();
    script(
        &mut gina,
        "
        AUTH gina bad => (WRONGPASS)
        AUTH gina pw
        GET b => (NOPERM)
        GET b => (NOPERM)
        SET a 1 => (NOPERM)
        SUBSCRIBE d => (NOPERM)
        PSUBSCRIBE c* => (NOPERM)
        ",
    );
    let log: Vec<std::collections::BTreeMap<String, Value>> = run(&mut admin, "ACL LOG");
    let texts: Vec<String> = log
        .iter()
        .map(|entry| {
            let text = |name: &str| redis::from_redis_value::<String>(entry[name].clone()).unwrap();
            format!("{} {} {}", text("reason"), text("object"), text("count"))
        })
        .collect();
    assert_eq!(
        texts,
        [
            "channel c* 1",
            "channel d 1",
            "command set 1",
            "key b 2",
            "auth AUTH 1"
        ]
    );
    script(&mut admin, "ACL LOG RESET\nACL LOG => []");
}

#[test]
fn users_are_kept_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.acl");
    let open = || {
        TestServer::with(Database::in_memory().unwrap(), |options| {
            options.aclfile = Some(path.clone());
        })
    };
    let server = open();
    let mut admin = server.connect();
    script(
        &mut admin,
        "
        ACL SETUSER hugo on >pw ~a:* (+get ~b) +@write -del
        ACL SETUSER default -debug
        ACL SAVE
        ",
    );
    let before = show(&mut admin, "ACL LIST");
    server.stop();
    let server = open();
    let mut admin = server.connect();
    assert_eq!(show(&mut admin, "ACL LIST"), before);
    script(
        &mut admin,
        "ACL SETUSER ines\nACL LOAD\nACL USERS => [default hugo]",
    );
    // A wrong file changes nothing.
    std::fs::write(&path, "user default on nopass +@all\nuser hugo +nosuch\n").unwrap();
    let text = denial(&mut admin, "ACL LOAD");
    assert!(
        text.contains("users.acl") && text.contains("user hugo"),
        "{text}"
    );
    assert_eq!(show(&mut admin, "ACL LIST"), before);
    server.stop();
    let db = Database::in_memory().unwrap();
    let options = braid_server::ServerOptions {
        bind: vec!["127.0.0.1:0".parse().unwrap()],
        aclfile: Some(path.clone()),
        ..Default::default()
    };
    let error = braid_server::Server::start(db, options).unwrap_err();
    assert!(error.to_string().contains("no user was changed"), "{error}");
}

#[test]
fn passwords() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.requirepass = Some("first".to_owned());
    });
    let mut admin = server.connect();
    script(
        &mut admin,
        "
        AUTH first
        CONFIG SET requirepass second
        AUTH first => (WRONGPASS)
        AUTH second
        ACL SETUSER default >third
        AUTH third
        ACL SETUSER default <second
        AUTH second => (WRONGPASS)
        CONFIG SET requirepass ''
        AUTH any => (ERR)
        ",
    );
    let generated: String = run(&mut admin, "ACL GENPASS");
    assert_eq!(generated.len(), 64);
    assert_eq!(run::<String>(&mut admin, "ACL GENPASS 5").len(), 2);
    assert_eq!(show(&mut admin, "ACL GENPASS 0"), "(ERR)");
}
