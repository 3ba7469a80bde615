//! Working directories of commands.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::failure::Failure;
use crate::signals::Temporary;

/// A directory for a database: one that the user named, or a temporary one.
pub(crate) enum Scratch {
    Named(PathBuf),
    Fresh(
        TempDir,
        #[expect(dead_code, reason = "dropped with the directory")] Temporary,
    ),
}

impl Scratch {
    /// Returns `named`, or a new directory `{prefix}…` in `TMPDIR` or in the current directory.
    /// `/tmp` is not used, because it is often in memory, where durability costs nothing and proves
    /// nothing.
    pub(crate) fn new(named: Option<&Path>, prefix: &str) -> Result<Self, Failure> {
        if let Some(dir) = named {
            braid_io::create_directory(dir).map_err(|error| {
                Failure::io(format_args!("cannot create {}", dir.display()), &error)
            })?;
            return Ok(Scratch::Named(dir.to_owned()));
        }
        let parent = match env::var_os("TMPDIR") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir),
            _ => env::current_dir()
                .map_err(|error| Failure::io("cannot find the current directory", &error))?,
        };
        Self::new_in(&parent, prefix)
    }

    /// Returns a new directory `{prefix}…` in another one.
    pub(crate) fn new_in(parent: &Path, prefix: &str) -> Result<Self, Failure> {
        match tempfile::Builder::new().prefix(prefix).tempdir_in(parent) {
            Ok(dir) => {
                let temporary = Temporary::new(dir.path());
                Ok(Scratch::Fresh(dir, temporary))
            }
            Err(error) => Err(Failure::io(
                format_args!(
                    "cannot create a temporary directory in {} (choose another place with --dir)",
                    parent.display()
                ),
                &error,
            )),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Scratch::Named(dir) => dir,
            Scratch::Fresh(dir, _) => dir.path(),
        }
    }

    /// Keeps a temporary directory permanently and returns its path.
    pub(crate) fn keep(self) -> Option<PathBuf> {
        match self {
            Scratch::Named(_) => None,
            Scratch::Fresh(dir, _) => Some(dir.keep()),
        }
    }

    /// Removes the directory, if it is temporary.
    pub(crate) fn remove(self) -> Result<(), Failure> {
        match self {
            Scratch::Named(_) => Ok(()),
            Scratch::Fresh(dir, _) => {
                let path = dir.path().to_owned();
                dir.close().or_else(|error| ignore_missing(&path, &error))
            }
        }
    }
}

fn ignore_missing(path: &Path, error: &io::Error) -> Result<(), Failure> {
    if error.kind() == io::ErrorKind::NotFound {
        return Ok(());
    }
    Err(Failure::io(
        format_args!("cannot remove {}", path.display()),
        error,
    ))
}

/// Tracks the directories and files that a command creates in a missing or empty directory, to
/// remove them if the command fails.
pub(crate) struct Made {
    dir: PathBuf,
    /// Highest missing directory; `None` if the directory exists.
    missing: Option<PathBuf>,
    was_empty: bool,
}

impl Made {
    /// Records what exists before a command creates anything.
    pub(crate) fn look(dir: &Path) -> Self {
        let above = dir.ancestors().filter(|path| !path.as_os_str().is_empty());
        let missing = above.take_while(|path| !path.exists()).last();
        let is_empty = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
        Made {
            dir: dir.to_owned(),
            missing: missing.map(Path::to_owned),
            was_empty: is_empty,
        }
    }

    /// Removes what the command created, and nothing that existed before. Ignores errors, because
    /// the command has already failed.
    pub(crate) fn remove(&self) {
        if let Some(missing) = &self.missing {
            let _ = fs::remove_dir_all(missing);
        } else if self.was_empty {
            let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
            for entry in entries {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
