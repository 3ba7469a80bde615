//! Leading a flush: seal the buffers of the lane's strands, write the chunks once, acknowledge.

use std::sync::atomic::Ordering;

use braid_rt::narrow;
use smallvec::SmallVec;

use crate::LogError;
use crate::base::callbacks::Action;
use crate::base::numbers::{FlushNo, SeqNo, StrandId};
use crate::buffer::strand::{StrandState, Taken};
use crate::flush::core::Core;
use crate::flush::header::HeaderOrder;
use crate::flush::lane::{
    FirstFlush, FlushGroup, Lane, LaneCounters, SealState, SealedChunk, UnitBegin,
};
use crate::flush::order;
use crate::format::BLOCK;
use crate::format::chunk::ChunkHeader;
use crate::format::padding::Padding;
use crate::format::segment::{Segment, SegmentHeader, segment_name};

impl Core {
    /// Performs one flush of a lane, if there is something to flush and a permit for it.
    ///
    /// One gather write takes the chunks of all strands of the lane. While the write is in flight,
    /// appends fill the next slots, which the next flush takes. Returns whether anything was
    /// flushed.
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
                // Another leader was faster. The group's number is used nevertheless: appends since
                // then belong to the next group.
                self.complete(lane, group);
                return false;
            }
            Ok(group) => group,
            Err(error) => {
                self.fail(lane, &error);
                return false;
            }
        };
        self.announce_fill();
        let (number, begun) = (group.group, group.sealed_at);
        let written = self.write_group(lane, &mut group);
        let (timing, counters) = (self.timing, &lane.counters);
        let done = timing.read(number);
        timing.add(&counters.write_nanos, begun, done);
        match written {
            Ok(()) => {
                self.complete(lane, group);
                timing.add(&counters.notify_nanos, done, timing.read(number));
            }
            Err(_) if braid_rt::mutant!("ignore_write_error") => self.complete(lane, group),
            Err(error) => self.fail(lane, &error),
        }
        true
    }

    /// I8: the first failed write of sealed chunks stops the log.
    fn fail(&self, lane: &Lane, error: &LogError) {
        let cause = match lane.owner.get() {
            Some(owner) => format!("{error}, in the log of {owner}"),
            None => error.to_string(),
        };
        self.set_poison(&cause);
        lane.release();
    }

    /// Takes the contents of the lane's strands as chunks in sequence, as far as the segment has
    /// room. Also returns the actions that waited for the flush's number.
    fn seal_group(&self, lane: &Lane) -> Result<(Box<FlushGroup>, Vec<Action>), LogError> {
        let mut seal = lane.seal.lock();
        // SeqCst: cleared before the strands are read, see `request_flush`.
        if lane.wanted.load(Ordering::Relaxed) {
            lane.wanted.store(false, Ordering::SeqCst);
        }
        let mut group = Box::new(FlushGroup {
            lane: lane.index,
            group: seal.group,
            segment: seal.segment.clone(),
            offset: seal.offset,
            first: None,
            chunks: SmallVec::new(),
            unit_begin: UnitBegin::default(),
            end: seal.offset,
            last: SeqNo::NONE,
            sealed_at: None,
            flush: FlushNo::NONE,
        });
        let (flush, numbered) = if self.protocol.has_closed_flushes() {
            self.take_closed(lane, &mut seal, &mut group)?
        } else {
            for index in lane.strands() {
                let mut state = self.strands[index].lock();
                self.take_from(lane, &mut seal, index, &mut state, &mut group)?;
            }
            (FlushNo::NONE, Vec::new())
        };
        // The headers are made outside the strands' latches.
        let sealed_at = self.timing.read(seal.group);
        let (mut more, mut log_records) = (group.chunks.len(), 0);
        for chunk in &mut group.chunks {
            more -= 1;
            let (opened, queued) = (chunk.slot.opened, &lane.counters.queue_nanos);
            self.timing.add(queued, opened, sealed_at);
            seal.link = self.seal_chunk(lane, &seal, FlushPlace { flush, more }, chunk);
            seal.chunk += 1;
            log_records += chunk.slot.log_records;
            group.last = group.last.max(chunk.slot.last);
        }
        group.sealed_at = sealed_at;
        if let Some(begun) = sealed_at.filter(|_| self.flushes_at_once) {
            lane.note_busy(begun);
        }
        group.flush = flush;
        lane.set_last_flush(log_records, group.bytes());
        if !group.chunks.is_empty() {
            LaneCounters::add_latched(&lane.counters.written_bytes, group.bytes());
            LaneCounters::add_latched(&lane.counters.flushes, 1);
        }
        seal.offset = group.end;
        seal.group = seal.group.next();
        lane.set_sealed(group.group);
        lane.segment_left
            .store(seal.segment.len - group.end, Ordering::Release);
        self.refresh_space(lane);
        Ok((group, numbered))
    }

    /// Takes a closed flush: everything that the lane's strands hold at one instant. Assigns the
    /// flush's number at that instant, if it has one. Returns the number, and the actions that
    /// waited for it.
    fn take_closed(
        &self,
        lane: &Lane,
        seal: &mut SealState,
        group: &mut FlushGroup,
    ) -> Result<(FlushNo, Vec<Action>), LogError> {
        // All latches are held at once. Every thread acquires them in the order of the strands.
        let latches = lane.strands().map(|index| self.strands[index].lock());
        let mut latches: Vec<_> = latches.collect();
        let bytes: u64 = latches.iter().map(|state| state.unsealed_bytes()).sum();
        if bytes > seal.segment.len - group.end {
            group.begin_segment(self.next_segment(lane, seal)?, &seal.segment);
        }
        for (index, state) in lane.strands().zip(&mut latches) {
            self.take_from(lane, seal, index, state, group)?;
        }
        let mut numbered = Vec::new();
        for state in &mut latches {
            numbered.extend(state.take_numbered(seal.group.next()));
        }
        if braid_rt::mutant!("number_after_latches") {
            latches.clear();
            (0..100).for_each(|_| braid_rt::thread::yield_now());
        }
        let flush = match self.acknowledgement.flushes() {
            // While the latches are held: a later append may depend on the records taken here.
            Some(order) if !group.chunks.is_empty() => order.assign(),
            _ => FlushNo::NONE,
        };
        Ok((flush, numbered))
    }

    /// Takes the contents of a strand, as far as the segment has room.
    fn take_from(
        &self,
        lane: &Lane,
        seal: &mut SealState,
        index: StrandId,
        state: &mut StrandState,
        group: &mut FlushGroup,
    ) -> Result<(), LogError> {
        // A later group takes everything appended to this strand from here on. (A later group also
        // takes slots that do not fit now; their waiters check again.)
        state.set_group(seal.group.next());
        loop {
            let slot = match self.strands[index].take(state, seal.segment.len - group.end) {
                Taken::Slot(slot) => slot,
                Taken::Nothing => return Ok(()),
                Taken::TooLarge if group.chunks.is_empty() => {
                    group.begin_segment(self.next_segment(lane, seal)?, &seal.segment);
                    continue;
                }
                Taken::TooLarge => return Ok(()),
            };
            group.push(index, slot);
        }
    }

    fn seal_chunk(
        &self,
        lane: &Lane,
        seal: &SealState,
        place: FlushPlace,
        chunk: &mut SealedChunk,
    ) -> u32 {
        let slot = &mut chunk.slot;
        let header = ChunkHeader {
            lane: lane.index,
            strand: chunk.strand,
            incarnation: self.incarnation,
            sequence: seal.chunk,
            first: slot.least(),
            last: slot.last,
            durable_seqno: self.durable_seqno(),
            payload_len: narrow(slot.buf.len() - crate::format::chunk::CHUNK_HEADER),
            log_records: slot.log_records,
            link: seal.link,
            more: narrow(place.more),
            flush: place.flush,
            padding: if chunk.is_followed {
                Padding::LEAST
            } else {
                seal.header.padding
            },
        };
        LaneCounters::add_latched(&lane.counters.chunks, 1);
        LaneCounters::add_latched(&lane.counters.log_records, u64::from(slot.log_records));
        LaneCounters::add_latched(&lane.counters.payload_bytes, slot.payload);
        LaneCounters::add_latched(&lane.counters.chunk_bytes, slot.buf.len() as u64);
        debug_assert_eq!(self.chunk_seed, seal.header.seed());
        header.seal(self.chunk_seed, slot.buf.finished())
    }

    /// Moves to the next segment. Returns the writes of its first flush other than the chunks.
    pub(crate) fn next_segment(
        &self,
        lane: &Lane,
        seal: &mut SealState,
    ) -> Result<Box<FirstFlush>, LogError> {
        let segment = loop {
            if let Some(segment) = lane.pool.take() {
                break segment;
            }
            // `enter` admits a commit only if enough segments are ready, so the margin was too
            // small. Preparing a segment here is late, but better than failing.
            if !lane
                .pool
                .prepare(&*self.device, &self.options, &self.quota)?
            {
                return Err(self.out_of_space(0, false));
            }
        };
        let header = SegmentHeader {
            log: self.id,
            lane: lane.index,
            lanes: narrow(self.lanes.len()),
            protocol: self.protocol.header_id(self.options.side_lanes),
            sequence: segment.sequence,
            incarnation: self.incarnation,
            link: seal.link,
            base: self.base,
            first_chunk: seal.chunk,
            durable_seqno: self.durable_seqno(),
            len: segment.len,
            padding: Padding::of(&*self.device),
            has_seed: true,
            shares_units: true,
            kept: self.kept.clone(),
            successor: None,
        };
        let device = &*self.device;
        let header_order = HeaderOrder::unwritten();
        seal.offset = BLOCK as u64;
        // Boxed, since flushes are moved often and few have one.
        let first = Box::new(FirstFlush {
            header: header.encode(device),
            header_order: header_order.clone(),
            before: std::mem::replace(&mut seal.segment, segment),
            before_order: std::mem::replace(&mut seal.header_order, header_order),
            mark: seal.header.marked(header.incarnation).encode(device),
        });
        seal.header = header;
        Ok(first)
    }

    fn write_group(&self, lane: &Lane, group: &mut FlushGroup) -> Result<(), LogError> {
        let mut bufs = SmallVec::<[&[u8]; 4]>::new();
        if let Some(first) = &group.first {
            bufs.push(&first.header[..BLOCK]);
        }
        SealedChunk::gather(&mut group.chunks, &mut bufs);
        order::write(&*group.segment.file, &bufs, group.offset, self.pmem_commit).map_err(
            |error| {
                let name = segment_name(lane.index, group.segment.sequence);
                let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
                LogError::io(
                    format!("cannot write {bytes} bytes to {name} at {}", group.offset),
                    error,
                )
            },
        )?;
        drop(bufs);
        match group.first.take() {
            Some(first) => Self::finish_segment_begin(lane, &group.segment, *first),
            None => Ok(()),
        }
    }

    /// Writes the successor marks that follow a segment's first flush, before the flush counts as
    /// finished: nothing in a segment is acknowledged until the previous segment's mark is written.
    /// The previous segment still exists, since no checkpoint can cover the records of this flush.
    pub(crate) fn finish_segment_begin(
        lane: &Lane,
        segment: &Segment,
        first: FirstFlush,
    ) -> Result<(), LogError> {
        if let Some(mark) = first.header_order.finish() {
            braid_rt::coverage_point("flush: a mark waits for its header");
            segment.write_header(lane.index, &mark)?;
        }
        if braid_rt::mutant!("mark_no_successor") {
            return Ok(());
        }
        match first.before_order.mark(first.mark) {
            Some(mark) => first.before.write_header(lane.index, &mark),
            None => Ok(()),
        }
    }

    /// Completes a durable flush: lets the next one start, then acknowledges its transactions.
    fn complete(&self, lane: &Lane, group: Box<FlushGroup>) {
        // A group waits for every earlier group to finish: acknowledgement is by prefix.
        let mut ready = {
            let mut completion = lane.completion.lock();
            let ready = completion.finish(group);
            match self.acknowledgement.flushes() {
                // Under the latch: the order within the lane must be kept.
                Some(order) => order.finish(ready),
                None => ready,
            }
        };
        let last = ready.iter().map(|group| group.last).max();
        for group in &mut ready {
            for chunk in group.chunks.drain(..) {
                self.strands[chunk.strand].recycle(chunk.slot);
            }
        }
        // The permit first: the next leader starts its write while this thread notifies.
        lane.release();
        self.wake_next_leader(lane);
        if ready.is_empty() {
            return;
        }
        for group in &ready {
            self.lanes[group.lane].space.notify();
        }
        self.publish_flush(last.unwrap_or(SeqNo::NONE));
        for group in &ready {
            self.lanes[group.lane].acknowledge(group.group);
        }
    }

    /// Finds a thread to use a free flush permit, if there is something to flush.
    pub(crate) fn wake_next_leader(&self, lane: &Lane) {
        // SeqCst: pairs with `request_flush`.
        if lane.wanted.load(Ordering::SeqCst) {
            lane.flusher.notify();
        }
        // If other flushes are in flight and no more are admitted, the last of them calls this
        // function again.
        if !self.is_dirty(lane) || !lane.may_acquire() {
            return;
        }
        if lane.space.has_listeners() {
            lane.space.notify();
        }
        // A thread that blocks on unsealed bytes sleeps in the group being filled. (A thread whose
        // bytes did not fit into the last group wakes with that group and checks again.)
        let filling = lane.seal.lock().group;
        lane.groups.wake_one(filling);
        // Rare: a thread whose own bytes are durable waits for other threads' bytes.
        self.stall.notify();
    }
}

/// A chunk's place in its flush.
#[derive(Clone, Copy)]
struct FlushPlace {
    /// The number of the flush.
    flush: FlushNo,
    /// Chunks that follow.
    more: usize,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex, RwLock};
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};
    use std::{io, thread};

    use braid_io::{Device, File, Layer, LayeredDevice, MemoryDevice, SimDevice};

    use super::*;
    use crate::base::numbers::GroupNo;
    use crate::flush::lane::RARE;
    use crate::format::padding::is_memory;
    use crate::{FlushMode, Log, LogOptions};

    /// A device whose durable writes end when the gate is open.
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

    /// A device whose flushes are stores to memory.
    fn pmem() -> Arc<dyn Device> {
        let device = SimDevice::new(0);
        device.set_block_size(64);
        assert!(is_memory(&device));
        Arc::new(device)
    }

    #[test]
    fn waiters_on_a_write_in_flight_start_no_other() {
        waiters_start_no_other_write(Arc::new(MemoryDevice::new()));
    }

    /// In memory, a waiter looks for the end of the write for a while, and then sleeps.
    #[test]
    fn waiters_on_a_write_to_memory_sleep_in_the_end() {
        waiters_start_no_other_write(pmem());
    }

    fn waiters_start_no_other_write(device: Arc<dyn Device>) {
        let gate = Gate::default();
        let device = LayeredDevice::over(device, gate.clone());
        // Without background threads, one of which might also flush.
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
            // The first write was small: another may overlap it, but this waiter does not start it.
            let lane = &log.core().lanes[0];
            while begun() == 1 && !lane.groups.has_waiters(GroupNo::new(1)) {
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

    /// A device that records which threads write.
    #[derive(Clone, Debug, Default)]
    struct Writers(Arc<Mutex<Vec<ThreadId>>>);

    impl Layer for Writers {
        fn write_durable_at(&self, file: &dyn File, bufs: &[&[u8]], at: u64) -> io::Result<()> {
            self.0.lock().unwrap().push(thread::current().id());
            file.write_durable_at(bufs, at)
        }
    }

    /// In memory, a flush takes less time than to wake the flusher.
    #[test]
    fn a_commit_that_others_wait_for_flushes_itself_in_memory() {
        let writers = Writers::default();
        let device = LayeredDevice::over(pmem(), writers.clone());
        let options = LogOptions {
            strands: 1,
            ..LogOptions::default()
        };
        let log = Log::create(Arc::new(device), options).unwrap();
        writers.0.lock().unwrap().clear();
        // The flusher, which the second commit wakes, may be faster in some of the rounds.
        for _ in 0..100 {
            let mut first = log.enter(&[b"x"]).unwrap();
            first.assign(1);
            log.append(&[b"y"])
                .unwrap()
                .on_durable(|durable| durable.unwrap());
            first.append(&[b"x"]);
            first.finish().detach();
        }
        log.sync().unwrap();
        let writers = writers.0.lock().unwrap();
        assert!(writers.contains(&thread::current().id()));
    }

    /// A flusher that is asleep takes longer to wake than the flush. Commits that follow each other
    /// quickly are left to it.
    #[test]
    fn a_rare_commit_that_nobody_waits_for_flushes_itself_in_memory() {
        for memory in [Arc::new(MemoryDevice::new()) as Arc<dyn Device>, pmem()] {
            for _ in 0..20 {
                let log = Log::create(memory.clone(), LogOptions::default()).unwrap();
                // A flusher that is still awake may find the commit first.
                log.clone().close().unwrap();
                let mut commit = log.enter(&[b"x"]).unwrap();
                commit.assign(1);
                commit.append(&[b"x"]);
                let ticket = commit.finish_async();
                assert!(ticket.is_durable());
                drop(log);
                for entry in memory.list().unwrap() {
                    memory.remove(&entry.name).unwrap();
                }
            }
        }
    }

    /// Until the flusher withdraws the request, no other commit makes one.
    #[test]
    fn a_request_without_a_flush_reaches_the_flusher() {
        let log = Log::create(Arc::new(MemoryDevice::new()), LogOptions::default()).unwrap();
        let lane = &log.core().lanes[0];
        let mut first = log.enter(&[b"x"]).unwrap();
        first.assign(1);
        first.append(&[b"x"]);
        assert!(log.core().lead(lane), "another thread flushes first");
        let begun = Instant::now();
        // The commit is rare then, and would flush; and the flusher sleeps.
        while begun.elapsed() <= RARE * 2 || !lane.flusher.has_listeners() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            thread::yield_now();
        }
        first.finish_async().detach();
        while lane.wanted.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < Duration::from_secs(30));
            thread::yield_now();
        }
        let mut second = log.enter(&[b"y"]).unwrap();
        second.assign(1);
        second.append(&[b"y"]);
        let ticket = second.finish_async();
        while !ticket.is_durable() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
    }

    /// Its durable writes may wait, so the caller must not make them.
    #[test]
    fn a_layer_over_memory_leaves_flushes_to_the_flusher() {
        let writers = Writers::default();
        let device = LayeredDevice::over(Arc::new(MemoryDevice::new()), writers.clone());
        let log = Log::create(Arc::new(device), LogOptions::default()).unwrap();
        writers.0.lock().unwrap().clear();
        let mut commit = log.enter(&[b"x"]).unwrap();
        commit.assign(1);
        commit.append(&[b"x"]);
        let ticket = commit.finish_async();
        while !ticket.is_durable() {
            thread::yield_now();
        }
        let writers = writers.0.lock().unwrap();
        assert!(!writers.contains(&thread::current().id()));
    }

    /// Nobody waits for the second transaction, so only its flush tells the first one to flush.
    #[test]
    fn a_commit_that_holds_a_flush_back_is_flushed_when_it_leaves() {
        let options = LogOptions {
            strands: 1,
            flush_mode: FlushMode::Callers,
            ..LogOptions::default()
        };
        let log = Log::create(Arc::new(MemoryDevice::new()), options).unwrap();
        let mut first = log.enter(&[b"x"]).unwrap();
        first.assign(1);
        let second = log.append(&[b"y"]).unwrap();
        assert!(log.core().lead(&log.core().lanes[0]));
        assert!(!second.is_durable(), "the first number is missing");
        first.append(&[b"x"]);
        first.finish().detach();
        assert!(second.is_durable());
    }
}
