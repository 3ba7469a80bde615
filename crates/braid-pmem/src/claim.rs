//! Claims a file for one region: against other processes and other openings in this one.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode.
type FileId = (u64, u64);

/// The files that this process has claimed. A lock of the file alone does not tell which process
/// has it.
fn claimed() -> MutexGuard<'static, BTreeSet<FileId>> {
    static CLAIMED: Mutex<BTreeSet<FileId>> = Mutex::new(BTreeSet::new());
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A claimed file, until it is dropped. The file's lock ends when the file is closed.
#[derive(Debug)]
pub(crate) struct Claim(FileId);

/// Why a file cannot be claimed.
#[derive(Debug)]
pub(crate) enum Refused {
    ByThisProcess,
    ByAnotherProcess,
    System(io::Error),
}

impl Claim {
    /// Claims a file for one process, or, if `is_shared`, for one opening in each of several.
    pub(crate) fn new(file: &File, is_shared: bool) -> Result<Self, Refused> {
        let metadata = file.metadata().map_err(Refused::System)?;
        let id = (metadata.dev(), metadata.ino());
        // The lock is held meanwhile, so that of two threads one finds the other's claim.
        let mut claimed = claimed();
        if claimed.contains(&id) {
            return Err(Refused::ByThisProcess);
        }
        let locked = if is_shared {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        locked.map_err(|error| match error {
            TryLockError::WouldBlock => Refused::ByAnotherProcess,
            TryLockError::Error(error) => Refused::System(error),
        })?;
        claimed.insert(id);
        Ok(Self(id))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.0);
    }
}
