//! Zipfian draws in constant time, and the permutation that scatters them.

use fastrand::Rng;

/// Draws ranks `0..n` with probability proportional to `1 / (rank + 1)^theta`.
///
/// The method is that of Gray, Sundaresan, Englert, Baclawski and Weinberger, "Quickly Generating
/// Billion-Record Synthetic Databases" (SIGMOD 1994), which YCSB uses too: exact for the two most
/// frequent ranks and a continuous approximation of the inverse distribution for the others. The
/// harmonic sums are computed once, so a draw is one random number and one power.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    items_f: f64,
    alpha: f64,
    zeta_n: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// The skew that YCSB uses by default.
    pub const YCSB_THETA: f64 = 0.99;

    /// Creates a distribution over `0..items` (at least one item) with skew `theta`, strictly
    /// between 0 and 1.
    ///
    /// Takes time linear in `items` (about 20 ms per million).
    ///
    /// # Panics
    ///
    /// If `items` is zero or `theta` is not strictly between 0 and 1.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(items > 0, "a distribution needs at least one item");
        assert!(
            theta > 0.0 && theta < 1.0,
            "the skew must lie strictly between 0 and 1"
        );
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let zeta_n = zeta(items);
        let items_f = items as f64;
        // With one or two items, the closed form divides by zero; those draws never use it.
        let eta = if items > 2 {
            (1.0 - (2.0 / items_f).powf(1.0 - theta)) / (1.0 - zeta(2) / zeta_n)
        } else {
            0.0
        };
        Zipf {
            items,
            items_f,
            alpha: 1.0 / (1.0 - theta),
            zeta_n,
            eta,
            second: 1.0 + 0.5_f64.powf(theta),
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Draws a rank; 0 is the most frequent.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.second {
            return 1.min(self.items - 1);
        }
        let rank = self.items_f * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// Maps a record's ordinal to its key: a bijection of the 64-bit integers that scatters neighbours.
///
/// YCSB hashes the ordinal for the same purpose, so that frequent records are not adjacent and
/// inserts do not all go to the end. The steps are those of `splitmix64` (Steele, Lea and Flood,
/// "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). Each of them is invertible, so
/// two ordinals never share a key.
#[inline]
#[must_use]
pub fn scatter(ordinal: u64) -> u64 {
    let mut x = ordinal.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Returns the exact probability of a rank.
    fn probability(n: u64, theta: f64, rank: u64) -> f64 {
        let zeta: f64 = (1..=n).map(|i| (i as f64).powf(-theta)).sum();
        ((rank + 1) as f64).powf(-theta) / zeta
    }

    #[test]
    fn draws_follow_the_distribution() {
        let n = 1_000;
        let zipf = Zipf::new(n, Zipf::YCSB_THETA);
        let mut rng = Rng::with_seed(7);
        let draws = 1_000_000_u32;
        let mut counts = vec![0_u32; n as usize];
        for _ in 0..draws {
            counts[zipf.draw(&mut rng) as usize] += 1;
        }
        // The first two ranks are exact: four standard deviations are 0.2 % of the draws at most.
        for rank in 0..2 {
            let seen = f64::from(counts[rank as usize]) / f64::from(draws);
            let wanted = probability(n, Zipf::YCSB_THETA, rank);
            assert!(
                (seen - wanted).abs() < 0.002,
                "rank {rank}: {seen} for {wanted}"
            );
        }
        // The others are approximated: ranges of ranks must have their share within a tenth.
        for (from, to) in [(2, 10), (10, 100), (100, 500), (500, 1_000)] {
            let seen: u32 = counts[from..to].iter().sum();
            let seen = f64::from(seen) / f64::from(draws);
            let wanted: f64 = (from..to)
                .map(|r| probability(n, Zipf::YCSB_THETA, r as u64))
                .sum();
            assert!(
                (seen / wanted - 1.0).abs() < 0.1,
                "{from}..{to}: {seen} for {wanted}"
            );
        }
    }

    #[test]
    fn small_ranges_stay_in_bounds() {
        let mut rng = Rng::with_seed(3);
        for n in 1..=5 {
            let zipf = Zipf::new(n, 0.5);
            let seen: HashSet<u64> = (0..10_000).map(|_| zipf.draw(&mut rng)).collect();
            assert!(seen.iter().all(|&r| r < n), "{n}: {seen:?}");
            assert_eq!(seen.len() as u64, n, "every rank of {n} is drawn");
        }
    }

    #[test]
    fn scattered_ordinals_are_distinct_and_spread() {
        let keys: HashSet<u64> = (0..100_000).map(scatter).collect();
        assert_eq!(keys.len(), 100_000);
        let upper = keys.iter().filter(|&&k| k > u64::MAX / 2).count();
        assert!(
            (49_000..51_000).contains(&upper),
            "{upper} keys in the upper half"
        );
    }
}
