//! Claims a file for one region: against other processes and other openings in this one.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_rt::Process;

/// Device and inode.
type FileId = (u64, u64);

/// The files that this process has claimed. A lock of the file alone does not tell which process
/// has it.
fn claimed() -> MutexGuard<'static, BTreeSet<FileId>> {
    static CLAIMED: Mutex<BTreeSet<FileId>> = Mutex::new(BTreeSet::new());
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A claimed file, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    id: FileId,
    /// The file that was locked.
    file: File,
    process: Process,
}

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
        let file = file.try_clone().map_err(Refused::System)?;
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
        Ok(Self {
            id,
            file,
            process: Process::current(),
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = claimed();
        // A child process made by fork leaves the lock to its parent.
        if self.process.is_current() && !braid_rt::mutant!("unlock_a_region_by_closing") {
            // Closing the file would not suffice: a child process that is being started has it open,
            // too, and thereby the lock. An error is harmless, because the system releases the lock
            // with the last of these files.
            let _ = self.file.unlock();
        }
        claimed.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no file locks")]
    fn a_released_claim_is_free_although_its_file_is_open() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(named.path()).unwrap();
        for is_shared in [false, true] {
            let file = open();
            let claim = Claim::new(&file, is_shared).unwrap();
            let again = Claim::new(&open(), is_shared);
            assert!(matches!(again, Err(Refused::ByThisProcess)));
            // The file stays open, as in a child process between its start and its own program.
            drop(claim);
            drop(Claim::new(&open(), false).unwrap());
        }
    }
}
