//! A pending commit: one transaction while it is written to the log.

use std::sync::Arc;

use braid_rt::{Mark, SEQUENCE_NUMBER, excused};

use crate::base::numbers::{GroupNo, SeqNo};
use crate::buffer::commit_slots::CommitSlot;
use crate::buffer::slot::AssignedNumbers;
use crate::buffer::strand::Strand;
use crate::commit::parts::Parts;
use crate::commit::stream::{Large, Stream, payload_len};
use crate::commit::ticket::{StrandHandle, Ticket};
use crate::flush::core::Core;
use crate::flush::reservation::Reservation;
use crate::format::log_record::{LogRecordHeader, LogRecordKind};

/// One committing transaction: [`PendingCommit::assign`] its numbers, [`PendingCommit::append`] its
/// log record (or [`PendingCommit::abort`]), apply its writes, then [`PendingCommit::finish`].
///
/// From [`Log::enter`](crate::Log::enter) on, a pending commit holds the durable seqno back, so
/// that no transaction that depends on it is acknowledged before it is in the log. Keep it short,
/// or say that it [takes long](PendingCommit::begin_long_apply).
/// Dropping it without `finish` aborts assigned numbers. If its log record was appended, its writes
/// may be partly applied: dropping it then poisons the log, see [`PendingCommit::fail`].
#[derive(Debug)]
pub struct PendingCommit<'a> {
    strand_handle: &'a Arc<StrandHandle>,
    strand: &'a Strand,
    slot: CommitSlot,
    numbers: Option<AssignedNumbers>,
    /// From the assignment on, others wait for this thread, until it holds nothing back any more.
    mark: Mark,
    /// The flush group that takes the log record; [`GroupNo::NONE`] while nothing is appended.
    group: GroupNo,
    appended: bool,
    /// Whether the appended record holds writes, which must be applied.
    has_writes: bool,
    /// The dependencies that the log record names.
    dependencies: Vec<SeqNo>,
    reservation: Reservation,
    signature: u64,
    /// How long the commit holds back what is acknowledged.
    holds: Holds,
    /// What only few commits have. Boxed, so that the others are moved with a few instructions.
    more: Option<Box<More<'a>>>,
}

/// The state of a commit that is large, or lies in several lanes.
#[derive(Debug)]
pub(crate) enum More<'a> {
    /// The stream with the bytes of a large commit.
    Large { stream: Stream, _large: Large<'a> },
    /// The fragments of a commit in several lanes.
    Parts(Parts<'a>),
}

/// The part of a pending commit during which it holds back what is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// Until it leaves its commit slot.
    ToTheEnd,
    /// It no longer does. If `owes`, it has to [catch up](Core::catch_up) when it leaves.
    NoLonger { owes: bool },
    /// It has left its slot.
    Left,
}

impl<'a> PendingCommit<'a> {
    #[inline]
    pub(crate) fn new(
        strand_handle: &'a Arc<StrandHandle>,
        slot: CommitSlot,
        reservation: Reservation,
        more: Option<Box<More<'a>>>,
    ) -> Self {
        Self {
            strand_handle,
            strand: &strand_handle.core.strands[strand_handle.strand],
            slot,
            numbers: None,
            mark: Mark::none(),
            group: GroupNo::NONE,
            appended: false,
            has_writes: false,
            dependencies: Vec::new(),
            reservation,
            signature: u64::MAX,
            holds: Holds::ToTheEnd,
            more,
        }
    }

    /// Sets the write-set signature, a set of 64 bits whose meaning the caller defines: threads
    /// that wait for [writes elsewhere](crate::Log::wait_applied) need not wait for this
    /// transaction. Without a call, the signature matches everything. Must be called before the
    /// assignment.
    #[inline]
    pub fn set_signature(&mut self, signature: u64) {
        self.signature = signature;
    }

    /// Assigns `records` consecutive sequence numbers and returns the last, which is the
    /// transaction's sequence number. (`gsn` assigns one for the whole transaction.)
    ///
    /// From here on the log record must be appended or aborted; both work even when the log is
    /// poisoned.
    ///
    /// # Panics
    /// If `records` is 0, or numbers were assigned before.
    #[inline]
    pub fn assign(&mut self, records: u32) -> SeqNo {
        assert!(records > 0, "a transaction assigns at least one number");
        assert!(self.numbers.is_none(), "a transaction assigns once");
        let commit_slots = &self.strand_handle.core.commit_slots;
        let lane = self.strand.lane;
        let (first, last) =
            commit_slots.assign(self.slot, u64::from(records), lane, self.signature);
        self.numbers = Some(AssignedNumbers { first, last });
        self.mark = Mark::new(SEQUENCE_NUMBER);
        last
    }

    /// Returns the first number assigned; all numbers from it to the sequence number belong to this
    /// transaction.
    ///
    /// # Panics
    /// If no number was assigned.
    pub fn first_seqno(&self) -> SeqNo {
        self.numbers.expect("numbers are assigned").first
    }

    /// Names the transactions that this one read from or overwrote, by their sequence numbers, if
    /// the log [needs them](crate::Log::wants_dependencies). Must be called between assignment and
    /// append.
    ///
    /// Depending on the protocol, this waits until the transactions are sealed or durable, or
    /// records the relevant ones in the log record. All of them must have finished their append.
    ///
    /// # Panics
    /// If no number was assigned, or something was appended before.
    pub fn depends_on(&mut self, numbers: &[SeqNo]) {
        let seqno = self.numbers.expect("numbers are assigned").last;
        assert!(!self.appended, "dependencies come before the log record");
        let core = &self.strand_handle.core;
        let is_own = |lane| match self.more.as_deref() {
            Some(More::Parts(parts)) => parts.lie_in(lane),
            _ => lane == self.strand.lane,
        };
        let depend = || core.depend(is_own, seqno, numbers);
        let why = "the protocol acknowledges in this order";
        self.dependencies = excused(SEQUENCE_NUMBER, why, depend);
    }

    /// Copies the transaction's log record, the concatenation of `payload`, into the strand's
    /// buffer: the same bytes as passed to [`Log::enter`](crate::Log::enter). If the commit is large,
    /// `enter` has written them, and this copies its commit record. Waits for buffer space if there
    /// is none, and helps to flush.
    ///
    /// # Panics
    /// If no number was assigned, or something was appended before, or the payload of a large
    /// commit has another length.
    #[inline]
    pub fn append(&mut self, payload: &[&[u8]]) {
        self.has_writes = true;
        if self.dependencies.is_empty() && self.more.is_none() {
            return self.put(LogRecordKind::Data, payload);
        }
        self.append_named(payload);
    }

    /// Appends a log record that names dependencies, a stream, or both.
    #[inline(never)]
    fn append_named(&mut self, payload: &[&[u8]]) {
        if matches!(self.more.as_deref(), Some(More::Parts(_))) {
            let on = std::mem::take(&mut self.dependencies);
            return self.put_parts(|parts, numbers| parts.append(numbers, &on));
        }
        let stream = self.stream().map(|s| (s.number, s.total));
        let head = stream.map(|(number, total)| [number, total]);
        let dependencies = self.dependencies.iter().map(|seqno| seqno.get());
        let words = head.into_iter().flatten().chain(dependencies);
        let named: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        if let Some((stream, total)) = stream {
            let bytes = payload_len(payload) as u64;
            assert_eq!(bytes, total, "the bytes are those of the stream");
            return self.put(LogRecordKind::Commit { stream, total }, &[&named]);
        }
        let kind = LogRecordKind::Dependent {
            dependencies: named.len(),
        };
        let parts: Vec<&[u8]> = std::iter::once(&named[..])
            .chain(payload.iter().copied())
            .collect();
        self.put(kind, &parts);
    }

    /// Says that the transaction's writes take long to be applied. Other transactions are then
    /// acknowledged without waiting for it; only what is [visible](crate::Log::visible_seqno) does.
    /// Must be called after [`PendingCommit::append`].
    ///
    /// # Panics
    /// If nothing was appended.
    #[cold]
    pub fn begin_long_apply(&mut self) {
        assert!(self.has_writes, "a logged transaction is applied");
        if self.holds != Holds::ToTheEnd || braid_rt::mutant!("hold_acknowledgements") {
            return;
        }
        let core = &self.strand_handle.core;
        core.commit_slots.note_logged(self.slot, self.first_seqno());
        let owes = core.logged(self.strand.lane);
        self.holds = Holds::NoLonger { owes };
        self.mark = Mark::none();
    }

    /// Aborts the transaction. Logs an abort record for its assigned numbers, so that no number is
    /// missing.
    ///
    /// # Panics
    /// If no number was assigned, or something was appended before.
    #[cold]
    pub fn abort(&mut self) {
        if !self.dependencies.is_empty() {
            self.dependencies.clear();
            let lanes = self.strand_handle.core.acknowledgement.lanes();
            if let (Some(hardening), Some(numbers)) = (lanes, self.numbers) {
                hardening.forget(numbers.last);
            }
        }
        if braid_rt::mutant!("forget_abort_records") {
            return;
        }
        if matches!(self.more.as_deref(), Some(More::Parts(_))) {
            return self.put_parts(Parts::abort);
        }
        let stream = self.stream().map(|s| s.number.to_le_bytes());
        let payload = stream.as_ref().map(|number| &number[..]);
        self.put(LogRecordKind::Abort, payload.as_slice());
    }

    fn stream(&self) -> Option<Stream> {
        match self.more.as_deref() {
            Some(More::Large { stream, .. }) => Some(*stream),
            _ => None,
        }
    }

    /// Appends the records of a commit in several lanes.
    #[cold]
    fn put_parts(&mut self, put: impl FnOnce(&mut Parts<'a>, AssignedNumbers) -> GroupNo) {
        let numbers = self
            .numbers
            .expect("numbers are assigned before a log record is appended");
        assert!(!self.appended, "a transaction is appended once");
        self.appended = true;
        if let Some(More::Parts(parts)) = self.more.as_deref_mut() {
            self.group = put(parts, numbers);
        }
    }

    #[inline]
    fn put(&mut self, kind: LogRecordKind, payload: &[&[u8]]) {
        let numbers = self
            .numbers
            .expect("numbers are assigned before a log record is appended");
        assert!(!self.appended, "a transaction appends one log record");
        self.appended = true;
        let strand = self.strand;
        let len = payload_len(payload);
        self.group = if strand.consolidates() {
            self.put_together(numbers, kind, payload, len)
        } else {
            match strand.try_append(numbers, kind, payload, len) {
                Some(group) => group,
                None => self.put_when_space(numbers, kind, payload, len),
            }
        };
    }

    /// Appends together with the threads that contend for the latch.
    #[inline(never)]
    fn put_together(
        &self,
        numbers: AssignedNumbers,
        kind: LogRecordKind,
        payload: &[&[u8]],
        len: usize,
    ) -> GroupNo {
        let core: &Core = &self.strand_handle.core;
        let header = LogRecordHeader {
            seqno: numbers.last,
            records: numbers.records(),
            kind,
            payload_len: len,
        };
        // The commit's slot differs from thread to thread.
        let hint = self.slot.index();
        self.strand
            .append_together(hint, header, numbers, payload, |retry| {
                core.wait_for_buffer(self.strand_handle.strand, retry);
            })
    }

    #[cold]
    fn put_when_space(
        &self,
        numbers: AssignedNumbers,
        kind: LogRecordKind,
        payload: &[&[u8]],
        len: usize,
    ) -> GroupNo {
        let (core, strand) = (&*self.strand_handle.core, self.strand);
        let mut group = GroupNo::NONE;
        let mut append = || match strand.try_append(numbers, kind, payload, len) {
            Some(taken) => {
                group = taken;
                true
            }
            None => false,
        };
        // If the log is poisoned meanwhile, the bytes are dropped and the ticket reports the error.
        core.wait_for_buffer(self.strand_handle.strand, &mut append);
        group
    }

    /// Finishes the commit after the transaction's writes are applied. Starts no flush: the caller
    /// blocks on the ticket immediately (or drops it).
    #[inline(always)]
    pub fn finish(mut self) -> Ticket {
        // Called directly: a drop would move the pending commit first.
        self.leave();
        let seqno = self.numbers.map_or(SeqNo::NONE, |numbers| numbers.last);
        Ticket::new(Arc::clone(self.strand_handle), seqno, self.group)
    }

    /// Like [`PendingCommit::finish`], for a caller that does not block on the ticket immediately:
    /// starts a flush if none is in flight, or as [`group_size`](crate::LogOptions::group_size)
    /// prescribes.
    #[inline]
    pub fn finish_async(self) -> Ticket {
        let (strand_handle, strand) = (self.strand_handle, self.strand);
        let ticket = self.finish();
        strand_handle.core.request_flush_or_group(strand);
        ticket
    }

    /// Poisons the log (I8) because the transaction's log record is appended, but its writes could
    /// not be applied completely.
    ///
    /// The log flushes everything appended so far, which no failure can undo. Then, before this
    /// transaction releases its commit slot, the log is poisoned: so the durable seqno, every
    /// acknowledgement and every [checkpoint position](crate::Log::quiesce) that is used stay
    /// before this transaction's numbers.
    ///
    /// If the transaction [took long](PendingCommit::begin_long_apply), others may be acknowledged
    /// already, and flushes have gone on without it. Then the log is poisoned at once, and the
    /// [visible seqno](crate::Log::visible_seqno) stays before its numbers.
    #[cold]
    pub fn fail(mut self, cause: &str) {
        let core = &self.strand_handle.core;
        // Nothing is acknowledged any more.
        self.mark = Mark::none();
        core.note_unapplied(self.first_seqno());
        if self.holds == Holds::ToTheEnd {
            // Its callbacks may open snapshots, which do not wait for this commit.
            for lane in &core.lanes {
                core.lead(lane);
            }
            core.publish();
        }
        if !braid_rt::mutant!("forget_failed_writes") {
            core.set_poison(cause);
        }
        self.leave();
    }

    /// Aborts numbers that were assigned and not appended, and releases the commit slot.
    #[inline(always)]
    fn leave(&mut self) {
        let holds = std::mem::replace(&mut self.holds, Holds::Left);
        if self.numbers.is_some() && !self.appended {
            self.abort();
        }
        let core = &self.strand_handle.core;
        if let Holds::NoLonger { owes } = holds {
            self.leave_late(owes);
        } else {
            core.commit_slots.leave(self.slot);
            self.mark = Mark::none();
            core.left_slot(self.strand.lane);
        }
        core.unreserve(self.strand.lane, self.reservation);
    }

    /// Ends a commit that was dropped before it finished.
    #[cold]
    #[inline(never)]
    fn drop_unfinished(&mut self) {
        if self.has_writes {
            self.strand_handle.core.note_unapplied(self.first_seqno());
            self.strand_handle
                .core
                .set_poison("a transaction ended before its writes were applied");
        }
        self.leave();
    }

    /// Releases the commit slot after a long application.
    #[cold]
    fn leave_late(&self, owes: bool) {
        let core = &self.strand_handle.core;
        core.commit_slots.note_finished(self.slot);
        core.commit_slots.leave(self.slot);
        core.raise_visible();
        if owes {
            core.catch_up(self.strand.lane);
        }
    }
}

impl Drop for PendingCommit<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.holds != Holds::Left {
            self.drop_unfinished();
        }
    }
}
