//! The processor time of a thread.

use std::time::{Duration, Instant};

/// Returns the processor time of the calling thread; if the system does not report it, the time
/// since it `began`.
pub(crate) fn time(began: Instant) -> Duration {
    #[cfg(target_os = "linux")]
    if let Ok(time) = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into() {
        return time;
    }
    began.elapsed()
}
