//! Opening a log after a crash, or without one.

use std::collections::BTreeSet;

use braid_pmem::{BlockState, Heap, HeapError, HeapReport};
use braid_rt::mutant;

use crate::chain::{Chain, Found};
use crate::error::LogError;
use crate::format::Frame;
use crate::header::{BLOCK_HEADER, LEN, LogHeader};
use crate::scan::next_transaction;
use crate::view::View;

/// What recovery found in a log, and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Number of the generation.
    pub generation: u64,
    /// Number of transactions; of a process that [takes a turn](crate::SharedWriter::take_turn),
    /// those that it did not know.
    pub transactions: u64,
    /// Bytes of the generation's log.
    pub bytes: u64,
    /// Bytes of transactions after the mark. Without a crash there are none, except in the
    /// generations of [checksum](crate::CommitMode::Checksum) commits.
    pub bytes_after_mark: u64,
    /// Blocks in use that no pointer led to.
    pub freed_blocks: usize,
    /// Whether a pointer led to a block that was not in use, or of another generation.
    pub removed_pointer: bool,
    /// The caller's tag of the last transaction; zero without one.
    pub tag: u64,
}

/// A generation in memory.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) view: View,
    pub(crate) opening: u64,
    pub(crate) report: Recovery,
}

/// Reads the log from `known` on, without transactions that are open, then makes durable what it
/// found, then removes what it must not keep. An error in the log leaves the log as it was. Calls
/// `each` with every frame after those of `known`.
pub(crate) fn recover(
    header: &LogHeader,
    heap: &Heap,
    found: &HeapReport,
    known: View,
    each: &mut dyn FnMut(u64, Frame),
) -> Result<Recovered, LogError> {
    let View {
        generation,
        mut chain,
        mut index,
        mut end,
    } = known;
    debug_assert_eq!(generation, header.generation()?);
    let is_cut = follow(&mut chain, heap)?;
    let mut transactions = 0;
    while next_transaction(&chain, header.page_size, &mut index, &mut end, each)? {
        transactions += 1;
    }
    let mark = header.mark(generation)?;
    // R3: everything before the mark is durable.
    if end.position < mark && !mutant!("nvwal_ignore_the_mark") {
        return Err(LogError::Incomplete {
            end: end.position,
            mark,
        });
    }
    make_durable(header, &chain, mark.min(end.position)..end.position)?;
    if is_cut {
        chain.set_link(0)?;
    }
    let kept: BTreeSet<u64> = chain.blocks().iter().copied().collect();
    let unreachable = found.in_use.iter().map(|block| block.offset);
    let unreachable: Vec<u64> = unreachable.filter(|at| !kept.contains(at)).collect();
    if !mutant!("nvwal_leak_unreachable_blocks") {
        for offset in &unreachable {
            heap.free(*offset)?;
        }
    }
    header.set_mark(generation, end.position);
    let opening = match header.opening()? {
        opening if mutant!("nvwal_reuse_the_opening") => opening,
        opening => opening + 1,
    };
    header.set_opening(opening)?;
    header.publish(generation, end.position);
    let report = Recovery {
        generation,
        transactions,
        bytes: end.position,
        bytes_after_mark: end.position - mark.min(end.position),
        freed_blocks: unreachable.len(),
        removed_pointer: is_cut,
        tag: end.tag,
    };
    let view = View {
        generation,
        chain,
        index,
        end,
    };
    Ok(Recovered {
        view,
        opening,
        report,
    })
}

/// Adds the generation's blocks to the chain. Returns whether the last pointer must be removed.
fn follow(chain: &mut Chain, heap: &Heap) -> Result<bool, LogError> {
    loop {
        let offset = chain.next()?;
        if offset == 0 {
            return Ok(false);
        }
        let damaged = |what| LogError::Corrupted {
            offset: chain.link(),
            what,
        };
        let state = match heap.state(offset) {
            Err(HeapError::NotABlock { .. }) => Err(damaged("a pointer leads to no block")),
            state => Ok(state?),
        }?;
        // R5: the pointer was stored before the block was published.
        if state != BlockState::InUse && !mutant!("nvwal_keep_pending_block") {
            return Ok(true);
        }
        if !chain.is_within(offset) {
            return Err(damaged("a pointer leads out of the region"));
        }
        match chain.inspect(offset)? {
            // The header of a block names its place, so that no block is in a chain twice.
            Found::Expected => chain.push(offset),
            // R4: the generation became durable, and its first pointer is still the former one's.
            Found::OtherGeneration if chain.blocks().is_empty() => return Ok(true),
            Found::OtherGeneration => return Err(damaged("a pointer leads to an old block")),
            Found::Damaged => return Err(damaged("a pointer leads to a block without a header")),
        }
    }
}

/// R7: what recovery relies on is durable before it changes or shows anything. A process that was
/// killed leaves stores that are visible and not durable.
fn make_durable(
    header: &LogHeader,
    chain: &Chain,
    after_mark: std::ops::Range<u64>,
) -> Result<(), LogError> {
    if mutant!("nvwal_skip_flush_in_recovery") {
        return Ok(());
    }
    let mapping = chain.mapping();
    mapping.flush(header.start..header.start + LEN);
    for block in chain.blocks() {
        mapping.flush(*block..*block + BLOCK_HEADER);
    }
    chain.flush(after_mark);
    Ok(mapping.fence()?)
}
