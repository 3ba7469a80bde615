//! The notes that the clients of a round take.

use std::sync::{Arc, Mutex, MutexGuard};

use braid::Ticket;

use crate::check::Violation;
use crate::record::{Outcome, Round, State, Tx, View};

/// The notes of all clients. No task is interrupted while it holds their lock.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<NotesInner>>);

#[derive(Default)]
struct NotesInner {
    round: Round,
    clock: u64,
    /// Tickets that no client waits for, each with the index of its transaction.
    tickets: Vec<(usize, Ticket)>,
}

impl Notes {
    pub(crate) fn new(base: State) -> Self {
        let notes = Self::default();
        notes.lock().round.base = base;
        notes
    }

    fn lock(&self) -> MutexGuard<'_, NotesInner> {
        self.0.lock().expect("nobody panics while it is locked")
    }

    /// Advances the clock of events, and returns its time.
    pub(super) fn now(&self) -> u64 {
        let mut notes = self.lock();
        notes.clock += 1;
        notes.clock
    }

    /// Records a transaction that has ended, and returns its index.
    pub(super) fn transaction(&self, tx: Tx) -> usize {
        let txs = &mut self.lock().round.txs;
        txs.push(tx);
        txs.len() - 1
    }

    /// Records the contents of a snapshot.
    pub(crate) fn view(&self, view: View) {
        self.lock().round.views.push(view);
    }

    /// Keeps a ticket, to be polled at the end of the round.
    pub(super) fn keep(&self, index: usize, ticket: Ticket) {
        self.lock().tickets.push((index, ticket));
    }

    /// Records that a transaction is durable. Does nothing after the end of the round.
    pub(super) fn acknowledge(&self, index: usize) {
        if let Some(tx) = self.lock().round.txs.get_mut(index) {
            tx.acknowledged = true;
        }
    }

    /// Records that every transaction that had returned before `time` is durable.
    pub(super) fn acknowledge_before(&self, time: u64) {
        for tx in &mut self.lock().round.txs {
            if tx.ended < time && matches!(tx.outcome, Outcome::Committed(_)) {
                tx.acknowledged = true;
            }
        }
    }

    /// Records that every transaction is durable.
    pub(crate) fn acknowledge_all(&self) {
        self.acknowledge_before(u64::MAX);
    }

    /// Returns the highest sequence number that was acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        let notes = self.lock();
        let acknowledged = notes.round.txs.iter().filter(|tx| tx.acknowledged);
        let seqno = |tx: &Tx| match tx.outcome {
            Outcome::Committed(seqno) => seqno,
            _ => 0,
        };
        acknowledged.map(seqno).max().unwrap_or(0)
    }

    /// Takes the round, after polling the tickets that no client has polled.
    pub(crate) fn finish(&self) -> Round {
        let tickets = std::mem::take(&mut self.lock().tickets);
        let durable = tickets.iter().filter(|(_, ticket)| ticket.is_durable());
        let durable: Vec<usize> = durable.map(|(index, _)| *index).collect();
        // Dropping tickets may flush, so not under the lock.
        drop(tickets);
        let mut round = std::mem::take(&mut self.lock().round);
        for index in durable {
            round.txs[index].acknowledged = true;
        }
        round
    }

    /// As [`Notes::finish`], after the database was closed: every ticket then has an outcome.
    pub(crate) fn finish_closed(&self) -> Result<Round, Violation> {
        let tickets = std::mem::take(&mut self.lock().tickets);
        let open = tickets
            .iter()
            .find(|(_, ticket)| ticket.try_wait().is_none());
        if let Some((index, _)) = open {
            let id = self.lock().round.txs[*index].id;
            return Err(format!("I9: the ticket of {id} has no answer after close"));
        }
        self.lock().tickets = tickets;
        Ok(self.finish())
    }
}
