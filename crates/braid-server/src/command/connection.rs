//! Commands about the connection itself.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use braid::Durability;
use bytes::Bytes;

use super::arguments::{Options, integer, is, wrong_arity};
use super::clients::describe;
use super::keys::database;
use crate::acl::{DEFAULT, Reason, User};
use crate::failure::{Failure, Result};
use crate::resp::{Protocol, Reply};
use crate::session::{Replies, Session};
use crate::shared::Shared;

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
        let left = options.rest().len();
        if is(option, "AUTH") && left >= 2 {
            let (user, password) = (options.value()?, options.value()?);
            authenticate(shared, session, user, password)?;
        } else if is(option, "SETNAME") && left >= 1 {
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
    session.end_transaction();
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
pub(super) fn checked_name(name: &Bytes) -> Result<Bytes> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        // It outlives the request, whose memory is shared.
        Ok(Bytes::copy_from_slice(name))
    } else {
        Err(Failure::client(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ))
    }
}
