//! A newly opened store reads a page's neighbours ahead, and never an old state of one.

use crate::filled::{KEYS, LARGE_POOL, check, filled, no_key_goes_back, open};

#[test]
fn a_cold_pool_reads_neighbours_along_and_a_full_one_does_not() {
    let device = filled();
    for (pool_bytes, is_large) in [(LARGE_POOL, true), (512 << 10, false)] {
        let (store, tree) = open(&device, pool_bytes);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..3 * KEYS {
            assert_eq!(check(&tree, rng.u32(..KEYS)), 1);
        }
        let stats = store.stats();
        if cfg!(miri) {
            continue;
        }
        if is_large {
            // Each page once.
            assert!(stats.page_loads <= stats.pages, "{stats:?}");
            assert!(
                stats.pages_read_ahead > stats.page_loads * 3 / 4,
                "{stats:?}"
            );
        } else {
            assert!(stats.page_loads > 10 * stats.pages, "{stats:?}");
            assert!(
                stats.pages_read_ahead < stats.pool_pages as u64,
                "{stats:?}"
            );
        }
    }
}

#[test]
fn neighbours_are_read_in_their_newest_state() {
    no_key_goes_back::<1>(LARGE_POOL, |_, _| ());
}
