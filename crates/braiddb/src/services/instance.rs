//! An open database: the engine, and the services around it.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use braid_io::{DeviceChoice, Gate};
use braid_log::{Log, SeqNo};
use braid_store::Store;

use super::archive::{ArchiveWriter, Archiver};
use super::checkpoint_state::Checkpoints;
use super::copies::Copies;
use super::notifier::Notifier;
use super::publish::Publisher;
use super::readers::{Readers, View};
use super::retention::Retention;
use super::threads::Maintenance;
use super::ttl::Sweeps;
use crate::base::remote_access::{Hook, RemoteAccess};
use crate::catalog::list_tables;
use crate::engine::spaces::Spaces;
use crate::engine::{Engine, EngineParts, Tables};
use crate::format::meta::Meta;
use crate::observe::recovery::RecoveryReport;
use crate::options::{Builder, LogPlace};
use crate::read::named::NamedSnapshots;
use crate::schema::table::{Identity, TableCore};

/// The state that all handles of an open database share.
pub(crate) struct Instance {
    pub(crate) engine: Arc<Engine>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) maintenance: Maintenance,
    pub(crate) retention: Retention,
    pub(crate) archive: ArchiveWriter,
    pub(crate) copies: Copies,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) named: NamedSnapshots,
    pub(crate) sweeps: Sweeps,
    pub(crate) publisher: Publisher,
    /// Readers in other processes, if this process writes.
    pub(crate) readers: Option<Arc<Readers>>,
    /// The source of the state, if the database is read-only.
    pub(crate) view: OnceLock<View>,
    pub(crate) files: Files,
    pub(crate) recovery: RecoveryReport,
}

/// The files of an open database.
pub(crate) struct Files {
    /// I9: every operation on a file passes the gate, and closing shuts it.
    pub(crate) gate: Gate,
    /// The database's directory, with links resolved; `None` on a device.
    pub(crate) directory: Option<PathBuf>,
    /// The directory of the log, if it is another one.
    pub(crate) log: Option<LogPlace>,
    pub(crate) mode: u32,
    pub(crate) defaults: SpaceDefaults,
}

/// Options of the opening that also apply to a tablespace that is created later.
#[derive(Debug)]
pub(crate) struct SpaceDefaults {
    pub(crate) device: DeviceChoice,
    pub(crate) numa: bool,
    pub(crate) remote_access: RemoteAccess,
    pub(crate) agent_hook: Hook,
    pub(crate) pmem_lines: bool,
    pub(crate) pmem_in_place: bool,
}

/// Components of an open database.
pub(crate) struct Parts {
    pub(crate) log: Log,
    pub(crate) store: Store,
    pub(crate) spaces: Spaces,
    pub(crate) meta: Meta,
    pub(crate) catalog: Arc<TableCore>,
    pub(crate) retention: Retention,
    pub(crate) copies: Copies,
    pub(crate) archiver: Option<Archiver>,
    pub(crate) opened_at: SeqNo,
    pub(crate) identity: Identity,
    pub(crate) recovery: RecoveryReport,
    pub(crate) gate: Gate,
    pub(crate) readers: Option<Arc<Readers>>,
}

impl Instance {
    /// Assembles an open database.
    pub(crate) fn new(parts: Parts, options: &Builder) -> Arc<Self> {
        let archive = ArchiveWriter::new(parts.archiver, options.archive_interval);
        let engine = EngineParts {
            log: parts.log,
            store: parts.store,
            spaces: parts.spaces,
            tables: Tables::new(parts.catalog, parts.identity, list_tables),
            lock_release: parts.meta.protocol.lock_release(),
            opened_at: parts.opened_at,
            archive_error: archive.error(),
        };
        Arc::new(Self {
            engine: Engine::new(engine, options),
            checkpoints: Checkpoints::new(parts.meta, options.checkpoint_log_bytes),
            maintenance: Maintenance::default(),
            retention: parts.retention,
            archive,
            copies: parts.copies,
            notifier: Arc::default(),
            named: NamedSnapshots::default(),
            sweeps: Sweeps::default(),
            publisher: Publisher::new(options),
            readers: parts.readers,
            view: OnceLock::new(),
            files: Files {
                gate: parts.gate,
                directory: options.directory.clone(),
                log: options.log_place.clone(),
                mode: options.file_mode,
                defaults: SpaceDefaults {
                    device: options.device,
                    numa: options.numa,
                    remote_access: options.remote_access,
                    agent_hook: options.agent_hook.clone(),
                    pmem_lines: options.pmem_lines,
                    pmem_in_place: options.pmem_in_place,
                },
            },
            recovery: parts.recovery,
        })
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("meta", &self.checkpoints.meta)
            .finish_non_exhaustive()
    }
}
