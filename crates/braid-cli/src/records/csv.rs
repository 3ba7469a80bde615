//! CSV: one table, keys and values in two columns.

use std::io::{Read, Write};

use braid::{Bytes, Table, TableOptions};
use csv::{Error, ErrorKind, Reader, ReaderBuilder, StringRecord, Writer};

use super::{BadLine, Entry, Field, RecordReader, RecordWriter};
use crate::datum::{Column, to_literal, to_text};
use crate::failure::Failure;
use crate::output::writing;

pub(crate) struct CsvReader<R> {
    reader: Reader<R>,
    at_header: bool,
    record: StringRecord,
}

impl<R: Read> CsvReader<R> {
    pub(crate) fn new(input: R) -> Self {
        CsvReader {
            // The header is a line like the others here, which says what the columns are.
            reader: ReaderBuilder::new().has_headers(false).from_reader(input),
            at_header: true,
            record: StringRecord::new(),
        }
    }

    fn entry(&mut self) -> Result<Entry, BadLine> {
        let [key, value] = [0, 1].map(|i| self.record.get(i).unwrap_or_default().to_owned());
        if self.record.len() != 2 {
            let what = format!("{} fields instead of a key and a value", self.record.len());
            return Err(BadLine::Nonsense(what));
        }
        if !std::mem::take(&mut self.at_header) {
            return Ok(Entry::Record {
                table: None,
                key: Field::Text(key),
                value: Field::Text(value),
            });
        }
        // Without a true header it is not known what the lines below mean.
        let header = |field: &str, name| match field.strip_prefix(name)? {
            "" => Some(None),
            kind => kind.strip_prefix(':').map(|kind| Some(kind.to_owned())),
        };
        match (header(&key, "key"), header(&value, "value")) {
            (Some(key_type), Some(value_type)) => Ok(Entry::Table {
                name: None,
                key_type,
                value_type,
                options: TableOptions::default(),
            }),
            _ => Err(BadLine::Fatal(format!(
                "the header is {key:?},{value:?}, not key:TYPE,value:TYPE or key,value"
            ))),
        }
    }
}

fn bad_line(error: &Error) -> BadLine {
    match error.kind() {
        ErrorKind::Io(error) => BadLine::Fatal(error.to_string()),
        ErrorKind::UnequalLengths { len, .. } => {
            BadLine::Nonsense(format!("{len} fields instead of a key and a value"))
        }
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
            unreachable!("entries come behind their table")
        };
        match (to_text(key_column, key), to_text(value_column, value)) {
            (Some(key), Some(value)) => self.row(&[key, value]),
            _ => Err(Failure::Failed(format!(
                "the entry {} holds bytes that are no valid encoding of the table's types, which CSV can't \
                 carry; use --format jsonl",
                to_literal(key_column, key)
            ))),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(|error| writing(&error))
    }
}
