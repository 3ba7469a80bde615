//! Crashes at every operation, and in random histories, against a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_nvwal::{CommitMode, LogError, Reader, Writer, WriterOptions};
use braid_pmem::{Region, RegionError, SimulatedMemory, Survivors};

use crate::model::{
    Pages, START, create, edit, from_image, images, images_of_reader, log_options, new_memory,
    open, overlaid, page_of, try_open,
};

/// A transaction's number, which is its tag, and the pages after it.
type States = BTreeMap<u64, Pages>;

/// What the histories must reach.
const MUST_OCCUR: [&str; 15] = [
    "a block of a former generation was freed by recovery",
    "a checkpoint did not pass a pinned reader",
    "a generation began",
    "a generation was refused because of a reader",
    "a pointer was removed by recovery",
    "a process was killed",
    "a reader lost its generation",
    "a savepoint was restored",
    "a transaction was rolled back",
    "an unacknowledged transaction survived",
    "an unacknowledged transaction was lost",
    "recovery found transactions after the mark",
    "the region was full",
    "transactions became durable in groups",
    "two crashes without a transaction in between",
];

type Reached = BTreeMap<&'static str, u64>;

fn reach(reached: &mut Reached, what: &'static str, is_reached: bool) {
    assert!(MUST_OCCUR.contains(&what), "{what}");
    *reached.entry(what).or_default() += u64::from(is_reached);
}

/// A database with a log, through crashes.
struct History {
    random: fastrand::Rng,
    memory: SimulatedMemory,
    region: Arc<Region>,
    writer: Writer,
    /// Its pages are always durable, and its writes atomic.
    database: Pages,
    /// The transaction up to which the database has all pages.
    in_database: u64,
    /// All states that recovery may find.
    states: States,
    /// The newest acknowledged transaction.
    acknowledged: u64,
    /// The newest transaction of the log.
    newest: u64,
    /// No number is used twice.
    next: u64,
    /// The pages that the open transaction sees.
    current: Pages,
    savepoint: Option<(braid_nvwal::Savepoint, Pages)>,
    readers: Vec<(Reader, u64, Pages)>,
    modes: Vec<CommitMode>,
    /// Whether transactions may be committed unsynced.
    groups: bool,
}

fn is_power_off(error: &LogError) -> bool {
    use braid_pmem::FenceError::PowerOff;
    matches!(
        error,
        LogError::Fence(PowerOff)
            | LogError::Region(RegionError::Fence {
                source: PowerOff,
                ..
            })
    )
}

impl History {
    fn new(seed: u64, modes: &[CommitMode], groups: bool) -> Self {
        let options = WriterOptions::default()
            .chain_limit(4)
            .mode(modes[0])
            .mark_interval([0, 2000][usize::from(seed % 2 == 1)])
            .gather(seed % 3 == 1);
        let (memory, region) = new_memory();
        // Small enough to be full now and then.
        let log = log_options().max_bytes(8192);
        let writer = Writer::create(Arc::clone(&region), START, &log, &options).unwrap();
        Self {
            random: fastrand::Rng::with_seed(seed),
            memory,
            region,
            writer,
            database: Pages::new(),
            in_database: 0,
            states: States::from([(0, Pages::new())]),
            acknowledged: 0,
            newest: 0,
            next: 1,
            current: Pages::new(),
            savepoint: None,
            readers: Vec::new(),
            modes: modes.to_vec(),
            groups,
        }
    }

    fn append(&mut self) -> Result<(), LogError> {
        let page = self.random.u64(..6);
        let mut image = self.current.get(&page).cloned().unwrap_or(page_of(0));
        edit(&mut image, &mut self.random);
        self.writer.append(page, &image)?;
        self.current.insert(page, image);
        let mut found = page_of(1);
        assert!(self.writer.read(page, &mut found)?);
        assert_eq!(found, self.current[&page], "page {page} of the writer");
        Ok(())
    }

    fn commit(&mut self, reached: &mut Reached) -> Result<(), LogError> {
        let number = self.next;
        self.next += 1;
        self.states.insert(number, self.current.clone());
        self.savepoint = None;
        let is_unsynced = self.groups && self.random.bool();
        let result = if is_unsynced {
            self.writer.commit_unsynced(number)
        } else {
            self.writer.commit(number)
        };
        match result {
            Ok(_) => {
                self.newest = number;
                if !is_unsynced {
                    self.acknowledge(reached);
                }
                Ok(())
            }
            Err(error) => {
                if matches!(error, LogError::Full { .. }) {
                    self.states.remove(&number);
                }
                Err(error)
            }
        }
    }

    fn acknowledge(&mut self, reached: &mut Reached) {
        let numbers = self.states.keys();
        let count = numbers
            .filter(|number| **number > self.acknowledged)
            .count();
        reach(reached, "transactions became durable in groups", count > 2);
        self.acknowledged = self.newest;
    }

    fn roll_back(&mut self, reached: &mut Reached) {
        self.writer.roll_back();
        self.current = self.states[&self.newest].clone();
        self.savepoint = None;
        reach(reached, "a transaction was rolled back", true);
    }

    /// Writes the pages of the log into the database, and begins a generation if readers allow it.
    fn checkpoint(&mut self, reached: &mut Reached) -> Result<(), LogError> {
        let (mark, pages) = images(&mut self.writer)?;
        self.acknowledge(reached);
        let pinned = self
            .readers
            .iter()
            .filter(|(reader, ..)| reader.is_pinned());
        let oldest = pinned.map(|(_, number, _)| *number).min();
        reach(
            reached,
            "a checkpoint did not pass a pinned reader",
            oldest.is_some_and(|oldest| oldest < self.newest),
        );
        self.in_database = oldest.unwrap_or(self.newest).min(self.newest);
        self.database = overlaid(&self.database, &pages);
        assert_eq!(self.database, self.states[&self.in_database]);
        if self.random.u8(..4) == 0 {
            return Ok(());
        }
        match self.writer.new_generation(mark) {
            Err(LogError::ReadersActive { processes }) => {
                assert!(oldest.is_some());
                assert_eq!(processes[0], std::process::id());
                reach(
                    reached,
                    "a generation was refused because of a reader",
                    true,
                );
                Ok(())
            }
            Err(LogError::NotCheckpointed { .. }) => {
                assert!(oldest.is_some());
                Ok(())
            }
            Ok(()) => {
                assert_eq!(oldest, None);
                reach(reached, "a generation began", true);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn reader(&mut self, reached: &mut Reached) -> Result<(), LogError> {
        if self.readers.len() > 2 || self.random.bool() && !self.readers.is_empty() {
            let index = self.random.usize(..self.readers.len());
            let (mut reader, number, database) = self.readers.swap_remove(index);
            match images_of_reader(&reader) {
                Ok(pages) => {
                    let seen = overlaid(&database, &pages);
                    assert_eq!(seen, self.states[&number], "of a reader at {number}");
                    if reader.is_pinned() {
                        // The database as it is today.
                        let seen = overlaid(&self.database, &pages);
                        assert_eq!(seen, self.states[&number], "of a pinned reader");
                    }
                }
                Err(LogError::GenerationChanged) => {
                    assert!(!reader.is_pinned());
                    reach(reached, "a reader lost its generation", true);
                }
                Err(error) => panic!("{error}"),
            }
            reader.unpin();
            return Ok(());
        }
        let mut reader = Reader::open(Arc::clone(self.region.mapping()), START)?;
        if self.random.bool() {
            reader.pin()?;
        }
        let number = match reader.tag() {
            0 => self.in_database,
            tag => tag,
        };
        assert_eq!(number, self.newest, "a reader begins at the newest mark");
        self.readers.push((reader, number, self.database.clone()));
        Ok(())
    }

    fn step(&mut self, reached: &mut Reached) -> Result<(), LogError> {
        match self.random.u8(..60) {
            40..=58 | 0..=17 => self.append(),
            18..=27 => self.commit(reached),
            28 => {
                self.roll_back(reached);
                Ok(())
            }
            29 => {
                self.savepoint = Some((self.writer.savepoint(), self.current.clone()));
                Ok(())
            }
            30 => {
                if let Some((savepoint, pages)) = &self.savepoint {
                    self.writer.roll_back_to(savepoint)?;
                    self.current.clone_from(pages);
                    reach(reached, "a savepoint was restored", true);
                }
                Ok(())
            }
            31 => {
                self.writer.sync()?;
                self.acknowledge(reached);
                Ok(())
            }
            32..=33 => {
                let mode = self.random.usize(..self.modes.len());
                self.writer.set_mode(self.modes[mode]);
                Ok(())
            }
            34..=38 => self.reader(reached),
            _ => {
                self.roll_back(reached);
                self.checkpoint(reached)
            }
        }
    }

    /// Runs until the power fails.
    fn run(&mut self, reached: &mut Reached) {
        let operations = match self.random.u8(..8) {
            0 => self.random.u64(1..2000),
            _ => self.random.u64(1..400),
        };
        self.memory
            .power_off_at(self.memory.operations() + operations);
        while !self.memory.is_off() {
            match self.step(reached) {
                Ok(()) => {}
                Err(LogError::Full { .. }) => {
                    reach(reached, "the region was full", true);
                    self.roll_back(reached);
                    self.readers.clear();
                    match self.checkpoint(reached) {
                        Ok(()) => {}
                        Err(error) => assert!(is_power_off(&error), "{error}"),
                    }
                }
                Err(error) => {
                    assert!(is_power_off(&error), "{error}");
                    return;
                }
            }
        }
    }

    /// Opens what a crash leaves, and checks it.
    fn recover(&mut self, reached: &mut Reached) {
        let is_kill = self.random.u8(..3) == 0;
        let memory = if is_kill {
            reach(reached, "a process was killed", true);
            self.memory.kill()
        } else {
            from_image(&self.memory.crash(match self.random.u8(..4) {
                0 => Survivors::Nothing,
                1 => Survivors::Everything,
                _ => Survivors::Random(self.random.u64(..)),
            }))
        };
        self.readers.clear();
        let mode = self.modes[self.random.usize(..self.modes.len())];
        let options = WriterOptions::default()
            .chain_limit(4)
            .mode(mode)
            .cached_pages(self.random.usize(..6));
        let (region, mut writer, report) = open(&memory, &options);
        // The readers have ended with the process.
        writer.release_readers(|_| true);
        (self.memory, self.region, self.writer) = (memory, region, writer);
        let found = match report.tag {
            0 => self.in_database,
            tag => tag,
        };
        reach(
            reached,
            "recovery found transactions after the mark",
            report.bytes_after_mark > 0,
        );
        reach(
            reached,
            "a block of a former generation was freed by recovery",
            report.freed_blocks > 0,
        );
        reach(
            reached,
            "a pointer was removed by recovery",
            report.removed_pointer,
        );
        reach(
            reached,
            "an unacknowledged transaction survived",
            found > self.acknowledged,
        );
        let last = *self.states.keys().next_back().unwrap();
        reach(
            reached,
            "an unacknowledged transaction was lost",
            found < last,
        );
        reach(
            reached,
            "two crashes without a transaction in between",
            self.acknowledged == last && self.newest == last,
        );
        assert!(
            found >= self.acknowledged,
            "transaction {} was acknowledged, recovery found {found}",
            self.acknowledged
        );
        let expected = self.states.get(&found);
        let expected = expected.unwrap_or_else(|| panic!("transaction {found} was lost before"));
        let (_, pages) = images(&mut self.writer).unwrap();
        let seen = overlaid(&self.database, &pages);
        assert_eq!(&seen, expected, "transaction {found} after recovery");
        self.current = seen;
        (self.acknowledged, self.newest) = (found, found);
        self.states.retain(|number, _| *number <= found);
        self.savepoint = None;
    }
}

/// Runs seeds; the seed of a failure is printed.
fn run_histories(name: &str, modes: &[CommitMode], groups: bool, reached: &mut Reached) -> u64 {
    let seeds = match std::env::var("BRAID_HISTORIES") {
        Ok(histories) => histories.parse().unwrap(),
        Err(_) => 300,
    };
    let only = std::env::var("BRAID_SEED").ok();
    let only: Option<u64> = only.map(|seed| seed.parse().unwrap());
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let shown = ShowSeed(name, seed);
        let mut history = History::new(seed, modes, groups);
        for _ in 0..5 {
            history.run(reached);
            history.recover(reached);
        }
        std::mem::forget(shown);
    }
    seeds
}

/// Prints the seed of a history that panics.
struct ShowSeed<'a>(&'a str, u64);

impl Drop for ShowSeed<'_> {
    fn drop(&mut self) {
        eprintln!(
            "again: BRAID_SEED={} cargo test -p braid-nvwal {}",
            self.1, self.0
        );
    }
}

#[test]
fn eager_commits_survive_crashes() {
    let modes = [CommitMode::Eager];
    run_histories("eager_commits", &modes, false, &mut Reached::new());
}

#[test]
fn lazy_commits_survive_crashes() {
    let modes = [CommitMode::Lazy];
    run_histories("lazy_commits", &modes, false, &mut Reached::new());
}

#[test]
fn checksum_commits_survive_crashes() {
    let modes = [CommitMode::Checksum];
    run_histories("checksum_commits", &modes, false, &mut Reached::new());
}

#[test]
fn commits_of_all_modes_survive_crashes() {
    let modes = [CommitMode::Eager, CommitMode::Lazy, CommitMode::Checksum];
    let mut reached = Reached::new();
    let seeds = run_histories("commits_of_all_modes", &modes, true, &mut reached);
    if seeds >= 300 && std::env::var("BRAID_SEED").is_err() {
        for what in MUST_OCCUR {
            let count = reached.get(what).copied().unwrap_or(0);
            assert!(count > 0, "never reached: {what}");
        }
    }
}

/// Three transactions, a generation, two more: the power fails at each operation in turn.
#[test]
fn the_power_can_fail_at_any_operation() {
    for mode in [CommitMode::Eager, CommitMode::Lazy, CommitMode::Checksum] {
        for at in 0.. {
            let options = WriterOptions::default().mode(mode);
            let (memory, _region, mut writer) = create(&options);
            let begin = memory.operations();
            memory.power_off_at(begin + at);
            let mut acknowledged = 0;
            let mut database = 0;
            let mut run = || -> Result<(), LogError> {
                for number in 1..=5_u8 {
                    if number == 4 {
                        let (mark, _) = images(&mut writer)?;
                        database = 3;
                        writer.new_generation(mark)?;
                    }
                    for page in 0..3 {
                        writer.append(page, &page_of(number))?;
                    }
                    writer.commit(u64::from(number))?;
                    acknowledged = number;
                }
                Ok(())
            };
            let is_done = run().is_ok();
            for survivors in [
                Survivors::Nothing,
                Survivors::Everything,
                Survivors::Random(at),
                Survivors::Random(at + 1000),
                Survivors::Random(at + 2000),
            ] {
                let after = from_image(&memory.crash(survivors));
                check(&after, &options, acknowledged, database, at);
            }
            // A crash after the process was killed, and after the next one has opened the log.
            let after = memory.kill();
            check(&after, &options, acknowledged, database, at);
            let after = from_image(&after.crash(Survivors::Nothing));
            check(&after, &options, acknowledged, database, at);
            if is_done && !memory.is_off() {
                assert_eq!(acknowledged, 5);
                break;
            }
        }
    }
}

/// Number of pages that fit into the log until it is full.
fn room(writer: &mut Writer) -> u64 {
    for page in 0.. {
        if let Err(error) = writer.append(page, &page_of(1)) {
            assert!(matches!(error, LogError::Full { .. }), "{error}");
            writer.roll_back();
            return page;
        }
    }
    unreachable!("the region is finite")
}

/// The power fails at each operation of a change of generations; the next ones have all blocks.
#[test]
fn a_crash_between_two_generations_leaks_nothing() {
    let options = WriterOptions::default();
    let (_memory, _region, mut writer) = create(&options);
    let expected = room(&mut writer);
    for at in 0.. {
        let (memory, _region, mut writer) = create(&options);
        for page in 0..20 {
            writer.append(page, &page_of(1)).unwrap();
        }
        let mark = writer.commit(1).unwrap();
        memory.power_off_at(memory.operations() + at);
        let is_done = writer.new_generation(mark).is_ok();
        for survivors in [Survivors::Nothing, Survivors::Everything] {
            let memory = from_image(&memory.crash(survivors));
            let (_region, mut writer, _) = open(&memory, &options);
            let mark = writer.mark();
            writer.new_generation(mark).unwrap();
            assert_eq!(room(&mut writer), expected, "operation {at}, {survivors:?}");
        }
        if is_done && !memory.is_off() {
            break;
        }
    }
}

fn check(
    memory: &SimulatedMemory,
    options: &WriterOptions,
    acknowledged: u8,
    database: u8,
    at: u64,
) {
    let (_, mut writer, _) = try_open(memory, options)
        .unwrap_or_else(|error| panic!("{options:?} at operation {at}: {error}"));
    let (_, pages) = images(&mut writer).unwrap();
    let found = pages.values().next().map_or(database, |page| page[0]);
    assert!(
        found == acknowledged || found == acknowledged + 1,
        "{options:?} at operation {at}: transaction {found} instead of {acknowledged}"
    );
    assert!(pages.is_empty() || pages.len() == 3);
    assert!(pages.values().all(|page| *page == page_of(found)));
}

/// The transaction after a lost one does not return when the lost one is written again.
#[test]
fn a_transaction_after_a_lost_one_never_returns() {
    let options = WriterOptions::default().mode(CommitMode::Checksum);
    let (memory, region, mut writer) = create(&options);
    writer.append(1, &page_of(1)).unwrap();
    writer.commit(1).unwrap();
    let len = region.len();
    writer.append(2, &page_of(2)).unwrap();
    writer.commit_unsynced(2).unwrap();
    writer.append(3, &page_of(3)).unwrap();
    writer.commit_unsynced(3).unwrap();
    // The power fails; of the second transaction, a word is lost.
    let mut image = memory.crash(Survivors::Everything);
    let bytes = image.bytes();
    let lost = bytes.windows(64).position(|bytes| bytes == [2; 64]);
    let lost = lost.expect("the page") as u64;
    assert!(lost < len);
    image.overwrite(lost.next_multiple_of(8), &[0; 8]);
    let memory = from_image(&image);
    let (_region, mut writer, report) = open(&memory, &options);
    assert_eq!(report.tag, 1);
    // The program repeats the transaction that it lost.
    writer.append(2, &page_of(2)).unwrap();
    writer.commit(2).unwrap();
    let memory = from_image(&memory.crash(Survivors::Everything));
    let (_, mut writer, report) = open(&memory, &options);
    assert_eq!(report.tag, 2);
    let (_, pages) = images(&mut writer).unwrap();
    assert_eq!(pages, [(1, page_of(1)), (2, page_of(2))].into());
}
