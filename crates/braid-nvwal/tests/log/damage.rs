//! Damaged logs: a typed error or a shorter log, and nothing else.

use braid_nvwal::{CommitMode, LogError, WriterOptions};
use braid_pmem::{Image, Region, Survivors};

use crate::model::{
    Pages, START, create, edit, from_image, images, images_of_reader, page_of, try_open,
};

/// The pages after each transaction of a log, by tag.
fn history(seed: u64, mode: CommitMode) -> (Image, Vec<Pages>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let options = WriterOptions::default().mode(mode).chain_limit(3);
    let (memory, _region, mut writer) = create(&options);
    let mut states = vec![Pages::new()];
    for number in 1..30 {
        let mut pages = states[states.len() - 1].clone();
        for _ in 0..random.u8(1..4) {
            let page = random.u64(..4);
            let image = pages.entry(page).or_insert_with(|| page_of(0));
            edit(image, &mut random);
            writer.append(page, image).unwrap();
        }
        writer.commit(number).unwrap();
        states.push(pages);
    }
    (memory.crash(Survivors::Nothing), states)
}

fn damage(image: &mut Image, random: &mut fastrand::Rng) {
    let len = image.len();
    for _ in 0..random.u8(1..4) {
        // Mostly in the log, and there mostly in its words and headers.
        let at = match random.u8(..10) {
            0 => random.u64(..len),
            1..=3 => START + random.u64(..4096 + 512),
            _ => START + random.u64(4096..len - START),
        };
        let at = at.min(len - 64);
        match random.u8(..6) {
            0 => image.overwrite(at, &[random.u8(..)]),
            1 => image.overwrite(at / 8 * 8, &random.u64(..).to_le_bytes()),
            // Something that a pointer could be.
            2 => image.overwrite(at / 8 * 8, &(random.u64(..len) / 64 * 64).to_le_bytes()),
            3 => image.tear(at..at + random.u64(1..64), random.u64(..)),
            4 => image.lose(at..at + 1),
            _ => {
                let from = usize::try_from(random.u64(..len - 64)).unwrap();
                let copied = image.bytes()[from..from + 64].to_vec();
                image.overwrite(at / 8 * 8, &copied);
            }
        }
    }
}

/// Opening a damaged log returns an error, or a prefix of the transactions. With a reader it is the
/// same, and neither panics or reads out of bounds.
#[test]
fn damage_leads_to_an_error_or_a_shorter_log() {
    let rounds = match std::env::var("BRAID_HISTORIES") {
        Ok(histories) => histories.parse::<u64>().unwrap() * 10,
        Err(_) => 1500,
    };
    let (mut errors, mut shorter, mut whole) = (0, 0, 0);
    for seed in 0..rounds {
        let mode = [CommitMode::Lazy, CommitMode::Checksum][seed as usize % 2];
        let (image, states) = history(seed % 16, mode);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut damaged = image.clone();
        damage(&mut damaged, &mut random);
        let memory = from_image(&damaged);
        let mapping = std::sync::Arc::new(braid_pmem::Mapping::simulated(&memory));
        if let Ok(reader) = braid_nvwal::Reader::open(mapping, START)
            && let Ok(pages) = images_of_reader(&reader)
        {
            let tag = usize::try_from(reader.tag()).unwrap();
            assert_eq!(pages, states[tag], "reader, seed {seed}");
        }
        match try_open(&memory, &WriterOptions::default()) {
            Err(_) => errors += 1,
            Ok((_, mut writer, report)) => {
                let tag = usize::try_from(report.tag).unwrap();
                // A damaged slot is like a reader that has ended.
                writer.release_readers(|_| true);
                match images(&mut writer) {
                    Ok((_, pages)) => assert_eq!(pages, states[tag], "seed {seed}"),
                    Err(LogError::Media(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                if tag + 1 < states.len() {
                    shorter += 1;
                } else {
                    whole += 1;
                }
                // It can be continued.
                match writer
                    .append(1, &page_of(200))
                    .and_then(|_| writer.commit(99))
                {
                    Ok(_) => {}
                    Err(LogError::Media(_) | LogError::Heap(_) | LogError::Full { .. }) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        }
    }
    assert!(
        rounds < 300 || errors > rounds / 10 && shorter > 0 && whole > 0,
        "{errors} errors, {shorter} shorter logs, {whole} whole ones"
    );
}

/// In an ordered mode, the mark tells that transactions are missing. Nothing in the log is a crash's
/// doing.
#[test]
fn a_lost_transaction_before_the_mark_is_an_error() {
    for seed in 0..16 {
        let (image, states) = history(seed, CommitMode::Lazy);
        let bytes = image.bytes();
        // The first block's second line has the first record.
        let log = usize::try_from(Region::DATA_START).unwrap() + 4096;
        let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut refused = 0;
        for _ in 0..20 {
            let at = random.usize(log..last) as u64;
            let mut damaged = image.clone();
            damaged.overwrite(at, &[!bytes[at as usize]]);
            match try_open(&from_image(&damaged), &WriterOptions::default()) {
                Ok((_, mut writer, report)) => {
                    // The byte was not one of the log.
                    assert_eq!(report.tag as usize + 1, states.len(), "byte {at}");
                    assert_eq!(&images(&mut writer).unwrap().1, states.last().unwrap());
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0, "seed {seed}");
    }
}
