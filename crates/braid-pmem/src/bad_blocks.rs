//! The parts of a file that Linux knows to be lost: its device's list of bad blocks.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use self::fiemap::extents;

/// Bytes of a sector in the kernel's list.
const SECTOR: u64 = 512;

/// Returns the lost ranges of a file, in bytes. Nothing is known of file systems without a device of
/// their own, or that do not tell where a file lies; there, an access shows the loss.
pub(crate) fn of_file(file: &File) -> Vec<Range<u64>> {
    lost_in(Path::new("/sys/dev/block"), file).unwrap_or_default()
}

fn lost_in(devices: &Path, file: &File) -> io::Result<Vec<Range<u64>>> {
    let device = file.metadata()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let lost = of_device(&devices.join(format!("{major}:{minor}")))?;
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    Ok(within_file(&lost, &extents(file)?))
}

/// Reads the lost ranges of a block device, in bytes from its start. A partition has no list: that
/// of its disk counts from the disk's start.
fn of_device(device: &Path) -> io::Result<Vec<Range<u64>>> {
    // The path is a link into the tree of devices, in which the parent is the disk.
    let device = fs::canonicalize(device)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(io::Error::other);
    let (list, first) = if device.join("partition").exists() {
        let first = number(&fs::read_to_string(device.join("start"))?)?;
        (device.join("../badblocks"), first)
    } else {
        (device.join("badblocks"), 0)
    };
    let mut lost = Vec::new();
    for line in fs::read_to_string(list)?.lines() {
        let Some((sector, count)) = line.trim().split_once(' ') else {
            continue;
        };
        let (sector, count) = (number(sector)?, number(count)?);
        let start = sector.max(first) - first;
        let end = (sector + count).max(first) - first;
        if start < end {
            lost.push(start * SECTOR..end * SECTOR);
        }
    }
    Ok(lost)
}

/// A part of a file that lies at one place of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    offset: u64,
    on_device: u64,
    len: u64,
}

/// Returns the parts of a file that lie in ranges of its device.
fn within_file(lost: &[Range<u64>], extents: &[Extent]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for extent in extents {
        for lost in lost {
            let start = lost.start.max(extent.on_device);
            let end = lost.end.min(extent.on_device + extent.len);
            if start < end {
                let at = |on_device: u64| on_device - extent.on_device + extent.offset;
                ranges.push(at(start)..at(end));
            }
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges
}

mod fiemap {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    use super::Extent;

    const FS_IOC_FIEMAP: u32 = 0xc020_660b;
    const FLAG_SYNC: u32 = 1;
    const EXTENT_LAST: u32 = 1;
    const EXTENT_UNKNOWN: u32 = 2;
    const AT_ONCE: usize = 64;

    /// `struct fiemap_extent` of `linux/fiemap.h`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Found {
        logical: u64,
        physical: u64,
        length: u64,
        reserved: [u64; 2],
        flags: u32,
        reserved_2: [u32; 3],
    }

    /// `struct fiemap`, with room for extents.
    #[repr(C)]
    struct Request {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        extents: [Found; AT_ONCE],
    }

    /// Asks the file system where a file lies.
    pub(super) fn extents(file: &File) -> io::Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut start = 0;
        loop {
            let mut request = Request {
                start,
                length: u64::MAX - start,
                flags: FLAG_SYNC,
                mapped: 0,
                count: u32::try_from(AT_ONCE).expect("a small number"),
                reserved: 0,
                extents: [Found::default(); AT_ONCE],
            };
            // SAFETY: the request has the kernel's layout and says how many extents fit.
            let result = unsafe {
                libc::ioctl(
                    file.as_raw_fd(),
                    FS_IOC_FIEMAP as _,
                    std::ptr::from_mut(&mut request),
                )
            };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            let count = usize::try_from(request.mapped).unwrap_or(AT_ONCE);
            let found = &request.extents[..count.min(AT_ONCE)];
            for found in found
                .iter()
                .filter(|found| found.flags & EXTENT_UNKNOWN == 0)
            {
                extents.push(Extent {
                    offset: found.logical,
                    on_device: found.physical,
                    len: found.length,
                });
            }
            match found.last() {
                Some(last) if last.flags & EXTENT_LAST == 0 => start = last.logical + last.length,
                _ => return Ok(extents),
            }
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges may have one"
)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bad_blocks_of_a_disk_and_a_partition_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("pmem0");
        let partition = disk.join("pmem0p1");
        fs::create_dir_all(&partition).unwrap();
        fs::write(disk.join("badblocks"), "").unwrap();
        assert_eq!(of_device(&disk).unwrap(), []);
        fs::write(disk.join("badblocks"), "10 2\n2050 8\n").unwrap();
        assert_eq!(
            of_device(&disk).unwrap(),
            [5120..6144, 2050 * 512..2058 * 512]
        );
        fs::write(partition.join("partition"), "1\n").unwrap();
        fs::write(partition.join("start"), "2052\n").unwrap();
        assert_eq!(of_device(&partition).unwrap(), [0..6 * 512]);
        assert!(of_device(&disk.join("none")).is_err());
        fs::write(disk.join("badblocks"), "ten 2\n").unwrap();
        assert!(of_device(&disk).is_err());
    }

    #[test]
    fn bad_blocks_are_found_in_the_file() {
        let extent = |offset, on_device, len| Extent {
            offset,
            on_device,
            len,
        };
        let extents = [extent(0, 8192, 4096), extent(4096, 100 << 12, 8192)];
        let within = |start, end| within_file(&[start..end], &extents);
        assert_eq!(within(0, 8192), []);
        assert_eq!(within(8192 + 512, 8192 + 1024), [512..1024]);
        assert_eq!(within(0, 9000), [0..808]);
        assert_eq!(within((100 << 12) + 4096, 200 << 12), [8192..12288]);
        assert_eq!(within(0, u64::MAX), [0..4096, 4096..12288]);
    }

    #[test]
    fn the_file_system_tells_where_a_file_lies() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 1 << 16]).unwrap();
        file.sync_all().unwrap();
        match extents(&file) {
            Ok(extents) => {
                let bytes: u64 = extents.iter().map(|extent| extent.len).sum();
                assert!(bytes >= 1 << 16, "{extents:?}");
                assert_eq!(extents[0].offset, 0);
            }
            // For example in memory.
            Err(error) => println!("no extents: {error}"),
        }
        // No device of the machine that runs tests is expected to be broken here.
        assert_eq!(of_file(&file), []);
    }
}
