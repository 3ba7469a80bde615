//! Files of records, written by `braid export` and read by `braid import`.
//!
//! **JSON lines**: one object per line. `{"table": …, "key_type": …, "value_type": …}` declares a
//! table, and `{"table": …, "key": …, "value": …}` is an entry of a table. A table with options
//! also has `"compression"` and `"time_to_live_ms"`; see [`crate::datum`] for keys and values.
//!
//! **CSV**: one table. The header names the types, `key:u64,value:string`, and each record is an
//! entry. [`CsvColumns`] reads files with other columns.

mod csv;
mod jsonl;

use std::io::{BufRead, Write};

use braid::{Bytes, Table, TableOptions};

pub(crate) use self::csv::{CsvReader, CsvWriter};
pub(crate) use self::jsonl::{JsonReader, JsonWriter};
use crate::datum::{Column, Mismatch, from_json, from_parts, from_text};
use crate::failure::Failure;

/// Format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// An object a line; any number of tables
    Jsonl,
    /// Comma-separated values; one table
    Csv,
}

/// A key or value whose type is not known yet.
#[derive(Debug)]
pub(crate) enum Field {
    Json(serde_json::Value),
    Text(String),
    /// The parts of a tuple.
    Parts(Vec<String>),
}

/// Columns of a CSV file that make up an entry.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CsvColumns {
    /// Columns of the CSV file that form the key, by their names in the header; several form a
    /// tuple
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub(crate) key: Vec<String>,
    /// Column of the CSV file that is the value [default: all but the key, as a JSON object if they
    /// are several]
    #[arg(long, value_name = "COLUMN", requires = "key")]
    pub(crate) value: Option<String>,
}

impl Field {
    pub(crate) fn encode(&self, column: &Column) -> Result<Vec<u8>, Mismatch> {
        match self {
            Field::Json(value) => from_json(column, value),
            Field::Text(text) => from_text(column, text),
            Field::Parts(texts) => from_parts(column, texts),
        }
    }
}

/// Content of one line.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A table and the names of its types.
    Table {
        /// `None` if the user has to name it.
        name: Option<String>,
        key_type: Option<String>,
        value_type: Option<String>,
        /// Options for a new table.
        options: TableOptions,
    },
    Record {
        table: Option<String>,
        key: Field,
        value: Field,
    },
}

/// A malformed line, or a file that cannot be read further.
#[derive(Debug)]
pub(crate) enum BadLine {
    /// A malformed line; reading continues after it.
    Nonsense(String),
    /// Reading cannot continue.
    Fatal(String),
}

/// Entries, with the number of the line where each begins.
pub(crate) trait RecordReader {
    /// Returns the next entry; `None` at the end.
    fn next(&mut self) -> Option<(u64, Result<Entry, BadLine>)>;
}

/// Writes tables and their entries.
pub(crate) trait RecordWriter {
    fn table(&mut self, table: &Table, key: &Column, value: &Column) -> Result<(), Failure>;

    /// Writes an entry of the last table.
    fn record(&mut self, key: &Bytes, value: &Bytes) -> Result<(), Failure>;

    fn finish(&mut self) -> Result<(), Failure>;
}

pub(crate) fn reader<'a>(
    format: Format,
    columns: &CsvColumns,
    input: impl BufRead + 'a,
) -> Box<dyn RecordReader + 'a> {
    match format {
        Format::Jsonl => Box::new(JsonReader::new(input)),
        Format::Csv => Box::new(CsvReader::new(input, columns.clone())),
    }
}

pub(crate) fn writer<'a>(format: Format, output: impl Write + 'a) -> Box<dyn RecordWriter + 'a> {
    match format {
        Format::Jsonl => Box::new(JsonWriter::new(output)),
        Format::Csv => Box::new(CsvWriter::new(output)),
    }
}
