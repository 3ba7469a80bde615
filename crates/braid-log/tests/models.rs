//! The commit protocols as small state machines, explored exhaustively.
//!
//! [`machine`] holds the common part of all protocols: transactions that lock, read, assign, append
//! and apply; lanes whose flushes are sealed and land, or are lost. [`rules`] holds the
//! differences: when locks are released, what an append waits for, which transactions are
//! acknowledged, what recovery keeps. In every state the power may fail, with every subset of the
//! flushes in flight arriving; [`properties`] lists the properties that must then hold.
//! [`mutants`](rules::Mutant) break a rule each, and the exploration must find the consequence.
//!
//! Bounds: every script of 3 transactions over 2 keys on up to 3 lanes, and chosen scripts of 4
//! transactions over 3 keys on 3 lanes; one flush of a lane in flight at a time; two ends of
//! epochs.

#[path = "models/machine.rs"]
mod machine;
#[path = "models/properties.rs"]
mod properties;
#[path = "models/rules.rs"]
mod rules;

use std::collections::HashMap;

use machine::{Script, State, Step};
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

/// All scripts of `transactions` transactions over `keys` keys on `lanes` lanes, up to renaming
/// keys and lanes, and up to the order of the transactions.
fn all_scripts(transactions: usize, keys: u8, lanes: u8) -> Vec<Vec<Script>> {
    let mut one = Vec::new();
    for read in 0..keys {
        for write in 0..keys {
            for lane in 0..lanes {
                one.push(Script { read, write, lane });
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
            && firsts(script.iter().map(|s| s.lane).collect())
    };
    scripts.retain(is_canonical);
    scripts
}

/// Chains, fans, and the failures of the published traps: four transactions, three keys, three
/// lanes.
fn chosen_scripts() -> Vec<Vec<Script>> {
    let script = |moves: [(u8, u8, u8); 4]| {
        let one = |(read, write, lane)| Script { read, write, lane };
        moves.map(one).to_vec()
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

fn lanes(protocol: Protocol) -> u8 {
    if protocol.has_one_lane() { 1 } else { 3 }
}

fn scripts(protocol: Protocol) -> Vec<Vec<Script>> {
    let mut scripts = all_scripts(3, 2, lanes(protocol));
    let mut chosen = chosen_scripts();
    if protocol.has_one_lane() {
        chosen.iter_mut().flatten().for_each(|s| s.lane = 0);
    }
    scripts.append(&mut chosen);
    scripts
}

/// Explores everything. Asserts that nothing is violated, and that the exploration was not empty.
fn holds(protocol: Protocol) {
    let rules = Rules::new(protocol, Mutant::None);
    let mut states = 0;
    for script in scripts(protocol) {
        match explore(&rules, &script) {
            Ok(count) => states += count,
            Err(found) => panic!("{}", describe(&rules, &script, &found)),
        }
    }
    println!("{protocol:?}: {states} states");
    assert!(states > 30_000, "only {states} states");
}

/// The mutant must violate one of the properties in some script.
fn is_caught(protocol: Protocol, mutant: Mutant, by: &[&str]) {
    let rules = Rules::new(protocol, mutant);
    let mut chosen = chosen_scripts();
    if protocol.has_one_lane() {
        chosen.iter_mut().flatten().for_each(|s| s.lane = 0);
    }
    for script in chosen {
        if let Err(found) = explore(&rules, &script) {
            println!("{}", describe(&rules, &script, &found));
            let property = found.violation.property;
            assert!(by.contains(&property), "caught by {property}, not {by:?}");
            return;
        }
    }
    panic!("{protocol:?} with {mutant:?} violates nothing");
}

fn describe(rules: &Rules, script: &[Script], found: &Counterexample) -> String {
    let mut text = format!(
        "{:?} with {:?} violates {}: {}\n",
        rules.protocol, rules.mutant, found.violation.property, found.violation.what
    );
    for (i, s) in script.iter().enumerate() {
        text += &format!(
            "  T{i} reads key {} and writes key {} on lane {}\n",
            s.read, s.write, s.lane
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

/// An idle lane delays no transaction: in every case, a state is reached in which everything is
/// acknowledged although a lane never wrote.
#[test]
fn an_idle_lane_delays_no_thread() {
    let script = [(0, 0), (1, 1)].map(|(key, lane)| Script {
        read: key,
        write: key,
        lane,
    });
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
