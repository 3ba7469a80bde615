//! `braid import`: reads files of records into tables.
//!
//! Each batch of entries is one transaction, with several commits in flight. A batch with a
//! malformed line is not committed; earlier batches are, and the error says where they end.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use braid::{Database, Error, Table, TableOptions, Ticket, Transaction};
use indicatif::ProgressBar;

use super::log_place::LogPlaceArgs;
use crate::datum::Column;
use crate::failure::Failure;
use crate::numbers::grouped;
use crate::output::{self, Output};
use crate::records::{BadLine, CsvColumns, Entry, Field, Format, RecordReader, reader};
use crate::scratch::Made;
use crate::suggest::suggestion;

/// Size of keys and values at which a batch ends, for large values.
const BATCH_BYTES: usize = 4 << 20;

/// Number of commits in flight.
const IN_FLIGHT: usize = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// Directory of the database, created if it is missing; no other process may have it open
    dir: PathBuf,
    /// File to read; `-` is standard input
    file: PathBuf,
    #[command(flatten)]
    log: LogPlaceArgs,
    /// Format of the file
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Table for entries that name none; required for CSV
    #[arg(long)]
    table: Option<String>,
    /// Key type of --table, if neither the file nor the database tells it
    #[arg(long, value_name = "TYPE", requires = "table", requires = "value_type")]
    key_type: Option<String>,
    /// Value type of --table
    #[arg(long, value_name = "TYPE", requires = "table", requires = "key_type")]
    value_type: Option<String>,
    #[command(flatten)]
    columns: CsvColumns,
    /// Maximum number of entries in a transaction
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Import everything in one transaction (up to 1 GiB), or nothing
    #[arg(long)]
    atomic: bool,
    /// Skip malformed lines and report each with its number, instead of stopping at the first
    #[arg(long)]
    skip_bad: bool,
}

pub(crate) fn run(args: &ImportArgs, output: &mut Output) -> Result<(), Failure> {
    if args.format == Format::Csv && args.table.is_none() {
        return Err(Failure::Usage(
            "cannot import CSV without the name of a table; add --table TABLE".to_owned(),
        ));
    }
    for column in [
        args.key_type.as_deref().map(Column::key),
        args.value_type.as_deref().map(Column::value),
    ] {
        let known = column.map_or(Ok(()), |column| column.check_known());
        known.map_err(|mismatch| Failure::Usage(mismatch.to_string()))?;
    }
    let (input, progress) = open(&args.file)?;
    let mut builder = args.log.apply(Database::builder());
    if args.atomic {
        builder = builder.transaction_bytes_max(1 << 30);
    }
    let made = Made::look(&args.dir);
    let db = builder.open(&args.dir)?;
    let mut import = Import::new(&db, args);
    let mut records = reader(args.format, &args.columns, input);
    let imported = import.run(&mut *records);
    progress.finish_and_clear();
    let (entries, skipped) = match imported {
        Ok(imported) => imported,
        Err(failure) => {
            let is_empty = import.entries == 0;
            drop(import);
            db.close()?;
            // The import failed after it created the database.
            if is_empty {
                made.remove();
            }
            return Err(failure);
        }
    };
    drop(import);
    db.close()?;
    output.line(format_args!("{} entries imported", grouped(entries)))?;
    if skipped > 0 {
        output.line(format_args!("{} bad lines skipped", grouped(skipped)))?;
    }
    Ok(())
}

/// Opens the input, and a progress bar for it.
fn open(path: &Path) -> Result<(Box<dyn BufRead>, ProgressBar), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), ProgressBar::hidden()));
    }
    let failed = |error| Failure::io(format_args!("cannot read {}", path.display()), &error);
    let file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let progress = output::bar(len, "import");
    let input = BufReader::with_capacity(1 << 18, progress.wrap_read(file));
    Ok((Box::new(input), progress))
}

/// A table that receives entries.
struct Target {
    table: Table,
    key: Column,
    value: Column,
}

impl Target {
    fn new(table: Table) -> Self {
        let (key, value) = table.type_names();
        let (key, value) = (Column::key(key), Column::value(value));
        Target { table, key, value }
    }
}

/// A transaction that is being filled.
struct Batch {
    tx: Transaction,
    first_line: u64,
    entries: u64,
    bytes: usize,
}

/// Why an entry was not inserted.
enum Refused {
    /// The entry itself is invalid; others can be inserted.
    Bad(String),
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::KeyTooLong { .. }
            | Error::ValueTooLong { .. }
            | Error::InvalidTableName { .. }
            | Error::TableTypeMismatch { .. }
            | Error::InvalidOption { .. } => Refused::Bad(error.to_string()),
            error => Refused::Failed(error),
        }
    }
}

fn no_name() -> Refused {
    Refused::Bad("the line names no table; add --table TABLE".into())
}

struct Import<'a> {
    db: &'a Database,
    args: &'a ImportArgs,
    targets: HashMap<String, Target>,
    /// Tables that the import created.
    created: Vec<String>,
    batch: Option<Batch>,
    in_flight: VecDeque<Ticket>,
    entries: u64,
    skipped: u64,
}

impl<'a> Import<'a> {
    fn new(db: &'a Database, args: &'a ImportArgs) -> Self {
        Import {
            db,
            args,
            targets: HashMap::new(),
            created: Vec::new(),
            batch: None,
            in_flight: VecDeque::new(),
            entries: 0,
            skipped: 0,
        }
    }

    /// Imports all records; returns the number of inserted entries and of skipped lines.
    fn run(&mut self, records: &mut dyn RecordReader) -> Result<(u64, u64), Failure> {
        while let Some((line, entry)) = records.next() {
            self.take(line, entry)?;
        }
        self.commit()?;
        self.wait()?;
        Ok((self.entries, self.skipped))
    }

    fn take(&mut self, line: u64, entry: Result<Entry, BadLine>) -> Result<(), Failure> {
        let refused = match entry {
            Err(BadLine::Fatal(what)) => return Err(self.give_up(line, &what)),
            Err(BadLine::Nonsense(what)) => Err(Refused::Bad(what)),
            Ok(Entry::Table {
                name,
                key_type,
                value_type,
                options,
            }) => self.declare(name, key_type, value_type, options),
            Ok(Entry::Record { table, key, value }) => self.insert(line, table, &key, &value),
        };
        match refused {
            Ok(()) => Ok(()),
            Err(Refused::Bad(what)) if self.args.skip_bad => {
                self.skipped += 1;
                output::complain(&format!(
                    "skipped: {}, line {line}: {what}",
                    self.args.file.display()
                ));
                Ok(())
            }
            Err(Refused::Bad(what)) => Err(self.give_up(line, &what)),
            Err(Refused::Failed(error)) => Err(self.give_up(line, &error.to_string())),
        }
    }

    fn declare(
        &mut self,
        name: Option<String>,
        key_type: Option<String>,
        value_type: Option<String>,
        options: TableOptions,
    ) -> Result<(), Refused> {
        let name = name.or_else(|| self.args.table.clone());
        let name = name.ok_or_else(no_name)?;
        let types = key_type
            .or_else(|| self.args.key_type.clone())
            .zip(value_type.or_else(|| self.args.value_type.clone()));
        let types = types.map(|(key, value)| (key, value, options));
        self.target(&name, types).map(drop)
    }

    /// Returns the table with a name; creates it if its types are known.
    fn target(
        &mut self,
        name: &str,
        types: Option<(String, String, TableOptions)>,
    ) -> Result<&Target, Refused> {
        if !self.targets.contains_key(name) || types.is_some() {
            let existing = self.db.untyped_table(name)?;
            let table = match (existing, types) {
                (Some(table), None) => table,
                // The types must match; an existing table keeps its own options.
                (Some(_), Some((key, value, _))) => {
                    self.db.create_untyped_table(name, &key, &value)?
                }
                (None, Some((key, value, options))) => {
                    self.created.push(name.to_owned());
                    self.db
                        .create_untyped_table_with(name, &key, &value, options)?
                }
                (None, None) => {
                    let names = self.db.table_names()?;
                    let meant = suggestion(name, names.iter().map(String::as_str));
                    return Err(Refused::Bad(format!(
                        "there is no table {name:?}{meant}; to create it, add \
                         --key-type TYPE and --value-type TYPE, or create it in the shell"
                    )));
                }
            };
            self.targets.insert(name.to_owned(), Target::new(table));
        }
        Ok(&self.targets[name])
    }

    fn insert(
        &mut self,
        line: u64,
        table: Option<String>,
        key: &Field,
        value: &Field,
    ) -> Result<(), Refused> {
        let (name, types) = match (table, &self.args.table) {
            (Some(name), _) => (name, None),
            (None, Some(name)) => {
                let types = self.args.key_type.clone().zip(self.args.value_type.clone());
                let types = types.map(|(key, value)| (key, value, TableOptions::default()));
                (
                    name.clone(),
                    types.filter(|_| !self.targets.contains_key(name)),
                )
            }
            (None, None) => return Err(no_name()),
        };
        let target = self.target(&name, types)?;
        let bad = |mismatch: crate::datum::Mismatch| Refused::Bad(mismatch.to_string());
        let key = key.encode(&target.key).map_err(bad)?;
        let value = value.encode(&target.value).map_err(bad)?;
        let table = target.table.clone();
        let batch = self.batch.get_or_insert_with(|| Batch {
            tx: self.db.begin(),
            first_line: line,
            entries: 0,
            bytes: 0,
        });
        batch.tx.insert(&table, &key, &value)?;
        batch.entries += 1;
        batch.bytes += key.len() + value.len();
        let is_full = batch.entries >= self.args.batch || batch.bytes >= BATCH_BYTES;
        if is_full && !self.args.atomic {
            self.commit().map_err(Refused::Failed)?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        let Some(batch) = self.batch.take() else {
            return Ok(());
        };
        let ticket = batch.tx.commit_async()?;
        self.entries += batch.entries;
        self.in_flight.push_back(ticket);
        if self.in_flight.len() > IN_FLIGHT
            && let Some(oldest) = self.in_flight.pop_front()
        {
            oldest.wait()?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.in_flight
            .drain(..)
            .try_for_each(|ticket| ticket.wait().map(drop))
    }

    /// Drops the open batch, waits for the earlier ones, and reports where they end.
    fn give_up(&mut self, line: u64, what: &str) -> Failure {
        let place = format!("{}, line {line}: {what}", self.args.file.display());
        let from = self.batch.take().map_or(line, |batch| {
            batch.tx.abort();
            batch.first_line
        });
        if self.args.atomic {
            // Their entries would have been part of the transaction.
            self.targets.clear();
            for name in self.created.drain(..) {
                let _ = self.db.drop_table(&name);
            }
            return Failure::Failed(format!("{place}; nothing was imported"));
        }
        if let Err(error) = self.wait() {
            return Failure::Failed(format!(
                "{place}; the batches before it failed, too: {error}"
            ));
        }
        Failure::Failed(format!(
            "{place}; the {} entries before line {from} are imported, no later ones",
            grouped(self.entries)
        ))
    }
}
