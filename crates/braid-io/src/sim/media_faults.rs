//! Media faults: a medium that does not keep the data written to it.

use std::collections::BTreeMap;

use super::blocks::Blocks;
use super::content::Content;
use super::{BLOCK, PAGE, SECTOR, SimDevice};

/// The kinds of damage to a sector or page on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaFaults {
    /// A bit is flipped.
    FlippedBit,
    /// The sector is all zeroes.
    LostSector,
    /// The sector has its contents from before its last write.
    StaleSector,
    /// A whole page, with all its sectors, has its contents from before its last write: a lost
    /// write.
    StalePage,
}

/// The kinds of damage to a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFaults {
    /// The file has another length: any shorter one, or a few bytes more.
    Cut,
    /// The file is missing.
    Gone,
    /// The file is an earlier copy of itself.
    Older,
}

/// Copies of files; see [`SimDevice::copy_files`].
#[derive(Clone, Debug, Default)]
pub struct FileCopies(BTreeMap<String, Blocks>);

impl SimDevice {
    /// Copies the files, to put some of them back later, apart from those with data that a loss of
    /// power could undo: such a copy would bring back writes that are lost since, which no log can
    /// tell from its own.
    #[must_use]
    pub fn copy_files(&self) -> FileCopies {
        let state = self.state.lock();
        let files = state.names.iter();
        let files = files.map(|(name, &id)| (name, &state.contents[id]));
        let durable = files.filter(|(_, file)| file.durable.is_same(&file.current));
        let copies = durable.map(|(name, file)| (name.clone(), file.current.clone()));
        FileCopies(copies.collect())
    }

    /// Replaces, cuts or removes a file whose name `pick` accepts, durably. Returns its name, or
    /// `None` if no file can be damaged in that way.
    ///
    /// Everything else becomes durable first. Otherwise a loss of power could undo what a killed
    /// process did, also to names, so that an earlier state of the database would need the file that
    /// its present state does without.
    pub fn fault_file(
        &self,
        media_faults: FileFaults,
        copies: &FileCopies,
        pick: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let state = &mut *self.state.lock();
        let older = |name: &String, id: usize| {
            let copy = copies.0.get(name)?;
            let is_changed = !copy.is_same(&state.contents[id].current);
            is_changed.then(|| copy.clone())
        };
        let names = state.names.iter().filter(|(name, _)| pick(name));
        let mut files: Vec<(String, usize, Option<Blocks>)> = names
            .map(|(name, &id)| (name.clone(), id, older(name, id)))
            .filter(|(_, _, older)| media_faults != FileFaults::Older || older.is_some())
            .collect();
        if files.is_empty() {
            return None;
        }
        let (name, id, older) = files.swap_remove(state.rng.usize(..files.len()));
        state.write_back();
        let mut bytes = state.contents[id].current.clone();
        match media_faults {
            FileFaults::Cut if state.rng.u32(..4) == 0 => {
                bytes.set_len(bytes.len() + state.rng.usize(1..BLOCK));
            }
            FileFaults::Cut => bytes.set_len(state.rng.usize(..bytes.len().max(1))),
            FileFaults::Gone => {
                state.names.remove(&name);
                state.durable_names.remove(&name);
            }
            FileFaults::Older => bytes = older?,
        }
        state.contents[id] = Content::of(bytes, state.contents[id].is_log);
        Some(name)
    }

    /// Flips a bit of a file, durably. Returns whether the file has that byte.
    pub fn flip_bit(&self, name: &str, byte: usize, bit: u32) -> bool {
        let mut state = self.state.lock();
        let Some(&id) = state.names.get(name) else {
            return false;
        };
        let Content {
            durable, current, ..
        } = &mut state.contents[id];
        for bytes in [durable, &mut *current] {
            if byte < bytes.len() {
                let flipped = bytes.get(byte..byte + 1)[0] ^ 1 << (bit % 8);
                bytes.put(byte, &[flipped]);
            }
        }
        byte < current.len()
    }

    /// Starts to record old contents of sectors, so that sectors can become stale.
    pub fn remember_stale(&self) {
        self.state.lock().stale.get_or_insert_default();
    }

    /// Damages a sector of a file whose name `pick` accepts. Returns the file and the byte, or
    /// `None` if no sector can be damaged.
    pub fn media_faults(
        &self,
        media_faults: MediaFaults,
        pick: impl Fn(&str) -> bool,
    ) -> Option<(String, usize)> {
        if media_faults == MediaFaults::StalePage {
            return self.lose_write(pick);
        }
        let state = &mut *self.state.lock();
        let names = state.names.iter().filter(|(name, _)| pick(name));
        let files: Vec<(&String, usize)> = names.map(|(name, &id)| (name, id)).collect();
        let mut sectors = Vec::new();
        for (name, id) in files {
            let current = &state.contents[id].current;
            let stale = state.stale.as_ref();
            sectors.extend((0..current.len() / SECTOR).filter_map(|sector| {
                if media_faults != MediaFaults::StaleSector
                    && current.is_zeroes(sector * SECTOR / BLOCK)
                {
                    return None;
                }
                let bytes = current.get(sector * SECTOR..(sector + 1) * SECTOR);
                let old = stale.and_then(|stale| stale.get(&(id, sector)));
                let may = match media_faults {
                    MediaFaults::StaleSector => old.is_some_and(|old| old != bytes),
                    _ => bytes != [0; SECTOR],
                };
                may.then(|| (name.clone(), id, sector))
            }));
        }
        if sectors.is_empty() {
            return None;
        }
        let (name, id, sector) = sectors.swap_remove(state.rng.usize(..sectors.len()));
        let place = sector * SECTOR..(sector + 1) * SECTOR;
        let mut bytes = state.contents[id].current.get(place.clone()).to_vec();
        match media_faults {
            MediaFaults::FlippedBit => {
                bytes[state.rng.usize(..SECTOR)] ^= 1 << state.rng.u32(..8);
            }
            MediaFaults::LostSector => bytes.fill(0),
            MediaFaults::StaleSector => {
                let old = state.stale.as_ref()?.get(&(id, sector))?;
                bytes.clone_from(old);
            }
            MediaFaults::StalePage => unreachable!("it is no matter of one sector"),
        }
        let content = &mut state.contents[id];
        content.current.put(place.start, &bytes);
        if place.end <= content.durable.len() {
            content.durable.put(place.start, &bytes);
        }
        Some((name, place.start))
    }

    /// Restores a page's contents from before its last write.
    fn lose_write(&self, pick: impl Fn(&str) -> bool) -> Option<(String, usize)> {
        let state = &mut *self.state.lock();
        let mut pages = Vec::new();
        for (name, &id) in state.names.iter().filter(|(name, _)| pick(name)) {
            let current = &state.contents[id].current;
            let old = state.stale_pages.range((id, 0)..(id + 1, 0));
            let fitting = old.filter(|((_, page), old)| {
                let at = page * PAGE;
                let differs = |sector: usize| {
                    current.get(at + sector..at + sector + SECTOR) != &old[sector..sector + SECTOR]
                };
                at + PAGE <= current.len()
                    && old.len() == PAGE
                    && (0..PAGE).step_by(SECTOR).any(differs)
            });
            pages.extend(
                fitting.map(|((_, page), old)| (name.clone(), id, page * PAGE, old.clone())),
            );
        }
        if pages.is_empty() {
            return None;
        }
        let (name, id, at, old) = pages.swap_remove(state.rng.usize(..pages.len()));
        let content = &mut state.contents[id];
        for sector in (0..PAGE).step_by(SECTOR) {
            let bytes = &old[sector..sector + SECTOR];
            content.current.put(at + sector, bytes);
            if at + sector + SECTOR <= content.durable.len() {
                content.durable.put(at + sector, bytes);
            }
        }
        Some((name, at))
    }
}
