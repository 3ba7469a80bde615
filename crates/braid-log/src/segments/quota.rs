//! Accounting of the files of all lanes against the limit set by the options.

use std::sync::atomic::Ordering;

use crate::LogError;
use crate::base::sync::AtomicU64;
use crate::format::BLOCK;
use crate::format::segment::Segment;
use crate::options::LogOptions;

/// Segment files of all lanes and their limit.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    /// Segment files that exist, in any state.
    files: AtomicU64,
    /// Their lengths.
    bytes: AtomicU64,
}

impl Quota {
    /// Segment files that exist.
    pub(crate) fn files(&self) -> u64 {
        // Relaxed: a statistic.
        self.files.load(Ordering::Relaxed)
    }

    /// Reserves quota for a file of `len` bytes, or of at least `least` bytes if the limit has no
    /// room for `len`. Returns the file's length, or `None` if the limit has no room.
    pub(super) fn take(&self, len: u64, least: u64, options: &LogOptions) -> Option<u64> {
        let limit = match options.max_log_bytes {
            0 => u64::MAX,
            limit => limit,
        };
        let fitting = |used: u64| {
            let left = limit.saturating_sub(used);
            let len = len.min(left - left % BLOCK as u64);
            (len >= least).then_some(len)
        };
        // Relaxed: the sum orders nothing else.
        let before = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                fitting(used).map(|len| used + len)
            });
        let len = before.ok().and_then(fitting);
        self.files
            .fetch_add(u64::from(len.is_some()), Ordering::Relaxed);
        len
    }

    /// Counts files that were found on opening.
    pub(crate) fn add<'a>(&self, files: impl Iterator<Item = &'a Segment>) {
        for file in files {
            self.files.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(file.len, Ordering::Relaxed);
        }
    }

    /// Returns the error of a commit that needs `needed` bytes more than exist or may exist.
    pub(crate) fn out_of_space(
        &self,
        options: &LogOptions,
        needed: u64,
        device_full: bool,
    ) -> LogError {
        LogError::OutOfSpace {
            needed,
            used: self.bytes.load(Ordering::Relaxed),
            limit: options.max_log_bytes,
            device_full,
            kept_for: None,
        }
    }

    /// Whether the limit has room for a file of `len` bytes.
    pub(super) fn has_room(&self, len: u64, options: &LogOptions) -> bool {
        let used = self.bytes.load(Ordering::Relaxed);
        options.max_log_bytes == 0 || used.saturating_add(len) <= options.max_log_bytes
    }

    /// Counts `bytes` less: a file became shorter.
    pub(super) fn shorten(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn release(&self, len: u64) {
        self.files.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(len, Ordering::Relaxed);
    }
}
