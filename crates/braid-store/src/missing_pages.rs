//! Pages that a read needs and that are not in memory.

use std::sync::Arc;

/// Pages that a read needs and that are not in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPages {
    /// The number of the store.
    store: u8,
    ids: Arc<[u64]>,
}

impl MissingPages {
    /// The number of the tablespace's store to which they belong.
    pub fn store(&self) -> u8 {
        self.store
    }

    pub(crate) fn new(store: u8, ids: &[u64]) -> Self {
        let ids = ids.into();
        Self { store, ids }
    }

    pub(crate) fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Adds pages of the same store.
    pub(crate) fn and(&self, others: impl Iterator<Item = u64>) -> Self {
        let others = others.filter(|id| !self.ids.contains(id));
        Self {
            store: self.store,
            ids: self.ids.iter().copied().chain(others).collect(),
        }
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.ids.len()
    }
}
