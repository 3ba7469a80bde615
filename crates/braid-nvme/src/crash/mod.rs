//! Images that a power failure may leave of a real drive, from a record of its writes.
//!
//! QEMU (`blklogwrites`) and Linux (`dm-log-writes`) record each write and flush of a drive below
//! every driver, and [`Recorder`] does so within a process. [`WriteLog`] reads such a record, and
//! [`Replay`] repeats it on a [`MemoryDrive`], which loses power as [`crate::drive`] allows: a prefix
//! up to a flush survives, with any subset of the later writes, torn at single blocks.
//!
//! The record lacks two things, which [`AnnotatedDrive`] adds as writes of its own to the drive's
//! last 4,096 bytes: the operations that a program has acknowledged, and, since QEMU's drive ignores
//! forced unit access, the writes that were requested with it. Such a note is in the record after
//! all that it depends on.
//!
//! [`MemoryDrive`]: crate::MemoryDrive

mod annotated;
mod log;
mod observed;
mod recorder;
mod replay;
mod sample;

pub use annotated::AnnotatedDrive;
pub use log::{LogEntry, WriteLog};
pub use observed::{ObservedDrive, Observer};
pub use recorder::Recorder;
pub use replay::Replay;
pub use sample::sample;

/// Bytes of a note, and of the part of the drive that has them.
const NOTE: usize = 4096;

const MAGIC: [u8; 16] = *b"BRAID CRASH NOTE";

/// Contents of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Note {
    /// The next writes to these bytes are durable when they complete.
    Durable { offset: u64, len: u64 },
    /// The program has acknowledged what the bytes describe.
    Acknowledged(Vec<u8>),
}

impl Note {
    fn encode(&self) -> [u8; NOTE] {
        let mut bytes = [0; NOTE];
        bytes[..16].copy_from_slice(&MAGIC);
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        match self {
            Self::Durable { offset, len } => {
                put(16, 1);
                put(24, *offset);
                put(32, *len);
            }
            Self::Acknowledged(payload) => {
                assert!(payload.len() <= NOTE - 40, "a note is one block");
                put(16, 2);
                put(32, payload.len() as u64);
                bytes[40..40 + payload.len()].copy_from_slice(payload);
            }
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < NOTE || bytes[..16] != MAGIC {
            return None;
        }
        let word = |at: usize| {
            let word = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(word)
        };
        match word(16) {
            1 => Some(Self::Durable {
                offset: word(24),
                len: word(32),
            }),
            2 => {
                let payload = bytes[40..NOTE].get(..usize::try_from(word(32)).ok()?)?;
                Some(Self::Acknowledged(payload.to_vec()))
            }
            _ => None,
        }
    }
}
