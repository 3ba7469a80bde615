use std::sync::Arc;

use braid_nvwal::{CommitMode, LogError, LogOptions, Writer, WriterOptions};
use braid_pmem::{Mapping, Region, RegionOptions, SimulatedMemory, SimulatedOptions, Survivors};
use proptest::prelude::*;

use crate::model::{
    PAGE, START, create, from_image, images, log_options, new_memory, open, page_of, reader,
    try_open,
};

const MODES: [CommitMode; 3] = [CommitMode::Eager, CommitMode::Lazy, CommitMode::Checksum];

#[test]
fn pages_are_read_as_they_were_appended() {
    let (_, _, mut writer) = create(&WriterOptions::default());
    let mut image = page_of(0);
    assert!(!writer.read(3, &mut image).unwrap());
    let mut frames = Vec::new();
    for round in 0..40_u8 {
        image[usize::from(round)] = round + 1;
        frames.push(writer.append(3, &image).unwrap());
        let mut found = page_of(9);
        assert!(writer.read(3, &mut found).unwrap());
        assert_eq!(found, image);
        if round % 3 == 0 {
            writer.commit(u64::from(round)).unwrap();
        }
    }
    // Every frame can still be read, not only the newest.
    for (round, position) in frames.iter().enumerate() {
        let mut found = page_of(9);
        writer.read_frame(*position, &mut found).unwrap();
        assert!(found[..=round].iter().all(|byte| *byte != 0));
        assert!(found[round + 1..].iter().all(|byte| *byte == 0));
    }
    // Forty frames have a whole page, then at most 16 differences.
    assert_eq!(writer.stats().whole_pages, 3);
    assert_eq!(writer.stats().differences, 37);
    let error = writer.read_frame(frames[1] + 8, &mut image).unwrap_err();
    assert!(matches!(error, LogError::NoFrame { .. }), "{error}");
    let error = writer.read_frame(1 << 40, &mut image).unwrap_err();
    assert!(matches!(error, LogError::NoFrame { .. }), "{error}");
}

#[test]
fn differences_are_short() {
    let (_, _, mut writer) = create(&WriterOptions::default());
    let mut image: Vec<u8> = (1..=PAGE as u8).collect();
    writer.append(1, &image).unwrap();
    let whole = writer.stats().bytes;
    assert_eq!(whole, (32 + 4 + PAGE as u64).next_multiple_of(8));
    image[10] = 0;
    image[50] = 0;
    writer.append(1, &image).unwrap();
    assert_eq!(writer.stats().bytes - whole, 32 + 16);
    // The same image needs no frame.
    let position = writer.append(1, &image).unwrap();
    assert_eq!(writer.append(1, &image).unwrap(), position);
    assert_eq!(writer.open_frames(), 2);
    // Without differences, every frame is whole.
    let options = WriterOptions::default().chain_limit(0);
    let (_, _, mut writer) = create(&options);
    writer.append(1, &image).unwrap();
    image[10] = 9;
    writer.append(1, &image).unwrap();
    assert_eq!(writer.stats().differences, 0);
}

#[test]
fn whole_pages_have_every_byte() {
    let options = WriterOptions::default().whole_pages(true);
    let (memory, _, mut writer) = create(&options);
    let frame = (32 + 4 + PAGE as u64).next_multiple_of(8);
    let mut image = page_of(0);
    for (round, page) in [1, 1, 2, 1].into_iter().enumerate() {
        image[PAGE / 2] = round as u8;
        writer.append(page, &image).unwrap();
        writer.commit(7).unwrap();
        let commit = 32;
        assert_eq!(writer.stats().bytes, (round as u64 + 1) * (frame + commit));
    }
    // Even an image that the log has.
    writer.append(1, &image).unwrap();
    assert_eq!(writer.stats().whole_pages, 5);
    assert_eq!(writer.stats().differences, 0);
    drop(writer);
    let (_, mut writer, recovery) = open(&memory, &WriterOptions::default());
    assert_eq!(recovery.transactions, 4);
    let (_, found) = images(&mut writer).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found[&1], image);
}

#[test]
fn a_rolled_back_transaction_leaves_nothing() {
    let (memory, _, mut writer) = create(&WriterOptions::default());
    writer.append(1, &page_of(1)).unwrap();
    writer.commit(1).unwrap();
    writer.append(1, &page_of(2)).unwrap();
    let savepoint = writer.savepoint();
    writer.append(1, &page_of(3)).unwrap();
    writer.append(2, &page_of(3)).unwrap();
    let later = writer.savepoint();
    writer.roll_back_to(&savepoint).unwrap();
    let mut image = page_of(0);
    assert!(writer.read(1, &mut image).unwrap());
    assert_eq!(image, page_of(2));
    assert!(!writer.read(2, &mut image).unwrap());
    // What came after a savepoint is gone, whatever takes its place.
    let error = writer.roll_back_to(&later).unwrap_err();
    assert!(matches!(error, LogError::OtherTransaction), "{error}");
    writer.append(5, &page_of(5)).unwrap();
    writer.append(6, &page_of(6)).unwrap();
    let error = writer.roll_back_to(&later).unwrap_err();
    assert!(matches!(error, LogError::OtherTransaction), "{error}");
    writer.roll_back();
    assert!(writer.read(1, &mut image).unwrap());
    assert_eq!(image, page_of(1));
    writer.append(2, &page_of(7)).unwrap();
    writer.commit(2).unwrap();
    assert!(writer.roll_back_to(&savepoint).is_err());

    let memory = from_image(&memory.crash(Survivors::Nothing));
    let (_, mut writer, report) = open(&memory, &WriterOptions::default());
    assert_eq!((report.transactions, report.tag), (2, 2));
    let (_, pages) = images(&mut writer).unwrap();
    assert_eq!(pages, [(1, page_of(1)), (2, page_of(7))].into());
}

#[test]
fn a_full_region_fails_one_transaction_and_works_after_a_checkpoint() {
    for mode in MODES {
        let (memory, _, mut writer) = create(&WriterOptions::default().mode(mode).chain_limit(0));
        let mut commits = 0;
        let mut bytes = 0_u8;
        for generation in 0..3 {
            let error = loop {
                bytes = bytes.wrapping_add(1);
                let result = writer.append(commits % 5, &page_of(bytes));
                match result.and_then(|_| writer.commit(commits)) {
                    Ok(_) => commits += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, LogError::Full { .. }), "{error}");
            writer.roll_back();
            // It can still be read, and small transactions may still find space.
            let mut image = page_of(0);
            assert!(writer.read(0, &mut image).unwrap());
            let (mark, pages) = images(&mut writer).unwrap();
            assert_eq!(pages.len(), 5);
            writer.new_generation(mark).unwrap();
            assert!(!writer.read(0, &mut image).unwrap());
            assert_eq!(writer.mark().generation, generation + 2);
        }
        assert!(commits > 100, "{commits}");
        let memory = from_image(&memory.crash(Survivors::Nothing));
        let (_, _, report) = open(&memory, &WriterOptions::default());
        assert_eq!((report.transactions, report.freed_blocks), (0, 0));
    }
}

#[test]
fn a_generation_ends_only_after_its_checkpoint() {
    let (_, _, mut writer) = create(&WriterOptions::default());
    writer.append(1, &page_of(1)).unwrap();
    let error = writer.new_generation(writer.mark()).unwrap_err();
    assert!(
        matches!(error, LogError::OpenTransaction { frames: 1, .. }),
        "{error}"
    );
    writer.commit(1).unwrap();
    let (mark, _) = images(&mut writer).unwrap();
    writer.append(1, &page_of(2)).unwrap();
    writer.commit(2).unwrap();
    let error = writer.new_generation(mark).unwrap_err();
    assert!(matches!(error, LogError::NotCheckpointed { .. }), "{error}");
    assert!(writer.read(1, &mut page_of(0)).unwrap());
}

#[test]
fn fences_of_a_commit_depend_on_the_mode() {
    for (mode, expected) in [
        (CommitMode::Eager, 5),
        (CommitMode::Lazy, 2),
        (CommitMode::Checksum, 1),
    ] {
        let (_, region, mut writer) = create(&WriterOptions::default().mode(mode));
        writer.append(1, &page_of(9)).unwrap();
        writer.append(2, &page_of(9)).unwrap();
        writer.append(3, &page_of(9)).unwrap();
        writer.commit(1).unwrap();
        writer.roll_back();
        let mut fences = Vec::new();
        for byte in 0..4 {
            let before = region.mapping().stats().fences;
            let blocks = writer.stats().blocks;
            for page in 1..4 {
                let mut image = page_of(9);
                image[20] = byte;
                writer.append(page, &image).unwrap();
            }
            writer.commit(1).unwrap();
            if writer.stats().blocks == blocks {
                fences.push(region.mapping().stats().fences - before);
            }
        }
        assert_eq!(fences.iter().min(), Some(&expected), "{mode}");
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let (memory, region) = new_memory();
    let create = |options: &LogOptions, start| {
        let options = *options;
        let error = Writer::create(
            Arc::clone(&region),
            start,
            &options,
            &WriterOptions::default(),
        );
        error.unwrap_err()
    };
    for options in [
        log_options().page_size(0),
        log_options().page_size((1 << 24) + 1),
        log_options().block_size(64),
        log_options().block_size(1000),
        log_options().max_bytes(1 << 47),
    ] {
        let error = create(&options, START);
        assert!(matches!(error, LogError::InvalidOptions(_)), "{error}");
    }
    let error = create(&log_options(), START + 8);
    assert!(matches!(error, LogError::InvalidOptions(_)), "{error}");
    let error = create(&log_options().max_bytes(100), START);
    assert!(matches!(error, LogError::Heap(_)), "{error}");
    drop(region);
    let error = try_open(&memory, &WriterOptions::default()).unwrap_err();
    assert!(matches!(error, LogError::NotALog { .. }), "{error}");

    let (_, region, mut writer) = crate::model::create(&WriterOptions::default());
    let error = writer.append(1, &[0; PAGE + 1]).unwrap_err();
    let expected = "pages of this log have 96 bytes, not 97";
    assert_eq!(error.to_string(), expected);
    assert!(writer.read(1, &mut []).is_err());
    let error = Writer::create(region, START, &log_options(), &WriterOptions::default());
    let error = error.unwrap_err();
    assert!(matches!(error, LogError::AlreadyExists { .. }), "{error}");
    assert_eq!("checksum".parse(), Ok(CommitMode::Checksum));
    assert!("fast".parse::<CommitMode>().is_err());
}

#[test]
fn pages_of_any_size_are_logged() {
    for size in [1_usize, 7, 512, 65536, 65537, 200_000] {
        let memory = SimulatedMemory::new(
            Region::MIN_LEN,
            SimulatedOptions::default().capacity(8 << 20),
        );
        let region = Region::create_in(Mapping::simulated(&memory), &RegionOptions::default());
        let log = LogOptions::default()
            .page_size(u32::try_from(size).unwrap())
            .block_size(8192)
            .max_bytes(4 << 20);
        let mut writer = Writer::create(
            Arc::new(region.unwrap()),
            START,
            &log,
            &WriterOptions::default(),
        )
        .unwrap();
        let mut random = fastrand::Rng::with_seed(size as u64);
        let mut image = vec![0; size];
        for round in 0..5 {
            random.fill(&mut image[round * size / 8..]);
            writer.append(u64::MAX, &image).unwrap();
            writer.commit(round as u64).unwrap();
        }
        let reader = reader(&memory);
        let mut found = vec![0; size];
        assert!(reader.read(u64::MAX, &mut found).unwrap());
        assert_eq!(found, image);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever a writer appends, it and a reader read the newest images.
    #[test]
    fn a_log_is_a_map_of_pages(
        seed: u64,
        mode in prop::sample::select(MODES.to_vec()),
        chain_limit in 0_u8..20,
    ) {
        let options = WriterOptions::default().mode(mode).chain_limit(chain_limit);
        let (memory, _, mut writer) = create(&options);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pages = crate::model::Pages::new();
        for number in 0..20 {
            for _ in 0..random.u8(1..4) {
                let page = random.u64(..4);
                let image = pages.entry(page).or_insert_with(|| page_of(0));
                crate::model::edit(image, &mut random);
                writer.append(page, image).unwrap();
            }
            writer.commit(number).unwrap();
        }
        prop_assert_eq!(&images(&mut writer).unwrap().1, &pages);
        let reader = reader(&memory);
        prop_assert_eq!(&crate::model::images_of_reader(&reader).unwrap(), &pages);
        prop_assert_eq!(reader.tag(), 19);
        let memory = from_image(&memory.crash(Survivors::Nothing));
        let (_, mut writer, _) = open(&memory, &options);
        prop_assert_eq!(&images(&mut writer).unwrap().1, &pages);
    }
}

#[test]
fn a_log_of_long_blocks_grows_by_a_few() {
    let memory = SimulatedMemory::new(
        Region::MIN_LEN,
        SimulatedOptions::default().capacity(32 << 20),
    );
    let mapping = Mapping::simulated(&memory);
    let region = Region::create_in(mapping, &RegionOptions::default()).unwrap();
    let region = Arc::new(region);
    let log = log_options().block_size(1 << 20).max_bytes(24 << 20);
    let options = WriterOptions::default();
    let mut writer = Writer::create(Arc::clone(&region), START, &log, &options).unwrap();
    let before = region.mapping().len();
    writer.append(1, &page_of(1)).unwrap();
    writer.commit(1).unwrap();
    let grown = region.mapping().len() - before;
    assert!((4 << 20..5 << 20).contains(&grown), "{grown}");
}
