//! Replies of a connection: in the order of the requests, each when what its command read and wrote is
//! durable.

use std::collections::VecDeque;

use braid_rt::mutant;
use tokio::time::Instant;

use super::joined::Done;
use super::{Connection, buffers};
use crate::executor::Within;
use crate::failure::Failure;
use crate::flushes;
use crate::resp::{Protocol, Reply};
use crate::session::Replies;

/// Pending replies for which an idle connection keeps memory.
const PENDING_USUAL: usize = 4;

/// A reply that waits for the device or its turn.
#[derive(Debug)]
pub(super) struct Pending {
    reply: Reply,
    /// Number of requests that it answers.
    requests: usize,
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
        let is_next = self.pending.is_empty() || mutant!("server_reply_out_of_turn");
        if seqno.is_none() && is_next {
            buffers::begin_output(&mut self.output);
            reply.encode(self.session.protocol, &mut self.output);
            return;
        }
        self.wait_for(reply, 1, seqno);
    }

    /// Queues the replies to requests that ran in one transaction.
    pub(super) fn reply_together(&mut self, replies: Vec<Reply>, seqno: Option<u64>) {
        if seqno.is_none() || self.session.replies != Replies::On {
            replies
                .into_iter()
                .for_each(|reply| self.reply(reply, seqno));
            return;
        }
        let requests = replies.len();
        self.wait_for(Reply::Several(replies), requests, seqno);
    }

    /// Answers writes that ran together with those of other connections: at once if they are durable, as
    /// nearly always.
    pub(super) fn reply_joined(&mut self, done: Done) {
        let Done {
            reply,
            seqno,
            since,
            ..
        } = done;
        let is_next = self.pending.is_empty() && self.session.replies == Replies::On;
        if is_next
            && let Some(seqno) = seqno
            && seqno <= self.shared.keyspace.db.durable_seqno()
        {
            let requests = match &reply {
                Reply::Several(replies) => replies.len(),
                _ => 1,
            };
            self.count_writes(since, requests as u64);
            buffers::begin_output(&mut self.output);
            return reply.encode(self.session.protocol, &mut self.output);
        }
        let before = self.pending.len();
        match reply {
            Reply::Several(replies) => self.reply_together(replies, seqno),
            reply => self.reply(reply, seqno),
        }
        let replies = self.pending.iter_mut().skip(before);
        replies.for_each(|pending| pending.since = since);
    }

    /// Queues a reply to a number of requests.
    fn wait_for(&mut self, reply: Reply, requests: usize, seqno: Option<u64>) {
        let weight = reply.weight();
        self.pending_bytes += weight;
        self.pending.push_back(Pending {
            reply,
            requests,
            protocol: self.session.protocol,
            seqno,
            weight,
            since: Instant::now(),
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
            let (since, writes) = (front.since, front.requests);
            if seqno.is_some() {
                self.count_writes(since, writes as u64);
            }
            self.finish_front(outcome);
        }
    }

    /// Counts writes that had run at a time and are answered now.
    fn count_writes(&self, since: Instant, writes: u64) {
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
        if self.pending.is_empty() && self.pending.capacity() > PENDING_USUAL {
            self.pending = VecDeque::new();
        }
        buffers::begin_output(&mut self.output);
        match outcome {
            Ok(()) => front.reply.encode(front.protocol, &mut self.output),
            // Only reopening the database shows whether the writes survived.
            Err(error) => {
                let reply = Failure::from(error).to_reply();
                for _ in 0..front.requests {
                    if let Reply::Error(text) = &reply {
                        self.shared.errors.count(text);
                    }
                    reply.encode(front.protocol, &mut self.output);
                }
            }
        }
    }
}
