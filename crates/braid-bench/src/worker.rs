//! One thread of a run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use braid::Ticket;

use crate::BenchError;
use crate::driver::{Access, Client, Step};
use crate::engines::{Acknowledgement, Mode, Session, Stop, Wait};
use crate::tally::{Phase, PhaseCell, Tally, nanos};

/// One of this many transactions is timed where reading the clock would be a large part of the
/// cost: reads, and the beginning of writes in flight.
const SAMPLE: u64 = 16;

/// A commit in flight.
struct Outstanding {
    ticket: Ticket,
    called: Instant,
    begun: Option<Instant>,
    step: Step,
}

/// State of one thread. All of it is private to the thread, except the two references to counters.
pub(crate) struct Worker<'a> {
    session: Box<dyn Session + 'a>,
    client: Box<dyn Client + 'a>,
    in_flight: usize,
    wait: Wait,
    /// One of this many transactions is timed from its beginning.
    sample: u64,
    /// Number of finished transactions, for the progress display.
    done: &'a AtomicU64,
    phase: &'a PhaseCell,
    tally: Tally,
    outstanding: VecDeque<Outstanding>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        session: Box<dyn Session + 'a>,
        client: Box<dyn Client + 'a>,
        kinds: usize,
        in_flight: usize,
        done: &'a AtomicU64,
        phase: &'a PhaseCell,
    ) -> Self {
        let waits = in_flight == 1;
        Worker {
            session,
            client,
            in_flight,
            wait: if waits { Wait::Durable } else { Wait::Ticket },
            // Rare or large transactions are all timed.
            sample: if waits || kinds > 0 { 1 } else { SAMPLE },
            done,
            phase,
            tally: Tally::new(kinds),
            outstanding: VecDeque::with_capacity(in_flight),
        }
    }

    /// Runs transactions until the phase ends, and then waits for those in flight without counting
    /// them; or until the client has no more, and then counts those in flight.
    pub(crate) fn run(mut self) -> Result<Tally, BenchError> {
        let mut phase = Phase::WarmUp;
        let mut done = 0_u64;
        loop {
            let now = self.phase.get();
            if now != phase {
                phase = now;
                match phase {
                    Phase::Measure => self.tally.reset(),
                    Phase::Stop => break,
                    Phase::WarmUp => {}
                }
            }
            let Some(step) = self.client.draw() else {
                while let Some(oldest) = self.outstanding.pop_front() {
                    self.wait_for(oldest)?;
                }
                break;
            };
            match step.access {
                Access::Write => self.write(step, done)?,
                Access::Read | Access::Get => self.read(step)?,
            }
            done += 1;
            self.done.store(done, Ordering::Relaxed);
        }
        for commit in self.outstanding {
            commit.ticket.wait()?;
            self.client.acknowledged(commit.step.token);
        }
        Ok(self.tally)
    }

    /// Attempts a writing transaction until it succeeds without a conflict.
    fn write(&mut self, step: Step, ordinal: u64) -> Result<(), BenchError> {
        let begun = ordinal.is_multiple_of(self.sample).then(Instant::now);
        for tries in 0.. {
            let mut called = None;
            let client = &mut self.client;
            let outcome = self
                .session
                .transact(Mode::ReadWrite, self.wait, &mut |tx| {
                    client.execute(tx)?;
                    called = Some(Instant::now());
                    Ok(())
                });
            match outcome {
                Ok(acknowledgement) => {
                    // An engine that did not call the body has committed nothing.
                    let called = called.unwrap_or_else(Instant::now);
                    match acknowledgement {
                        Acknowledgement::Durable => {
                            self.acknowledged(step, called, begun, Instant::now());
                        }
                        Acknowledgement::Pending(ticket) => {
                            self.outstanding.push_back(Outstanding {
                                ticket,
                                called,
                                begun,
                                step,
                            });
                            self.settle()?;
                        }
                    }
                    return Ok(());
                }
                Err(Stop::RolledBack) => {
                    self.tally.rolled_back += 1;
                    if let Some(kind) = self.tally.kinds.get_mut(step.kind) {
                        kind.rolled_back += 1;
                    }
                    return Ok(());
                }
                Err(stop) => self.conflict(stop, tries)?,
            }
        }
        Ok(())
    }

    /// Counts a conflict, and backs off as [`braid::Database::transact`] does: with few processors,
    /// the other transaction, which holds the needed lock, must get to run.
    fn conflict(&mut self, stop: Stop, tries: u32) -> Result<(), BenchError> {
        match stop {
            Stop::Conflict => {
                self.tally.aborts += 1;
                braid_rt::thread::back_off(tries);
                Ok(())
            }
            Stop::RolledBack => Err(BenchError::RolledBackRead),
            Stop::Failed(error) => Err(error),
        }
    }

    /// Acknowledges the oldest durable commits; waits for the oldest one if the limit is reached.
    #[inline]
    fn settle(&mut self) -> Result<(), BenchError> {
        if self.outstanding.len() >= self.in_flight
            && let Some(oldest) = self.outstanding.pop_front()
        {
            self.wait_for(oldest)?;
        }
        if self
            .outstanding
            .front()
            .is_some_and(|oldest| oldest.ticket.is_durable())
        {
            // One clock reading for all commits that became durable together.
            let now = Instant::now();
            while let Some(oldest) = self.outstanding.front()
                && oldest.ticket.is_durable()
            {
                let (step, called, begun) = (oldest.step, oldest.called, oldest.begun);
                self.outstanding.pop_front();
                self.acknowledged(step, called, begun, now);
            }
        }
        Ok(())
    }

    fn wait_for(&mut self, commit: Outstanding) -> Result<(), BenchError> {
        commit.ticket.wait()?;
        self.acknowledged(commit.step, commit.called, commit.begun, Instant::now());
        Ok(())
    }

    #[inline]
    fn acknowledged(&mut self, step: Step, called: Instant, begun: Option<Instant>, now: Instant) {
        let tally = &mut self.tally;
        tally.commits += 1;
        tally.bytes += u64::from(step.bytes);
        tally
            .commit_latency
            .saturating_record(nanos(now.duration_since(called)));
        if let Some(begun) = begun {
            let response = nanos(now.duration_since(begun));
            tally.response.saturating_record(response);
            if let Some(kind) = tally.kinds.get_mut(step.kind) {
                kind.done += 1;
                kind.response.saturating_record(response);
            }
        }
        self.client.acknowledged(step.token);
    }

    #[inline]
    fn read(&mut self, step: Step) -> Result<(), BenchError> {
        let every = if self.tally.kinds.is_empty() {
            SAMPLE
        } else {
            1
        };
        let begun = self.tally.reads.is_multiple_of(every).then(Instant::now);
        for tries in 0.. {
            let client = &mut self.client;
            let outcome = if step.access == Access::Get {
                client.get(self.session.as_mut())
            } else {
                self.session
                    .transact(Mode::ReadOnly, Wait::Durable, &mut |tx| client.execute(tx))
                    .map(|_| true)
            };
            match outcome {
                Ok(found) => {
                    self.tally.missing += u64::from(!found);
                    break;
                }
                Err(stop) => self.conflict(stop, tries)?,
            }
        }
        self.tally.reads += 1;
        if let Some(begun) = begun {
            let taken = nanos(begun.elapsed());
            self.tally.read_latency.saturating_record(taken);
            if let Some(kind) = self.tally.kinds.get_mut(step.kind) {
                kind.done += 1;
                kind.response.saturating_record(taken);
            }
        }
        Ok(())
    }
}
