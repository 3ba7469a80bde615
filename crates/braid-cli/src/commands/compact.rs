//! `braid compact`: shortens the data files.

use std::path::PathBuf;

use braid::Database;

use crate::failure::Failure;
use crate::numbers::mib;
use crate::output::{self, Output};

#[derive(Debug, clap::Args)]
pub(crate) struct CompactArgs {
    /// Directory of the database; no other process may have it open
    dir: PathBuf,
}

pub(crate) fn run(args: &CompactArgs, output: &mut Output) -> Result<(), Failure> {
    let db = Database::builder()
        .create_if_missing(false)
        .open(&args.dir)?;
    let progress = output::spinner();
    progress.set_message("moving pages");
    progress.enable_steady_tick(std::time::Duration::from_millis(100));
    let report = db.compact();
    progress.finish_and_clear();
    let report = report?;
    let files = match db.tablespace_names().len() {
        0 => "data file of",
        _ => "data files of all tablespaces with",
    };
    db.close()?;
    output.line(format_args!(
        "{}: {files} {} before, {} now ({} bytes less)",
        args.dir.display(),
        mib(report.bytes_before),
        mib(report.bytes_after),
        report.bytes_before.saturating_sub(report.bytes_after)
    ))
}
