//! Publication of statistics to other processes: a file in the directory, and the facade `metrics`.
//!
//! The checkpoint thread, and each thread that writes a checkpoint, publishes at most once a
//! second; commits and reads do no extra work. The file is for people and monitors, not for
//! recovery, so it is written with plain file operations and never synced; a failure to write it
//! has no other effect.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_io::Gate;
use braid_rt::Mutex;

use crate::observe::stats::Stats;
#[cfg(feature = "metrics")]
use crate::observe::trace::call_user;
use crate::options::Builder;

/// Name of the statistics file, in Prometheus' text format.
pub(crate) const STATS_FILE: &str = "STATS";
const UNFINISHED: &str = "STATS.new";

const EVERY: Duration = Duration::from_secs(1);

/// Destinations of the statistics.
#[derive(Debug)]
pub(crate) struct Publisher {
    directory: Option<PathBuf>,
    file_mode: u32,
    #[cfg(feature = "metrics")]
    label: Option<String>,
    /// Time of the last publication.
    last: Mutex<Option<Instant>>,
}

impl Publisher {
    pub(crate) fn new(options: &Builder) -> Self {
        Self {
            directory: options.stats_directory.clone(),
            file_mode: options.file_mode,
            #[cfg(feature = "metrics")]
            label: options.metrics_label.clone(),
            last: Mutex::default(),
        }
    }

    fn is_on(&self) -> bool {
        #[cfg(feature = "metrics")]
        if self.label.is_some() {
            return true;
        }
        self.directory.is_some()
    }
}

/// Replaces the file atomically, so that a reader finds the old or the new one.
fn write(directory: &Path, mode: u32, text: &str) -> io::Result<()> {
    let unfinished = directory.join(UNFINISHED);
    braid_io::create_file(&unfinished, mode)?.write_all(text.as_bytes())?;
    fs::rename(unfinished, directory.join(STATS_FILE))
}

/// Removes the file that a killed process left. A failure has no consequence.
pub(crate) fn remove(directory: &Path) {
    for name in [STATS_FILE, UNFINISHED] {
        let _ = fs::remove_file(directory.join(name));
    }
}

impl Publisher {
    /// Publishes the statistics if they are enabled and a second has passed.
    pub(crate) fn publish(&self, gate: &Gate, stats: impl FnOnce() -> Stats) {
        if !self.is_on() {
            return;
        }
        let mut last = self.last.lock();
        let now = braid_rt::now();
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return;
        }
        let stats = stats();
        #[cfg(feature = "metrics")]
        if let Some(label) = &self.label {
            call_user("the metrics recorder", || {
                if last.is_none() {
                    crate::observe::metrics::describe(&stats);
                }
                stats.publish(label);
            });
        }
        if let Some(directory) = &self.directory {
            let text = stats.to_prometheus();
            let file = || write(directory, self.file_mode, &text);
            if let Err(error) = gate.pass("a write of the statistics", file) {
                crate::observe::trace::stats_file_failed(&error);
            }
        }
        *last = Some(now);
    }

    /// Removes the file when the database is closed: the last statistics are no longer current. The
    /// caller ensures that no thread publishes meanwhile.
    pub(crate) fn unpublish(&self) {
        if let Some(directory) = &self.directory {
            remove(directory);
        }
    }
}
