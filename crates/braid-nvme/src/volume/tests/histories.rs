//! Random histories of a volume against a model, with power failures and ends of processes.

use std::collections::BTreeMap;

use super::*;
use crate::CommandKind;

const SECTOR: usize = 512;
const SECTORS: usize = 8;
/// Most blocks of a file.
const BLOCKS: u64 = 24;

/// Versions that a sector of a file may have after a crash; zero is zeros.
#[derive(Clone, Default, Debug)]
struct Sector {
    durable: u32,
    /// Written since, the newest last.
    later: Vec<u32>,
}

impl Sector {
    fn current(&self) -> u32 {
        *self.later.last().unwrap_or(&self.durable)
    }

    fn settle(&mut self) {
        self.durable = self.current();
        self.later.clear();
    }
}

#[derive(Clone, Default, Debug)]
struct File {
    /// Durable length, and those since.
    lens: Vec<u64>,
    sectors: Vec<Sector>,
}

impl File {
    fn new() -> Self {
        Self {
            lens: vec![0],
            sectors: vec![Sector::default(); BLOCKS as usize * SECTORS],
        }
    }

    fn len(&self) -> u64 {
        *self.lens.last().unwrap()
    }

    fn write(&mut self, blocks: std::ops::Range<u64>, version: u32) {
        for sector in blocks.start as usize * SECTORS..blocks.end as usize * SECTORS {
            self.sectors[sector].later.push(version);
        }
    }

    fn set_len(&mut self, len: u64) {
        self.write(len / 4096..BLOCKS, 0);
        self.lens.push(len);
    }

    /// After a failure for lack of space, some of the change may have happened.
    fn catch_up(&mut self, id: u32, file: &VolumeFile) -> Result<(), VolumeError> {
        for (sector, version) in versions(id, file)?.into_iter().enumerate() {
            if self.sectors[sector].current() != version {
                self.sectors[sector].later.push(version);
            }
        }
        self.lens.push(file.len());
        for sector in &mut self.sectors[file.len() as usize / SECTOR..] {
            sector.later.push(0);
        }
        Ok(())
    }

    fn settle(&mut self) {
        self.lens = vec![self.len()];
        self.sectors.iter_mut().for_each(Sector::settle);
    }
}

/// Names and the files that have them.
type Names = BTreeMap<&'static str, u32>;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

struct History {
    random: fastrand::Rng,
    drive: MemoryDrive,
    volume: Volume,
    handles: BTreeMap<u32, VolumeFile>,
    files: BTreeMap<u32, File>,
    /// Durable names, and those since.
    names: Vec<Names>,
    version: u32,
}

/// Bytes that name their file, their sector and their version.
fn bytes(file: u32, blocks: std::ops::Range<u64>, version: u32) -> Vec<u8> {
    let sectors = blocks.start as u32 * SECTORS as u32..blocks.end as u32 * SECTORS as u32;
    sectors
        .flat_map(|sector| {
            let words = [file, sector, version, !version];
            let word = words.map(u32::to_le_bytes).concat();
            word.repeat(SECTOR / 16)
        })
        .collect()
}

/// Reads a file; returns the version of each sector.
fn versions(id: u32, file: &VolumeFile) -> Result<Vec<u32>, VolumeError> {
    let mut contents = vec![0xee; file.len() as usize];
    file.read_batch([(0, &mut contents[..])])?;
    let sectors = contents.chunks(SECTOR).enumerate();
    let versions = sectors
        .map(|(index, sector)| {
            if sector.iter().all(|byte| *byte == 0) {
                return 0;
            }
            let word = |i: usize| u32::from_le_bytes(sector[4 * i..4 * i + 4].try_into().unwrap());
            let found = [word(0), word(1), word(3)];
            assert_eq!(
                found,
                [id, index as u32, !word(2)],
                "foreign contents in file {id}"
            );
            assert!(sector.chunks(16).all(|part| *part == sector[..16]));
            word(2)
        })
        .collect();
    Ok(versions)
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let block_size = [512, 4096][random.usize(..2)];
        let units = random.u64(12..60);
        let drive = drive_of(units, block_size, random.u32(..4) > 0, seed);
        let volume = format(&drive);
        Self {
            random,
            drive,
            volume,
            handles: BTreeMap::new(),
            files: BTreeMap::new(),
            names: vec![Names::new()],
            version: 0,
        }
    }

    fn current(&self) -> Names {
        self.names.last().unwrap().clone()
    }

    /// Picks a file that has a name, with its handle.
    fn pick(&mut self) -> Option<(u32, VolumeFile)> {
        let names = self.current();
        let ids: Vec<u32> = names.values().copied().collect();
        let id = *self.random.choice(&ids)?;
        Some((id, self.handles[&id].clone()))
    }

    fn blocks(&mut self) -> std::ops::Range<u64> {
        let start = self.random.u64(..BLOCKS);
        start..(start + self.random.u64(1..6)).min(BLOCKS)
    }

    /// Performs one operation. The model knows its effects before they are begun, and that they
    /// are durable after they ended.
    fn step(&mut self) -> Result<(), VolumeError> {
        match self.random.u32(..16) {
            0 | 1 => {
                let name = NAMES[self.random.usize(..NAMES.len())];
                let mut names = self.current();
                if names.contains_key(name) {
                    return Ok(());
                }
                let id = self.files.len() as u32 + 1;
                names.insert(name, id);
                self.files.insert(id, File::new());
                self.names.push(names);
                self.handles.insert(id, self.volume.create(name)?);
                Ok(())
            }
            2 => {
                let name = NAMES[self.random.usize(..NAMES.len())];
                let mut names = self.current();
                let Some(id) = names.remove(name) else {
                    return Ok(());
                };
                self.names.push(names);
                self.handles.remove(&id);
                self.volume.remove(name)
            }
            3 => {
                let (from, to) = (self.random.usize(..5), self.random.usize(..5));
                let (from, to) = (NAMES[from], NAMES[to]);
                let mut names = self.current();
                let Some(id) = names.remove(from) else {
                    return Ok(());
                };
                let replaced = names.insert(to, id);
                self.names.push(names);
                if let Some(replaced) = replaced
                    && replaced != id
                {
                    self.handles.remove(&replaced);
                }
                self.volume.rename(from, to)
            }
            4 => {
                self.volume.commit()?;
                self.names = vec![self.current()];
                // Files without a name cannot come back.
                let named: Vec<u32> = self.current().into_values().collect();
                self.files.iter_mut().for_each(|(id, file)| {
                    if named.contains(id) {
                        file.settle();
                    }
                });
                Ok(())
            }
            _ => match self.pick() {
                Some((id, file)) => self.change_file(id, &file),
                None => Ok(()),
            },
        }
    }

    fn change_file(&mut self, id: u32, file: &VolumeFile) -> Result<(), VolumeError> {
        let blocks = self.blocks();
        let range = blocks.start * 4096..blocks.end * 4096;
        let kind = self.random.u32(..12);
        self.version += 1;
        let version = self.version;
        let model = self.files.get_mut(&id).unwrap();
        let len = model.len();
        let mut is_durable = false;
        let result = match kind {
            0..4 => {
                let data = bytes(id, blocks.clone(), version);
                is_durable = kind == 0;
                model.write(blocks.clone(), version);
                model.lens.push(len.max(range.end));
                // In two parts, in any order.
                let middle = (blocks.end - blocks.start) / 2;
                let (first, second) = data.split_at(middle as usize * 4096);
                let writes = [(range.start + middle * 4096, second), (range.start, first)];
                if is_durable {
                    file.write_durable_batch(&writes)
                } else {
                    file.write_batch(&writes)
                }
            }
            4 => {
                model.write(blocks.clone(), 0);
                model.lens.push(len.max(range.end));
                file.fill_zero(range.clone())
            }
            5 => {
                let end = blocks.end.min(len / 4096);
                model.write(blocks.start.min(end)..end, 0);
                file.punch_hole(range.clone())
            }
            6 => {
                model.set_len(range.end);
                file.set_len(range.end)
            }
            7 => {
                model.lens.push(len.max(range.end));
                file.reserve(range.end)
            }
            8..10 => {
                is_durable = true;
                file.sync()
            }
            _ => {
                let versions = versions(id, file)?;
                assert_eq!(versions.len() * SECTOR, len as usize);
                let current = model.sectors.iter().map(Sector::current);
                assert!(
                    versions.iter().copied().eq(current.take(versions.len())),
                    "file {id}"
                );
                Ok(())
            }
        };
        match result {
            Err(VolumeError::Full { .. }) => {
                model.catch_up(id, file)?;
                Ok(())
            }
            Ok(()) if is_durable && kind == 0 => {
                // The bytes, and the length that covers them.
                model.lens = vec![model.len()];
                let sectors = range.start as usize / SECTOR..range.end as usize / SECTOR;
                model.sectors[sectors].iter_mut().for_each(Sector::settle);
                Ok(())
            }
            Ok(()) if is_durable => {
                model.settle();
                Ok(())
            }
            result => result,
        }
    }

    /// Opens the volume again, and compares it with the model.
    fn reopen(&mut self) {
        self.handles.clear();
        let report = fsck(&blocking(&self.drive)).unwrap();
        assert_eq!(report.faults, Vec::<String>::new());
        self.volume = open(&self.drive).unwrap();
        let list = self.volume.list();
        let has = |names: &&Names| {
            list.iter()
                .map(|(name, _)| name.as_str())
                .eq(names.keys().copied())
        };
        // The newest state with these names whose files fit.
        let fitting = self.names.iter().rev().filter(has).find(|names| {
            names.iter().all(|(name, id)| {
                let file = self.volume.open_file(name).unwrap();
                let mut contents = vec![0; file.len() as usize];
                file.read_batch([(0, &mut contents[..])]).unwrap();
                let is_own = |sector: &[u8]| {
                    sector[..4] == id.to_le_bytes() || sector.iter().all(|byte| *byte == 0)
                };
                self.files[id].lens.contains(&file.len()) && contents.chunks(SECTOR).all(is_own)
            })
        });
        let Some(names) = fitting.cloned() else {
            let lens: Vec<_> = self
                .files
                .iter()
                .map(|(id, file)| (id, &file.lens))
                .collect();
            panic!(
                "{list:?} is none of {:?} with the lengths {lens:?}",
                self.names
            );
        };
        for (name, id) in &names {
            let file = self.volume.open_file(name).unwrap();
            let model = self.files.get_mut(id).unwrap();
            for (index, version) in versions(*id, &file).unwrap().into_iter().enumerate() {
                let sector = &mut model.sectors[index];
                assert!(
                    sector.durable == version || sector.later.contains(&version),
                    "file {id} ({name}), sector {index}: {version} is none of {sector:?}"
                );
                *sector = Sector {
                    durable: version,
                    later: Vec::new(),
                };
            }
            for sector in &mut model.sectors[file.len() as usize / SECTOR..] {
                *sector = Sector::default();
            }
            model.lens = vec![file.len()];
            self.handles.insert(*id, file);
        }
        self.names = vec![names];
    }

    fn run(mut self, rounds: u32) -> Self {
        for _ in 0..rounds {
            if self.random.u32(..4) > 0 {
                self.drive.fail_after(self.random.u64(..120));
            }
            let steps = self.random.u32(..120);
            let failed = (0..steps).find_map(|_| self.step().err());
            self.drive.fail_after(u64::MAX);
            // Nothing is known about contents whose write failed; those of the directory must not
            // matter.
            let data = (JOURNAL + (64 << 10)) / self.drive.info().block_size as u64;
            let is_unknown = match &failed {
                Some(VolumeError::Drive(DriveError::Media { target, .. })) => {
                    matches!(target.kind, CommandKind::Write { .. }) && target.lba >= data
                }
                Some(error) => panic!("{error}"),
                None => false,
            };
            if is_unknown || self.random.u32(..3) > 0 {
                self.drive = self.drive.crash(self.random.u64(..));
            }
            // Otherwise only the process ends, and the drive keeps its cache.
            self.reopen();
        }
        self
    }
}

#[test]
fn histories_keep_what_was_acknowledged() {
    let count = std::env::var("BRAID_VOLUME_HISTORIES").map_or(200, |n| n.parse().unwrap());
    let first = std::env::var("BRAID_VOLUME_SEED").map_or(0, |n| n.parse().unwrap());
    let mut generations = 0;
    for seed in first..first + count {
        let run = std::panic::catch_unwind(|| History::new(seed).run(6).volume.info().generation);
        match run {
            Ok(generation) => generations += generation,
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(generations > 2 * count, "{generations}");
}
