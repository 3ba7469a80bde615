//! The commit protocols as small state machines, explored exhaustively.
//!
//! [`machine`] holds the common part of all protocols: transactions that lock, read, assign, append
//! and apply; lanes whose flushes are sealed and land, or are lost. [`rules`] and [`recovery`] hold
//! the differences: when locks are released, what an append waits for, which transactions are
//! acknowledged; what recovery keeps. In every state the power may fail, with every subset of the
//! flushes in flight arriving; [`properties`] lists the properties that must then hold.
//! [`mutants`](rules::Mutant) break a rule each, and the exploration must find the consequence.
//!
//! Bounds: every script of 3 transactions over 2 keys on up to 3 lanes, and chosen scripts of 4
//! transactions over 3 keys on 3 lanes; one flush of a lane in flight at a time; two ends of
//! epochs.
//!
//! The same with tablespaces: a transaction appends a part of its log record to each of several
//! lanes, one after another in any order, and each lane has a checkpoint and a truncated log of its
//! own. Bounds: every script of 2 transactions over 2 keys with parts in up to 2 of 3 lanes, and
//! chosen scripts of 3 transactions over 3 keys; one checkpoint, one end of an epoch.

#[path = "models/machine.rs"]
mod machine;
#[path = "models/properties.rs"]
mod properties;
#[path = "models/recovery.rs"]
mod recovery;
#[path = "models/rules.rs"]
mod rules;

use std::collections::HashMap;

use machine::{LaneSet, Script, State, Step};
use properties::Violation;
use rules::{Mutant, Protocol, Rules};

/// A path to a violated property.
struct Counterexample {
    violation: Violation,
    trace: Vec<Step>,
}

/// Visits every state that a script can reach, breadth first; returns their number, or the shortest
/// path to a violation.
fn explore(rules: &Rules, script: &[Script]) -> Result<usize, Counterexample> {
    let mut seen: HashMap<State, usize> = HashMap::new();
    let mut order: Vec<(State, usize, Option<Step>)> = Vec::new();
    let first = State::new(script);
    seen.insert(first.clone(), 0);
    order.push((first, 0, None));
    let mut at = 0;
    while at < order.len() {
        let state = order[at].0.clone();
        if let Err(violation) = properties::check(rules, script, &state) {
            let mut trace = Vec::new();
            let mut place = at;
            while let (_, parent, Some(step)) = &order[place] {
                trace.push(*step);
                place = *parent;
            }
            trace.reverse();
            return Err(Counterexample { violation, trace });
        }
        for (step, next) in machine::steps(rules, script, &state) {
            if !seen.contains_key(&next) {
                seen.insert(next.clone(), order.len());
                order.push((next, at, Some(step)));
            }
        }
        at += 1;
    }
    Ok(order.len())
}

/// All scripts of `transactions` transactions over `keys` keys, each with parts in the lanes of one
/// of these sets, up to renaming keys and lanes, and up to the order of the transactions.
fn all_scripts(transactions: usize, keys: u8, sets: &[LaneSet]) -> Vec<Vec<Script>> {
    let mut one = Vec::new();
    for read in 0..keys {
        for write in 0..keys {
            for &lanes in sets {
                one.push(Script { read, write, lanes });
            }
        }
    }
    let mut scripts: Vec<Vec<Script>> = vec![Vec::new()];
    for _ in 0..transactions {
        scripts = scripts
            .into_iter()
            .flat_map(|script| one.iter().map(move |s| [&script[..], &[*s]].concat()))
            // In ascending order only: they start in any order anyway.
            .filter(|script| script.is_sorted())
            .collect();
    }
    let is_canonical = |script: &Vec<Script>| {
        let firsts = |names: Vec<u8>| {
            let mut next = 0;
            names.into_iter().all(|name| {
                let known = name <= next;
                next += u8::from(name == next);
                known
            })
        };
        firsts(script.iter().flat_map(|s| [s.read, s.write]).collect())
            && firsts(
                script
                    .iter()
                    .flat_map(|s| s.lanes.iter())
                    .map(|lane| lane as u8)
                    .collect(),
            )
    };
    scripts.retain(is_canonical);
    scripts
}

/// A transaction with one part.
fn on_lane(read: u8, write: u8, lane: usize) -> Script {
    let lanes = LaneSet::of(lane);
    Script { read, write, lanes }
}

/// Chains, fans, and the failures of the published traps: four transactions, three keys, three
/// lanes.
fn chosen_scripts() -> Vec<Vec<Script>> {
    let script = |moves: [(u8, u8, usize); 4]| {
        moves
            .map(|(read, write, lane)| on_lane(read, write, lane))
            .to_vec()
    };
    vec![
        // Each reads the previous one's write, on another lane.
        script([(0, 0, 0), (0, 1, 1), (1, 2, 2), (2, 0, 0)]),
        // All overwrite one key, from all lanes.
        script([(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 1)]),
        // A transaction without dependents alongside a chain: an idle lane.
        script([(0, 0, 0), (0, 1, 1), (2, 2, 2), (1, 1, 0)]),
        // Two readers of one writer, and one of both.
        script([(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 2, 0)]),
    ]
}

fn scripts(protocol: Protocol) -> Vec<Vec<Script>> {
    let lanes = if protocol.has_one_lane() { 1 } else { 3 };
    let sets: Vec<LaneSet> = (0..lanes).map(LaneSet::of).collect();
    let mut scripts = all_scripts(3, 2, &sets);
    scripts.append(&mut chosen_scripts_of(protocol));
    scripts
}

fn chosen_scripts_of(protocol: Protocol) -> Vec<Vec<Script>> {
    let mut chosen = chosen_scripts();
    if protocol.has_one_lane() {
        chosen
            .iter_mut()
            .flatten()
            .for_each(|s| s.lanes = LaneSet::of(0));
    }
    chosen
}

/// Chains and fans of transactions with parts in several lanes.
fn chosen_scripts_of_parts() -> Vec<Vec<Script>> {
    let script = |moves: [(u8, u8, u8); 3]| {
        let one = |(read, write, lanes)| Script {
            read,
            write,
            lanes: LaneSet(lanes),
        };
        moves.map(one).to_vec()
    };
    vec![
        // A chain in which each has a part where the one before has.
        script([(0, 0, 0b011), (0, 1, 0b110), (1, 2, 0b100)]),
        // Readers of a transaction, each with a part in one of its lanes.
        script([(0, 0, 0b011), (0, 1, 0b001), (0, 2, 0b010)]),
        // A chain through a lane in which the first transaction has no part.
        script([(0, 0, 0b011), (0, 1, 0b100), (1, 2, 0b001)]),
        // All overwrite one key, with parts in all lanes.
        script([(0, 0, 0b111), (0, 0, 0b011), (0, 0, 0b100)]),
    ]
}

fn scripts_of_parts() -> Vec<Vec<Script>> {
    let sets = [0b001, 0b010, 0b100, 0b011, 0b101, 0b110].map(LaneSet);
    let mut scripts = all_scripts(2, 2, &sets);
    scripts.append(&mut chosen_scripts_of_parts());
    scripts
}

/// Explores everything. Asserts that nothing is violated, and that the exploration was not empty.
fn holds(protocol: Protocol) {
    let one_part = Rules::new(protocol, Mutant::None);
    let parts = Rules::of_tablespaces(protocol, Mutant::None);
    for (rules, scripts) in [(one_part, scripts(protocol)), (parts, scripts_of_parts())] {
        let mut states = 0;
        for script in scripts {
            match explore(&rules, &script) {
                Ok(count) => states += count,
                Err(found) => panic!("{}", describe(&rules, &script, &found)),
            }
        }
        let parts = rules.has_parts;
        println!("{protocol:?}, several parts: {parts}, {states} states");
        assert!(states > 30_000, "only {states} states");
    }
}

/// The mutant must violate one of the properties in some script.
fn is_caught(protocol: Protocol, mutant: Mutant, by: &[&str]) {
    let rules = Rules::new(protocol, mutant);
    is_caught_in(&rules, chosen_scripts_of(protocol), by);
}

/// The mutant must violate one of the properties in some script with tablespaces.
fn is_caught_in_tablespaces(protocol: Protocol, mutant: Mutant, by: &[&str]) {
    let rules = Rules::of_tablespaces(protocol, mutant);
    is_caught_in(&rules, chosen_scripts_of_parts(), by);
}

fn is_caught_in(rules: &Rules, scripts: Vec<Vec<Script>>, by: &[&str]) {
    for script in scripts {
        if let Err(found) = explore(rules, &script) {
            println!("{}", describe(rules, &script, &found));
            let property = found.violation.property;
            assert!(by.contains(&property), "caught by {property}, not {by:?}");
            return;
        }
    }
    panic!(
        "{:?} with {:?} violates nothing",
        rules.protocol, rules.mutant
    );
}

fn describe(rules: &Rules, script: &[Script], found: &Counterexample) -> String {
    let mut text = format!(
        "{:?} with {:?} violates {}: {}\n",
        rules.protocol, rules.mutant, found.violation.property, found.violation.what
    );
    for (i, s) in script.iter().enumerate() {
        let lanes: Vec<usize> = s.lanes.iter().collect();
        text += &format!(
            "  T{i} reads key {} and writes key {} on lanes {lanes:?}\n",
            s.read, s.write
        );
    }
    found
        .trace
        .iter()
        .for_each(|step| text += &format!("  {step:?}\n"));
    text
}

#[test]
fn serial_holds() {
    holds(Protocol::Serial);
}

#[test]
fn aether_holds() {
    holds(Protocol::Aether);
}

#[test]
fn glsn_holds() {
    holds(Protocol::Glsn);
}

#[test]
fn gwsn_strict_holds() {
    holds(Protocol::GwsnStrict);
}

#[test]
fn gwsn_holds() {
    holds(Protocol::Gwsn);
}

#[test]
fn epoch_holds() {
    holds(Protocol::Epoch);
}

#[test]
fn gsn_holds() {
    holds(Protocol::Gsn);
}

#[test]
fn acknowledging_before_the_flush_is_caught() {
    for protocol in Protocol::ALL {
        is_caught(protocol, Mutant::AcknowledgeSealed, &["I1"]);
    }
}

#[test]
fn skipping_the_gap_rule_is_caught() {
    for protocol in [Protocol::Glsn, Protocol::Epoch, Protocol::Gwsn] {
        is_caught(protocol, Mutant::SkipGapRule, &["I3", "Lemma 4"]);
    }
}

#[test]
fn releasing_locks_before_the_number_is_caught() {
    let by = ["I3", "Lemma 4", "Lemma 9"];
    is_caught(Protocol::Gwsn, Mutant::ReleaseBeforeNumber, &by);
    is_caught(Protocol::GwsnStrict, Mutant::ReleaseBeforeNumber, &by);
}

#[test]
fn ignoring_other_lanes_is_caught() {
    for protocol in [Protocol::Glsn, Protocol::Epoch, Protocol::Gwsn] {
        is_caught(protocol, Mutant::IgnoreOtherLanes, &["I1", "I4"]);
    }
}

#[test]
fn forgetting_a_dependency_is_caught() {
    is_caught(Protocol::Gsn, Mutant::ForgetDependencies, &["I3"]);
}

#[test]
fn acknowledging_after_the_first_part_is_caught() {
    for protocol in Protocol::ALL {
        is_caught_in_tablespaces(protocol, Mutant::AcknowledgeFirstPart, &["I1"]);
        is_caught_in_tablespaces(protocol, Mutant::IgnorePendingParts, &["I1", "I2", "I4"]);
    }
}

#[test]
fn parts_without_their_count_are_caught() {
    for protocol in Protocol::ALL {
        is_caught_in_tablespaces(protocol, Mutant::PartsWithoutCount, &["I2"]);
    }
}

#[test]
fn a_cut_for_each_lane_is_caught() {
    for protocol in [Protocol::GwsnStrict, Protocol::Gwsn, Protocol::Gsn] {
        is_caught_in_tablespaces(protocol, Mutant::CutPartsByLane, &["I2"]);
    }
}

/// Under `gwsn-strict`, dependencies are durable before an append. The others need a cut that is closed.
#[test]
fn keeping_dependents_of_a_torn_transaction_is_caught() {
    for protocol in [
        Protocol::Serial,
        Protocol::Aether,
        Protocol::Glsn,
        Protocol::Epoch,
        Protocol::Gsn,
        Protocol::Gwsn,
    ] {
        let by = ["I3", "Lemma 4"];
        is_caught_in_tablespaces(protocol, Mutant::KeepDependentsOfTorn, &by);
    }
}

#[test]
fn waiting_for_no_part_of_a_dependency_is_caught() {
    let by = ["I3", "Lemma 4", "Lemma 9"];
    is_caught_in_tablespaces(Protocol::Gwsn, Mutant::AwaitNoPart, &by);
}

#[test]
fn forgetting_what_checkpoints_have_is_caught() {
    for protocol in Protocol::ALL {
        is_caught_in_tablespaces(protocol, Mutant::ForgetCheckpoints, &["I1", "I2"]);
    }
}

#[test]
fn a_checkpoint_before_the_other_lanes_is_caught() {
    for protocol in Protocol::ALL {
        is_caught_in_tablespaces(protocol, Mutant::CheckpointBeforeOtherLanes, &["I2", "I3"]);
    }
}

/// An idle lane delays no transaction: in every case, a state is reached in which everything is
/// acknowledged although a lane never wrote.
#[test]
fn an_idle_lane_delays_no_thread() {
    let script = [on_lane(0, 0, 0), on_lane(1, 1, 1)];
    for protocol in Protocol::ALL {
        let rules = Rules::new(protocol, Mutant::None);
        let mut state = State::new(&script);
        // Always takes the first possible step, until there is none.
        while let Some((_, next)) = machine::steps(&rules, &script, &state).pop() {
            state = next;
        }
        for transaction in 0..script.len() {
            assert!(
                rules.is_acknowledged(&state, transaction),
                "{protocol:?}: T{transaction} waits for a lane that is idle"
            );
        }
    }
}
