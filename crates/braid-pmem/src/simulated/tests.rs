use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::Mapping;

fn memory() -> (SimulatedMemory, Mapping) {
    let options = SimulatedOptions::default().capacity(1 << 16);
    let memory = SimulatedMemory::new(1 << 12, options);
    let mapping = Mapping::simulated(&memory);
    (memory, mapping)
}

fn word(image: &Image, offset: u64) -> u64 {
    image.words[words_of(offset)]
}

/// The values of some words in what many crashes leave.
fn outcomes(memory: &SimulatedMemory, offsets: &[u64]) -> BTreeSet<Vec<u64>> {
    let seeds = if cfg!(miri) { 60 } else { 400 };
    (0..seeds)
        .map(|seed| {
            let image = memory.crash(Survivors::Random(seed));
            offsets.iter().map(|offset| word(&image, *offset)).collect()
        })
        .collect()
}

fn set<const N: usize>(outcomes: &[[u64; N]]) -> BTreeSet<Vec<u64>> {
    outcomes.iter().map(|values| values.to_vec()).collect()
}

#[test]
fn only_flushed_and_fenced_lines_are_durable() {
    let (memory, mapping) = memory();
    mapping.write(0, &[1; 8]);
    mapping.write(64, &[2; 8]);
    mapping.write(128, &[3; 8]);
    mapping.flush(0..8);
    assert_eq!(mapping.not_durable(0..8), Some(0));
    mapping.fence().unwrap();
    mapping.flush(64..72);
    assert_eq!(mapping.not_durable(0..64), None);
    assert_eq!(mapping.not_durable(0..4096), Some(64));
    assert_eq!(mapping.not_durable(66..4096), Some(66));
    assert_eq!(mapping.not_durable(72..128), None);
    assert_eq!(mapping.not_durable(130..131), Some(130));
    let image = memory.crash(Survivors::Nothing);
    assert_eq!(image.bytes()[..8], [1; 8]);
    assert_eq!(image.bytes()[8..], [0; 4088]);
    let image = memory.crash(Survivors::Everything);
    assert_eq!(image.bytes()[64..72], [2; 8]);
    assert_eq!(image.bytes()[128..136], [3; 8]);
}

#[test]
fn lines_survive_independently_of_each_other() {
    let (memory, mapping) = memory();
    mapping.store_u64(0, 1, Ordering::Release);
    mapping.store_u64(64, 1, Ordering::Release);
    let all = set(&[[0, 0], [0, 1], [1, 0], [1, 1]]);
    assert_eq!(outcomes(&memory, &[0, 64]), all);
}

#[test]
fn release_stores_order_a_line() {
    let (memory, mapping) = memory();
    mapping.store_u64(0, 1, Ordering::Relaxed);
    mapping.store_u64(8, 1, Ordering::Relaxed);
    let all = set(&[[0, 0], [0, 1], [1, 0], [1, 1]]);
    assert_eq!(outcomes(&memory, &[0, 8]), all);
    mapping.store_u64(128, 1, Ordering::Relaxed);
    mapping.store_u64(136, 1, Ordering::Release);
    let ordered = set(&[[0, 0], [1, 0], [1, 1]]);
    assert_eq!(outcomes(&memory, &[128, 136]), ordered);
}

#[test]
fn fences_order_a_line_that_was_not_flushed() {
    let (memory, mapping) = memory();
    mapping.store_u64(0, 1, Ordering::Relaxed);
    mapping.fence().unwrap();
    mapping.store_u64(8, 1, Ordering::Relaxed);
    let ordered = set(&[[0, 0], [1, 0], [1, 1]]);
    assert_eq!(outcomes(&memory, &[0, 8]), ordered);
}

#[test]
fn a_word_has_one_of_its_values() {
    let (memory, mapping) = memory();
    for value in 1..=3 {
        mapping.store_u64(0, value, Ordering::Relaxed);
    }
    assert_eq!(outcomes(&memory, &[0]), set(&[[0], [1], [2], [3]]));
    mapping.persist(0..8).unwrap();
    assert_eq!(outcomes(&memory, &[0]), set(&[[3]]));
}

#[test]
fn a_fence_covers_the_stores_before_the_flush_only() {
    let (memory, mapping) = memory();
    mapping.store_u64(0, 1, Ordering::Relaxed);
    mapping.flush(0..8);
    mapping.store_u64(0, 2, Ordering::Relaxed);
    mapping.fence().unwrap();
    assert_eq!(outcomes(&memory, &[0]), set(&[[1], [2]]));
}

#[test]
fn a_fence_covers_the_flushes_of_its_own_thread_only() {
    let (memory, mapping) = memory();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            mapping.store_u64(0, 1, Ordering::Relaxed);
            mapping.flush(0..8);
        });
    });
    mapping.fence().unwrap();
    assert_eq!(outcomes(&memory, &[0]), set(&[[0], [1]]));
    // A flush covers the stores of other threads.
    mapping.persist(0..8).unwrap();
    assert_eq!(outcomes(&memory, &[0]), set(&[[1]]));
}

#[test]
fn stores_of_two_threads_are_ordered() {
    let (memory, mapping) = memory();
    mapping.store_u64(0, 1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| mapping.store_u64(8, 1, Ordering::Relaxed));
    });
    let ordered = set(&[[0, 0], [1, 0], [1, 1]]);
    assert_eq!(outcomes(&memory, &[0, 8]), ordered);
}

#[test]
fn stores_through_words_are_found() {
    let (memory, mapping) = memory();
    let words = mapping.words(64..128);
    words[0].store(1, Ordering::Relaxed);
    words[1].store(1, Ordering::Release);
    let all = set(&[[0, 0], [0, 1], [1, 0], [1, 1]]);
    assert_eq!(outcomes(&memory, &[64, 72]), all);
    assert_eq!(mapping.not_durable(64..128), Some(64));
    mapping.persist(64..128).unwrap();
    words[2].store(1, Ordering::Relaxed);
    assert_eq!(
        outcomes(&memory, &[64, 72, 80]),
        set(&[[1, 1, 0], [1, 1, 1]])
    );
}

#[test]
fn the_power_fails_before_an_operation() {
    let (memory, mapping) = memory();
    mapping.words(128..192)[0].store(9, Ordering::Relaxed);
    memory.power_off_at(memory.operations() + 3);
    mapping.store_u64(0, 1, Ordering::Relaxed);
    mapping.flush(0..8);
    mapping.fence().unwrap();
    assert!(!memory.is_off());
    mapping.store_u64(0, 2, Ordering::Relaxed);
    assert!(memory.is_off());
    mapping.words(128..192)[1].store(9, Ordering::Relaxed);
    assert_eq!(mapping.persist(0..8), Err(FenceError::PowerOff));
    let image = memory.crash(Survivors::Everything);
    assert_eq!([0, 128, 136].map(|offset| word(&image, offset)), [1, 9, 0]);
}

#[test]
fn lost_lines_are_errors_until_they_are_replaced() {
    let (memory, mapping) = memory();
    mapping.write(0, &[7; 256]);
    mapping.persist(0..256).unwrap();
    memory.lose(70..71);
    let mut bytes = [0; 32];
    let error = MediaError { offset: 100 };
    assert_eq!(mapping.read(100, &mut bytes), Err(error));
    assert_eq!(mapping.check(0..256), Err(MediaError { offset: 64 }));
    mapping.read(32, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 32]);
    mapping.read(128, &mut bytes).unwrap();

    let mut image = memory.crash(Survivors::Nothing);
    let open = |image: &Image| {
        Mapping::simulated(&SimulatedMemory::from_image(
            image,
            SimulatedOptions::default(),
        ))
    };
    assert_eq!(
        open(&image).read(64, &mut bytes),
        Err(MediaError { offset: 64 })
    );
    image.replace_lost();
    open(&image).read(64, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 32]);
}

#[test]
fn memory_grows_up_to_its_device_and_capacity() {
    let options = SimulatedOptions::default()
        .capacity(8192)
        .device_bytes(4096);
    let memory = SimulatedMemory::new(1024, options);
    let mapping = Mapping::simulated(&memory);
    mapping.grow(512).unwrap();
    assert_eq!(mapping.len(), 1024);
    mapping.grow(4000).unwrap();
    assert_eq!(mapping.len(), 4032);
    mapping.write(4000, &[1; 32]);
    let error = mapping.grow(4097).unwrap_err();
    assert!(matches!(error, MapError::NoSpace { len: 4160 }), "{error}");
    let error = mapping.grow(8193).unwrap_err();
    assert!(matches!(error, MapError::Capacity { .. }), "{error}");
    assert_eq!(mapping.len(), 4032);
}

#[test]
fn torn_ranges_lose_some_of_their_words() {
    let (memory, mapping) = memory();
    mapping.write(0, &[7; 128]);
    mapping.persist(0..128).unwrap();
    let mut kept = BTreeSet::new();
    for seed in 0..50 {
        let mut image = memory.crash(Survivors::Nothing);
        image.tear(0..64, seed);
        let zeros = image.words[..8].iter().filter(|word| **word == 0).count();
        assert!(zeros > 0);
        kept.insert(8 - zeros);
        assert_eq!(image.bytes()[64..128], [7; 64]);
    }
    assert!(kept.len() > 3, "{kept:?}");
}

#[test]
#[should_panic(expected = "4090..4098 is not a range")]
fn a_write_past_the_end_panics() {
    memory().1.write(4090, &[0; 8]);
}

#[test]
#[should_panic(expected = "is not a range, or word")]
fn an_unaligned_word_panics() {
    memory().1.store_u64(4, 0, Ordering::Relaxed);
}

/// A step of a program over a few words.
#[derive(Clone, Debug)]
enum Step {
    Store { word: usize, release: bool },
    Flush { line: u64 },
    Fence,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..32_usize, any::<bool>()).prop_map(|(word, release)| Step::Store { word, release }),
        2 => (0..4_u64).prop_map(|line| Step::Flush { line }),
        1 => Just(Step::Fence),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Against a model that only knows the rules: what a fence covered survives, nothing appears
    /// that was not stored, and a release store survives only with the stores before it.
    #[test]
    fn crashes_keep_what_the_rules_allow(steps in steps(), seed: u64) {
        let (memory, mapping) = memory();
        // Values of each word in the order of their stores; positions that are certain.
        let mut stored = vec![vec![0_u64]; 32];
        let mut flushed = vec![0; 32];
        let mut certain = vec![0; 32];
        for (step, value) in steps.iter().zip(1..) {
            match step {
                Step::Store { word, release } => {
                    let order = if *release { Ordering::Release } else { Ordering::Relaxed };
                    mapping.store_u64(*word as u64 * 8, value, order);
                    stored[*word].push(value);
                }
                Step::Flush { line } => {
                    mapping.flush(line * 64..line * 64 + 64);
                    for word in *line as usize * 8..*line as usize * 8 + 8 {
                        flushed[word] = stored[word].len() - 1;
                    }
                }
                Step::Fence => {
                    mapping.fence().unwrap();
                    certain.clone_from(&flushed);
                }
            }
        }
        let image = memory.crash(Survivors::Random(seed));
        prop_assert_eq!(&image, &memory.crash(Survivors::Random(seed)), "a seed decides");
        let mut positions = Vec::new();
        for word in 0..32 {
            let found = image.words[word];
            let position = stored[word].iter().position(|value| *value == found);
            let position = position.expect("a value that was stored");
            prop_assert!(position >= certain[word], "word {word} lost what a fence covered");
            positions.push(position);
        }
        // A surviving release store comes with every earlier store of its line.
        for (step, value) in steps.iter().zip(1_u64..) {
            let Step::Store { word, release: true } = step else { continue };
            if image.words[*word] != value {
                continue;
            }
            let line = word / 8 * 8;
            for other in line..line + 8 {
                let newest = stored[other].iter().rposition(|earlier| *earlier <= value);
                prop_assert!(positions[other] >= newest.expect("zero, at least"));
            }
        }
        // Without and with everything, the outcome is certain.
        let nothing = memory.crash(Survivors::Nothing);
        let everything = memory.crash(Survivors::Everything);
        for word in 0..32 {
            prop_assert_eq!(nothing.words[word], stored[word][certain[word]]);
            prop_assert_eq!(Some(&everything.words[word]), stored[word].last());
        }
    }
}
