use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{Image, RegionOptions, SimulatedMemory, SimulatedOptions, Survivors};

const START: u64 = Region::DATA_START;
const CAPACITY: u64 = START + (96 << 10);

fn options() -> HeapOptions {
    HeapOptions::default()
        .piece_size(4096)
        .max_bytes(16 * 4096)
        .classes(&[1024, 256])
}

fn simulated() -> SimulatedOptions {
    // Six pieces fit.
    SimulatedOptions::default()
        .capacity(CAPACITY)
        .device_bytes(START + (64 << 10))
}

fn new_region() -> (SimulatedMemory, Arc<Region>) {
    let memory = SimulatedMemory::new(Region::MIN_LEN, simulated());
    let region = Region::create_in(Mapping::simulated(&memory), &RegionOptions::default());
    (memory, Arc::new(region.unwrap()))
}

fn new_heap() -> (SimulatedMemory, Heap) {
    let (memory, region) = new_region();
    let heap = Heap::create(region, START, &options()).unwrap();
    (memory, heap)
}

fn reopen(image: &Image) -> (SimulatedMemory, Heap, HeapReport) {
    let memory = SimulatedMemory::from_image(image, simulated());
    let region = Region::open_in(Mapping::simulated(&memory), &RegionOptions::default());
    let (heap, report) = Heap::open(Arc::new(region.unwrap()), START).unwrap();
    (memory, heap, report)
}

#[test]
fn blocks_are_pending_then_in_use_then_free() {
    let (memory, heap) = new_heap();
    let block = heap.allocate(100).unwrap();
    assert_eq!(block.len, 256);
    assert_eq!(heap.state(block.offset).unwrap(), BlockState::Pending);
    let kept = heap.allocate(1000).unwrap();
    assert_eq!(kept.len, 1024);
    heap.publish(kept.offset).unwrap();
    let freed = heap.allocate(1).unwrap();
    heap.publish(freed.offset).unwrap();
    heap.free(freed.offset).unwrap();

    // Every step was durable when its call returned.
    let (_, heap, report) = reopen(&memory.crash(Survivors::Nothing));
    assert_eq!(report.in_use, [kept]);
    assert_eq!(report.pending, [block.offset]);
    assert_eq!(report.pieces, 2);
    assert_eq!(heap.state(block.offset).unwrap(), BlockState::Free);
    let free: usize = heap.free_blocks().values().sum();
    assert_eq!(free as u64, report.free);
}

#[test]
fn freeing_pending_blocks_is_durable_when_opening_returns() {
    let (memory, heap) = new_heap();
    heap.allocate(1).unwrap();
    let (memory, _heap, report) = reopen(&memory.crash(Survivors::Nothing));
    assert_eq!(report.pending.len(), 1);
    let (_, _, report) = reopen(&memory.crash(Survivors::Nothing));
    assert_eq!(report.pending, []);
}

/// A killed process leaves a state that is visible and that no fence made durable. The next one
/// relies on it, and so must make it durable.
#[test]
fn states_of_a_killed_process_are_durable_when_opening_returns() {
    let (memory, heap) = new_heap();
    let block = heap.allocate(1).unwrap();
    // After the store, and before the flush.
    memory.power_off_at(memory.operations() + 1);
    heap.publish(block.offset).unwrap_err();
    let memory = memory.kill();
    let open = |memory: &SimulatedMemory| {
        let region = Region::open_in(Mapping::simulated(memory), &RegionOptions::default());
        Heap::open(Arc::new(region.unwrap()), START).unwrap()
    };
    let (_heap, report) = open(&memory);
    assert_eq!(report.in_use, [block]);
    let (_, report) = open(&SimulatedMemory::from_image(
        &memory.crash(Survivors::Nothing),
        simulated(),
    ));
    assert_eq!(report.in_use, [block]);
}

#[test]
fn wrong_calls_are_errors_and_change_nothing() {
    let (_, heap) = new_heap();
    let block = heap.allocate(256).unwrap();
    let error = heap.allocate(1025).unwrap_err();
    assert!(
        matches!(error, HeapError::TooLarge { largest: 1024, .. }),
        "{error}"
    );
    for offset in [0, START, block.offset + 1, block.offset + 64, u64::MAX] {
        let error = heap.free(offset).unwrap_err();
        assert!(matches!(error, HeapError::NotABlock { .. }), "{error}");
    }
    heap.publish(block.offset).unwrap();
    let error = heap.publish(block.offset).unwrap_err();
    let expected = "cannot change the block at offset";
    assert!(error.to_string().starts_with(expected), "{error}");
    heap.free(block.offset).unwrap();
    let error = heap.free(block.offset).unwrap_err();
    let found = BlockState::Free;
    assert!(
        matches!(error, HeapError::WrongState { found: f, .. } if f == found),
        "{error}"
    );
    assert_eq!(heap.allocate(256).unwrap(), block);
    let second = heap.allocate(256).unwrap();
    assert_ne!(second, block);
}

#[test]
fn a_full_heap_works_again_after_a_block_is_freed() {
    let (_, heap) = new_heap();
    let mut blocks = Vec::new();
    let error = loop {
        match heap.allocate(1024) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, HeapError::Full { len: 1024 }), "{error}");
    assert!(blocks.len() > 10);
    let offsets: BTreeSet<u64> = blocks.iter().map(|block| block.offset).collect();
    assert_eq!(offsets.len(), blocks.len());
    heap.free(blocks[3].offset).unwrap();
    assert_eq!(heap.allocate(600).unwrap(), blocks[3]);
    assert!(matches!(heap.allocate(1), Err(HeapError::Full { .. })));
    // A piece whose blocks are all free serves the other class.
    let piece = blocks[0].offset / 4096;
    for block in blocks.iter().filter(|block| block.offset / 4096 == piece) {
        heap.free(block.offset).unwrap();
    }
    let small = heap.allocate(1).unwrap();
    assert_eq!((small.len, small.offset / 4096), (256, piece));
}

#[test]
fn a_piece_that_changes_its_class_begins_with_free_blocks() {
    let (memory, region) = new_region();
    let options = options().max_bytes(4096).classes(&[64, 1024]);
    let heap = Heap::create(region, START, &options).unwrap();
    let mut blocks = Vec::new();
    while let Ok(block) = heap.allocate(1024) {
        // What the blocks contain lies where the small blocks have their states.
        heap.region().mapping().write(block.offset, &[0xaa; 1024]);
        heap.region()
            .mapping()
            .persist(block.offset..block.offset + 1024)
            .unwrap();
        blocks.push(block);
    }
    for block in blocks {
        heap.free(block.offset).unwrap();
    }
    for operation in 0.. {
        let image = memory.crash(Survivors::Everything);
        let (memory, heap, report) = reopen(&image);
        assert_eq!(report.free, 3);
        memory.power_off_at(memory.operations() + operation);
        let done = heap.allocate(64).is_ok();
        for seed in 0..10 {
            let (_, _, report) = reopen(&memory.crash(Survivors::Random(seed)));
            assert!(report.free == 3 || report.free > 50, "{report:?}");
        }
        if done {
            break;
        }
    }
}

#[test]
fn invalid_options_are_refused() {
    for options in [
        options().classes(&[]),
        options().classes(&[100]),
        options().classes(&[0]),
        options().classes(&[4096]),
        options().classes(&(1..18).map(|n| n * 64).collect::<Vec<_>>()),
        options().piece_size(5000),
        options().piece_size(0),
        options().max_bytes(4095),
    ] {
        let error = Heap::create(new_region().1, START, &options).unwrap_err();
        assert!(
            matches!(error, HeapError::InvalidOptions(_)),
            "{options:?}: {error}"
        );
    }
    let error = Heap::create(new_region().1, START + 8, &options()).unwrap_err();
    assert!(matches!(error, HeapError::InvalidOptions(_)), "{error}");
}

#[test]
fn damage_is_reported() {
    let (memory, heap) = new_heap();
    let block = heap.allocate(256).unwrap();
    let image = memory.crash(Survivors::Nothing);
    let open = |image: &Image| {
        let memory = SimulatedMemory::from_image(image, simulated());
        let region = Region::open_in(Mapping::simulated(&memory), &RegionOptions::default());
        Heap::open(Arc::new(region.unwrap()), START).unwrap_err()
    };
    let ((piece, index), class) = heap.place_of(block.offset).unwrap();
    let word = heap.state_word((piece, index), class);
    let mut damaged = image.clone();
    damaged.overwrite(word, &[1]);
    damaged.overwrite(word + 4, &[1]);
    assert!(matches!(open(&damaged), HeapError::Corrupted { offset } if offset == word));
    let mut damaged = image.clone();
    damaged.overwrite(heap.layout.entry(piece), &[99]);
    assert!(matches!(open(&damaged), HeapError::Corrupted { .. }));
    let mut damaged = image.clone();
    damaged.overwrite(START + 16, &[1]);
    assert!(matches!(
        open(&damaged),
        HeapError::NotAHeap { offset: START }
    ));
    let mut damaged = image.clone();
    damaged.lose(word..word + 8);
    assert!(matches!(open(&damaged), HeapError::Media(_)));
    let (memory, region) = new_region();
    drop(region);
    assert!(matches!(
        open(&memory.crash(Survivors::Nothing)),
        HeapError::NotAHeap { .. }
    ));
}

#[test]
fn threads_never_share_a_block() {
    let rounds = if cfg!(miri) { 5 } else { 300 };
    let (memory, heap) = new_heap();
    let kept: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4_u64)
            .map(|thread| {
                scope.spawn({
                    let heap = &heap;
                    move || {
                        let mut mine: Vec<u64> = Vec::new();
                        for round in 0..rounds {
                            if mine.len() > 3 {
                                let offset = mine.remove(round % mine.len());
                                let owner = heap.mapping().load_u64(offset, Ordering::Relaxed);
                                assert_eq!(owner, thread);
                                heap.free(offset).unwrap();
                            }
                            let block = heap.allocate(1 + (round as u64 % 2) * 999).unwrap();
                            heap.mapping()
                                .store_u64(block.offset, thread, Ordering::Relaxed);
                            heap.publish(block.offset).unwrap();
                            mine.push(block.offset);
                        }
                        mine
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let (_, _, report) = reopen(&memory.crash(Survivors::Nothing));
    let in_use: BTreeSet<u64> = report.in_use.iter().map(|block| block.offset).collect();
    assert_eq!(in_use, kept.into_iter().collect());
}

/// Persistent pointers: a table of slots in front of the heap.
const SLOTS: u64 = 24;
const HEAP: u64 = START + SLOTS * 8 + 64;

/// A program that keeps a block for each of some keys, through crashes.
struct History {
    random: fastrand::Rng,
    memory: SimulatedMemory,
    heap: Heap,
    /// What was acknowledged: number of the block in each slot, zero without.
    acknowledged: BTreeMap<u64, u64>,
    /// The change that is under way: slot and number.
    under_way: Option<(u64, u64)>,
    number: u64,
}

/// What the histories must reach.
const MUST_OCCUR: [&str; 7] = [
    "a piece was added or changed its class",
    "a pending block was given back",
    "a pending block was freed",
    "a pointer led to a block that is not in use",
    "an unacknowledged change survived",
    "blocks of both classes are in use",
    "the heap was full",
];

type Reached = BTreeMap<&'static str, u64>;

fn reach(reached: &mut Reached, what: &'static str, is_reached: bool) {
    assert!(MUST_OCCUR.contains(&what), "{what}");
    *reached.entry(what).or_default() += u64::from(is_reached);
}

impl History {
    fn new(seed: u64) -> Self {
        let (memory, region) = new_region();
        Self {
            random: fastrand::Rng::with_seed(seed),
            heap: Heap::create(region, HEAP, &options().max_bytes(5 * 4096)).unwrap(),
            memory,
            acknowledged: BTreeMap::new(),
            under_way: None,
            number: 0,
        }
    }

    fn slot(slot: u64) -> u64 {
        START + slot * 8
    }

    fn pointer(&self, slot: u64) -> u64 {
        self.heap
            .mapping()
            .load_u64(Self::slot(slot), Ordering::Acquire)
    }

    fn set_pointer(&self, slot: u64, offset: u64) -> Result<(), HeapError> {
        let at = Self::slot(slot);
        self.heap.mapping().store_u64(at, offset, Ordering::Release);
        Ok(self.heap.mapping().persist(at..at + 8)?)
    }

    fn insert(&mut self, slot: u64, reached: &mut Reached) -> Result<(), HeapError> {
        let len = if self.random.bool() { 256 } else { 1024 };
        let before: usize = self.heap.free_blocks().values().sum();
        let block = self.heap.allocate(len)?;
        let after: usize = self.heap.free_blocks().values().sum();
        reach(
            reached,
            "a piece was added or changed its class",
            after + 1 != before,
        );
        if self.random.u8(..10) == 0 {
            reach(reached, "a pending block was given back", true);
            return self.heap.free(block.offset);
        }
        self.number += 1;
        self.under_way = Some((slot, self.number));
        let contents = self.number.to_ne_bytes().repeat(block.len as usize / 8);
        self.heap.mapping().write_flushed(block.offset, &contents);
        self.heap.mapping().fence()?;
        self.set_pointer(slot, block.offset)?;
        self.heap.publish(block.offset)?;
        self.acknowledged.insert(slot, self.number);
        Ok(())
    }

    fn remove(&mut self, slot: u64) -> Result<(), HeapError> {
        self.under_way = Some((slot, 0));
        // In this order, a crash leaves a pointer to a free block, which opening removes.
        self.heap.free(self.pointer(slot))?;
        self.set_pointer(slot, 0)?;
        self.acknowledged.insert(slot, 0);
        Ok(())
    }

    fn step(&mut self, reached: &mut Reached) -> Result<(), HeapError> {
        self.under_way = None;
        let slot = self.random.u64(..SLOTS);
        match self.pointer(slot) {
            0 => match self.insert(slot, reached) {
                Err(HeapError::Full { .. }) => {
                    reach(reached, "the heap was full", true);
                    let used = (0..SLOTS).find(|slot| self.pointer(*slot) != 0);
                    self.remove(used.expect("a full heap has blocks in use"))
                }
                result => result,
            },
            _ => self.remove(slot),
        }
    }

    /// Runs until the power fails.
    fn run(&mut self, reached: &mut Reached) {
        let operations = self.random.u64(1..300);
        self.memory
            .power_off_at(self.memory.operations() + operations);
        loop {
            match self.step(reached) {
                Ok(()) => {}
                Err(HeapError::Fence(FenceError::PowerOff)) => return,
                Err(HeapError::Region(RegionError::Fence { .. })) => return,
                Err(error) => panic!("{error}"),
            }
            if self.memory.is_off() {
                return;
            }
        }
    }

    /// Opens what a crash leaves, and checks it.
    fn recover(&mut self, reached: &mut Reached) {
        let image = self.memory.crash(match self.random.u8(..4) {
            0 => Survivors::Nothing,
            1 => Survivors::Everything,
            _ => Survivors::Random(self.random.u64(..)),
        });
        self.memory = SimulatedMemory::from_image(&image, simulated());
        let region = Region::open_in(Mapping::simulated(&self.memory), &RegionOptions::default());
        let (heap, report) = Heap::open(Arc::new(region.unwrap()), HEAP).unwrap();
        self.heap = heap;
        reach(
            reached,
            "a pending block was freed",
            !report.pending.is_empty(),
        );
        let mut in_use: BTreeSet<u64> = report.in_use.iter().map(|block| block.offset).collect();
        for slot in 0..SLOTS {
            let offset = self.pointer(slot);
            let is_kept = offset != 0 && self.heap.state(offset).unwrap() == BlockState::InUse;
            if offset != 0 && !is_kept {
                reach(reached, "a pointer led to a block that is not in use", true);
                self.set_pointer(slot, 0).unwrap();
            }
            let mut found = 0;
            if is_kept {
                assert!(in_use.remove(&offset), "two pointers to block {offset}");
                let len = report
                    .in_use
                    .iter()
                    .find(|block| block.offset == offset)
                    .unwrap()
                    .len;
                let mut contents = vec![0; len as usize];
                self.heap.mapping().read(offset, &mut contents).unwrap();
                found = u64::from_ne_bytes(contents[..8].try_into().unwrap());
                assert_eq!(contents, found.to_ne_bytes().repeat(len as usize / 8));
            }
            let acknowledged = self.acknowledged.get(&slot).copied().unwrap_or(0);
            if found != acknowledged {
                assert_eq!(
                    self.under_way,
                    Some((slot, found)),
                    "instead of {acknowledged}"
                );
                reach(reached, "an unacknowledged change survived", true);
                self.acknowledged.insert(slot, found);
            }
        }
        assert!(in_use.is_empty(), "leaked {in_use:?}");
        let free: usize = self.heap.free_blocks().values().sum();
        reach(reached, "blocks of both classes are in use", {
            let lens: BTreeSet<u64> = report.in_use.iter().map(|block| block.len).collect();
            lens.len() == 2
        });
        assert_eq!(free as u64, report.free);
    }
}

/// No crash leaks a block, frees one that a pointer leads to, or changes its contents.
#[test]
fn crashes_leak_nothing_and_lose_nothing() {
    let seeds = match std::env::var("BRAID_HISTORIES") {
        _ if cfg!(miri) => 2,
        Ok(histories) => histories.parse().unwrap(),
        Err(_) => 2000,
    };
    let mut reached = Reached::new();
    for seed in 0..seeds {
        let mut history = History::new(seed);
        for _ in 0..4 {
            history.run(&mut reached);
            history.recover(&mut reached);
        }
    }
    if seeds >= 500 {
        for what in MUST_OCCUR {
            let count = reached.get(what).copied().unwrap_or(0);
            assert!(count > 0, "never reached: {what}");
        }
    }
}
