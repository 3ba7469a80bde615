//! For how long background work holds what commits wait for.

use braid_rt::{HoldTime, LongestHold};

/// The longest holds of the log's gates that are not those of a lane.
#[derive(Debug)]
pub(crate) struct Holds {
    /// Large commits are held up; see [`Log::calm`](crate::Log::calm).
    pub(crate) large_commits: LongestHold,
    /// No commit can begin; see [`Log::quiesce`](crate::Log::quiesce).
    pub(crate) commit_gate: LongestHold,
}

/// The longest holds of the locks of a lane's segments.
#[derive(Debug)]
pub(crate) struct SegmentHolds {
    /// The list of segments, while log is released. A flush takes its next segment from it.
    pub(crate) list: LongestHold,
    /// The right to make, rename and delete files. Only a commit or a flush that lacks a segment
    /// waits for it.
    pub(crate) files: LongestHold,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            large_commits: LongestHold::new("large commits"),
            commit_gate: LongestHold::new("commit gate"),
        }
    }
}

impl Default for SegmentHolds {
    fn default() -> Self {
        Self {
            list: LongestHold::new("log segments"),
            files: LongestHold::new("log files"),
        }
    }
}

/// The longer of two holds.
fn longer(a: HoldTime, b: HoldTime) -> HoldTime {
    HoldTime {
        longest: a.longest.max(b.longest),
        elapsed: a.elapsed.max(b.elapsed),
    }
}

/// Returns the longest holds by the name of the gate; see
/// [`Log::longest_holds`](crate::Log::longest_holds).
pub(crate) fn by_gate<'a>(
    log: &Holds,
    lanes: impl Iterator<Item = &'a SegmentHolds>,
) -> Vec<(&'static str, HoldTime)> {
    let own = [&log.commit_gate, &log.large_commits];
    let mut holds: Vec<_> = own.map(|hold| (hold.gate(), hold.time())).into();
    for lane in lanes {
        for hold in [&lane.list, &lane.files] {
            match holds.iter_mut().find(|(gate, _)| *gate == hold.gate()) {
                Some((_, longest)) => *longest = longer(*longest, hold.time()),
                None => holds.push((hold.gate(), hold.time())),
            }
        }
    }
    holds
}
