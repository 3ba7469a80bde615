//! `braid verify`: is everything on the disk as it was written?

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The database's directory; no process may have it open
    dir: PathBuf,
}

pub(crate) fn run(args: &VerifyArgs, output: &mut Output) -> Result<(), Failure> {
    check(&args.dir, output)
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
    output.line(format_args!(
        "{}: sound ({} tables, {} records on {} pages; {} transactions in {} of log)",
        dir.display(),
        grouped(report.tables),
        grouped(report.records),
        grouped(report.pages),
        grouped(report.log_transactions),
        mib(report.log_bytes)
    ))
}
