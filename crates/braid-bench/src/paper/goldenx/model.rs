//! A model of persistent memory on the nodes of a machine that has one node, after GoldenX.
//!
//! GoldenX (2022, section 2.1.3) compares access by direct stores and loads with access by an agent of
//! the memory's node, in relative times of one access:
//!
//! | | the own node's memory | another node's | by an agent of that node |
//! |---|---|---|---|
//! | read | 100 | 1,000 | 100 + 35 |
//! | write | 1,000 | 2,000 | 1,000 + 35 |
//!
//! 35 is a copy of the bytes from memory to memory (DRAM) across nodes. The model takes an access for one
//! of 256 bytes, the unit of the medium, and a unit of time for so many nanoseconds as the caller says: 3
//! for Optane, whose random read of the own node takes about 300 ns. The memory of a node
//! serves one access after the other, since the paper finds that distance costs bandwidth, too: a
//! remote access occupies it as long as it takes. A copy occupies no persistent memory. The hand-over to
//! an agent and back takes no time in the paper's comparison. The engine's agents take what they take; the
//! agents of [`Agents::Free`] take none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

/// Bytes of an access.
const UNIT: usize = 256;

/// Copy of the bytes of an access between nodes, through their DRAM.
const COPY: u64 = 35;

/// Waits up to here spin; longer ones let other threads run, as if each thread had a processor of its own.
/// A remote read of one unit takes longer: otherwise, of more threads than processors, those that are near
/// would have the memory for themselves for as long as the system lets them run.
const SPIN: Duration = Duration::from_micros(1);

/// An access of persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

impl Access {
    /// Time of one access, by whether the memory is another node's.
    pub(super) fn time(self, is_remote: bool) -> u64 {
        match (self, is_remote) {
            (Self::Read, false) => 100,
            (Self::Read, true) => 1_000,
            (Self::Write, false) => 1_000,
            (Self::Write, true) => 2_000,
        }
    }

    /// What an agent saves for one remote access.
    pub(super) fn saved(self) -> u64 {
        self.time(true) - self.time(false) - COPY
    }
}

/// Who accesses the memory of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agents {
    /// The thread itself.
    None,
    /// An agent whose hand-over takes no time, also for log records.
    Free,
    /// The engine's agents, for data.
    Real,
}

/// How long some accesses take, in units.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Duty {
    /// In all.
    time: u64,
    /// For which the node's memory serves nothing else.
    occupied: u64,
}

fn duty(access: Access, bytes: usize, is_remote: bool, by_agent: bool) -> Duty {
    let accesses = bytes.div_ceil(UNIT).max(1) as u64;
    let occupied = accesses * access.time(is_remote && !by_agent);
    let copies = if is_remote && by_agent { COPY } else { 0 };
    Duty {
        time: occupied + accesses * copies,
        occupied,
    }
}

/// The persistent memory of two nodes.
#[derive(Debug)]
pub(super) struct Memory {
    began: Instant,
    /// Nanoseconds of a unit of time.
    unit: u64,
    /// For each node, the time from which on its memory serves the next access.
    free_at: [CachePadded<AtomicU64>; 2],
    pub(super) agents: Agents,
}

impl Memory {
    pub(super) fn new(agents: Agents, unit: u64) -> Self {
        Self {
            began: Instant::now(),
            unit,
            free_at: Default::default(),
            agents,
        }
    }

    /// Takes as long as a thread on node `from` takes for an access of `bytes` in the memory of `node`.
    pub(super) fn access(&self, access: Access, bytes: usize, from: usize, node: usize) {
        let is_free = self.agents == Agents::Free;
        let Duty { time, occupied } = duty(access, bytes, from != node, is_free);
        let (now, occupied) = (self.nanos(), occupied * self.unit);
        let reserve = |free_at: u64| Some(free_at.max(now) + occupied);
        // Relaxed: the times order nothing but each other.
        let reserved =
            self.free_at[node].fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
        let start = reserved.map_or(now, |free_at| free_at.max(now));
        self.wait_until(start + time * self.unit);
    }

    /// Takes as long as a copy of `bytes` between nodes.
    pub(super) fn copy(&self, bytes: usize) {
        let copies = bytes.div_ceil(UNIT) as u64;
        self.wait_until(self.nanos() + copies * COPY * self.unit);
    }

    fn wait_until(&self, nanos: u64) {
        let end = self.began + Duration::from_nanos(nanos);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match left {
                Duration::ZERO => return,
                left if left <= SPIN => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_take_the_times_of_the_paper() {
        let of = |access, bytes, is_remote, by_agent| duty(access, bytes, is_remote, by_agent).time;
        let read = |is_remote, by_agent| of(Access::Read, UNIT, is_remote, by_agent);
        let write = |is_remote, by_agent| of(Access::Write, UNIT, is_remote, by_agent);
        assert_eq!(
            [read(false, false), read(true, false), read(true, true)],
            [100, 1_000, 135]
        );
        assert_eq!(
            [write(false, true), write(true, false), write(true, true)],
            [1_000, 2_000, 1_035]
        );
        // The paper's sums: a write to a local and a remote tablespace and their logs; a scan of both.
        let ratio = |direct: u64, by_agent: u64| 1.0 - by_agent as f64 / direct as f64;
        let writes = ratio(3_000, write(false, true) + write(true, true));
        assert!((writes - 0.32).abs() < 0.005, "{writes}");
        // The paper says 78 %, by (100 + 135) of 1,100.
        let scans = ratio(1_100, read(false, true) + read(true, true));
        assert!((scans - 0.78).abs() < 0.01, "{scans}");
        assert_eq!([Access::Read.saved(), Access::Write.saved()], [865, 965]);
    }

    #[test]
    fn a_node_serves_one_access_after_the_other() {
        let memory = Memory::new(Agents::None, 1);
        for _ in 0..4 {
            memory.access(Access::Write, 10 * UNIT, 0, 1);
        }
        assert!(memory.nanos() >= 4 * 20_000);
        let free_at = |node: usize| memory.free_at[node].load(Ordering::Relaxed);
        assert!(free_at(1) >= 4 * 20_000);
        assert_eq!(free_at(0), 0);
        memory.copy(10 * UNIT);
        assert_eq!(free_at(0), 0, "a copy occupies no persistent memory");
        let slower = Memory::new(Agents::None, 3);
        slower.access(Access::Write, UNIT, 0, 0);
        assert!(slower.nanos() >= 3_000);
    }
}
