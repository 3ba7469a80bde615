//! `braid verify`: is everything on the disk as it was written?

use std::path::{Path, PathBuf};

use braid::Finding;

use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The database's directory; other processes may have it open, but not with --repair
    dir: PathBuf,
    /// Save what can be read into a new database, given by --into; the damaged one is only read
    ///
    /// Tells what is damaged and what is lost: tables, ranges of keys, transactions of the log. Exits with 3
    /// if anything is lost.
    #[arg(long, requires = "into")]
    repair: bool,
    /// The directory for what is saved; it must be empty or missing
    #[arg(long, value_name = "DIR", requires = "repair")]
    into: Option<PathBuf>,
}

pub(crate) fn run(args: &VerifyArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.into {
        Some(into) => repair(&args.dir, into, output),
        None => check(&args.dir, output),
    }
}

fn repair(dir: &Path, into: &Path, output: &mut Output) -> Result<(), Failure> {
    let mut written = Ok(());
    let report = braid::salvage(dir, into, &mut |finding| {
        let line = match finding {
            Finding::Damaged(what) => format!("damaged: {what}"),
            Finding::Lost(what) => format!("lost: {what}"),
            other => format!("{other:?}"),
        };
        // What can be saved is saved even when the reader has gone away.
        if written.is_ok() {
            written = output.line(line);
        }
    })?;
    written?;
    // Nobody should have to trust what a repair made.
    check(into, output)?;
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

/// Checks a database that nobody has open; damage is a failure.
pub(crate) fn check(dir: &Path, output: &mut Output) -> Result<(), Failure> {
    let mut damages = 0_u64;
    let mut written = Ok(());
    let report = braid::verify(dir, &mut |damage| {
        damages += 1;
        // The rest is still counted when the reader has gone away.
        if written.is_ok() {
            written = output.line(format_args!("damaged: {damage}"));
        }
    })?;
    written?;
    if damages > 0 {
        let plural = if damages == 1 { "" } else { "s" };
        let count = grouped(damages);
        return Err(Failure::Failed(format!(
            "{}: {count} place{plural} damaged",
            dir.display()
        )));
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
