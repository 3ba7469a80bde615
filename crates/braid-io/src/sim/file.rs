//! A file of a simulated device.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use braid_rt::to_usize;

use super::blocks::Blocks;
use super::mirror::Mirror;
use super::state::{Step, Write, crashed};
use super::{BLOCK, LINE, SimDevice};
use crate::device::end_of;
use crate::{File, ReadOp, WriteOp};

#[derive(Debug)]
pub(super) struct SimFile {
    pub(super) device: SimDevice,
    pub(super) id: usize,
    pub(super) mirror: OnceLock<Option<Arc<Mirror>>>,
}

fn check_aligned(unit: usize, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
    let is_aligned =
        |buf: &&[u8]| buf.len().is_multiple_of(unit) && buf.as_ptr().addr().is_multiple_of(unit);
    if offset.is_multiple_of(unit as u64) && bufs.iter().all(is_aligned) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "offset, length or buffer is not aligned",
    ))
}

impl SimFile {
    fn block_size(&self) -> usize {
        self.device.state.lock().block_size_of_file(self.id)
    }

    /// Performs writes that are in flight at the same time and end in any order.
    fn write_all(&self, ops: Vec<(u64, Blocks)>, durable: bool) -> io::Result<()> {
        for (offset, bytes) in &ops {
            end_of(*offset, bytes.len())?;
        }
        let device = &self.device;
        let write = |(offset, bytes)| Write {
            file: self.id,
            offset: to_usize(offset),
            bytes,
            durable,
            overwritten: Vec::new(),
        };
        if !braid_rt::simulation::is_on() {
            let mut state = device.own();
            return ops.into_iter().try_for_each(|op| {
                let number = state.begin(write(op))?;
                state.end(number)
            });
        }
        let mut state = device.own();
        let mut begun = Vec::with_capacity(ops.len());
        let mut outcome = Ok(());
        for op in ops {
            match state.begin(write(op)) {
                Ok(number) => begun.push(number),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        drop(state);
        device.take_time(5..60);
        let mut state = device.own();
        state.rng.shuffle(&mut begun);
        // If one write was refused, the others are done nevertheless.
        let ended = begun.into_iter().try_for_each(|number| state.end(number));
        outcome.and(ended)
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.device.own().contents[self.id].current.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.take_time(5..50);
        let mut state = self.device.own();
        state.step(Step::Write)?;
        state.grow(self.id, to_usize(len))?;
        let content = &mut state.contents[self.id];
        content.current.set_len(to_usize(len));
        let blocks = content.current.len().div_ceil(BLOCK);
        content.clock += 1;
        content.dirty.truncate(blocks);
        state.show_from(self.id, to_usize(len));
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.device.take_time(5..50);
        let mut state = self.device.own();
        state.step(Step::Write)?;
        if state.contents[self.id].current.len() < to_usize(len) {
            state.grow(self.id, to_usize(len))?;
            state.contents[self.id].clock += 1;
        }
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        check_aligned(self.block_size(), &[], range.start)?;
        let zeroes = Blocks::zeroes(to_usize(range.end.saturating_sub(range.start)));
        self.write_all(vec![(range.start, zeroes)], false)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let end = range.end.min(self.len()?);
        if range.start < end {
            self.fill_zero(range.start..end)
        } else {
            Ok(())
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_batch(&mut [ReadOp { buf, offset }])
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> io::Result<()> {
        self.device.take_time(2..20);
        let mut state = self.device.own();
        for op in ops {
            check_aligned(state.block_size_of_file(self.id), &[op.buf], op.offset)?;
            end_of(op.offset, op.buf.len())?;
            state.step(Step::Read)?;
            let read = state.contents[self.id]
                .current
                .read(to_usize(op.offset), op.buf);
            read.ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        check_aligned(self.block_size(), bufs, offset)?;
        self.write_all(vec![(offset, Blocks::of(bufs))], false)
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        check_aligned(self.block_size(), bufs, offset)?;
        self.write_all(vec![(offset, Blocks::of(bufs))], true)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        for op in ops {
            check_aligned(self.block_size(), &[op.buf], op.offset)?;
        }
        let write = |op: &WriteOp<'_>| (op.offset, Blocks::of(&[op.buf]));
        let mut writes: Vec<_> = ops.iter().map(write).collect();
        self.device.own().rng.shuffle(&mut writes);
        self.write_all(writes, false)
    }

    fn words(&self) -> Option<&[AtomicU64]> {
        let mirror = self.mirror.get_or_init(|| {
            let mut state = self.device.own();
            let is_memory = state.block_size_of_file(self.id) == LINE;
            let bytes = &state.contents[self.id].current;
            let mirror = is_memory.then(|| Arc::new(Mirror::of(bytes)))?;
            Some(state.mirrors.entry(self.id).or_insert(mirror).clone())
        });
        Some(mirror.as_ref()?.words())
    }

    fn check_words(&self, range: Range<u64>) -> io::Result<()> {
        let mirror = self.mirror.get().and_then(Option::as_ref);
        if mirror.is_some_and(|mirror| mirror.has(range.end)) {
            return Ok(());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.device.own();
        let was_on = !state.crashed;
        if let Err(error) = state.step(Step::Sync) {
            if was_on && !state.crashed && state.rng.bool() {
                // The device may have dropped the data that it could not write; later syncs succeed
                // nevertheless.
                braid_rt::coverage_point("device: a failed sync loses what it was for");
                state.contents[self.id].forget_unsynced();
                state.show_from(self.id, 0);
            }
            return Err(error);
        }
        let unsynced = state.contents[self.id].unsynced();
        state.syncs.push(self.id);
        drop(state);
        self.device.take_time(20..200);
        let mut state = self.device.own();
        let ended = state.syncs.iter().position(|id| *id == self.id);
        ended.map(|at| state.syncs.swap_remove(at));
        if state.crashed {
            return Err(crashed());
        }
        if !state.lies {
            state.contents[self.id].sync(unsynced);
        }
        Ok(())
    }
}
