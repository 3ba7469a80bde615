//! What a thread took of a processor.

use std::time::{Duration, Instant};

/// The time that the calling thread has had a processor; where the system does not tell, the time since it `began`.
pub(crate) fn time(began: Instant) -> Duration {
    #[cfg(target_os = "linux")]
    if let Ok(time) = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into() {
        return time;
    }
    began.elapsed()
}
