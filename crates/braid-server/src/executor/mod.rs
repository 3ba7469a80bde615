//! Runs commands: finds them, checks that they may run, and gives them a transaction.

mod loading;
mod together;
mod transactions;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid::{Durability, MissingPages, Ticket};
use braid_rt::mutant;
use bytes::Bytes;

use crate::command::{
    Command, Control, Run, commands, find, keys_of, placed_keys, refuse, remember, run_on,
};
use crate::failure::{Failure, Result, Wait};
use crate::keyspace::{Data, Effects, Scope};
use crate::observe::shown;
use crate::pause::Pause;
use crate::resp::{Protocol, Reply};
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::Flag;

use loading::can_load;
pub(crate) use loading::{Attempt, LOADS_MAX, Load, Loaded, load_pages, malformed};
pub(crate) use together::{Joint, Obstacle, execute_joint, execute_together, joins};
use transactions::control;

/// Requests between MULTI and EXEC that need no further memory.
const QUEUE_USUAL: usize = 16;

/// What a command led to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The reply can be sent, with a ticket when that says that everything read and written is
    /// durable.
    Reply(Reply, Option<Ticket>),
    /// The reply can be sent when a ticket says so; after a time, another one.
    Within(Box<Within>),
    /// The client waits, and the command runs again when there is something.
    Wait(Wait),
    /// The command, which only reads, needs what is not in memory: it runs elsewhere ([`Load`]).
    Load(&'static Command),
    /// The command needs pages that are not in memory, and has no effect. It runs again
    /// as this attempt when another thread has loaded them.
    Missing(MissingPages, Attempt),
}

/// A reply that waits for the device, but not forever.
#[derive(Debug)]
pub(crate) struct Within {
    pub(crate) reply: Reply,
    pub(crate) ticket: Ticket,
    pub(crate) timeout: Duration,
    /// The reply when time has passed.
    pub(crate) otherwise: Reply,
}

impl Outcome {
    fn error(text: String) -> Outcome {
        Outcome::ready(Reply::error(text))
    }

    fn ready(reply: Reply) -> Outcome {
        Outcome::Reply(reply, None)
    }
}

/// What a transaction sees, and whether it may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The durable state, if that contains everything that the client wrote.
    Read,
    /// The newest state, which other clients' writers announce.
    ReadNewest,
    Write,
}

/// Runs one request of a connection. Takes the request if it is queued.
pub(crate) fn execute(
    shared: &Shared,
    session: &mut Session,
    args: &mut Vec<Bytes>,
    attempt: Attempt,
) -> Outcome {
    if !attempt.has_loaded() {
        // Relaxed: a statistic.
        let activity = shared.activities.of(session.stripe);
        activity.commands.fetch_add(1, Ordering::Relaxed);
    }
    let command = match check(shared, session, args) {
        Ok(command) => command,
        Err(text) => return reject(shared, session, args, text),
    };
    session.last_command = command.name;
    // A request that runs again was shown when it came.
    if !shared.monitors.is_empty() && attempt.is_first() && !command.is(Flag::Admin) {
        let args = shown(command.name, args);
        let peer = shared.peer(session.id);
        shared.monitors.show(session.database, &peer, &args);
    }
    if let Some(queue) = &mut session.queue
        && !matches!(command.run, Run::Executor(which) if which.runs_at_once_in_multi())
        && !matches!(command.name, "quit" | "reset")
    {
        if command.is(Flag::NoMulti) {
            let text = "ERR Command not allowed inside a transaction".to_owned();
            return reject(shared, session, args, text);
        }
        if queue.requests.capacity() == 0 {
            queue.requests.reserve(QUEUE_USUAL);
        }
        queue.requests.push((command.number, std::mem::take(args)));
        return Outcome::ready(Reply::Status("QUEUED"));
    }
    if !(matches!(command.run, Run::Data(_)) && command.is(Flag::Readonly)) {
        session.snapshot = None;
    }
    // Before the command reads, so that the client learns of each change that the command misses.
    remember(shared, session, command, args);
    let began = Instant::now();
    let outcome = match command.run {
        Run::Session(run) => Outcome::ready(answer(run(shared, session, args))),
        Run::Data(run) => run_data(shared, session, command, attempt, |data, _| {
            if command.keys.1 != command.keys.0 {
                data.prefetch(placed_keys(command, args))?;
            }
            run_on(command, run, data, args)
        }),
        Run::Script(run) => run_data(shared, session, command, attempt, |data, session| {
            if attempt.has_loaded() {
                data.prefetch(keys_of(command, args).iter())?;
            }
            run(shared, session, data, args)
        }),
        Run::Executor(which) => control(shared, session, (which, attempt), args),
    };
    if matches!(outcome, Outcome::Load(_) | Outcome::Missing(..)) {
        return outcome;
    }
    let mut has_failed = false;
    if let Outcome::Reply(Reply::Error(text), _) = &outcome {
        has_failed = true;
        shared.errors.count(text);
    }
    let author = Author::of(session);
    note(shared, author, command, args, began.elapsed(), has_failed);
    // CLIENT CACHING is about the next command, which may be a whole transaction.
    if let Some(caching) = &mut session.caching
        && session.queue.is_none()
        && command.name != "client"
        && !matches!(outcome, Outcome::Wait(_))
    {
        caching.next = None;
    }
    outcome
}

/// Answers a request that cannot run with an error. A transaction to which it belongs cannot run either,
/// and an EXEC that cannot run discards it.
#[cold]
fn reject(shared: &Shared, session: &mut Session, args: &[Bytes], mut text: String) -> Outcome {
    if let Some(queue) = &mut session.queue {
        queue.is_broken = true;
    }
    if let Some(command) = find(&args[0]) {
        shared.statistics.reject(session.stripe, command.number);
        if matches!(command.run, Run::Executor(Control::Exec)) {
            session.end_transaction();
            let cause = text.strip_prefix("ERR ").unwrap_or(&text);
            text = format!("EXECABORT Transaction discarded because of: {cause}");
        }
    }
    shared.errors.count(&text);
    Outcome::error(text)
}

/// The connection of a request that has run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author<'a> {
    pub(crate) stripe: u16,
    pub(crate) id: u64,
    pub(crate) name: &'a Bytes,
}

impl Author<'_> {
    fn of(session: &Session) -> Author<'_> {
        Author {
            stripe: session.stripe,
            id: session.id,
            name: &session.name,
        }
    }
}

/// Notes that a command has run, and how long it took without the device.
fn note(
    shared: &Shared,
    author: Author<'_>,
    command: &Command,
    args: &[Bytes],
    duration: Duration,
    has_failed: bool,
) {
    shared
        .statistics
        .record(author.stripe, command.number, duration, has_failed);
    if shared.thresholds.concern(duration) {
        note_long(shared, author, command, args, duration);
    }
}

/// Notes a command that ran long.
#[cold]
fn note_long(
    shared: &Shared,
    author: Author<'_>,
    command: &Command,
    args: &[Bytes],
    duration: Duration,
) {
    if shared.thresholds.is_slow(duration) {
        let limit = shared.options().slowlog_max_len;
        let args = shown(command.name, args);
        let peer = shared.peer(author.id);
        let name = author.name.clone();
        let micros = duration.as_micros() as u64;
        tracing::info!(command = command.name, micros, peer, "slow command");
        shared.slow_log.add(&args, duration, peer, name, limit);
    }
    let event = if command.is(Flag::Fast) {
        "fast-command"
    } else {
        "command"
    };
    shared
        .spikes
        .add(event, duration, shared.thresholds.spike());
}

/// Returns whether a request waits until a pause has ended.
pub(crate) fn is_postponed(session: &Session, args: &[Bytes], pause: &Pause) -> bool {
    let Some(command) = args.first().and_then(|name| find(name)) else {
        return false;
    };
    // Somebody has to be able to end the pause.
    if matches!(command.name, "client" | "auth" | "hello") {
        return false;
    }
    if pause.all {
        return true;
    }
    match command.name {
        "exec" => {
            let queue = session.queue.as_ref();
            let mut queued = queue.into_iter().flat_map(|queue| &queue.requests);
            queued.any(|(number, _)| commands()[*number].may_write())
        }
        // Queued, and checked before EXEC.
        _ if session.queue.is_some() => false,
        "publish" | "spublish" => true,
        _ => command.may_write(),
    }
}

fn answer(result: Result<Reply>) -> Reply {
    result.unwrap_or_else(|failure| failure.to_reply())
}

/// Finds a command and checks its arguments and that the client may use it now.
fn check(shared: &Shared, session: &Session, args: &[Bytes]) -> Result<&'static Command, String> {
    let command = find(&args[0]).ok_or_else(|| unknown(args))?;
    command
        .check(args)
        .map_err(|misuse| command.describe(misuse, args))?;
    let is_known = session.is_authenticated || mutant!("server_serve_before_auth");
    if !is_known && !command.is(Flag::NoAuth) {
        return Err("NOAUTH Authentication required.".to_owned());
    }
    if let Err(denied) = session.user.check(command, args, || keys_of(command, args)) {
        return Err(refuse(shared, session, "toplevel", command, &denied));
    }
    let subscribed = !session.subscriptions.is_empty() && session.protocol == Protocol::Resp2;
    if subscribed
        && !matches!(
            command.name,
            "subscribe"
                | "unsubscribe"
                | "psubscribe"
                | "punsubscribe"
                | "ssubscribe"
                | "sunsubscribe"
                | "ping"
                | "quit"
                | "reset"
        )
    {
        return Err(format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
            command.name
        ));
    }
    if shared.is_stopping() && command.may_write() {
        return Err("ERR the server is stopping".to_owned());
    }
    Ok(command)
}

fn unknown(args: &[Bytes]) -> String {
    let shown = |arg: &Bytes| String::from_utf8_lossy(&arg[..arg.len().min(128)]).into_owned();
    let mut list = String::new();
    for arg in &args[1..] {
        if list.len() >= 128 {
            break;
        }
        list.push_str(&format!("'{}' ", shown(arg)));
    }
    format!(
        "ERR unknown command '{}', with args beginning with: {list}",
        shown(&args[0])
    )
}

/// Runs `body` on data, commits, and tells the others. Unless the attempt waits, reads fail that need what is
/// not in memory.
fn transact(
    shared: &Shared,
    session: &mut Session,
    (access, attempt): (Access, Attempt),
    mut body: impl FnMut(&mut Data, &mut Session) -> Result<Reply>,
) -> Result<(Reply, Option<Ticket>)> {
    let (database, durability) = (session.database, session.durability);
    if access == Access::Read && session.sees_own_writes(&shared.keyspace.db) {
        let mut data = match session.snapshot.take() {
            Some(data) if data.database == database => data,
            _ => Box::new(shared.keyspace.durable(database)?),
        };
        attempt.prepare(&mut data);
        let reply = body(&mut data, session)?;
        shared.publish(std::mem::take(&mut data.effects), None);
        // What a client keeps it must read after it was registered for changes.
        if session.caching.is_none() {
            session.snapshot = Some(data);
        }
        return Ok((reply, None));
    }
    let scope = Scope {
        database,
        stripe: session.stripe,
        writes: access == Access::Write,
        durability,
    };
    let committed = shared.keyspace.transact(scope, |data| {
        // An earlier attempt may have selected another one.
        session.database = database;
        attempt.prepare(data);
        body(data, session)
    })?;
    let ticket = finish(shared, session, committed.ticket, committed.effects);
    Ok((committed.result, ticket))
}

/// Tells the others of a committed transaction. Returns its ticket if the reply waits for the device.
fn finish(
    shared: &Shared,
    session: &mut Session,
    ticket: Ticket,
    effects: Effects,
) -> Option<Ticket> {
    shared.publish(effects, Some(session.id));
    session.pending = session.pending.max(ticket.seqno());
    awaited(session.durability, ticket)
}

/// Returns the ticket of a commit if the reply waits for the device.
fn awaited(durability: Durability, ticket: Ticket) -> Option<Ticket> {
    if durability == Durability::Immediate {
        return Some(ticket);
    }
    // A ticket that is dropped would request a flush.
    ticket.into_seqno();
    None
}

fn run_data(
    shared: &Shared,
    session: &mut Session,
    command: &'static Command,
    attempt: Attempt,
    body: impl FnMut(&mut Data, &mut Session) -> Result<Reply>,
) -> Outcome {
    let access = if command.may_write() {
        Access::Write
    } else if attempt.has_waited() {
        Access::ReadNewest
    } else {
        Access::Read
    };
    match transact(shared, session, (access, attempt), body) {
        Ok((reply, ticket)) => {
            count_hits(shared, session, command, &reply);
            Outcome::Reply(reply, ticket)
        }
        Err(Failure::Wait(wait)) => Outcome::Wait(*wait),
        Err(Failure::Engine(braid::Error::NotInMemory(pages))) => {
            // A client that keeps what it reads must not be sent a change before the reply to an earlier
            // read.
            let runs_elsewhere = access == Access::Read
                && can_load(command)
                && session.caching.is_none()
                && session.sees_own_writes(&shared.keyspace.db);
            if runs_elsewhere {
                return Outcome::Load(command);
            }
            let is_script = matches!(command.run, Run::Script(_));
            Outcome::Missing(pages, attempt.after_load(is_script))
        }
        Err(failure) => Outcome::ready(failure.to_reply()),
    }
}

/// Counts reads that found something and that did not.
fn count_hits(shared: &Shared, session: &Session, command: &Command, reply: &Reply) {
    if command.is(Flag::Readonly) && command.keys.0 == 1 {
        let activity = shared.activities.of(session.stripe);
        let counter = if matches!(reply, Reply::Null) {
            &activity.misses
        } else {
            &activity.hits
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
