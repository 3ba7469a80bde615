//! The properties that must hold in every state, and after every crash in it.

use super::machine::{Flush, LANES, Phase, Script, State};
use super::recovery::{Crash, Recovered};
use super::rules::Rules;

/// A property that does not hold.
pub(crate) struct Violation {
    pub(crate) property: &'static str,
    pub(crate) what: String,
}

type Checked = Result<(), Violation>;

fn violated(property: &'static str, what: String) -> Checked {
    Err(Violation { property, what })
}

/// Checks a state, and the states after a crash in it, for every set of in-flight flushes that
/// arrive.
pub(crate) fn check(rules: &Rules, script: &[Script], state: &State) -> Checked {
    i7_order(state)?;
    if rules.protocol.numbers_flushes() {
        lemma_9_numbers_follow_dependencies(state)?;
        lemma_6_smallest_number_is_durable(rules, state)?;
    }
    let in_flight = |lane: &usize| state.lanes[*lane].in_flight.is_some();
    let in_flight: u8 = (0..LANES).filter(in_flight).map(|lane| 1 << lane).sum();
    for arriving in (0..1 << LANES).filter(|arriving| arriving & !in_flight == 0) {
        let recovered = Crash::new(rules, state, arriving).recovered();
        i2_wholeness(state, &recovered)?;
        let kept = recovered.concat();
        i1_durability(rules, state, &kept)?;
        i3_closure(state, &kept)?;
        i4_no_vanishing_reads(rules, state, &kept)?;
        if rules.protocol.numbers_flushes() {
            lemma_4_flushes_include_earlier_ones(rules, state, &kept)?;
            lemma_5_valid_depends_on_valid(state, &kept)?;
            lemma_11_recovery_applies_in_order(rules, script, state, &kept)?;
        }
    }
    Ok(())
}

/// I1: every acknowledged transaction is recovered.
fn i1_durability(rules: &Rules, state: &State, kept: &[usize]) -> Checked {
    for i in 0..state.transactions.len() {
        if rules.is_acknowledged(state, i) && !kept.contains(&i) {
            return violated("I1", format!("T{i} was acknowledged and is lost"));
        }
    }
    Ok(())
}

/// I2: a transaction is recovered in the tablespaces of all its parts, or in none.
fn i2_wholeness(state: &State, recovered: &Recovered) -> Checked {
    for (i, transaction) in state.transactions.iter().enumerate() {
        let has = |lane: &usize| recovered[*lane].contains(&i);
        let lanes = || transaction.parts.iter();
        if let Some(torn) = lanes().find(|lane| !has(lane))
            && let Some(whole) = lanes().find(has)
        {
            return violated(
                "I2",
                format!("T{i} is recovered in lane {whole} and not in lane {torn}"),
            );
        }
    }
    Ok(())
}

/// I3: a transaction is recovered with those that it read from and overwrote.
fn i3_closure(state: &State, kept: &[usize]) -> Checked {
    for &i in kept {
        for on in state.transactions[i].dependencies() {
            if !kept.contains(&on) {
                return violated("I3", format!("T{i} is kept without T{on}"));
            }
        }
    }
    Ok(())
}

/// I4: everything that a snapshot at the durable seqno showed is recovered.
fn i4_no_vanishing_reads(rules: &Rules, state: &State, kept: &[usize]) -> Checked {
    let durable_seqno = rules.durable_seqno(state);
    for (i, transaction) in state.transactions.iter().enumerate() {
        let is_visible = transaction.phase == Phase::Applied && transaction.number <= durable_seqno;
        if is_visible && !kept.contains(&i) {
            return violated(
                "I4",
                format!("a snapshot at {durable_seqno} has seen T{i}, which is lost"),
            );
        }
    }
    Ok(())
}

/// I7: a version has a greater number than the one that it replaces, so replay by numbers ends with
/// the last write.
fn i7_order(state: &State) -> Checked {
    for (i, transaction) in state.transactions.iter().enumerate() {
        if let Some(before) = transaction.overwrote
            && state.transactions[usize::from(before)].number >= transaction.number
        {
            return violated(
                "I7",
                format!("T{i} replaced T{before}, which has a greater number"),
            );
        }
    }
    Ok(())
}

fn flushes(state: &State) -> impl Iterator<Item = &Flush> {
    let lanes = state.lanes.iter();
    lanes.flat_map(|lane| lane.landed.iter().chain(&lane.in_flight))
}

/// The committed transactions of a flush: those whose first part it has.
fn committed<'a>(state: &'a State, flush: &'a Flush) -> impl Iterator<Item = usize> + 'a {
    let log_records = flush.log_records.iter().map(|&i| usize::from(i));
    log_records.filter(|&i| {
        let first = state.flush_of(i).map(|flush| flush.number);
        state.transactions[i].phase == Phase::Applied && first == Some(flush.number)
    })
}

/// Whether a transaction that ends in flush `later` depends on one of flush `earlier`: W1 → W2 in the
/// paper.
fn precedes(state: &State, earlier: &Flush, later: &Flush) -> bool {
    let log_records = later.log_records.iter().map(|&i| usize::from(i));
    let mut ended = log_records.filter(|&i| {
        let last = state.last_flush_of(i).map(|flush| flush.number);
        state.transactions[i].phase == Phase::Applied && last == Some(later.number)
    });
    ended.any(|i| {
        let mut on = state.transactions[i].dependencies();
        on.any(|on| committed(state, earlier).any(|i| i == on))
    })
}

/// GWSN, Lemma 4: if W1 → W2 and one transaction of W2 is valid, then all of W1 are. If there are
/// transactions in several lanes, recovery ends at a number within the flushes, up to which this holds.
fn lemma_4_flushes_include_earlier_ones(rules: &Rules, state: &State, kept: &[usize]) -> Checked {
    let number = |i: usize| state.transactions[i].number;
    let newest = kept.iter().map(|&i| number(i)).max().unwrap_or(0);
    let is_kept = |i: &usize| kept.contains(i) || rules.has_parts && number(*i) > newest;
    let is_valid = |flush: &&Flush| committed(state, flush).any(|i| kept.contains(&i));
    for later in flushes(state).filter(is_valid) {
        for earlier in flushes(state).filter(|flush| precedes(state, flush, later)) {
            if let Some(lost) = committed(state, earlier).find(|i| !is_kept(i)) {
                return violated(
                    "Lemma 4",
                    format!(
                        "flush {} is valid, T{lost} of flush {} before it is not",
                        later.number, earlier.number
                    ),
                );
            }
        }
    }
    Ok(())
}

/// GWSN, Lemma 5: the dependencies of a valid transaction are valid. (I3 in the paper's words.)
fn lemma_5_valid_depends_on_valid(state: &State, kept: &[usize]) -> Checked {
    i3_closure(state, kept).or_else(|violation| violated("Lemma 5", violation.what))
}

/// GWSN, Lemma 6 of the proof: all flushes up to the smallest of the lanes' newest numbers, here
/// the last before a gap, are durable.
fn lemma_6_smallest_number_is_durable(rules: &Rules, state: &State) -> Checked {
    let last = rules.landed_flushes(state);
    for lane in &state.lanes {
        if let Some(flush) = &lane.in_flight
            && flush.number <= last
        {
            return violated("Lemma 6", format!("flush {} is under way", flush.number));
        }
    }
    Ok(())
}

/// GWSN, Lemma 9 of the proof: a flush with a smaller number depends on none with a greater one.
fn lemma_9_numbers_follow_dependencies(state: &State) -> Checked {
    for later in flushes(state) {
        for earlier in flushes(state) {
            if earlier.number > later.number && precedes(state, earlier, later) {
                return violated(
                    "Lemma 9",
                    format!("flush {} depends on flush {}", later.number, earlier.number),
                );
            }
        }
    }
    Ok(())
}

/// GWSN, Lemma 11: applying the kept flushes by their numbers leaves each key with the last write
/// in the order of the dependencies. Transactions in several flushes are applied by their own numbers.
fn lemma_11_recovery_applies_in_order(
    rules: &Rules,
    script: &[Script],
    state: &State,
    kept: &[usize],
) -> Checked {
    let mut replay: Vec<usize> = kept.to_vec();
    replay.sort_by_key(|&i| {
        let flush = state.flush_of(i).filter(|_| !rules.has_parts);
        let flush = flush.map_or(0, |flush| flush.number);
        (flush, state.transactions[i].number)
    });
    for &i in kept {
        let write = script[i].write;
        let is_replaced = kept
            .iter()
            .any(|&by| state.transactions[by].overwrote == Some(i as u8));
        let last = replay.iter().rev().find(|&&by| script[by].write == write);
        if !is_replaced && last != Some(&i) {
            return violated(
                "Lemma 11",
                format!("T{i} wrote key {write} last, {last:?} is there"),
            );
        }
    }
    Ok(())
}
