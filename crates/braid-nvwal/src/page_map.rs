//! Maps by page number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with a cheap hash function: page numbers are small, and no adversary chooses them.
pub(crate) type PageMap<V> = HashMap<u64, V, BuildHasherDefault<PageHasher>>;

/// Hashes a page number with one multiplication.
#[derive(Debug, Default)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
    #[inline]
    fn write_u64(&mut self, page: u64) {
        // 2^64 divided by the golden ratio. Both halves of the product, since the map uses the lowest
        // and the highest bits.
        let product = u128::from(self.0 ^ page) * 0x9e37_79b9_7f4a_7c15;
        let (low, high) = (product & u128::from(u64::MAX), product >> 64);
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn pages_in_a_row_differ_in_the_bits_that_a_map_uses() {
        let hash = |page: u64| BuildHasherDefault::<PageHasher>::default().hash_one(page);
        for stride in [1, 64, 1 << 20] {
            let low: HashSet<u64> = (0..256).map(|page| hash(page * stride) & 0xff).collect();
            let high: HashSet<u64> = (0..256).map(|page| hash(page * stride) >> 57).collect();
            // Random numbers would have 162 and 111.
            assert!(
                low.len() > 128 && high.len() > 96,
                "{stride}: {} {}",
                low.len(),
                high.len()
            );
        }
    }
}
