//! Backups that SAVE and BGSAVE make.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use braid::backup::BackupInfo;
use braid::{Database, Error};

/// The backups of this run of the server.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) is_running: bool,
    /// When the newest one was made, or the server started.
    pub(crate) last: SystemTime,
    /// Why the last one failed.
    pub(crate) failure: Option<String>,
    pub(crate) took: Option<Duration>,
}

#[derive(Debug)]
struct State {
    report: Report,
    /// Makes a backup for BGSAVE.
    thread: Option<JoinHandle<()>>,
}

/// Makes the backups for SAVE and BGSAVE, one at a time.
#[derive(Debug)]
pub(crate) struct Backups {
    state: Mutex<State>,
}

impl Default for Backups {
    fn default() -> Self {
        let report = Report {
            is_running: false,
            last: SystemTime::now(),
            failure: None,
            took: None,
        };
        Backups {
            state: Mutex::new(State {
                report,
                thread: None,
            }),
        }
    }
}

/// Where backups are made, and how many of them build on each other.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// `None` if there are none: then a save is a checkpoint.
    pub(crate) directory: Option<PathBuf>,
    /// One in so many contains all pages; the others contain what has changed since.
    pub(crate) full_every: usize,
}

impl Backups {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn report(&self) -> Report {
        self.lock().report.clone()
    }

    /// Reserves the turn to make a backup; returns whether nobody else has it.
    pub(crate) fn begin(&self) -> bool {
        !std::mem::replace(&mut self.lock().report.is_running, true)
    }

    /// Makes a backup in the turn that [`Backups::begin`] reserved.
    pub(crate) fn make(&self, db: &Database, plan: &Plan) -> braid::Result<()> {
        let began = Instant::now();
        let result = make(db, plan);
        let report = &mut self.lock().report;
        report.is_running = false;
        report.took = Some(began.elapsed());
        report.failure = result.as_ref().err().map(Error::to_string);
        match &result {
            Ok(Some(path)) => tracing::info!(path = %path.display(), "backup made"),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "backup failed"),
        }
        if result.is_ok() {
            report.last = SystemTime::now();
        }
        result.map(drop)
    }

    /// Keeps the thread that makes a backup, for the end of the server.
    pub(crate) fn set_thread(&self, thread: JoinHandle<()>) {
        self.lock().thread = Some(thread);
    }

    /// Gives back the turn if the backup cannot begin.
    pub(crate) fn cancel(&self) {
        self.lock().report.is_running = false;
    }

    /// Waits for the backup that is being made.
    pub(crate) fn join(&self) {
        let thread = self.lock().thread.take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Makes a backup, or a checkpoint if there is no directory for backups.
fn make(db: &Database, plan: &Plan) -> braid::Result<Option<PathBuf>> {
    let Some(directory) = &plan.directory else {
        db.checkpoint()?;
        return Ok(None);
    };
    if let Some((parent, info, chain)) = newest(directory) {
        if info.seqno == db.durable_seqno() {
            // Nothing has changed since.
            return Ok(None);
        }
        if chain < plan.full_every {
            let backup = db.backup_options().incremental_from(parent);
            match backup.to_path(directory) {
                // The file is of another database, or of before a restore.
                Err(Error::Backup(_)) => {}
                made => return Ok(made?.path),
            }
        }
    }
    Ok(db.backup_options().to_path(directory)?.path)
}

/// Returns the newest backup in a directory, and how many it consists of.
fn newest(directory: &Path) -> Option<(PathBuf, BackupInfo, usize)> {
    let files = std::fs::read_dir(directory).ok()?;
    let known: HashMap<u64, (PathBuf, BackupInfo)> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|name| name == "braid"))
        // Other files are none of ours.
        .filter_map(|path| {
            let info = braid::backup::info(&path).ok()?;
            Some((info.seqno, (path, info)))
        })
        .collect();
    let (path, info) = known.values().max_by_key(|(_, info)| info.seqno)?;
    let mut chain = 1;
    let mut parent = info.parent;
    while let Some((_, info)) = parent.and_then(|parent| known.get(&parent)) {
        chain += 1;
        parent = info.parent;
    }
    Some((path.clone(), info.clone(), chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_build_on_each_other_and_begin_again() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::in_memory().unwrap();
        let table = db.open_table::<u64, u64>("t").unwrap();
        let plan = Plan {
            directory: Some(dir.path().to_owned()),
            full_every: 3,
        };
        let backups = Backups::default();
        let mut parents = Vec::new();
        for number in 0..5 {
            db.transact(|tx| tx.insert(&table, &number, &number))
                .unwrap();
            assert!(backups.begin());
            assert!(!backups.begin());
            backups.make(&db, &plan).unwrap();
            parents.push(newest(dir.path()).unwrap().1.parent.is_some());
        }
        assert_eq!(parents, [false, true, true, false, true]);
        // Without a change there is nothing to do.
        backups.make(&db, &plan).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
        let missing = Plan {
            directory: Some(dir.path().join("none").join("such")),
            full_every: 3,
        };
        assert!(backups.make(&db, &missing).is_err());
        assert!(backups.report().failure.is_some());
        // A new server builds on what is there, and a restore finds all.
        let restored = dir.path().join("restored");
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort_by_key(|path| braid::backup::info(path).unwrap().seqno);
        let mut restore = braid::backup::Restore::new();
        for path in &files[3..] {
            restore = restore.backup(path);
        }
        restore.run(&restored).unwrap();
        let db = Database::open(restored).unwrap();
        let table = db.open_table::<u64, u64>("t").unwrap();
        use braid::Readable;
        assert_eq!(db.snapshot().get(&table, &4).unwrap(), Some(4));
    }
}
