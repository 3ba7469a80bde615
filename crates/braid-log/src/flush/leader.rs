//! Leading a flush: seal what the lane's strands have, write it once, acknowledge.

use std::sync::atomic::Ordering;

use braid_rt::narrow;

use crate::LogError;
use crate::base::callbacks::Action;
use crate::buffer::strand::{Slot, Taken};
use crate::flush::core::Core;
use crate::flush::lane::{
    FirstFlush, FlushGroup, Lane, LaneCounters, SealState, SealedChunk, nanos,
};
use crate::format::BLOCK;
use crate::format::chunk::ChunkHeader;
use crate::format::segment::{SegmentHeader, segment_name};

impl Core {
    /// Performs one flush of a lane, if there is something to flush and a permit for it.
    ///
    /// One gather write takes the chunks of all strands of the lane. While it is under way, appends fill
    /// the next slots; they go with the next flush. Returns whether something was flushed.
    pub(crate) fn lead(&self, lane: &Lane) -> bool {
        if !self.is_dirty(lane) || self.poison().is_some() || !lane.acquire() {
            return false;
        }
        let sealed = self.seal_group(lane);
        let sealed = sealed.map(|(group, numbered)| {
            numbered.into_iter().for_each(|action| action.run(&Ok(())));
            group
        });
        let mut group = match sealed {
            Ok(group) if group.chunks.is_empty() => {
                // Another leader was faster. The group's number is used up all the same: appends that saw
                // us pass count on the next one.
                self.complete(lane, group);
                return false;
            }
            Ok(group) => group,
            Err(error) => {
                self.fail(lane, &error);
                return false;
            }
        };
        let begun = braid_rt::now();
        let written = self.write_group(lane, &mut group);
        let done = braid_rt::now();
        LaneCounters::add(&lane.counters.write_nanos, nanos(done - begun));
        match written {
            Ok(()) => {
                self.complete(lane, group);
                LaneCounters::add_since(&lane.counters.notify_nanos, done);
            }
            Err(_) if braid_rt::mutant!("ignore_write_error") => self.complete(lane, group),
            Err(error) => self.fail(lane, &error),
        }
        true
    }

    /// I8: the first failed write of sealed chunks stops the log.
    fn fail(&self, lane: &Lane, error: &LogError) {
        self.set_poison(&error.to_string());
        lane.release();
    }

    /// Takes everything the lane's strands have, as chunks in sequence, as far as the segment has room. Also
    /// returns what waited for the flush's number.
    fn seal_group(&self, lane: &Lane) -> Result<(FlushGroup, Vec<Action>), LogError> {
        let mut seal = lane.seal.lock();
        // SeqCst: cleared before we look at the strands, see `request_flush`.
        if lane.wanted.load(Ordering::Relaxed) {
            lane.wanted.store(false, Ordering::SeqCst);
        }
        let group = seal.group;
        let mut chunks = Vec::with_capacity(self.strands.len());
        let mut start = seal.offset;
        let mut end = seal.offset;
        let mut first = None;
        let mut last = 0;
        let mut flush = 0;
        let mut numbered = Vec::new();
        // With closed flushes all latches are held at once; the order is that of the strands everywhere.
        let mut closed = Vec::new();
        if self.protocol.has_closed_flushes() {
            closed.extend(lane.strands().map(|index| self.strands[index].lock()));
            let bytes: u64 = closed.iter().map(|state| state.unsealed_bytes()).sum();
            if bytes > seal.segment.len - end {
                first = Some(self.next_segment(lane, &mut seal)?);
                start = 0;
                end = BLOCK as u64;
            }
        }
        for (place, index) in lane.strands().enumerate() {
            let strand = &self.strands[index];
            let mut own;
            let state = match closed.get_mut(place) {
                Some(state) => &mut **state,
                None => {
                    own = strand.lock();
                    &mut *own
                }
            };
            // What is appended to this strand from here on goes with a later group. (What does not fit now
            // goes with a later one too; its waiters look again.)
            state.set_group(group + 1);
            loop {
                let slot = match strand.take(state, seal.segment.len - end) {
                    Taken::Slot(slot) => slot,
                    Taken::Nothing => break,
                    Taken::TooLarge if chunks.is_empty() => {
                        first = Some(self.next_segment(lane, &mut seal)?);
                        start = 0;
                        end = BLOCK as u64;
                        continue;
                    }
                    Taken::TooLarge => break,
                };
                end += slot.chunk_bytes() as u64;
                last = last.max(slot.last);
                chunks.push(SealedChunk {
                    strand: index,
                    slot,
                });
            }
        }
        for state in &mut closed {
            numbered.extend(state.take_numbered(group + 1));
        }
        if braid_rt::mutant!("number_after_latches") {
            closed.clear();
            (0..100).for_each(|_| braid_rt::thread::yield_now());
        }
        if let Some(order) = self.acknowledgement.flushes()
            && !chunks.is_empty()
        {
            // While the latches are held: whoever appends from here on may depend on what we took.
            flush = order.assign();
        }
        drop(closed);
        // The headers are made outside the strands' latches.
        let mut more = chunks.len();
        for chunk in &mut chunks {
            more -= 1;
            let place = FlushPlace { flush, more };
            seal.link = self.seal_chunk(lane, &seal, place, chunk.strand, &mut chunk.slot);
            seal.chunk += 1;
        }
        let log_records = chunks.iter().map(|chunk| chunk.slot.log_records).sum();
        lane.set_last_flush(log_records, end - start);
        seal.offset = end;
        seal.group += 1;
        lane.set_sealed(group);
        lane.segment_left
            .store(seal.segment.len - end, Ordering::Release);
        self.refresh_space(lane);
        let segment = seal.segment.clone();
        let group = FlushGroup {
            lane: lane.index,
            group,
            segment,
            offset: start,
            first,
            chunks,
            end,
            last,
            flush,
        };
        Ok((group, numbered))
    }

    fn seal_chunk(
        &self,
        lane: &Lane,
        seal: &SealState,
        place: FlushPlace,
        strand: usize,
        slot: &mut Slot,
    ) -> u32 {
        let header = ChunkHeader {
            lane: narrow(lane.index),
            strand: narrow(strand),
            incarnation: self.incarnation,
            sequence: seal.chunk,
            first: slot.first,
            last: slot.last,
            durable_seqno: self.durable_seqno(),
            payload_len: narrow(slot.buf.len() - crate::format::chunk::CHUNK_HEADER),
            log_records: slot.log_records,
            link: seal.link,
            more: narrow(place.more),
            flush: place.flush,
        };
        if let Some(opened) = slot.opened {
            LaneCounters::add(&lane.counters.queue_nanos, nanos(braid_rt::now() - opened));
        }
        LaneCounters::add(&lane.counters.chunks, 1);
        LaneCounters::add(&lane.counters.log_records, u64::from(slot.log_records));
        LaneCounters::add(&lane.counters.payload_bytes, slot.payload);
        LaneCounters::add(&lane.counters.chunk_bytes, slot.buf.len() as u64);
        slot.buf.pad(header.size());
        header.seal(slot.buf.finished())
    }

    /// Goes on to the next segment; returns what its first flush is to write besides the chunks.
    pub(crate) fn next_segment(
        &self,
        lane: &Lane,
        seal: &mut SealState,
    ) -> Result<Box<FirstFlush>, LogError> {
        let segment = loop {
            if let Some(segment) = lane.pool.take() {
                break segment;
            }
            // `enter` admits nobody unless enough is ready, so this is a margin that was too small. Better
            // late than never.
            if !lane
                .pool
                .prepare(&*self.device, &self.options, &self.quota)?
            {
                return Err(self.out_of_space(0, false));
            }
        };
        let header = SegmentHeader {
            log: self.id,
            lane: narrow(lane.index),
            lanes: narrow(self.lanes.len()),
            protocol: self.protocol.id(),
            sequence: segment.sequence,
            incarnation: self.incarnation,
            link: seal.link,
            base: self.base,
            first_chunk: seal.chunk,
            durable_seqno: self.durable_seqno(),
            len: segment.len,
            kept: self.kept.clone(),
            successor: None,
        };
        let device = &*self.device;
        let before = std::mem::replace(&mut seal.segment, segment);
        seal.offset = BLOCK as u64;
        // Boxed, since flushes are moved about and few have one.
        let first = Box::new(FirstFlush {
            header: header.encode(device),
            mark: (
                before,
                seal.header.marked(header.incarnation).encode(device),
            ),
        });
        seal.header = header;
        Ok(first)
    }

    fn write_group(&self, lane: &Lane, group: &mut FlushGroup) -> Result<(), LogError> {
        let mut bufs = Vec::with_capacity(group.chunks.len() + 1);
        if let Some(first) = &group.first {
            bufs.push(&first.header[..BLOCK]);
        }
        bufs.extend(group.chunks.iter_mut().map(|chunk| {
            let bytes = chunk.slot.chunk_bytes();
            &chunk.slot.buf.finished()[..bytes]
        }));
        let bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        LaneCounters::add(&lane.counters.written_bytes, bytes);
        LaneCounters::add(&lane.counters.flushes, 1);
        group
            .segment
            .file
            .write_durable_at(&bufs, group.offset)
            .map_err(|error| {
                let name = segment_name(lane.index, group.segment.sequence);
                LogError::io(
                    format!("cannot write {bytes} bytes to {name} at {}", group.offset),
                    error,
                )
            })?;
        // Before the flush counts as finished: nothing in a segment is acknowledged until the segment
        // before it tells that it was begun. The one before is still there, since no checkpoint can
        // cover what this flush holds.
        match &group.first {
            Some(first) if !braid_rt::mutant!("mark_no_successor") => {
                let (before, header) = &first.mark;
                before.write_header(lane.index, header)
            }
            _ => Ok(()),
        }
    }

    /// A flush is durable: lets the next one start, then acknowledges.
    fn complete(&self, lane: &Lane, group: FlushGroup) {
        // A group behind one that is not finished waits for it: acknowledgement is by prefix.
        let mut ready = {
            let mut completion = lane.completion.lock();
            let ready = completion.finish(group);
            match self.acknowledgement.flushes() {
                // Under the latch: the order within the lane must last.
                Some(order) => order.finish(ready),
                None => ready,
            }
        };
        for group in &mut ready {
            // Release: pairs with `publish`.
            self.flushed.fetch_max(group.last, Ordering::Release);
            for chunk in group.chunks.drain(..) {
                self.strands[chunk.strand].recycle(chunk.slot);
            }
        }
        // The device first: whoever leads the next flush starts while we notify.
        lane.release();
        self.wake_next_leader(lane);
        if ready.is_empty() {
            return;
        }
        for group in &ready {
            self.lanes[group.lane].space.notify();
        }
        self.publish();
        for group in &ready {
            self.lanes[group.lane].acknowledge(group.group);
        }
    }

    /// A flush permit is free: finds somebody to use it if there is something to flush.
    pub(crate) fn wake_next_leader(&self, lane: &Lane) {
        // SeqCst: pairs with `request_flush`.
        if lane.wanted.load(Ordering::SeqCst) {
            lane.flusher.notify();
        }
        // If others are under way and nobody may join them, the last of them comes here again.
        if !self.is_dirty(lane) || !lane.may_acquire() {
            return;
        }
        if lane.space.has_listeners() {
            lane.space.notify();
        }
        // Whoever blocks on unsealed bytes sleeps in the group being filled. (One whose bytes did not fit
        // into the last group wakes with that group and looks again.)
        let filling = lane.seal.lock().group;
        lane.groups.wake_one(filling);
        // Rare: somebody whose own bytes are durable waits for those of others.
        self.stall.notify();
    }
}

/// A chunk's place in its flush.
#[derive(Clone, Copy)]
struct FlushPlace {
    /// The number of the flush.
    flush: u64,
    /// Chunks that follow.
    more: usize,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, RwLock};
    use std::{io, thread};

    use braid_io::{File, Layer, LayeredDevice, MemoryDevice};

    use super::*;
    use crate::{FlushMode, Log, LogOptions};

    /// Durable writes that end when the gate is open.
    #[derive(Clone, Debug, Default)]
    struct Gate {
        begun: Arc<AtomicUsize>,
        closed: Arc<RwLock<()>>,
    }

    impl Layer for Gate {
        fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], at: u64) -> io::Result<()> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let _open = self.closed.read().unwrap();
            file.write_durable_at(bufs, at)
        }
    }

    #[test]
    fn who_waits_for_a_write_under_way_begins_no_other() {
        let gate = Gate::default();
        let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), gate.clone());
        // Without threads of the log's own, one of which might flush, too.
        let options = LogOptions {
            strands: 1,
            flush_mode: FlushMode::Callers,
            ..LogOptions::default()
        };
        let log = Log::create(Arc::new(device), options).unwrap();
        let begun_before = gate.begun.load(Ordering::SeqCst);
        let begun = || gate.begun.load(Ordering::SeqCst) - begun_before;
        let closed = gate.closed.write().unwrap();
        let append = || log.append(&[b"x"]).unwrap();
        let (first, second) = (append(), append());
        thread::scope(|scope| {
            let leader = scope.spawn(|| first.wait());
            while begun() == 0 {
                thread::yield_now();
            }
            let third = append();
            let waiter = scope.spawn(|| second.wait());
            // The first write was small: another one may overlap it, but is not this waiter's business.
            let lane = &log.core().lanes[0];
            while begun() == 1 && !lane.groups.has_waiters(1) {
                thread::yield_now();
            }
            let begun_by_waiter = begun() - 1;
            let other = scope.spawn(move || third.wait());
            while begun() == 1 {
                thread::yield_now();
            }
            drop(closed);
            for thread in [leader, waiter, other] {
                thread.join().unwrap().unwrap();
            }
            assert_eq!(begun_by_waiter, 0);
        });
    }
}
