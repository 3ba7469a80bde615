//! `braid export`: writes tables as files of records.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use braid::{Database, Readable, Snapshot, Table};
use tempfile::NamedTempFile;

use super::shell::no_table;
use crate::datum::Column;
use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::{self, Output};
use crate::records::{Format, RecordWriter, writer};

/// Number of entries between two updates of the progress display.
const SHOW_EVERY: u64 = 8192;

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Directory of the database; other processes may have it open
    dir: PathBuf,
    /// Tables to write [default: all]
    tables: Vec<String>,
    /// Output format; CSV holds one table
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// File to write instead of standard output; it appears once it is complete
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &ExportArgs, output: &mut Output) -> Result<(), Failure> {
    let db = Database::open_read_only(&args.dir)?;
    let tables = tables(&db, args)?;
    let snapshot = db.snapshot();
    let entries = match &args.output {
        None => {
            // Buffered here, because the exporter writes a line at a time.
            let mut writer = writer(args.format, BufWriter::new(io::stdout()));
            export(&snapshot, &tables, &mut *writer)?
        }
        Some(path) => to_file(path, |file| {
            let mut writer = writer(args.format, BufWriter::new(file));
            export(&snapshot, &tables, &mut *writer)
        })?,
    };
    drop((snapshot, tables));
    db.close()?;
    if let Some(path) = &args.output {
        output.line(format_args!(
            "{}: {} entries",
            path.display(),
            grouped(entries)
        ))?;
    }
    Ok(())
}

fn tables(db: &Database, args: &ExportArgs) -> Result<Vec<Table>, Failure> {
    let names = match args.tables.as_slice() {
        [] => db.table_names()?,
        named => named.to_vec(),
    };
    if args.format == Format::Csv && names.len() != 1 {
        return Err(Failure::Usage(format!(
            "cannot write {} tables as CSV, which can hold only one; name one table after the database",
            names.len()
        )));
    }
    let open = |name: &String| match db.untyped_table(name)? {
        Some(table) => Ok(table),
        None => Err(no_table(db, name)?),
    };
    names.iter().map(open).collect()
}

fn export(
    snapshot: &Snapshot,
    tables: &[Table],
    writer: &mut dyn RecordWriter,
) -> Result<u64, Failure> {
    let progress = output::spinner();
    let (mut entries, mut bytes) = (0, 0);
    for table in tables {
        let (key_type, value_type) = table.type_names();
        writer.table(table, &Column::key(key_type), &Column::value(value_type))?;
        for entry in snapshot.iter(table)? {
            let (key, value) = entry?;
            writer.record(&key, &value)?;
            entries += 1;
            bytes += (key.len() + value.len()) as u64;
            if entries % SHOW_EVERY == 0 {
                progress.set_message(format!(
                    "{}: {} entries, {}",
                    table.name(),
                    grouped(entries),
                    mib(bytes)
                ));
                progress.tick();
            }
        }
    }
    writer.finish()?;
    progress.finish_and_clear();
    Ok(entries)
}

/// Writes a file that gets its name only once it is complete and durable.
fn to_file<R>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let failed =
        |error: &io::Error| Failure::io(format_args!("cannot write {}", path.display()), error);
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(dir).map_err(|error| failed(&error))?;
    let result = write(&mut file)?;
    file.as_file().sync_all().map_err(|error| failed(&error))?;
    file.persist(path).map_err(|error| failed(&error.error))?;
    Ok(result)
}
