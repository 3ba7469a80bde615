//! Long keys whose changes are missing although every page on the way to them can be read.
//!
//! A change of a long key that has no layers yet needs a further page, the one with the counter of
//! layers and the newest layers. If that page is damaged, readers of the key would find no damage,
//! and miss the change. So the key itself is recorded as unreadable.

use std::collections::BTreeMap;
use std::ops::Bound;

use braid_rt::Mutex;
use braid_rt::atomic::{AtomicBool, Ordering};

use super::layers::Bounds;
use crate::error::StoreError;

/// Unreadable keys, each with the cause.
#[derive(Debug, Default)]
pub(super) struct LostKeys {
    is_any: AtomicBool,
    keys: Mutex<BTreeMap<Vec<u8>, StoreError>>,
}

impl LostKeys {
    pub(super) fn add(&self, key: &[u8], cause: &StoreError) {
        self.keys.lock().insert(key.to_vec(), cause.clone());
        // Release: pairs with `check`.
        self.is_any.store(true, Ordering::Release);
    }

    /// Checks that no key of a range is unreadable.
    pub(super) fn check(&self, range: Bounds<'_>) -> Result<(), StoreError> {
        // Acquire: pairs with `add`.
        if !self.is_any.load(Ordering::Acquire) || is_empty(range) {
            return Ok(());
        }
        let keys = self.keys.lock();
        let lost = keys.range::<[u8], _>(range).next();
        lost.map_or(Ok(()), |(_, cause)| Err(cause.clone()))
    }
}

/// Whether a range has no key, so that a map would refuse it.
fn is_empty(range: Bounds<'_>) -> bool {
    match range {
        (Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from > to,
        _ => false,
    }
}
