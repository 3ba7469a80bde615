//! A small mutation engine, deterministic for a seed, for systems without libFuzzer.

use fastrand::Rng;

/// Maximum length of an input.
const LEN_MAX: usize = 4096;

/// Lengths and counts that are written over existing fields of the same width.
const WORDS: [u64; 9] = [
    0,
    1,
    0x7f,
    0xffff,
    1 << 31,
    u32::MAX as u64,
    1 << 60,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns an input made from others: one with a few changes, two spliced, or only random bytes.
pub fn input(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut out = match rng.choice(corpus) {
        Some(input) if rng.u8(..4) > 0 => input.clone(),
        _ => random(rng, 96),
    };
    if rng.u8(..8) == 0
        && let Some(other) = rng.choice(corpus)
    {
        out.truncate(rng.usize(0..=out.len()));
        out.extend_from_slice(&other[rng.usize(0..=other.len())..]);
    }
    for _ in 0..rng.u8(..6) {
        change(rng, &mut out);
    }
    out.truncate(LEN_MAX);
    out
}

fn random(rng: &mut Rng, most: usize) -> Vec<u8> {
    let len = rng.usize(0..=most);
    (0..len).map(|_| rng.u8(..)).collect()
}

fn change(rng: &mut Rng, out: &mut Vec<u8>) {
    let at = rng.usize(0..=out.len());
    match rng.u8(..8) {
        0 => out.truncate(at),
        1 => {
            let bytes = random(rng, 16);
            out.splice(at..at, bytes);
        }
        2 => {
            let end = rng.usize(at..=out.len().min(at + 16));
            out.drain(at..end);
        }
        3 => {
            // Repeat a part, as another record of the same kind.
            let end = rng.usize(at..=out.len().min(at + 64));
            let again = out[at..end].to_vec();
            out.splice(end..end, again);
        }
        4 => {
            let width = 1 << rng.u8(..4);
            let word = WORDS[rng.usize(..WORDS.len())].to_le_bytes();
            if let Some(place) = out.get_mut(at..at + width) {
                place.copy_from_slice(&word[..width]);
            }
        }
        5 if at < out.len() => out[at] = rng.u8(..),
        6 if at < out.len() => out[at] = out[at].wrapping_add_signed(rng.i8(-3..=3)),
        _ if at < out.len() => out[at] ^= 1 << rng.u8(..8),
        _ => out.push(rng.u8(..)),
    }
}
