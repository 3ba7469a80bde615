//! `braid stat`: what a database holds and has done.

use std::path::PathBuf;
use std::time::Duration;

use braid::{Database, Health};

use super::watch::watch;
use crate::failure::Failure;
use crate::numbers::{grouped, mib, parse_seconds};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct StatArgs {
    /// The database's directory; other processes may have it open
    dir: PathBuf,
    /// Print every counter in Prometheus' text format
    #[arg(long, conflicts_with = "watch")]
    prometheus: bool,
    /// Show every so many seconds (1 unless given) how a database does that another process has open with
    /// `Builder::stats_file(true)`
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = parse_seconds)]
    watch: Option<Duration>,
    /// End after so many times
    #[arg(long, value_name = "TIMES", requires = "watch")]
    count: Option<u64>,
}

pub(crate) fn run(args: &StatArgs, output: &mut Output) -> Result<(), Failure> {
    if let Some(interval) = args.watch {
        return watch(&args.dir, interval, args.count, output);
    }
    let db = Database::open_read_only(&args.dir)?;
    if args.prometheus {
        let text = db.stats().to_prometheus();
        output.line(text.trim_end())?;
        db.close()?;
        return Ok(());
    }
    let rows = rows(&db)?;
    output.line(format_args!("{:<14}{}", "database", args.dir.display()))?;
    for (name, value) in rows {
        output.line(format_args!("{name:<14}{value}"))?;
    }
    db.close()?;
    Ok(())
}

pub(crate) fn rows(db: &Database) -> Result<Vec<(&'static str, String)>, Failure> {
    let (recovery, stats) = (db.recovery(), db.stats());
    let (log, store) = (&stats.log, &stats.store);
    let health = match db.health() {
        Health::Good => "good".to_owned(),
        Health::CheckpointFailing { error } => format!("checkpoints fail: {error}"),
        Health::OutOfSpace { what } => format!("out of space: {what}"),
        Health::ArchiveFailing { error } => format!("the archive fails: {error}"),
        Health::Poisoned { cause } => format!("read-only after a failure: {cause}"),
        Health::Damaged { what } => format!("damaged, opened read-only: {what}"),
        other => format!("{other:?}"),
    };
    let tables = db.table_names()?;
    let mut rows = vec![("health", health), ("tables", grouped(tables.len() as u64))];
    rows.extend(tables.into_iter().map(|table| ("", table)));
    rows.extend([
        (
            "data file",
            format!(
                "{}, {} of it free",
                mib(store.file_bytes),
                mib(store.file_free_bytes)
            ),
        ),
        (
            "pages",
            format!(
                "{} of {} bytes; {} of at most {} in memory",
                grouped(store.pages),
                grouped(store.page_size as u64),
                grouped(store.resident_pages as u64),
                grouped(store.pool_pages as u64)
            ),
        ),
        (
            "checkpoint",
            format!("number {}", grouped(store.checkpoint_sequence)),
        ),
        (
            "log",
            format!(
                "{} segments, {} of them ready for use",
                grouped(log.segments),
                grouped(log.segments_ready)
            ),
        ),
        (
            "durable up to",
            format!("transaction number {}", grouped(stats.durable_horizon)),
        ),
        (
            "recovery",
            format!(
                "{} transactions from {} of log in {:.3} s; {} discarded that nobody was promised",
                grouped(recovery.transactions),
                mib(recovery.log_bytes),
                recovery.duration.as_secs_f64(),
                grouped(recovery.discarded)
            ),
        ),
    ]);
    Ok(rows)
}
