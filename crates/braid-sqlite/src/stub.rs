//! Guard B: what the `-wal` file contains while the log has the frames.
//!
//! The file begins with a header that SQLite recognizes as that of another version, so that a program
//! without the extension refuses the database. Text follows: whether the log is in use, a checksum, where
//! the log is, and which database it belongs to, so that a copy of the file does not lead to the log of the
//! original.
//!
//! A power failure tears a write between sectors of 512 bytes. The state and the checksum lie in the first
//! sector, so a change of the state alone is never torn. The paths can be longer than a sector: other paths
//! are written only while the database is not guarded, when the log has nothing, and the checksum tells
//! what the failure left of them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use braid_rt::mutant;

/// SQLite's magic number for checksums of little-endian words.
const MAGIC: u32 = 0x377f_0682;
/// No version of SQLite has this format.
const VERSION: u32 = 0xb4a1_d001;
const PREFIX: &[u8] = b"braid-sqlite 2\n";
const OPEN: &[u8] = b"open   \n";
const CLOSED: &[u8] = b"closed \n";
/// Bytes of SQLite's header.
const HEADER: usize = 32;
/// Bytes of the line with the checksum: hexadecimal digits.
const CHECKSUM: usize = 9;
/// No path is longer.
const LONGEST: u64 = 8192;

/// What lies in the place of a `-wal` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stub {
    /// Nothing, or an empty file.
    Absent,
    /// The frames are in this log; `is_open` until the log has been emptied to delete it.
    Log {
        path: PathBuf,
        /// The database for which the file was written.
        database: PathBuf,
        is_open: bool,
    },
    /// Zeros in the place of the header: a power failure while the file was written for the first time.
    /// Nothing was in the log yet, and SQLite does not find frames in such a file.
    Unwritten,
    /// A header of ours before text that its checksum contradicts: a power failure while the paths were
    /// written, or damage.
    Torn,
    /// Something else: frames of SQLite without the extension.
    Foreign,
}

/// SQLite's checksum of little-endian words.
fn checksum(bytes: &[u8]) -> [u32; 2] {
    let mut sum = [0_u32; 2];
    for pair in bytes.chunks_exact(8) {
        let word = |at: usize| u32::from_le_bytes(pair[at..at + 4].try_into().expect("4 bytes"));
        sum[0] = sum[0].wrapping_add(word(0)).wrapping_add(sum[1]);
        sum[1] = sum[1].wrapping_add(word(4)).wrapping_add(sum[0]);
    }
    sum
}

fn header() -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let version = match VERSION {
        _ if mutant!("sqlite_accept_the_stub") => 3_007_000,
        version => version,
    };
    // Page size, number of checkpoints, salts.
    let words = [MAGIC, version, 4096, 0, 0x6272_6169, 0x6420_6c6f];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    let sum = checksum(&bytes[..24]);
    bytes[24..28].copy_from_slice(&sum[0].to_be_bytes());
    bytes[28..].copy_from_slice(&sum[1].to_be_bytes());
    bytes
}

/// The line with the checksum of a state and paths.
fn checksum_line(state: &[u8], paths: &[u8]) -> Vec<u8> {
    let sum = crc32c::crc32c_append(crc32c::crc32c(state), paths);
    format!("{sum:08x}\n").into_bytes()
}

fn encode(log: &Path, database: &Path, is_open: bool) -> Vec<u8> {
    let state = if is_open { OPEN } else { CLOSED };
    let (log, database) = (log.as_os_str().as_bytes(), database.as_os_str().as_bytes());
    // No path contains a zero.
    let paths = [log, b"\0", database, b"\n"].concat();
    [
        &header(),
        PREFIX,
        state,
        &checksum_line(state, &paths),
        &paths,
    ]
    .concat()
}

fn decode(bytes: &[u8]) -> Stub {
    if bytes.is_empty() {
        return Stub::Absent;
    }
    if bytes.iter().take(HEADER).all(|byte| *byte == 0) {
        return Stub::Unwritten;
    }
    let text = bytes
        .strip_prefix(&header())
        .and_then(|bytes| bytes.strip_prefix(PREFIX));
    let Some(text) = text else {
        return Stub::Foreign;
    };
    let Some((state, rest)) = text.split_at_checked(OPEN.len()) else {
        return Stub::Torn;
    };
    let Some((sum, paths)) = rest.split_at_checked(CHECKSUM) else {
        return Stub::Torn;
    };
    if sum != checksum_line(state, paths) && !mutant!("sqlite_accept_a_torn_stub") {
        return Stub::Torn;
    }
    let Some(paths) = paths.strip_suffix(b"\n") else {
        return Stub::Torn;
    };
    let mut paths = paths.split(|byte| *byte == 0);
    let (Some(path), Some(database), None) = (paths.next(), paths.next(), paths.next()) else {
        return Stub::Torn;
    };
    if (state != OPEN && state != CLOSED) || path.is_empty() {
        return Stub::Torn;
    }
    let to_path = |bytes: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()));
    Stub::Log {
        path: to_path(path),
        database: to_path(database),
        is_open: state == OPEN,
    }
}

/// Reads a `-wal` file. SQLite has no locks on it, so that closing it releases none.
pub(crate) fn read(wal: &Path) -> io::Result<Stub> {
    let file = match File::open(wal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stub::Absent),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(decode(&bytes))
}

/// Writes the `-wal` file of a database, durably.
pub(crate) fn write(wal: &Path, log: &Path, database: &Path, is_open: bool) -> io::Result<()> {
    let bytes = encode(log, database, is_open);
    #[cfg(test)]
    if let Some(disk) = crate::simulation::disk_of(wal) {
        return disk.write_file(wal, &bytes);
    }
    // All at once, over what is there: the file exists, or SQLite has just created it.
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create(true).truncate(false).open(wal)?;
    file.write_all(&bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()?;
    sync_directory(wal)
}

/// Makes a file's name durable, or its absence.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_names_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let (wal, log) = (directory.path().join("a-wal"), Path::new("/mnt/a\nb.log"));
        assert_eq!(read(&wal).unwrap(), Stub::Absent);
        for is_open in [true, false] {
            write(&wal, log, Path::new("/a"), is_open).unwrap();
            let stub = Stub::Log {
                path: log.to_owned(),
                database: PathBuf::from("/a"),
                is_open,
            };
            assert_eq!(read(&wal).unwrap(), stub);
        }
        let written = std::fs::read(&wal).unwrap();
        for at in HEADER..written.len() {
            let mut bytes = written.clone();
            bytes[at] ^= 1;
            std::fs::write(&wal, &bytes).unwrap();
            let is_ours = at >= HEADER + PREFIX.len();
            let expected = if is_ours { Stub::Torn } else { Stub::Foreign };
            assert_eq!(read(&wal).unwrap(), expected, "{at}");
            std::fs::write(&wal, &written[..at]).unwrap();
            let expected = if is_ours { Stub::Torn } else { Stub::Foreign };
            assert_eq!(read(&wal).unwrap(), expected, "{at} bytes");
        }
        let mut bytes = written;
        bytes[5] ^= 1;
        std::fs::write(&wal, &bytes).unwrap();
        assert_eq!(read(&wal).unwrap(), Stub::Foreign);
        std::fs::write(&wal, &header()[..20]).unwrap();
        assert_eq!(read(&wal).unwrap(), Stub::Foreign);
        for len in [1, HEADER, 200] {
            std::fs::write(&wal, vec![0; len]).unwrap();
            assert_eq!(read(&wal).unwrap(), Stub::Unwritten);
        }
        bytes[..HEADER - 1].fill(0);
        std::fs::write(&wal, &bytes).unwrap();
        assert_eq!(read(&wal).unwrap(), Stub::Foreign);
        std::fs::write(&wal, []).unwrap();
        assert_eq!(read(&wal).unwrap(), Stub::Absent);
    }
}
