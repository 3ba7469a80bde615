//! Finding the newest checkpoint, with or without its superblock.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::data_file::free_space::FIRST_BLOCK;
use crate::data_file::{BLOB, DataFile, Packing, Root, block_of, packing_of, u64_at};
use crate::error::StoreError;
use crate::page::low32;

/// The index of all blocks of the file.
#[derive(Default)]
pub(super) struct Index {
    /// Intact blocks: by identity, the low half of the checkpoint's number and the block address.
    whole: HashMap<u64, Vec<(u32, u64)>>,
    /// Damaged blocks.
    pub(super) damaged: Vec<u64>,
}

/// A candidate for the root of a checkpoint.
struct Candidate {
    sequence: u64,
    blob: u64,
    /// The length, and the packing of block addresses. `None` if the superblock, which records
    /// both, is lost.
    len: Option<(u64, Packing)>,
}

/// Finds the newest root that can be read.
pub(super) fn find_root(
    file: &DataFile,
    index: &mut Option<Index>,
    notes: &mut Vec<String>,
) -> Result<(Root, Option<String>), StoreError> {
    let mut candidates = Vec::new();
    let mut damaged = Vec::new();
    for slot in 0..2 {
        match file.read_superblock(slot) {
            // The superblock of a file without a checkpoint.
            Ok((0, ..)) => {}
            Ok((sequence, blob, len, superblock)) => candidates.push(Candidate {
                sequence,
                blob,
                len: Some((len, packing_of(&superblock))),
            }),
            Err(error @ StoreError::Incompatible { .. }) => return Err(error),
            // The slot that the first checkpoint does not use was never written.
            Err(_) if file.is_blank(slot) => {}
            Err(error) => {
                notes.push(error.to_string());
                damaged.push(slot);
            }
        }
    }
    let newest = candidates.iter().map(|c| c.sequence).max();
    if candidates.is_empty() || !damaged.is_empty() {
        // The lost superblock may have been the newest. Its root blob carries its number.
        candidates.extend(search(file, index, newest)?.into_iter().filter(|found| {
            newest.is_none_or(|newest| {
                found.sequence == newest + 1 && damaged.contains(&(found.sequence % 2))
            })
        }));
    }
    candidates.sort_by_key(|candidate| Reverse(candidate.sequence));
    let mut is_older = false;
    if let Some(found) = first_readable(file, candidates, &mut is_older, notes) {
        return Ok(found);
    }
    // Both superblocks may refer to states of which nothing is left.
    let mut found = search(file, index, newest)?;
    found.sort_by_key(|candidate| Reverse(candidate.sequence));
    first_readable(file, found, &mut is_older, notes).ok_or_else(|| StoreError::Corrupted {
        what: format!("no checkpoint can be found ({})", notes.join("; ")),
        location: "data.braid".into(),
    })
}

/// Finds all root blobs whose first block is intact.
fn search(
    file: &DataFile,
    index: &mut Option<Index>,
    newest: Option<u64>,
) -> Result<Vec<Candidate>, StoreError> {
    let high = newest.unwrap_or(0) & !u64::from(u32::MAX);
    let blobs = indexed(file, index)?.whole.get(&BLOB).into_iter().flatten();
    let candidate = |&(stamp, blob): &(u32, u64)| Candidate {
        sequence: high | u64::from(stamp),
        blob,
        len: None,
    };
    Ok(blobs.map(candidate).collect())
}

/// Returns the first readable root, and the loss if it is not the first candidate.
fn first_readable(
    file: &DataFile,
    candidates: Vec<Candidate>,
    is_older: &mut bool,
    notes: &mut Vec<String>,
) -> Option<(Root, Option<String>)> {
    for candidate in candidates {
        let sequence = candidate.sequence;
        match read_root(file, &candidate) {
            Ok(root) => {
                if candidate.len.is_none() {
                    notes.push(format!(
                        "the root of checkpoint {sequence} was found without its superblock"
                    ));
                }
                let older = is_older.then(|| {
                    format!(
                        "checkpoint {sequence} is the newest that can be read; pages written since are lost"
                    )
                });
                return Some((root, older));
            }
            Err(error) => {
                *is_older = true;
                notes.push(format!("the root of checkpoint {sequence}: {error}"));
            }
        }
    }
    None
}

fn read_root(file: &DataFile, candidate: &Candidate) -> Result<Root, StoreError> {
    if let Some((len, packing)) = candidate.len {
        return file.read_root_blob(candidate.sequence, candidate.blob, len, packing);
    }
    // The blob ends where it can be decoded.
    let (mut bytes, mut block) = (Vec::new(), candidate.blob);
    let mut packing = Packing::Present;
    let mut buf = file.buffer();
    for i in 0.. {
        file.read_unaddressed(BLOB | i, block, candidate.sequence, &mut buf)?;
        bytes.extend_from_slice(&buf[24..]);
        if i == 0 {
            packing = DataFile::packing_in(&buf);
        }
        if let Some(root) = Root::decode(&bytes, candidate.sequence, Vec::new()) {
            return Ok(root);
        }
        block = packing.unpack(u64_at(&buf, 16));
        if block == 0 {
            break;
        }
    }
    Err(StoreError::Corrupted {
        what: "the checkpoint's root block is malformed".into(),
        location: format!("data.braid, block {}", block_of(candidate.blob)),
    })
}

/// Reads the whole file once, and only if needed.
pub(super) fn indexed<'a>(
    file: &DataFile,
    index: &'a mut Option<Index>,
) -> Result<&'a Index, StoreError> {
    if index.is_none() {
        let mut found = Index::default();
        let mut buf = file.buffer();
        for block in FIRST_BLOCK..file.len_blocks()? {
            match file.read_any_block(block, &mut buf) {
                Some((identity, stamp, address)) => {
                    let blocks = found.whole.entry(identity).or_default();
                    blocks.push((stamp, address));
                }
                // Space that was allocated and never written.
                None if file.is_blank(block) => {}
                None => found.damaged.push(block),
            }
        }
        *index = Some(found);
    }
    Ok(index.get_or_insert_default())
}

/// Returns the blocks of an identity that are no newer than a checkpoint: the low half of their
/// checkpoints' numbers and their block addresses, newest first.
pub(super) fn versions(index: &Index, identity: u64, sequence: u64) -> Vec<(u32, u64)> {
    let blocks = index.whole.get(&identity).into_iter().flatten();
    let known = blocks.filter(|(stamp, _)| *stamp <= low32(sequence));
    let mut known: Vec<(u32, u64)> = known.copied().collect();
    known.sort_by_key(|(stamp, address)| Reverse((*stamp, block_of(*address))));
    known
}
