//! CSV: one table, with keys and values in two columns or in the named ones.

use std::io::{Read, Write};

use braid::{Bytes, Table, TableOptions};
use csv::{Error, ErrorKind, Reader, ReaderBuilder, StringRecord, Writer};

use super::{BadLine, CsvColumns, Entry, Field, RecordReader, RecordWriter};
use crate::datum::{Column, to_literal, to_text};
use crate::failure::Failure;
use crate::output::writing;
use crate::suggest::suggestion;

pub(crate) struct CsvReader<R> {
    reader: Reader<R>,
    wanted: CsvColumns,
    /// Columns of the header; `None` before the header is read.
    layout: Option<Layout>,
    record: StringRecord,
}

/// Positions of an entry's parts in a record.
struct Layout {
    key: Vec<usize>,
    value: Vec<usize>,
    names: Vec<String>,
}

impl Layout {
    /// Parses a header: column names, each optionally followed by `:TYPE`.
    fn of(
        header: &StringRecord,
        wanted: &CsvColumns,
    ) -> Result<(Self, [Option<String>; 2]), String> {
        let split = |field: &str| match field.split_once(':') {
            Some((name, kind)) => (name.to_owned(), Some(kind.to_owned())),
            None => (field.to_owned(), None),
        };
        let (names, types): (Vec<_>, Vec<_>) = header.iter().map(split).unzip();
        let list = || header.iter().collect::<Vec<_>>().join(",");
        let find = |wanted: &String| {
            let found = names.iter().position(|name| name == wanted);
            found.ok_or_else(|| {
                let meant = suggestion(wanted, names.iter().map(String::as_str));
                format!("the header {} has no column {wanted:?}{meant}", list())
            })
        };
        let (key, value) = if wanted.key.is_empty() {
            if names != ["key", "value"] {
                return Err(format!(
                    "the header is {}, not key:TYPE,value:TYPE or key,value; add --key COLUMN and --value COLUMN",
                    list()
                ));
            }
            (vec![0], vec![1])
        } else {
            let key: Vec<usize> = wanted.key.iter().map(find).collect::<Result<_, _>>()?;
            let value = match &wanted.value {
                Some(value) => vec![find(value)?],
                None => (0..names.len()).filter(|at| !key.contains(at)).collect(),
            };
            (key, value)
        };
        let key_type = match key[..] {
            [at] => types[at].clone(),
            _ => {
                let types: Option<Vec<_>> = key.iter().map(|&at| types[at].clone()).collect();
                types.map(|types| format!("({})", types.join(", ")))
            }
        };
        let value_type = match value[..] {
            [] => Some("()".to_owned()),
            [at] => types[at].clone(),
            _ => Some("string".to_owned()),
        };
        Ok((Layout { key, value, names }, [key_type, value_type]))
    }

    fn entry(&self, record: &StringRecord) -> Entry {
        let field = |at: &usize| record.get(*at).unwrap_or_default().to_owned();
        let key = match &self.key[..] {
            [at] => Field::Text(field(at)),
            several => Field::Parts(several.iter().map(field).collect()),
        };
        let value = match &self.value[..] {
            [] => Field::Text("()".to_owned()),
            [at] => Field::Text(field(at)),
            several => {
                let fields = several
                    .iter()
                    .map(|at| (self.names[*at].clone(), field(at).into()));
                let object: serde_json::Map<String, serde_json::Value> = fields.collect();
                Field::Text(serde_json::Value::Object(object).to_string())
            }
        };
        let table = None;
        Entry::Record { table, key, value }
    }
}

impl<R: Read> CsvReader<R> {
    pub(crate) fn new(input: R, wanted: CsvColumns) -> Self {
        CsvReader {
            // The header is read as an ordinary record; it defines the columns.
            reader: ReaderBuilder::new().has_headers(false).from_reader(input),
            wanted,
            layout: None,
            record: StringRecord::new(),
        }
    }

    fn entry(&mut self) -> Result<Entry, BadLine> {
        if let Some(layout) = &self.layout {
            return Ok(layout.entry(&self.record));
        }
        // Without a valid header, the meaning of the records is unknown.
        let layout = Layout::of(&self.record, &self.wanted);
        let (layout, [key_type, value_type]) = layout.map_err(BadLine::Fatal)?;
        self.layout = Some(layout);
        Ok(Entry::Table {
            name: None,
            key_type,
            value_type,
            options: TableOptions::default(),
        })
    }
}

/// Returns the error for a record whose number of fields differs from the header's.
fn fields(found: u64, expected: u64) -> String {
    let plural = |count| if count == 1 { "" } else { "s" };
    format!(
        "the line has {found} field{}, the header has {expected} column{}",
        plural(found),
        plural(expected)
    )
}

fn bad_line(error: &Error) -> BadLine {
    match error.kind() {
        ErrorKind::Io(error) => BadLine::Fatal(error.to_string()),
        ErrorKind::UnequalLengths {
            len, expected_len, ..
        } => BadLine::Nonsense(fields(*len, *expected_len)),
        ErrorKind::Utf8 { err, .. } => BadLine::Nonsense(err.to_string()),
        _ => BadLine::Fatal(error.to_string()),
    }
}

impl<R: Read> RecordReader for CsvReader<R> {
    fn next(&mut self) -> Option<(u64, Result<Entry, BadLine>)> {
        let line = self.reader.position().line();
        match self.reader.read_record(&mut self.record) {
            Ok(false) => None,
            Ok(true) => {
                let line = self.record.position().map_or(line, csv::Position::line);
                Some((line, self.entry()))
            }
            Err(error) => {
                let line = error.position().map_or(line, csv::Position::line);
                Some((line, Err(bad_line(&error))))
            }
        }
    }
}

pub(crate) struct CsvWriter<W: Write> {
    writer: Writer<W>,
    columns: Option<(Column, Column)>,
}

impl<W: Write> CsvWriter<W> {
    pub(crate) fn new(output: W) -> Self {
        CsvWriter {
            writer: Writer::from_writer(output),
            columns: None,
        }
    }

    fn row(&mut self, row: &[String; 2]) -> Result<(), Failure> {
        self.writer
            .write_record(row)
            .map_err(|error| writing(&error.into()))
    }
}

impl<W: Write> RecordWriter for CsvWriter<W> {
    fn table(&mut self, _: &Table, key: &Column, value: &Column) -> Result<(), Failure> {
        self.row(&[
            format!("key:{}", key.name()),
            format!("value:{}", value.name()),
        ])?;
        self.columns = Some((key.clone(), value.clone()));
        Ok(())
    }

    fn record(&mut self, key: &Bytes, value: &Bytes) -> Result<(), Failure> {
        let Some((key_column, value_column)) = &self.columns else {
            unreachable!("entries follow their table")
        };
        match (to_text(key_column, key), to_text(value_column, value)) {
            (Some(key), Some(value)) => self.row(&[key, value]),
            _ => Err(Failure::Failed(format!(
                "cannot write entry {} as CSV: its bytes are not valid for the table's types; \
                 use --format jsonl",
                to_literal(key_column, key)
            ))),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(|error| writing(&error))
    }
}
