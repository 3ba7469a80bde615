//! The state shared by the handles to a store, its checkpoints and its pins.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_rt::{Mutex, RwLock};

use crate::buffer_pool::Pool;
use crate::data_file::Root;
use crate::error::StoreError;
use crate::page::PageId;
use crate::tree::Tree;
use crate::tree::layers::LongKeys;

#[derive(Debug)]
pub(crate) struct StoreInner {
    pub(crate) pool: Arc<Pool>,
    /// The roots of all trees, those of layers included.
    pub(crate) trees: Arc<RwLock<BTreeMap<u32, PageId>>>,
    /// The long keys of the trees in use.
    long: Mutex<BTreeMap<u32, Arc<LongKeys>>>,
    pub(crate) root: Mutex<Root>,
}

impl StoreInner {
    /// Creates the state of a store with these pages, as of the root's checkpoint.
    pub(crate) fn new(pool: Pool, root: Root) -> Self {
        Self {
            pool: Arc::new(pool),
            trees: Arc::new(RwLock::new(root.trees.clone())),
            long: Mutex::default(),
            root: Mutex::new(root),
        }
    }

    /// The long keys of a tree.
    pub(crate) fn long_keys(&self, id: u32) -> Arc<LongKeys> {
        let new = || LongKeys::new(self.pool.clone(), self.trees.clone(), id);
        let mut long = self.long.lock();
        long.entry(id).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Forgets the long keys of a tree that is being dropped.
    pub(crate) fn forget_long_keys(&self, id: u32) {
        self.long.lock().remove(&id);
    }

    /// A handle to a tree.
    pub(crate) fn handle(&self, id: u32, root: PageId) -> Tree {
        Tree::new(self.pool.clone(), id, root, self.long_keys(id))
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.pool.file.poisoned().is_some()
    }

    pub(crate) fn check_not_poisoned(&self) -> Result<(), StoreError> {
        match self.pool.file.poisoned() {
            Some(cause) => Err(StoreError::Poisoned {
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }
}
