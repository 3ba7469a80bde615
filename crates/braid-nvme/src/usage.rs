//! What the system uses a block device for.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of a block device, as `major:minor`.
fn number(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

/// The disk of a block device: itself, or the disk of a partition.
fn disk(number: &str) -> PathBuf {
    let own = PathBuf::from(format!("/sys/dev/block/{number}"));
    let own = own.canonicalize().unwrap_or(own);
    match own.parent() {
        Some(above) if own.join("partition").exists() => above.to_owned(),
        _ => own,
    }
}

/// The numbers of a disk and its partitions.
fn numbers(disk: &Path) -> Vec<String> {
    let number = |at: PathBuf| Some(fs::read_to_string(at).ok()?.trim().to_owned());
    let entries = fs::read_dir(disk).into_iter().flatten().flatten();
    let parts = entries
        .map(|entry| entry.path())
        .filter(|path| path.join("partition").exists());
    let all = parts.chain(std::iter::once(disk.to_owned()));
    all.filter_map(|path| number(path.join("dev"))).collect()
}

/// Describes all that uses a block device, its partitions, or the disk that it is a partition of:
/// mounts, swap space, and devices built on top. Empty if nothing is known.
pub(crate) fn of_block_device(path: &Path) -> Vec<String> {
    let Ok(metadata) = fs::metadata(path) else {
        return Vec::new();
    };
    let disk = disk(&number(metadata.rdev()));
    let numbers = numbers(&disk);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut uses = mounted(&mounts, &numbers);
    for line in swaps.lines().skip(1) {
        let swap = line.split_whitespace().next().unwrap_or_default();
        let device = fs::metadata(swap).map(|found| number(found.rdev()));
        if device.is_ok_and(|device| numbers.contains(&device)) {
            uses.push(format!("{swap} is swap space"));
        }
    }
    let parts = fs::read_dir(&disk).into_iter().flatten().flatten();
    let all = parts.map(|entry| entry.path()).chain([disk.clone()]);
    for part in all {
        for holder in fs::read_dir(part.join("holders"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let holder = holder.file_name();
            uses.push(format!("/dev/{} is built on it", holder.to_string_lossy()));
        }
    }
    uses
}

/// Returns whether the root file system is on the disk of a block device.
pub(crate) fn has_root(path: &Path) -> bool {
    let (Ok(metadata), Ok(root)) = (fs::metadata(path), fs::metadata("/")) else {
        return false;
    };
    has_device(&disk(&number(metadata.rdev())), &number(root.dev()), 0)
}

/// Whether a device is the disk, a partition of it, or is built on it.
fn has_device(disk: &Path, device: &str, depth: u32) -> bool {
    if depth > 8 {
        return false;
    }
    if numbers(disk).iter().any(|own| own == device) {
        return true;
    }
    let parts = fs::read_dir(disk).into_iter().flatten().flatten();
    let all = parts.map(|entry| entry.path()).chain([disk.to_owned()]);
    let holders = all.flat_map(|part| fs::read_dir(part.join("holders")).into_iter().flatten());
    holders.flatten().any(|holder| {
        let holder = holder.path().canonicalize().unwrap_or(holder.path());
        has_device(&holder, device, depth + 1)
    })
}

/// Returns what `/proc/self/mountinfo` says about devices.
fn mounted(mounts: &str, numbers: &[String]) -> Vec<String> {
    let lines = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device, _, at) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = numbers.iter().any(|number| number == device);
        is_it.then(|| format!("it is mounted at {at}"))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number() {
        let mounts = "21 98 0:20 / /sys rw,relatime - sysfs sysfs rw\n\
                      98 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
                      99 98 254:2 /sub /home rw - ext4 /dev/vda2 rw\n";
        let of = |numbers: &[&str]| {
            let numbers: Vec<String> = numbers.iter().map(|&number| number.into()).collect();
            mounted(mounts, &numbers)
        };
        assert_eq!(of(&["254:0", "254:2"]), ["it is mounted at /home"]);
        assert_eq!(of(&["254:1", "254:2"]).len(), 2);
        assert!(of(&["254:3"]).is_empty());
    }

    #[test]
    fn the_drive_of_the_root_file_system_is_recognised() {
        let root = number(fs::metadata("/").unwrap().dev());
        let Ok(at) = Path::new("/sys/dev/block").join(&root).canonicalize() else {
            return println!("SKIPPED: the root file system is on no block device");
        };
        let device = Path::new("/dev").join(at.file_name().unwrap());
        if !device.exists() {
            return println!("SKIPPED: {} does not exist", device.display());
        }
        assert!(has_root(&device));
        assert!(of_block_device(&device).contains(&"it is mounted at /".to_owned()));
        assert!(!has_root(Path::new("/dev/null")));
    }
}
