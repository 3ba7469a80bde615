//! A transaction from its beginning to its acknowledgement.

use std::time::Duration;

use braid::tablespace::TablespaceError;
use braid::{
    Durability, Error, Health, Isolation, Result, Ticket, Transaction, TransactionOptions,
};

use super::body::Body;
use super::{Client, Next};
use crate::record::{Op, Outcome, Tx, View};

/// A transaction that is ready to commit, or has failed.
struct Started {
    body: Body,
    /// Whether its operations succeeded.
    performed: Result<()>,
    durability: Durability,
    /// Whether the database had failed before it began.
    was_poisoned: bool,
    begun: u64,
}

/// How a transaction ended.
struct Ended {
    outcome: Outcome,
    acknowledged: bool,
    /// A ticket that is still to be waited for.
    ticket: Option<Ticket>,
    next: Next,
}

impl Client {
    pub(super) fn transaction(&mut self) -> Next {
        let started = self.start();
        if self.plan.careless && self.rng.u32(..4) == 0 {
            // Another transaction of the same thread, within the first.
            let inside = self.start();
            if let Next::End = self.conclude(inside) {
                started.body.tx.abort();
                return Next::End;
            }
        }
        self.conclude(started)
    }

    /// Begins a transaction, and performs its operations.
    fn start(&mut self) -> Started {
        let id = self.next_name();
        let draw = self.rng.u32(..16);
        let lock_timeout = match draw {
            14 => Some(Duration::from_micros(20)),
            15 => Some(Duration::ZERO),
            _ => None,
        };
        let durability = match draw {
            0 => Durability::None,
            1 => Durability::Buffered(Duration::from_micros(self.rng.u64(1..500))),
            _ => Durability::Immediate,
        };
        let options = TransactionOptions {
            isolation: if self.plan.snapshot {
                Isolation::Snapshot
            } else {
                Isolation::Serializable
            },
            durability,
            lock_timeout,
        };
        let was_poisoned = self.is_poisoned();
        let visible_seqno = was_poisoned.then(|| self.db.snapshot().seqno());
        let begun = self.notes.now();
        let mut tx = self.db.begin_with(options);
        tx.set_nonblocking(self.plan.large && id % 4 == 1);
        let mut body = Body::new(tx, id);
        let performed = self.perform(&mut body);
        if let Some(seqno) = visible_seqno {
            self.seen_after_failure(seqno, &body.ops);
        }
        self.linger();
        Started {
            body,
            performed,
            durability,
            was_poisoned,
            begun,
        }
    }

    /// Ends a transaction and takes notes of it.
    fn conclude(&mut self, started: Started) -> Next {
        let Body { tx, id, ops } = started.body;
        let mut ended = self.end(tx, started.performed, started.durability);
        if started.was_poisoned {
            match ended.outcome {
                Outcome::Committed(_) if ops.iter().any(Op::is_write) => {
                    return self.accepted("a commit");
                }
                // It was refused before it was logged.
                Outcome::InDoubt => ended.outcome = Outcome::Aborted,
                Outcome::Committed(_) | Outcome::Aborted => {}
            }
        }
        let index = self.notes.transaction(Tx {
            id,
            ops,
            outcome: ended.outcome,
            acknowledged: ended.acknowledged,
            snapshot: self.plan.snapshot,
            begun: started.begun,
            ended: self.notes.now(),
        });
        match ended.ticket {
            Some(ticket) => self.settle(index, ticket),
            None => ended.next,
        }
    }

    /// Commits or aborts a transaction; aborts it if an operation failed.
    fn end(&mut self, tx: Transaction, performed: Result<()>, durability: Durability) -> Ended {
        let mut ended = Ended {
            outcome: Outcome::Aborted,
            acknowledged: false,
            ticket: None,
            next: Next::Go,
        };
        match performed {
            Err(error) => {
                ended.next = self.failed(&error);
                tx.abort();
            }
            Ok(()) if self.rng.u32(..16) == 0 => tx.abort(),
            Ok(()) if self.rng.u32(..3) == 0 => match tx.commit() {
                Ok(commit) => {
                    ended.outcome = Outcome::Committed(commit.seqno());
                    ended.acknowledged = durability == Durability::Immediate;
                }
                Err(error) => (ended.outcome, ended.next) = self.commit_failed(&error),
            },
            Ok(()) => match tx.commit_async() {
                Ok(ticket) => {
                    ended.outcome = Outcome::Committed(ticket.seqno());
                    ended.ticket = Some(ticket);
                }
                Err(error) => (ended.outcome, ended.next) = self.commit_failed(&error),
            },
        }
        ended
    }

    fn commit_failed(&mut self, error: &Error) -> (Outcome, Next) {
        let next = self.failed(error);
        let known = match error {
            // Closing waits for those that are logged.
            Error::Conflict(_)
            | Error::NotInMemory(_)
            | Error::SelfDeadlock
            | Error::LockTimeout { .. }
            | Error::Tablespace(TablespaceError::Failed { .. })
            | Error::Closed => true,
            // Refused before it was logged, unless this error ended the database.
            Error::OutOfSpace { .. } => !matches!(self.db.health(), Health::Poisoned { .. }),
            _ => false,
        };
        let outcome = if known {
            Outcome::Aborted
        } else {
            Outcome::InDoubt
        };
        (outcome, next)
    }

    /// Waits for a ticket, or keeps it to poll it later.
    fn settle(&mut self, index: usize, ticket: Ticket) -> Next {
        if self.plan.careless && self.rng.u32(..3) == 0 {
            let (notes, panics) = (self.notes.clone(), self.rng.bool());
            let durable = move || notes.acknowledge(index);
            self.background.callbacks.register(ticket, panics, durable);
            return Next::Go;
        }
        if self.rng.bool() {
            self.notes.keep(index, ticket);
            return Next::Go;
        }
        match ticket.wait() {
            Ok(_) => {
                self.notes.acknowledge(index);
                Next::Go
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Records that a transaction begun after a failure saw the state at the visible seqno, whether
    /// it commits or not.
    fn seen_after_failure(&self, seqno: u64, ops: &[Op]) {
        let reads = ops
            .iter()
            .take_while(|op| matches!(op, Op::Get(..) | Op::Scan(..)));
        let ops: Vec<Op> = reads.cloned().collect();
        if self.db.snapshot().seqno() == seqno {
            self.notes.view(View { seqno, ops });
        }
    }
}
