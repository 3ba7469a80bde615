//! The rules shared by protocols that follow the order of sequence numbers: how they compute the
//! durable seqno, and where recovery cuts.

use super::{Frontier, Run, Scanned};
use crate::LogError;
use crate::base::numbers::SeqNo;

impl Frontier {
    /// The greatest number up to which every transaction is durable and finished.
    ///
    /// P-WAL takes the minimum of the numbers that every strand has flushed, which an idle strand
    /// holds back forever. Here a strand counts only the numbers in its buffers, and a number that
    /// is assigned but not yet appended counts through its pending commit, so the minimum is exact.
    pub(crate) fn durable(&self) -> SeqNo {
        if braid_rt::mutant!("acknowledge_before_flush") {
            return self.assigned;
        }
        if braid_rt::mutant!("durable_seqno_ignores_pending") {
            return self.assigned.min(self.strands.prev());
        }
        self.assigned
            .min(self.commit_slots.prev())
            .min(self.strands.prev())
    }
}

/// The recovery rule of one strand: everything up to the first bad chunk. A number may be missing
/// if its transaction had not appended yet; nothing kept can depend on that transaction, since it
/// had released no lock.
pub(super) fn cut_at_bad_chunk(scanned: &Scanned) -> SeqNo {
    let last = scanned.tail.iter().map(|run| run.last).max();
    scanned
        .base
        .max(scanned.durable_seqno)
        .max(last.unwrap_or(SeqNo::NONE))
}

/// P-WAL's recovery rule: everything below the first missing number, and below the transaction that
/// it belongs to (I15).
pub(super) fn cut_at_gap(scanned: &Scanned) -> Result<SeqNo, LogError> {
    check_acknowledged(scanned)?;
    let mut cut = scanned.base.max(scanned.durable_seqno);
    let mut newest = Run::default();
    for run in &scanned.tail {
        if run.first > cut.next() && !braid_rt::mutant!("skip_gap_rule") {
            braid_rt::coverage_point("gap rule: numbers after a gap");
            break;
        }
        if run.last > cut {
            (cut, newest) = (run.last, *run);
        }
    }
    Ok(newest.cut_before_torn(cut))
}

/// I1: everything up to a chunk's durable seqno was acknowledged. A crash never removes it.
pub(super) fn check_acknowledged(scanned: &Scanned) -> Result<(), LogError> {
    let expected = scanned.durable_seqno.count_after(scanned.base);
    if scanned.found_to_durable == expected {
        return Ok(());
    }
    braid_rt::coverage_point("damage: acknowledged numbers are missing");
    Err(LogError::corrupted(
        format!(
            "acknowledged transactions are missing: {} of the {expected} sequence numbers from {} to {}",
            expected.abs_diff(scanned.found_to_durable),
            scanned.base.next(),
            scanned.durable_seqno
        ),
        "the log",
        0,
    ))
}
