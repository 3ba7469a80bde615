//! CLIENT TRACKING and its relatives: what a client keeps, and how it learns of changes.

use std::sync::PoisonError;

use bytes::Bytes;

use super::arguments::{Options, integer, is};
use super::{Command, Run, keys_of};
use crate::failure::{Failure, Result};
use crate::resp::Reply;
use crate::session::{Caching, Session};
use crate::shared::Shared;
use crate::signature::Flag;
use crate::tracking::{Mode, Opt};

/// Notes the keys that a command is about to read, if the client keeps what it reads. Of a script
/// these are the keys that it declares; its commands note others.
pub(crate) fn remember(shared: &Shared, session: &Session, command: &Command, args: &[Bytes]) {
    if session.caching.is_none() || !session.keeps_reads() {
        return;
    }
    if command.is(Flag::Readonly) || matches!(command.run, Run::Script(_)) {
        let keys = keys_of(command, args);
        let limit = shared.options().tracking_table_max_keys;
        let find = |client| shared.mailbox(client);
        shared.tracking.remember(session.id, keys, limit, find);
    }
}

/// Ends or begins that the client learns of changes: `CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX
/// prefix]... [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`.
pub(super) fn tracking(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let is_on = match &args[2] {
        word if is(word, "ON") => true,
        word if is(word, "OFF") => false,
        _ => return Err(Failure::SYNTAX),
    };
    let mut mode = Mode::default();
    let (mut is_broadcast, mut prefixes) = (false, Vec::new());
    let (mut opts_in, mut opts_out) = (false, false);
    let mut options = Options::new(&args[3..]);
    while let Some(option) = options.next() {
        if is(option, "REDIRECT") {
            let id = integer(options.value()?)?;
            let id = u64::try_from(id).ok();
            mode.redirect = Some(
                id.filter(|id| shared.clients().contains_key(id))
                    .ok_or_else(|| {
                        Failure::client("ERR The client ID you want redirect to does not exist")
                    })?,
            );
        } else if is(option, "PREFIX") {
            prefixes.push(Bytes::copy_from_slice(options.value()?));
        } else if is(option, "BCAST") {
            is_broadcast = true;
        } else if is(option, "NOLOOP") {
            mode.noloop = true;
        } else if is(option, "OPTIN") {
            mode.opt = Opt::In;
            opts_in = true;
        } else if is(option, "OPTOUT") {
            mode.opt = Opt::Out;
            opts_out = true;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    if !is_on {
        shared.stop_tracking(session);
        return Ok(Reply::OK);
    }
    if !prefixes.is_empty() && !is_broadcast {
        return Err(Failure::client(
            "ERR PREFIX option requires BCAST mode to be enabled",
        ));
    }
    if opts_in && opts_out {
        return Err(Failure::client(
            "ERR You can't specify both OPTIN mode and OPTOUT mode",
        ));
    }
    if is_broadcast && mode.opt != Opt::All {
        return Err(Failure::client(
            "ERR OPTIN and OPTOUT are not compatible with BCAST",
        ));
    }
    let before = session.caching.as_ref().map(|caching| &caching.mode);
    if let Some(before) = before {
        refuse_switch(before, is_broadcast, mode.opt)?;
    }
    let known = before.and_then(|before| before.prefixes.as_deref());
    let known = known.unwrap_or_default();
    refuse_overlaps(known, &prefixes)?;
    if prefixes.is_empty() {
        // All keys begin with nothing.
        prefixes.push(Bytes::new());
    }
    prefixes.extend_from_slice(known);
    prefixes.sort();
    prefixes.dedup();
    mode.prefixes = is_broadcast.then_some(prefixes);
    shared.begin_tracking(session, mode);
    Ok(Reply::OK)
}

/// Refuses another kind of mode than the one before.
fn refuse_switch(before: &Mode, is_broadcast: bool, opt: Opt) -> Result<()> {
    if before.prefixes.is_some() != is_broadcast {
        return Err(Failure::client(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.",
        ));
    }
    if before.opt != opt && before.opt != Opt::All && opt != Opt::All {
        return Err(Failure::client(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.",
        ));
    }
    Ok(())
}

/// Checks new prefixes of a client against those that it has, and against each other.
fn refuse_overlaps(before: &[Bytes], prefixes: &[Bytes]) -> Result<()> {
    let overlap = |one: &Bytes, other: &Bytes| one.starts_with(other) || other.starts_with(one);
    for (at, one) in prefixes.iter().enumerate() {
        let known = before.iter().find(|other| overlap(one, other));
        let given = || prefixes[at + 1..].iter().find(|other| overlap(one, other));
        let (which, other) = match (known, given()) {
            (Some(known), _) => ("an existing prefix", known),
            (None, Some(given)) => ("another provided prefix", given),
            (None, None) => continue,
        };
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        return Err(Failure::client(format!(
            "ERR Prefix '{}' overlaps with {which} '{}'. Prefixes for a single client must not overlap.",
            text(one),
            text(other)
        )));
    }
    Ok(())
}

/// Says whether the client keeps what the next command reads: `CLIENT CACHING YES|NO`.
pub(super) fn caching(session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let Some(Caching { mode, next }) = &mut session.caching else {
        return Err(Failure::client(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ));
    };
    match (&args[2], mode.opt) {
        (word, Opt::In) if is(word, "YES") => *next = Some(true),
        (word, Opt::Out) if is(word, "NO") => *next = Some(false),
        (word, _) if is(word, "YES") => {
            return Err(Failure::client(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        (word, _) if is(word, "NO") => {
            return Err(Failure::client(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(Reply::OK)
}

/// Returns the client that gets the messages of this one: 0 for itself, -1 for none.
pub(super) fn redirect(session: &Session) -> Reply {
    let redirect = session
        .caching
        .as_ref()
        .map(|caching| caching.mode.redirect);
    Reply::Integer(redirect.map_or(-1, |to| to.map_or(0, |id| id as i64)))
}

pub(super) fn tracking_info(shared: &Shared, session: &Session) -> Result<Reply> {
    let mut flags = Vec::new();
    let mut prefixes = Vec::new();
    match &session.caching {
        None => flags.push("off"),
        Some(Caching { mode, next }) => {
            flags.push("on");
            if let Some(own) = &mode.prefixes {
                flags.push("bcast");
                prefixes.clone_from(own);
            }
            match mode.opt {
                Opt::All => {}
                Opt::In => flags.push("optin"),
                Opt::Out => flags.push("optout"),
            }
            match next {
                None => {}
                Some(true) => flags.push("caching-yes"),
                Some(false) => flags.push("caching-no"),
            }
            if mode.noloop {
                flags.push("noloop");
            }
            if shared.tracking.is_broken(session.id) {
                flags.push("broken_redirect");
            }
        }
    }
    Ok(Reply::Map(vec![
        (
            Reply::copied("flags"),
            Reply::Set(flags.into_iter().map(Reply::copied).collect()),
        ),
        (Reply::copied("redirect"), redirect(session)),
        (Reply::copied("prefixes"), Reply::bulks(prefixes)),
    ]))
}

impl Shared {
    /// Begins to tell a connection, or the one to which it redirects, of changes.
    fn begin_tracking(&self, session: &mut Session, mode: Mode) {
        let is_on = &self.keyspace.tracks;
        let is_first = self
            .tracking
            .begin(session.id, mode.clone(), &session.mailbox, is_on);
        if is_first {
            // Reads from now on see every change of which nobody will be told. If the log has failed,
            // nothing changes any more.
            let _ = self.keyspace.db.sync();
        }
        self.show_tracking(session.id, Some(&mode));
        session.caching = Some(Caching { mode, next: None });
    }

    /// Ends what [`Shared::begin_tracking`] began, if anything.
    pub(crate) fn stop_tracking(&self, session: &mut Session) {
        if session.caching.take().is_some() {
            self.tracking.end(session.id, &self.keyspace.tracks);
            self.show_tracking(session.id, None);
        }
    }

    /// Tells CLIENT LIST how a connection is tracked.
    fn show_tracking(&self, client: u64, mode: Option<&Mode>) {
        if let Some(client) = self.clients().get(&client) {
            let mut info = client.info.lock().unwrap_or_else(PoisonError::into_inner);
            info.tracking = mode.map(|mode| (mode.prefixes.is_some(), mode.redirect));
        }
    }
}
