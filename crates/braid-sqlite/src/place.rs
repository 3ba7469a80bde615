//! Where a database's log lies, and how it is mapped.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use braid_nvwal::CommitMode;
use braid_pmem::MapAs;

/// Names of logs in memory that a power failure empties.
const VOLATILE: &str = "/dev/shm";

/// Bytes of the longest block of a log.
const MOST_BLOCK_BYTES: u64 = 16 << 20;

/// When commits are durable: `braid_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) commits: CommitMode,
    /// Whether a commit leaves the wait for the device to `braid_wait`.
    pub(crate) is_ticket: bool,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let is_ticket = name == "ticket";
        let commits = match name {
            "ticket" => CommitMode::Checksum,
            name => name
                .parse()
                .map_err(|error| format!("{error}, or ticket"))?,
        };
        Ok(Self { commits, is_ticket })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ticket {
            f.write_str("ticket")
        } else {
            self.commits.fmt(f)
        }
    }
}

/// What a log keeps, for comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// `braid_pages`: whether every frame has the whole page.
    pub(crate) whole_pages: bool,
    /// `braid_block`: bytes of a block of a new log; by default what suits the memory.
    pub(crate) block_size: Option<u64>,
}

/// What the parameters of a database's URI say, or else the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// `braid_log`: a directory. By default the log lies next to the database.
    pub(crate) directory: Option<PathBuf>,
    /// `braid_memory`: how to map the log.
    pub(crate) map_as: Option<MapAs>,
    /// `braid_mode`; by default what suits the memory.
    pub(crate) mode: Option<Mode>,
    pub(crate) tuning: Tuning,
}

impl Tuning {
    fn read(parameter: impl Fn(&'static str) -> Option<String>) -> Result<Self, String> {
        let whole_pages = match parameter("braid_pages").as_deref() {
            None | Some("differences") => false,
            Some("whole") => true,
            Some(text) => {
                return Err(format!(
                    "braid_pages: {text:?} is neither differences nor whole"
                ));
            }
        };
        let block_size = match parameter("braid_block") {
            Some(text) => match text.parse() {
                Ok(bytes @ 128..=MOST_BLOCK_BYTES) if bytes % 64 == 0 => Some(bytes),
                _ => {
                    return Err(format!(
                        "braid_block: {text:?} is not a multiple of 64 from 128 to {MOST_BLOCK_BYTES}"
                    ));
                }
            },
            None => None,
        };
        Ok(Self {
            whole_pages,
            block_size,
        })
    }
}

impl Place {
    /// Reads the parameters with this function.
    pub(crate) fn read(parameter: impl Fn(&'static str) -> Option<String>) -> Result<Self, String> {
        let directory = parameter("braid_log").map(PathBuf::from);
        if let Some(directory) = &directory
            && !(directory.is_absolute() && directory.is_dir())
        {
            return Err(format!(
                "cannot open the log in {}: it is not an absolute path of a directory; create it, \
                 or change braid_log",
                directory.display()
            ));
        }
        let mut map_as = match parameter("braid_memory") {
            Some(name) => Some(
                name.parse::<MapAs>()
                    .map_err(|error| format!("braid_memory: {error}"))?,
            ),
            None => None,
        };
        if let Some(text) = parameter("braid_latency") {
            let line_latency = text
                .parse()
                .map_err(|_| format!("braid_latency: {text:?} is not a number of nanoseconds"))?;
            map_as = Some(MapAs::Emulated { line_latency });
        }
        let mode = match parameter("braid_mode") {
            Some(name) => Some(
                name.parse()
                    .map_err(|error| format!("braid_mode: {error}"))?,
            ),
            None => None,
        };
        Ok(Self {
            directory,
            map_as,
            mode,
            tuning: Tuning::read(parameter)?,
        })
    }

    /// Path of the log of a database.
    pub(crate) fn path(&self, database: &Path) -> PathBuf {
        let Some(directory) = &self.directory else {
            let mut path = database.as_os_str().to_owned();
            path.push("-braid");
            return PathBuf::from(path);
        };
        // Databases of one name in several directories have logs of their own.
        // FNV-1a
        let hash = database
            .as_os_str()
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let mut name = database.file_name().unwrap_or_default().to_owned();
        name.push(format!("-{hash:016x}.braid"));
        directory.join(name)
    }

    /// How to map the log at a path: emulated only if that is requested, or `/dev/shm` is named.
    pub(crate) fn map_as(&self, path: &Path) -> MapAs {
        match self.map_as {
            Some(map_as) => map_as,
            None if path.starts_with(VOLATILE) => MapAs::Emulated { line_latency: 0 },
            None => MapAs::Auto,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_select_the_place() {
        let of = |pairs: &'static [(&str, &str)]| {
            Place::read(|key| {
                let found = pairs.iter().find(|(name, _)| *name == key);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let database = Path::new("/a/b.db");
        assert_eq!(of(&[]).unwrap().path(database), Path::new("/a/b.db-braid"));
        assert_eq!(of(&[]).unwrap().map_as(database), MapAs::Auto);
        let shm = of(&[("braid_log", "/dev"), ("braid_mode", "checksum")]).unwrap();
        assert_eq!(
            shm.mode,
            Some(Mode {
                commits: CommitMode::Checksum,
                is_ticket: false
            })
        );
        let path = shm.path(database);
        assert!(path.starts_with("/dev") && path != shm.path(Path::new("/c/b.db")));
        assert_eq!(
            shm.map_as(Path::new("/dev/shm/x")),
            MapAs::Emulated { line_latency: 0 }
        );
        assert_eq!(
            of(&[("braid_latency", "437")]).unwrap().map_as(database),
            MapAs::Emulated { line_latency: 437 }
        );
        let tuned = of(&[("braid_pages", "whole"), ("braid_block", "4352")]).unwrap();
        assert_eq!(
            tuned.tuning,
            Tuning {
                whole_pages: true,
                block_size: Some(4352)
            }
        );
        for wrong in [
            &[("braid_log", "dev")][..],
            &[("braid_log", "/no/such/directory")],
            &[("braid_memory", "tape")],
            &[("braid_mode", "never")],
            &[("braid_latency", "fast")],
            &[("braid_pages", "half")],
            &[("braid_block", "100")],
            &[("braid_block", "0")],
        ] {
            let error = of(wrong).unwrap_err();
            assert!(error.contains(wrong[0].0), "{error}");
        }
    }
}
