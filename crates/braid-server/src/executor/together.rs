//! Runs writes that arrived together in one transaction.

use std::sync::atomic::Ordering;
use std::time::Instant;

use braid::Ticket;
use braid_rt::mutant;
use bytes::Bytes;

use super::{finish, note};
use crate::command::{Command, Run, find, keys_of};
use crate::keyspace::Scope;
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

/// Runs requests that [`joins`] returned the commands of in one transaction. Returns their replies,
/// and the ticket of the transaction as in [`Outcome::Reply`](super::Outcome::Reply).
///
/// Returns `None` if a request fails or the transaction conflicts with another. Nothing has changed
/// then, and each request has to run on its own: the failure of one undoes no other.
pub(crate) fn execute_together(
    shared: &Shared,
    session: &mut Session,
    requests: &[(&'static Command, Vec<Bytes>)],
) -> Option<(Vec<Reply>, Option<Ticket>)> {
    session.snapshot = None;
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
