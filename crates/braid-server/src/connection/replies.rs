//! Replies of a connection: in the order of the requests, each when what its command read and wrote is
//! durable.

use braid_rt::mutant;
use tokio::time::Instant;

use super::Connection;
use crate::executor::Within;
use crate::failure::Failure;
use crate::flushes;
use crate::resp::{Protocol, Reply};
use crate::session::Replies;

/// A reply that waits for the device or its turn.
#[derive(Debug)]
pub(super) struct Pending {
    reply: Reply,
    protocol: Protocol,
    /// Sequence number up to which everything must be durable before the reply is sent.
    pub(super) seqno: Option<u64>,
    weight: usize,
    /// When the command had run.
    since: Instant,
    /// Until when the reply waits for the device, and the reply afterwards.
    limit: Option<Box<(Instant, Reply)>>,
}

impl Pending {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.limit.as_ref().map(|limit| limit.0)
    }

    /// Returns whether the reply has waited long enough; it is the other one then.
    fn has_timed_out(&mut self) -> bool {
        let over = self.limit.take_if(|limit| limit.0 <= Instant::now());
        if let Some(limit) = over {
            self.reply = limit.1;
            return true;
        }
        false
    }
}

impl Connection {
    /// Queues a reply that waits until everything up to a sequence number is durable, unless the client
    /// wants none.
    pub(super) fn reply(&mut self, reply: Reply, seqno: Option<u64>) {
        self.reply_since(reply, seqno, None);
    }

    /// Queues a reply as [`Connection::reply`], to a request that had run at a time, by default now.
    pub(super) fn reply_since(&mut self, reply: Reply, seqno: Option<u64>, since: Option<Instant>) {
        match self.session.replies {
            Replies::On => {}
            Replies::Off => return,
            Replies::SkipNext => {
                self.session.replies = Replies::Skip;
                return;
            }
            Replies::Skip => {
                self.session.replies = Replies::On;
                return;
            }
        }
        let protocol = self.session.protocol;
        let is_next = self.pending.is_empty() || mutant!("server_reply_out_of_turn");
        if seqno.is_none() && is_next {
            reply.encode(protocol, &mut self.output);
            return;
        }
        let weight = reply.weight();
        self.pending_bytes += weight;
        self.pending.push_back(Pending {
            reply,
            protocol,
            seqno,
            weight,
            since: since.unwrap_or_else(Instant::now),
            limit: None,
        });
    }

    /// Queues a reply that waits for the device until its time has passed.
    pub(super) fn reply_within(&mut self, within: Within) {
        let before = self.pending.len();
        self.reply(within.reply, Some(flushes::add(within.ticket)));
        // The client may want no reply.
        if let Some(pending) = self.pending.get_mut(before) {
            let deadline = Instant::now() + within.timeout;
            pending.limit = Some(Box::new((deadline, within.otherwise)));
        }
    }

    /// Encodes the replies whose turn it is.
    pub(super) fn collect_replies(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let db = &self.shared.keyspace.db;
        let durable = db.durable_seqno();
        // Writes that ran together are counted together.
        let (mut since, mut writes) = (None, 0);
        while let Some(front) = self.pending.front_mut() {
            let seqno = front.seqno;
            let outcome = match seqno {
                None => Ok(()),
                Some(_) if mutant!("server_reply_before_durable") => Ok(()),
                Some(seqno) if seqno <= durable => Ok(()),
                // Returns at once with the error.
                Some(seqno) if flushes::has_failed() => self.shared.keyspace.db.wait_durable(seqno),
                Some(_) if front.has_timed_out() => Ok(()),
                Some(_) => break,
            };
            let ran = front.since;
            if seqno.is_some() {
                if since != Some(ran) {
                    self.count_writes(since.replace(ran), writes);
                    writes = 0;
                }
                writes += 1;
            }
            self.finish_front(outcome);
        }
        self.count_writes(since, writes);
    }

    /// Counts writes that had run at a time and are answered now.
    fn count_writes(&self, since: Option<Instant>, writes: u64) {
        let Some(since) = since else {
            return;
        };
        let duration = since.elapsed();
        let activity = self.shared.activities.of(self.session.stripe);
        activity.writes.record_many(duration, writes);
        let threshold = self.shared.thresholds.spike();
        self.shared.spikes.add("commit", duration, threshold);
    }

    fn finish_front(&mut self, outcome: braid::Result<()>) {
        let Some(front) = self.pending.pop_front() else {
            return;
        };
        self.holds = false;
        self.pending_bytes -= front.weight;
        let reply = match outcome {
            Ok(()) => front.reply,
            // Only reopening the database shows whether the write survived.
            Err(error) => Failure::from(error).to_reply(),
        };
        reply.encode(front.protocol, &mut self.output);
    }
}
