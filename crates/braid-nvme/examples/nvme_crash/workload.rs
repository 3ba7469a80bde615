//! Operations on the files of a volume, and the check of an image that a power failure may leave.
//!
//! The operations follow from a seed and a number alone, so that the check repeats them without the
//! drive.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use braid_nvme::crash::{AnnotatedDrive, sample};
use braid_nvme::volume::{FormatOptions, Volume, VolumeError, fsck};
use braid_nvme::{Blocking, MemoryDrive};

const FILES: usize = 5;
/// Most blocks of a file.
const BLOCKS: u64 = 24;
const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// Name of a file that is about to replace another one.
const NEW: &str = "new";

fn name(file: usize) -> String {
    format!("file-{file}")
}

/// One operation, acknowledged when it has ended.
#[derive(Clone, Debug)]
enum Operation {
    Write {
        blocks: Range<u64>,
        durable: bool,
    },
    Zero(Range<u64>),
    Truncate(u64),
    Sync,
    /// Writes a new file with this many blocks, syncs it, renames it and commits.
    Replace(u64),
    Remove,
}

/// Returns the operation with a number, and its file.
fn operation(seed: u64, number: u64) -> (usize, Operation) {
    let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9).wrapping_add(number));
    let start = random.u64(..BLOCKS - 6);
    let blocks = start..start + random.u64(1..6);
    let operation = match random.u32(..20) {
        0..5 => Operation::Write {
            blocks,
            durable: true,
        },
        5..11 => Operation::Write {
            blocks,
            durable: false,
        },
        11 => Operation::Zero(blocks),
        12 => Operation::Truncate(blocks.end),
        13..17 => Operation::Sync,
        17 => Operation::Remove,
        _ => Operation::Replace(blocks.end),
    };
    (random.usize(..FILES), operation)
}

/// Bytes that name their file, their sector and their version.
fn bytes(id: u32, blocks: Range<u64>, version: u32) -> Vec<u8> {
    let sectors = (BLOCK / SECTOR) as u64;
    (blocks.start * sectors..blocks.end * sectors)
        .flat_map(|sector| {
            let words = [
                id,
                u32::try_from(sector).expect("few sectors"),
                version,
                !version,
            ];
            words.map(u32::to_le_bytes).concat().repeat(SECTOR / 16)
        })
        .collect()
}

/// Versions that a block may have after a power failure; zero is zeros.
#[derive(Clone, Debug, Default)]
struct Versions {
    durable: u32,
    /// Written since, the newest last.
    later: Vec<u32>,
}

#[derive(Clone, Debug)]
struct File {
    id: u32,
    blocks: Vec<Versions>,
}

impl File {
    fn new(id: u32, len: u64) -> Self {
        let mut blocks = vec![Versions::default(); usize::try_from(BLOCKS).expect("few blocks")];
        blocks
            .iter_mut()
            .take(usize::try_from(len).expect("few blocks"))
            .for_each(|block| block.durable = id);
        Self { id, blocks }
    }

    fn of_range(&mut self, range: Range<u64>) -> impl Iterator<Item = &mut Versions> {
        let number = |block: u64| usize::try_from(block).expect("few blocks");
        self.blocks[number(range.start)..number(range.end)].iter_mut()
    }
}

/// What the files may contain.
#[derive(Clone, Debug, Default)]
struct Model {
    files: BTreeMap<usize, File>,
    /// Operations that have ended.
    ended: u64,
    /// The file of an operation in progress as it will be: replaced or removed.
    next: Option<(usize, Option<File>)>,
}

fn settle(block: &mut Versions) {
    block.durable = *block.later.last().unwrap_or(&block.durable);
    block.later.clear();
}

impl Model {
    /// Performs the next operation, which has ended or is in progress.
    fn step(&mut self, seed: u64, has_ended: bool) {
        let (file, operation) = operation(seed, self.ended);
        let version = u32::try_from(self.ended + 1).expect("few operations");
        self.ended += 1;
        let replace = |files: &mut BTreeMap<usize, File>, new: Option<File>| match new {
            _ if !has_ended => Some((file, new)),
            Some(new) => {
                files.insert(file, new);
                None
            }
            None => {
                files.remove(&file);
                None
            }
        };
        if let Operation::Replace(len) = operation {
            self.next = replace(&mut self.files, Some(File::new(version, len)));
            return;
        }
        let Some(target) = self.files.get_mut(&file) else {
            return;
        };
        match operation {
            Operation::Write { blocks, durable } => {
                for block in target.of_range(blocks) {
                    block.later.push(version);
                    if durable && has_ended {
                        settle(block);
                    }
                }
            }
            Operation::Zero(blocks) => target.of_range(blocks).for_each(|b| b.later.push(0)),
            Operation::Truncate(len) => {
                target.of_range(len..BLOCKS).for_each(|b| b.later.push(0));
            }
            Operation::Sync if has_ended => target.of_range(0..BLOCKS).for_each(settle),
            Operation::Sync => {}
            Operation::Remove => self.next = replace(&mut self.files, None),
            Operation::Replace(_) => unreachable!("handled above"),
        }
    }

    /// Repeats operations until this many have ended.
    fn advance(&mut self, seed: u64, ended: u64) {
        while self.ended < ended {
            self.step(seed, true);
        }
    }

    /// Checks an image of a drive whose last acknowledged operation is the model's; returns what is
    /// wrong.
    fn check(&self, seed: u64, image: &MemoryDrive) -> Result<(), String> {
        let mut model = self.clone();
        model.step(seed, false);
        let blocking = || Blocking::new(Arc::new(image.clone()));
        let report = fsck(&blocking()).map_err(|error| format!("fsck: {error}"))?;
        if let Some(fault) = report.faults.first() {
            return Err(format!("fsck: {fault}"));
        }
        let volume = Volume::open(blocking()).map_err(|error| format!("open: {error}"))?;
        for (name, _) in volume.list() {
            let is_known = (0..FILES).any(|file| name == self::name(file));
            let is_new = name == NEW && matches!(model.next, Some((_, Some(_))));
            if !is_known && !is_new {
                return Err(format!("there is a file {name}"));
            }
        }
        for file in 0..FILES {
            let old = check_file(&volume, file, model.files.get(&file));
            match (&model.next, old) {
                (_, Ok(())) => {}
                (Some((next, new)), Err(old)) if *next == file => {
                    check_file(&volume, file, new.as_ref())
                        .map_err(|new| format!("{old}; or, after the operation: {new}"))?;
                }
                (_, Err(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

fn check_file(volume: &Volume, file: usize, expected: Option<&File>) -> Result<(), String> {
    let name = name(file);
    let found = match volume.open_file(&name) {
        Ok(found) => found,
        Err(VolumeError::NoFile { .. }) if expected.is_none() => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let Some(expected) = expected else {
        return Err(format!("{name} was removed"));
    };
    let mut contents = vec![0xee; usize::try_from(found.len()).map_err(|e| e.to_string())?];
    found
        .read_batch([(0, &mut contents[..])])
        .map_err(|error| format!("{name}: {error}"))?;
    contents.resize(BLOCK * expected.blocks.len(), 0);
    for (index, sector) in contents.chunks(SECTOR).enumerate() {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| sector[4 * i + j]));
        let is_zero = sector.iter().all(|byte| *byte == 0);
        let version = if is_zero { 0 } else { word(2) };
        let block = &expected.blocks[index * SECTOR / BLOCK];
        if block.durable != version && !block.later.contains(&version) {
            return Err(format!(
                "{name}, sector {index}: version {version}, expected one of {block:?}"
            ));
        }
        let is_whole = sector.chunks(16).all(|part| *part == sector[..16]);
        let is_own = [word(0), word(3)] == [expected.id, !version] && word(1) as usize == index;
        let is_valid = is_zero || is_own && is_whole;
        if !is_valid {
            return Err(format!("{name}, sector {index}: foreign contents"));
        }
    }
    Ok(())
}

/// Performs the model's next operation.
fn perform(volume: &Volume, seed: u64, model: &Model) -> Result<(), VolumeError> {
    let (file, operation) = operation(seed, model.ended);
    let name = name(file);
    let version = u32::try_from(model.ended + 1).expect("few operations");
    if let Operation::Replace(len) = operation {
        let new = volume.create(NEW)?;
        new.write_batch(&[(0, &bytes(version, 0..len, version))])?;
        new.sync()?;
        volume.rename(NEW, &name)?;
        return volume.commit();
    }
    let Some(File { id, .. }) = model.files.get(&file) else {
        return Ok(());
    };
    let found = volume.open_file(&name)?;
    let at = |blocks: &Range<u64>| blocks.start * BLOCK as u64..blocks.end * BLOCK as u64;
    match operation {
        Operation::Write { blocks, durable } => {
            let data = bytes(*id, blocks.clone(), version);
            // In two parts, in any order.
            let (first, second) = data.split_at(BLOCK);
            let writes = [
                (at(&blocks).start + BLOCK as u64, second),
                (at(&blocks).start, first),
            ];
            let writes = &writes[usize::from(second.is_empty())..];
            if durable {
                found.write_durable_batch(writes)
            } else {
                found.write_batch(writes)
            }
        }
        Operation::Zero(blocks) => found.fill_zero(at(&blocks)),
        Operation::Truncate(len) if len * (BLOCK as u64) < found.len() => {
            found.set_len(len * BLOCK as u64)
        }
        Operation::Truncate(_) => Ok(()),
        Operation::Sync => found.sync(),
        Operation::Remove => {
            volume.remove(&name)?;
            volume.commit()
        }
        Operation::Replace(_) => unreachable!("handled above"),
    }
}

/// Creates a volume and performs operations on it; notes each one that has ended.
///
/// # Errors
///
/// The volume's error.
pub(crate) fn run(drive: &AnnotatedDrive, seed: u64, operations: u64) -> Result<(), VolumeError> {
    let options = FormatOptions::default().unit(8192).journal(32 << 10);
    let blocking = Blocking::new(Arc::new(drive.clone()));
    let volume = Volume::format(blocking, options)?;
    drive.acknowledge(&0u64.to_le_bytes())?;
    let mut model = Model::default();
    while model.ended < operations {
        perform(&volume, seed, &model)?;
        model.step(seed, true);
        drive.acknowledge(&model.ended.to_le_bytes())?;
    }
    Ok(())
}

/// Checks about `images` images of a drive of `bytes` bytes, made at random moments of the record of
/// [`run`]; returns their number.
///
/// # Errors
///
/// A description of the first wrong image.
pub(crate) fn check<R: Read>(
    record: impl Fn() -> std::io::Result<R>,
    bytes: u64,
    seed: u64,
    images: u64,
    mut random: fastrand::Rng,
) -> Result<u64, String> {
    let mut model = Model::default();
    sample(
        record,
        bytes,
        images,
        || random.u64(..),
        |payload, image| {
            let payload = payload
                .try_into()
                .map_err(|_| "an unknown acknowledgement")?;
            model.advance(seed, u64::from_le_bytes(payload));
            let ended = model.ended;
            model
                .check(seed, image)
                .map_err(|error| format!("after {ended} operations: {error}"))
        },
    )
}
