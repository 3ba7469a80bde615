//! Logs of tablespaces in places of their own, which may be on other devices than their data files.
//!
//! The list names the place, and a note there names the tablespace and the database. A tablespace's device is
//! then one of both places: files of the log, and this note, are in the log's.

use std::path::PathBuf;
use std::sync::Arc;

use braid_io::{Device, DeviceChoice, DirectoryLock, SplitDevice};

use super::owner::LOG_OWNER_FILE;
use super::place::Attached;
use crate::format::space::ListedLog;

/// The place of a tablespace's log, opened.
pub(crate) struct AttachedLog {
    pub(crate) device: Arc<dyn Device>,
    /// The directory; `None` on a device of the caller.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) access: DeviceChoice,
    pub(crate) lock: Option<DirectoryLock>,
}

impl AttachedLog {
    /// Returns the place as the list has it.
    pub(super) fn listed(&self) -> ListedLog {
        ListedLog {
            directory: self.directory.clone().unwrap_or_default(),
            access: self.access,
        }
    }
}

/// Whether a file of a tablespace is in the place of its log.
fn is_of_log(name: &str) -> bool {
    braid_log::is_log_name(name) || name.strip_suffix(".new").unwrap_or(name) == LOG_OWNER_FILE
}

/// Combines the places of a tablespace's data and of its log.
pub(super) fn join(data: Attached, log: Attached) -> Attached {
    if braid_rt::mutant!("keep_logs_with_the_data") {
        return data;
    }
    let split = |data: Arc<dyn Device>, log: Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(SplitDevice::new(data, log, is_of_log))
    };
    Attached {
        device: split(data.device, log.device.clone()),
        base: split(data.base, log.base),
        log: Some(Ok(AttachedLog {
            device: log.device,
            directory: log.directory,
            access: log.access,
            lock: log.lock,
        })),
        ..data
    }
}
