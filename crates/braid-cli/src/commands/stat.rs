//! `braid stat`: what a database holds and has done.

use std::path::PathBuf;

use braid::Database;

use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct StatArgs {
    /// The database's directory; no other process may have it open
    dir: PathBuf,
}

pub(crate) fn run(args: &StatArgs, output: &mut Output) -> Result<(), Failure> {
    let db = Database::builder()
        .create_if_missing(false)
        .open(&args.dir)?;
    let recovery = *db.recovery();
    let mut row = |name: &str, value: String| output.line(format_args!("{name:<16}{value}"));
    row("database", args.dir.display().to_string())?;
    row("health", format!("{:?}", db.health()))?;
    let tables = db.table_names()?;
    row("tables", grouped(tables.len() as u64))?;
    for table in tables {
        row("", table)?;
    }
    row(
        "recovery",
        format!(
            "{} transactions from {} of log in {:.2} s",
            grouped(recovery.transactions),
            mib(recovery.log_bytes),
            recovery.duration.as_secs_f64()
        ),
    )?;
    db.close()?;
    Ok(())
}
