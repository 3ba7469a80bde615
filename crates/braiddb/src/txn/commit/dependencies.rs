//! Dependencies: the transactions that must be durable before this one, for protocols that track
//! them.

use braid_log::{LockRelease, SeqNo};

use crate::base::written::Written;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::error::Result;

/// Returns the versions that the transaction read or overwrites and that may not be durable yet.
/// With deferred lock release, overwritten versions need no wait: their writer released its lock
/// when that was safe.
pub(super) fn dependencies(engine: &Engine, state: &Context) -> Result<Vec<SeqNo>> {
    let durable_seqno = engine.log.durable_seqno();
    let mut on = Vec::new();
    if state.reads.newest > durable_seqno {
        let points = state.reads.points.iter();
        let points = points.filter(|read| !(read.absent && braid_rt::mutant!("forget_absence")));
        on.extend(points.map(|read| read.version));
        if !braid_rt::mutant!("forget_locked_reads") {
            on.extend_from_slice(&state.reads.locked);
        }
        if !state.reads.ranges.is_empty() || state.snapshot.is_some() {
            // Neither snapshots nor range reads record the versions read.
            engine.log.ticket(state.reads.newest).wait()?;
        }
    }
    if engine.settings.lock_release == LockRelease::Precommit {
        for write in state.writes.live() {
            let tree = &state.tables[write.table as usize].tree;
            // The key has been locked since before the assignment: `apply` will replace this
            // version.
            let found = tree.get(state.writes.key(write), |_| false)?;
            on.extend(found.map(|found| found.meta.seqno()));
        }
    }
    on.retain(|&version| version > durable_seqno);
    Ok(on)
}
