//! What the process has used of the machine so far.

use std::time::Duration;

/// A reading of the process's resource counters; the difference of two is what a run used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time of all threads, in user mode and in the kernel.
    pub cpu: Duration,
    /// Bytes that the process caused to be written to storage (`write_bytes` of `/proc/self/io`);
    /// `None` where the system does not say.
    pub device_bytes: Option<u64>,
    /// Resident memory in bytes; `None` where the system does not say.
    pub resident: Option<u64>,
}

impl Usage {
    /// Reads the counters now.
    #[must_use]
    pub fn now() -> Self {
        Usage {
            cpu: cpu_time(),
            device_bytes: proc_field("/proc/self/io", "write_bytes:"),
            resident: proc_field("/proc/self/status", "VmRSS:").map(|kib| kib * 1024),
        }
    }
}

#[cfg(unix)]
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(t.tv_sec).unwrap_or(0),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    )
}

#[cfg(not(unix))]
fn cpu_time() -> Duration {
    Duration::ZERO
}

/// The number after `name` in a file of `name value` lines.
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
