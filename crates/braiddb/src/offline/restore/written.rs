//! The data files that a restore writes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use braid_io::{AlignedBuf, Device};
use braid_log::SeqNo;
use braid_rt::to_usize;
use braid_store::{PageId, Store, StoreOptions, StoreWriter};

use super::place::first_stamp;
use crate::error::{BackupError, Error, Result};
use crate::format::space::{ListedSpace, SpaceMeta};
use crate::recovery::DATA_FILE;
use crate::recovery::tablespaces::RestoredSpace;
use crate::services::backup::format::{Manifest, ManifestSpace};

/// The pages written to a data file.
pub(super) struct Pages {
    writer: StoreWriter,
    /// Pages of the backup that is being read.
    ids: Vec<PageId>,
    /// The map entry of each page's newest version. A hash map, because the page numbers are
    /// untrusted input.
    newest: HashMap<PageId, u64>,
}

impl Pages {
    pub(super) fn create(device: &Arc<dyn Device>) -> Result<Self> {
        Ok(Self {
            writer: StoreWriter::create(device.clone())?,
            ids: Vec::new(),
            newest: HashMap::new(),
        })
    }

    pub(super) fn put(&mut self, batch: &mut [(PageId, AlignedBuf)]) -> Result<()> {
        self.writer.put(batch)?;
        self.ids.extend(batch.iter().map(|(id, _)| *id));
        Ok(())
    }

    /// Records the map entries that a backup has for its pages.
    fn note(&mut self, entries: &[u64]) {
        for id in self.ids.drain(..) {
            let entry = entries.get(to_usize(id));
            self.newest.insert(id, entry.copied().unwrap_or(0));
        }
    }

    fn has_all_of(&self, entries: &[u64]) -> bool {
        let differs =
            |(id, wanted): (PageId, &u64)| *wanted != 0 && self.newest.get(&id) != Some(wanted);
        !(0..).zip(entries).any(differs)
    }

    /// Completes the data file.
    fn finish(self, trees: &BTreeMap<u32, PageId>, entries: &[u64], meta: Vec<u8>) -> Result<()> {
        let exists = |id: PageId| entries.get(to_usize(id)).is_some_and(|entry| *entry != 0);
        let next_page = entries.len() as u64;
        Ok(self.writer.finish(next_page, trees.clone(), meta, exists)?)
    }
}

/// The data files that a restore writes.
pub(super) struct Written {
    pub(super) main: Pages,
    pub(super) spaces: Vec<WrittenSpace>,
    /// Identities of the tablespaces to be restored; `None` if they are not known yet.
    pub(super) wanted: Option<Vec<u128>>,
}

pub(super) struct WrittenSpace {
    identity: u128,
    name: String,
    device: Arc<dyn Device>,
    pages: Pages,
}

impl Written {
    /// Begins with the pages that a backup has of a tablespace. Returns `None` if the last backup
    /// does not have the tablespace any more.
    pub(super) fn begin_space(
        &mut self,
        entry: &ListedSpace,
        places: &[RestoredSpace],
    ) -> Result<Option<&mut Pages>> {
        let identity = entry.identity;
        let is_wanted = |wanted: &Vec<u128>| wanted.contains(&identity);
        if !self.wanted.as_ref().is_none_or(is_wanted) {
            return Ok(None);
        }
        let known = self
            .spaces
            .iter()
            .position(|space| space.identity == identity);
        let index = match known {
            Some(index) => index,
            None => {
                let Some(place) = places.iter().find(|place| place.name == entry.name) else {
                    let name = entry.name.clone();
                    return Err(BackupError::NoPlace { name }.into());
                };
                // An earlier tablespace of this name was dropped between two backups.
                if let Some(index) = self
                    .spaces
                    .iter()
                    .position(|space| space.name == entry.name)
                {
                    drop(self.spaces.swap_remove(index));
                    remove_data_file(&*place.device)?;
                }
                self.spaces.push(WrittenSpace {
                    identity,
                    name: entry.name.clone(),
                    device: place.device.clone(),
                    pages: Pages::create(&place.device)?,
                });
                self.spaces.len() - 1
            }
        };
        Ok(Some(&mut self.spaces[index].pages))
    }

    pub(super) fn note(&mut self, manifest: &Manifest) {
        self.main.note(&manifest.entries);
        for space in &mut self.spaces {
            let of_it = manifest.space(space.identity);
            space
                .pages
                .note(of_it.map_or(&[][..], |of_it| &of_it.entries));
        }
    }

    /// Whether all pages of a backup were written.
    pub(super) fn has_all_of(&self, manifest: &Manifest) -> bool {
        let has = |space: &ManifestSpace| {
            let identity = space.entry.identity;
            let written = self.spaces.iter().find(|space| space.identity == identity);
            written.is_some_and(|written| written.pages.has_all_of(&space.entries))
        };
        self.main.has_all_of(&manifest.entries) && manifest.spaces.iter().all(has)
    }
}

/// Removes the data file of a tablespace that was dropped between two backups.
fn remove_data_file(device: &dyn Device) -> Result<()> {
    let removed = device.remove(DATA_FILE);
    removed.map_err(|e| Error::io("cannot restore the database", e))
}

/// A database whose pages were written.
pub(super) struct Restored<'a> {
    pub(super) manifest: &'a Manifest,
    /// The superblock's metadata of the main tablespace.
    pub(super) meta: Vec<u8>,
    pub(super) seqno: SeqNo,
    pub(super) pool_bytes: usize,
}

impl Restored<'_> {
    /// Completes the data files, and opens them. Returns the stores of the main tablespace and, by
    /// number, of the others.
    pub(super) fn finish(self, written: Written) -> Result<(Store, Vec<(u8, Store)>)> {
        let manifest = self.manifest;
        let mut spaces = Vec::new();
        for WrittenSpace {
            identity,
            device,
            pages,
            ..
        } in written.spaces
        {
            let Some(space) = manifest.space(identity) else {
                drop(pages);
                remove_data_file(&*device)?;
                continue;
            };
            let number = space.entry.number;
            let meta = SpaceMeta {
                identity,
                number,
                stamp: first_stamp(manifest),
                follows: 0,
                seqno: self.seqno,
            };
            pages.finish(&space.trees, &space.entries, meta.encode())?;
            let options = StoreOptions {
                number,
                ..StoreOptions::of_pool(self.pool_bytes)
            };
            spaces.push((number, Store::open(device, options)?.0));
        }
        let Written { main, .. } = written;
        let device = main.writer.device().clone();
        main.finish(&manifest.trees, &manifest.entries, self.meta)?;
        let (store, _) = Store::open(device, StoreOptions::of_pool(self.pool_bytes))?;
        Ok((store, spaces))
    }
}
