//! Regions in files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use super::{Mapping, Name, Path, Region, RegionError, RegionOptions, io};
#[cfg(target_os = "linux")]
use crate::bad_blocks;
use crate::claim::{Claim, Refused};
use crate::header::MAGIC;
use crate::mapped;

pub(super) fn create(
    path: &Path,
    len: u64,
    options: &RegionOptions,
    name: Name,
) -> Result<Region, RegionError> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).create_new(true);
    let file = open.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => RegionError::AlreadyExists(name.clone()),
        _ => system("create", &name)(source),
    })?;
    let created = fill(&file, path, len, options, &name);
    if created.is_err() {
        // This call created the file, and holds its lock or has not shown it to anybody.
        let _ = fs::remove_file(path);
    }
    created
}

fn fill(
    file: &File,
    path: &Path,
    len: u64,
    options: &RegionOptions,
    name: &Name,
) -> Result<Region, RegionError> {
    let claim = claim(file, false, name)?;
    let map = |source| RegionError::Map {
        name: name.clone(),
        source,
    };
    mapped::extend(file, len, options.map.prewritten).map_err(map)?;
    let file = file.try_clone().map_err(system("create", name))?;
    let mapping = Mapping::of_file(file, &options.map).map_err(map)?;
    let region = Region::write_new(mapping.claimed(claim), options, name.clone())?;
    sync_directory(path).map_err(system("create", name))?;
    Ok(region)
}

/// Makes the file's name durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

pub(super) fn open(
    path: &Path,
    options: &RegionOptions,
    name: Name,
) -> Result<Region, RegionError> {
    let mut open = OpenOptions::new();
    open.read(true).write(!options.map.read_only);
    let file = open.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => RegionError::NotFound(name.clone()),
        _ => system("open", &name)(source),
    })?;
    let metadata = file.metadata().map_err(system("open", &name))?;
    if !metadata.is_file() {
        return Err(RegionError::Foreign(name));
    }
    let claim = if options.map.read_only {
        None
    } else {
        Some(claim(&file, options.is_shared, &name)?)
    };
    if metadata.len() < Region::MIN_LEN {
        return Err(short(&file, metadata.len(), name));
    }
    #[cfg(target_os = "linux")]
    let lost = bad_blocks::of_file(&file);
    // The other systems have no such list.
    #[cfg(not(target_os = "linux"))]
    let lost = Vec::new();
    let mapping = Mapping::of_file(file, &options.map).map_err(|source| RegionError::Map {
        name: name.clone(),
        source,
    })?;
    for range in lost {
        mapping.record_damage(range);
    }
    let mapping = match claim {
        Some(claim) => mapping.claimed(claim),
        None => mapping,
    };
    Region::read(mapping, options, name)
}

/// Says what a file is that is too short for a region.
fn short(file: &File, found: u64, name: Name) -> RegionError {
    let mut magic = [0; MAGIC.len()];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) if magic == MAGIC => RegionError::TooSmall {
            name,
            found,
            needed: Region::MIN_LEN,
        },
        _ if found == 0 => RegionError::Unfinished(name),
        _ => RegionError::Foreign(name),
    }
}

fn claim(file: &File, is_shared: bool, name: &Name) -> Result<Claim, RegionError> {
    Claim::new(file, is_shared).map_err(|refused| match refused {
        Refused::ByThisProcess => RegionError::OpenHere(name.clone()),
        Refused::ByAnotherProcess => RegionError::OpenElsewhere(name.clone()),
        Refused::System(source) => system("lock", name)(source),
    })
}

fn system(action: &'static str, name: &Name) -> impl FnOnce(io::Error) -> RegionError {
    let name = name.clone();
    move |source| RegionError::System {
        action,
        name,
        source,
    }
}
