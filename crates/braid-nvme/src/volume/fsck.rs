//! Looking at a drive without changing it.

use super::journal::Journal;
use super::medium::{BLOCK, Medium};
use super::superblock::{self, Copy};
use super::{VolumeError, VolumeInfo, detect};
use crate::Blocking;

/// Contents of a drive, as [`contents`] finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// A volume of Braid, possibly damaged or of a newer version.
    Volume,
    /// Something that another program made, such as partitions or a file system.
    Foreign(&'static str),
    /// Only zeros where a superblock or a signature would be.
    Nothing,
    /// Bytes of an unknown kind.
    Unknown,
}

/// Finds out what a drive contains. Writes nothing.
///
/// # Errors
///
/// The drive's error.
pub fn contents(drive: &Blocking) -> Result<Contents, VolumeError> {
    let medium = Medium::new(Blocking::new(drive.drive().clone()));
    let copies = superblock::read_copies(&medium)?;
    if copies
        .iter()
        .any(|copy| matches!(copy, Copy::Valid(_) | Copy::Newer(_)))
    {
        return Ok(Contents::Volume);
    }
    let head = detect::head(&medium)?;
    if let Some(found) = detect::recognise(&head) {
        return Ok(Contents::Foreign(found));
    }
    if copies.contains(&Copy::Damaged) {
        return Ok(Contents::Volume);
    }
    let is_blank = head.iter().all(|byte| *byte == 0);
    Ok(if is_blank {
        Contents::Nothing
    } else {
        Contents::Unknown
    })
}

/// Result of [`fsck`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Sizes and identity of the volume, as far as they can be read.
    pub info: Option<VolumeInfo>,
    /// Names and lengths of the files.
    pub files: Vec<(String, u64)>,
    /// Faults. A volume with faults is not opened.
    pub faults: Vec<String>,
    /// Unusual states that the next opening mends.
    pub notes: Vec<String>,
}

/// Checks the superblocks, the journal and the directory of a volume. Writes nothing.
///
/// The units that no file has are free: they are not recorded, so none can be lost.
///
/// # Errors
///
/// [`VolumeError::NotAVolume`], [`VolumeError::Newer`], or the drive's error. Damage is in the
/// report.
pub fn fsck(drive: &Blocking) -> Result<Report, VolumeError> {
    let medium = Medium::new(Blocking::new(drive.drive().clone()));
    let mut report = Report::default();
    let (superblock, same) = match superblock::choose(&medium) {
        Err(VolumeError::Damaged { what }) => {
            report.faults.push(what);
            return Ok(report);
        }
        chosen => chosen?,
    };
    if !same {
        let names = ["first", "second"];
        for (copy, name) in superblock::read_copies(&medium)?.iter().zip(names) {
            match copy {
                Copy::Valid(found) if *found == superblock => {}
                Copy::Valid(found) => report.notes.push(format!(
                    "the {name} superblock is of an earlier state ({} instead of {})",
                    found.sequence, superblock.sequence
                )),
                _ => report
                    .notes
                    .push(format!("the {name} superblock is unreadable")),
            }
        }
    }
    let bytes = medium.bytes() / BLOCK * BLOCK;
    if bytes < superblock.bytes {
        let (was, is) = (superblock.bytes, bytes);
        let smaller = VolumeError::Smaller { was, is };
        report.faults.push(smaller.to_string());
    } else if bytes > superblock.bytes {
        let more = bytes - superblock.bytes;
        report.notes.push(format!(
            "the drive has {more} bytes more than the volume uses"
        ));
    }
    let journal = match Journal::read(&medium, superblock) {
        Err(VolumeError::Damaged { what }) => {
            report.faults.push(what);
            return Ok(report);
        }
        Err(error @ VolumeError::Drive(_)) => {
            report
                .faults
                .push(format!("cannot read the journal: {error}"));
            return Ok(report);
        }
        read => read?,
    };
    let superblock = &journal.superblock;
    let faults = journal.image.faults(superblock.units(), superblock.unit);
    let free = if faults.is_empty() {
        let runs = journal.image.free_runs(superblock.units());
        runs.iter().map(|(_, units)| units * superblock.unit).sum()
    } else {
        0
    };
    report.faults.extend(faults);
    let names = journal.image.names.iter();
    report.files = names
        .map(|(name, id)| (name.clone(), journal.image.files[id].len))
        .collect();
    report.info = Some(VolumeInfo {
        identity: u128::from_le_bytes(superblock.identity),
        bytes: superblock.bytes,
        unit: superblock.unit,
        capacity: superblock.units() * superblock.unit,
        free,
        files: report.files.len() as u64,
        journal: superblock.half,
        journal_used: journal.extent().1,
        generation: superblock.generation,
    });
    Ok(report)
}
