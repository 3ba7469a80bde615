//! Runs writes that arrived together in one transaction.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid::{Durability, MissingPages, Ticket};
use braid_rt::mutant;
use bytes::Bytes;

use super::{Author, awaited, note};
use crate::command::{Command, Run, find, keys_of};
use crate::failure::{Failure, Result};
use crate::keyspace::{Committed, Scope};
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::Flag;

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

/// Requests that run in one transaction.
type Requests = [(&'static Command, Vec<Bytes>)];

/// How requests of connections of one thread run in one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Joint {
    pub(crate) database: u32,
    pub(crate) durability: Durability,
    pub(crate) stripe: u16,
}

impl Joint {
    /// How the requests of a connection run.
    pub(crate) fn of(session: &Session) -> Joint {
        Joint {
            database: session.database,
            durability: session.durability,
            stripe: session.stripe,
        }
    }
}

/// Why requests did not run in one transaction. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The request at this position failed. Each has to run on its own: the failure of one undoes no
    /// other.
    Request(usize),
    /// A conflict with another transaction, or another error of the engine: the same.
    Engine,
    /// Pages are not in memory. They can run after [`load_pages`](super::load_pages).
    Missing(MissingPages),
}

/// Runs requests that [`joins`] returned the commands of in one transaction. Returns their replies,
/// and the ticket of the transaction as in [`Outcome::Reply`](super::Outcome::Reply).
pub(crate) fn execute_together(
    shared: &Shared,
    session: &mut Session,
    requests: &Requests,
) -> Result<(Vec<Reply>, Option<Ticket>), Obstacle> {
    session.snapshot = None;
    let joint = Joint::of(session);
    let authors = std::iter::once((Author::of(session), requests.len()));
    let (replies, written, ticket) = execute_joint(shared, (joint, false), requests, authors)?;
    if let Some((command, _)) = requests.last() {
        session.last_command = command.name;
    }
    session.pending = session.pending.max(written);
    Ok((replies, ticket))
}

/// Runs requests of several connections as [`execute_together`] does those of one. `authors` are the
/// connections, each with a number of requests. Returns the sequence number of the transaction, too, which a connection
/// needs to see its own writes also if the replies do not wait for the device. Unless it `waits`, it runs
/// only if what the requests read is in memory.
pub(crate) fn execute_joint<'a>(
    shared: &Shared,
    (joint, waits): (Joint, bool),
    requests: &Requests,
    authors: impl Iterator<Item = (Author<'a>, usize)>,
) -> Result<(Vec<Reply>, u64, Option<Ticket>), Obstacle> {
    let scope = Scope {
        database: joint.database,
        stripe: joint.stripe,
        writes: true,
        durability: joint.durability,
    };
    let mut durations = Vec::with_capacity(requests.len());
    let committed = match commit_together(shared, (scope, waits), requests, &mut durations) {
        Ok(committed) => committed,
        Err(failure) if mutant!("server_fail_together") => {
            return Ok((vec![failure.to_reply(); requests.len()], 0, None));
        }
        Err(Failure::Engine(braid::Error::NotInMemory(pages))) => {
            return Err(Obstacle::Missing(pages));
        }
        Err(Failure::Engine(_)) => return Err(Obstacle::Engine),
        Err(_) => return Err(Obstacle::Request(durations.len())),
    };
    note_together(shared, authors, requests, &durations);
    // None of the connections is one that does not want to know of its own changes.
    shared.publish(committed.effects, None);
    let written = committed.ticket.seqno();
    let ticket = awaited(joint.durability, committed.ticket);
    Ok((committed.result, written, ticket))
}

/// Runs requests in one transaction. `durations` gets how long each took that did not fail.
fn commit_together(
    shared: &Shared,
    (scope, waits): (Scope, bool),
    requests: &Requests,
    durations: &mut Vec<Duration>,
) -> Result<Committed<Vec<Reply>>> {
    let mut began = Instant::now();
    shared.keyspace.transact_once(scope, |data| {
        data.view
            .set_nonblocking(!waits && !mutant!("server_write_what_is_not_in_memory"));
        // Each has one key, the first argument.
        data.prefetch(requests.iter().filter_map(|(_, args)| args.get(1)))?;
        let mut replies = Vec::with_capacity(requests.len());
        for (command, args) in requests {
            let Run::Data(run) = command.run else {
                continue;
            };
            replies.push(run(data, args)?);
            let ended = Instant::now();
            durations.push(ended - began);
            began = ended;
        }
        Ok(replies)
    })
}

/// Notes that requests of some connections have run.
fn note_together<'a>(
    shared: &Shared,
    authors: impl Iterator<Item = (Author<'a>, usize)>,
    requests: &Requests,
    durations: &[Duration],
) {
    let mut rest = requests.iter().zip(durations);
    for (author, count) in authors {
        // Relaxed: a statistic.
        let activity = shared.activities.of(author.stripe);
        activity.commands.fetch_add(count as u64, Ordering::Relaxed);
        for ((command, args), duration) in rest.by_ref().take(count) {
            note(shared, author, command, args, *duration, false);
        }
    }
}
