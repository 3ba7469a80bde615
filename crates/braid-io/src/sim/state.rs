//! The state of a simulated device: its files, the operations in flight, and the pending faults.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use braid_rt::atomic::{AtomicU64, Ordering};

use super::blocks::Blocks;
use super::content::Content;
use super::mirror::Mirror;
use super::{BLOCK, LINE, PAGE, SECTOR, WORD};
use crate::readers::MemoryReaderTable;

/// A write that has begun.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) file: usize,
    /// A multiple of the block.
    pub(super) offset: usize,
    pub(super) bytes: Blocks,
    pub(super) durable: bool,
    /// Parts that hold the bytes of a write that ended while this one was in flight: the device
    /// performed this one first.
    pub(super) overwritten: Vec<Range<usize>>,
}

impl Write {
    fn place(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes.len()
    }

    /// The write of what is not overwritten, as writes of its parts.
    fn visible(self, unit: usize) -> Vec<Self> {
        if self.overwritten.is_empty() {
            return vec![self];
        }
        let is_visible = |part: &Range<usize>| {
            let start = self.offset + part.start;
            !self.overwritten.iter().any(|range| range.contains(&start))
        };
        let parts = self.bytes.parts(unit).filter(is_visible);
        let write = |part: Range<usize>| Self {
            offset: self.offset + part.start,
            bytes: Blocks::of(&[self.bytes.get(part)]),
            overwritten: Vec::new(),
            ..self
        };
        parts.map(write).collect()
    }
}

/// The steps at which a kind of operation fails.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Failing {
    /// The step from which on it fails.
    pub(super) at: Option<u64>,
    pub(super) for_good: bool,
}

impl Failing {
    fn fails(&mut self, step: u64) -> bool {
        let fails = self.at.is_some_and(|at| step >= at);
        if fails && !self.for_good {
            self.at = None;
        }
        fails
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) names: BTreeMap<String, usize>,
    pub(super) name_changes: u64,
    /// The number of these changes made by earlier processes, which were killed.
    pub(super) inherited_name_changes: u64,
    /// The names that certainly survive a crash, and the number of changes up to them.
    pub(super) durable_names: BTreeMap<String, usize>,
    pub(super) durable_name_changes: u64,
    pub(super) contents: Vec<Content>,
    /// The words of files, by their index in `contents`.
    pub(super) mirrors: BTreeMap<usize, Arc<Mirror>>,
    /// Writes in flight, under a simulation.
    pub(super) writes: BTreeMap<u64, Write>,
    pub(super) next_write: u64,
    /// Files with syncs in flight, under a simulation.
    pub(super) syncs: Vec<usize>,
    pub(super) rng: fastrand::Rng,
    /// One in this many operations takes much longer, if it is set.
    pub(super) spikes: Option<u32>,
    pub(super) steps: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) crashed: bool,
    pub(super) failing_writes: Failing,
    pub(super) failing_syncs: Failing,
    pub(super) failing_reads: Failing,
    /// One in this many reads fails; 0 for none.
    pub(super) flaky_reads: u32,
    /// Operations that failed by an injected fault, without a crash.
    pub(super) faults: Arc<AtomicU64>,
    pub(super) capacity: Option<u64>,
    /// The contents of sectors before they were last overwritten, if they are recorded.
    pub(super) stale: Option<BTreeMap<(usize, usize), Vec<u8>>>,
    /// The contents of pages before they were last overwritten as a whole, by file and page.
    pub(super) stale_pages: BTreeMap<(usize, usize), Vec<u8>>,
    pub(super) lies: bool,
    /// The claim of the opener that may use the device, and the number of claims so far.
    pub(super) owner: Option<u64>,
    pub(super) claims: u64,
    /// The reader table of the current processes; the next ones begin with another.
    pub(super) readers: MemoryReaderTable,
    /// Bytes of the units that reads and writes consist of, if they are not blocks.
    pub(super) block: Option<usize>,
    /// As `block`, for files of the log.
    pub(super) log_block: Option<usize>,
}

pub(super) fn crashed() -> io::Error {
    io::Error::other("simulated crash")
}

/// The kinds of steps of the simulation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Write,
    Sync,
    Name,
}

impl State {
    pub(super) fn step(&mut self, step: Step) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        if step != Step::Read {
            self.steps += 1;
            if self.crash_at.is_some_and(|at| self.steps >= at) {
                self.power_off();
                return Err(crashed());
            }
        }
        let failing = match step {
            Step::Read => &mut self.failing_reads,
            Step::Write => &mut self.failing_writes,
            Step::Sync => &mut self.failing_syncs,
            Step::Name => return Ok(()),
        };
        let mut fails = failing.fails(self.steps);
        if step == Step::Read && self.flaky_reads > 0 {
            fails |= self.rng.u32(..self.flaky_reads) == 0;
        }
        if fails {
            self.faults.fetch_add(1, Ordering::Relaxed);
            braid_rt::coverage_point(match step {
                Step::Read => "device: a read fails",
                Step::Sync => "device: a sync fails",
                _ => "device: a write fails",
            });
            return Err(io::Error::other("simulated I/O error"));
        }
        Ok(())
    }

    /// The block size of the log's files, or of all others.
    pub(super) fn block_size(&self, is_log: bool) -> usize {
        let block = if is_log { self.log_block } else { self.block };
        block.unwrap_or(BLOCK)
    }

    pub(super) fn block_size_of_file(&self, id: usize) -> usize {
        self.block_size(self.contents[id].is_log)
    }

    /// The unit in which a crash tears a write to a file.
    fn torn_unit(&self, id: usize) -> usize {
        if self.block_size_of_file(id) == LINE {
            WORD
        } else {
            SECTOR
        }
    }

    /// The unit of each file.
    fn torn_units(&self) -> Vec<usize> {
        let ids = 0..self.contents.len();
        ids.map(|id| self.torn_unit(id)).collect()
    }

    /// Whether a sync (`false`) or a durable write (`true`) is in flight that `pick` accepts, with
    /// its file's name.
    pub(super) fn is_syncing(&self, pick: impl Fn(&str, bool) -> bool) -> bool {
        let writes = self.writes.values().filter(|write| write.durable);
        let syncs = self.syncs.iter().map(|&file| (file, false));
        let mut all = syncs.chain(writes.map(|write| (write.file, true)));
        all.any(|(file, is_write)| {
            let mut names = self.names.iter();
            names.any(|(name, &id)| id == file && pick(name, is_write))
        })
    }

    /// Ends the process: the system still completes some of the writes in flight, and tears others.
    pub(super) fn kill(&mut self) {
        self.crashed = true;
        for write in self.writes.values_mut() {
            write.durable = false;
        }
        while let Some((_, write)) = self.writes.pop_first() {
            let torn = self.rng.bool();
            self.overtake(&write);
            self.put(write, torn);
        }
    }

    /// Cuts the power: tears the operations in flight.
    pub(super) fn power_off(&mut self) {
        self.crashed = true;
        if !self.writes.is_empty() {
            braid_rt::coverage_point("device: the power fails in the middle of a write");
        }
        for write in std::mem::take(&mut self.writes).into_values() {
            self.put(write, true);
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.names
            .values()
            .map(|&id| self.contents[id].current.len() as u64)
            .sum()
    }

    pub(super) fn grow(&mut self, id: usize, len: usize) -> io::Result<()> {
        let more = len.saturating_sub(self.contents[id].current.len());
        if self
            .capacity
            .is_some_and(|capacity| self.used() + more as u64 > capacity)
        {
            self.faults.fetch_add(1, Ordering::Relaxed);
            braid_rt::coverage_point("device: there is no room");
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.contents[id].grow(len);
        self.show_from(id, self.contents[id].current.len());
        Ok(())
    }

    /// Shows the bytes of a file from an offset on to those who load its words.
    pub(super) fn show_from(&self, id: usize, from: usize) {
        if let Some(mirror) = self.mirrors.get(&id) {
            mirror.show_rest(&self.contents[id].current, from);
        }
    }

    /// Records the pages that a write replaces as a whole, if old contents are recorded.
    fn remember_pages(&mut self, write: &Write) {
        let (len, current) = (write.bytes.len(), &self.contents[write.file].current);
        if self.stale.is_none() || len == 0 {
            return;
        }
        if !write.offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            // The contents from before an earlier write would undo several writes.
            let pages = write.offset / PAGE..=(write.offset + len - 1) / PAGE;
            for page in pages {
                self.stale_pages.remove(&(write.file, page));
            }
            return;
        }
        for at in (write.offset..(write.offset + len).min(current.len())).step_by(PAGE) {
            let sectors = (at..(at + PAGE).min(current.len())).step_by(SECTOR);
            let old: Vec<u8> = sectors
                .flat_map(|sector| current.get(sector..sector + SECTOR).to_vec())
                .collect();
            self.stale_pages.insert((write.file, at / PAGE), old);
        }
    }

    /// The unit in which writes overwrite each other.
    fn whole_unit(&self, id: usize) -> usize {
        self.block_size_of_file(id).min(SECTOR)
    }

    /// Makes the bytes of a write visible to reads: all that are not overwritten, or, if torn, any
    /// of their sectors.
    fn put(&mut self, write: Write, torn: bool) {
        let unit = self.whole_unit(write.file);
        for part in write.visible(unit) {
            self.put_visible(&part, torn);
        }
    }

    fn put_visible(&mut self, write: &Write, torn: bool) {
        self.remember_pages(write);
        let unit = if torn {
            self.torn_unit(write.file)
        } else {
            self.whole_unit(write.file)
        };
        let content = &mut self.contents[write.file];
        let end = write.offset + write.bytes.len();
        if !torn && self.stale.is_none() && end <= content.current.len() {
            content
                .current
                .put_all(write.offset, &write.bytes, write.bytes.len());
        } else {
            let mut is_torn = false;
            for part in write.bytes.parts(unit) {
                let bytes = write.bytes.get(part.clone());
                let place = write.offset + part.start..write.offset + part.end;
                if place.end > content.current.len() {
                    continue;
                }
                let old = content.current.get(place.clone());
                if torn && self.rng.bool() {
                    is_torn |= old != bytes;
                    continue;
                }
                if let Some(stale) = &mut self.stale
                    && old != bytes
                {
                    let sector = (write.file, place.start / SECTOR);
                    if unit == SECTOR {
                        stale.insert(sector, old.to_vec());
                    } else {
                        // The contents from before an earlier write would undo several writes.
                        stale.remove(&sector);
                    }
                }
                content.current.put(place.start, bytes);
            }
            if is_torn && unit == WORD {
                braid_rt::coverage_point("device: words of a cache line are torn");
            }
        }
        content.mark(write.offset..end.min(content.current.len()));
        if let Some(mirror) = self.mirrors.get(&write.file) {
            mirror.show(&content.current, write.offset, end);
        }
        if write.durable && !torn {
            // Only the bytes: an unsynced length may still be lost, and the bytes with it.
            let known = content.durable.len().min(end);
            if known > write.offset {
                let len = known - write.offset;
                content.durable.put_all(write.offset, &write.bytes, len);
                content.settle(write.offset..known);
            }
        }
    }

    /// Begins a write, unless it is refused. Returns its number.
    pub(super) fn begin(&mut self, mut write: Write) -> io::Result<u64> {
        write.durable &= !self.lies;
        let was_on = !self.crashed;
        if let Err(error) = self.step(Step::Write) {
            if was_on {
                // The write that was in flight at that moment.
                self.put(write, true);
            }
            return Err(error);
        }
        self.grow(write.file, write.offset + write.bytes.len())?;
        self.next_write += 1;
        self.writes.insert(self.next_write, write);
        Ok(self.next_write)
    }

    /// Ends a write, unless the power failed before.
    pub(super) fn end(&mut self, write: u64) -> io::Result<()> {
        let write = self.writes.remove(&write).ok_or_else(crashed)?;
        self.overtake(&write);
        self.put(write, false);
        Ok(())
    }

    /// Decides which parts of the writes in flight the medium performed before those of a write that
    /// ends. A durable write lands after a volatile one that ended: both orders are possible, and this
    /// one needs no third content.
    fn overtake(&mut self, ended: &Write) {
        let unit = self.whole_unit(ended.file);
        let place = ended.place();
        for other in self.writes.values_mut() {
            if other.file != ended.file || (other.durable && !ended.durable) {
                continue;
            }
            let both = place.start.max(other.offset)..place.end.min(other.place().end);
            for start in both.clone().step_by(unit) {
                if self.rng.bool() {
                    other.overwritten.push(start..(start + unit).min(both.end));
                }
            }
        }
    }

    /// Makes everything durable, as the operating system does in time.
    pub(super) fn write_back(&mut self) {
        self.durable_names.clone_from(&self.names);
        self.durable_name_changes = self.name_changes;
        for content in &mut self.contents {
            *content = Content::of(content.current.clone(), content.is_log);
        }
    }

    /// Returns the state that the next process finds after the current process was killed: all
    /// writes, as volatile as before, and any part of each write in flight.
    pub(super) fn inherited(&mut self) -> State {
        let names = self.names.values().chain(self.durable_names.values());
        let mut ids: Vec<usize> = names.copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let new_id = |id: usize| ids.binary_search(&id).ok();
        let names = |names: &BTreeMap<String, usize>| {
            let names = names.iter();
            let names = names.filter_map(|(name, &id)| Some((name.clone(), new_id(id)?)));
            names.collect()
        };
        let stale = |stale: &BTreeMap<(usize, usize), Vec<u8>>| {
            let stale = stale.iter();
            let stale = stale.filter_map(|(&(id, at), old)| Some(((new_id(id)?, at), old.clone())));
            stale.collect()
        };
        let mut next = State {
            names: names(&self.names),
            name_changes: self.name_changes,
            inherited_name_changes: self.name_changes,
            durable_names: names(&self.durable_names),
            durable_name_changes: self.durable_name_changes,
            contents: ids.iter().map(|&id| self.contents[id].clone()).collect(),
            rng: self.rng.fork(),
            stale: self.stale.as_ref().map(stale),
            stale_pages: stale(&self.stale_pages),
            lies: self.lies,
            block: self.block,
            log_block: self.log_block,
            spikes: self.spikes,
            ..State::default()
        };
        for write in self.writes.values() {
            if let Some(file) = new_id(write.file) {
                let bytes = write.bytes.clone();
                let write = Write {
                    file,
                    bytes,
                    overwritten: write.overwritten.clone(),
                    ..*write
                };
                next.put(write, true);
            }
        }
        next.contents.iter_mut().for_each(Content::inherit);
        next
    }

    /// Returns the state after a loss of power: each part of the data that is not durable survives
    /// or not.
    pub(super) fn left(&mut self) -> State {
        let kept_names = self.rng.bool();
        let units = self.torn_units();
        let rng = &mut self.rng;
        let mut left = State {
            rng: rng.fork(),
            ..State::default()
        };
        // A file system keeps the order of changes of names: here all since the last sync, or none.
        let names = if kept_names {
            &self.names
        } else {
            &self.durable_names
        };
        if *names != self.names {
            braid_rt::coverage_point("device: names are lost");
            if self.durable_name_changes < self.inherited_name_changes {
                braid_rt::coverage_point("device: names of a killed process are lost");
            }
        }
        let (mut is_lost, mut is_inherited_lost) = (false, false);
        for (name, &id) in names {
            let (content, unit) = (&self.contents[id], units[id]);
            let long = content.current.len();
            let len = if rng.bool() {
                long
            } else {
                content.durable.len()
            };
            let mut bytes = content.durable.clone();
            bytes.set_len(len);
            for (block, at) in content.dirty.iter() {
                let is_inherited = content.is_inherited(at);
                if bytes.share(&content.current, block) {
                    continue;
                }
                let place = content.block(block);
                for at in place.clone().step_by(unit) {
                    let sector = at..(at + unit).min(place.end).min(len);
                    if sector.start < sector.end
                        && bytes.get(sector.clone()) != content.current.get(sector.clone())
                    {
                        if rng.bool() {
                            bytes.put(sector.start, content.current.get(sector));
                        } else {
                            is_lost = true;
                            is_inherited_lost |= is_inherited;
                        }
                    }
                }
            }
            if let Some(stale) = &self.stale {
                let own = stale.range((id, 0)..(id + 1, 0));
                let to = left.stale.get_or_insert_default();
                to.extend(own.map(|(&(_, at), old)| ((left.contents.len(), at), old.clone())));
                let own = self.stale_pages.range((id, 0)..(id + 1, 0));
                let own = own.map(|(&(_, at), old)| ((left.contents.len(), at), old.clone()));
                left.stale_pages.extend(own);
            }
            for write in self.writes.values().filter(|write| write.file == id) {
                for sector in write.bytes.parts(unit) {
                    if write.offset + sector.end <= bytes.len() && rng.bool() {
                        bytes.put(write.offset + sector.start, write.bytes.get(sector));
                    }
                }
            }
            left.names.insert(name.clone(), left.contents.len());
            left.contents.push(Content::of(bytes, content.is_log));
        }
        if is_lost {
            braid_rt::coverage_point("device: a sector that was not synced is lost");
        }
        if is_inherited_lost {
            braid_rt::coverage_point("device: a sector of a killed process is lost");
        }
        if self.stale.is_some() {
            left.stale.get_or_insert_default();
        }
        left.lies = self.lies;
        left.spikes = self.spikes;
        left.durable_names = left.names.clone();
        left
    }
}
