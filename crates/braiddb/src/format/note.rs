//! Notes: small records in separate files, which are replaced atomically. Most are one block long; a
//! list has as many blocks as it needs.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic, which names the record and its format |
//! | 8..12 | CRC-32C of bytes 16 to the end |
//! | 12..16 | zero |
//! | 16.. | the record's fields, then zeroes up to a multiple of 4096 bytes |

use std::io;

use braid_io::{Device, OpenMode};

const BLOCK: usize = 4096;
const HEADER: usize = 16;

/// Greatest length of a list.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Content of a note's file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<const N: usize> {
    /// The file does not exist.
    Nothing,
    /// The file is not an undamaged note.
    Damaged,
    Fields([u8; N]),
}

/// Reads the note `name`.
///
/// # Errors
/// Those of the medium; a missing or damaged file is none.
pub(crate) fn read<const N: usize>(
    device: &dyn Device,
    name: &str,
    magic: [u8; 8],
) -> io::Result<Found<N>> {
    let file = match device.open(name, OpenMode::Existing) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    if file.len()? != BLOCK as u64 {
        return Ok(Found::Damaged);
    }
    let mut block = device.allocate(BLOCK);
    file.read_at(&mut block[..BLOCK], 0)?;
    let crc = crc32c::crc32c(&block[HEADER..BLOCK]).to_le_bytes();
    let fields = block[HEADER..].first_chunk();
    Ok(match fields {
        Some(fields) if block[..8] == magic && block[8..12] == crc => Found::Fields(*fields),
        _ => Found::Damaged,
    })
}

/// Reads the note `name`, of whatever length, with the zeroes after its fields.
///
/// # Errors
/// The medium's errors. A missing file is `Ok(None)`, and a damaged one `Ok(Some(Err(())))`.
pub(crate) fn read_list(
    device: &dyn Device,
    name: &str,
    magic: [u8; 8],
) -> io::Result<Option<Result<Vec<u8>, ()>>> {
    let file = match device.open(name, OpenMode::Existing) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len == 0 || len > LIST_BYTES_MAX || !len.is_multiple_of(BLOCK) {
        return Ok(Some(Err(())));
    }
    let mut block = device.allocate(len);
    file.read_at(&mut block[..len], 0)?;
    let crc = crc32c::crc32c(&block[HEADER..len]).to_le_bytes();
    let is_intact = block[..8] == magic && block[8..12] == crc;
    Ok(Some(if is_intact {
        Ok(block[HEADER..len].to_vec())
    } else {
        Err(())
    }))
}

/// Returns whether the file of a note is blank, or has only a part of a note, because its writing was
/// interrupted.
///
/// # Errors
/// Those of the medium.
pub(crate) fn is_blank(device: &dyn Device, name: &str, magic: [u8; 8]) -> io::Result<bool> {
    let file = device.open(name, OpenMode::Existing)?;
    match file.len()? {
        0 => return Ok(true),
        len if len != BLOCK as u64 => return Ok(false),
        _ => {}
    }
    let mut block = device.allocate(BLOCK);
    file.read_at(&mut block[..BLOCK], 0)?;
    let magic = (0, u64::from_le_bytes(magic));
    Ok(braid_io::may_be_torn(&block[..BLOCK], &[magic]))
}

/// Replaces the note `name` durably: a crash leaves the old one or the new one.
///
/// # Errors
/// Those of the medium.
pub(crate) fn write(
    device: &dyn Device,
    name: &str,
    magic: [u8; 8],
    fields: &[u8],
) -> io::Result<()> {
    let unfinished = format!("{name}.new");
    let file = match device.open(&unfinished, OpenMode::CreateNew) {
        // An interrupted write left the file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            device.remove(&unfinished)?;
            device.open(&unfinished, OpenMode::CreateNew)?
        }
        opened => opened?,
    };
    let len = (HEADER + fields.len()).next_multiple_of(BLOCK);
    let mut block = device.allocate(len);
    block[..8].copy_from_slice(&magic);
    block[HEADER..HEADER + fields.len()].copy_from_slice(fields);
    let crc = crc32c::crc32c(&block[HEADER..len]);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
    file.write_at(&[&block[..len]], 0)?;
    file.sync()?;
    device.rename(&unfinished, name)?;
    device.sync_directory()
}

/// Returns the number at byte `at` of a note's fields.
pub(crate) fn u64_at(fields: &[u8], at: usize) -> u64 {
    let bytes = fields.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the identity at byte `at` of a note's fields.
pub(crate) fn u128_at(fields: &[u8], at: usize) -> u128 {
    let bytes = fields.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use braid_io::{MemoryDevice, SimDevice};

    use super::*;

    const MAGIC: [u8; 8] = *b"TESTNOTE";

    #[test]
    fn a_note_is_read_as_it_was_written_and_damage_is_detected() {
        let device = MemoryDevice::new();
        let read = || read::<4>(&device, "N", MAGIC).unwrap();
        assert_eq!(read(), Found::Nothing);
        for fields in [[1, 2, 3, 4], [5, 6, 7, 8]] {
            write(&device, "N", MAGIC, &fields).unwrap();
            assert_eq!(read(), Found::Fields(fields));
        }
        let file = device.open("N", OpenMode::Existing).unwrap();
        let mut block = device.allocate(BLOCK);
        for at in [0, 9, 17, 4095] {
            file.read_at(&mut block[..BLOCK], 0).unwrap();
            block[at] ^= 1;
            file.write_at(&[&block[..BLOCK]], 0).unwrap();
            assert_eq!(read(), Found::Damaged, "byte {at}");
            block[at] ^= 1;
            file.write_at(&[&block[..BLOCK]], 0).unwrap();
        }
        file.set_len(0).unwrap();
        assert_eq!(read(), Found::Damaged);
    }

    #[test]
    fn a_list_has_as_many_blocks_as_it_needs_and_damage_is_detected() {
        let device = MemoryDevice::new();
        let read = || read_list(&device, "N", MAGIC).unwrap();
        assert_eq!(read(), None);
        for len in [0, 1, BLOCK - HEADER, BLOCK, 3 * BLOCK] {
            let fields = vec![7; len];
            write(&device, "N", MAGIC, &fields).unwrap();
            let found = read().unwrap().unwrap();
            assert!(found.starts_with(&fields) && found[len..].iter().all(|byte| *byte == 0));
        }
        let file = device.open("N", OpenMode::Existing).unwrap();
        let len = usize::try_from(file.len().unwrap()).unwrap();
        let mut blocks = device.allocate(len);
        for at in [0, 9, 17, len - 1] {
            file.read_at(&mut blocks[..len], 0).unwrap();
            blocks[at] ^= 1;
            file.write_at(&[&blocks[..len]], 0).unwrap();
            assert_eq!(read(), Some(Err(())), "byte {at}");
            blocks[at] ^= 1;
            file.write_at(&[&blocks[..len]], 0).unwrap();
        }
        file.set_len(len as u64 - 1).unwrap();
        assert_eq!(read(), Some(Err(())));
    }

    #[test]
    fn a_crash_leaves_the_old_note_or_the_new_one() {
        for step in 1..12 {
            let device = SimDevice::new(step);
            write(&device, "N", MAGIC, &[1; 4]).unwrap();
            device.crash_after(step);
            let written = write(&device, "N", MAGIC, &[2; 4]).is_ok();
            let after = device.after_crash();
            let found = read::<4>(&after, "N", MAGIC).unwrap();
            let old = found == Found::Fields([1; 4]);
            assert!(
                old != written || found == Found::Fields([2; 4]),
                "step {step}"
            );
            assert!(old || found == Found::Fields([2; 4]), "step {step}");
            write(&after, "N", MAGIC, &[3; 4]).unwrap();
            assert_eq!(read(&after, "N", MAGIC).unwrap(), Found::Fields([3; 4]));
        }
    }
}
