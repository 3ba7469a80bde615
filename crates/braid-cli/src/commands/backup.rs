//! `braid backup`, `braid restore`, `braid archive`: copies of a database, and databases from
//! copies.

use std::path::PathBuf;
use std::time::SystemTime;

use braid::backup::{Restore, Until};
use braid::{Database, Error};
use indicatif::ProgressBar;

use super::log_place::LogPlaceArgs;
use super::tablespace_place::parse_place;
use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::{self, Output};
use crate::scratch::Made;

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// Directory of the database; while another process writes, only a full backup can be made, and
    /// no incremental backup can build on it (the writing process makes both with
    /// `Database::backup`)
    dir: PathBuf,

    /// New file for the backup, or an existing directory, where the file is named after its
    /// sequence number
    dest: PathBuf,

    /// Copy only the pages that changed since this full or incremental backup
    #[arg(long, value_name = "BACKUP")]
    incremental_from: Option<PathBuf>,

    /// Copy at most this much per second, instead of pausing while transactions commit
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    max_rate: Option<u64>,
}

pub(crate) fn backup(args: &BackupArgs, output: &mut Output) -> Result<(), Failure> {
    let db = match open(&args.dir) {
        Err(Error::Locked { .. }) => Database::open_read_only(&args.dir)?,
        opened => opened?,
    };
    let bar = output::bar(0, "backup");
    let mut backup = db.backup_options().progress(|progress| {
        show(&bar, progress.pages, progress.pages_total);
    });
    if let Some(parent) = &args.incremental_from {
        backup = backup.incremental_from(parent);
    }
    if let Some(mib) = args.max_rate {
        backup = backup.max_rate(mib << 20);
    }
    let report = backup.to_path(&args.dest);
    bar.finish_and_clear();
    let report = report?;
    let path = report.path.unwrap_or_else(|| args.dest.clone());
    output.line(format_args!(
        "{}: {} of {} pages, {}; the transactions up to sequence number {}",
        path.display(),
        grouped(report.pages),
        grouped(report.pages_total),
        mib(report.written_bytes),
        report.seqno
    ))?;
    db.close()?;
    Ok(())
}

fn open(dir: &PathBuf) -> Result<Database, Error> {
    Database::builder().create_if_missing(false).open(dir)
}

fn show(bar: &ProgressBar, pages: u64, of: u64) {
    bar.set_length(of);
    bar.set_position(pages);
    bar.set_message(format!("{} pages", grouped(pages)));
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("until").args(["until_seqno", "until_time"]))]
pub(crate) struct RestoreArgs {
    /// Full backup, the incremental ones that build on it from the oldest to the newest, and last
    /// the directory of the new database, which must be missing or empty
    #[arg(required = true, num_args = 2.., value_name = "BACKUP... DEST")]
    paths: Vec<PathBuf>,

    /// Apply the transactions after the last backup from this archive of the log
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,

    /// Stop after the transaction with this sequence number
    #[arg(long, value_name = "N")]
    until_seqno: Option<u64>,

    /// Stop after the last transaction that the archive records as durable at this time; UTC, like
    /// 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", requires = "archive", value_parser = parse_time)]
    until_time: Option<SystemTime>,

    /// Directory for a tablespace of the last backup, which must be missing or empty; repeat it for
    /// each tablespace
    #[arg(long = "tablespace", value_name = "NAME=DIR", value_parser = parse_place)]
    tablespaces: Vec<(String, PathBuf)>,

    /// Directory for the log of a tablespace that has one of its own, which must be missing or empty;
    /// otherwise the log is with its data
    #[arg(long = "tablespace-log", value_name = "NAME=DIR", value_parser = parse_place)]
    tablespace_logs: Vec<(String, PathBuf)>,

    #[command(flatten)]
    log: LogPlaceArgs,
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text).map_err(|error| error.to_string())
}

pub(crate) fn restore(args: &RestoreArgs, output: &mut Output) -> Result<(), Failure> {
    let Some((dest, backups)) = args.paths.split_last() else {
        return Err(Failure::Usage("cannot restore without a backup; give the backups, then the directory of the new database".into()));
    };
    let mut total = 0_u64;
    for backup in backups {
        total = total.saturating_add(braid::backup::info(backup)?.pages);
    }
    let bar = output::bar(total, "restore");
    let mut restore = backups.iter().fold(Restore::new(), Restore::backup);
    restore = restore.progress(|progress| show(&bar, progress.pages, total));
    restore = args.log.restore(restore);
    if let Some(archive) = &args.archive {
        restore = restore.archive(archive);
    }
    restore = restore.until(match (args.until_seqno, args.until_time) {
        (Some(number), _) => Until::Seqno(number),
        (None, Some(time)) => Until::Time(time),
        (None, None) => Until::End,
    });
    let mut made = vec![Made::look(dest)];
    for (name, directory) in &args.tablespaces {
        made.push(Made::look(directory));
        restore = restore.tablespace_directory(name, directory);
    }
    for (name, directory) in &args.tablespace_logs {
        made.push(Made::look(directory));
        restore = restore.tablespace_log_directory(name, directory);
    }
    let report = restore.run(dest);
    bar.finish_and_clear();
    let report = report.inspect_err(|error| {
        if !matches!(error, Error::Locked { .. }) {
            made.iter().for_each(Made::remove);
        }
    })?;
    output.line(format_args!(
        "{}: the transactions up to sequence number {}; {} pages from backups, {} transactions from the archive",
        dest.display(),
        report.seqno,
        grouped(report.pages),
        grouped(report.transactions)
    ))
}

#[derive(Debug, clap::Args)]
pub(crate) struct ArchiveArgs {
    /// Directory of the database; no other process may have it open
    dir: PathBuf,

    /// Directory of the archive, created if it is missing
    #[arg(required_unless_present = "end")]
    dest: Option<PathBuf>,

    /// Stop keeping log for the archive
    #[arg(long, conflicts_with = "dest")]
    end: bool,
}

pub(crate) fn archive(args: &ArchiveArgs, output: &mut Output) -> Result<(), Failure> {
    let Some(dest) = &args.dest else {
        let db = open(&args.dir)?;
        db.end_archive()?;
        db.close()?;
        return output.line(format_args!(
            "{}: log is no longer kept for an archive",
            args.dir.display()
        ));
    };
    let builder = Database::builder().create_if_missing(false);
    let db = builder.archive(dest).open(&args.dir)?;
    let archived = db.archive_now()?.unwrap_or_default();
    output.line(format_args!(
        "{}: complete up to sequence number {archived}",
        dest.display()
    ))?;
    db.close()?;
    Ok(())
}
