//! Leading a flush: seal what the lane's strands have, write it once, acknowledge.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::LogError;
use crate::chunk::ChunkHeader;
use crate::core::Core;
use crate::lane::{FlushGroup, Lane, LaneCounters, SealState, SealedChunk, nanos};
use crate::options::BLOCK;
use crate::segment::{SegmentHeader, segment_name};
use crate::strand::{Slot, Taken};

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
        let begun = Instant::now();
        let written = self.write_group(lane, &mut group);
        LaneCounters::add_since(&lane.counters.write_nanos, begun);
        match written {
            Ok(()) => {
                let done = Instant::now();
                self.complete(lane, group);
                LaneCounters::add_since(&lane.counters.notify_nanos, done);
            }
            Err(error) => self.fail(lane, &error),
        }
        true
    }

    /// I8: the first failed write of sealed chunks stops the log.
    fn fail(&self, lane: &Lane, error: &LogError) {
        self.set_poison(&error.to_string());
        lane.release();
    }

    /// Takes everything the lane's strands have, as chunks in sequence, as far as the segment has room.
    fn seal_group(&self, lane: &Lane) -> Result<FlushGroup, LogError> {
        let mut seal = lane.seal.lock();
        // SeqCst: cleared before we look at the strands, see `request_flush`.
        if lane.wanted.load(Ordering::Relaxed) {
            lane.wanted.store(false, Ordering::SeqCst);
        }
        let group = seal.group;
        let mut chunks = Vec::with_capacity(self.strands.len());
        let mut start = seal.offset;
        let mut end = seal.offset;
        let mut header = None;
        let mut last = 0;
        for index in lane.strands() {
            let strand = &self.strands[index];
            let mut state = strand.lock();
            // What is appended to this strand from here on goes with a later group. (What does not fit now
            // goes with a later one too; its waiters look again.)
            state.set_group(group + 1);
            loop {
                let slot = match strand.take(&mut state, seal.segment.len - end) {
                    Taken::Slot(slot) => slot,
                    Taken::Nothing => break,
                    Taken::TooLarge if chunks.is_empty() => {
                        header = Some(self.next_segment(lane, &mut seal)?);
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
        // The headers are made outside the strands' latches.
        for chunk in &mut chunks {
            seal.link = self.seal_chunk(lane, &seal, chunk.strand, &mut chunk.slot);
            seal.chunk += 1;
        }
        let pieces = chunks.iter().map(|chunk| chunk.slot.pieces).sum();
        lane.set_last_pieces(pieces);
        seal.offset = end;
        seal.group += 1;
        lane.segment_left
            .store(seal.segment.len - end, Ordering::Release);
        self.refresh_space(lane);
        let segment = seal.segment.clone();
        Ok(FlushGroup {
            group,
            segment,
            offset: start,
            header,
            chunks,
            last,
        })
    }

    fn seal_chunk(&self, lane: &Lane, seal: &SealState, strand: usize, slot: &mut Slot) -> u32 {
        let header = ChunkHeader {
            lane: lane.index as u16,
            strand: strand as u16,
            incarnation: self.incarnation,
            sequence: seal.chunk,
            first: slot.first,
            last: slot.last,
            horizon: self.horizon(),
            payload_len: (slot.fill - crate::chunk::CHUNK_HEADER) as u32,
            pieces: slot.pieces,
            link: seal.link,
        };
        if let Some(opened) = slot.opened {
            LaneCounters::add(&lane.counters.queue_nanos, nanos(opened.elapsed()));
        }
        LaneCounters::add(&lane.counters.chunks, 1);
        LaneCounters::add(&lane.counters.pieces, u64::from(slot.pieces));
        LaneCounters::add(&lane.counters.payload_bytes, slot.payload);
        LaneCounters::add(&lane.counters.chunk_bytes, slot.fill as u64);
        header.seal(&mut slot.buf)
    }

    /// Goes on to the next segment; returns its header, to be written with the first chunks.
    fn next_segment(
        &self,
        lane: &Lane,
        seal: &mut SealState,
    ) -> Result<braid_io::AlignedBuf, LogError> {
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
            lane: lane.index as u16,
            lanes: self.lanes.len() as u32,
            protocol: self.protocol.id(),
            sequence: segment.sequence,
            incarnation: self.incarnation,
            link: seal.link,
            base: self.base,
            first_chunk: seal.chunk,
            horizon: self.horizon(),
            len: segment.len,
        };
        seal.segment = segment;
        seal.offset = BLOCK as u64;
        Ok(header.encode(&*self.device))
    }

    fn write_group(&self, lane: &Lane, group: &mut FlushGroup) -> Result<(), LogError> {
        let mut bufs = Vec::with_capacity(group.chunks.len() + 1);
        if let Some(header) = &group.header {
            bufs.push(&header[..BLOCK]);
        }
        bufs.extend(
            group
                .chunks
                .iter()
                .map(|chunk| &chunk.slot.buf[..chunk.slot.chunk_bytes()]),
        );
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
                    format!("writing {bytes} bytes to {name} at {}", group.offset),
                    error,
                )
            })
    }

    /// A flush is durable: lets the next one start, then acknowledges.
    fn complete(&self, lane: &Lane, group: FlushGroup) {
        // A group behind one that is not finished waits for it: acknowledgement is by prefix.
        let ready = lane.completion.lock().finish(group);
        let mut groups = Vec::with_capacity(ready.len());
        for group in ready {
            // Release: pairs with `publish`.
            self.flushed.fetch_max(group.last, Ordering::Release);
            for chunk in group.chunks {
                self.strands[chunk.strand].give_back(chunk.slot);
            }
            groups.push(group.group);
        }
        // The device first: whoever leads the next flush starts while we notify.
        lane.release();
        self.hand_on(lane);
        if groups.is_empty() {
            return;
        }
        lane.space.notify();
        self.publish();
        for group in groups {
            lane.acknowledge(group);
        }
    }

    /// A flush permit is free: finds somebody to use it if there is something to flush.
    pub(crate) fn hand_on(&self, lane: &Lane) {
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
