//! The threads of agents: when they begin and end, and whether they pay.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use braid_rt::numa;
use braid_store::{Direction, StoreError, Tree};
use bytes::Bytes;

use super::instance::Instance;
use crate::base::remote_access::RemoteAccess;
use crate::catalog::Catalog;
use crate::engine::agents::Agent;
use crate::engine::spaces::Space;
use crate::error::{Error, Result};
use crate::schema::entry::space_of;

/// Leaves that `auto` reads directly, and as many by the agent; with fewer, it chooses `direct`.
const MEASURED: usize = 32;

/// Most records of a measured read: about a batch of a scan.
const BATCH: usize = 64;

impl Instance {
    /// Starts the agents of all tablespaces that have one.
    pub(crate) fn start_agents(&self) -> Result<()> {
        let spaces = self.engine.spaces.all();
        spaces.iter().try_for_each(|space| self.start_agent(space))
    }

    /// Starts a tablespace's agent, if it has one.
    pub(crate) fn start_agent(&self, space: &Space) -> Result<()> {
        let (defaults, node) = (&self.files.defaults, space.store.memory_node());
        let is_divided = defaults.agent_hook.0.is_some() || (node.is_some() && numa::nodes() > 1);
        if !is_divided || !self.engine.settings.background {
            return Ok(());
        }
        if defaults.remote_access == RemoteAccess::Direct {
            return Ok(());
        }
        let agent = Agent::new(space.number, node, defaults.agent_hook.clone());
        let agent = Arc::new(agent);
        let thread = braid_rt::thread::spawn("braid-agent", {
            let agent = agent.clone();
            move || agent.serve()
        });
        let thread = thread.map_err(|e| Error::io("cannot start the thread braid-agent", e))?;
        self.maintenance.agents.lock().push(thread);
        let is_used = defaults.remote_access == RemoteAccess::Agent || self.pays(&agent, space)?;
        if is_used {
            self.engine.agents.add(agent);
        } else {
            agent.ring.stop();
        }
        Ok(())
    }

    /// Measures whether a thread of another node reads a tablespace faster by its agent. An empty
    /// tablespace tells nothing: then it does not.
    fn pays(&self, agent: &Arc<Agent>, space: &Space) -> Result<bool> {
        let names = Catalog::of(&self.engine).names_by_id()?;
        let mut ids = names.keys().filter(|id| space_of(**id) == space.number);
        let Some(id) = ids.next() else {
            return Ok(false);
        };
        let tree = space.store.tree(*id)?;
        let home = space.store.memory_node();
        let _elsewhere = numa::visit(home.map(|node| (node + 1) % numa::nodes()));
        let (direct, by_agent) = measure(agent, &tree)?;
        Ok(is_faster(by_agent, direct))
    }

    /// Ends the agent of a tablespace that is being dropped, which no table needs any more.
    pub(crate) fn stop_agent(&self, space: u8) {
        if let Some(agent) = self.engine.agents.of(space) {
            agent.ring.stop();
        }
    }

    /// Ends all agents. Threads that still read do so themselves.
    pub(super) fn stop_agents(&self) {
        self.engine.agents.all().for_each(|agent| agent.ring.stop());
        let threads = std::mem::take(&mut *self.maintenance.agents.lock());
        for thread in threads {
            // A panic in a request ended the request alone.
            let _ = thread.join();
        }
    }
}

/// Reads the tree's first leaves by turns directly and by the agent, each once, since a second read would
/// find them in the processor's caches. Returns the times of both.
fn measure(
    agent: &Arc<Agent>,
    tree: &Tree,
) -> std::result::Result<(Vec<Duration>, Vec<Duration>), StoreError> {
    let (mut direct, mut by_agent) = (Vec::new(), Vec::new());
    let mut next: Option<Bound<Bytes>> = Some(Bound::Unbounded);
    while by_agent.len() < MEASURED
        && let Some(from) = next
    {
        let from = from.as_ref().map(|key| &key[..]);
        let (to, direction) = (Bound::Unbounded, Direction::Forward);
        let (times, began) = ([&direct, &by_agent].map(Vec::len), braid_rt::now());
        let leaf = if times[0] == times[1] {
            let leaf = tree.scan_leaf(None, from, to, direction, BATCH)?;
            direct.push(began.elapsed());
            leaf
        } else {
            let leaf = agent.scan_leaf(tree, None, (from, to), direction, BATCH)?;
            by_agent.push(began.elapsed());
            leaf
        };
        next = leaf.next;
    }
    Ok((direct, by_agent))
}

/// Whether the median of enough times is smaller.
fn is_faster(mut one: Vec<Duration>, mut other: Vec<Duration>) -> bool {
    one.sort_unstable();
    other.sort_unstable();
    one.len() >= MEASURED && one[one.len() / 2] < other[other.len() / 2]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_median_of_enough_times_decides() {
        let times = |count: usize, nanos: u64| vec![Duration::from_nanos(nanos); count];
        let mut slow = times(MEASURED, 9);
        slow[0] = Duration::from_secs(1);
        assert!(is_faster(times(MEASURED, 8), slow.clone()));
        assert!(!is_faster(slow, times(MEASURED, 9)));
        assert!(!is_faster(times(MEASURED - 1, 1), times(MEASURED, 9)));
    }
}
