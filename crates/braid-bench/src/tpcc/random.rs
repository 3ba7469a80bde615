//! The standard's random data: NURand (clause 2.1.6), last names (4.3.2.3), strings (4.3.2.2).

use std::ops::RangeInclusive;

use fastrand::Rng;

/// The syllables of last names (clause 4.3.2.3).
const SYLLABLES: [&str; 10] = [
    "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
];

/// Number of different last names: the numbers 0 to 999.
pub(super) const LAST_NAMES: u16 = 1_000;

/// Content of a tenth of all items and stock (clause 4.3.3.1).
pub(super) const ORIGINAL: &[u8; 8] = b"ORIGINAL";

// The constants C of clause 2.1.6, fixed here. That of last names must differ between load and run
// by 65 to 119, but not by 96 or 112 (clause 2.1.6.1).
const C_LAST_LOAD: u64 = 157;
const C_LAST_RUN: u64 = 223;
const C_CUSTOMER: u64 = 259;
const C_ITEM: u64 = 7_911;

/// `NURand(a, x, y)` of clause 2.1.6.
fn nurand(rng: &mut Rng, a: u64, c: u64, range: RangeInclusive<u64>) -> u64 {
    let (x, y) = (*range.start(), *range.end());
    (((rng.u64(0..=a) | rng.u64(x..=y)) + c) % (y - x + 1)) + x
}

/// Draws a customer's number, from 1.
pub(super) fn customer(rng: &mut Rng, customers: u16) -> u16 {
    nurand(rng, 1_023, C_CUSTOMER, 1..=u64::from(customers)) as u16
}

/// Draws an item's number, from 1.
pub(super) fn item(rng: &mut Rng, items: u32) -> u32 {
    nurand(rng, 8_191, C_ITEM, 1..=u64::from(items)) as u32
}

/// Draws the number of a last name among `names`, during the run.
pub(super) fn name_number(rng: &mut Rng, names: u16) -> u16 {
    nurand(rng, 255, C_LAST_RUN, 0..=u64::from(names) - 1) as u16
}

/// Draws the number of a last name among `names`, during the load.
pub(super) fn name_number_for_load(rng: &mut Rng, names: u16) -> u16 {
    nurand(rng, 255, C_LAST_LOAD, 0..=u64::from(names) - 1) as u16
}

/// Returns the last name with this number: a syllable for each of its three digits.
pub(super) fn last_name(number: u16) -> String {
    let digit = |unit: u16| SYLLABLES[usize::from(number / unit % 10)];
    [digit(100), digit(10), digit(1)].concat()
}

/// Returns an a-string: letters and digits, with a length drawn from the range.
pub(super) fn a_string(rng: &mut Rng, length: RangeInclusive<usize>) -> Vec<u8> {
    let length = rng.usize(length);
    (0..length).map(|_| rng.alphanumeric() as u8).collect()
}

/// Returns an n-string: digits.
pub(super) fn n_string(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.digit(10) as u8).collect()
}

/// Returns an a-string of 26 to 50 characters; a tenth of them contain "ORIGINAL" (clause 4.3.3.1).
pub(super) fn item_data(rng: &mut Rng) -> Vec<u8> {
    let mut data = a_string(rng, 26..=50);
    if rng.u8(0..10) == 0 {
        let at = rng.usize(0..=data.len() - ORIGINAL.len());
        data[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

/// Returns a zip code: four random digits and "11111" (clause 4.3.2.7).
pub(super) fn zip(rng: &mut Rng) -> Vec<u8> {
    let mut zip = n_string(rng, 4);
    zip.extend_from_slice(b"11111");
    zip
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 20;

    #[test]
    fn nurand_stays_in_its_range_and_is_not_uniform() {
        let mut rng = Rng::with_seed(SEED);
        let mut seen = vec![0_u32; 3_001];
        for _ in 0..300_000 {
            seen[usize::from(customer(&mut rng, 3_000))] += 1;
        }
        assert_eq!(seen[0], 0, "numbers begin at 1");
        // A uniform draw would give 100 per customer; an OR of two draws favours numbers with many
        // ones.
        seen.sort_unstable();
        let top: u32 = seen[2_700..].iter().sum();
        assert!(top > 60_000, "the top tenth has {top} of 300,000 draws");
        for _ in 0..100_000 {
            assert!((1..=100_000).contains(&item(&mut rng, 100_000)));
            assert!(name_number(&mut rng, LAST_NAMES) < 1_000);
            assert!(name_number_for_load(&mut rng, 30) < 30);
        }
    }

    #[test]
    fn the_constants_of_load_and_run_differ_as_wanted() {
        let delta = C_LAST_RUN.abs_diff(C_LAST_LOAD);
        assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
        const { assert!(C_LAST_RUN <= 255 && C_CUSTOMER <= 1_023 && C_ITEM <= 8_191) };
    }

    #[test]
    fn last_names_are_three_syllables() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
        let all: std::collections::HashSet<_> = (0..LAST_NAMES).map(last_name).collect();
        assert_eq!(all.len(), 1_000);
        assert!(all.iter().all(|name| name.len() <= 16));
    }

    #[test]
    fn strings_have_their_lengths_and_a_tenth_is_original() {
        let mut rng = Rng::with_seed(SEED);
        let mut originals = 0;
        for _ in 0..10_000 {
            let data = item_data(&mut rng);
            assert!((26..=50).contains(&data.len()));
            originals += u32::from(data.windows(8).any(|part| part == ORIGINAL));
        }
        assert!((850..1_150).contains(&originals), "{originals} of 10,000");
        assert_eq!(zip(&mut rng).len(), 9);
        assert!(n_string(&mut rng, 16).iter().all(u8::is_ascii_digit));
    }
}
