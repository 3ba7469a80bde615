//! Images of files, and scripts that damage them.
//!
//! A script is a mode byte followed by edits: an operation, a block, an offset in it, and a value.
//! Any bytes are a script, and a few of them reach any field of the image. A fuzzer could not do
//! that by mutating a file of a hundred kilobytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use braid_io::{Device, MemoryDevice, OpenMode};

/// Boundary values of lengths, counts and numbers.
const BOUNDARIES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0xff,
    0xfff,
    0x1000,
    0x1fff,
    0x2000,
    0x7fff,
    0xffff,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 60,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Reads a script, or any other input, from the start to the end.
#[derive(Clone, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// Returns the next byte; zero after the end.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// Returns a number of up to eight bytes.
    pub fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |n, i| n | u64::from(self.byte()) << (8 * i))
    }

    /// Returns whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Effects of a script.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// First byte of the script.
    pub mode: u8,
    /// Whether blocks or files were replaced by others, which checksums cannot detect.
    pub replaced: bool,
    /// Whether the only edit truncated or removed a file. Then missing data must be an error.
    pub lost_file: bool,
}

/// Effect of an edit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// Bytes were changed, or nothing.
    Bytes,
    /// A block was replaced by another one.
    Replaced,
    /// A file was truncated or removed.
    LostFile,
}

impl Outcome {
    /// Returns whether the script repairs checksums.
    pub fn seals(&self) -> bool {
        self.mode & 1 != 0
    }

    /// Returns whether the script also repairs the fields that bind a block to its address.
    pub fn rebinds(&self) -> bool {
        self.mode & 2 != 0
    }

    /// Returns whether checksums must detect all edits of the script.
    pub fn must_be_noticed(&self) -> bool {
        !self.seals() && !self.replaced
    }
}

/// Contents of a device.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Names and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// Indices of the files that are removed.
    pub removed: BTreeSet<usize>,
    /// Size of the unit of edits.
    pub block: usize,
}

impl Image {
    /// Reads the contents of a device.
    ///
    /// # Panics
    ///
    /// If the device fails.
    pub fn of(device: &dyn Device, block: usize) -> Self {
        let entries = device.list().expect("the device lists its files");
        let files = entries.into_iter().map(|entry| {
            let file = device
                .open(&entry.name, OpenMode::Existing)
                .expect("a listed file opens");
            let mut bytes = vec![0; entry.len as usize];
            file.read_at(&mut bytes, 0).expect("the file is read");
            (entry.name, bytes)
        });
        Self {
            files: files.collect(),
            removed: BTreeSet::new(),
            block,
        }
    }

    /// Creates a device with these contents.
    ///
    /// # Panics
    ///
    /// If the device fails.
    pub fn device(&self) -> Arc<MemoryDevice> {
        let device = MemoryDevice::new();
        for (name, bytes) in self.there() {
            let file = device
                .open(name, OpenMode::CreateNew)
                .expect("names differ");
            file.write_at(&[bytes], 0).expect("memory takes it");
        }
        Arc::new(device)
    }

    /// Iterates over the files that are not removed.
    pub fn there(&self) -> impl Iterator<Item = &(String, Vec<u8>)> {
        let files = (0..).zip(&self.files);
        let there = files.filter(|(file, _)| !self.removed.contains(file));
        there.map(|(_, file)| file)
    }

    /// Returns the number of bytes of all files.
    pub fn len(&self) -> usize {
        self.files.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Returns whether the files are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the file and offset of a block, counted through all files; wraps.
    fn place(&self, block: u64) -> Option<(usize, usize)> {
        let count = |bytes: &Vec<u8>| (bytes.len() / self.block) as u64;
        let total: u64 = self.files.iter().map(|(_, bytes)| count(bytes)).sum();
        let mut left = block.checked_rem(total)?;
        for (file, (_, bytes)) in self.files.iter().enumerate() {
            if left < count(bytes) {
                return Some((file, left as usize * self.block));
            }
            left -= count(bytes);
        }
        None
    }

    /// Applies the edits of a script.
    pub fn edit(&mut self, script: &mut Input<'_>) -> Outcome {
        let mut outcome = Outcome {
            mode: script.byte(),
            replaced: false,
            lost_file: false,
        };
        let mut edits = Vec::new();
        while !script.is_empty() {
            edits.push(self.edit_once(script));
        }
        outcome.replaced = edits.iter().any(|edit| *edit != Edit::Bytes);
        outcome.lost_file = edits == [Edit::LostFile];
        outcome
    }

    fn edit_once(&mut self, script: &mut Input<'_>) -> Edit {
        let op = script.byte();
        let width = 1usize << (op & 3);
        let Some((file, block)) = self.place(script.number(2)) else {
            return Edit::Bytes;
        };
        // Most fields are at the beginning of a block.
        let near = op & 0x80 == 0;
        let at = script.number(if near { 1 } else { 2 }) as usize % self.block;
        let at = (block + at - at % width).min(block + self.block - width);
        let bytes = &mut self.files[file].1;
        let mut word = [0; 8];
        word[..width].copy_from_slice(&bytes[at..at + width]);
        let old = u64::from_le_bytes(word);
        let new = match op >> 2 & 15 {
            0..=2 => script.number(width),
            3..=6 => BOUNDARIES[usize::from(script.byte()) % BOUNDARIES.len()],
            7 | 8 => old ^ script.number(width),
            9 | 10 => old.wrapping_add(script.byte() as i8 as u64),
            11 => {
                // A value copied from another place.
                let Some((file, block)) = self.place(script.number(2)) else {
                    return Edit::Bytes;
                };
                let at = block + script.byte() as usize / width * width;
                let bytes = &self.files[file].1[at..at + width];
                word[..width].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
            12 | 13 => {
                let Some((from_file, from)) = self.place(script.number(2)) else {
                    return Edit::Bytes;
                };
                let copy = self.files[from_file].1[from..from + self.block].to_vec();
                self.files[file].1[block..block + self.block].copy_from_slice(&copy);
                return Edit::Replaced;
            }
            14 => {
                bytes[at..block + self.block].fill(0);
                return Edit::Bytes;
            }
            _ if width == 8 => {
                if near {
                    bytes.truncate(at)
                } else {
                    self.removed.insert(file);
                }
                return Edit::LostFile;
            }
            _ => !old,
        };
        self.files[file].1[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
        Edit::Bytes
    }
}
