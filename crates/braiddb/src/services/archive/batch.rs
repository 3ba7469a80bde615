//! Format of an archive's files: a header, followed by batches of transactions, each padded to a
//! block.

use std::time::Duration;

pub(super) const BLOCK: usize = 4096;

const FILE_MAGIC: [u8; 8] = *b"BRAIDARC";
const BATCH_MAGIC: [u8; 8] = *b"BRAIDBAT";
pub(super) const FORMAT: u32 = 1;

/// Bytes of a batch before its transactions.
pub(super) const BATCH_HEADER: usize = 64;

/// Bytes before the redo records of each transaction.
pub(super) const TRANSACTION_HEADER: usize = 12;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Header of a file, its first block.
///
/// | bytes | field |
/// |---|---|
/// | 0..8 | magic |
/// | 8..12 | format |
/// | 12..16 | CRC-32C of bytes 16..48 |
/// | 16..32 | identity of the log |
/// | 32..40 | the file contains transactions after this sequence number |
/// | 40..48 | when the file was created, in nanoseconds since 1970 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) identity: u128,
    pub(crate) after: u64,
    pub(crate) time: Duration,
}

/// Converts a time to nanoseconds, as stored; a time after the year 2554 becomes the last one
/// possible.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl FileHeader {
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block[..8].copy_from_slice(&FILE_MAGIC);
        block[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        block[16..32].copy_from_slice(&self.identity.to_le_bytes());
        block[32..40].copy_from_slice(&self.after.to_le_bytes());
        block[40..48].copy_from_slice(&nanos(self.time).to_le_bytes());
        let crc = crc32c::crc32c(&block[16..48]);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a header. Returns `None` if the bytes are not a header, and an unknown format as an
    /// error.
    pub(crate) fn decode(block: &[u8]) -> Option<Result<Self, u32>> {
        if block.len() < 48 || block[..8] != FILE_MAGIC {
            return None;
        }
        let format = u32_at(block, 8)?;
        if format != FORMAT {
            return Some(Err(format));
        }
        if u32_at(block, 12)? != crc32c::crc32c(&block[16..48]) {
            return None;
        }
        Some(Ok(Self {
            identity: u128::from(u64_at(block, 16)?) | u128::from(u64_at(block, 24)?) << 64,
            after: u64_at(block, 32)?,
            time: Duration::from_nanos(u64_at(block, 40)?),
        }))
    }
}

/// Header of a batch.
///
/// | bytes | field |
/// |---|---|
/// | 0..8 | magic |
/// | 8..12 | CRC-32C of bytes 12..64 |
/// | 12..16 | CRC-32C of the transactions |
/// | 16..24 | the batch contains transactions after this sequence number |
/// | 24..32 | the batch contains transactions up to this sequence number |
/// | 32..40 | a time in nanoseconds since 1970: what was durable then is in this batch or before |
/// | 40..44 | bytes of its transactions |
/// | 44..48 | number of its transactions |
/// | 48..64 | identity of the log |
///
/// A transaction consists of its sequence number (u64), its length (u32), and its redo records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) after: u64,
    pub(crate) last: u64,
    pub(crate) time: Duration,
    pub(crate) len: u32,
    pub(crate) count: u32,
    pub(crate) crc: u32,
    pub(crate) identity: u128,
}

impl BatchHeader {
    pub(crate) fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&BATCH_MAGIC);
        out[12..16].copy_from_slice(&self.crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.after.to_le_bytes());
        out[24..32].copy_from_slice(&self.last.to_le_bytes());
        out[32..40].copy_from_slice(&nanos(self.time).to_le_bytes());
        out[40..44].copy_from_slice(&self.len.to_le_bytes());
        out[44..48].copy_from_slice(&self.count.to_le_bytes());
        out[48..64].copy_from_slice(&self.identity.to_le_bytes());
        let crc = crc32c::crc32c(&out[12..BATCH_HEADER]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a header; `None` if the bytes are not a header.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < BATCH_HEADER || bytes[..8] != BATCH_MAGIC {
            return None;
        }
        if u32_at(bytes, 8)? != crc32c::crc32c(&bytes[12..BATCH_HEADER]) {
            return None;
        }
        let header = Self {
            crc: u32_at(bytes, 12)?,
            after: u64_at(bytes, 16)?,
            last: u64_at(bytes, 24)?,
            time: Duration::from_nanos(u64_at(bytes, 32)?),
            len: u32_at(bytes, 40)?,
            count: u32_at(bytes, 44)?,
            identity: u128::from(u64_at(bytes, 48)?) | u128::from(u64_at(bytes, 56)?) << 64,
        };
        (header.after < header.last).then_some(header)
    }

    /// Returns the number of bytes that the batch takes in its file.
    pub(super) fn size(&self) -> u64 {
        (BATCH_HEADER as u64 + u64::from(self.len)).next_multiple_of(BLOCK as u64)
    }
}

/// Iterates over the transactions of a batch: their sequence numbers and redo records. Yields
/// `None` once if the bytes are malformed.
pub(super) fn transactions(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let mut take = || {
            let (seqno, len) = (u64_at(bytes, 0)?, u32_at(bytes, 8)? as usize);
            let payload = bytes.get(TRANSACTION_HEADER..)?.get(..len)?;
            bytes = &bytes[TRANSACTION_HEADER + len..];
            Some((seqno, payload))
        };
        let taken = take();
        if taken.is_none() {
            bytes = &[];
        }
        Some(taken)
    })
}

/// Recomputes the checksums of an archive file, as far as its contents are well-formed.
pub(crate) fn seal(bytes: &mut [u8]) -> Option<()> {
    let crc = crc32c::crc32c(bytes.get(16..48)?);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let mut at = BLOCK;
    loop {
        let batch = bytes.get_mut(at..)?;
        let len = u32_at(batch, 40)? as usize;
        let transactions = batch.get(BATCH_HEADER..BATCH_HEADER.checked_add(len)?)?;
        let crc = crc32c::crc32c(transactions);
        batch[12..16].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&batch[12..BATCH_HEADER]);
        batch[8..12].copy_from_slice(&crc.to_le_bytes());
        at += (BATCH_HEADER + len).next_multiple_of(BLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written_and_damage_is_detected() {
        let file = FileHeader {
            identity: 7 << 90,
            after: 12,
            time: Duration::from_nanos(5),
        };
        let mut bytes = [0; BLOCK];
        file.encode(&mut bytes);
        assert_eq!(FileHeader::decode(&bytes), Some(Ok(file)));
        for at in 0..48 {
            bytes[at] ^= 8;
            assert_ne!(FileHeader::decode(&bytes), Some(Ok(file)), "byte {at}");
            assert!(
                !matches!(FileHeader::decode(&bytes), Some(Ok(_))),
                "byte {at}"
            );
            bytes[at] ^= 8;
        }
        let batch = BatchHeader {
            after: 3,
            last: 9,
            time: Duration::from_secs(1),
            len: 5_000,
            count: 2,
            crc: 77,
            identity: 1 << 127,
        };
        assert_eq!(batch.size(), 2 * BLOCK as u64);
        batch.encode(&mut bytes);
        assert_eq!(BatchHeader::decode(&bytes), Some(batch));
        for at in 0..BATCH_HEADER {
            bytes[at] ^= 1;
            assert_eq!(BatchHeader::decode(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn any_bytes_are_transactions_or_none() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
            let bytes: Vec<u8> = (0..rng.usize(..80)).map(|_| rng.u8(..) % 5).collect();
            let all: Vec<_> = transactions(&bytes).collect();
            assert!(all.iter().rev().skip(1).all(Option::is_some));
        }
    }
}
