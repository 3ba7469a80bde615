//! CLIENT: what clients are connected, and what they want.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::arguments::{Options, help, integer, is, unknown_subcommand};
use super::caching;
use super::connection::checked_name;
use crate::failure::{Failure, Result};
use crate::pause::Pause;
use crate::resp::Reply;
use crate::session::{Replies, Session};
use crate::shared::{Client, Shared};

/// Returns the line of CLIENT LIST for a connection.
pub(crate) fn describe(shared: &Shared, id: u64) -> String {
    let clients = shared.clients();
    clients
        .get(&id)
        .map(|client| line(id, client))
        .unwrap_or_default()
}

/// Returns the line of CLIENT LIST.
fn line(id: u64, client: &Client) -> String {
    let info = client
        .info
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let idle = info.last_active.unwrap_or(client.since).elapsed().as_secs();
    let mut flags = String::new();
    if info.channels + info.shards > 0 {
        flags.push('P');
    }
    if info.queued.is_some() {
        flags.push('x');
    }
    if info.is_blocked {
        flags.push('b');
    }
    let mut redirect = -1;
    if let Some((is_broadcast, target)) = info.tracking {
        flags.push('t');
        if is_broadcast {
            flags.push('B');
        }
        redirect = target.map_or(0, |target| target as i64);
    }
    if flags.is_empty() {
        flags.push('N');
    }
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "id={id} addr={} laddr={} fd=0 name={} age={} idle={idle} flags={flags} db={} sub={} psub=0 ssub={} multi={} watch={} cmd={} user={} redir={redirect} resp={} lib-name={} lib-ver={}",
        client.peer,
        client.local,
        text(&info.name),
        client.since.elapsed().as_secs(),
        info.database,
        info.channels,
        info.shards,
        info.queued.map_or(-1, |queued| queued as i64),
        info.watched,
        if info.last_command.is_empty() {
            "NULL"
        } else {
            info.last_command
        },
        client.user().name(),
        info.protocol.max(2),
        text(&info.library.0),
        text(&info.library.1),
    )
}

/// Kinds of clients, as CLIENT LIST and CLIENT KILL name them. There are no masters and replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientType {
    Normal,
    Pubsub,
    None,
}

impl ClientType {
    fn parse(word: &[u8]) -> Result<ClientType> {
        let known = [
            ("normal", ClientType::Normal),
            ("pubsub", ClientType::Pubsub),
            ("master", ClientType::None),
            ("replica", ClientType::None),
            ("slave", ClientType::None),
        ];
        let found = known.iter().find(|(name, _)| is(word, name));
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let shown = String::from_utf8_lossy(word).into_owned();
            Failure::client(format!("ERR Unknown client type '{shown}'"))
        })
    }

    fn covers(self, client: &Client) -> bool {
        let info = client.info.lock().unwrap_or_else(PoisonError::into_inner);
        let subscribes = info.channels + info.shards > 0;
        match self {
            ClientType::Normal => !subscribes,
            ClientType::Pubsub => subscribes,
            ClientType::None => false,
        }
    }
}

/// Lists clients; with `TYPE`, those of a kind, with `ID`, those with the given numbers.
fn list(shared: &Shared, args: &[Bytes]) -> Result<Reply> {
    let (mut kind, mut wanted) = (None::<ClientType>, None::<Vec<u64>>);
    match &args[2..] {
        [] => {}
        [option, name] if is(option, "TYPE") => kind = Some(ClientType::parse(name)?),
        [option, ids @ ..] if is(option, "ID") && !ids.is_empty() => {
            let numbers = ids.iter().map(|id| {
                integer(id)
                    .ok()
                    .and_then(|id| u64::try_from(id).ok())
                    .ok_or_else(|| Failure::client("ERR Invalid client ID"))
            });
            wanted = Some(numbers.collect::<Result<_>>()?);
        }
        _ => return Err(Failure::SYNTAX),
    }
    let mut text = String::new();
    for (id, client) in &*shared.clients() {
        if wanted.as_ref().is_none_or(|wanted| wanted.contains(id))
            && kind.is_none_or(|kind| kind.covers(client))
        {
            text.push_str(&line(*id, client));
            text.push('\n');
        }
    }
    Ok(Reply::text(text))
}

/// Ends connections: `CLIENT KILL address` or `CLIENT KILL [ID id] [ADDR address] [LADDR address]
/// [USER name] [SKIPME
/// yes/no]`.
fn kill(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let (mut id, mut address, mut local, mut skips_self) = (None, None, None, true);
    let (mut user, mut kind) = (None, None::<ClientType>);
    let is_old_form = args.len() == 3;
    if is_old_form {
        address = Some(String::from_utf8_lossy(&args[2]).into_owned());
        skips_self = false;
    } else {
        let mut options = Options::new(&args[2..]);
        while let Some(option) = options.next() {
            let value = options.value()?;
            if is(option, "ID") {
                let number = integer(value)
                    .ok()
                    .and_then(|id| u64::try_from(id).ok())
                    .filter(|id| *id > 0);
                id =
                    Some(number.ok_or_else(|| {
                        Failure::client("ERR client-id should be greater than 0")
                    })?);
            } else if is(option, "ADDR") {
                address = Some(String::from_utf8_lossy(value).into_owned());
            } else if is(option, "LADDR") {
                local = Some(String::from_utf8_lossy(value).into_owned());
            } else if is(option, "SKIPME") {
                skips_self = if is(value, "yes") {
                    true
                } else if is(value, "no") {
                    false
                } else {
                    return Err(Failure::SYNTAX);
                };
            } else if is(option, "USER") {
                let known = shared.acl.user(value).ok_or_else(|| {
                    let shown = String::from_utf8_lossy(value).into_owned();
                    Failure::client(format!("ERR No such user '{shown}'"))
                })?;
                user = Some(known);
            } else if is(option, "TYPE") {
                kind = Some(ClientType::parse(value)?);
            } else {
                return Err(Failure::SYNTAX);
            }
        }
    }
    let mut killed = 0;
    for (number, client) in &*shared.clients() {
        let matches = id.is_none_or(|id| id == *number)
            && kind.is_none_or(|kind| kind.covers(client))
            && address
                .as_ref()
                .is_none_or(|address| *address == client.peer)
            && local.as_ref().is_none_or(|local| *local == client.local)
            && user
                .as_ref()
                .is_none_or(|user| Arc::ptr_eq(user, &client.user()));
        if !matches || (*number == session.id && skips_self) {
            continue;
        }
        killed += 1;
        if *number == session.id {
            session.closes = true;
        } else {
            client.kill.notify();
        }
    }
    match (is_old_form, killed) {
        (true, 0) => Err(Failure::client("ERR No such client")),
        (true, _) => Ok(Reply::OK),
        (false, killed) => Ok(Reply::Integer(killed)),
    }
}

/// Lets requests wait: `CLIENT PAUSE milliseconds [WRITE | ALL]`.
fn pause(shared: &Shared, args: &[Bytes]) -> Result<Reply> {
    let wrong = || Failure::client("ERR timeout is not an integer or out of range");
    let millis = integer(&args[2]).map_err(|_| wrong())?;
    let millis = u64::try_from(millis).map_err(|_| Failure::client("ERR timeout is negative"))?;
    let all = match args.get(3) {
        None => true,
        Some(mode) if is(mode, "ALL") => true,
        Some(mode) if is(mode, "WRITE") => false,
        Some(_) => {
            return Err(Failure::client(
                "ERR CLIENT PAUSE mode must be WRITE or ALL",
            ));
        }
    };
    let until = tokio::time::Instant::now()
        .checked_add(Duration::from_millis(millis))
        .ok_or_else(wrong)?;
    shared.pauses.begin(Pause { until, all });
    Ok(Reply::OK)
}

fn unblock(shared: &Shared, args: &[Bytes]) -> Result<Reply> {
    let id = integer(&args[2])?;
    let fails = match args.get(3) {
        None => false,
        Some(word) if is(word, "TIMEOUT") => false,
        Some(word) if is(word, "ERROR") => true,
        Some(_) => {
            return Err(Failure::client(
                "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
            ));
        }
    };
    let clients = shared.clients();
    let found = u64::try_from(id).ok().and_then(|id| clients.get(&id));
    let Some(client) = found.filter(|client| {
        client
            .info
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_blocked
    }) else {
        return Ok(Reply::Integer(0));
    };
    // Release pairs with the acquire in the connection.
    client.unblock_fails.store(fails, Ordering::Release);
    client.unblock.notify_one();
    Ok(Reply::Integer(1))
}

pub(super) fn client(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    match (&subcommand[..], args.len()) {
        (b"id", 2) => Ok(Reply::Integer(session.id as i64)),
        (b"getname", 2) => Ok(if session.name.is_empty() {
            Reply::Null
        } else {
            Reply::Bulk(session.name.clone())
        }),
        (b"setname", 3) => {
            session.name = checked_name(&args[2])?;
            Ok(Reply::OK)
        }
        (b"setinfo", 4) => {
            let value = checked_name(&args[3])
                .map_err(|_| Failure::client("ERR lib-name and lib-ver cannot contain spaces, newlines or special characters."))?;
            if is(&args[2], "LIB-NAME") {
                session.library.0 = value;
            } else if is(&args[2], "LIB-VER") {
                session.library.1 = value;
            } else {
                let shown = String::from_utf8_lossy(&args[2]).into_owned();
                return Err(Failure::client(format!(
                    "ERR Unrecognized option '{shown}'"
                )));
            }
            Ok(Reply::OK)
        }
        (b"info", 2) => Ok(Reply::text(describe(shared, session.id) + "\n")),
        (b"list", _) => list(shared, args),
        (b"kill", 3..) => kill(shared, session, args),
        (b"unblock", 3 | 4) => unblock(shared, args),
        (b"pause", 3 | 4) => pause(shared, args),
        (b"unpause", 2) => {
            shared.pauses.end();
            Ok(Reply::OK)
        }
        (b"getredir", 2) => Ok(caching::redirect(session)),
        (b"tracking", 3..) => caching::tracking(shared, session, args),
        (b"trackinginfo", 2) => caching::tracking_info(shared, session),
        (b"caching", 3) => caching::caching(session, args),
        (b"reply", 3) => {
            if is(&args[2], "ON") {
                session.replies = Replies::On;
                return Ok(Reply::OK);
            }
            session.replies = if is(&args[2], "OFF") {
                Replies::Off
            } else if is(&args[2], "SKIP") {
                Replies::SkipNext
            } else {
                return Err(Failure::SYNTAX);
            };
            Ok(Reply::OK)
        }
        (b"no-evict" | b"no-touch", 3) => {
            if is(&args[2], "ON") || is(&args[2], "OFF") {
                Ok(Reply::OK)
            } else {
                Err(Failure::SYNTAX)
            }
        }
        (b"help", 2) => Ok(help(&[
            "CLIENT <subcommand> [<arg> ...]. Subcommands are:",
            "CACHING, GETNAME, GETREDIR, ID, INFO, KILL, LIST, NO-EVICT, NO-TOUCH, PAUSE, REPLY, SETINFO, SETNAME, TRACKING, TRACKINGINFO, UNBLOCK, UNPAUSE, HELP",
        ])),
        _ => Err(unknown_subcommand("client", &args[1])),
    }
}
