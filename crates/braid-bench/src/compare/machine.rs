//! The machine that a comparison ran on, as the system describes it.

use std::fs;
use std::path::Path;

use braid_io::Topology;
use serde::{Deserialize, Serialize};

/// A machine. Unknown properties are `unknown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub processor: String,
    /// Numbers of processors, cores and NUMA nodes.
    pub topology: String,
    /// Size of main memory.
    pub memory: String,
    /// Kernel version.
    pub kernel: String,
    /// File system of the databases: type, device and options.
    pub file_system: String,
    /// Write cache mode of its block device.
    pub write_cache: String,
    /// Load averages of the last 1, 5 and 15 minutes at the start of the comparison.
    pub load: String,
}

impl Machine {
    /// Reads the properties of this machine, with the file system of the directory `dir`.
    #[must_use]
    pub fn read(dir: &Path) -> Self {
        let unknown = || "unknown".to_owned();
        let text = |path: &str| fs::read_to_string(path).ok();
        let field = |path: &str, name: &str| {
            let text = text(path)?;
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal").and_then(|memory| {
            let kib: f64 = memory.strip_suffix("kB")?.trim().parse().ok()?;
            Some(format!("{:.1} GiB", kib / f64::from(1 << 20)))
        });
        let mount = dir
            .canonicalize()
            .ok()
            .and_then(|dir| Mount::of(&dir, &text("/proc/self/mountinfo")?));
        let load = text("/proc/loadavg").map(|load| {
            load.split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(", ")
        });
        Machine {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            topology: Topology::read().to_string(),
            memory: memory.unwrap_or_else(unknown),
            kernel: text("/proc/sys/kernel/osrelease").map_or_else(unknown, |kernel| {
                format!("{} {}", std::env::consts::OS, kernel.trim())
            }),
            file_system: mount.as_ref().map_or_else(unknown, Mount::describe),
            write_cache: mount.and_then(|m| m.write_cache()).unwrap_or_else(unknown),
            load: load.unwrap_or_else(unknown),
        }
    }
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug)]
struct Mount {
    device: String,
    point: String,
    kind: String,
    source: String,
    options: String,
}

impl Mount {
    /// Returns the mount that contains `dir`: the longest mount point above it, the last of
    /// several.
    fn of(dir: &Path, mountinfo: &str) -> Option<Self> {
        mountinfo
            .lines()
            .filter_map(Mount::parse)
            .filter(|mount| dir.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.len())
    }

    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let mut after = after.split(' ');
        Some(Mount {
            device: before.next()?.to_owned(),
            point: before.nth(1)?.to_owned(),
            kind: after.next()?.to_owned(),
            source: after.next()?.to_owned(),
            options: before.next()?.to_owned(),
        })
    }

    fn describe(&self) -> String {
        format!("{} on {} ({})", self.kind, self.source, self.options)
    }

    /// Returns the write cache mode; a partition uses its disk's queue.
    fn write_cache(&self) -> Option<String> {
        let dir = Path::new("/sys/dev/block").join(&self.device);
        let read = |dir: &Path| fs::read_to_string(dir.join("queue/write_cache")).ok();
        let cache = read(&dir).or_else(|| read(dir.canonicalize().ok()?.parent()?))?;
        Some(cache.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let info = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
30 22 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1g\n\
31 22 254:16 / /data/fast rw - xfs /dev/vdb rw\n";
        let of = |dir: &str| Mount::of(Path::new(dir), info).unwrap().describe();
        assert_eq!(of("/home/x"), "ext4 on /dev/vda (rw,relatime)");
        assert_eq!(of("/tmp"), "tmpfs on tmpfs (rw,nosuid)");
        assert_eq!(of("/data/fast/db"), "xfs on /dev/vdb (rw)");
        assert_eq!(of("/data/faster"), "ext4 on /dev/vda (rw,relatime)");
    }

    #[test]
    fn this_machine_has_processors() {
        let machine = Machine::read(Path::new("."));
        assert!(!machine.topology.is_empty());
        assert!(!machine.kernel.is_empty());
    }
}
