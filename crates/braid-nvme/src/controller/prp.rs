//! Addresses of a transfer's memory, page by page (physical region pages, PRP).

/// Largest transfer whose pages fit into a list of one page, wherever its memory begins.
pub(super) fn transfer_max(page: usize) -> usize {
    page / 8 * page
}

/// Returns the two words of a command for `len` bytes at `address`, and fills `list`, which is at
/// `list_address`, if there are more than two pages.
pub(super) fn describe(
    address: u64,
    len: u64,
    page: u64,
    list: &mut dyn FnMut(usize, u64),
    list_address: u64,
) -> [u64; 2] {
    let first = page - address % page;
    if len <= first {
        return [address, 0];
    }
    let second = address + first;
    if len <= first + page {
        return [address, second];
    }
    let pages = (len - first).div_ceil(page);
    for i in 0..pages {
        list(braid_rt::to_usize(i), second + i * page);
    }
    [address, list_address]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_cover_the_transfer_exactly() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let page = 4096 << random.u64(..5);
            let address = (1 << 40) + random.u64(..3 * page) / 4 * 4;
            let len = random.u64(1..=transfer_max(page as usize) as u64 / page * page);
            let mut entries = Vec::new();
            let mut list = |at, entry| {
                assert_eq!(at, entries.len());
                entries.push(entry);
            };
            let [first, second] = describe(address, len, page, &mut list, 7);
            // As a controller reads it.
            assert!(entries.len() <= page as usize / 8);
            let mut pages = vec![first];
            match second {
                0 => {}
                7 => pages.extend(&entries),
                other => pages.push(other),
            }
            let mut covered = 0;
            for (i, start) in pages.iter().enumerate() {
                assert_eq!(*start, address + covered);
                assert!(i == 0 || start % page == 0);
                covered += (page - start % page).min(len - covered);
            }
            assert_eq!(covered, len);
        }
    }
}
