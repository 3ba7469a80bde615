//! What COMMAND INFO says of the keys of commands and subcommands.

use std::collections::BTreeMap;

use redis::Value;

use super::support::{TestServer, redis_server, run, text};

/// Specifications that differ from those of Redis 7.0, which says that SINTERSTORE adds to its target, and lists
/// channels of shards as what is no key.
const OTHERS: [&str; 4] = ["sinterstore", "spublish", "ssubscribe", "sunsubscribe"];

fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) | Value::Set(list) => list,
        other => panic!("no list: {other:?}"),
    }
}

/// Returns the key specifications in an entry of COMMAND INFO, without the notes for people.
fn specs_of(entry: &[Value]) -> String {
    let specs = list(&entry[8]).iter().map(|spec| {
        let fields = list(spec).chunks(2);
        let fields = fields.filter(|field| text(&field[0]) != "notes");
        fields.flatten().map(text).collect::<Vec<_>>().join(" ")
    });
    specs.collect::<Vec<_>>().join("; ")
}

/// Returns the key specifications of all commands and subcommands of a server by their names.
fn specs(connection: &mut redis::Connection) -> BTreeMap<String, String> {
    let mut specs = BTreeMap::new();
    let listed: Vec<Value> = run(connection, "COMMAND");
    for entry in listed.iter().map(list) {
        specs.insert(text(&entry[0]), specs_of(entry));
        for entry in list(&entry[9]).iter().map(list) {
            specs.insert(text(&entry[0]), specs_of(entry));
        }
    }
    specs
}

#[test]
fn keys_are_specified_as_in_redis() {
    let server = TestServer::new();
    let own = specs(&mut server.connect());
    let expected = [
        ("ping", ""),
        (
            "get",
            "flags [RO access] begin_search [type index spec [index 1]] \
             find_keys [type range spec [lastkey 0 keystep 1 limit 0]]",
        ),
        (
            "xread",
            "flags [RO access] begin_search [type keyword spec [keyword STREAMS startfrom 1]] \
             find_keys [type range spec [lastkey -1 keystep 1 limit 2]]",
        ),
        (
            "blmpop",
            "flags [RW access delete] begin_search [type index spec [index 2]] \
             find_keys [type keynum spec [keynumidx 0 firstkey 1 keystep 1]]",
        ),
        ("object", ""),
        ("object|help", ""),
        (
            "object|freq",
            "flags [RO] begin_search [type index spec [index 2]] \
             find_keys [type range spec [lastkey 0 keystep 1 limit 0]]",
        ),
    ];
    for (name, specs) in expected {
        assert_eq!(own[name], specs, "{name}");
    }
    let Some((redis, _process)) = redis_server() else {
        return;
    };
    let mut compared = 0;
    for (name, specs) in specs(&mut redis.get_connection().unwrap()) {
        if let Some(own) = own.get(&name)
            && !OTHERS.contains(&&*name)
        {
            assert_eq!(own, &specs, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 250, "{compared}");
}
