//! COMMAND: what the server knows about its commands.

use bytes::Bytes;

use super::Command;
use super::arguments::{help, is, unknown_subcommand};
use super::key_specs::{key_specs, key_specs_of_subcommand};
use super::table::{commands, find};
use crate::acl::categories;
use crate::failure::{Failure, Result};
use crate::glob::matches;
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::{Flag, Signature, fits};

/// Returns the entry of COMMAND INFO.
fn info(command: &Command) -> Reply {
    let subcommands = command.subcommands.iter().map(|&(name, arity)| {
        // The key of a subcommand follows its name, if it takes one.
        let has_key = command.keys.0 > 0 && fits(arity, arity.abs().max(3) as usize);
        let key = if has_key { command.keys.0 } else { 0 };
        let specs = key_specs_of_subcommand(command, name, key);
        let name = format!("{}|{name}", command.name);
        let keys = (key, key, key.min(1));
        entry(command, &name, arity, keys, specs, Vec::new())
    });
    let (name, arity, keys) = (command.name, command.arity, command.keys);
    entry(
        command,
        name,
        arity,
        keys,
        key_specs(command),
        subcommands.collect(),
    )
}

/// Returns the entry of a command or of a subcommand of it, with its name, its number of arguments, the
/// places of its keys, and their specifications.
fn entry(
    command: &Command,
    name: &str,
    arity: i32,
    (first, last, step): (i32, i32, i32),
    specs: Reply,
    subcommands: Vec<Reply>,
) -> Reply {
    let flags = command
        .flags
        .iter()
        .map(|flag| Reply::Status(flag.name()))
        .collect();
    let categories = categories(command)
        .map(|category| Reply::Simple(format!("@{category}").into()))
        .collect();
    Reply::Array(vec![
        Reply::copied(name),
        Reply::Integer(i64::from(arity)),
        Reply::Set(flags),
        Reply::Integer(i64::from(first)),
        Reply::Integer(i64::from(last)),
        Reply::Integer(i64::from(step)),
        Reply::Set(categories),
        Reply::Set(Vec::new()),
        specs,
        Reply::Set(subcommands),
    ])
}

/// Returns whether an argument of the command announces the number of its keys.
pub(super) fn is_numbered(name: &str) -> bool {
    matches!(
        name,
        "zunionstore"
            | "zinterstore"
            | "zdiffstore"
            | "zunion"
            | "zinter"
            | "zdiff"
            | "zintercard"
            | "sintercard"
            | "lmpop"
            | "zmpop"
            | "blmpop"
            | "bzmpop"
            | "eval"
            | "eval_ro"
            | "evalsha"
            | "evalsha_ro"
            | "fcall"
            | "fcall_ro"
    )
}

/// Returns the keys among the arguments of a request.
pub(crate) fn keys_of(command: &Signature, args: &[Bytes]) -> Vec<Bytes> {
    if is_numbered(command.name) {
        return numbered(command.name, args);
    }
    if matches!(command.name, "xread" | "xreadgroup") {
        return super::streams::keys_of(args);
    }
    if matches!(command.name, "georadius" | "georadiusbymember") {
        return super::geo::keys_of(args);
    }
    if command.name == "sort" {
        return super::sort::keys_of(args);
    }
    placed_keys(command, args).cloned().collect()
}

/// Returns the arguments that are keys because of their place.
pub(crate) fn placed_keys<'a>(
    command: &Signature,
    args: &'a [Bytes],
) -> impl Iterator<Item = &'a Bytes> {
    let (first, last, step) = command.keys;
    let last = if first == 0 || step == 0 {
        -1
    } else if last < 0 {
        args.len() as i32 + last
    } else {
        last
    };
    (first..=last)
        .step_by(step.max(1) as usize)
        .filter_map(|at| args.get(at as usize))
}

/// Returns the keys that a number announces.
fn numbered(name: &str, args: &[Bytes]) -> Vec<Bytes> {
    let stores = name.ends_with("store");
    let is_script = name.starts_with("eval") || name.starts_with("fcall");
    let at = if stores || is_script || name.starts_with('b') {
        2
    } else {
        1
    };
    let count = args
        .get(at)
        .and_then(|count| crate::resp::number::parse_i64(count))
        .map_or(0, |count| count.max(0) as usize);
    let mut keys: Vec<Bytes> = if stores {
        args.get(1).cloned().into_iter().collect()
    } else {
        Vec::new()
    };
    keys.extend(args.iter().skip(at + 1).take(count).cloned());
    keys
}

/// Returns what a request does to its keys, as Redis names it: to the first key, and to the others.
pub(super) fn uses_of(command: &Signature, args: &[Bytes]) -> [&'static [&'static str]; 2] {
    const LOOK: &[&str] = &["RO"];
    const READ: &[&str] = &["RO", "access"];
    const CHANGE: &[&str] = &["RW", "update"];
    const READ_AND_CHANGE: &[&str] = &["RW", "access", "update"];
    const TAKE: &[&str] = &["RW", "access", "delete"];
    const REMOVE: &[&str] = &["RW", "delete"];
    const ADD: &[&str] = &["RW", "insert"];
    const WRITE: &[&str] = &["OW", "update"];
    const CREATE: &[&str] = &["OW", "insert"];
    let given = |from: usize, word: &str| args.iter().skip(from).any(|arg| is(arg, word));
    let subcommand = |word: &str| args.get(1).is_some_and(|arg| is(arg, word));
    let (first, others) = match command.name {
        "exists" | "hexists" | "hlen" | "hstrlen" | "llen" | "scard" | "sismember" | "strlen"
        | "memory" | "object" | "touch" | "type" | "watch" | "xlen" | "zcard" => (LOOK, LOOK),
        "bitfield" if !given(2, "SET") && !given(2, "INCRBY") => (READ, READ),
        "xgroup" if subcommand("CREATE") || subcommand("CREATECONSUMER") => (ADD, ADD),
        "xgroup" if subcommand("DESTROY") || subcommand("DELCONSUMER") => (REMOVE, REMOVE),
        "xgroup" => (CHANGE, CHANGE),
        "blmove" | "brpoplpush" | "lmove" | "rpoplpush" | "smove" => (TAKE, ADD),
        "copy" | "georadius" | "georadiusbymember" | "sort" => (READ, WRITE),
        "rename" => (TAKE, WRITE),
        "renamenx" => (TAKE, CREATE),
        "pfmerge" => (&["RW", "access", "insert"][..], READ),
        "pfcount" => (&["RW", "access"][..], &["RW", "access"][..]),
        "bitop" | "geosearchstore" | "sdiffstore" | "sinterstore" | "sunionstore"
        | "zdiffstore" | "zinterstore" | "zrangestore" | "zunionstore" => (WRITE, READ),
        "blmpop" | "blpop" | "brpop" | "bzmpop" | "bzpopmax" | "bzpopmin" | "getdel"
        | "hgetdel" | "lmpop" | "lpop" | "rpop" | "spop" | "zmpop" | "zpopmax" | "zpopmin" => {
            (TAKE, TAKE)
        }
        "del" | "unlink" => (&["RM", "delete"][..], &["RM", "delete"][..]),
        "hdel" | "lrem" | "ltrim" | "srem" | "xautoclaim" | "xdel" | "xtrim" | "zrem"
        | "zremrangebylex" | "zremrangebyrank" | "zremrangebyscore" => (REMOVE, REMOVE),
        "append" | "hsetnx" | "linsert" | "lpush" | "lpushx" | "pfadd" | "rpush" | "rpushx"
        | "sadd" => (ADD, ADD),
        "msetnx" | "setnx" => (CREATE, CREATE),
        "mset" | "psetex" | "restore" | "setex" => (WRITE, WRITE),
        "set" if !given(3, "GET") => (WRITE, WRITE),
        "expire" | "expireat" | "geoadd" | "hexpire" | "hexpireat" | "hmset" | "hpersist"
        | "hpexpire" | "hpexpireat" | "hset" | "hsetex" | "lset" | "persist" | "pexpire"
        | "pexpireat" | "setrange" | "xack" | "xadd" | "xclaim" | "xsetid" | "zadd" => {
            (CHANGE, CHANGE)
        }
        // As in Redis, although it changes the group.
        "xreadgroup" => (READ, READ),
        _ if command.is(Flag::Readonly) => (READ, READ),
        _ => (READ_AND_CHANGE, READ_AND_CHANGE),
    };
    [first, others]
}

/// Returns a name and an entry of COMMAND DOCS.
fn docs(command: &Command) -> (Reply, Reply) {
    let group = || vec![(Reply::copied("group"), Reply::copied(command.group))];
    let mut fields = group();
    if !command.subcommands.is_empty() {
        let subcommands = command.subcommands.iter().map(|(name, _)| {
            let name = format!("{}|{name}", command.name);
            (Reply::copied(name), Reply::Map(group()))
        });
        fields.push((
            Reply::copied("subcommands"),
            Reply::Map(subcommands.collect()),
        ));
    }
    (Reply::copied(command.name), Reply::Map(fields))
}

/// Lists the names of commands: of all, or of those that `FILTERBY` selects.
fn list(options: &[Bytes]) -> Result<Reply> {
    let is_wanted: Box<dyn Fn(&Command) -> bool> = match options {
        [] => Box::new(|_| true),
        [word, by, what] if is(word, "FILTERBY") => {
            let what = what.to_ascii_lowercase();
            if is(by, "PATTERN") {
                Box::new(move |command| matches(&what, command.name.as_bytes()))
            } else if is(by, "ACLCAT") {
                Box::new(move |command| {
                    categories(command).any(|category| category.as_bytes() == what)
                })
            } else if is(by, "MODULE") {
                // There are no modules.
                Box::new(|_| false)
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        _ => return Err(Failure::SYNTAX),
    };
    let wanted = commands().iter().filter(|command| is_wanted(command));
    let names = wanted.map(|command| Reply::copied(command.name));
    Ok(Reply::Array(names.collect()))
}

pub(super) fn command(_: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let Some(subcommand) = args.get(1) else {
        return Ok(Reply::Array(commands().iter().map(info).collect()));
    };
    if is(subcommand, "COUNT") {
        return Ok(Reply::Integer(commands().len() as i64));
    }
    if is(subcommand, "INFO") {
        if args.len() == 2 {
            return Ok(Reply::Array(commands().iter().map(info).collect()));
        }
        let found = args[2..]
            .iter()
            .map(|name| find(name).map_or(Reply::Null, info));
        return Ok(Reply::Array(found.collect()));
    }
    if is(subcommand, "LIST") {
        return list(&args[2..]);
    }
    if is(subcommand, "DOCS") {
        let wanted: Vec<&Command> = if args.len() == 2 {
            commands().iter().collect()
        } else {
            args[2..].iter().filter_map(|name| find(name)).collect()
        };
        return Ok(Reply::Map(wanted.into_iter().map(docs).collect()));
    }
    let with_flags = is(subcommand, "GETKEYSANDFLAGS");
    if (is(subcommand, "GETKEYS") || with_flags) && args.len() > 2 {
        let command =
            find(&args[2]).ok_or_else(|| Failure::client("ERR Invalid command specified"))?;
        if command.check(&args[2..]).is_err() {
            return Err(Failure::client(
                "ERR Invalid number of arguments specified for command",
            ));
        }
        let keys = keys_of(command, &args[2..]);
        if keys.is_empty() {
            return Err(Failure::client("ERR The command has no key arguments"));
        }
        if !with_flags {
            return Ok(Reply::bulks(keys));
        }
        let [first, others] = uses_of(command, &args[2..]);
        let uses = std::iter::once(first).chain(std::iter::repeat(others));
        let pairs = keys.into_iter().zip(uses).map(|(key, uses)| {
            let uses = uses.iter().map(|name| Reply::Status(name)).collect();
            Reply::Array(vec![Reply::Bulk(key), Reply::Set(uses)])
        });
        return Ok(Reply::Array(pairs.collect()));
    }
    if is(subcommand, "HELP") && args.len() == 2 {
        return Ok(help(&[
            "COMMAND <subcommand> [<arg> ...]. Subcommands are:",
            "(none), COUNT, DOCS [<command> ...], GETKEYS <request>, GETKEYSANDFLAGS <request>, INFO [<command> ...], LIST, HELP",
        ]));
    }
    Err(unknown_subcommand("command", subcommand))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Run;

    /// Access control finds the keys of a request here: a command that reads or writes a key that
    /// is not found would be allowed for every key.
    #[test]
    fn the_keys_of_every_command_are_known() {
        let without_keys = [
            "dbsize",
            "flushall",
            "flushdb",
            "keys",
            "randomkey",
            "scan",
            "swapdb",
        ];
        for command in commands() {
            let arguments = match command.name {
                "xread" => "COUNT 1 STREAMS 1 1",
                "xreadgroup" => "GROUP 1 1 COUNT 1 STREAMS 1 1",
                _ => "1 1 1 1 1 1 1",
            };
            let request: Vec<Bytes> = std::iter::once(command.name)
                .chain(arguments.split(' '))
                .map(|word| Bytes::from_static(word.as_bytes()))
                .collect();
            let is_data = matches!(command.run, Run::Data(_) | Run::Script(_));
            assert_eq!(
                keys_of(command, &request).is_empty(),
                !(is_data || command.name == "watch") || without_keys.contains(&command.name),
                "{}",
                command.name
            );
        }
    }
}
