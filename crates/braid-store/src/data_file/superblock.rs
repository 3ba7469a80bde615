//! The two superblocks, of which one refers to the newest checkpoint's root.
//!
//! # Which superblock counts, when it is in doubt
//!
//! A superblock is written after a sync of everything that it refers to. It may be unknown whether
//! the superblock itself is durable: its write failed, or the process ended before the flush, and
//! the next process reads it from the system's cache. Until that is settled, the blocks of both
//! states must be kept. So a failed publication freezes the free space (no block becomes free, I8),
//! and a store that was opened writes the superblock that it found again, durably, before any other
//! write ([`DataFile::settle`]).
//!
//! A superblock that cannot be read may be the newer one. The older one leads to a state that lacks
//! transactions which were acknowledged, and whose blocks and log may have been reused since. So a read
//! error fails the opening, which changes nothing: the medium may return what is there later.
//!
//! # What may be left in the place of the other superblock
//!
//! The other superblock is older: it was durable before the one that was found was written. But
//! something else may be in its place.
//!
//! - In persistent memory, a crash tears a superblock into words. Its place may then have all words
//!   of it but one, and the next torn write of the same number could add the missing one. A file that
//!   seems to be on a disk may be there, too: on a file system with direct access, an ordinary write
//!   is torn into words.
//! - A newer superblock may be in a place that read as something else.
//!
//! Either could count after a later crash, when the blocks that it leads to have other contents.
//!
//! - I17: before anything is written to a file that was opened, the place of the other superblock
//!   durably has an older superblock or zeroes. So the words in one place are those of two
//!   superblocks at most: the older one does not count, and if the newer one is complete, nothing was
//!   written after it.
//!
//! Zeroes are written again. A process that was killed while it cleared the place leaves zeroes that
//! every read returns and that are not durable: a loss of power would bring back what was there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_io::{AlignedBuf, Device};

use super::block::{check, seal, u64_at};
use super::map::Packing;
use super::{DataFile, FILE_NAME, Root, damaged};
use crate::error::StoreError;
use crate::page::PAGE_SIZE;

const MAGIC: [u8; 8] = *b"BRAIDDB\x01";

/// The format of the data file that this version reads and writes.
pub const FORMAT: u64 = 6;

/// The older formats that this version also reads.
const OLD_FORMATS: std::ops::RangeInclusive<u64> = 2..=5;

/// The first format whose block addresses contain checksums.
pub(super) const FORMAT_OF_ADDRESSES: u64 = 4;

/// The first format whose block addresses have room for files of more than 512 TiB.
pub(super) const FORMAT_OF_WIDE_BLOCKS: u64 = 6;

/// Reads of an unreadable superblock, and the pause between them: another process may be writing
/// it.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(1);

/// Returns the format of a device's data file, from its newest intact superblock.
///
/// # Errors
/// [`StoreError::Io`]; [`StoreError::Corrupted`] if no superblock is intact.
pub fn data_format(device: &dyn Device) -> Result<u64, StoreError> {
    let opened = device.open(FILE_NAME, braid_io::OpenMode::Existing);
    let file = opened.map_err(|e| StoreError::io("cannot open data.braid", e))?;
    let mut newest = None;
    for slot in 0..2 {
        let mut buf = AlignedBuf::new(PAGE_SIZE);
        let offset = slot * PAGE_SIZE as u64;
        let len = file.len().map_err(|e| unreadable(slot, e))?;
        if len < offset + PAGE_SIZE as u64 {
            continue;
        }
        let read = file.read_at(&mut buf, offset);
        read.map_err(|e| unreadable(slot, e))?;
        if check(&buf, u64::from_le_bytes(MAGIC), u64::MAX).is_ok() {
            newest = newest.max(Some((u64_at(&buf, 24), u64_at(&buf, 16))));
        }
    }
    let none = || damaged("no superblock", "data.braid".into());
    newest.map(|(_, format)| format).ok_or_else(none)
}

/// The error of a superblock that cannot be read.
#[cold]
fn unreadable(slot: u64, error: std::io::Error) -> StoreError {
    let what = format!(
        "cannot read superblock {slot} of data.braid, which may be that of the newest checkpoint; open the database again when the medium can be read, or copy what is left with `braid salvage`"
    );
    StoreError::io(what, error)
}

/// The creator of a data file, and the progress of the creation; see [`creation_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFileCreation {
    /// The creation of the given identity made the file, and no checkpoint was published in it.
    Unfinished,
    /// The creation of the given identity made the file, and a checkpoint was published in it.
    Finished,
    /// The file carries another identity, or none: another creation made it.
    Foreign,
}

/// Returns whether the creation with an identity made a device's existing data file. The first
/// write to a data file is a superblock with the identity, so a file without one is blank, or has a
/// part of one.
///
/// # Errors
/// [`StoreError::Io`].
pub fn creation_of(device: &dyn Device, identity: u128) -> Result<DataFileCreation, StoreError> {
    let opened = device.open(FILE_NAME, braid_io::OpenMode::Existing);
    let file = opened.map_err(|e| StoreError::io("cannot open data.braid", e))?;
    let failed = |e| StoreError::io("cannot read the superblocks of data.braid", e);
    let blocks = file.len().map_err(failed)? / PAGE_SIZE as u64;
    let mut is_blank = file.len().map_err(failed)? <= PAGE_SIZE as u64;
    let mut newest = None;
    for slot in 0..blocks.min(2) {
        let mut buf = AlignedBuf::new(PAGE_SIZE);
        let read = file.read_at(&mut buf, slot * PAGE_SIZE as u64);
        read.map_err(failed)?;
        is_blank &= is_torn_creation(&buf, identity);
        if check(&buf, u64::from_le_bytes(MAGIC), u64::MAX).is_ok() {
            if u64_at(&buf, 16) != FORMAT || identity_in(&buf) != identity {
                return Ok(DataFileCreation::Foreign);
            }
            newest = newest.max(Some(u64_at(&buf, 24)));
        }
    }
    Ok(match newest {
        Some(0) => DataFileCreation::Unfinished,
        Some(_) => DataFileCreation::Finished,
        None if is_blank => DataFileCreation::Unfinished,
        None => DataFileCreation::Foreign,
    })
}

/// Whether a crash may have left this of the first superblock of a creation, or nothing.
fn is_torn_creation(buf: &[u8], identity: u128) -> bool {
    let [low, high] = braid_io::identity_words(48, identity);
    let magic = (8, u64::from_le_bytes(MAGIC));
    braid_io::may_be_torn(buf, &[magic, (16, FORMAT), (24, 0), low, high])
}

/// The packing of block addresses in a superblock's format.
pub(crate) fn packing_of(superblock: &[u8]) -> Packing {
    Packing::of_format(u64_at(superblock, 16))
}

/// What is in the place of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing: the file ends before it.
    Absent,
    /// Zeroes.
    Blank,
    /// The superblock with this number.
    Intact(u64),
    Torn,
    Unreadable,
}

/// Whether the other superblock does not count because of this error: this one may be newer.
fn must_not_be_passed(error: &StoreError) -> bool {
    match error {
        StoreError::Incompatible { .. } => true,
        StoreError::Corrupted { .. } => false,
        _ => !braid_rt::mutant!("open_past_a_read_error"),
    }
}

/// The offset of the superblock with a number.
fn offset_of(sequence: u64) -> u64 {
    sequence % 2 * PAGE_SIZE as u64
}

/// The identity in a superblock.
fn identity_in(buf: &[u8]) -> u128 {
    u128::from(u64_at(buf, 48)) | u128::from(u64_at(buf, 56)) << 64
}

impl DataFile {
    /// Makes the superblock that the file was opened with durable, and clears the place of the other
    /// one unless it has an older one, before any other write; see the module's documentation.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        // Acquire: pairs with the Release below.
        if self.settled.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut unsettled = self.unsettled.lock();
        if let Some((sequence, superblock)) = &*unsettled {
            braid_rt::coverage_point("store: the superblock that was found is made durable");
            let written = self
                .file
                .write_durable_at(&[superblock], offset_of(*sequence));
            written.map_err(|e| self.failed("cannot rewrite the superblock of", e))?;
            let cleared = self.clear_other(*sequence);
            cleared.map_err(|e| self.failed("cannot clear the other superblock of", e))?;
        }
        *unsettled = None;
        // Release: the superblock is durable before any thread skips this step.
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Clears the place of the superblock after `sequence`, durably, unless an older one is there
    /// (I17).
    fn clear_other(&self, sequence: u64) -> std::io::Result<()> {
        let next = sequence + 1;
        let place = match self.look_at(next)? {
            Place::Absent => return Ok(()),
            Place::Intact(other) if other < sequence => return Ok(()),
            Place::Intact(_) if braid_rt::mutant!("keep_a_newer_superblock") => return Ok(()),
            Place::Blank if braid_rt::mutant!("trust_cleared_superblocks") => return Ok(()),
            Place::Torn if braid_rt::mutant!("keep_torn_superblocks") => return Ok(()),
            Place::Torn
                if braid_rt::mutant!("clear_only_in_memory")
                    && !super::lines::suit(&*self.device) =>
            {
                return Ok(());
            }
            place => place,
        };
        match place {
            Place::Blank => {
                braid_rt::coverage_point("store: the place of a superblock is cleared again");
            }
            Place::Torn | Place::Unreadable => {
                braid_rt::coverage_point("store: a torn superblock is cleared");
            }
            Place::Absent | Place::Intact(_) => {}
        }
        let zeroes = self.buffer();
        self.file.write_durable_at(&[&zeroes], offset_of(next))
    }

    /// Looks at the place of the superblock with a number.
    fn look_at(&self, sequence: u64) -> std::io::Result<Place> {
        let offset = offset_of(sequence);
        // The first superblock of a restored file lies after its end.
        if self.file.len()? < offset + PAGE_SIZE as u64 {
            return Ok(Place::Absent);
        }
        let mut buf = self.buffer();
        Ok(match self.file.read_at(&mut buf, offset) {
            Err(_) => Place::Unreadable,
            Ok(()) if buf.iter().all(|byte| *byte == 0) => Place::Blank,
            Ok(()) if check(&buf, u64::from_le_bytes(MAGIC), u64::MAX).is_ok() => {
                Place::Intact(u64_at(&buf, 24))
            }
            Ok(()) => Place::Torn,
        })
    }

    /// Makes all writes durable, then the superblock that refers to a root blob.
    ///
    /// Any failure poisons the file, even a lack of space: after a failed sync it is unknown which
    /// writes are lost, and a superblock whose write failed may nevertheless be on the medium.
    pub(crate) fn write_superblock(
        &self,
        root: &Root,
        (blob, blob_len): (u64, u64),
    ) -> Result<(), StoreError> {
        if !braid_rt::mutant!("superblock_before_pages") {
            let synced = self.sync();
            if !braid_rt::mutant!("ignore_sync_error") {
                synced?;
            }
        }
        let buf = self.superblock(root.sequence, (blob, blob_len));
        if braid_rt::simulation::is_on() {
            self.check_cleared(root.sequence);
        }
        let offset = offset_of(root.sequence);
        let written = self.file.write_durable_at(&[&buf], offset);
        written.map_err(|error| {
            braid_rt::coverage_point("store: poisoned by a superblock's write");
            let error = self.failed("cannot write the superblock of", error);
            self.poison(&error);
            error
        })
    }

    /// Checks that the place of a superblock has nothing that its words could complete (I17).
    fn check_cleared(&self, sequence: u64) {
        // A read that fails shows nothing.
        if let Ok(Place::Torn) = self.look_at(sequence) {
            panic!("I17: superblock {sequence} is written over a torn one");
        }
    }

    fn superblock(&self, sequence: u64, (blob, blob_len): (u64, u64)) -> AlignedBuf {
        let mut buf = self.buffer();
        buf[16..24].copy_from_slice(&FORMAT.to_le_bytes());
        buf[24..32].copy_from_slice(&sequence.to_le_bytes());
        buf[32..40].copy_from_slice(&blob.to_le_bytes());
        buf[40..48].copy_from_slice(&blob_len.to_le_bytes());
        buf[48..64].copy_from_slice(&self.identity.to_le_bytes());
        seal(&mut buf, u64::from_le_bytes(MAGIC), sequence);
        buf
    }

    /// Makes the superblock of a file without a checkpoint durable: the file carries its identity
    /// from then on.
    pub(super) fn write_first_superblock(&self) -> Result<(), StoreError> {
        let buf = self.superblock(0, (0, 0));
        let written = self.file.write_durable_at(&[&buf], 0);
        let synced = written.and_then(|()| self.file.sync());
        synced.map_err(|e| StoreError::io("cannot write the first superblock of data.braid", e))
    }

    /// Reads one superblock: sequence number, blob and its length, and all its bytes.
    pub(crate) fn read_superblock(
        &self,
        slot: u64,
    ) -> Result<(u64, u64, u64, AlignedBuf), StoreError> {
        let location = || format!("data.braid, superblock {slot}");
        let mut buf = self.buffer();
        let offset = slot * PAGE_SIZE as u64;
        let len = self.file.len().map_err(|e| unreadable(slot, e))?;
        if len < offset + PAGE_SIZE as u64 {
            return Err(damaged("the file ends before it", location()));
        }
        let read = self.file.read_at(&mut buf, offset);
        read.map_err(|e| unreadable(slot, e))?;
        if buf[8..16] != MAGIC {
            return Err(damaged("not a superblock of a Braid database", location()));
        }
        check(&buf, u64::from_le_bytes(MAGIC), u64::MAX)
            .map_err(|what| damaged(what, location()))?;
        let format = u64_at(&buf, 16);
        if format != FORMAT && !OLD_FORMATS.contains(&format) {
            return Err(StoreError::Incompatible {
                what: format!(
                    "cannot open data.braid: it has format {format}, this build reads {FORMAT}; use a matching version"
                ),
            });
        }
        let (sequence, len) = (u64_at(&buf, 24), u64_at(&buf, 40));
        let blob = packing_of(&buf).unpack(u64_at(&buf, 32));
        // Each slot has every second number, and the greatest number has no successor.
        if sequence % 2 != slot || sequence > u64::MAX / 2 {
            let what = "the checkpoint's number does not belong there";
            return Err(damaged(what, location()));
        }
        Ok((sequence, blob, len, buf))
    }

    /// The number of the newest checkpoint.
    pub(crate) fn newest_sequence(&self) -> Result<u64, StoreError> {
        let read = [0, 1].map(|slot| self.read_superblock(slot).map(|(sequence, ..)| sequence));
        let [first, second] = read;
        match (first, second) {
            (Ok(first), Ok(second)) => Ok(first.max(second)),
            (Err(error), _) | (_, Err(error)) if must_not_be_passed(&error) => Err(error),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// The newest root, and its superblock's bytes.
    pub(super) fn read_root(&mut self) -> Result<(Root, AlignedBuf), StoreError> {
        let mut candidates = Vec::new();
        let mut first_error = None;
        for slot in 0..2 {
            match self.read_superblock(slot) {
                Ok((0, ..)) => {
                    let location = format!("data.braid, superblock {slot}");
                    let error = damaged("no checkpoint was ever published", location);
                    first_error = first_error.or(Some(error));
                }
                Ok(superblock) => candidates.push(superblock),
                Err(error) if must_not_be_passed(&error) => return Err(error),
                Err(error) => {
                    braid_rt::coverage_point("store: a superblock that is none");
                    first_error = first_error.or(Some(error));
                }
            }
        }
        if candidates.len() == 2 {
            braid_rt::coverage_point("store: the newer of two superblocks");
        }
        candidates.sort_unstable_by_key(|(sequence, ..)| *sequence);
        // Only the newest is valid: it was made durable after everything that it refers to, and the
        // other one's blocks may have been reused since.
        match (candidates.pop(), first_error) {
            (Some((sequence, block, len, superblock)), _) => {
                self.identity = identity_in(&superblock);
                let packing = packing_of(&superblock);
                let root = self.read_root_blob(sequence, block, len, packing)?;
                Ok((root, superblock))
            }
            (None, error) => {
                Err(error.unwrap_or_else(|| damaged("no superblock", "data.braid".into())))
            }
        }
    }

    /// Returns the damage of the superblocks, for a report, and how many are torn as a power failure
    /// leaves them: in persistent memory, in the middle of the newest checkpoint.
    pub(crate) fn superblock_damage(&self) -> (Vec<StoreError>, u64) {
        let (mut damage, mut torn) = (Vec::new(), 0);
        // The slot that the first checkpoint does not use was never written.
        for slot in (0..2).filter(|slot| !self.is_blank(*slot)) {
            let mut found = self.read_superblock(slot).err();
            for _ in 0..LOOKS {
                if found.is_none() {
                    break;
                }
                // Another process may be writing it.
                braid_rt::sleep(PAUSE);
                found = self.read_superblock(slot).err();
            }
            match found {
                Some(_) if self.is_torn(slot) => torn += 1,
                found => damage.extend(found),
            }
        }
        (damage, torn)
    }

    /// Whether a superblock may be what a power failure left of its write: each word of it, of its
    /// predecessor, or zero, while the other superblock is intact. Then it was never durable, so the
    /// state of the other one and the log lack nothing.
    fn is_torn(&self, slot: u64) -> bool {
        let Ok((other, _, _, intact)) = self.read_superblock(1 - slot) else {
            return false;
        };
        let mut buf = self.buffer();
        if self
            .file
            .read_at(&mut buf, slot * PAGE_SIZE as u64)
            .is_err()
        {
            return false;
        }
        // What this place has had: the checkpoint before the intact one, and the one after it.
        let numbers = [0, other.wrapping_sub(1), other + 1];
        let is_any = |at: usize, known: &[u64]| {
            let word = u64_at(&buf, at);
            word == 0 || known.contains(&word)
        };
        let formats = [FORMAT, u64_at(&intact, 16)];
        // The first word has the checksum and the stamp, which is the number's lower half.
        let stamp = u64_at(&buf, 0) >> 32;
        let is_stamp = |number: &u64| number & u64::from(u32::MAX) == stamp;
        is_any(8, &[u64::from_le_bytes(MAGIC)])
            && is_any(16, &formats)
            && is_any(24, &numbers)
            && [48, 56]
                .iter()
                .all(|&at| is_any(at, &[u64_at(&intact, at)]))
            && numbers.iter().any(is_stamp)
            && buf[64..].iter().all(|byte| *byte == 0)
            && !braid_rt::mutant!("report_torn_superblocks_as_damage")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::{File, OpenMode, SimDevice};

    use super::*;
    use crate::{Change, Store, StoreOptions};

    const OPTIONS: StoreOptions = StoreOptions::of_pool(1 << 20);

    fn publish(store: &Store, version: u64) -> Result<(), crate::StoreError> {
        let put = Change::Put {
            version,
            value: &[version as u8; 50],
        };
        let tree = store.tree(1)?;
        tree.modify(b"key", |_| (put, ()))?;
        let mut checkpoint = store.begin_checkpoint(Vec::new())?;
        checkpoint.write(&|_| {})?;
        checkpoint.publish().map(drop)
    }

    /// Creates a store with two checkpoints, the second one in slot 0.
    fn two_checkpoints(device: &SimDevice) {
        let store = Store::create(Arc::new(device.clone()), OPTIONS).unwrap();
        publish(&store, 1).unwrap();
        publish(&store, 2).unwrap();
    }

    /// Creates a store with two checkpoints on a disk or in persistent memory.
    fn with_two_checkpoints(seed: u64) -> SimDevice {
        let device = SimDevice::new(seed);
        device.set_block_size([64, 4096][(seed % 2) as usize]);
        two_checkpoints(&device);
        device
    }

    /// Creates a store in persistent memory with two checkpoints. Returns its file, and what a torn write
    /// of the second superblock leaves: all words but the format.
    fn with_torn_superblock(device: &SimDevice) -> (Arc<dyn File>, AlignedBuf) {
        device.set_block_size(64);
        two_checkpoints(device);
        let file = device.open(FILE_NAME, OpenMode::Existing).unwrap();
        let mut torn = AlignedBuf::new(PAGE_SIZE);
        file.read_at(&mut torn, 0).unwrap();
        torn[16..24].fill(0);
        (file, torn)
    }

    /// The power fails while a store that opens publishes another checkpoint, at some step. Returns
    /// whether it did. The next opening must find one of some versions.
    fn crash(device: &SimDevice, seed: u64, versions: &[u64]) -> bool {
        let (store, _) = Store::open(Arc::new(device.clone()), OPTIONS).unwrap();
        device.crash_after(1 + seed % 8);
        if publish(&store, 3).is_ok() {
            return false;
        }
        check(device, seed, versions);
        true
    }

    /// Checks what a crash of a device leaves.
    fn check(device: &SimDevice, seed: u64, versions: &[u64]) {
        let opened = Store::open(Arc::new(device.after_crash()), OPTIONS);
        let (store, _) = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found = store.tree(1).unwrap().get(b"key", |_| true);
        let version = found.unwrap().unwrap().meta.version;
        assert!(versions.contains(&version), "seed {seed}: {version}");
    }

    const SEEDS: u64 = if cfg!(miri) { 4 } else { 200 };

    /// Two torn writes of a superblock have all words of the first one.
    #[test]
    fn a_torn_superblock_is_not_completed_by_the_next_one() {
        let mut crashes = 0;
        for seed in 0..SEEDS {
            let device = SimDevice::new(seed);
            let (file, torn) = with_torn_superblock(&device);
            file.write_durable_at(&[&torn], 0).unwrap();
            crashes += u64::from(crash(&device, seed, &[1, 3]));
        }
        assert!(cfg!(miri) || crashes > 50);
    }

    /// A store opens the file as if it were on a disk, and is killed while its superblock is not durable.
    /// The power fails before the next process, for which the file is in memory, makes it durable.
    #[test]
    fn a_torn_superblock_is_cleared_whatever_the_medium_seems_to_be() {
        for seed in 0..SEEDS {
            let device = SimDevice::new(seed);
            let (file, torn) = with_torn_superblock(&device);
            file.write_durable_at(&[&torn], 0).unwrap();
            device.set_block_size(4096);
            let (store, _) = Store::open(Arc::new(device.clone()), OPTIONS).unwrap();
            store.settle().unwrap();
            let [mut before, mut next] = [(); 2].map(|()| AlignedBuf::new(PAGE_SIZE));
            file.read_at(&mut before, 0).unwrap();
            publish(&store, 3).unwrap();
            drop(store);
            file.read_at(&mut next, 0).unwrap();
            file.write_durable_at(&[&before], 0).unwrap();
            file.write_at(&[&next], 0).unwrap();
            let device = device.after_kill();
            device.set_block_size(64);
            device.power_off();
            check(&device, seed, &[1, 3]);
        }
    }

    /// The older one lacks what was acknowledged before the newer one was written.
    #[test]
    fn a_superblock_that_cannot_be_read_fails_the_opening() {
        let device = with_two_checkpoints(1);
        device.fail_read_after(0);
        let error = Store::open(Arc::new(device.clone()), OPTIONS).err();
        let error = error.expect("the newer superblock can't be read");
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
        let slot = "cannot read superblock 0 of data.braid";
        assert!(error.to_string().starts_with(slot), "{error}");
        device.fail_read_after(0);
        assert!(data_format(&device).is_err());
        device.fail_read_after(0);
        assert!(Store::newest_checkpoint(Arc::new(device.clone())).is_err());
        // The medium is back.
        assert_eq!(data_format(&device).unwrap(), FORMAT);
        check(&device, 0, &[2]);
    }

    /// On any medium: what a process read as damage is another one's newest superblock.
    #[test]
    fn a_newer_superblock_that_was_not_found_does_not_return() {
        let mut crashes = 0;
        for seed in 0..SEEDS {
            let device = with_two_checkpoints(seed);
            let file = device.open(FILE_NAME, OpenMode::Existing).unwrap();
            let mut newer = AlignedBuf::new(PAGE_SIZE);
            file.read_at(&mut newer, 0).unwrap();
            let mut damaged = AlignedBuf::new(PAGE_SIZE);
            damaged.fill(7);
            file.write_durable_at(&[&damaged], 0).unwrap();
            let (store, _) = Store::open(Arc::new(device.clone()), OPTIONS).unwrap();
            file.write_durable_at(&[&newer], 0).unwrap();
            device.crash_after(1 + seed % 8);
            if publish(&store, 3).is_err() {
                // The second checkpoint counts if nothing was written yet.
                check(&device, seed, &[1, 2, 3]);
                crashes += 1;
            }
        }
        assert!(cfg!(miri) || crashes > 50);
    }

    /// A process is killed while it clears a superblock that a read error hid. The next one finds
    /// zeroes, and a loss of power brings the superblock back.
    #[test]
    fn a_superblock_under_volatile_zeroes_does_not_return() {
        let mut crashes = 0;
        for seed in 0..SEEDS {
            let device = with_two_checkpoints(seed);
            let file = device.open(FILE_NAME, OpenMode::Existing).unwrap();
            file.write_at(&[&AlignedBuf::new(PAGE_SIZE)], 0).unwrap();
            let device = device.after_kill();
            crashes += u64::from(crash(&device, seed, &[1, 2, 3]));
        }
        assert!(cfg!(miri) || crashes > 50);
    }

    /// A power failure may leave any words of a superblock. That is no damage; other bytes are.
    #[test]
    fn a_torn_superblock_is_noted_and_other_bytes_are_damage() {
        let device = SimDevice::new(1);
        device.set_block_size(64);
        let store = Store::create(Arc::new(device.clone()), OPTIONS).unwrap();
        publish(&store, 1).unwrap();
        publish(&store, 2).unwrap();
        let file = device.open(FILE_NAME, OpenMode::Existing).unwrap();
        let mut older = AlignedBuf::new(PAGE_SIZE);
        file.read_at(&mut older, PAGE_SIZE as u64).unwrap();
        publish(&store, 3).unwrap();
        drop(store);
        let mut newer = AlignedBuf::new(PAGE_SIZE);
        file.read_at(&mut newer, PAGE_SIZE as u64).unwrap();
        let verify = |superblock: &[u8]| {
            file.write_durable_at(&[superblock], PAGE_SIZE as u64)
                .unwrap();
            let (store, _) = Store::open_read_only(Arc::new(device.clone()), OPTIONS).unwrap();
            let report = store.verify(&mut |_| {}).unwrap();
            (report.damages, report.torn_superblocks)
        };
        let mut torn = 0;
        for survivors in 0..256_u32 {
            for before in [&older, &AlignedBuf::new(PAGE_SIZE)] {
                let mut buf = AlignedBuf::new(PAGE_SIZE);
                for word in 0..8 {
                    let place = word * 8..word * 8 + 8;
                    let from = if survivors >> word & 1 == 1 {
                        &newer
                    } else {
                        before
                    };
                    buf[place.clone()].copy_from_slice(&from[place]);
                }
                let (damages, noted) = verify(&buf);
                assert_eq!(damages, 0, "survivors {survivors:b}");
                torn += noted;
            }
        }
        assert!(torn > 200, "{torn}");
        for at in [4, 9, 17, 25, 49, 63, 64, 8191] {
            let mut buf = AlignedBuf::new(PAGE_SIZE);
            buf.copy_from_slice(&newer);
            buf[at] ^= 0x40;
            assert_eq!(verify(&buf), (1, 0), "byte {at}");
        }
    }
}
