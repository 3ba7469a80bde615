//! Tests of a strand by one thread.

use braid_io::MemoryDevice;

use super::*;
use crate::buffer::commit_slots::CommitSlots;
use crate::buffer::slot::AssignedNumbers;
use crate::format::log_record::LogRecordKind;

fn strand() -> Strand {
    strand_with(SLOTS_PER_STRAND)
}

fn strand_with(slots: usize) -> Strand {
    let limits = BufferLimits {
        slot_bytes: 8192,
        slots,
    };
    Strand::new(
        &MemoryDevice::new(),
        LaneId::new(0),
        8192,
        limits,
        CommitSlots::new(SeqNo::NONE, 1, None).unflushed(StrandId::new(0)),
        GroupNo::new(1),
        None,
    )
}

/// On a machine with one node, all slots lie there; `scripts/guest-numa.sh` runs this on machines
/// with several.
#[test]
fn slots_lie_on_the_strands_memory_node() {
    const SLOT: usize = 512 << 10;
    let limits = BufferLimits {
        slot_bytes: SLOT,
        slots: SLOTS_PER_STRAND,
    };
    for node in 0..numa::nodes() {
        let strand = Strand::new(
            &MemoryDevice::new(),
            LaneId::new(0),
            SLOT,
            limits,
            CommitSlots::new(SeqNo::NONE, 1, None).unflushed(StrandId::new(0)),
            GroupNo::new(1),
            Some(node),
        );
        // A flush owns one of them.
        assert!(append(&strand, 1, 1_000).is_some());
        let taken = strand.take(&mut strand.lock(), SLOT as u64);
        assert!(matches!(taken, Taken::Slot(_)));
        let mut bytes = vec![0; numa::nodes()];
        if !strand.count(&mut bytes) {
            eprintln!("skipped: the system does not tell where memory lies");
            return;
        }
        // A slot need not begin with a page of the system.
        let least = (SLOTS_PER_STRAND * SLOT) as u64 / 100 * 99;
        assert!(bytes[node] >= least, "node {node}: {bytes:?}");
    }
}

fn append(strand: &Strand, seqno: u64, len: usize) -> Option<GroupNo> {
    let payload = vec![7; len];
    let numbers = AssignedNumbers {
        first: SeqNo::new(seqno),
        last: SeqNo::new(seqno),
    };
    strand.try_append(numbers, LogRecordKind::Data, &[&payload], len)
}

#[test]
fn fills_rotates_and_drains() {
    let strand = strand();
    assert!(!strand.is_dirty());
    let mut seqno = 0;
    while append(&strand, seqno + 1, 1000).is_some() {
        seqno += 1;
    }
    assert_eq!(seqno, 8 * SLOTS_PER_STRAND as u64);
    assert!(strand.is_dirty());
    assert_eq!(strand.oldest_unflushed().get(), 1);
    let mut taken = Vec::new();
    let mut state = strand.lock();
    assert!(matches!(strand.take(&mut state, 4096), Taken::TooLarge));
    while let Taken::Slot(slot) = strand.take(&mut state, 8192) {
        taken.push(slot);
    }
    drop(state);
    assert!(!strand.is_dirty());
    assert_eq!(taken.len(), SLOTS_PER_STRAND);
    assert_eq!(
        (
            taken[1].first.get(),
            taken[1].last.get(),
            taken[1].log_records
        ),
        (9, 16, 8)
    );
    // Still unflushed, and without room, until the slots are recycled.
    assert_eq!(strand.oldest_unflushed().get(), 1);
    assert_eq!(append(&strand, 100, 10), None);
    for slot in taken {
        strand.recycle(slot);
    }
    assert_eq!(strand.oldest_unflushed(), SeqNo::MAX);
    strand.lock().set_group(GroupNo::new(5));
    assert_eq!(append(&strand, 100, 10), Some(GroupNo::new(5)));
    assert_eq!(strand.oldest_unflushed().get(), 100);
}

#[test]
fn no_more_slots_wait_for_a_flush_than_may() {
    let strand = strand_with(1);
    let mut seqno = 0;
    while append(&strand, seqno + 1, 1000).is_some() {
        seqno += 1;
    }
    assert_eq!(seqno, 8);
    let bytes = strand.lock().unsealed_bytes();
    assert!(bytes <= 8192, "{bytes}");
    // A slot in flight does not wait for a flush.
    let mut state = strand.lock();
    let Taken::Slot(slot) = strand.take(&mut state, 8192) else {
        panic!("the slot is taken");
    };
    drop(state);
    assert!(append(&strand, seqno + 1, 1000).is_some());
    strand.recycle(slot);
}

#[test]
fn the_least_number_counts() {
    let strand = strand();
    append(&strand, 9, 10);
    append(&strand, 4, 10);
    append(&strand, 6, 10);
    assert_eq!(strand.oldest_unflushed().get(), 4);
}
