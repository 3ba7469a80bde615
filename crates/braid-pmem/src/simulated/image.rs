//! What simulated memory holds after a crash.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::words::WORD;

/// The bytes that survived, and the lines that the medium lost.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    pub(super) words: Vec<u64>,
    pub(super) line_size: usize,
    /// Numbers of lost lines.
    pub(super) lost: BTreeSet<u64>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("len", &self.len())
            .field("line_size", &self.line_size)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Image {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.words.len() * WORD) as u64
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the bytes, without regard to lost lines.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect()
    }

    /// Replaces bytes, as damage that no error reports.
    ///
    /// # Panics
    ///
    /// If the image ends before the bytes.
    pub fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        let at = usize::try_from(offset).expect("an offset in memory");
        crate::words::parts(at, bytes, |index, part| {
            self.words[index] = part.merged(self.words[index]);
        });
    }

    /// Tears a range: some of its words, at least one, become zero. The seed selects them. It is as
    /// if its last write had never become durable in parts.
    ///
    /// # Panics
    ///
    /// If the range is empty or not in the image.
    pub fn tear(&mut self, range: Range<u64>, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let words = self.word_range(range);
        let certain = random.usize(words.clone());
        for index in words {
            if index == certain || random.bool() {
                self.words[index] = 0;
            }
        }
    }

    /// Loses every line of a range: reading it fails with [`crate::MediaError`].
    pub fn lose(&mut self, range: Range<u64>) {
        self.lost.extend(lines(range, self.line_size));
    }

    /// Makes lost lines readable again, as zeros.
    pub fn replace_lost(&mut self) {
        for line in std::mem::take(&mut self.lost) {
            let words = self.word_range(line_range(line, self.line_size));
            self.words[words].fill(0);
        }
    }

    /// Changes the size of a line, as a machine with other caches would.
    #[must_use]
    pub fn with_line_size(mut self, line_size: usize) -> Self {
        self.line_size = line_size;
        self
    }

    fn word_range(&self, range: Range<u64>) -> Range<usize> {
        let at = |offset: u64| usize::try_from(offset).expect("an offset in memory");
        at(range.start) / WORD..at(range.end).div_ceil(WORD).min(self.words.len())
    }
}

/// The numbers of the lines that contain a range of bytes.
pub(super) fn lines(range: Range<u64>, line_size: usize) -> Range<u64> {
    let size = line_size as u64;
    if range.is_empty() {
        return 0..0;
    }
    range.start / size..range.end.div_ceil(size)
}

/// The bytes of a line.
pub(super) fn line_range(line: u64, line_size: usize) -> Range<u64> {
    let start = line * line_size as u64;
    start..start + line_size as u64
}
