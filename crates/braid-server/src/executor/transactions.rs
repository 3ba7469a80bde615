//! MULTI, EXEC and WATCH, and what else the executor runs itself.

use braid::Durability;
use braid_rt::mutant;
use bytes::Bytes;

use super::{Access, Attempt, Outcome, Within, answer, run_data, transact};
use crate::command::{
    Command, Control, Run, commands, copies, keys_of, may_save, placed_keys, refuse, remember,
    run_on, run_or_undo, save_after, waitaof_at_once, waits_for_device,
};
use crate::failure::{Failure, Result};
use crate::keyspace::{Body, Committed, Data, Entry, Kind, Scope};
use crate::resp::{Protocol, Reply, reuse};
use crate::session::{Done, Queue, Session, Watched};
use crate::shared::Shared;

/// Runs a command that controls transactions, or waits for them.
pub(super) fn control(
    shared: &Shared,
    session: &mut Session,
    (which, attempt): (Control, Attempt),
    args: &[Bytes],
) -> Outcome {
    match (which, session.queue.is_some()) {
        (Control::Multi, true) => Outcome::error("ERR MULTI calls can not be nested".to_owned()),
        (Control::Multi, false) => {
            session.queue = Some(Queue::default());
            Outcome::ready(Reply::OK)
        }
        (Control::Exec, false) => Outcome::error("ERR EXEC without MULTI".to_owned()),
        (Control::Exec, true) => exec(shared, session, attempt),
        (Control::Discard, false) => Outcome::error("ERR DISCARD without MULTI".to_owned()),
        (Control::Discard, true) => {
            session.end_transaction();
            Outcome::ready(Reply::OK)
        }
        (Control::Watch, true) => {
            Outcome::error("ERR WATCH inside MULTI is not allowed".to_owned())
        }
        (Control::Watch, false) => watch(shared, session, attempt, &args[1..]),
        // Inside MULTI it is queued, and does nothing: EXEC ends watching anyway.
        (Control::Unwatch, _) => {
            session.watched.clear();
            Outcome::ready(Reply::OK)
        }
        // Inside MULTI it is queued.
        (Control::Waitaof, _) => waitaof(shared, session, args),
    }
}

/// Runs WAITAOF: the reply waits until everything that the client wrote is durable, or until its time
/// has passed.
fn waitaof(shared: &Shared, session: &Session, args: &[Bytes]) -> Outcome {
    let (waits, timeout) = match waits_for_device(args) {
        Ok(waits) => waits,
        Err(failure) => return Outcome::ready(failure.to_reply()),
    };
    if session.sees_own_writes(&shared.keyspace.db) {
        return Outcome::ready(copies(true));
    }
    if !waits {
        return Outcome::ready(copies(false));
    }
    match (shared.keyspace.db.ticket(session.pending), timeout) {
        (Ok(ticket), None) => Outcome::Reply(copies(true), Some(ticket)),
        (Ok(ticket), Some(timeout)) => Outcome::Within(Box::new(Within {
            reply: copies(true),
            ticket,
            timeout,
            otherwise: copies(false),
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
fn watch(shared: &Shared, session: &mut Session, attempt: Attempt, keys: &[Bytes]) -> Outcome {
    let database = session.database;
    // The newest state, which need not be durable yet: EXEC compares with that.
    let scope = Scope {
        database,
        stripe: session.stripe,
        writes: false,
        durability: Durability::Immediate,
    };
    let read = |data: &mut Data| {
        attempt.prepare(data);
        data.prefetch(keys.iter())?;
        keys.iter().map(|key| stamp(data, key)).collect()
    };
    let committed: Committed<Vec<_>> = match shared.keyspace.transact(scope, read) {
        Ok(committed) => committed,
        Err(Failure::Engine(braid::Error::NotInMemory(pages))) => {
            return Outcome::Missing(pages, attempt.after_load(false));
        }
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
                // It outlives the request, whose memory is shared.
                key: Bytes::copy_from_slice(key),
                stamp,
            });
        }
    }
    Outcome::Reply(Reply::OK, Some(committed.ticket))
}

/// Whether one of these keys is not as it was.
fn has_changed(data: &mut Data, watched: &[Watched]) -> Result<bool> {
    for watched in watched {
        data.select(watched.database)?;
        if stamp(data, &watched.key)? != watched.stamp && !mutant!("server_watch_nothing") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs commands of data one by one: a deliberate bug that tests the tests.
fn exec_in_parts(
    shared: &Shared,
    session: &mut Session,
    commands: &[(&'static Command, Vec<Bytes>)],
) -> Outcome {
    let (mut replies, mut last) = (Vec::new(), None);
    let attempt = Attempt::WAITING;
    for (command, args) in commands {
        if let Run::Data(run) = command.run
            && let Outcome::Reply(reply, ticket) =
                run_data(shared, session, command, attempt, |data, _| {
                    run_on(command, run, data, args)
                })
        {
            replies.push(reply);
            last = ticket.or(last);
        }
    }
    Outcome::Reply(Reply::Array(replies), last)
}

/// Runs queued commands of a transaction. Undoes those that fail if `undoes`; otherwise the result is
/// `None` after the first failure.
///
/// `done` keeps the replies of those that must not run twice, although the transaction may. `protocol`
/// was selected when the transaction began.
fn run_queued(
    shared: &Shared,
    session: &mut Session,
    data: &mut Data,
    commands: &[(&'static Command, Vec<Bytes>)],
    (done, mut protocol): (&mut Done, Protocol),
    undoes: bool,
) -> Result<Option<Reply>> {
    let mut replies: Vec<Reply> = Vec::with_capacity(commands.len());
    for (at, (command, args)) in commands.iter().enumerate() {
        if let Some((reply, selected)) = done.get(at) {
            select_protocol(&mut replies, &mut protocol, *selected);
            replies.push(reply.clone());
            continue;
        }
        if data.database != session.database {
            data.select(session.database)?;
        }
        // The rules may have changed since the command was queued.
        if let Err(denied) = session.user.check(command, args, || keys_of(command, args)) {
            let text = refuse(shared, session, "multi", command, &denied);
            let reply = Reply::error(text);
            done.keep(at, &reply, protocol);
            replies.push(reply);
            continue;
        }
        let result = match command.run {
            Run::Data(run) if undoes => run_or_undo(data, |data| run_on(command, run, data, args)),
            Run::Script(run) if undoes => {
                run_or_undo(data, |data| run(shared, session, data, args))
            }
            Run::Data(run) => run_on(command, run, data, args),
            Run::Script(run) => run(shared, session, data, args),
            Run::Session(run) if command.name == "select" => Ok(answer(run(shared, session, args))),
            // The backup begins after the commit, and has what was written.
            Run::Session(_) if command.name == "bgsave" => {
                Ok(answer(may_save(shared, args).map(|()| {
                    done.saves = true;
                    Reply::Status("Background saving scheduled")
                })))
            }
            Run::Session(run) => {
                let reply = answer(run(shared, session, args));
                done.keep(at, &reply, session.protocol);
                select_protocol(&mut replies, &mut protocol, session.protocol);
                Ok(reply)
            }
            Run::Executor(Control::Waitaof) => Ok(answer(waitaof_at_once(shared, session, args))),
            Run::Executor(_) => Ok(Reply::OK),
        };
        match result {
            Ok(reply) => replies.push(reply),
            Err(Failure::Engine(error)) => return Err(error.into()),
            Err(_) if !undoes => return Ok(None),
            Err(failure) => return Err(failure),
        }
    }
    Ok(Some(Reply::Array(replies)))
}

/// Notes that a command of a transaction has selected a version of the protocol: the replies before it
/// are in the version before.
fn select_protocol(replies: &mut [Reply], protocol: &mut Protocol, selected: Protocol) {
    if selected != *protocol {
        replies.iter_mut().for_each(|reply| reply.fix(*protocol));
        *protocol = selected;
    }
}

/// Runs the queued commands in one transaction.
fn exec(shared: &Shared, session: &mut Session, attempt: Attempt) -> Outcome {
    let mut queue = session.queue.take().unwrap_or_default();
    let watched = std::mem::take(&mut session.watched);
    if queue.is_broken {
        return Outcome::error(
            "EXECABORT Transaction discarded because of previous errors.".to_owned(),
        );
    }
    let requests = queue.requests.drain(..);
    let commands: Vec<_> = requests
        .map(|(number, args)| (&commands()[number], args))
        .collect();
    let done = &mut queue.done;
    let writes = commands.iter().any(|(command, _)| command.may_write());
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
    let (database, protocol) = (session.database, done.begin(session.protocol));
    let result = transact(shared, session, (access, attempt), |data, session| {
        if has_changed(data, &watched)? {
            return Ok(Reply::NullArray);
        }
        data.prefetch(
            commands
                .iter()
                .filter(|(command, _)| matches!(command.run, Run::Data(_)))
                .flat_map(|(command, args)| placed_keys(command, args)),
        )?;
        // Commands rarely fail, and one mark costs less than one for each: only after a failure all run
        // again, each with a mark of its own.
        if let Some(begin) = data.mark() {
            let done = (&mut *done, protocol);
            if let Some(replies) = run_queued(shared, session, data, &commands, done, false)? {
                return Ok(replies);
            }
            data.roll_back(begin)?;
            // SELECT and FLUSHDB may have changed what the first command finds.
            session.database = database;
            data.select(database)?;
        }
        let done = (&mut *done, protocol);
        let replies = run_queued(shared, session, data, &commands, done, true)?;
        Ok(replies.unwrap_or(Reply::NullArray))
    });
    let outcome = match result {
        Ok((reply, ticket)) => {
            count_errors(shared, &reply);
            if done.saves {
                save_after(shared, session.pending);
            }
            Outcome::Reply(reply, ticket)
        }
        Err(Failure::Engine(braid::Error::NotInMemory(pages))) => {
            let runs_scripts = commands
                .iter()
                .any(|(command, _)| matches!(command.run, Run::Script(_)));
            // The queued commands may have selected another one.
            if !mutant!("server_repeat_in_selected_database") {
                session.database = database;
            }
            let requests = commands.into_iter();
            queue
                .requests
                .extend(requests.map(|(command, args)| (command.number, args)));
            session.queue = Some(queue);
            if !mutant!("server_repeat_unwatched") {
                session.watched = watched;
            }
            return Outcome::Missing(pages, attempt.after_load(runs_scripts));
        }
        Err(failure) => Outcome::ready(failure.to_reply()),
    };
    commands.into_iter().for_each(|(_, args)| reuse(args));
    outcome
}

/// Counts the errors among the replies to the commands of a transaction.
fn count_errors(shared: &Shared, replies: &Reply) {
    if let Reply::Array(replies) = replies {
        for reply in replies {
            if let Reply::Error(text) = reply {
                shared.errors.count(text);
            }
        }
    }
}
