//! The contents of a drive in memory, block by block, with what its cache has.

use std::collections::BTreeMap;

/// One version of a block in the cache.
#[derive(Clone)]
struct Version {
    /// Number of the write.
    write: u64,
    /// Number of the write's part that survives a power failure whole or not at all.
    part: u64,
    /// When the completion was returned; `None` if the write is in flight.
    completed: Option<u64>,
    bytes: Box<[u8]>,
}

/// One block that was ever written.
#[derive(Clone)]
struct Block {
    durable: Option<Box<[u8]>>,
    /// Versions in the cache, in the order in which the drive performed the writes.
    cached: Vec<Version>,
}

#[derive(Clone)]
pub(crate) struct Blocks {
    zeros: Box<[u8]>,
    blocks: BTreeMap<u64, Block>,
    /// Blocks whose cache is not empty.
    dirty: std::collections::BTreeSet<u64>,
    writes: u64,
    /// Counts completions and flushes.
    clock: u64,
}

impl Blocks {
    pub(crate) fn new(block_size: usize) -> Self {
        Self {
            zeros: vec![0; block_size].into(),
            blocks: BTreeMap::new(),
            dirty: std::collections::BTreeSet::new(),
            writes: 0,
            clock: 0,
        }
    }

    /// The number of the next write.
    pub(crate) fn next_write(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// Puts a block into the cache.
    pub(crate) fn cache(&mut self, lba: u64, write: u64, part: u64, bytes: &[u8]) {
        let block = self.blocks.entry(lba).or_insert(Block {
            durable: None,
            cached: Vec::new(),
        });
        block.cached.push(Version {
            write,
            part,
            completed: None,
            bytes: bytes.into(),
        });
        self.dirty.insert(lba);
    }

    /// Marks the write as completed, in these blocks; makes it durable there if `durable` is set.
    pub(crate) fn complete(&mut self, lbas: std::ops::Range<u64>, write: u64, durable: bool) {
        self.clock += 1;
        for lba in lbas {
            let Some(block) = self.blocks.get_mut(&lba) else {
                continue;
            };
            let Some(at) = block.cached.iter().position(|v| v.write == write) else {
                continue;
            };
            block.cached[at].completed = Some(self.clock);
            if durable {
                block.settle(at);
                if block.cached.is_empty() {
                    self.dirty.remove(&lba);
                }
            }
        }
    }

    /// The current time; a flush that is submitted now covers writes that completed by then.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    /// Makes all writes durable that completed by the time; all writes, for `u64::MAX`.
    pub(crate) fn flush(&mut self, time: u64) {
        let (blocks, clock) = (&mut self.blocks, u64::MAX);
        self.dirty.retain(|lba| {
            let block = blocks.get_mut(lba).expect("a block in the cache");
            let covered = |v: &Version| time == clock || v.completed.is_some_and(|at| at <= time);
            if let Some(at) = block.cached.iter().rposition(covered) {
                block.settle(at);
            }
            !block.cached.is_empty()
        });
    }

    pub(crate) fn newest(&self, lba: u64) -> &[u8] {
        self.blocks.get(&lba).map_or(&self.zeros, |block| {
            block
                .cached
                .last()
                .map(|version| &version.bytes)
                .or(block.durable.as_ref())
                .unwrap_or(&self.zeros)
        })
    }

    /// What a power failure leaves: each part of each write survives, or not, by itself.
    pub(crate) fn survivors(&self, seed: u64) -> Self {
        // A tenth of the power failures loses everything volatile, and a tenth nothing.
        let share = match fastrand::Rng::with_seed(seed).u8(..) {
            0..26 => 0,
            26..52 => 256,
            other => u16::from(other),
        };
        let survives = |version: &Version| {
            let word = mix(mix(mix(seed) ^ version.write) ^ version.part);
            u16::from(word.to_le_bytes()[0]) < share
        };
        let mut next = self.clone();
        for lba in &self.dirty {
            let block = next.blocks.get_mut(lba).expect("a block in the cache");
            if let Some(at) = block.cached.iter().rposition(survives) {
                block.settle(at);
            }
            block.cached.clear();
        }
        next.dirty.clear();
        next
    }

    pub(crate) fn truncate(&mut self, blocks: u64) {
        self.blocks.split_off(&blocks);
        self.dirty.split_off(&blocks);
    }

    pub(crate) fn flip_bit(&mut self, lba: u64, bit: usize) {
        let mut bytes = self.newest(lba).to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let durable = Some(bytes.into());
        let cached = Vec::new();
        self.blocks.insert(lba, Block { durable, cached });
        self.dirty.remove(&lba);
    }
}

impl Block {
    /// Makes a version in the cache durable, and drops the versions before it.
    fn settle(&mut self, at: usize) {
        let version = self.cached.drain(..=at).next_back();
        self.durable = version.map(|version| version.bytes);
    }
}

/// Returns a word every bit of which depends on every bit of the argument (the finalizer of
/// SplitMix64).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
