//! `braid changes`: prints committed transactions as lines of JSON.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use braid::changes::{ChangeSet, Changes, Position};
use braid::{Database, Error};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::Output;
use crate::suggest::suggestion;

/// Pause of `--follow` with a feed between two checks, in which other processes may open the
/// database.
const PAUSE: Duration = Duration::from_millis(500);

/// Interval at which `--follow` without a feed checks for new transactions.
const REFRESH: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct ChangesArgs {
    /// Directory of the database; other processes may have it open, but with --feed only if --peek
    /// is given (with --feed and --follow: part of the time)
    dir: PathBuf,

    /// Begin after this sequence number [default: with the oldest changes that are kept]
    #[arg(long, value_name = "N")]
    from: Option<u64>,

    /// Resume where this feed was acknowledged, and acknowledge what was printed; created if it is
    /// missing
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    feed: Option<String>,

    /// Print the changes that the feed has not acknowledged, and acknowledge nothing
    ///
    /// Works while another process writes. Only that process can acknowledge: by Feed::acknowledge
    /// with the position of the last line that was consumed.
    #[arg(long, requires = "feed")]
    peek: bool,

    /// Print new transactions as other processes commit them, until interrupted; with --feed, only
    /// while no other process has the database open, unless --peek is given
    #[arg(long)]
    follow: bool,
}

pub(crate) fn run(args: &ChangesArgs, output: &mut Output) -> Result<(), Failure> {
    let Some(name) = args.feed.as_ref().filter(|_| !args.peek) else {
        return read(args, output);
    };
    loop {
        match print_feed(args, name, output) {
            Err(Problem::Locked(_)) if args.follow => {}
            Err(Problem::Locked(error)) => {
                return Err(Failure::Failed(format!(
                    "cannot acknowledge feed {name:?}: {error}; or add --peek to print its changes only, and \
                     acknowledge them in the process that writes, by Feed::acknowledge with the printed position"
                )));
            }
            Err(Problem::Other(failure)) => return Err(failure),
            Ok(()) if !args.follow => return Ok(()),
            Ok(()) => {}
        }
        thread::sleep(PAUSE);
    }
}

enum Problem {
    Locked(Error),
    Other(Failure),
}

impl<E: Into<Failure>> From<E> for Problem {
    fn from(error: E) -> Self {
        Problem::Other(error.into())
    }
}

/// Prints the changes that a feed has not acknowledged, then acknowledges them. Opens the database
/// for writing.
fn print_feed(args: &ChangesArgs, name: &str, output: &mut Output) -> Result<(), Problem> {
    let builder = Database::builder().create_if_missing(false);
    let db = builder.open(&args.dir).map_err(|error| match error {
        error @ Error::Locked { .. } => Problem::Locked(error),
        error => Problem::Other(error.into()),
    })?;
    let feed = db.feed(name)?;
    let mut changes = feed.changes()?;
    print_all(&mut changes, output)?;
    // The changes must be on standard output before the feed releases them.
    output.flush()?;
    feed.acknowledge(changes.position())?;
    drop((changes, feed));
    db.close()?;
    Ok(())
}

/// Returns the position up to which a feed was acknowledged.
fn acknowledged(db: &Database, name: &str) -> Result<Position, Failure> {
    let feeds = db.feeds();
    let found = feeds.iter().find(|(feed, _)| feed == name);
    found.map(|(_, position)| *position).ok_or_else(|| {
        let meant = suggestion(name, feeds.iter().map(|(feed, _)| &**feed));
        Failure::Failed(format!(
            "there is no feed {name:?}{meant}; to create it, run without --peek while no other process has the database open"
        ))
    })
}

/// Prints changes and acknowledges none: the caller keeps the position.
fn read(args: &ChangesArgs, output: &mut Output) -> Result<(), Failure> {
    let mut db = Database::open_read_only(&args.dir)?;
    let mut position = match (&args.feed, args.from) {
        (Some(name), _) => acknowledged(&db, name)?,
        (None, Some(number)) => db.position_after(number),
        (None, None) => db.oldest_position(),
    };
    loop {
        let mut changes = db.changes(position)?;
        print_all(&mut changes, output)?;
        output.flush()?;
        if !args.follow {
            drop(changes);
            return Ok(db.close()?);
        }
        position = changes.position();
        while !db.refresh()? {
            thread::sleep(REFRESH);
        }
    }
}

fn print_all(changes: &mut Changes, output: &mut Output) -> Result<(), Failure> {
    for set in changes {
        output.line(line(&set?))?;
    }
    Ok(())
}

fn line(set: &ChangeSet) -> Value {
    let change = |change: &braid::changes::Change| {
        json!({
            "table": change.table.as_deref(),
            "table_id": change.table_id,
            "key": hex(&change.key),
            "value": change.value.as_deref().map(hex),
        })
    };
    json!({
        "seqno": set.seqno,
        "position": set.position.to_string(),
        "loaded": set.loaded.iter().map(|table| &**table).collect::<Vec<_>>(),
        "changes": set.changes.iter().map(change).collect::<Vec<_>>(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
