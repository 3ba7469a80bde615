//! The checker: decides whether the engine may produce a round's history.
//!
//! The engine claims an order of transactions: that of their numbers. So the check is a replay:
//! each transaction must have seen exactly the state left by its predecessors (serializability,
//! phantoms included), or, if it uses snapshot isolation, the state at one place before it, with no
//! transaction writing its keys in between. The state found after a crash must be a prefix of that
//! order, or for `gsn` a part of it that is closed under dependencies, and must contain everything
//! that was acknowledged or seen by a snapshot. [`crate::graph`] checks the same history without
//! relying on the numbers.

use std::collections::BTreeSet;

use crate::record::{Found, Op, Outcome, Round, State, Tx, TxId, View, seen};

/// A violation of a rule by a history; the text names the rule and the transactions.
pub type Violation = String;

/// The transactions that survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// A prefix of the order.
    Prefix,
    /// A part of the order that is closed under dependencies.
    Closed,
}

/// Most transactions of which only the existence is known, each of which may lie anywhere in the
/// order. With more, the orders are not tried.
const UNKNOWN_MAX: usize = 2;

/// Checks a round, and the state found after its end, if that is known. `lenient`: the medium lost
/// data that it had promised to keep, so every state is accepted whose versions were written by
/// some transaction.
///
/// # Errors
/// The first violation.
pub fn check(
    round: &Round,
    found: Option<&Found>,
    survival: Survival,
    lenient: bool,
) -> Result<(), Violation> {
    real_time(round)?;
    let mut numbered: Vec<&Tx> = Vec::new();
    let mut unknown: Vec<&Tx> = Vec::new();
    for tx in round.txs.iter().filter(|tx| tx.writes()) {
        match tx.outcome {
            Outcome::Committed(_) => numbered.push(tx),
            Outcome::InDoubt => unknown.push(tx),
            Outcome::Aborted => {
                if found.is_some_and(|found| found.marks.contains(&tx.id)) {
                    return Err(format!("G1a: {} was aborted and is there", tx.id));
                }
            }
        }
    }
    numbered.sort_by_key(|tx| seqno_of(tx));
    for pair in numbered.windows(2) {
        if seqno_of(pair[0]) >= seqno_of(pair[1]) {
            return Err(format!(
                "I7: {} and {} have the same number",
                pair[0].id, pair[1].id
            ));
        }
    }
    if let Some(found) = found.filter(|_| !lenient) {
        let left = traces(round);
        // A transaction that is missing, was seen by no other, and removed nothing, may be treated
        // as never run.
        let removes = |tx: &Tx| tx.ops.iter().any(|op| matches!(op, Op::Remove(_)));
        unknown.retain(|tx| found.marks.contains(&tx.id) || left.contains(&tx.id) || removes(tx));
    }
    if unknown.len() > UNKNOWN_MAX {
        return match found {
            Some(found) if !lenient => acknowledged_is_there(round, &numbered, found),
            _ => Ok(()),
        };
    }
    // The first violation is the most informative: that of the order without transactions in doubt.
    let mut first = None;
    for order in orders(&numbered, &unknown) {
        let outcome = check_order(round, &order).and_then(|()| match found {
            Some(found) => check_found(round, &order, found, survival, lenient),
            None => Ok(()),
        });
        match outcome {
            Ok(()) => return Ok(()),
            Err(violation) => {
                first.get_or_insert(violation);
            }
        }
    }
    Err(first.expect("there is at least one order"))
}

/// Returns the writers of all versions that any transaction or snapshot saw.
fn traces(round: &Round) -> BTreeSet<TxId> {
    let of_txs = round.txs.iter().flat_map(|tx| seen(&tx.ops));
    let of_views = round.views.iter().flat_map(|view| seen(&view.ops));
    let versions = of_txs.chain(of_views).filter_map(|(_, version)| version);
    versions
        .flat_map(|version| version.writers.clone())
        .collect()
}

fn seqno_of(tx: &Tx) -> u64 {
    match tx.outcome {
        Outcome::Committed(seqno) => seqno,
        _ => u64::MAX,
    }
}

/// Returns all orders in which each transaction of unknown place is at any place, or absent.
fn orders<'a>(numbered: &[&'a Tx], unknown: &[&'a Tx]) -> Vec<Vec<&'a Tx>> {
    let mut orders = vec![numbered.to_vec()];
    for &tx in unknown {
        for i in 0..orders.len() {
            for place in (0..=orders[i].len()).rev() {
                let mut order = orders[i].clone();
                order.insert(place, tx);
                orders.push(order);
            }
        }
    }
    orders
}

/// Checks strict serializability: a transaction that began after another had returned follows it.
fn real_time(round: &Round) -> Result<(), Violation> {
    let committed = |tx: &&Tx| tx.writes() && matches!(tx.outcome, Outcome::Committed(_));
    let writers: Vec<&Tx> = round.txs.iter().filter(committed).collect();
    for later in &writers {
        let before = writers
            .iter()
            .find(|tx| tx.ended < later.begun && seqno_of(tx) >= seqno_of(later));
        if let Some(before) = before {
            return Err(format!(
                "real time: {} had returned when {} began, and comes after it",
                before.id, later.id
            ));
        }
    }
    Ok(())
}

/// Applies an operation. The error names what it should have seen.
fn apply(state: &mut State, op: &Op) -> Result<(), String> {
    match op {
        Op::Get(key, seen) => {
            let there = state.get(key);
            if there != seen.as_ref() {
                let there = there.map(|version| &version.writers);
                return Err(format!("{}, not {there:?}", op));
            }
        }
        Op::Scan(from, to, seen) => {
            let there = state.range(from..to);
            if !there
                .clone()
                .eq(seen.iter().map(|(key, version)| (key, version)))
            {
                let there: Vec<_> = there
                    .map(|(key, version)| (key, &version.writers))
                    .collect();
                return Err(format!("{}, not {there:?}", op));
            }
        }
        Op::Put(key, version) => {
            state.insert(*key, version.clone());
        }
        Op::Remove(key) => {
            state.remove(key);
        }
    }
    Ok(())
}

/// Whether a transaction may have run on this state. The state is not changed.
fn fits(state: &State, ops: &[Op]) -> Result<(), String> {
    let mut state = state.clone();
    ops.iter().try_for_each(|op| apply(&mut state, op))
}

fn write(state: &mut State, tx: &Tx) {
    for op in &tx.ops {
        if matches!(op, Op::Put(..) | Op::Remove(_)) {
            // Writes fit everywhere.
            let _ = apply(state, op);
        }
    }
}

/// Checks all observations against the states of this order.
fn check_order(round: &Round, order: &[&Tx]) -> Result<(), Violation> {
    let mut states = vec![round.base.clone()];
    for tx in order {
        let mut state = states[states.len() - 1].clone();
        write(&mut state, tx);
        states.push(state);
    }
    for (place, tx) in order.iter().enumerate() {
        if tx.snapshot {
            snapshot_fits(&states, order, place, tx)?;
        } else {
            fits(&states[place], &tx.ops)
                .map_err(|what| format!("G2: {} saw that {what}", tx.id))?;
        }
    }
    for tx in round.txs.iter().filter(|tx| !tx.writes()) {
        // Its place is not before the newest transaction that it read from. Observations of an
        // aborted transaction are not checked.
        if let Outcome::Committed(seqno) = tx.outcome {
            let from = *places(order, seqno).start();
            let outcomes = states[from..].iter().map(|state| fits(state, &tx.ops));
            let mut why = None;
            for outcome in outcomes {
                match outcome {
                    Ok(()) => {
                        why = None;
                        break;
                    }
                    Err(what) => {
                        why.get_or_insert(what);
                    }
                }
            }
            if let Some(what) = why {
                return Err(format!("G2: {}, which only read, saw that {what}", tx.id));
            }
        }
    }
    for view in &round.views {
        view_fits(&states, order, view)?;
    }
    Ok(())
}

/// Checks snapshot isolation: the transaction saw one earlier state, and no transaction has written
/// one of its keys since.
fn snapshot_fits(states: &[State], order: &[&Tx], place: usize, tx: &Tx) -> Result<(), Violation> {
    // A removal of a missing key is not a write.
    let changes = |at: usize| {
        let changed = move |key: &u8| states[at].get(key) != states[at + 1].get(key);
        order[at].keys().into_iter().filter(changed)
    };
    let keys: BTreeSet<u8> = changes(place).collect();
    let mut why = String::new();
    for at in (0..=place).rev() {
        match fits(&states[at], &tx.ops) {
            Ok(()) => return Ok(()),
            Err(what) if why.is_empty() => why = what,
            Err(_) => {}
        }
        // One place further back, this transaction's writes are concurrent, too.
        if at > 0 && changes(at - 1).any(|key| keys.contains(&key)) {
            return Err(format!(
                "snapshot isolation: {} saw that {why}, and overwrites {}",
                tx.id,
                order[at - 1].id
            ));
        }
    }
    Err(format!("snapshot isolation: {} saw that {why}", tx.id))
}

fn view_fits(states: &[State], order: &[&Tx], view: &View) -> Result<(), Violation> {
    let mut outcomes = places(order, view.seqno).map(|at| fits(&states[at], &view.ops));
    let first = outcomes.next().expect("there is at least one place");
    if outcomes.any(|outcome| outcome.is_ok()) {
        return Ok(());
    }
    first.map_err(|what| format!("I4: a snapshot at {} saw that {what}", view.seqno))
}

/// Returns the places in the order that a number may denote: after all transactions up to it, and
/// before all later ones. A transaction in doubt may lie on either side: its client received an
/// error while another thread made its number durable.
fn places(order: &[&Tx], seqno: u64) -> std::ops::RangeInclusive<usize> {
    let is_up_to = |tx: &&Tx| seqno_of(tx) <= seqno;
    let is_later = |tx: &&Tx| (seqno + 1..u64::MAX).contains(&seqno_of(tx));
    let first = order.iter().rposition(is_up_to).map_or(0, |at| at + 1);
    let last = order.iter().position(is_later).unwrap_or(order.len());
    first..=last.max(first)
}

/// Checks I1 and I4: all acknowledged transactions exist, and all that a snapshot or an
/// acknowledged reader saw.
fn acknowledged_is_there(round: &Round, order: &[&Tx], found: &Found) -> Result<(), Violation> {
    let lost = |tx: &&&Tx| !found.marks.contains(&tx.id);
    if let Some(tx) = order.iter().filter(lost).find(|tx| tx.acknowledged) {
        return Err(format!("I1: {} was acknowledged and is lost", tx.id));
    }
    for view in &round.views {
        let mut below = order.iter().filter(|tx| seqno_of(tx) <= view.seqno);
        if let Some(tx) = below.find(|tx| !found.marks.contains(&tx.id)) {
            return Err(format!(
                "I4: {} was in a snapshot at {} and is lost",
                tx.id, view.seqno
            ));
        }
    }
    let own: BTreeSet<TxId> = round.txs.iter().map(|tx| tx.id).collect();
    for view in &round.views {
        let writers = seen(&view.ops).filter_map(|(_, version)| Some(version?.writer()));
        let mut lost = writers.filter(|id| own.contains(id) && !found.marks.contains(id));
        if let Some(id) = lost.next() {
            return Err(format!(
                "I4: {id} was seen by a snapshot at {} and is lost",
                view.seqno
            ));
        }
    }
    for tx in round.txs.iter().filter(|tx| tx.acknowledged) {
        for (_, seen) in tx.seen() {
            let Some(version) = seen else { continue };
            let writer = version.writer();
            if writer != tx.id && own.contains(&writer) && !found.marks.contains(&writer) {
                return Err(format!(
                    "I4: {writer} was seen by {}, which was acknowledged, and is lost",
                    tx.id
                ));
            }
        }
    }
    Ok(())
}

/// Checks the state after a crash against the order.
fn check_found(
    round: &Round,
    order: &[&Tx],
    found: &Found,
    survival: Survival,
    lenient: bool,
) -> Result<(), Violation> {
    if lenient {
        return Ok(());
    }
    acknowledged_is_there(round, order, found)?;
    let there = |id: TxId| found.marks.contains(&id);
    let of_round: BTreeSet<TxId> = round.txs.iter().map(|tx| tx.id).collect();
    let placed: BTreeSet<TxId> = order.iter().map(|tx| tx.id).collect();
    if let Some(id) = of_round
        .iter()
        .find(|&&id| there(id) && !placed.contains(&id))
    {
        return Err(format!("I2: {id} is there, and has no place in the order"));
    }
    let mut state = round.base.clone();
    let mut missing: Option<&Tx> = None;
    for tx in order {
        if !there(tx.id) {
            missing.get_or_insert(tx);
            continue;
        }
        if survival == Survival::Prefix
            && let Some(missing) = missing
        {
            return Err(format!(
                "I3: {} is there, and {} before it is not",
                tx.id, missing.id
            ));
        }
        write(&mut state, tx);
    }
    if survival == Survival::Closed {
        closed(&round.base, &of_round, order, found)?;
    }
    if state != found.state {
        let differs = |key: &u8| state.get(key) != found.state.get(key);
        let key = (0..=u8::MAX).find(differs).expect("they differ somewhere");
        let writers = |state: &State| state.get(&key).map(|version| version.writers.clone());
        return Err(format!(
            "I2: the key {key} is {:?}, not {:?}",
            writers(&found.state),
            writers(&state)
        ));
    }
    Ok(())
}

/// Checks that every surviving transaction's dependencies survive: the versions that it read and
/// those that it overwrote.
fn closed(
    base: &State,
    of_round: &BTreeSet<TxId>,
    order: &[&Tx],
    found: &Found,
) -> Result<(), Violation> {
    let mut last: std::collections::BTreeMap<u8, TxId> = std::collections::BTreeMap::new();
    let mut state = base.clone();
    for tx in order {
        if found.marks.contains(&tx.id) {
            let read = tx.seen().filter_map(|(_, seen)| seen).map(|v| v.writer());
            // A snapshot may be older than the removal.
            let absent = tx.absent().into_iter().filter(|_| !tx.snapshot);
            let replaced = tx.keys().into_iter().chain(absent);
            let replaced = replaced.filter_map(|key| last.get(&key).copied());
            let mut on = read.chain(replaced);
            let lost = on.find(|id| of_round.contains(id) && !found.marks.contains(id));
            if let Some(id) = lost {
                return Err(format!(
                    "I3: {} is there, and {id} that it depends on is not",
                    tx.id
                ));
            }
        }
        // A key that was missing and was removed again has no version.
        let before = state.clone();
        write(&mut state, tx);
        let changed = |key: &u8| before.get(key) != state.get(key);
        let keys = tx.keys().into_iter().filter(changed);
        last.extend(keys.map(|key| (key, tx.id)));
    }
    Ok(())
}
