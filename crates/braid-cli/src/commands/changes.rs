//! `braid changes`: committed transactions as lines of JSON.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use braid::{ChangeSet, Changes, Database, Error};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::Output;

/// How long `--follow` with a feed leaves the database to others before it looks again.
const PAUSE: Duration = Duration::from_millis(500);

/// How often `--follow` without a feed looks for new transactions.
const REFRESH: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct ChangesArgs {
    /// The database's directory; other processes may have it open, but not with --feed (with --feed and
    /// --follow: at times)
    dir: PathBuf,

    /// Begin behind this transaction [default: behind the oldest one whose changes are kept]
    #[arg(long, value_name = "N")]
    from: Option<u64>,

    /// Go on where this feed was acknowledged, and acknowledge what was printed; created if it is missing
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    feed: Option<String>,

    /// Print new transactions as other processes commit them, until interrupted; with --feed, whenever no
    /// other process has the database open
    #[arg(long)]
    follow: bool,
}

pub(crate) fn run(args: &ChangesArgs, output: &mut Output) -> Result<(), Failure> {
    let Some(name) = &args.feed else {
        return read(args, output);
    };
    loop {
        match print_feed(args, name, output) {
            Err(Problem::Locked(_)) if args.follow => {}
            Err(Problem::Locked(error)) => return Err(error.into()),
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

/// Prints what a feed was not acknowledged for, and acknowledges it, for which the database is opened for writing.
fn print_feed(args: &ChangesArgs, name: &str, output: &mut Output) -> Result<(), Problem> {
    let builder = Database::builder().create_if_missing(false);
    let db = builder.open(&args.dir).map_err(|error| match error {
        error @ Error::Locked { .. } => Problem::Locked(error),
        error => Problem::Other(error.into()),
    })?;
    let feed = db.feed(name)?;
    let mut changes = feed.changes()?;
    print_all(&mut changes, output)?;
    // The reader has the changes before the feed forgets them.
    output.flush()?;
    feed.acknowledge(changes.position())?;
    drop((changes, feed));
    db.close()?;
    Ok(())
}

/// Prints changes without a feed: the reader remembers its position.
fn read(args: &ChangesArgs, output: &mut Output) -> Result<(), Failure> {
    let mut db = Database::open_read_only(&args.dir)?;
    let mut position = match args.from {
        Some(number) => db.position_behind(number),
        None => db.oldest_position(),
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
    let change = |change: &braid::Change| {
        json!({
            "table": change.table.as_deref(),
            "table_id": change.table_id,
            "key": hex(&change.key),
            "value": change.value.as_deref().map(hex),
        })
    };
    json!({
        "number": set.number,
        "position": set.position.to_string(),
        "loaded": set.loaded.iter().map(|table| &**table).collect::<Vec<_>>(),
        "changes": set.changes.iter().map(change).collect::<Vec<_>>(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
