//! Creating and opening volumes, their names, and the commit of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_rt::Mutex;
use braid_rt::atomic::Ordering;

use super::file::{Node, VolumeFile};
use super::image::{self, Extent, Layout};
use super::journal::Journal;
use super::medium::{BLOCK, Medium};
use super::space::Space;
use super::superblock::{self, JOURNAL, Superblock};
use super::{VolumeError, image::NAME_MAX};
use crate::Blocking;

/// How [`Volume::format`] divides a drive.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FormatOptions {
    /// Bytes of an allocation unit: a power of two from 4,096 to 2^30. By default 1 MiB, or 64 KiB
    /// on a drive of less than 4 GiB.
    pub unit: Option<u64>,
    /// Bytes of each half of the journal: a multiple of 4,096 up to 2^30. By default 256 KiB, and a
    /// 4,096th of a drive of more than 1 GiB, up to 16 MiB.
    pub journal: Option<u64>,
}

impl FormatOptions {
    /// Sets the bytes of an allocation unit.
    #[must_use]
    pub fn unit(mut self, bytes: u64) -> Self {
        self.unit = Some(bytes);
        self
    }

    /// Sets the bytes of each half of the journal.
    #[must_use]
    pub fn journal(mut self, bytes: u64) -> Self {
        self.journal = Some(bytes);
        self
    }
}

/// Sizes and identity of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Identity, chosen when the volume was created.
    pub identity: u128,
    /// Bytes of the drive that the volume uses.
    pub bytes: u64,
    /// Bytes of an allocation unit.
    pub unit: u64,
    /// Bytes for the contents of files.
    pub capacity: u64,
    /// Bytes that no file has.
    pub free: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of each half of the journal.
    pub journal: u64,
    /// Bytes of the journal that the current generation takes.
    pub journal_used: u64,
    /// Generation of the journal.
    pub generation: u64,
}

/// The part of a volume that changes with its files.
#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, Arc<Node>>,
    /// Names that changed since the last commit.
    dirty_names: BTreeSet<String>,
    /// Files whose layout changed since the last commit.
    dirty: BTreeMap<u64, Arc<Node>>,
    /// Files without a name that handles may still use.
    orphans: Vec<Arc<Node>>,
    /// Extents that left their files since the last commit.
    freed: Vec<Extent>,
    space: Space,
    next_id: u64,
}

/// An open volume, as its handles share it.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) medium: Medium,
    /// Bytes of a unit, and where the first one begins.
    pub(super) geometry: (u64, u64),
    /// Locked before the state.
    journal: Mutex<Journal>,
    /// Locked after the layout of a file.
    state: Mutex<State>,
}

/// A volume on a drive; see the module's documentation. Clones share it.
///
/// The caller makes sure that a drive is opened once at a time.
#[derive(Clone, Debug)]
pub struct Volume {
    inner: Arc<Inner>,
}

fn suitable(medium: &Medium) -> Result<(), VolumeError> {
    let block = medium.drive().info().block_size as u64;
    if BLOCK.is_multiple_of(block) {
        return Ok(());
    }
    Err(VolumeError::Unsuitable {
        reason: format!(
            "its blocks have {block} bytes; format the namespace with blocks of 512 or 4096 bytes \
             (nvme format --block-size=4096)"
        ),
    })
}

impl Volume {
    /// Creates an empty volume. Everything on the drive is lost.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Unsuitable`], [`VolumeError::Invalid`], or the drive's error.
    pub fn format(drive: Blocking, options: FormatOptions) -> Result<Self, VolumeError> {
        let medium = Medium::new(drive);
        suitable(&medium)?;
        let bytes = medium.bytes() / BLOCK * BLOCK;
        let is_small = bytes < 4 << 30;
        let unit = options
            .unit
            .unwrap_or(if is_small { 64 << 10 } else { 1 << 20 });
        let share = (bytes / 4096).clamp(256 << 10, 16 << 20) / BLOCK * BLOCK;
        let half = options.journal.unwrap_or(share);
        if !unit.is_power_of_two() || !(BLOCK..=1 << 30).contains(&unit) {
            return Err(VolumeError::Invalid {
                what: format!("a unit of {unit} bytes: choose a power of two from 4096 to 2^30"),
            });
        }
        if !half.is_multiple_of(BLOCK) || !(BLOCK..=1 << 30).contains(&half) {
            return Err(VolumeError::Invalid {
                what: format!("a journal of {half} bytes: choose a multiple of 4096 up to 2^30"),
            });
        }
        let data = (JOURNAL + 2 * half).next_multiple_of(unit);
        if bytes < data + unit {
            return Err(VolumeError::Unsuitable {
                reason: format!(
                    "it has {bytes} bytes, and a volume takes at least {}",
                    data + unit
                ),
            });
        }
        let identity = (u128::from(braid_rt::entropy()) << 64) | u128::from(braid_rt::entropy());
        // Until the first superblock is written, the drive has neither the old contents nor a
        // volume.
        medium.zero(0..JOURNAL)?;
        medium.zero(bytes - (64 << 10)..bytes)?;
        medium.flush()?;
        let superblock = Superblock {
            identity: identity.to_le_bytes(),
            sequence: 0,
            generation: 0,
            bytes,
            unit,
            half,
            data,
        };
        Journal::create(&medium, superblock)?;
        medium.deallocate(data..bytes);
        Self::open_medium(medium)
    }

    /// Opens the volume of a drive. If the drive has grown, so does the volume.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NotAVolume`], [`VolumeError::Newer`], [`VolumeError::Smaller`],
    /// [`VolumeError::Unsuitable`], [`VolumeError::Damaged`], or the drive's error. Nothing was
    /// written then, except for the drive's error.
    pub fn open(drive: Blocking) -> Result<Self, VolumeError> {
        Self::open_medium(Medium::new(drive))
    }

    fn open_medium(medium: Medium) -> Result<Self, VolumeError> {
        suitable(&medium)?;
        let (superblock, same) = superblock::choose(&medium)?;
        let bytes = medium.bytes() / BLOCK * BLOCK;
        if bytes < superblock.bytes {
            let (was, is) = (superblock.bytes, bytes);
            return Err(VolumeError::Smaller { was, is });
        }
        let mut journal = Journal::read(&medium, superblock)?;
        let superblock = &journal.superblock;
        if let Some(fault) = journal
            .image
            .faults(superblock.units(), superblock.unit)
            .into_iter()
            .next()
        {
            return Err(VolumeError::Damaged { what: fault });
        }
        // V5, V7, V9.
        if !braid_rt::mutant!("volume_trust_the_cache") {
            medium.flush()?;
            journal.renew(&medium, bytes)?;
        } else if !same || bytes > journal.superblock.bytes {
            journal.renew(&medium, bytes)?;
        }
        let superblock = &journal.superblock;
        let geometry = (superblock.unit, superblock.data);
        let mut state = State::default();
        for (start, units) in journal.image.free_runs(superblock.units()) {
            state.space.add(start, units);
        }
        for (name, id) in &journal.image.names {
            let layout = journal.image.files[id].clone();
            let node = Arc::new(Node::new(*id, layout));
            state.names.insert(name.clone(), node);
            state.next_id = state.next_id.max(*id);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                medium,
                geometry,
                journal: Mutex::new(journal),
                state: Mutex::new(state),
            }),
        })
    }

    /// Returns the drive.
    pub fn drive(&self) -> &Blocking {
        self.inner.medium.drive()
    }

    /// Returns what the volume consists of.
    pub fn info(&self) -> VolumeInfo {
        let journal = self.inner.journal.lock();
        let state = self.inner.state.lock();
        let superblock = &journal.superblock;
        VolumeInfo {
            identity: u128::from_le_bytes(superblock.identity),
            bytes: superblock.bytes,
            unit: superblock.unit,
            capacity: superblock.units() * superblock.unit,
            free: state.space.free() * superblock.unit,
            files: state.names.len() as u64,
            journal: superblock.half,
            journal_used: journal.extent().1,
            generation: superblock.generation,
        }
    }

    /// Lists all names and lengths, sorted.
    pub fn list(&self) -> Vec<(String, u64)> {
        let nodes: Vec<(String, Arc<Node>)> = {
            let state = self.inner.state.lock();
            let names = state.names.iter();
            names
                .map(|(name, node)| (name.clone(), node.clone()))
                .collect()
        };
        let len = |node: Arc<Node>| node.layout.read().len;
        let entries = nodes.into_iter();
        entries.map(|(name, node)| (name, len(node))).collect()
    }

    fn file(&self, node: Arc<Node>) -> VolumeFile {
        VolumeFile {
            inner: self.inner.clone(),
            node,
        }
    }

    /// Creates an empty file. Durable after [`Volume::commit`].
    ///
    /// # Errors
    ///
    /// [`VolumeError::Exists`], or [`VolumeError::Invalid`] if the name is empty or longer than
    /// 1,024 bytes.
    pub fn create(&self, name: &str) -> Result<VolumeFile, VolumeError> {
        check_name(name)?;
        self.inner.medium.check()?;
        let mut state = self.inner.state.lock();
        if state.names.contains_key(name) {
            return Err(VolumeError::Exists { name: name.into() });
        }
        state.next_id += 1;
        let node = Arc::new(Node::new(state.next_id, Layout::default()));
        state.names.insert(name.to_owned(), node.clone());
        state.dirty_names.insert(name.to_owned());
        Ok(self.file(node))
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NoFile`].
    pub fn open_file(&self, name: &str) -> Result<VolumeFile, VolumeError> {
        let node = self.inner.state.lock().names.get(name).cloned();
        node.map(|node| self.file(node))
            .ok_or_else(|| no_file(name))
    }

    /// Removes a file. Durable after [`Volume::commit`].
    ///
    /// # Errors
    ///
    /// [`VolumeError::NoFile`].
    pub fn remove(&self, name: &str) -> Result<(), VolumeError> {
        self.inner.medium.check()?;
        let mut state = self.inner.state.lock();
        let node = state.names.remove(name).ok_or_else(|| no_file(name))?;
        state.dirty_names.insert(name.to_owned());
        state.orphan(node);
        Ok(())
    }

    /// Renames a file, and replaces `to` atomically. Durable after [`Volume::commit`].
    ///
    /// # Errors
    ///
    /// [`VolumeError::NoFile`] or [`VolumeError::Invalid`].
    pub fn rename(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        check_name(to)?;
        self.inner.medium.check()?;
        let mut state = self.inner.state.lock();
        let node = state.names.remove(from).ok_or_else(|| no_file(from))?;
        let replaced = state.names.insert(to.to_owned(), node);
        state.dirty_names.extend([from.to_owned(), to.to_owned()]);
        replaced.into_iter().for_each(|node| state.orphan(node));
        Ok(())
    }

    /// Makes all completed changes durable: names, lengths, and contents.
    ///
    /// # Errors
    ///
    /// [`VolumeError::DirectoryFull`]; the drive's error, after which nothing is acknowledged any
    /// more (V8).
    pub fn commit(&self) -> Result<(), VolumeError> {
        self.inner.commit()
    }
}

fn no_file(name: &str) -> VolumeError {
    VolumeError::NoFile { name: name.into() }
}

fn check_name(name: &str) -> Result<(), VolumeError> {
    if !name.is_empty() && name.len() <= NAME_MAX {
        return Ok(());
    }
    Err(VolumeError::Invalid {
        what: format!("a name of {} bytes: choose 1 to {NAME_MAX}", name.len()),
    })
}

impl State {
    /// Keeps a file that has lost its name for its handles.
    fn orphan(&mut self, node: Arc<Node>) {
        // Relaxed: read under the same lock.
        node.removed.store(true, Ordering::Relaxed);
        self.dirty.remove(&node.id);
        self.orphans.push(node);
    }

    /// Takes the extents of files that have neither a name nor a handle.
    fn take_orphans(&mut self) {
        for node in std::mem::take(&mut self.orphans) {
            match Arc::try_unwrap(node) {
                Ok(node) => self.freed.extend(node.layout.into_inner().extents),
                Err(node) => self.orphans.push(node),
            }
        }
    }
}

/// Changes that a commit takes.
struct Changes {
    /// Names, with the files that have them now.
    names: Vec<(String, Option<u64>)>,
    files: Vec<Arc<Node>>,
    freed: Vec<Extent>,
}

impl Inner {
    /// Notes that a file's layout changed, and which extents left it.
    pub(super) fn note_change(&self, node: &Arc<Node>, removed: Vec<Extent>) {
        let mut state = self.state.lock();
        state.freed.extend(removed);
        // Relaxed: written under the same lock.
        if !node.removed.load(Ordering::Relaxed) {
            state.dirty.insert(node.id, node.clone());
        }
    }

    /// Takes free units; if there are too few, first commits what frees units.
    pub(super) fn take_units(
        &self,
        near: Option<u64>,
        units: u64,
    ) -> Result<Vec<Extent>, VolumeError> {
        for attempt in 0..2 {
            let mut state = self.state.lock();
            if let Some(taken) = state.space.take(near, units) {
                return Ok(taken);
            }
            if attempt == 0 && (!state.freed.is_empty() || !state.orphans.is_empty()) {
                drop(state);
                self.commit()?;
            }
        }
        let unit = self.geometry.0;
        Err(VolumeError::Full {
            bytes: units.saturating_mul(unit),
            free: self.state.lock().space.free() * unit,
        })
    }

    fn take_changes(&self) -> Changes {
        let mut state = self.state.lock();
        state.take_orphans();
        let names = std::mem::take(&mut state.dirty_names);
        let names = names.into_iter().map(|name| {
            let file = state.names.get(&name).map(|node| node.id);
            (name, file)
        });
        Changes {
            names: names.collect(),
            // Files that lose their names later are included: what they freed is.
            files: std::mem::take(&mut state.dirty).into_values().collect(),
            freed: std::mem::take(&mut state.freed),
        }
    }

    /// Puts changes back that were not committed.
    fn put_back(&self, changes: Changes) {
        let mut state = self.state.lock();
        state.freed.extend(changes.freed);
        state
            .dirty_names
            .extend(changes.names.into_iter().map(|(name, _)| name));
        for node in changes.files {
            // Relaxed: written under the same lock.
            if !node.removed.load(Ordering::Relaxed) {
                state.dirty.insert(node.id, node);
            }
        }
    }

    pub(super) fn commit(&self) -> Result<(), VolumeError> {
        let mut journal = self.journal.lock();
        self.medium.check()?;
        let changes = self.take_changes();
        let mut payload = Vec::new();
        for (name, file) in &changes.names {
            if journal.image.names.get(name) != file.as_ref() {
                image::put_name(&mut payload, name, *file);
            }
        }
        let (mut counts, none) = (Vec::new(), Layout::default());
        for node in &changes.files {
            // Acquire pairs with the release in `VolumeFile::change`: the layout has the change.
            counts.push(node.changes.load(Ordering::Acquire));
            let layout = node.layout.read();
            let before = journal.image.files.get(&node.id).unwrap_or(&none);
            if *layout != *before {
                image::put_file(&mut payload, node.id, &layout, before);
            }
        }
        let early = braid_rt::mutant!("volume_reuse_before_journal");
        if early {
            self.release(&changes.freed);
        }
        if let Err(error) = self.write_entry(&mut journal, &payload) {
            self.put_back(changes);
            return Err(error);
        }
        for (node, count) in changes.files.iter().zip(counts) {
            // Release pairs with the acquire in `Node::is_dirty`.
            node.journaled.store(count, Ordering::Release);
        }
        if !early {
            // V2: the entry is durable.
            self.release(&changes.freed);
        }
        Ok(())
    }

    fn write_entry(&self, journal: &mut Journal, payload: &[u8]) -> Result<(), VolumeError> {
        if !braid_rt::mutant!("volume_skip_flush") {
            // V6.
            self.medium.flush()?;
        }
        if payload.is_empty() {
            return Ok(());
        }
        journal.append(&self.medium, payload)
    }

    /// Returns units that no entry mentions any more.
    fn release(&self, freed: &[Extent]) {
        let (unit, data) = self.geometry;
        for extent in freed {
            let Some(at) = extent.at else { continue };
            let start = data + at * unit;
            self.medium.deallocate(start..start + extent.units * unit);
            self.state.lock().space.add(at, extent.units);
        }
    }
}
