//! The engines by name: their abilities, whether this build has them, and how to open one.

use std::path::Path;
use std::sync::OnceLock;

use super::{Abilities, KvEngine, braid};
use crate::BenchError;

type Open = fn(&Path, &[&str], usize) -> Result<Box<dyn KvEngine>, BenchError>;

/// An engine that can be measured, or why it cannot be measured.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// Abilities of the engine.
    pub abilities: Abilities,
    /// Version of the linked library or of the program that was found; or a note that says what
    /// this build or this machine lacks.
    pub version: Result<String, String>,
}

/// Returns all engines, Braid first.
#[must_use]
pub fn peers() -> &'static [PeerInfo] {
    static PEERS: OnceLock<Vec<PeerInfo>> = OnceLock::new();
    PEERS.get_or_init(|| {
        ROWS.iter()
            .map(|row| PeerInfo {
                name: row.name,
                about: row.about,
                abilities: row.abilities,
                version: row.part.version(),
            })
            .collect()
    })
}

/// Opens the engine called `name` in the directory `dir`, which is created if it is missing, with
/// the tables called `tables`, which are created, too. What an earlier run left in `dir` is still
/// there, if the tables are the same in the same order.
///
/// `cache_bytes` is the memory for the engine's own cache, in bytes; an engine that leaves caching
/// to the system ignores it. All other settings are those that the engine's documentation advises,
/// see docs/peers.md, and every commit is durable. Dropping the engine closes it, and stops a
/// server that was started for it.
///
/// # Errors
/// [`BenchError::UnknownEngine`] and [`BenchError::Unavailable`], which say what there is and what
/// to do, and the engine's own.
///
/// # Examples
/// ```
/// use braid_bench::engines::{Mode, Wait};
///
/// let dir = tempfile::tempdir()?;
/// let engine = braid_bench::engines::open("braid", dir.path(), &["accounts"], 16 << 20)?;
/// engine.session()?.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| tx.put(0, b"alice", b"7"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(
    name: &str,
    dir: &Path,
    tables: &[&str],
    cache_bytes: usize,
) -> Result<Box<dyn KvEngine>, BenchError> {
    let (row, _) = row(name)?;
    match row.part {
        Part::Here { open, .. } => {
            // A server has another working directory.
            let dir = std::path::absolute(dir)
                .and_then(|dir| std::fs::create_dir_all(&dir).map(|()| dir))
                .map_err(|error| BenchError::io("cannot create the engine's directory", error))?;
            open(&dir, tables, cache_bytes)
        }
        _ => unreachable!("the engine has a version, so this build has it"),
    }
}

/// Returns the version of the engine called `name`, which can be opened here.
///
/// # Errors
/// [`BenchError::UnknownEngine`] and [`BenchError::Unavailable`].
pub fn find(name: &str) -> Result<String, BenchError> {
    row(name).map(|(_, version)| version)
}

fn row(name: &str) -> Result<(&'static Row, String), BenchError> {
    let row = ROWS.iter().find(|row| row.name == name).ok_or_else(|| {
        let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        BenchError::UnknownEngine {
            name: name.to_owned(),
            known: known.join(", "),
        }
    })?;
    let version = row.part.version();
    let version = version.map_err(|note| BenchError::Unavailable {
        name: row.name,
        note,
    })?;
    Ok((row, version))
}

struct Row {
    name: &'static str,
    about: &'static str,
    abilities: Abilities,
    part: Part,
}

/// The part of an engine that this build has; the variants depend on its features.
#[allow(dead_code)]
enum Part {
    Here {
        /// Returns the version, or which program is missing.
        version: fn() -> Result<String, String>,
        open: Open,
    },
    /// The feature was not selected.
    NoFeature(&'static str),
    /// The feature was selected, but the machine of the build lacks the library, which is in this
    /// Debian package.
    NoLibrary(&'static str),
    /// The server is reached by a Unix socket, which this system does not have.
    NotUnix,
}

impl Part {
    fn version(&self) -> Result<String, String> {
        match self {
            Part::Here { version, .. } => version(),
            Part::NoFeature(feature) => Err(format!(
                "built without it; build with `--features peers`, or `--features braid-bench/{feature}` for this one"
            )),
            Part::NotUnix => Err("it is reached by a Unix socket only".to_owned()),
            Part::NoLibrary(package) => Err(format!(
                "built where its library is missing; install {package} and build again"
            )),
        }
    }
}

/// The engine of a module, if this build has its feature.
macro_rules! part {
    ($module:ident, $feature:literal) => {{
        #[cfg(feature = $feature)]
        let part = Part::Here {
            version: super::$module::version,
            open: super::$module::open,
        };
        #[cfg(not(feature = $feature))]
        let part = Part::NoFeature($feature);
        part
    }};
}

/// The engine of a module, if this build has its feature and is for a system with Unix sockets.
macro_rules! server_part {
    ($module:ident, $feature:literal) => {{
        #[cfg(all(feature = $feature, unix))]
        let part = Part::Here {
            version: super::$module::version,
            open: super::$module::open,
        };
        #[cfg(all(feature = $feature, not(unix)))]
        let part = Part::NotUnix;
        #[cfg(not(feature = $feature))]
        let part = Part::NoFeature($feature);
        part
    }};
}

/// The engine of a module with this opener, if this build has its feature and found its library.
macro_rules! system_part {
    ($module:ident, $open:ident, $feature:literal, $found:ident, $package:literal) => {{
        #[cfg(all(feature = $feature, $found))]
        let part = Part::Here {
            version: super::$module::version,
            open: super::$module::$open,
        };
        #[cfg(all(feature = $feature, not($found)))]
        let part = Part::NoLibrary($package);
        #[cfg(not(feature = $feature))]
        let part = Part::NoFeature($feature);
        part
    }};
}

static ROWS: [Row; 12] = [
    Row {
        name: "braid",
        about: "this project: B+-tree, optimistic transactions, parallel log",
        abilities: braid::ABILITIES,
        part: Part::Here {
            version: || Ok(env!("CARGO_PKG_VERSION").to_owned()),
            open: braid::open,
        },
    },
    Row {
        name: "redb",
        about: "copy-on-write B-tree, one writer",
        abilities: Abilities::SERIALIZABLE,
        part: part!(redb, "peer-redb"),
    },
    Row {
        name: "fjall",
        about: "LSM-tree, optimistic transactions",
        abilities: Abilities::SERIALIZABLE,
        part: part!(fjall, "peer-fjall"),
    },
    Row {
        name: "lmdb",
        about: "memory-mapped copy-on-write B+-tree, one writer",
        abilities: Abilities::SERIALIZABLE,
        part: part!(lmdb, "peer-lmdb"),
    },
    Row {
        name: "sqlite",
        about: "SQL, B-tree with a write-ahead log, one writer",
        abilities: Abilities::SERIALIZABLE,
        part: part!(sqlite, "peer-sqlite"),
    },
    Row {
        name: "rocksdb",
        about: "LSM-tree, atomic batches without isolation, group commit",
        abilities: Abilities::BATCHES,
        part: system_part!(
            rocksdb,
            open,
            "peer-rocksdb",
            peer_rocksdb,
            "librocksdb-dev"
        ),
    },
    Row {
        name: "rocksdb-txn",
        about: "the same with pessimistic transactions (TransactionDB)",
        abilities: Abilities::UPDATES,
        part: system_part!(
            rocksdb,
            open_transactional,
            "peer-rocksdb",
            peer_rocksdb,
            "librocksdb-dev"
        ),
    },
    Row {
        name: "wiredtiger",
        about: "B-tree, snapshot isolation, log synced by fdatasync",
        abilities: Abilities::UPDATES,
        part: system_part!(
            wiredtiger,
            open,
            "peer-wiredtiger",
            peer_wiredtiger,
            "libwiredtiger-dev"
        ),
    },
    Row {
        name: "wiredtiger-dsync",
        about: "the same, log written with O_DSYNC",
        abilities: Abilities::UPDATES,
        part: system_part!(
            wiredtiger,
            open_dsync,
            "peer-wiredtiger",
            peer_wiredtiger,
            "libwiredtiger-dev"
        ),
    },
    Row {
        name: "redis",
        about: "server in memory with an append-only file, one thread",
        abilities: Abilities::KEYS,
        part: server_part!(redis, "peer-redis"),
    },
    Row {
        name: "raft-engine",
        about: "a log alone with group commit, nothing to read",
        abilities: Abilities::LOG,
        part: part!(raft_engine, "peer-raft-engine"),
    },
    Row {
        name: "postgres",
        about: "SQL server, serializable snapshot isolation, group commit",
        abilities: Abilities::SERIALIZABLE,
        part: server_part!(postgres, "peer-postgres"),
    },
];
