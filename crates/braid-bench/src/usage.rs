//! Resources used by the process.

use std::time::Duration;

/// Values of the process's resource counters; a run used the difference of two readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time of all threads, in user mode and in the kernel.
    pub cpu: Duration,
    /// Bytes that the process caused to be written to storage (`write_bytes` of `/proc/self/io`);
    /// `None` if the system does not report them. Linux counts whole folios of its page cache when
    /// they become dirty. So small writes into a file that was once written in large ones count as
    /// up to 256 KiB each, although only the changed blocks reach the device (PostgreSQL's log is
    /// such a file). Direct I/O is counted exactly.
    pub device_bytes: Option<u64>,
    /// Bytes that the process caused to be read from storage (`read_bytes` of `/proc/self/io`);
    /// `None` if the system does not report them. Reads from the page cache do not count.
    pub device_read_bytes: Option<u64>,
    /// Resident memory in bytes; `None` if the system does not report it.
    pub resident: Option<u64>,
}

impl Usage {
    /// Reads the current counters.
    #[must_use]
    pub fn now() -> Self {
        Usage {
            cpu: cpu_time(),
            device_bytes: proc_field("/proc/self/io", "write_bytes:"),
            device_read_bytes: proc_field("/proc/self/io", "read_bytes:"),
            resident: proc_field("/proc/self/status", "VmRSS:").map(|kib| kib * 1024),
        }
    }

    /// Adds the resources of a server, if there is one.
    pub(crate) fn with_server(self, server: Option<Usage>) -> Self {
        let Some(server) = server else {
            return self;
        };
        let both = |own: Option<u64>, its: Option<u64>| Some(own? + its?);
        Usage {
            cpu: self.cpu + server.cpu,
            device_bytes: both(self.device_bytes, server.device_bytes),
            device_read_bytes: both(self.device_read_bytes, server.device_read_bytes),
            resident: both(self.resident, server.resident),
        }
    }
}

/// Resources of servers.
#[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
impl Usage {
    /// Reads the resources of a process and its children, including children that have ended.
    /// Memory that they share is counted once.
    pub(crate) fn of_server(server: u32) -> Self {
        let mut cpu_ticks = 0;
        let (mut device_bytes, mut device_read_bytes, mut resident) = (None, None, None);
        for (pid, stat) in processes() {
            let Some(stat) = parse_stat(&stat) else {
                continue;
            };
            if pid != server && stat.parent != server {
                continue;
            }
            cpu_ticks += stat.cpu_ticks;
            let proc = format!("/proc/{pid}");
            let written = proc_field(&format!("{proc}/io"), "write_bytes:");
            let share = proc_field(&format!("{proc}/smaps_rollup"), "Pss:");
            device_bytes = sum(device_bytes, written);
            let read = proc_field(&format!("{proc}/io"), "read_bytes:");
            device_read_bytes = sum(device_read_bytes, read);
            resident = sum(resident, share.map(|kib| kib * 1024));
        }
        let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
        Usage {
            cpu: Duration::from_millis(cpu_ticks.saturating_mul(1000) / ticks_per_s),
            device_bytes,
            device_read_bytes,
            resident,
        }
    }
}

#[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
fn sum(left: Option<u64>, right: Option<u64>) -> Option<u64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left + right),
        (either, None) | (None, either) => either,
    }
}

/// Returns all processes with the text of their `stat`; none if the system does not report them.
#[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, stat))
    })
}

/// Used fields of `/proc/PID/stat`, see proc(5).
#[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    /// Time in user mode and in the kernel, of the process and of its children that have ended.
    cpu_ticks: u64,
}

#[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
fn parse_stat(text: &str) -> Option<Stat> {
    // The program's name, in parentheses, may contain anything.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let ticks: Vec<u64> = fields
        .skip(9)
        .take(4)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    (ticks.len() == 4).then(|| Stat {
        parent,
        cpu_ticks: ticks.iter().sum(),
    })
}

#[cfg(unix)]
fn cpu_time() -> Duration {
    clock(rustix::time::ClockId::ProcessCPUTime)
}

/// Returns the processor time of the calling thread; `None` if the system does not report it.
#[cfg(unix)]
#[allow(clippy::unnecessary_wraps)] // the other systems' signature
pub(crate) fn thread_cpu_time() -> Option<Duration> {
    Some(clock(rustix::time::ClockId::ThreadCPUTime))
}

#[cfg(unix)]
fn clock(id: rustix::time::ClockId) -> Duration {
    let t = rustix::time::clock_gettime(id);
    Duration::new(
        u64::try_from(t.tv_sec).unwrap_or(0),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    )
}

#[cfg(not(unix))]
fn cpu_time() -> Duration {
    Duration::ZERO
}

#[cfg(not(unix))]
pub(crate) fn thread_cpu_time() -> Option<Duration> {
    None
}

/// Returns the number after `name` in a file of `name value` lines.
fn proc_field(path: &str, name: &str) -> Option<u64> {
    parse_field(&std::fs::read_to_string(path).ok()?, name)
}

fn parse_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_whole_name() {
        let text = "cancelled_write_bytes: 7\nwrite_bytes: 4096\nVmRSS:\t  12 kB\n";
        assert_eq!(parse_field(text, "write_bytes:"), Some(4096));
        assert_eq!(parse_field(text, "VmRSS:"), Some(12));
        assert_eq!(parse_field(text, "read_bytes:"), None);
    }

    #[test]
    #[cfg(all(any(feature = "peer-postgres", feature = "peer-redis"), unix))]
    fn a_process_is_identified_by_its_stat() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 100 20 3 1000 20 0 1 0 5";
        let stat = Stat {
            parent: 7,
            cpu_ticks: 1123,
        };
        assert_eq!(parse_stat(text), Some(stat));
        assert_eq!(parse_stat("42 (a) S 7"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg(any(feature = "peer-postgres", feature = "peer-redis"))]
    fn a_server_s_use_is_at_least_ours() {
        let here = Usage::of_server(std::process::id());
        assert!(here.resident.is_some_and(|bytes| bytes > 0));
        assert_eq!(Usage::of_server(u32::MAX).resident, None);
    }

    #[test]
    #[cfg(unix)]
    fn processor_time_advances_with_work() {
        let before = Usage::now().cpu;
        let mut x = 1_u64;
        while Usage::now().cpu == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(Usage::now().cpu > before);
    }
}
