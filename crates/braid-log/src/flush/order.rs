//! The order in which a flush makes its bytes durable.
//!
//! A disk takes a flush as one write, and checksums decide after a crash which chunks are whole. In
//! persistent memory the order costs no system call, so it can be chosen:
//!
//! - The *mark* of a flush is its first line: it begins the first chunk of the flush, or the header
//!   of a fresh segment. Without it, no reader finds the chunks of the flush.
//! - Rule: with [`PmemCommit::Eager`] and [`PmemCommit::Lazy`], the mark is stored only after all
//!   other bytes of the flush are durable.

use std::{io, iter};

use braid_io::{Device, File};
use smallvec::SmallVec;

use crate::format::chunk::{CHUNK_HEADER, ChunkHeader};
use crate::format::log_record::LogRecords;
use crate::format::padding::{Padding, is_memory};
use crate::options::PmemCommit;

/// Bytes of a mark.
const MARK: usize = Padding::LEAST.bytes();

/// Returns the order of a device: the chosen one in persistent memory.
pub(crate) fn of(device: &dyn Device, chosen: PmemCommit) -> PmemCommit {
    if is_memory(device) {
        chosen
    } else {
        PmemCommit::Checksum
    }
}

/// Writes the buffers of a flush durably, one after the other from `offset`.
pub(crate) fn write(
    file: &dyn File,
    bufs: &[&[u8]],
    offset: u64,
    order: PmemCommit,
) -> io::Result<()> {
    let Some((first, others)) = bufs.split_first() else {
        return Ok(());
    };
    if order == PmemCommit::Checksum {
        return file.write_durable_at(bufs, offset);
    }
    let (mark, rest) = first.split_at(MARK.min(first.len()));
    if braid_rt::mutant!("pmem_store_mark_before_records") {
        file.write_durable_at(&[mark], offset)?;
    }
    if order == PmemCommit::Eager {
        let mut at = offset;
        for (index, buf) in bufs.iter().enumerate() {
            let skip = if index == 0 { mark.len() } else { 0 };
            write_each_record(file, buf, skip, at)?;
            at += buf.len() as u64;
        }
        return file.write_durable_at(&[mark], offset);
    }
    if others.is_empty() {
        return file.write_marked_at(mark, &[rest], offset);
    }
    let rest: SmallVec<[&[u8]; 4]> = iter::once(rest).chain(others.iter().copied()).collect();
    file.write_marked_at(mark, &rest, offset)
}

/// Writes the lines of each log record of a chunk durably, one record after the other, without the
/// first `skip` bytes. A line that two records share is written with each.
fn write_each_record(file: &dyn File, buf: &[u8], skip: usize, offset: u64) -> io::Result<()> {
    let mut begin = skip;
    for record_end in record_ends(buf) {
        let end = record_end.next_multiple_of(MARK).min(buf.len());
        if begin < end {
            file.write_durable_at(&[&buf[begin..end]], offset + begin as u64)?;
        }
        begin = (record_end / MARK * MARK).max(begin);
    }
    Ok(())
}

/// The offsets at which the log records of a chunk end; of other bytes, their end.
fn record_ends(buf: &[u8]) -> Vec<usize> {
    let Some(header) = ChunkHeader::decode(buf) else {
        return vec![buf.len()];
    };
    let mut ends = Vec::new();
    let end = CHUNK_HEADER + header.payload_len as usize;
    let mut records = LogRecords::new(&buf[CHUNK_HEADER..end]);
    while let Ok(Some(_)) = records.next() {
        ends.push(CHUNK_HEADER + records.position());
    }
    if ends
        .last()
        .is_none_or(|last| last.next_multiple_of(MARK) < buf.len())
    {
        ends.push(buf.len());
    }
    ends
}

#[cfg(all(test, not(loom)))]
mod tests;
