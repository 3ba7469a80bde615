//! Commands about the connection itself.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use braid::Durability;
use bytes::Bytes;

use super::arguments::{Options, help, integer, is, unknown_subcommand, wrong_arity};
use super::caching;
use super::keys::database;
use crate::acl::{DEFAULT, Reason, User};
use crate::failure::{Failure, Result};
use crate::pause::Pause;
use crate::resp::{Protocol, Reply};
use crate::session::{Replies, Session};
use crate::shared::{Client, Shared};

pub(super) fn ping(_: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    if args.len() > 2 {
        return Err(wrong_arity("ping"));
    }
    // A subscriber of the older protocol gets lists only.
    if session.protocol == Protocol::Resp2 && !session.subscriptions.is_empty() {
        let text = args.get(1).cloned().unwrap_or_default();
        return Ok(Reply::Array(vec![Reply::copied("pong"), Reply::Bulk(text)]));
    }
    Ok(args
        .get(1)
        .map_or(Reply::Status("PONG"), |text| Reply::Bulk(text.clone())))
}

pub(super) fn echo(_: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Bulk(args[1].clone()))
}

pub(super) fn quit(_: &Shared, session: &mut Session, _: &[Bytes]) -> Result<Reply> {
    session.closes = true;
    Ok(Reply::OK)
}

pub(super) fn select(_: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    session.database = database(&args[1])?;
    Ok(Reply::OK)
}

/// Checks a user's password, and makes the connection the user's.
fn authenticate(
    shared: &Shared,
    session: &mut Session,
    user: &[u8],
    password: &[u8],
) -> Result<()> {
    let Some(known) = shared.acl.authenticate(user, password) else {
        let name = String::from_utf8_lossy(user).into_owned();
        let client = describe(shared, session.id);
        let log = &shared.acl.log;
        log.add(
            Reason::Authentication,
            "toplevel",
            "AUTH".to_owned(),
            &name,
            client,
        );
        return Err(Failure::client(
            "WRONGPASS invalid username-password pair or user is disabled.",
        ));
    };
    session.is_authenticated = true;
    become_user(shared, session, known);
    Ok(())
}

fn become_user(shared: &Shared, session: &mut Session, user: Arc<User>) {
    if let Some(client) = shared.clients().get(&session.id) {
        *client.user.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&user);
    }
    session.user = user;
}

/// Returns the line of CLIENT LIST for a connection.
pub(crate) fn describe(shared: &Shared, id: u64) -> String {
    let clients = shared.clients();
    clients
        .get(&id)
        .map(|client| line(id, client))
        .unwrap_or_default()
}

pub(super) fn auth(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    match args {
        [_, _] if shared.acl.default_user().1 => Err(Failure::client(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
        )),
        [_, password] => {
            authenticate(shared, session, DEFAULT.as_bytes(), password)?;
            Ok(Reply::OK)
        }
        [_, user, password] => {
            authenticate(shared, session, user, password)?;
            Ok(Reply::OK)
        }
        _ => Err(Failure::SYNTAX),
    }
}

pub(super) fn hello(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[1..]);
    let mut protocol = session.protocol;
    if let Some(version) = options.next() {
        protocol = match integer(version) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Err(Failure::client("NOPROTO unsupported protocol version")),
            Err(_) => {
                return Err(Failure::client(
                    "ERR Protocol version is not an integer or out of range",
                ));
            }
        };
    }
    let mut name = None;
    while let Some(option) = options.next() {
        if is(option, "AUTH") {
            let (user, password) = (options.value()?, options.value()?);
            authenticate(shared, session, user, password)?;
        } else if is(option, "SETNAME") {
            name = Some(checked_name(options.value()?)?);
        } else {
            let shown = String::from_utf8_lossy(option).into_owned();
            return Err(Failure::client(format!(
                "ERR Syntax error in HELLO option '{shown}'"
            )));
        }
    }
    if !session.is_authenticated {
        return Err(Failure::client(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        session.name = name;
    }
    session.protocol = protocol;
    let text = |text: &'static str| Reply::Bulk(Bytes::from_static(text.as_bytes()));
    Ok(Reply::Map(vec![
        (text("server"), text("redis")),
        (text("version"), text(super::server::REDIS_VERSION)),
        (text("proto"), Reply::Integer(protocol.number())),
        (text("id"), Reply::Integer(session.id as i64)),
        (text("mode"), text("standalone")),
        (text("role"), text("master")),
        (text("modules"), Reply::Array(Vec::new())),
    ]))
}

pub(super) fn reset(shared: &Shared, session: &mut Session, _: &[Bytes]) -> Result<Reply> {
    for (topic, name) in std::mem::take(&mut session.subscriptions) {
        shared.channels.unsubscribe(topic, &name, session.id);
    }
    if std::mem::take(&mut session.is_monitor) {
        shared.monitors.remove(session.id);
    }
    session.queue = None;
    session.watched.clear();
    session.database = 0;
    session.protocol = Protocol::Resp2;
    session.name = Bytes::new();
    session.durability = Durability::Immediate;
    session.replies = Replies::On;
    shared.stop_tracking(session);
    let (user, is_authenticated) = shared.acl.default_user();
    session.is_authenticated = is_authenticated;
    become_user(shared, session, user);
    Ok(Reply::Status("RESET"))
}

/// Selects when writes of this connection are answered: `BRAID.DURABILITY [immediate | buffered
/// [milliseconds]]`.
pub(super) fn durability(_: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    match args {
        [_] => {}
        [_, level] if is(level, "immediate") => session.durability = Durability::Immediate,
        [_, level] if is(level, "buffered") => {
            session.durability = Durability::Buffered(Duration::from_millis(100));
        }
        [_, level, bound] if is(level, "buffered") => {
            let bound = integer(bound)?;
            if !(1..=60_000).contains(&bound) {
                return Err(Failure::client(
                    "ERR the bound must be from 1 to 60000 milliseconds",
                ));
            }
            session.durability = Durability::Buffered(Duration::from_millis(bound as u64));
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(match session.durability {
        Durability::Buffered(bound) => Reply::copied(format!("buffered {}", bound.as_millis())),
        _ => Reply::copied("immediate"),
    })
}

/// Checks the name of a connection: CLIENT LIST separates fields by spaces.
fn checked_name(name: &Bytes) -> Result<Bytes> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        Ok(name.clone())
    } else {
        Err(Failure::client(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ))
    }
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

/// Lists clients; with `ID`, those with the given numbers.
fn list(shared: &Shared, args: &[Bytes]) -> Result<Reply> {
    let mut options = Options::new(&args[2..]);
    let mut wanted: Option<Vec<u64>> = None;
    while let Some(option) = options.next() {
        if is(option, "TYPE") {
            let kind = options.value()?;
            if !["normal", "master", "replica", "pubsub"]
                .iter()
                .any(|known| is(kind, known))
            {
                let shown = String::from_utf8_lossy(kind).into_owned();
                return Err(Failure::client(format!(
                    "ERR Unknown client type '{shown}'"
                )));
            }
        } else if is(option, "ID") {
            let numbers = options.rest().iter().map(|id| {
                integer(id)
                    .ok()
                    .and_then(|id| u64::try_from(id).ok())
                    .ok_or_else(|| Failure::client("ERR Invalid client ID"))
            });
            wanted = Some(numbers.collect::<Result<_>>()?);
            break;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let mut text = String::new();
    for (id, client) in &*shared.clients() {
        if wanted.as_ref().is_none_or(|wanted| wanted.contains(id)) {
            text.push_str(&line(*id, client));
            text.push('\n');
        }
    }
    Ok(Reply::Verbatim(text))
}

/// Ends connections: `CLIENT KILL address` or `CLIENT KILL [ID id] [ADDR address] [LADDR address]
/// [USER name] [SKIPME
/// yes/no]`.
fn kill(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let (mut id, mut address, mut local, mut skips_self) = (None, None, None, true);
    let mut user = None;
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
                // All clients are of one kind.
            } else {
                return Err(Failure::SYNTAX);
            }
        }
    }
    let mut killed = 0;
    for (number, client) in &*shared.clients() {
        let matches = id.is_none_or(|id| id == *number)
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
        Some(_) => return Err(Failure::SYNTAX),
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
        (b"info", 2) => Ok(Reply::Verbatim(describe(shared, session.id) + "\n")),
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
        (b"trackinginfo", _) => caching::tracking_info(shared, session, args),
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
