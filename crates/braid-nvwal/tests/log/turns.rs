//! Members of several processes, simulated: each has a mapping of the same memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_nvwal::{Change, CommitMode, LogError, SharedWriter, WriterOptions};
use braid_pmem::{
    FenceError, Mapping, Region, RegionError, RegionOptions, SimulatedMemory, Survivors,
};

use crate::model::{START, create, edit, from_image, page_of};

/// A process with what it was told of the log.
pub(crate) struct Member {
    pub(crate) log: SharedWriter,
    /// Tag and position of the newest frame of each page, and all frames in order.
    pub(crate) frames: BTreeMap<u64, (u32, u64)>,
    pub(crate) order: Vec<u32>,
}

impl Member {
    fn join(memory: &SimulatedMemory, options: &WriterOptions) -> Result<Self, LogError> {
        let shared = RegionOptions::default().shared(true);
        let region = Region::open_in(Mapping::simulated(memory), &shared)?;
        Ok(Self::new(SharedWriter::join(
            Arc::new(region),
            START,
            options,
        )?))
    }

    pub(crate) fn new(log: SharedWriter) -> Self {
        Self {
            log,
            frames: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    pub(crate) fn with<T>(
        &mut self,
        call: impl FnOnce(&mut SharedWriter, &mut dyn FnMut(Change)) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let (frames, order) = (&mut self.frames, &mut self.order);
        call(&mut self.log, &mut |change| match change {
            Change::Generation(_) => {
                frames.clear();
                order.clear();
            }
            Change::Frame {
                page,
                tag,
                position,
            } => {
                frames.insert(page, (tag, position));
                order.push(tag);
            }
        })
    }

    pub(crate) fn take_turn(&mut self) -> Result<bool, LogError> {
        self.with(|log, changed| log.take_turn(changed))
    }

    pub(crate) fn refresh(&mut self) -> Result<(), LogError> {
        self.with(|log, changed| log.refresh(changed).map(|_| ()))
    }

    fn sync(&mut self) -> Result<(), LogError> {
        self.with(|log, changed| log.sync(changed).map(|_| ()))
    }

    /// Appends images with a tag and commits, unsynced.
    fn commit(&mut self, number: u32, images: &[(u64, Vec<u8>)]) -> Result<(), LogError> {
        let mut appended = Vec::new();
        for (page, image) in images {
            appended.push((*page, self.log.append(*page, image, number)?));
        }
        self.log.commit_unsynced(u64::from(number))?;
        for (page, position) in appended {
            self.frames.insert(page, (number, position));
            self.order.push(number);
        }
        Ok(())
    }

    pub(crate) fn pages(&self, page_size: usize) -> Result<BTreeMap<u64, Vec<u8>>, LogError> {
        let mut pages = BTreeMap::new();
        for (page, (_, position)) in &self.frames {
            let mut image = vec![0; page_size];
            self.log.read_frame(*position, &mut image)?;
            pages.insert(*page, image);
        }
        Ok(pages)
    }
}

fn two_members(options: &WriterOptions) -> (SimulatedMemory, Member, Member) {
    let (memory, region, writer) = create(options);
    drop(writer);
    drop(region);
    let first = Member::join(&memory, options).unwrap();
    let second = Member::join(&memory, options).unwrap();
    (memory, first, second)
}

#[test]
fn gathered_records_reach_other_processes_when_they_commit() {
    for mode in [CommitMode::Checksum, CommitMode::Lazy, CommitMode::Eager] {
        let options = WriterOptions::default()
            .mode(mode)
            .gather(true)
            .cached_pages(0);
        let (_, mut first, mut second) = two_members(&options);
        first.take_turn().unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut image = page_of(7);
        for number in 1..40 {
            // One that is rolled back, and then more than are held at once in some.
            let cut = first.log.append(9, &page_of(200), number).unwrap();
            let mut found = page_of(0);
            first.log.read_frame(cut, &mut found).unwrap();
            assert_eq!(found, page_of(200));
            first.log.roll_back();
            assert!(first.log.read_frame(cut, &mut found).is_err());
            let count = if number % 13 == 0 { 60 } else { 3 };
            let mut images = Vec::new();
            for page in 0..count {
                edit(&mut image, &mut random);
                images.push((page % 5, image.clone()));
            }
            second.refresh().unwrap();
            let before = second.frames.clone();
            let mut appended = Vec::new();
            for (page, image) in &images {
                let at = first.log.append(*page, image, number).unwrap();
                appended.push((at, image));
                second.refresh().unwrap();
                assert_eq!(second.frames, before);
            }
            for (at, image) in &appended {
                first.log.read_frame(*at, &mut found).unwrap();
                assert_eq!(&&found, image);
            }
            first.log.commit_unsynced(u64::from(number)).unwrap();
            second.refresh().unwrap();
            for (at, image) in &appended {
                second.log.read_frame(*at, &mut found).unwrap();
                assert_eq!(&&found, image);
            }
            if number % 5 == 0 {
                first.log.new_generation().unwrap();
            }
        }
        assert!(first.log.stats().commits > 30);
    }
}

#[test]
fn a_turn_passes_on_with_everything_committed() {
    let (_, mut first, mut second) = two_members(&WriterOptions::default());
    let is_lost = |result| matches!(result, Err(LogError::TurnLost { .. }));
    assert!(is_lost(first.commit(1, &[(7, page_of(1))])));
    assert!(first.take_turn().unwrap());
    assert!(!first.take_turn().unwrap(), "it has the turn");
    first.commit(1, &[(7, page_of(1))]).unwrap();
    first.log.append(7, &page_of(9), 2).unwrap();
    assert_eq!(first.log.open_frames(), 1);

    assert!(second.take_turn().unwrap());
    assert_eq!(second.order, [1]);
    second
        .commit(3, &[(7, page_of(3)), (8, page_of(3))])
        .unwrap();
    // The same image again is a frame of its own.
    second.commit(4, &[(8, page_of(3))]).unwrap();

    assert!(is_lost(first.log.append(7, &page_of(5), 5).map(|_| ())));
    assert!(is_lost(first.log.commit_unsynced(5).map(|_| ())));
    first.refresh().unwrap();
    assert_eq!(first.log.open_frames(), 0);
    assert_eq!(first.order, [1, 3, 3, 4]);
    assert_eq!(first.pages(96).unwrap(), second.pages(96).unwrap());
    assert!(first.take_turn().unwrap());
    assert_eq!(first.order, [1, 3, 3, 4], "nothing twice");
    first.log.new_generation().unwrap();
    assert!(is_lost(second.log.new_generation()));
    second.refresh().unwrap();
    assert_eq!(second.order, []);
    assert!(second.take_turn().unwrap());
    second.commit(6, &[(1, page_of(6))]).unwrap();
}

#[test]
fn a_full_log_always_begins_a_generation() {
    // Transactions of different lengths, so that space ends at every kind of record.
    let (mut at_frame, mut at_commit) = (0, 0);
    for (frames, bytes) in (1..=3_u8).flat_map(|frames| (1..=12).map(move |n| (frames, n * 8))) {
        let options = WriterOptions::default().chain_limit(0);
        let (_, mut first, mut second) = two_members(&options);
        for generation in 1..=3 {
            let member = if generation % 2 == 0 {
                &mut first
            } else {
                &mut second
            };
            member.take_turn().unwrap();
            let transaction = |member: &mut Member, number: u32| {
                for page in 0..frames {
                    // Zeros take no space.
                    let mut image = page_of(0);
                    image[..bytes].fill(page + 1);
                    if let Err(error) = member.log.append(u64::from(page), &image, number) {
                        return Err((error, false));
                    }
                }
                let committed = member.log.commit_unsynced(u64::from(number));
                committed.map_err(|error| (error, true))
            };
            let (error, is_commit) = (1..)
                .find_map(|number| transaction(member, number).err())
                .unwrap();
            assert!(matches!(error, LogError::Full { .. }), "{error}");
            *(if is_commit {
                &mut at_commit
            } else {
                &mut at_frame
            }) += 1;
            // The transaction is open until it is removed.
            if member.log.open_frames() > 0 {
                let open = member.log.new_generation().unwrap_err();
                assert!(matches!(open, LogError::OpenTransaction { .. }), "{open}");
            }
            member.log.roll_back();
            member.log.new_generation().unwrap();
            transaction(member, 1).unwrap();
        }
    }
    assert!(at_frame > 0 && at_commit > 0, "{at_frame}, {at_commit}");
}

#[test]
fn a_process_without_the_turn_makes_transactions_of_others_durable() {
    let (memory, mut first, mut second) = two_members(&WriterOptions::default());
    first.take_turn().unwrap();
    first.commit(1, &[(7, page_of(1))]).unwrap();
    second.sync().unwrap();
    first.commit(2, &[(7, page_of(2))]).unwrap();
    let memory = from_image(&memory.crash(Survivors::Nothing));
    let mut third = Member::join(&memory, &WriterOptions::default()).unwrap();
    third.take_turn().unwrap();
    assert_eq!(third.order, [1]);
}

#[test]
fn a_pending_sync_makes_durable_what_was_committed_before() {
    for mode in [CommitMode::Lazy, CommitMode::Checksum] {
        let options = WriterOptions::default().mode(mode);
        let (memory, mut first, mut second) = two_members(&options);
        first.take_turn().unwrap();
        for number in 1..=3 {
            first.commit(number, &[(7, page_of(number as u8))]).unwrap();
            let pending = first.with(|log, changed| log.begin_sync(changed)).unwrap();
            // Another transaction while the device works, and a rolled-back one.
            first.log.append(8, &page_of(9), 9).unwrap();
            first.log.roll_back();
            pending.wait().unwrap();
            first.log.end_sync(&pending);
            assert_eq!(pending.mark(), first.log.mark());
        }
        // So does a process without the turn.
        first.commit(4, &[(7, page_of(4))]).unwrap();
        let pending = second.with(|log, changed| log.begin_sync(changed)).unwrap();
        pending.wait().unwrap();
        second.log.end_sync(&pending);
        first.commit(5, &[(7, page_of(5))]).unwrap();
        let memory = from_image(&memory.crash(Survivors::Nothing));
        let mut third = Member::join(&memory, &options).unwrap();
        third.take_turn().unwrap();
        assert_eq!(third.order, [1, 2, 3, 4], "{mode}");
    }
}

fn is_power_off(error: &LogError) -> bool {
    use braid_pmem::HeapError;
    matches!(
        error,
        LogError::Fence(FenceError::PowerOff)
            | LogError::Heap(HeapError::Fence(FenceError::PowerOff))
            | LogError::Region(RegionError::Fence {
                source: FenceError::PowerOff,
                ..
            })
    )
}

/// Lets two members take turns. Returns the acknowledged number, and adds the state after each
/// transaction.
fn alternate(
    memory: &SimulatedMemory,
    options: &WriterOptions,
    states: &mut BTreeMap<u32, BTreeMap<u64, Vec<u8>>>,
    acknowledged: &mut u32,
) -> Result<(), LogError> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut members = [
        Member::join(memory, options)?,
        Member::join(memory, options)?,
    ];
    let mut current: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for number in 1..=14 {
        let member = &mut members[(number / 2 % 2) as usize];
        member.take_turn()?;
        if number == 9 {
            member.log.new_generation()?;
            (member.frames, member.order) = Default::default();
            current.clear();
        }
        let mut images = Vec::new();
        for page in [number % 3, 3 + number % 2] {
            let image = current.entry(u64::from(page)).or_insert(page_of(0));
            edit(image, &mut random);
            images.push((u64::from(page), image.clone()));
        }
        states.insert(number, current.clone());
        member.commit(number, &images)?;
        // Sometimes the other process does it, or nobody.
        match number % 4 {
            0 => continue,
            1 => members[(1 - number / 2 % 2) as usize].sync()?,
            _ => member.sync()?,
        }
        *acknowledged = number;
    }
    Ok(())
}

#[test]
fn the_power_can_fail_at_any_operation_of_two_processes() {
    for mode in [CommitMode::Lazy, CommitMode::Checksum, CommitMode::Eager] {
        let options = WriterOptions::default().chain_limit(3).mode(mode);
        for operation in 0.. {
            let (memory, region, writer) = create(&options);
            drop(writer);
            drop(region);
            memory.power_off_at(memory.operations() + operation);
            let (mut states, mut acknowledged) = (BTreeMap::new(), 0);
            let result = alternate(&memory, &options, &mut states, &mut acknowledged);
            let is_over = result.is_ok();
            if let Err(error) = result {
                assert!(is_power_off(&error), "{error}");
            }
            for survivors in [Survivors::Nothing, Survivors::Random(operation)] {
                let memory = from_image(&memory.crash(survivors));
                let mut member = Member::join(&memory, &options).unwrap();
                member.take_turn().unwrap();
                let found = member.order.last().copied().unwrap_or(0);
                // The generation that begins before the ninth transaction.
                let is_emptied = acknowledged == 7 && states.len() >= 8 && found == 0;
                assert!(
                    found >= acknowledged || is_emptied,
                    "{found} < {acknowledged}"
                );
                let expected = states.get(&found).cloned().unwrap_or_default();
                assert_eq!(member.pages(96).unwrap(), expected, "after {found}");
                member.commit(99, &[(50, page_of(9))]).unwrap();
            }
            if is_over {
                break;
            }
        }
    }
}
