//! HyperLogLog: the number of different elements, with a standard error of 0.81 %.
//!
//! A value is a string, which is written in Redis' dense form and read in both forms: `HYLL`, eleven bytes of header, and 16,384 registers
//! of six bits. Each element chooses a register by 14 bits of its hash, and the register keeps the
//! longest run of zeros in the other bits. The estimate is Ertl's ("New cardinality estimation
//! algorithms for HyperLogLog sketches", 2017), which needs no correction for small numbers.

use bytes::{BufMut, Bytes};

use crate::failure::{Failure, Result};
use crate::keyspace::{Body, Data};
use crate::resp::Reply;

/// Bits of a hash that choose a register.
const INDEX_BITS: u32 = 14;
const REGISTERS: usize = 1 << INDEX_BITS;
/// Bits of a hash in which zeros are counted.
const RUN_BITS: u32 = 64 - INDEX_BITS;
const HEADER: usize = 16;
const LEN: usize = HEADER + REGISTERS * 6 / 8;

/// Registers, one a byte.
struct Registers(Vec<u8>);

impl Registers {
    fn new() -> Registers {
        Registers(vec![0; REGISTERS])
    }

    fn decode(text: &[u8]) -> Result<Registers> {
        if let Some(runs) = text.get(HEADER..)
            && text.starts_with(b"HYLL\x01")
        {
            return Registers::from_runs(runs).ok_or_else(invalid);
        }
        if text.len() != LEN || !text.starts_with(b"HYLL\0") {
            return Err(invalid());
        }
        let mut registers = Registers::new();
        // Four registers lie in three bytes, the first in the lowest bits.
        let groups = registers.0.chunks_exact_mut(4);
        for (group, bytes) in groups.zip(text[HEADER..].chunks_exact(3)) {
            let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
            for (at, register) in group.iter_mut().enumerate() {
                *register = (bits >> (6 * at) & 63) as u8;
            }
        }
        Ok(registers)
    }

    /// Decodes Redis' sparse form: runs of registers that are zero or have the same value.
    fn from_runs(runs: &[u8]) -> Option<Registers> {
        let mut registers = Vec::with_capacity(REGISTERS);
        let mut runs = runs.iter().map(|byte| usize::from(*byte));
        while let Some(first) = runs.next() {
            let (len, value) = match first >> 6 {
                0 => (first & 0x3f, 0),
                1 => ((first & 0x3f) << 8 | runs.next()?, 0),
                _ => (first & 3, (first >> 2 & 0x1f) + 1),
            };
            if registers.len() + len + 1 > REGISTERS {
                return None;
            }
            registers.resize(registers.len() + len + 1, value as u8);
        }
        (registers.len() == REGISTERS).then_some(Registers(registers))
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(LEN);
        out.put_slice(b"HYLL");
        out.put_bytes(0, 11);
        // The cached number of elements is not valid.
        out.put_u8(0x80);
        for group in self.0.chunks_exact(4) {
            let bits = group
                .iter()
                .rev()
                .fold(0u32, |bits, register| bits << 6 | u32::from(*register));
            out.put_slice(&bits.to_le_bytes()[..3]);
        }
        out.into()
    }

    /// Adds an element; returns whether that changes a register.
    fn add(&mut self, element: &[u8]) -> bool {
        let hash = hash(element);
        let register = &mut self.0[hash as usize % REGISTERS];
        let run = (hash >> INDEX_BITS | 1 << RUN_BITS).trailing_zeros() as u8 + 1;
        let is_longer = run > *register;
        *register = (*register).max(run);
        is_longer
    }

    fn merge(&mut self, other: &Registers) {
        for (register, other) in self.0.iter_mut().zip(&other.0) {
            *register = (*register).max(*other);
        }
    }

    /// Returns the estimated number of different elements.
    fn count(&self) -> u64 {
        let mut having = [0u32; 64];
        for register in &self.0 {
            having[usize::from(*register)] += 1;
        }
        let all = REGISTERS as f64;
        let longest = RUN_BITS as usize + 1;
        let mut sum = all * tau((all - f64::from(having[longest])) / all);
        for run in (1..longest).rev() {
            sum = (sum + f64::from(having[run])) * 0.5;
        }
        sum += all * sigma(f64::from(having[0]) / all);
        // 1 / (2 ln 2)
        (std::f64::consts::LOG2_E / 2.0 * all * all / sum).round() as u64
    }
}

fn invalid() -> Failure {
    Failure::client("WRONGTYPE Key is not a valid HyperLogLog string value.")
}

/// Sum of `x^(2^k) * 2^(k-1)`: what the registers that are zero contribute.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut factor, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// What the registers with the longest possible run contribute.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut factor, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - x).powi(2) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}

/// MurmurHash64A with the seed that Redis uses, so that its values can be merged with these.
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut hash = 0xadc8_3b19 ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        word = (word ^ word >> SHIFT).wrapping_mul(FACTOR);
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> SHIFT).wrapping_mul(FACTOR);
    hash ^ hash >> SHIFT
}

fn load(data: &mut Data, key: &[u8]) -> Result<Option<Registers>> {
    let text = data.string(key)?;
    text.map(|text| Registers::decode(&text)).transpose()
}

fn store(data: &mut Data, key: &[u8], registers: &Registers) -> Result<()> {
    let old = data.entry(key)?;
    let expires = old.as_ref().and_then(|old| old.expires);
    data.put(key, old.as_ref(), Body::String(registers.encode()), expires)?;
    data.notify('$', "pfadd", key);
    Ok(())
}

pub(super) fn pfadd(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let old = load(data, &args[1])?;
    let mut changed = old.is_none();
    let mut registers = old.unwrap_or_else(Registers::new);
    for element in &args[2..] {
        changed |= registers.add(element);
    }
    if changed {
        store(data, &args[1], &registers)?;
    }
    Ok(Reply::Integer(i64::from(changed)))
}

/// Merges the values of keys into `all`.
fn merge(data: &mut Data, keys: &[Bytes]) -> Result<Registers> {
    let mut all = Registers::new();
    for key in keys {
        if let Some(registers) = load(data, key)? {
            all.merge(&registers);
        }
    }
    Ok(all)
}

pub(super) fn pfcount(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Integer(merge(data, &args[1..])?.count() as i64))
}

pub(super) fn pfmerge(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let all = merge(data, &args[1..])?;
    store(data, &args[1], &all)?;
    Ok(Reply::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_registers() {
        // 16,382 zeros, then 32, 32.
        let runs = [0x7f, 0xfd, 0x80 | 31 << 2 | 1];
        let registers = Registers::from_runs(&runs).unwrap();
        assert_eq!(registers.0[16_381..], [0, 32, 32]);
        assert!(Registers::from_runs(&runs[..2]).is_none());
        assert!(Registers::from_runs(&runs[..1]).is_none());
        assert!(Registers::from_runs(&[0x7f, 0xff, 0]).is_none());
    }

    #[test]
    fn estimates_are_close() {
        let mut all = Registers::new();
        assert_eq!(all.count(), 0);
        let mut added = 0u64;
        for limit in [1, 10, 100, 1_000, 10_000, 100_000, 300_000] {
            while added < limit {
                all.add(format!("element {added}").as_bytes());
                added += 1;
            }
            let error = (all.count() as f64 - limit as f64).abs() / limit as f64;
            // Three standard errors.
            assert!(error < 3.0 * 0.0081, "{limit}: {}", all.count());
        }
        let encoded = all.encode();
        assert_eq!(encoded.len(), 12_304);
        assert_eq!(Registers::decode(&encoded).unwrap().0, all.0);
        assert!(Registers::decode(&encoded[1..]).is_err());
    }

    #[test]
    fn a_union_is_what_adding_both_gives() {
        let (mut one, mut two, mut both) = (Registers::new(), Registers::new(), Registers::new());
        for number in 0..2_000u32 {
            let element = number.to_string();
            let part = if number % 3 == 0 { &mut one } else { &mut two };
            part.add(element.as_bytes());
            assert!(
                !part.add(element.as_bytes()),
                "an element changes a register once"
            );
            both.add(element.as_bytes());
        }
        one.merge(&two);
        assert_eq!(one.0, both.0);
        assert_ne!(hash(b"1234567"), hash(b"12345678"));
    }
}
