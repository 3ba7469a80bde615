//! Collection and publication of the statistics.

use std::path::Path;
use std::sync::Arc;

use braid_log::{CheckpointPosition, SeqNo};

use super::instance::Instance;
use crate::base::remote_access::RemoteAccess;
use crate::engine::Engine;
use crate::engine::spaces::{Space, side_of};
use crate::observe::stats::{Stats, TablespaceStats};

fn stats_of(engine: &Engine, newest: &CheckpointPosition, space: &Arc<Space>) -> TablespaceStats {
    let (log, kept_from) = (&engine.log, space.kept_from());
    let agent = engine.agents.of(space.number);
    let (agent_requests, agent_refusals) = agent.map_or((0, 0), |agent| agent.ring.counts());
    TablespaceStats {
        name: space.name.clone(),
        directory: space.directory.clone(),
        store: space.store.stats(),
        own_log: space.has_log,
        log_directory: space.log_directory().map(Path::to_owned),
        log_bytes: log.side_lane_bytes(side_of(space.number)),
        memory_node: space.node.map(usize::from),
        is_on_node: space.store.memory_node().is_some(),
        remote_access: match agent {
            Some(_) => RemoteAccess::Agent,
            None => RemoteAccess::Direct,
        },
        agent_requests,
        agent_refusals,
        failing: kept_from.is_some(),
        log_kept_bytes: kept_from.map_or(0, |from| log.bytes_between(&from, newest)),
    }
}

impl Instance {
    /// Publishes the statistics if they are due.
    pub(crate) fn publish_stats(&self) {
        self.publisher.publish(&self.files.gate, || self.stats());
    }

    pub(crate) fn stats(&self) -> Stats {
        let engine = &*self.engine;
        let (snapshots, oldest_snapshot) = engine.snapshots.census();
        let gc = engine.gc.totals();
        let log = engine.log.stats();
        let counts = engine.counters.counts();
        let newest = self.retention.newest();
        Stats {
            log_bytes_to_recover: self.checkpoints.log_bytes_to_recover(log.written_bytes),
            checkpoint_failing: engine.checkpoint_error().is_some(),
            poisoned: engine.poisoned().is_some(),
            commits: gc.commits + counts.read_only_commits,
            conflicts: counts.conflicts,
            checkpoints: counts.checkpoints,
            snapshots,
            oldest_snapshot: oldest_snapshot.map(SeqNo::get),
            old_versions: gc.versions,
            old_version_bytes: gc.bytes,
            snapshots_ended: counts.snapshots_ended,
            expired: self.sweeps.removed(),
            durable_seqno: engine.log.durable_seqno().get(),
            log,
            protocol: self.checkpoints.meta.protocol,
            store: engine.store.stats(),
            tablespaces: engine
                .spaces
                .all()
                .iter()
                .map(|space| stats_of(engine, &newest, space))
                .collect(),
            archived: self.archive.archived().map(SeqNo::get),
            changes_kept_from: self.retention.oldest().get(),
            gate_holds: engine.gate_holds(),
        }
    }
}
