//! The directory that a command works in.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::failure::Failure;

/// A directory for a database: the one that the user named, or a fresh one that goes away again.
pub(crate) enum Scratch {
    Named(PathBuf),
    Fresh(TempDir),
}

impl Scratch {
    /// `named`, or a fresh directory `{prefix}…` in `TMPDIR` or else in the current directory: the
    /// usual `/tmp` is often memory, where durability costs nothing and proves nothing.
    pub(crate) fn new(named: Option<&Path>, prefix: &str) -> Result<Self, Failure> {
        if let Some(dir) = named {
            std::fs::create_dir_all(dir).map_err(|error| {
                Failure::io(format_args!("cannot create {}", dir.display()), &error)
            })?;
            return Ok(Scratch::Named(dir.to_owned()));
        }
        let parent = match env::var_os("TMPDIR") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir),
            _ => env::current_dir()
                .map_err(|error| Failure::io("cannot find the current directory", &error))?,
        };
        let fresh = tempfile::Builder::new().prefix(prefix).tempdir_in(&parent);
        match fresh {
            Ok(dir) => Ok(Scratch::Fresh(dir)),
            Err(error) => Err(Failure::io(
                format_args!(
                    "cannot create a temporary directory in {} (--dir names another place)",
                    parent.display()
                ),
                &error,
            )),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Scratch::Named(dir) => dir,
            Scratch::Fresh(dir) => dir.path(),
        }
    }

    /// Keeps a fresh directory for good and says where it is.
    pub(crate) fn keep(self) -> Option<PathBuf> {
        match self {
            Scratch::Named(_) => None,
            Scratch::Fresh(dir) => Some(dir.keep()),
        }
    }

    /// Removes the directory if it is a fresh one.
    pub(crate) fn remove(self) -> Result<(), Failure> {
        match self {
            Scratch::Named(_) => Ok(()),
            Scratch::Fresh(dir) => {
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
