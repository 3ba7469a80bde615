//! The graph of dependencies between transactions, and the check for forbidden cycles.
//!
//! Adya's graph (Adya, "Weak consistency", PhD thesis 1999, §4): a transaction that replaces
//! another's version of a key follows it (ww), one that reads it follows it (wr), one whose
//! successor's version it did not see precedes that successor (rw). The order of a key's versions
//! is inferred as Elle does it (Kingsbury and Alvaro, "Elle: inferring isolation anomalies from
//! experimental observations", VLDB 2020): from the lists that values carry, and from transactions
//! that read a version and replaced it. The engine's numbers are not used.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Violation;
use crate::record::{Key, Op, Outcome, Round, Tx, TxId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Ww,
    Wr,
    Rw,
}

/// The edges from each transaction to its followers.
#[derive(Debug, Default)]
struct Graph(BTreeMap<TxId, BTreeSet<(Edge, TxId)>>);

impl Graph {
    fn add(&mut self, from: TxId, edge: Edge, to: TxId) {
        if from != to {
            self.0.entry(from).or_default().insert((edge, to));
        }
    }

    /// Finds a path along edges that `take` accepts.
    fn path(&self, from: TxId, to: TxId, take: impl Fn(Edge) -> bool) -> Option<Vec<TxId>> {
        let mut came: BTreeMap<TxId, TxId> = BTreeMap::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            if at == to {
                let mut path = vec![at];
                while let Some(&before) = came.get(path.last().expect("it is not empty"))
                    && before != from
                {
                    path.push(before);
                }
                path.push(from);
                path.reverse();
                return Some(path);
            }
            for &(edge, next) in self.0.get(&at).into_iter().flatten() {
                if take(edge) && next != from && !came.contains_key(&next) {
                    came.insert(next, at);
                    open.push(next);
                }
            }
        }
        None
    }

    /// Finds a cycle of one `first` edge and other edges that `rest` accepts.
    fn cycle(&self, first: Edge, rest: impl Fn(Edge) -> bool) -> Option<Vec<TxId>> {
        let edges = self
            .0
            .iter()
            .flat_map(|(&from, to)| to.iter().map(move |e| (from, e)));
        let mut firsts = edges.filter(|(_, (edge, _))| *edge == first);
        firsts.find_map(|(from, &(_, to))| self.path(to, from, &rest))
    }
}

/// For each key and writer, the writer of the preceding version. `None`: the version at the
/// beginning of the round, or no version.
type Before = BTreeMap<(Key, TxId), TxId>;

fn versions(txs: &BTreeMap<TxId, &Tx>) -> Before {
    let mut before = Before::new();
    for tx in txs.values() {
        let mut seen: BTreeMap<Key, TxId> = BTreeMap::new();
        for op in &tx.ops {
            match op {
                Op::Get(key, Some(version)) if version.writer() != tx.id => {
                    seen.insert(*key, version.writer());
                }
                Op::Put(key, version) => {
                    if let [.., last, own] = version.writers[..]
                        && own == tx.id
                    {
                        before.insert((*key, tx.id), last);
                    }
                    if let Some(&last) = seen.get(key) {
                        before.insert((*key, tx.id), last);
                    }
                }
                Op::Remove(key) => {
                    if let Some(&last) = seen.get(key) {
                        before.insert((*key, tx.id), last);
                    }
                }
                _ => {}
            }
        }
    }
    before
}

/// Looks for G0 (cycles of writes), G1b, G1c (cycles of writes and reads), and for G2, or under
/// snapshot isolation G-single.
///
/// # Errors
/// The first violation found.
pub fn check(round: &Round, snapshot: bool) -> Result<(), Violation> {
    let effective = |tx: &&Tx| tx.outcome != Outcome::Aborted;
    let txs: BTreeMap<TxId, &Tx> = round
        .txs
        .iter()
        .filter(effective)
        .map(|tx| (tx.id, tx))
        .collect();
    let aborted: BTreeSet<TxId> = round
        .txs
        .iter()
        .filter(|tx| tx.outcome == Outcome::Aborted)
        .map(|tx| tx.id)
        .collect();
    let before = versions(&txs);
    let mut after: BTreeMap<(Key, TxId), TxId> = BTreeMap::new();
    let mut graph = Graph::default();
    for (&(key, id), &last) in &before {
        if let Some(other) = after.insert((key, last), id)
            && snapshot_or_serial(&txs, other, id)
        {
            return Err(format!(
                "lost update: {other} and {id} both replaced what {last} wrote at {key}"
            ));
        }
        if txs.contains_key(&last) {
            graph.add(last, Edge::Ww, id);
        }
    }
    for tx in txs.values() {
        // It is unknown whether the reads of a transaction in doubt were valid.
        let sure = matches!(tx.outcome, Outcome::Committed(_));
        for (key, seen) in tx.seen().filter(|_| sure) {
            let Some(version) = seen else { continue };
            let writer = version.writer();
            if writer == tx.id {
                continue;
            }
            if aborted.contains(&writer) {
                return Err(format!("G1a: {} saw {writer}, which was aborted", tx.id));
            }
            if version.intermediate {
                return Err(format!("G1b: {} saw what {writer} overwrote itself", tx.id));
            }
            if txs.contains_key(&writer) {
                graph.add(writer, Edge::Wr, tx.id);
            }
            if let Some(&next) = after.get(&(key, writer)) {
                graph.add(tx.id, Edge::Rw, next);
            }
        }
    }
    if let Some(cycle) = graph.cycle(Edge::Ww, |edge| edge == Edge::Ww) {
        return Err(format!("G0: {cycle:?}"));
    }
    if let Some(cycle) = graph.cycle(Edge::Wr, |edge| edge != Edge::Rw) {
        return Err(format!("G1c: {cycle:?}"));
    }
    let cycle = graph.cycle(Edge::Rw, |edge| !snapshot || edge != Edge::Rw);
    let name = if snapshot { "G-single" } else { "G2" };
    cycle.map_or(Ok(()), |cycle| Err(format!("{name}: {cycle:?}")))
}

/// Whether both are known to have happened.
fn snapshot_or_serial(txs: &BTreeMap<TxId, &Tx>, a: TxId, b: TxId) -> bool {
    let committed = |id| matches!(txs[&id].outcome, Outcome::Committed(_));
    committed(a) && committed(b)
}
