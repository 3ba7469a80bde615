//! The files that hold logs. Tests put simulated memory in their place.

use std::io;
use std::path::Path;

use braid_nvwal::LogOptions;
use braid_pmem::{Region, RegionError, RegionOptions};

#[cfg(test)]
use crate::simulation;

/// Most bytes that a log takes.
const MAX_BYTES: u64 = 63 << 30;

/// Options of a new log. Simulated ones are small.
pub(crate) fn log_options(path: &Path) -> LogOptions {
    let options = LogOptions::default().max_bytes(MAX_BYTES);
    #[cfg(test)]
    if simulation::disk_of(path).is_some() {
        return options.block_size(2048).max_bytes(simulation::LOG_BYTES);
    }
    let _ = path;
    options
}

/// Creates a region of the least length.
pub(crate) fn create(path: &Path, options: &RegionOptions) -> Result<Region, RegionError> {
    #[cfg(test)]
    if let Some(disk) = simulation::disk_of(path) {
        return disk.create_region(path, options);
    }
    Region::create(path, Region::MIN_LEN, options)
}

/// Opens a region that other processes may have open.
pub(crate) fn join(path: &Path, options: &RegionOptions) -> Result<Region, RegionError> {
    #[cfg(test)]
    if let Some(disk) = simulation::disk_of(path) {
        return disk.open_region(path, options);
    }
    Region::open(path, options)
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    if let Some(disk) = simulation::disk_of(from) {
        return disk.rename_region(from, to);
    }
    std::fs::rename(from, to)
}

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    if let Some(disk) = simulation::disk_of(path) {
        return disk.remove_region(path);
    }
    std::fs::remove_file(path)
}

pub(crate) fn exists(path: &Path) -> bool {
    #[cfg(test)]
    if let Some(disk) = simulation::disk_of(path) {
        return disk.has_region(path);
    }
    path.exists()
}
