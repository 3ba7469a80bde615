//! Backups, the archive of the log, and the feed of changes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use braid::changes::{Change, Position};
use bytes::Bytes;

use super::arguments::{Options, integer, is, unknown_subcommand};
use super::keys::DATABASES;
use crate::backups::Plan;
use crate::failure::{Failure, Result};
use crate::keyspace::{Entry, read_u64};
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;

/// Transactions that BRAID.CHANGES returns unless the client says how many.
const COUNT: usize = 100;

const IN_PROGRESS: Failure =
    Failure::Client(Cow::Borrowed("ERR Background save already in progress"));

fn plan(shared: &Shared) -> Plan {
    let options = shared.options();
    Plan {
        directory: options.backup_directory.clone(),
        full_every: options.backup_full_every,
    }
}

/// Makes a backup, or a checkpoint if there is no directory for backups.
pub(super) fn save(shared: &Shared, _: &mut Session, _: &[Bytes]) -> Result<Reply> {
    if !shared.backups.begin() {
        return Err(IN_PROGRESS);
    }
    shared.backups.make(&shared.keyspace.db, &plan(shared))?;
    Ok(Reply::OK)
}

/// Checks a request of BGSAVE in a transaction, after which [`save_after`] follows.
pub(crate) fn may_save(shared: &Shared, args: &[Bytes]) -> Result<()> {
    if args.len() > 2 || args.get(1).is_some_and(|word| !is(word, "SCHEDULE")) {
        return Err(Failure::SYNTAX);
    }
    if shared.backups.report().is_running {
        return Err(IN_PROGRESS);
    }
    Ok(())
}

/// Begins the backup that a transaction has asked for, once everything up to a sequence number is durable:
/// a backup has the durable state.
pub(crate) fn save_after(shared: &Shared, seqno: u64) {
    if let Err(failure) = save_in_background(shared, seqno) {
        tracing::warn!(?failure, "no backup after a transaction");
    }
}

/// Does the same as SAVE in the background.
pub(super) fn bgsave(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    may_save(shared, args)?;
    save_in_background(shared, 0)
}

fn save_in_background(shared: &Shared, seqno: u64) -> Result<Reply> {
    if !shared.backups.begin() {
        return Err(IN_PROGRESS);
    }
    let (backups, db) = (Arc::clone(&shared.backups), shared.keyspace.db.clone());
    let plan = plan(shared);
    let thread = std::thread::Builder::new()
        .name("backup".to_owned())
        // INFO and the log tell about an error.
        .spawn(move || {
            // After a failure of the log the backup fails, too.
            let _ = db.wait_durable(seqno);
            drop(backups.make(&db, &plan));
        });
    match thread {
        Ok(thread) => {
            shared.backups.set_thread(thread);
            Ok(Reply::Status("Background saving started"))
        }
        Err(error) => {
            shared.backups.cancel();
            Err(Failure::client(format!(
                "ERR cannot start a thread for the backup: {error}"
            )))
        }
    }
}

pub(super) fn lastsave(shared: &Shared, _: &mut Session, _: &[Bytes]) -> Result<Reply> {
    let last = shared.backups.report().last.duration_since(UNIX_EPOCH);
    Ok(Reply::Integer(last.unwrap_or_default().as_secs() as i64))
}

/// Archives the log up to now; returns the sequence number up to which the archive goes.
pub(super) fn archive(shared: &Shared, _: &mut Session, _: &[Bytes]) -> Result<Reply> {
    let seqno = shared.keyspace.db.archive_now()?;
    let seqno = seqno.ok_or_else(|| {
        Failure::client(
            "ERR the server has no archive: the parameter `archive-directory` names one",
        )
    })?;
    Ok(Reply::Integer(seqno as i64))
}

fn position(shared: &Shared, argument: &[u8]) -> Result<Position> {
    let db = &shared.keyspace.db;
    match argument {
        b"$" => Ok(db.position()),
        b"-" => Ok(db.oldest_position()),
        text => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Failure::client("ERR a position is `$`, `-`, or one that a reply named")
            }),
    }
}

/// Returns what has changed after a position: `BRAID.CHANGES position [COUNT count]`. The reply has
/// the position to continue from, and for each transaction its sequence number and the keys that it
/// wrote, each with its database and type; a key that is gone has no type.
pub(super) fn changes(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let from = position(shared, &args[1])?;
    let mut options = Options::new(&args[2..]);
    let mut count = COUNT;
    if options.take("COUNT") {
        count = usize::try_from(integer(options.value()?)?)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| Failure::client("ERR count should be greater than 0"))?;
    }
    options.end()?;
    let mut feed = shared.keyspace.db.changes(from)?;
    let namespaces = namespaces(shared)?;
    let mut transactions = Vec::new();
    while transactions.len() < count
        && let Some(set) = feed.next().transpose()?
    {
        let keys: Vec<Reply> = set
            .changes
            .iter()
            .filter_map(|change| describe(change, &namespaces))
            .collect();
        // Others are of the background, and change nothing that clients see.
        if !keys.is_empty() {
            transactions.push(Reply::Array(vec![
                Reply::Integer(set.seqno as i64),
                Reply::Array(keys),
            ]));
        }
    }
    Ok(Reply::Array(vec![
        Reply::copied(feed.position().to_string()),
        Reply::Array(transactions),
    ]))
}

/// Returns the namespaces of the databases.
fn namespaces(shared: &Shared) -> Result<Vec<u64>> {
    let data = shared.keyspace.durable(0)?;
    (0..DATABASES)
        .map(|database| data.namespace_of(database))
        .collect()
}

/// Returns the database, name and type of a key that changed. A key of a database that was flushed
/// since has none.
fn describe(change: &Change, namespaces: &[u64]) -> Option<Reply> {
    if change.table.as_deref() != Some("keys") || change.key.len() < 16 {
        return None;
    }
    let namespace = read_u64(&change.key);
    let database = namespaces.iter().position(|known| *known == namespace)?;
    let value = change.value.as_ref();
    let kind = value.and_then(|value| {
        let entry = Entry::decode(Bytes::copy_from_slice(value)).ok()?;
        Some(entry.kind().name())
    });
    Some(Reply::Array(vec![
        Reply::Integer(database as i64),
        Reply::copied(&change.key[16..]),
        kind.map_or(Reply::Null, Reply::copied),
    ]))
}

/// Feeds keep the log for a reader: `BRAID.FEED CREATE name`, `ACK name position`, `DROP name`, `LIST`.
pub(super) fn feed(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let db = &shared.keyspace.db;
    let subcommand = args[1].to_ascii_lowercase();
    let name = args.get(2).map(|name| String::from_utf8_lossy(name));
    match (&subcommand[..], name, args.len()) {
        (b"create", Some(name), 3) => Ok(Reply::copied(db.feed(&name)?.position()?.to_string())),
        (b"ack", Some(name), 4) => {
            if !db.feeds().iter().any(|(known, _)| *known == name) {
                return Err(Failure::client("ERR there is no feed of this name"));
            }
            db.feed(&name)?.acknowledge(position(shared, &args[3])?)?;
            Ok(Reply::OK)
        }
        (b"drop", Some(name), 3) => Ok(Reply::Integer(i64::from(db.drop_feed(&name)?))),
        (b"list", None, 2) => {
            let feeds = db.feeds().into_iter();
            let feeds = feeds
                .map(|(name, position)| (Reply::copied(name), Reply::copied(position.to_string())));
            Ok(Reply::Map(feeds.collect()))
        }
        _ => Err(unknown_subcommand("braid.feed", &args[1])),
    }
}
