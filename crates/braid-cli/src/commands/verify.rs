//! `braid verify`: checks all data on disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::Readable;
use braid::offline::{Finding, Verify};
use indicatif::ProgressBar;

use super::tablespace_place::TablespaceArgs;
use crate::datum::{Column, to_literal};
use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::{self, Output};

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Directory of the database; other processes may have it open, except with --repair
    dir: PathBuf,
    /// Salvage what can be read into the new database that --into names; the damaged one is not
    /// changed
    ///
    /// Lists what is damaged and what is lost: tables, ranges of keys, transactions of the log.
    /// Exits with 3 if anything is lost.
    #[arg(long, requires = "into")]
    repair: bool,
    /// Directory of the new database, which must be missing or empty
    #[arg(long, value_name = "DIR", requires = "repair")]
    into: Option<PathBuf>,
    /// Read at most this much per second, instead of pausing while transactions commit
    #[arg(long, value_name = "MIB", conflicts_with = "repair", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    max_rate: Option<u64>,

    #[command(flatten)]
    places: TablespaceArgs,
}

pub(crate) fn run(args: &VerifyArgs, output: &mut Output) -> Result<(), Failure> {
    if let Some(into) = &args.into {
        return repair(&args.dir, into, &args.places, output);
    }
    let mut verify = args.places.verify(Verify::new());
    if let Some(mib) = args.max_rate {
        verify = verify.max_rate(mib << 20);
    }
    check(&args.dir, &verify, output)
}

fn repair(
    dir: &Path,
    into: &Path,
    places: &TablespaceArgs,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut written = Ok(());
    let report = places.salvage().run(dir, into, &mut |finding| {
        let line = match finding {
            Finding::Damaged(what) => format!("damaged: {what}"),
            Finding::Lost(what) => format!("lost: {what}"),
            other => format!("{other:?}"),
        };
        // Salvage continues even if the output was closed.
        if written.is_ok() {
            written = output.line(line);
        }
    })?;
    written?;
    // Check the result of the repair, too.
    check(into, &Verify::new(), output)?;
    output.line(format_args!(
        "{}: {} tables with {} entries from the newest checkpoint, and {} transactions from the log",
        into.display(),
        grouped(report.tables),
        grouped(report.entries),
        grouped(report.transactions)
    ))?;
    match report.losses {
        0 => output.line("nothing is lost"),
        losses => Err(Failure::Lost(format!(
            "{}: {} losses, named above; everything else is in {}",
            dir.display(),
            grouped(losses),
            into.display()
        ))),
    }
}

/// Maximum number of entries of a table that are named one by one.
const NAMED: u64 = 10;

/// Entries between two updates of the progress display.
const SHOW_EVERY: u64 = 8192;

/// Finds keys and values that are invalid for their table's types. Checks Braid's own types only.
fn undecodable(
    verify: &Verify,
    dir: &Path,
    spinner: &ProgressBar,
    found: &mut dyn FnMut(String),
) -> Result<(), Failure> {
    let db = verify.open(dir)?;
    let snapshot = db.snapshot();
    for name in db.table_names()? {
        let Some(table) = db.untyped_table(&name)? else {
            continue;
        };
        let (key_type, value_type) = table.type_names();
        let (key_type, value_type) = (Column::key(key_type), Column::value(value_type));
        let (mut entries, mut bad) = (0_u64, 0_u64);
        for entry in snapshot.iter(&table)? {
            let (key, value) = entry?;
            entries += 1;
            if entries.is_multiple_of(SHOW_EVERY) {
                spinner.set_message(format!("checking {name}: {} entries", grouped(entries)));
            }
            let wrong = match (key_type.decode(&key), value_type.decode(&value)) {
                (None, _) => format!("key is not of type {}", key_type.name()),
                (_, None) => format!("value is not of type {}", value_type.name()),
                _ => continue,
            };
            bad += 1;
            if bad <= NAMED {
                let key = to_literal(&key_type, &key);
                found(format!("table {name:?}, key {key}: the {wrong}"));
            }
        }
        if bad > NAMED {
            let more = grouped(bad - NAMED);
            found(format!(
                "table {name:?}: {more} more entries do not match its types"
            ));
        }
    }
    drop(snapshot);
    db.close()?;
    Ok(())
}

/// Checks a database; damage is a failure.
pub(crate) fn check(dir: &Path, verify: &Verify, output: &mut Output) -> Result<(), Failure> {
    let mut damages = 0_u64;
    let mut written = Ok(());
    let spinner = output::spinner();
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner.set_message("checking pages and log");
    let report = verify.check(dir, &mut |damage| {
        damages += 1;
        spinner.set_message(format!(
            "checking pages and log; {} damages",
            grouped(damages)
        ));
        // The rest is counted even if the output was closed.
        if written.is_ok() {
            written = output.line(format_args!("damaged: {damage}"));
        }
    });
    let report = report.inspect_err(|_| spinner.finish_and_clear())?;
    if damages == 0 && !report.creation_interrupted {
        // Entries on damaged pages cannot be read, so they are checked only if no page is damaged.
        let undecodable = undecodable(verify, dir, &spinner, &mut |what| {
            damages += 1;
            if written.is_ok() {
                written = output.line(format_args!("damaged: {what}"));
            }
        });
        undecodable.inspect_err(|_| spinner.finish_and_clear())?;
    }
    spinner.finish_and_clear();
    written?;
    if damages > 0 {
        let plural = if damages == 1 { "" } else { "s" };
        let count = grouped(damages);
        return Err(Failure::Failed(format!(
            "{}: {count} place{plural} damaged",
            dir.display()
        )));
    }
    if report.creation_interrupted {
        return output.line(format_args!(
            "note: the creation of {} was interrupted, so it contains nothing; opening it for writing \
             starts over",
            dir.display()
        ));
    }
    if report.torn_superblocks > 0 {
        output.line(
            "note: a power failure interrupted the newest checkpoint and left a part of its superblock; \
             the checkpoint before it and the log are complete",
        )?;
    }
    let tables = report.tables.saturating_sub(1);
    let plural = if tables == 1 { "" } else { "s" };
    output.line(format_args!(
        "{}: sound ({} table{plural} and the catalog of them, {} records on {} pages; {} transactions in {} of log)",
        dir.display(),
        grouped(tables),
        grouped(report.records),
        grouped(report.pages),
        grouped(report.log_transactions),
        mib(report.log_bytes)
    ))
}
