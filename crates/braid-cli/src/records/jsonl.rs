//! JSON lines.

use std::io::{BufRead, Read, Write};
use std::time::Duration;

use braid::{Bytes, Compression, MAX_KEY_LEN, MAX_VALUE_LEN, Table, TableOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BadLine, Entry, Field, RecordReader, RecordWriter};
use crate::datum::{Column, to_json};
use crate::failure::Failure;
use crate::output::writing;

/// Longer than any line of a valid file: a byte takes at most six characters, as `\u0000`.
const LINE_MAX: u64 = 6 * (MAX_VALUE_LEN + MAX_KEY_LEN) as u64 + (1 << 16);

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<std::borrow::Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_to_live_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

const LZ4: &str = "lz4";

impl Line<'_> {
    fn options(&self) -> Result<TableOptions, BadLine> {
        let compression = match self.compression.as_deref() {
            None => Compression::None,
            Some(LZ4) => Compression::Lz4,
            Some(other) => {
                return Err(BadLine::Nonsense(format!(
                    "unknown compression {other:?}; the only one is \"lz4\""
                )));
            }
        };
        Ok(TableOptions {
            compression,
            time_to_live: self.time_to_live_ms.map(Duration::from_millis),
        })
    }

    fn entry(self) -> Result<Entry, BadLine> {
        let options = self.options()?;
        let has_options = options != TableOptions::default();
        let table = self.table.map(|name| name.into_owned());
        match (self.key, self.value, self.key_type, self.value_type) {
            (Some(key), Some(value), None, None) if !has_options => Ok(Entry::Record {
                table,
                key: Field::Json(key),
                value: Field::Json(value),
            }),
            (None, None, Some(key_type), Some(value_type)) => Ok(Entry::Table {
                name: table,
                key_type: Some(key_type),
                value_type: Some(value_type),
                options,
            }),
            _ => Err(BadLine::Nonsense(
                "the line is neither an entry (table, key, value) nor a table (table, key_type, value_type)"
                    .to_owned(),
            )),
        }
    }
}

pub(crate) struct JsonReader<R> {
    input: R,
    line: u64,
    buf: Vec<u8>,
}

impl<R: BufRead> JsonReader<R> {
    pub(crate) fn new(input: R) -> Self {
        JsonReader {
            input,
            line: 0,
            buf: Vec::new(),
        }
    }
}

impl<R: BufRead> RecordReader for JsonReader<R> {
    fn next(&mut self) -> Option<(u64, Result<Entry, BadLine>)> {
        loop {
            self.line += 1;
            self.buf.clear();
            let mut limited = self.input.by_ref().take(LINE_MAX);
            match limited.read_until(b'\n', &mut self.buf) {
                Ok(0) => return None,
                Ok(_) if limited.limit() == 0 => {
                    let what = format!("the line has more than {LINE_MAX} bytes");
                    return Some((self.line, Err(BadLine::Fatal(what))));
                }
                Ok(_) if self.buf.trim_ascii().is_empty() => {}
                Ok(_) => break,
                Err(error) => return Some((self.line, Err(BadLine::Fatal(error.to_string())))),
            }
        }
        let parsed = serde_json::from_slice::<Line<'_>>(&self.buf);
        let entry = parsed.map_err(|error| {
            // The line number in the error is always 1.
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or_default();
            BadLine::Nonsense(format!("column {}: {what}", error.column()))
        });
        Some((self.line, entry.and_then(Line::entry)))
    }
}

pub(crate) struct JsonWriter<W> {
    output: W,
    table: Option<(String, Column, Column)>,
}

impl<W: Write> JsonWriter<W> {
    pub(crate) fn new(output: W) -> Self {
        JsonWriter {
            output,
            table: None,
        }
    }

    fn line(output: &mut W, line: &Line<'_>) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut *output, line).map_err(std::io::Error::from);
        written
            .and_then(|()| output.write_all(b"\n"))
            .map_err(|error| writing(&error))
    }
}

impl<W: Write> RecordWriter for JsonWriter<W> {
    fn table(&mut self, table: &Table, key: &Column, value: &Column) -> Result<(), Failure> {
        let name = table.name();
        // Without `..`, so that a new option needs a field here.
        let TableOptions {
            compression,
            time_to_live,
        } = table.options();
        let compression = match compression {
            Compression::None => None,
            Compression::Lz4 => Some(LZ4.to_owned()),
            other => {
                return Err(Failure::Failed(format!(
                    "cannot export table {name:?}: {other:?} has no name in JSON lines"
                )));
            }
        };
        let line = Line {
            table: Some(name.as_str().into()),
            key_type: Some(key.name().to_owned()),
            value_type: Some(value.name().to_owned()),
            compression,
            time_to_live_ms: time_to_live.map(|time| time.as_millis() as u64),
            key: None,
            value: None,
        };
        Self::line(&mut self.output, &line)?;
        self.table = Some((name, key.clone(), value.clone()));
        Ok(())
    }

    fn record(&mut self, key: &Bytes, value: &Bytes) -> Result<(), Failure> {
        let Some((name, key_column, value_column)) = &self.table else {
            unreachable!("entries follow their table")
        };
        let line = Line {
            table: Some(name.into()),
            key_type: None,
            value_type: None,
            compression: None,
            time_to_live_ms: None,
            key: Some(to_json(key_column, key)),
            value: Some(to_json(value_column, value)),
        };
        Self::line(&mut self.output, &line)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.output.flush().map_err(|error| writing(&error))
    }
}
