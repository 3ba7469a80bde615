//! Runs commands: finds them, checks that they may run, and gives them a transaction.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid::{Durability, Ticket};
use braid_rt::mutant;
use bytes::Bytes;

use crate::command::{
    Command, Control, Run, commands, find, keys_of, refuse, remember, run_on, run_or_undo,
    waits_for_device,
};
use crate::failure::{Failure, Result, Wait};
use crate::keyspace::{Body, Committed, Data, Effects, Entry, Kind, Scope};
use crate::observe::shown;
use crate::pause::Pause;
use crate::resp::{Protocol, Reply};
use crate::session::{Queue, Session, Watched};
use crate::shared::Shared;
use crate::signature::Flag;

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
pub(crate) fn execute(shared: &Shared, session: &mut Session, args: &mut Vec<Bytes>) -> Outcome {
    execute_with(shared, session, args, Access::Read)
}

/// Runs a request again that has waited. Writers notify as soon as they have committed, so it has
/// to see commits that are not durable yet.
pub(crate) fn execute_again(
    shared: &Shared,
    session: &mut Session,
    args: &mut Vec<Bytes>,
) -> Outcome {
    execute_with(shared, session, args, Access::ReadNewest)
}

/// Returns the command of a request that may run in one transaction with the requests of its connection
/// that arrived together with it: a command that changes one key, and that nobody has to see or
/// refuse.
pub(crate) fn joins(
    shared: &Shared,
    session: &Session,
    args: &[Bytes],
) -> Option<&'static Command> {
    if session.queue.is_some() || session.caching.is_some() || !session.subscriptions.is_empty() {
        return None;
    }
    let command = find(args.first()?)?;
    let changes_one_key = matches!(command.run, Run::Data(_))
        && command.keys == (1, 1, 1)
        && command.is(Flag::Write)
        && !command.is(Flag::Blocking);
    let may_run = changes_one_key
        && session.is_authenticated
        && command.accepts(args.len())
        && session
            .user
            .check(command, args, || keys_of(command, args))
            .is_ok();
    let is_usual =
        shared.monitors.is_empty() && shared.pauses.current().is_none() && !shared.is_stopping();
    (may_run && is_usual).then_some(command)
}

/// Runs requests that [`joins`] returned the commands of in one transaction. Returns their replies,
/// and the ticket of the transaction as in [`Outcome::Reply`].
///
/// Returns `None` if a request fails or the transaction conflicts with another. Nothing has changed
/// then, and each request has to run on its own: the failure of one undoes no other.
pub(crate) fn execute_together(
    shared: &Shared,
    session: &mut Session,
    requests: &[(&'static Command, Vec<Bytes>)],
) -> Option<(Vec<Reply>, Option<Ticket>)> {
    let scope = Scope {
        database: session.database,
        stripe: session.stripe,
        writes: true,
        durability: session.durability,
    };
    let mut done = Vec::with_capacity(requests.len());
    let mut began = Instant::now();
    let committed = shared.keyspace.transact_once(scope, |data| {
        let mut replies = Vec::with_capacity(requests.len());
        for (command, args) in requests {
            let Run::Data(run) = command.run else {
                continue;
            };
            replies.push(run(data, args)?);
            let ended = Instant::now();
            done.push(ended - began);
            began = ended;
        }
        Ok(replies)
    });
    let committed = match committed {
        Ok(committed) => committed,
        Err(failure) if mutant!("server_fail_together") => {
            return Some((vec![failure.to_reply(); requests.len()], None));
        }
        Err(_) => return None,
    };
    let activity = shared.activities.of(session.stripe);
    // Relaxed: a statistic.
    activity
        .commands
        .fetch_add(requests.len() as u64, Ordering::Relaxed);
    for ((command, args), duration) in requests.iter().zip(done) {
        session.last_command = command.name;
        note(shared, session, command, args, duration, false);
    }
    let replies = committed.result;
    let ticket = finish(shared, session, committed.ticket, committed.effects);
    Some((replies, ticket))
}

fn execute_with(
    shared: &Shared,
    session: &mut Session,
    args: &mut Vec<Bytes>,
    reads: Access,
) -> Outcome {
    // Relaxed: a statistic.
    let activity = shared.activities.of(session.stripe);
    activity.commands.fetch_add(1, Ordering::Relaxed);
    let command = match check(shared, session, args) {
        Ok(command) => command,
        Err(text) => {
            if let Some(queue) = &mut session.queue {
                queue.is_broken = true;
            }
            return Outcome::error(text);
        }
    };
    session.last_command = command.name;
    // A request that runs again was shown when it came.
    if !shared.monitors.is_empty() && reads == Access::Read && !command.is(Flag::Admin) {
        let args = shown(command.name, args);
        let peer = shared.peer(session.id);
        shared.monitors.show(session.database, &peer, &args);
    }
    if let Some(queue) = &mut session.queue
        && !matches!(command.run, Run::Executor(_))
        && !matches!(command.name, "quit" | "reset")
    {
        if command.is(Flag::NoMulti) {
            queue.is_broken = true;
            return Outcome::error("ERR Command not allowed inside a transaction".to_owned());
        }
        queue.requests.push((command.number, std::mem::take(args)));
        return Outcome::ready(Reply::Status("QUEUED"));
    }
    // Before the command reads, so that the client learns of each change that the command misses.
    remember(shared, session, command, args);
    let began = Instant::now();
    let outcome = match command.run {
        Run::Session(run) => Outcome::ready(answer(run(shared, session, args))),
        Run::Data(run) => run_data(shared, session, command, reads, |data, _| {
            run_on(command, run, data, args)
        }),
        Run::Script(run) => run_data(shared, session, command, reads, |data, session| {
            run(shared, session, data, args)
        }),
        Run::Executor(which) => control(shared, session, which, args),
    };
    let has_failed = matches!(outcome, Outcome::Reply(Reply::Error(_), _));
    note(shared, session, command, args, began.elapsed(), has_failed);
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

/// Notes that a command has run, and how long it took without the device.
fn note(
    shared: &Shared,
    session: &Session,
    command: &Command,
    args: &[Bytes],
    duration: Duration,
    has_failed: bool,
) {
    shared
        .statistics
        .record(session.stripe, command.number, duration, has_failed);
    if shared.thresholds.is_slow(duration) {
        let limit = shared.options().slowlog_max_len;
        let args = shown(command.name, args);
        let peer = shared.peer(session.id);
        let name = session.name.clone();
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
    if !command.accepts(args.len()) {
        return Err(format!(
            "ERR wrong number of arguments for '{}' command",
            command.name
        ));
    }
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

/// Returns whether the durable state contains everything that the client was answered, and its
/// last write, which may still be on its way to the device.
fn sees_own_writes(shared: &Shared, session: &Session) -> bool {
    session.pending == 0 || shared.keyspace.db.durable_seqno() >= session.pending
}

/// Runs `body` on data, commits, and tells the others.
fn transact(
    shared: &Shared,
    session: &mut Session,
    access: Access,
    mut body: impl FnMut(&mut Data, &mut Session) -> Result<Reply>,
) -> Result<(Reply, Option<Ticket>)> {
    let (database, durability) = (session.database, session.durability);
    if access == Access::Read && sees_own_writes(shared, session) {
        let mut data = shared.keyspace.durable(database)?;
        let reply = body(&mut data, session)?;
        shared.publish(data.effects, None);
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
    if session.durability == Durability::Immediate {
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
    reads: Access,
    body: impl FnMut(&mut Data, &mut Session) -> Result<Reply>,
) -> Outcome {
    let access = if command.may_write() {
        Access::Write
    } else {
        reads
    };
    match transact(shared, session, access, body) {
        Ok((reply, ticket)) => {
            count_hits(shared, session, command, &reply);
            Outcome::Reply(reply, ticket)
        }
        Err(Failure::Wait(wait)) => Outcome::Wait(*wait),
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

/// Runs a command that controls transactions, or waits for them.
fn control(shared: &Shared, session: &mut Session, which: Control, args: &[Bytes]) -> Outcome {
    match (which, session.queue.is_some()) {
        (Control::Multi, true) => Outcome::error("ERR MULTI calls can not be nested".to_owned()),
        (Control::Multi, false) => {
            session.queue = Some(Queue::default());
            Outcome::ready(Reply::OK)
        }
        (Control::Exec, false) => Outcome::error("ERR EXEC without MULTI".to_owned()),
        (Control::Exec, true) => exec(shared, session),
        (Control::Discard, false) => Outcome::error("ERR DISCARD without MULTI".to_owned()),
        (Control::Discard, true) => {
            session.queue = None;
            session.watched.clear();
            Outcome::ready(Reply::OK)
        }
        (Control::Watch, true) => {
            Outcome::error("ERR WATCH inside MULTI is not allowed".to_owned())
        }
        (Control::Watch, false) => watch(shared, session, &args[1..]),
        (Control::Unwatch, false) => {
            session.watched.clear();
            Outcome::ready(Reply::OK)
        }
        (Control::Waitaof, false) => waitaof(shared, session, args),
        (Control::Waitaof, true) => {
            if let Some(queue) = &mut session.queue {
                queue.is_broken = true;
            }
            Outcome::error("ERR Command not allowed inside a transaction".to_owned())
        }
        // Has no effect before EXEC, which ends watching anyway.
        (Control::Unwatch, true) => Outcome::ready(Reply::Status("QUEUED")),
    }
}

/// Runs WAITAOF: the reply waits until everything that the client wrote is durable, or until its time
/// has passed.
fn waitaof(shared: &Shared, session: &Session, args: &[Bytes]) -> Outcome {
    // This server's log, and those of replicas, of which there are none.
    let copies = |local| Reply::Array(vec![Reply::Integer(local), Reply::Integer(0)]);
    let (waits, timeout) = match waits_for_device(args) {
        Ok(waits) => waits,
        Err(failure) => return Outcome::ready(failure.to_reply()),
    };
    if sees_own_writes(shared, session) {
        return Outcome::ready(copies(1));
    }
    if !waits {
        return Outcome::ready(copies(0));
    }
    match (shared.keyspace.db.ticket(session.pending), timeout) {
        (Ok(ticket), None) => Outcome::Reply(copies(1), Some(ticket)),
        (Ok(ticket), Some(timeout)) => Outcome::Within(Box::new(Within {
            reply: copies(1),
            ticket,
            timeout,
            otherwise: copies(0),
        })),
        (Err(error), _) => Outcome::ready(Failure::from(error).to_reply()),
    }
}

/// Returns the stamp of a key's entry.
fn stamp(data: &mut Data, key: &[u8]) -> Result<Option<u64>> {
    let is_timed = |entry: &Entry| matches!(entry.body, Body::Collection(hash) if hash.kind == Kind::Hash && hash.extra > 0);
    let mut entry = data.header(key)?;
    // Fields whose time has passed are gone for readers, although the entry is as it was.
    if data.writes && entry.as_ref().is_some_and(is_timed) {
        data.hash(key)?;
        entry = data.header(key)?;
    }
    Ok(entry.map(|entry| entry.stamp))
}

/// Reads the stamps of keys.
fn watch(shared: &Shared, session: &mut Session, keys: &[Bytes]) -> Outcome {
    let database = session.database;
    // The newest state, which need not be durable yet: EXEC compares with that.
    let scope = Scope {
        database,
        stripe: session.stripe,
        writes: false,
        durability: Durability::Immediate,
    };
    let read = |data: &mut Data| keys.iter().map(|key| stamp(data, key)).collect();
    let committed: Committed<Vec<_>> = match shared.keyspace.transact(scope, read) {
        Ok(committed) => committed,
        Err(failure) => return Outcome::ready(failure.to_reply()),
    };
    for (key, stamp) in keys.iter().zip(committed.result) {
        if !session
            .watched
            .iter()
            .any(|watched| watched.database == database && watched.key == key)
        {
            session.watched.push(Watched {
                database,
                key: key.clone(),
                stamp,
            });
        }
    }
    Outcome::Reply(Reply::OK, Some(committed.ticket))
}

/// Runs commands of data one by one: a deliberate bug that tests the tests.
fn exec_in_parts(
    shared: &Shared,
    session: &mut Session,
    commands: &[(&'static Command, Vec<Bytes>)],
) -> Outcome {
    let (mut replies, mut last) = (Vec::new(), None);
    for (command, args) in commands {
        if let Run::Data(run) = command.run
            && let Outcome::Reply(reply, ticket) =
                run_data(shared, session, command, Access::Read, |data, _| {
                    run_on(command, run, data, args)
                })
        {
            replies.push(reply);
            last = ticket.or(last);
        }
    }
    Outcome::Reply(Reply::Array(replies), last)
}

/// Runs the queued commands in one transaction.
fn exec(shared: &Shared, session: &mut Session) -> Outcome {
    let queue = session.queue.take().unwrap_or_default();
    let watched = std::mem::take(&mut session.watched);
    if queue.is_broken {
        return Outcome::error(
            "EXECABORT Transaction discarded because of previous errors.".to_owned(),
        );
    }
    let requests = queue.requests.into_iter();
    let commands: Vec<_> = requests
        .map(|(number, args)| (&commands()[number], args))
        .collect();
    let writes = commands.iter().any(|(command, _)| command.may_write());
    // Replies of commands without data, which must not run twice if the transaction is retried.
    let mut done: Vec<Option<Reply>> = vec![None; commands.len()];
    let access = if writes || !watched.is_empty() {
        Access::Write
    } else {
        Access::Read
    };
    for (command, args) in &commands {
        remember(shared, session, command, args);
    }
    if mutant!("server_exec_in_parts") {
        return exec_in_parts(shared, session, &commands);
    }
    let result = transact(shared, session, access, |data, session| {
        for watched in &watched {
            data.select(watched.database)?;
            let has_changed = stamp(data, &watched.key)? != watched.stamp;
            if has_changed && !mutant!("server_watch_nothing") {
                return Ok(Reply::NullArray);
            }
        }
        let mut replies = Vec::with_capacity(commands.len());
        for ((command, args), done) in commands.iter().zip(&mut done) {
            if data.database != session.database {
                data.select(session.database)?;
            }
            // The rules may have changed since the command was queued.
            if let Err(denied) = session.user.check(command, args, || keys_of(command, args)) {
                let text = refuse(shared, session, "multi", command, &denied);
                replies.push(Reply::error(text));
                continue;
            }
            replies.push(match command.run {
                Run::Data(run) => run_or_undo(data, |data| run_on(command, run, data, args))?,
                Run::Script(run) => run_or_undo(data, |data| run(shared, session, data, args))?,
                Run::Session(run) if command.name == "select" => answer(run(shared, session, args)),
                Run::Session(run) => done
                    .get_or_insert_with(|| answer(run(shared, session, args)))
                    .clone(),
                Run::Executor(_) => Reply::OK,
            });
        }
        Ok(Reply::Array(replies))
    });
    match result {
        Ok((reply, ticket)) => Outcome::Reply(reply, ticket),
        Err(failure) => Outcome::ready(failure.to_reply()),
    }
}
