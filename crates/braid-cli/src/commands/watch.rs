//! `braid stat --watch`: monitors a database that another process has open.
//!
//! Only one process can open a database for writing, so this reads the file `STATS`, which that
//! process replaces once a second if it was opened with `Builder::stats_file`.

use std::collections::HashMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use console::Term;

use crate::failure::Failure;
use crate::numbers::{grouped, mib};
use crate::output::Output;

const FILE: &str = "STATS";

/// The file is replaced every second; after this time, its writer was probably killed.
const STALE: Duration = Duration::from_secs(5);

/// One reading of the file.
struct Reading {
    written: SystemTime,
    values: HashMap<String, f64>,
}

impl Reading {
    /// Reads the file; returns `None` if it does not exist.
    fn read(file: &Path) -> io::Result<Option<Self>> {
        let read = fs::metadata(file).and_then(|metadata| metadata.modified());
        let read = read
            .and_then(|written| Ok((written, io::read_to_string(braid_io::open_input(file)?)?)));
        let (written, text) = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Ok(Some(Reading {
            written,
            values: lines.filter_map(value).collect(),
        }))
    }

    fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    fn whole(&self, name: &str) -> u64 {
        self.value(name) as u64
    }

    fn health(&self) -> &'static str {
        if self.value("braid_poisoned") > 0.0 {
            "read-only"
        } else if self.value("braid_checkpoint_failing") > 0.0 {
            "checkpoints fail"
        } else {
            "good"
        }
    }
}

/// Rates per second between two readings.
struct Rates<'a> {
    before: Option<&'a Reading>,
    now: &'a Reading,
}

impl Rates<'_> {
    fn of(&self, name: &str) -> f64 {
        let Some(before) = self.before else {
            return 0.0;
        };
        let passed = self.now.written.duration_since(before.written);
        // A counter that decreased belongs to a later opening of the database.
        let grown = (self.now.value(name) - before.value(name)).max(0.0);
        grown / passed.map_or(f64::INFINITY, |passed| passed.as_secs_f64().max(1e-3))
    }

    fn rate(&self, name: &str) -> String {
        grouped(self.of(name).round() as u64)
    }

    /// Returns the mean time of a flush's write, in microseconds.
    fn flush_micros(&self) -> String {
        let flushes = self.of("braid_log_flushes_total");
        if flushes > 0.0 {
            format!(
                "{:.0}",
                1e6 * self.of("braid_log_write_seconds_total") / flushes
            )
        } else {
            "-".to_owned()
        }
    }

    /// Returns the log that no checkpoint has released, and its limit.
    fn log_in_use(&self) -> String {
        let used = mib(self.now.whole("braid_log_used_bytes"));
        match self.now.whole("braid_log_limit_bytes") {
            0 => used,
            limit => format!("{used} of at most {}", mib(limit)),
        }
    }

    fn columns(&self) -> [(&'static str, String); 10] {
        let now = self.now;
        [
            ("commits/s", self.rate("braid_commits_total")),
            ("conflicts/s", self.rate("braid_conflicts_total")),
            ("flushes/s", self.rate("braid_log_flushes_total")),
            ("flush us", self.flush_micros()),
            (
                "log MiB/s",
                format!(
                    "{:.1}",
                    self.of("braid_log_written_bytes_total") / f64::from(1 << 20)
                ),
            ),
            ("to recover", mib(now.whole("braid_log_to_recover_bytes"))),
            ("loads/s", self.rate("braid_store_page_loads_total")),
            ("evictions/s", self.rate("braid_store_evictions_total")),
            (
                "checkpoint",
                grouped(now.whole("braid_store_checkpoint_number")),
            ),
            ("health", now.health().to_owned()),
        ]
    }

    /// Returns the lines for a terminal.
    fn table(&self) -> Vec<String> {
        let now = self.now;
        let mut rows: Vec<(&str, String)> = self.columns().into();
        rows.extend([
            ("snapshots", grouped(now.whole("braid_snapshots"))),
            ("old versions", grouped(now.whole("braid_old_versions"))),
            (
                "old version bytes",
                grouped(now.whole("braid_old_version_bytes")),
            ),
            (
                "pool",
                format!(
                    "{} of {} pages",
                    grouped(now.whole("braid_store_resident_pages")),
                    grouped(now.whole("braid_store_pool_pages"))
                ),
            ),
            (
                "data file",
                format!(
                    "{}, {} of it free",
                    mib(now.whole("braid_store_file_bytes")),
                    mib(now.whole("braid_store_file_free_bytes"))
                ),
            ),
            ("log files", grouped(now.whole("braid_log_segments"))),
            ("log in use", self.log_in_use()),
            ("delays/s", self.rate("braid_log_delayed_commits_total")),
        ]);
        rows.iter()
            .map(|(name, value)| format!("{name:<14}{value}"))
            .collect()
    }
}

/// Shows a database every `interval`, `count` times or until it is closed.
pub(crate) fn watch(
    dir: &Path,
    interval: Duration,
    count: Option<u64>,
    output: &mut Output,
) -> Result<(), Failure> {
    let file: PathBuf = dir.join(FILE);
    let mut view = if io::stdout().is_terminal() {
        View::Terminal(Term::stdout(), 0)
    } else {
        View::Lines { header: true }
    };
    // Rates need two different readings.
    let mut before: Option<Reading> = None;
    let mut now: Option<Reading> = None;
    let mut shown = 0;
    loop {
        let read = Reading::read(&file);
        let read = read
            .map_err(|error| Failure::io(format_args!("cannot read {}", file.display()), &error))?;
        let Some(read) = read else {
            if now.is_none() {
                return Err(Failure::Failed(format!(
                    "cannot monitor {}: no process publishes its statistics there; open the database with \
                     Builder::stats_file(true)",
                    dir.display()
                )));
            }
            return output.line("the database was closed");
        };
        if now.as_ref().is_none_or(|now| now.written != read.written) {
            before = now.replace(read);
        }
        if let Some(now) = &now {
            let rates = Rates {
                before: before.as_ref(),
                now,
            };
            let stale = match now.written.elapsed() {
                Ok(age) => (age > STALE).then(|| {
                    format!(
                        "no news for {} s: the process hangs or was killed",
                        age.as_secs()
                    )
                }),
                Err(ahead) => (ahead.duration() > STALE).then(|| {
                    format!(
                        "the clock was set back by {} s: for as long it is unknown whether the process runs",
                        ahead.duration().as_secs()
                    )
                }),
            };
            view.show(&rates, stale, output)?;
        }
        shown += 1;
        if count == Some(shown) {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// How readings are shown.
enum View {
    /// In place; the number of lines of the previous reading.
    Terminal(Term, usize),
    /// One line for each reading.
    Lines { header: bool },
}

impl View {
    fn show(
        &mut self,
        rates: &Rates<'_>,
        stale: Option<String>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        match self {
            View::Terminal(term, lines) => {
                let mut table = rates.table();
                table.extend(stale);
                let drawn = term
                    .clear_last_lines(*lines)
                    .and_then(|()| table.iter().try_for_each(|line| term.write_line(line)));
                *lines = table.len();
                drawn.map_err(|error| crate::output::writing(&error))
            }
            View::Lines { header } => {
                let columns = rates.columns();
                if std::mem::take(header) {
                    let names: Vec<_> = columns
                        .iter()
                        .map(|(name, _)| format!("{name:>12}"))
                        .collect();
                    output.line(names.concat())?;
                }
                let mut line: String = columns
                    .iter()
                    .map(|(_, value)| format!("{value:>12}"))
                    .collect();
                if let Some(stale) = stale {
                    line.push_str("  ");
                    line.push_str(&stale);
                }
                output.line_now(line)
            }
        }
    }
}
