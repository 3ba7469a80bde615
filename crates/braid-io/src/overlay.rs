//! A device that shows another one, and keeps all changes in memory.
//!
//! For reading files that must not be written: the caller changes files as usual, and the device
//! below does not change. Changes take memory, block by block; zeroes take little.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use braid_rt::{Mutex, RwLock, to_usize};

use crate::device::end_of;
use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode};

/// A [`Device`] over another one, which it reads and never writes; see the module's documentation.
/// Clones share the changes.
#[derive(Clone, Debug)]
pub struct OverlayDevice {
    base: Arc<dyn Device>,
    names: Arc<Mutex<Names>>,
}

/// The current names: files of the base by their names there, or new files.
#[derive(Debug)]
struct Names {
    unopened: BTreeMap<String, Entry>,
    files: BTreeMap<String, Arc<OverlayFile>>,
}

impl OverlayDevice {
    /// Creates a view of the current state of `base`, which must not change meanwhile.
    ///
    /// # Errors
    ///
    /// Errors of listing the base's files.
    pub fn new(base: Arc<dyn Device>) -> io::Result<Self> {
        let entries = base.list()?.into_iter();
        let names = Names {
            unopened: entries.map(|entry| (entry.name.clone(), entry)).collect(),
            files: BTreeMap::new(),
        };
        Ok(Self {
            base,
            names: Arc::new(Mutex::new(names)),
        })
    }

    /// Returns the file with a name, and opens it in the base if needed.
    fn file(&self, names: &mut Names, name: &str) -> io::Result<Arc<OverlayFile>> {
        if let Some(file) = names.files.get(name) {
            return Ok(file.clone());
        }
        let Some(entry) = names.unopened.get(name) else {
            return Err(missing(name));
        };
        let file = Arc::new(OverlayFile {
            base: Some(self.base.open(&entry.name, OpenMode::Existing)?),
            block: self.block_size_of(name),
            changes: RwLock::new(Changes {
                len: entry.len,
                base_len: entry.len,
                blocks: HashMap::new(),
            }),
        });
        names.unopened.remove(name);
        names.files.insert(name.to_owned(), file.clone());
        Ok(file)
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("there is no file {name:?}"),
    )
}

impl Device for OverlayDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Memory
    }

    fn block_size(&self) -> usize {
        self.base.block_size()
    }

    fn block_size_of(&self, name: &str) -> usize {
        self.base.block_size_of(name)
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        self.base.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut names = self.names.lock();
        if mode == OpenMode::Existing {
            return Ok(self.file(&mut names, name)?);
        }
        if names.files.contains_key(name) || names.unopened.contains_key(name) {
            let what = format!("file {name:?} exists");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        let file = Arc::new(OverlayFile {
            base: None,
            block: self.block_size_of(name),
            changes: RwLock::default(),
        });
        names.files.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut names = self.names.lock();
        let opened = names.files.remove(name).map(drop);
        let there = opened.or_else(|| names.unopened.remove(name).map(drop));
        there.ok_or_else(|| missing(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = self.file(&mut names, from)?;
        names.files.remove(from);
        names.unopened.remove(to);
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let names = self.names.lock();
        let unopened = names.unopened.iter().map(|(name, entry)| Entry {
            name: name.clone(),
            len: entry.len,
        });
        let opened = names.files.iter().map(|(name, file)| Entry {
            name: name.clone(),
            len: file.changes.read().len,
        });
        let mut entries: Vec<Entry> = unopened.chain(opened).collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Changes {
    len: u64,
    /// Length of the base file that is still visible.
    base_len: u64,
    /// Blocks by number; `None` is a block of zeroes.
    blocks: HashMap<u64, Option<Box<[u8]>>>,
}

#[derive(Debug)]
struct OverlayFile {
    base: Option<Arc<dyn File>>,
    block: usize,
    changes: RwLock<Changes>,
}

impl OverlayFile {
    fn check_aligned(&self, len: usize, offset: u64) -> io::Result<()> {
        if len.is_multiple_of(self.block) && offset.is_multiple_of(self.block as u64) {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "offset or length is not aligned",
            ))
        }
    }

    /// Reads the visible part of the base file, and no more: another process may truncate the rest.
    fn read_below(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.base {
            Some(base) => base.read_at(buf, offset),
            None => Ok(()),
        }
    }

    /// Returns the numbers of the blocks in a range, whose ends are multiples of the block size.
    fn numbers(&self, range: Range<u64>) -> Range<u64> {
        range.start / self.block as u64..range.end / self.block as u64
    }

    fn zero(&self, changes: &mut Changes, range: Range<u64>) {
        let numbers = self.numbers(range);
        changes.blocks.extend(numbers.map(|number| (number, None)));
    }
}

impl File for OverlayFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.read().len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_aligned(0, len)?;
        let mut changes = self.changes.write();
        let end = self.numbers(0..len).end;
        changes.blocks.retain(|number, _| *number < end);
        changes.base_len = changes.base_len.min(len);
        changes.len = len;
        Ok(())
    }

    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        self.check_aligned(to_usize(range.end.saturating_sub(range.start)), range.start)?;
        let mut changes = self.changes.write();
        changes.len = changes.len.max(range.end);
        self.zero(&mut changes, range);
        Ok(())
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.check_aligned(to_usize(range.end.saturating_sub(range.start)), range.start)?;
        let mut changes = self.changes.write();
        let end = range.end.min(changes.len);
        self.zero(&mut changes, range.start..end);
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check_aligned(buf.len(), offset)?;
        let changes = self.changes.read();
        let end = end_of(offset, buf.len())?;
        if end > changes.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let below = to_usize(changes.base_len.clamp(offset, end) - offset);
        buf[below..].fill(0);
        let mut unchanged: Option<Range<usize>> = None;
        for (i, number) in self.numbers(offset..end).enumerate() {
            let place = i * self.block..(i + 1) * self.block;
            match changes.blocks.get(&number) {
                Some(Some(block)) => buf[place].copy_from_slice(block),
                Some(None) => buf[place].fill(0),
                None if place.start >= below => {}
                // Read it together with the following blocks.
                None => match &mut unchanged {
                    Some(run) if run.end == place.start => run.end = place.end,
                    run => {
                        if let Some(run) = run.replace(place) {
                            self.read_below(&mut buf[run.clone()], offset + run.start as u64)?;
                        }
                    }
                },
            }
        }
        if let Some(run) = unchanged {
            self.read_below(&mut buf[run.clone()], offset + run.start as u64)?;
        }
        Ok(())
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        end_of(offset, bufs.iter().map(|buf| buf.len()).sum())?;
        let mut at = offset;
        let mut changes = self.changes.write();
        for buf in bufs {
            self.check_aligned(buf.len(), at)?;
            for chunk in buf.chunks_exact(self.block) {
                let number = at / self.block as u64;
                changes.blocks.insert(number, Some(chunk.into()));
                at += self.block as u64;
            }
        }
        changes.len = changes.len.max(at);
        Ok(())
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_at(bufs, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const BLOCK: usize = 4096;

    fn contents(device: &dyn Device) -> Vec<(String, Vec<u8>)> {
        let read = |entry: Entry| {
            let mut bytes = vec![7; entry.len as usize];
            let file = device.open(&entry.name, OpenMode::Existing).unwrap();
            file.read_at(&mut bytes, 0).unwrap();
            (entry.name, bytes)
        };
        device.list().unwrap().into_iter().map(read).collect()
    }

    /// Makes a random step on a device, the same for the same random numbers.
    fn step(device: &dyn Device, rng: &mut fastrand::Rng) {
        let (name, other) = ([rng.char('a'..'e').into(), rng.char('a'..'e').into()]).into();
        let (name, other): (String, String) = (name, other);
        let at = rng.u64(..6) * BLOCK as u64;
        let end = at + rng.u64(1..4) * BLOCK as u64;
        let kind = rng.u32(..10);
        let byte = rng.u8(1..);
        match kind {
            0 => drop(device.remove(&name)),
            1 if name != other => drop(device.rename(&name, &other)),
            2 | 3 => drop(device.open(&name, OpenMode::CreateNew)),
            _ => {
                let Ok(file) = device.open(&name, OpenMode::Existing) else {
                    return;
                };
                let done = match kind {
                    4 => file.set_len(at),
                    5 => file.fill_zero(at..end),
                    6 => file.punch_hole(at..end),
                    _ => file.write_at(&[&vec![byte; (end - at) as usize]], at),
                };
                done.unwrap();
            }
        }
    }

    /// As when another process truncates a data file after the blocks of an older state.
    #[test]
    fn changed_blocks_need_nothing_below() {
        let base = MemoryDevice::new();
        let below = base.open("a", OpenMode::CreateNew).unwrap();
        below.write_at(&[&[1; 6 * BLOCK]], 0).unwrap();
        let overlay = OverlayDevice::new(Arc::new(base)).unwrap();
        let file = overlay.open("a", OpenMode::Existing).unwrap();
        file.write_at(&[&[2; BLOCK]], BLOCK as u64).unwrap();
        file.write_at(&[&[2; 2 * BLOCK]], 4 * BLOCK as u64).unwrap();
        below.set_len(4 * BLOCK as u64).unwrap();
        let mut bytes = vec![0; 6 * BLOCK];
        file.read_at(&mut bytes, 0).unwrap();
        let blocks: Vec<u8> = bytes.chunks(BLOCK).map(|block| block[BLOCK - 1]).collect();
        assert_eq!(blocks, [1, 2, 1, 1, 2, 2]);
    }

    #[test]
    fn it_shows_its_changes_and_the_base_stays() {
        for seed in 0..if cfg!(miri) { 2 } else { 200 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let base = MemoryDevice::new();
            // The same changes without a base.
            let plain = MemoryDevice::new();
            for _ in 0..20 {
                let mut same = rng.clone();
                step(&base, &mut rng);
                step(&plain, &mut same);
            }
            let before = contents(&base);
            let overlay = OverlayDevice::new(Arc::new(base.clone())).unwrap();
            for _ in 0..60 {
                let mut same = rng.clone();
                step(&overlay, &mut rng);
                step(&plain, &mut same);
                assert_eq!(contents(&overlay), contents(&plain), "seed {seed}");
            }
            assert_eq!(contents(&base), before, "seed {seed}");
        }
    }
}
