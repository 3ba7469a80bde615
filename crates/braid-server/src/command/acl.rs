//! ACL: users and what they may do.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::arguments::{help, integer, is, unknown_subcommand};
use super::introspection::keys_of;
use super::table::{commands, find};
use crate::acl::{CATEGORIES, DEFAULT, User, belongs};
use crate::failure::{Failure, Result};
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;

/// Entries of ACL LOG that are shown if the client names no number.
const LOG_COUNT: usize = 10;

fn name_of(argument: &Bytes) -> Result<&str> {
    let wrong = || {
        Failure::client(
            "ERR Usernames can't contain spaces or null characters, and have to be UTF-8",
        )
    };
    let name = std::str::from_utf8(argument).map_err(|_| wrong())?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '\0') {
        return Err(wrong());
    }
    Ok(name)
}

/// Ends the connections of users that exist no more.
fn end_connections(shared: &Shared, removed: &[Arc<User>], session: &mut Session) {
    if removed.iter().any(|user| Arc::ptr_eq(user, &session.user)) {
        session.closes = true;
    }
    for client in shared.clients().values() {
        let user = client.user();
        if removed.iter().any(|gone| Arc::ptr_eq(gone, &user)) {
            client.kill.notify();
        }
    }
}

fn remove(shared: &Shared, session: &mut Session, names: &[Bytes]) -> Result<Reply> {
    if names.iter().any(|name| name == DEFAULT.as_bytes()) {
        return Err(Failure::client("ERR The 'default' user cannot be removed"));
    }
    let removed: Vec<_> = names
        .iter()
        .filter_map(|name| shared.acl.remove(name))
        .collect();
    end_connections(shared, &removed, session);
    Ok(Reply::Integer(removed.len() as i64))
}

fn get(shared: &Shared, name: &[u8]) -> Reply {
    let Some(user) = shared.acl.user(name) else {
        return Reply::Null;
    };
    let rules = user.rules();
    let list = |texts: Vec<String>| Reply::Array(texts.into_iter().map(Reply::copied).collect());
    let selector = |parts: [String; 3]| -> Vec<(Reply, Reply)> {
        let names = ["commands", "keys", "channels"];
        let pairs = names.into_iter().zip(parts);
        pairs
            .map(|(name, text)| (Reply::copied(name), Reply::copied(text)))
            .collect()
    };
    let mut selectors = rules.describe_selectors().into_iter().map(selector);
    let flags = rules.flags().into_iter().map(Reply::copied).collect();
    let mut fields = vec![
        (Reply::copied("flags"), Reply::Set(flags)),
        (Reply::copied("passwords"), list(rules.password_hashes())),
    ];
    fields.extend(selectors.next().unwrap_or_default());
    let others = selectors.map(Reply::Map).collect();
    fields.push((Reply::copied("selectors"), Reply::Array(others)));
    Reply::Map(fields)
}

fn categories(category: Option<&Bytes>) -> Result<Reply> {
    let Some(category) = category else {
        return Ok(Reply::Array(
            CATEGORIES.into_iter().map(Reply::copied).collect(),
        ));
    };
    let wanted = String::from_utf8_lossy(category).to_lowercase();
    if !CATEGORIES.contains(&wanted.as_str()) {
        return Err(Failure::client(format!("ERR Unknown category '{wanted}'")));
    }
    let names = commands()
        .iter()
        .filter(|command| belongs(command, &wanted));
    Ok(Reply::Array(
        names.map(|command| Reply::copied(command.name)).collect(),
    ))
}

/// Makes a password that nobody can guess, of as many bits as wanted.
fn generate(bits: Option<&Bytes>) -> Result<Reply> {
    let bits = bits.map_or(Ok(256), |bits| integer(bits))?;
    if !(1..=4096).contains(&bits) {
        return Err(Failure::client(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
        ));
    }
    let digits = (bits as usize).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::client(format!("ERR no random numbers: {error}")))?;
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(digits);
    Ok(Reply::copied(text))
}

fn log(shared: &Shared, argument: Option<&Bytes>) -> Result<Reply> {
    let count = match argument {
        None => LOG_COUNT,
        Some(word) if is(word, "RESET") => {
            shared.acl.log.clear();
            return Ok(Reply::OK);
        }
        // As in Redis, a negative count stands for 0.
        Some(count) => usize::try_from(integer(count)?).unwrap_or(0),
    };
    let entries = shared.acl.log.newest(count).into_iter().map(|entry| {
        let text = |text: String| Reply::copied(text);
        let millis = |time: std::time::SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Reply::Integer(since.as_millis() as i64)
        };
        let fields = [
            ("count", Reply::Integer(entry.count as i64)),
            ("reason", Reply::copied(entry.reason.name())),
            ("context", Reply::copied(entry.context)),
            ("object", text(entry.object)),
            ("username", text(entry.user)),
            (
                "age-seconds",
                Reply::Double(entry.since.elapsed().as_secs_f64()),
            ),
            ("client-info", text(entry.client)),
            ("entry-id", Reply::Integer(entry.id as i64)),
            ("timestamp-created", millis(entry.created)),
            ("timestamp-last-updated", millis(entry.updated)),
        ];
        let fields = fields.map(|(name, value)| (Reply::copied(name), value));
        Reply::Map(fields.into())
    });
    Ok(Reply::Array(entries.collect()))
}

/// Says whether a user could run a command.
fn dry_run(shared: &Shared, args: &[Bytes]) -> Result<Reply> {
    let (name, request) = (&args[2], &args[3..]);
    let user = shared.acl.user(name).ok_or_else(|| {
        let shown = String::from_utf8_lossy(name).into_owned();
        Failure::client(format!("ERR User '{shown}' not found"))
    })?;
    let command = find(&request[0]).ok_or_else(|| {
        let shown = String::from_utf8_lossy(&request[0]).into_owned();
        Failure::client(format!("ERR Command '{shown}' not found"))
    })?;
    command
        .check(request)
        .map_err(|misuse| Failure::client(command.describe(misuse, request)))?;
    Ok(
        match user.check(command, request, || keys_of(command, request)) {
            Ok(()) => Reply::OK,
            Err(denied) => Reply::copied(denied.describe(user.name(), command.name)),
        },
    )
}

fn file(shared: &Shared) -> Result<std::path::PathBuf> {
    shared.options().aclfile.clone().ok_or_else(|| {
        Failure::client("ERR This server has no file of users; start it with the option `aclfile`")
    })
}

pub(super) fn acl(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    let lines = |texts: Vec<String>| Reply::Array(texts.into_iter().map(Reply::copied).collect());
    match (&subcommand[..], args.len()) {
        (b"whoami", 2) => Ok(Reply::copied(session.user.name())),
        (b"users", 2) => {
            let names = shared
                .acl
                .users()
                .into_iter()
                .map(|user| user.name().to_owned());
            Ok(lines(names.collect()))
        }
        (b"list", 2) => Ok(lines(shared.acl.lines())),
        (b"getuser", 3) => Ok(get(shared, &args[2])),
        (b"setuser", 3..) => {
            let name = name_of(&args[2])?;
            shared
                .acl
                .set(name, &args[3..])
                .map_err(|reason| Failure::client(format!("ERR {reason}")))?;
            Ok(Reply::OK)
        }
        (b"deluser", 3..) => remove(shared, session, &args[2..]),
        (b"cat", 2 | 3) => categories(args.get(2)),
        (b"genpass", 2 | 3) => generate(args.get(2)),
        (b"log", 2 | 3) => log(shared, args.get(2)),
        (b"dryrun", 4..) => dry_run(shared, args),
        (b"save", 2) => {
            let path = file(shared)?;
            let saved = shared.acl.save(&path);
            saved.map_err(|reason| Failure::client(format!("ERR {reason}")))?;
            Ok(Reply::OK)
        }
        (b"load", 2) => {
            let path = file(shared)?;
            let removed = shared.acl.load(&path);
            let removed = removed.map_err(|reason| Failure::client(format!("ERR {reason}")))?;
            end_connections(shared, &removed, session);
            Ok(Reply::OK)
        }
        (b"help", 2) => Ok(help(&[
            "ACL <subcommand> [<arg> ...]. Subcommands are:",
            "CAT [<category>], DELUSER <name> ..., DRYRUN <name> <request>, GENPASS [<bits>], GETUSER <name>, LIST, LOAD, LOG [<count> | RESET], SAVE, SETUSER <name> [<rule> ...], USERS, WHOAMI, HELP",
        ])),
        _ => Err(unknown_subcommand("acl", &args[1])),
    }
}
