//! For how long background work holds what commits wait for.

use braid_rt::{HoldTime, LongestHold};

/// The longest holds of the log's gates that are not those of a lane.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Large commits are held up; see [`Log::calm`](crate::Log::calm).
    pub(crate) large_commits: LongestHold,
    /// No commit can begin; see [`Log::quiesce`](crate::Log::quiesce).
    pub(crate) commit_gate: LongestHold,
}

/// The longest holds of the locks of a lane's segments.
#[derive(Debug, Default)]
pub(crate) struct SegmentHolds {
    /// The list of segments, while log is released. A flush takes its next segment from it.
    pub(crate) list: LongestHold,
    /// The right to make, rename and delete files. Only a commit or a flush that lacks a segment
    /// waits for it.
    pub(crate) files: LongestHold,
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
    let (mut list, mut files) = (HoldTime::default(), HoldTime::default());
    for lane in lanes {
        list = longer(list, lane.list.time());
        files = longer(files, lane.files.time());
    }
    vec![
        ("commit gate", log.commit_gate.time()),
        ("large commits", log.large_commits.time()),
        ("log segments", list),
        ("log files", files),
    ]
}
