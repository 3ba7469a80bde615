//! The journal: the directory, as a snapshot and the changes since.
//!
//! A half of the journal has the entries of one generation, one after the other. The first one
//! contains the whole directory, each other one a difference. An entry begins at a multiple of 4,096
//! bytes; the rest of its last block is zero.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `BRAIDJE\x01` |
//! | 8..24 | identity of the volume |
//! | 24..32 | generation |
//! | 32..40 | index of the entry in the generation |
//! | 40..44 | length of the payload |
//! | 44..48 | CRC-32C of the header, with zeros here, and of the payload |
//! | 48..64 | zero |
//! | 64.. | payload, see [`super::image`] |

use super::VolumeError;
use super::image::Image;
use super::medium::{BLOCK, Medium};
use super::superblock::{self, Superblock, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"BRAIDJE\x01";
const HEADER: usize = 64;

/// The journal of an open volume.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) superblock: Superblock,
    /// The directory that the entries make, all of them durable.
    pub(super) image: Image,
    /// Index of the next entry.
    index: u64,
    /// Where it begins in the half.
    tail: u64,
    /// The entry before it, with its place in the half, while an opening needs it.
    last: (u64, Vec<u8>),
}

fn encode(superblock: &Superblock, generation: u64, index: u64, payload: &[u8]) -> Vec<u8> {
    let len = (HEADER + payload.len()).next_multiple_of(braid_rt::to_usize(BLOCK));
    let mut entry = vec![0; len];
    entry[..8].copy_from_slice(&MAGIC);
    entry[8..24].copy_from_slice(&superblock.identity);
    entry[24..32].copy_from_slice(&generation.to_le_bytes());
    entry[32..40].copy_from_slice(&index.to_le_bytes());
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    entry[40..44].copy_from_slice(&len.to_le_bytes());
    entry[HEADER..HEADER + payload.len()].copy_from_slice(payload);
    let sum = checksum(&entry[..HEADER], payload);
    entry[44..48].copy_from_slice(&sum.to_le_bytes());
    entry
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header[..44]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &header[48..HEADER]), payload)
}

/// Returns the index and the payload of the entry at the start of `bytes`, if it is one of this
/// generation and undamaged.
fn decode<'a>(superblock: &Superblock, bytes: &'a [u8]) -> Option<(u64, &'a [u8])> {
    let header = bytes.get(..HEADER)?;
    let is_ours = header[..8] == MAGIC
        && header[8..24] == superblock.identity
        && u64_at(header, 24) == superblock.generation;
    let len = braid_rt::to_usize(u64::from(u32_at(header, 40)));
    let payload = bytes.get(HEADER..)?.get(..len)?;
    let is_whole = is_ours && checksum(header, payload) == u32_at(header, 44);
    is_whole.then(|| (u64_at(header, 32), payload))
}

/// Bytes that an entry takes.
fn size_of(payload: &[u8]) -> u64 {
    (HEADER as u64 + payload.len() as u64).next_multiple_of(BLOCK)
}

impl Journal {
    /// Writes the first entry of an empty directory, and then the superblocks (V4).
    pub(super) fn create(medium: &Medium, superblock: Superblock) -> Result<(), VolumeError> {
        let mut journal = Self {
            superblock,
            image: Image::default(),
            index: 0,
            tail: 0,
            last: (0, Vec::new()),
        };
        journal.begin(medium, &Image::default())
    }

    /// Begins the next generation with the snapshot of a directory.
    fn begin(&mut self, medium: &Medium, image: &Image) -> Result<(), VolumeError> {
        let payload = image.encode();
        if size_of(&payload) > self.superblock.half {
            return Err(VolumeError::DirectoryFull {
                bytes: payload.len() as u64,
                limit: self.superblock.half,
            });
        }
        let mut next = self.superblock.clone();
        next.sequence += 1;
        next.generation += 1;
        let entry = encode(&next, next.generation, 0, &payload);
        let at = next.half_of(next.generation);
        if braid_rt::mutant!("volume_superblock_before_journal") {
            superblock::write(medium, &next)?;
            medium.write_directory(at, &entry)?;
        } else {
            // V4: the snapshot is durable before a superblock names it.
            medium.write_directory(at, &entry)?;
            superblock::write(medium, &next)?;
        }
        self.superblock = next;
        self.index = 1;
        self.tail = entry.len() as u64;
        Ok(())
    }

    /// Reads the current generation. Writes nothing.
    pub(super) fn read(medium: &Medium, superblock: Superblock) -> Result<Self, VolumeError> {
        let damaged = |what: String| VolumeError::Damaged { what };
        let mut half = vec![0; braid_rt::to_usize(superblock.half)];
        medium.read(superblock.half_of(superblock.generation), &mut half)?;
        let (mut index, mut tail, mut last) = (0, 0, 0);
        let mut image = Image::default();
        while let Some((found, payload)) = decode(&superblock, &half[tail..])
            && found == index
        {
            let applied = image.apply(payload);
            applied.map_err(|what| damaged(format!("{what} (entry {index})")))?;
            index += 1;
            last = tail;
            tail += braid_rt::to_usize(size_of(payload));
            if tail >= half.len() {
                break;
            }
        }
        if index == 0 {
            return Err(damaged(format!(
                "the journal has lost the first entry of generation {}",
                superblock.generation
            )));
        }
        // A torn entry is the last one (V3); one behind it means that this one was complete.
        let rest = half[tail.min(half.len())..].chunks(braid_rt::to_usize(BLOCK));
        for (block, _) in rest.enumerate() {
            let at = tail + block * braid_rt::to_usize(BLOCK);
            if let Some((later, _)) = decode(&superblock, &half[at..])
                && later >= index
            {
                return Err(damaged(format!(
                    "the journal has lost entry {index} of generation {}, and has entry {later}",
                    superblock.generation
                )));
            }
        }
        Ok(Self {
            superblock,
            image,
            index,
            tail: tail as u64,
            last: (last as u64, half[last..tail].to_vec()),
        })
    }

    /// Appends an entry durably; begins the next generation if the half is full.
    pub(super) fn append(&mut self, medium: &Medium, payload: &[u8]) -> Result<(), VolumeError> {
        let mut image = self.image.clone();
        let applied = image.apply(payload);
        debug_assert_eq!(applied, Ok(()), "an entry applies to the directory");
        debug_assert_eq!(
            image.faults(self.superblock.units(), self.superblock.unit),
            Vec::<String>::new(),
            "V1"
        );
        if self.tail + size_of(payload) > self.superblock.half {
            self.begin(medium, &image)?;
        } else {
            let generation = self.superblock.generation;
            let entry = encode(&self.superblock, generation, self.index, payload);
            let at = self.superblock.half_of(generation) + self.tail;
            medium.write_directory(at, &entry)?;
            self.index += 1;
            self.tail += entry.len() as u64;
        }
        self.image = image;
        Ok(())
    }

    /// Writes the last entry and both superblocks again, with the bytes of the drive. The directory
    /// stays as it is.
    pub(super) fn renew(&mut self, medium: &Medium, bytes: u64) -> Result<(), VolumeError> {
        // V7: the entry may be of a write that failed, or that the drive's cache still has.
        let (at, entry) = &self.last;
        medium.write_directory(
            self.superblock.half_of(self.superblock.generation) + at,
            entry,
        )?;
        let mut next = self.superblock.clone();
        next.sequence += 1;
        next.bytes = next.bytes.max(bytes);
        superblock::write(medium, &next)?;
        self.superblock = next;
        self.last = (0, Vec::new());
        Ok(())
    }

    /// Returns the entries and bytes of the current generation.
    pub(super) fn extent(&self) -> (u64, u64) {
        (self.index, self.tail)
    }
}
