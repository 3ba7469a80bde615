//! What the system says about this process, for INFO. `None` where there is no `/proc`.

use std::fs::read_to_string;

/// Ticks of a second in `/proc`, the same on every Linux.
const TICKS: f64 = 100.0;

/// Returns the number of kibibytes on the line with this name.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the bytes of memory that the process occupies.
pub(crate) fn resident_memory() -> Option<u64> {
    let status = read_to_string("/proc/self/status").ok()?;
    Some(kibibytes(&status, "VmRSS:")? << 10)
}

/// Returns the bytes of memory of the machine.
pub(crate) fn total_memory() -> Option<u64> {
    let memory = read_to_string("/proc/meminfo").ok()?;
    Some(kibibytes(&memory, "MemTotal:")? << 10)
}

/// Returns the processor time of the process in its own code and in the system's.
pub(crate) fn processor_seconds() -> Option<(f64, f64)> {
    parse_times(&read_to_string("/proc/self/stat").ok()?)
}

/// Parses `/proc/self/stat`, whose second field is a name that may contain anything.
fn parse_times(stat: &str) -> Option<(f64, f64)> {
    let fields = &stat[stat.rfind(')')? + 1..];
    let mut times = fields.split_whitespace().skip(11);
    let mut next = || -> Option<f64> { times.next()?.parse().ok() };
    Some((next()? / TICKS, next()? / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_proc_are_found() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        assert_eq!(parse_times(stat), Some((2.5, 0.5)));
        assert_eq!(parse_times("7 (a"), None);
        assert_eq!(kibibytes("A: 1 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(kibibytes("A: 1 kB\n", "VmRSS:"), None);
    }
}
