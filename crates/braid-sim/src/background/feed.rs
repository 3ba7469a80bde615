//! A change feed's consumer: it receives exactly the committed transactions, in order, over all
//! crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use braid::changes::ChangeSet;
use braid::{Database, Key as _, Result};
use fastrand::Rng;

use super::{Checked, Shared, is_fault};
use crate::check::Violation;
use crate::keys::TableKey;
use crate::record::{Key, Op, Outcome, Round, TxId, Version};

const NAME: &str = "consumer";

/// Errors after which a consumer continues.
const ERRORS_MAX: u32 = 5;

/// A transaction's writes by key.
type Writes = BTreeMap<Key, Option<Version>>;

#[derive(Default)]
struct State {
    /// All transactions received, by number.
    shown: BTreeMap<u64, TxId>,
    /// The feed was acknowledged at least up to the first number, at most up to the second.
    acknowledged: (u64, u64),
    of_round: Shown,
}

/// The transactions received in a round: everything after the first number of each span up to the
/// second.
#[derive(Default)]
pub(crate) struct Shown {
    sets: Vec<(u64, TxId, Writes)>,
    spans: Vec<(u64, u64)>,
}

/// The consumer of a history.
#[derive(Clone, Default)]
pub(crate) struct Consumer(Shared<State>);

/// Decodes the transaction and its writes. Returns `None` if it is not a client's transaction.
fn decode(set: &ChangeSet) -> Option<(TxId, Writes)> {
    let mut id = None;
    let mut writes = Writes::new();
    for change in &set.changes {
        let key = change.key.clone();
        match change.table.as_deref() {
            Some("marks") => {
                let own = u64::from_key_bytes(key).expect("a mark's key");
                assert!(id.is_none(), "two marks in the set {}", set.seqno);
                id = Some(own);
            }
            Some(name) if name.starts_with("values") => {
                let key = TableKey::from_key_bytes(key).expect("a key").0;
                let version = change.value.as_ref().map(|bytes| {
                    Version::decode(bytes).expect("a feed shows values that somebody wrote")
                });
                writes.insert(key, version);
            }
            _ => {}
        }
    }
    if id.is_none() {
        assert!(
            writes.is_empty(),
            "writes without a mark in the set {}",
            set.seqno
        );
    }
    id.map(|id| (id, writes))
}

impl State {
    /// Records a transaction. A transaction that was received before must be identical.
    fn show(&mut self, set: &ChangeSet) -> Option<(TxId, Writes)> {
        let (id, writes) = decode(set)?;
        let before = self.shown.insert(set.seqno, id);
        assert!(
            before.is_none_or(|before| before == id),
            "the feed showed {before:?} at number {}, and now {id}",
            set.seqno
        );
        Some((id, writes))
    }
}

impl Consumer {
    /// Reads the feed until `over`.
    pub(crate) fn run(&self, db: &Database, seed: u64, over: &Arc<AtomicBool>) {
        let mut rng = Rng::with_seed(seed);
        for _ in 0..ERRORS_MAX {
            match self.follow(db, &mut rng, over) {
                Ok(()) => return,
                Err(error) if is_fault(&error) => {}
                Err(error) => panic!("the feed fails: {error}"),
            }
            braid_rt::sleep(Duration::from_millis(1));
        }
    }

    fn follow(&self, db: &Database, rng: &mut Rng, over: &AtomicBool) -> Result<()> {
        let feed = db.feed(NAME)?;
        let mut changes = feed.changes()?;
        let from = changes.position().seqno();
        self.0.lock().of_round.spans.push((from, from));
        let mut last = from;
        // Relaxed: late is good, too.
        while !over.load(Ordering::Relaxed) {
            let set = changes.next_within(Duration::from_micros(rng.u64(20..400)))?;
            let to = changes.position();
            {
                let mut state = self.0.lock();
                if let Some(set) = set {
                    assert!(
                        last < set.seqno,
                        "the feed showed {last} before {}",
                        set.seqno
                    );
                    last = set.seqno;
                    if let Some((id, writes)) = state.show(&set) {
                        state.of_round.sets.push((set.seqno, id, writes));
                    }
                }
                let span = state
                    .of_round
                    .spans
                    .last_mut()
                    .expect("the round was started");
                span.1 = to.seqno();
            }
            if rng.u32(..4) == 0 {
                self.expect(to.seqno(), false);
                feed.acknowledge(to)?;
                self.expect(to.seqno(), true);
            }
        }
        Ok(())
    }

    /// Records that the feed is about to be acknowledged up to a number, or that this is `done`.
    fn expect(&self, seqno: u64, done: bool) {
        let mut state = self.0.lock();
        let (least, most) = state.acknowledged;
        let least = if done { seqno.max(least) } else { least };
        state.acknowledged = (least, seqno.max(most));
    }

    /// Takes the transactions received in a round.
    pub(crate) fn take_round(&self) -> Shown {
        std::mem::take(&mut self.0.lock().of_round)
    }

    /// Checks that the received changes of a round match its transactions.
    pub(crate) fn check_round(
        &self,
        Shown { sets, spans }: Shown,
        round: &Round,
    ) -> std::result::Result<(), Violation> {
        let state = self.0.lock();
        for (seqno, id, writes) in sets {
            let Some(tx) = round.txs.iter().find(|tx| tx.id == id) else {
                continue;
            };
            match tx.outcome {
                Outcome::Committed(own) if own == seqno => {}
                Outcome::InDoubt => {}
                outcome => {
                    return Err(format!(
                        "the feed showed {id} at {seqno}; it was {outcome:?}"
                    ));
                }
            }
            let mut last = Writes::new();
            for op in &tx.ops {
                match op {
                    Op::Put(key, version) => drop(last.insert(*key, Some(version.clone()))),
                    Op::Remove(key) => drop(last.insert(*key, None)),
                    _ => {}
                }
            }
            // A key that was inserted and removed in one transaction may be reported as removed, or
            // not at all.
            let there = |writes: &Writes| -> Vec<(Key, Version)> {
                let puts = writes.iter();
                puts.filter_map(|(key, version)| Some((*key, version.clone()?)))
                    .collect()
            };
            let made_up = writes.keys().any(|key| !last.contains_key(key));
            if there(&writes) != there(&last) || made_up {
                return Err(format!(
                    "the feed showed {id} with other writes than it made"
                ));
            }
        }
        for tx in round.txs.iter().filter(|tx| tx.writes()) {
            if let Outcome::Committed(seqno) = tx.outcome
                && spans.iter().any(|&(from, to)| from < seqno && seqno <= to)
                && !state.shown.contains_key(&seqno)
            {
                return Err(format!("the feed left {} out, at number {seqno}", tx.id));
            }
        }
        Ok(())
    }

    /// Checks the feed after an opening: it continues where it was acknowledged, and delivers all
    /// the rest.
    pub(crate) fn check_opened(&self, db: &Database, marks: &BTreeSet<TxId>) -> Checked {
        let feed = db.feed(NAME)?;
        let from = feed.position()?.seqno();
        let mut state = self.0.lock();
        let (least, most) = state.acknowledged;
        if state.shown.is_empty() && most == 0 {
            // The feed may have just been created.
        } else if from < least || from > most.max(least) {
            return Ok(Err(format!(
                "the feed is at {from}, and was acknowledged between {least} and {most}"
            )));
        }
        state.acknowledged = (from, from);
        drop(state);
        let mut sets = Vec::new();
        for set in feed.changes()? {
            sets.push(set?);
        }
        let mut state = self.0.lock();
        let before: Vec<(u64, TxId)> = state.shown.iter().map(|(n, id)| (*n, *id)).collect();
        let mut shown: BTreeMap<u64, TxId> = BTreeMap::new();
        let mut last = from;
        for set in &sets {
            if set.seqno <= last {
                return Ok(Err(format!("the feed showed {last} before {}", set.seqno)));
            }
            last = set.seqno;
            if let Some((id, _)) = state.show(set) {
                shown.insert(set.seqno, id);
            }
        }
        let lost = |(seqno, id): &&(u64, TxId)| *seqno > from && shown.get(seqno) != Some(id);
        if let Some((seqno, id)) = before.iter().find(lost) {
            return Ok(Err(format!(
                "I4: the feed had shown {id} at {seqno}, and shows it no more"
            )));
        }
        let all: BTreeSet<TxId> = state.shown.values().copied().collect();
        let missing = marks.difference(&all).next();
        let undone = all.difference(marks).next();
        Ok(match (missing, undone) {
            (Some(id), _) => Err(format!(
                "{id} is there, and the feed from {from} on left it out"
            )),
            (_, Some(id)) => Err(format!("the feed showed {id}, which is not there")),
            _ => Ok(()),
        })
    }
}
