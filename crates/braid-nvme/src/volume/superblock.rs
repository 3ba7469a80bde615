//! The superblock: what the volume is, and which half of the journal is current.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `BRAIDVOL` |
//! | 8..12 | format, 1 |
//! | 12..16 | CRC-32C of the block, with zeros here |
//! | 16..32 | identity of the volume |
//! | 32..40 | sequence number of this superblock |
//! | 40..48 | generation of the journal; the half is its lowest bit |
//! | 48..56 | bytes of the drive that the volume uses |
//! | 56..64 | bytes of an allocation unit |
//! | 64..72 | bytes of one half of the journal |
//! | 72..80 | start of the first unit |
//!
//! All numbers are little-endian. The rest of the block is zero.

use super::VolumeError;
use super::detect;
use super::medium::{BLOCK, Medium};

/// Where the two copies are.
pub(super) const COPIES: [u64; 2] = [0, 512 << 10];

/// Start of the journal.
pub(super) const JOURNAL: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"BRAIDVOL";
pub(super) const VERSION: u32 = 1;

/// Limits of the lengths in a superblock.
const UNIT: std::ops::RangeInclusive<u64> = BLOCK..=1 << 30;
const HALF: std::ops::RangeInclusive<u64> = BLOCK..=1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) identity: [u8; 16],
    pub(super) sequence: u64,
    pub(super) generation: u64,
    /// Bytes of the drive.
    pub(super) bytes: u64,
    /// Bytes of an allocation unit.
    pub(super) unit: u64,
    /// Bytes of one half of the journal.
    pub(super) half: u64,
    /// Start of the first unit.
    pub(super) data: u64,
}

/// What is in the place of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    Valid(Superblock),
    Newer(u32),
    /// A superblock whose checksum is wrong, or a block that cannot be read.
    Damaged,
    /// Something else.
    Other,
}

/// Reads eight bytes.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Reads four bytes.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The checksum of bytes whose field at 12 counts as zero.
fn checksum(block: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&block[..12]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &[0; 4]), &block[16..])
}

impl Superblock {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; braid_rt::to_usize(BLOCK)];
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.identity);
        let fields = [
            self.sequence,
            self.generation,
            self.bytes,
            self.unit,
            self.half,
            self.data,
        ];
        for (field, place) in fields.iter().zip(block[32..].chunks_mut(8)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let sum = checksum(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        block
    }

    fn decode(block: &[u8]) -> Copy {
        if block[..8] != MAGIC {
            return Copy::Other;
        }
        match u32_at(block, 8) {
            VERSION => {}
            newer if newer > VERSION => return Copy::Newer(newer),
            _ => return Copy::Damaged,
        }
        if checksum(block) != u32_at(block, 12) {
            return Copy::Damaged;
        }
        let superblock = Self {
            identity: std::array::from_fn(|i| block[16 + i]),
            sequence: u64_at(block, 32),
            generation: u64_at(block, 40),
            bytes: u64_at(block, 48),
            unit: u64_at(block, 56),
            half: u64_at(block, 64),
            data: u64_at(block, 72),
        };
        if superblock.is_consistent() {
            Copy::Valid(superblock)
        } else {
            Copy::Damaged
        }
    }

    fn is_consistent(&self) -> bool {
        UNIT.contains(&self.unit)
            && self.unit.is_power_of_two()
            && HALF.contains(&self.half)
            && self.half.is_multiple_of(BLOCK)
            && self.data >= JOURNAL + 2 * self.half
            && self.data.is_multiple_of(BLOCK)
            && self.bytes >= self.data
            && i64::try_from(self.bytes).is_ok()
    }

    /// Start of the half that contains a generation.
    pub(super) fn half_of(&self, generation: u64) -> u64 {
        JOURNAL + (generation & 1) * self.half
    }

    /// Number of allocation units.
    pub(super) fn units(&self) -> u64 {
        (self.bytes - self.data) / self.unit
    }
}

/// Reads both copies.
pub(super) fn read_copies(medium: &Medium) -> Result<[Copy; 2], VolumeError> {
    let mut copies = [Copy::Other, Copy::Other];
    for (copy, at) in copies.iter_mut().zip(COPIES) {
        let mut block = vec![0; braid_rt::to_usize(BLOCK)];
        *copy = match medium.read(at, &mut block) {
            Ok(()) => Superblock::decode(&block),
            Err(VolumeError::Drive(crate::DriveError::Media { .. })) => Copy::Damaged,
            Err(error) => return Err(error),
        };
    }
    Ok(copies)
}

/// Returns the newer of the two copies, and whether both are the same.
pub(super) fn choose(medium: &Medium) -> Result<(Superblock, bool), VolumeError> {
    let copies = read_copies(medium)?;
    let newer = copies.iter().find_map(|copy| match copy {
        Copy::Newer(version) => Some(*version),
        _ => None,
    });
    let valid = |copy: &Copy| match copy {
        Copy::Valid(superblock) => Some(superblock.clone()),
        _ => None,
    };
    let superblock = match [valid(&copies[0]), valid(&copies[1])] {
        [Some(a), Some(b)] if a.identity != b.identity => {
            return Err(VolumeError::Damaged {
                what: "the two superblocks belong to different volumes".into(),
            });
        }
        [Some(a), Some(b)] if a.sequence >= b.sequence => a,
        [_, Some(b)] => b,
        [Some(a), None] => a,
        [None, None] => {
            if let Some(version) = newer {
                let known = VERSION;
                return Err(VolumeError::Newer { version, known });
            }
            if copies.contains(&Copy::Damaged) {
                return Err(VolumeError::Damaged {
                    what: "both superblocks are unreadable".into(),
                });
            }
            return Err(VolumeError::NotAVolume {
                found: detect::describe(medium)?,
            });
        }
    };
    let same = copies
        .iter()
        .all(|copy| valid(copy).as_ref() == Some(&superblock));
    Ok((superblock, same))
}

/// Writes both copies durably, one after the other (V5).
pub(super) fn write(medium: &Medium, superblock: &Superblock) -> Result<(), VolumeError> {
    debug_assert!(superblock.is_consistent());
    let block = superblock.encode();
    for at in COPIES {
        medium.write_directory(at, &block)?;
        if braid_rt::mutant!("volume_write_one_superblock") {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_noticed() {
        let superblock = Superblock {
            identity: [7; 16],
            sequence: 3,
            generation: 2,
            bytes: 64 << 20,
            unit: 1 << 16,
            half: 1 << 18,
            data: 2 << 20,
        };
        let block = superblock.encode();
        assert_eq!(Superblock::decode(&block), Copy::Valid(superblock));
        for at in (0..100).chain([4095]) {
            let mut changed = block.clone();
            changed[at] ^= 4;
            assert!(
                !matches!(Superblock::decode(&changed), Copy::Valid(_)),
                "{at}"
            );
        }
    }
}
