//! Padding of chunks.

use braid_io::{Device, DeviceKind};

use crate::format::BLOCK;
use crate::format::segment::ANY_LOG_FILE;

/// The unit to which flushes are padded, as the power of two with this exponent. It follows the
/// device that wrote the flush: a write of whole units changes no other bytes, even if a crash tears
/// it. So a flush that is being written damages no acknowledged one. Within a flush, small chunks may
/// follow each other with the least padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Padding(u8);

impl Padding {
    /// The least padding: a cache line.
    pub(crate) const LEAST: Self = Padding(6);

    /// The greatest padding: a block.
    pub(crate) const BLOCK: Self = Padding(12);

    /// The padding for chunks on the part of a device that has the log.
    pub(crate) fn of(device: &dyn Device) -> Self {
        let unit = device
            .block_size_of(ANY_LOG_FILE)
            .clamp(Self::LEAST.bytes(), BLOCK);
        if braid_rt::mutant!("pad_to_lines_on_a_disk") {
            return Self::LEAST;
        }
        Padding(exponent(unit))
    }

    /// The unit in bytes.
    pub(crate) const fn bytes(self) -> usize {
        1 << self.0
    }

    /// Rounds a length up to the unit.
    pub(crate) fn pad(self, len: usize) -> usize {
        len.next_multiple_of(self.bytes())
    }

    /// Whether an offset is a multiple of the unit.
    pub(crate) fn divides(self, offset: u64) -> bool {
        offset.is_multiple_of(self.bytes() as u64)
    }

    /// Encodes the padding in a header's byte. A block, for which headers had no byte once, is 0.
    pub(crate) fn encode(self) -> u8 {
        if self == Self::BLOCK { 0 } else { self.0 }
    }

    /// Decodes a header's byte.
    pub(crate) fn decode(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::BLOCK),
            6..12 => Some(Padding(byte)),
            _ => None,
        }
    }
}

/// The exponent of a unit, which is a power of two, as the device promises.
fn exponent(unit: usize) -> u8 {
    (Padding::LEAST.0..Padding::BLOCK.0)
        .find(|exponent| 1 << exponent == unit)
        .unwrap_or(Padding::BLOCK.0)
}

/// Whether a device's flushes make no system call: the log is in persistent memory. Pages of an
/// ordinary file are written by system calls, as to a disk.
pub(crate) fn is_memory(device: &dyn Device) -> bool {
    device.block_size_of(ANY_LOG_FILE) == Padding::LEAST.bytes()
        && device.kind_of(ANY_LOG_FILE) != DeviceKind::PmemFile
}

/// Whether flushes take less time than to wake another thread.
pub(crate) fn flushes_at_once(device: &dyn Device) -> bool {
    // Loom explores requests of flushes with the flusher.
    !cfg!(all(test, loom)) && (is_memory(device) || device.writes_at_once(ANY_LOG_FILE))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_headers_byte_gives_the_padding() {
        for byte in 0..=u8::MAX {
            let padding = Padding::decode(byte);
            assert_eq!(padding.map(Padding::encode), padding.map(|_| byte));
            assert_eq!(padding.is_some(), byte == 0 || (6..12).contains(&byte));
        }
        assert_eq!(
            (Padding::LEAST.bytes(), Padding::BLOCK.bytes()),
            (64, BLOCK)
        );
        assert_eq!((Padding::LEAST.pad(1), Padding::LEAST.pad(64)), (64, 64));
        assert!(Padding(9).divides(1536) && !Padding(9).divides(1600));
    }
}
