//! Options.

use std::fmt;
use std::str::FromStr;

/// Options of a new log. They are recorded in it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LogOptions {
    /// Bytes of a page: 1 to 16 MiB.
    pub page_size: u32,
    /// Bytes of a block of the log: a multiple of 64, at least 128. Records may be longer than
    /// blocks.
    pub block_size: u64,
    /// Bytes of the region that the log can take.
    pub max_bytes: u64,
}

impl Default for LogOptions {
    /// Pages of 4 KiB, blocks of 64 KiB, at most 16 GiB.
    fn default() -> Self {
        Self {
            page_size: 4096,
            block_size: 64 << 10,
            max_bytes: 16 << 30,
        }
    }
}

impl LogOptions {
    /// Sets [`page_size`](Self::page_size).
    #[must_use]
    pub fn page_size(mut self, bytes: u32) -> Self {
        self.page_size = bytes;
        self
    }

    /// Sets [`block_size`](Self::block_size).
    #[must_use]
    pub fn block_size(mut self, bytes: u64) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }
}

/// When a commit flushes and fences. Every mode makes the transaction durable before `commit`
/// returns, and recovery reads all of them in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitMode {
    /// Each record is flushed and fenced when it is appended; then the mark.
    Eager,
    /// All records are flushed together, with one fence before the mark and one after it.
    #[default]
    Lazy,
    /// Records and commit record are flushed together, with a single fence. Recovery knows from
    /// checksums whether all of the transaction arrived.
    Checksum,
}

impl fmt::Display for CommitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Checksum => "checksum",
        })
    }
}

impl FromStr for CommitMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "eager" => Ok(Self::Eager),
            "lazy" => Ok(Self::Lazy),
            "checksum" => Ok(Self::Checksum),
            _ => Err(format!(
                "{name:?} is not a commit mode; choose one of lazy, checksum, eager"
            )),
        }
    }
}

/// Options of a [`crate::Writer`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriterOptions {
    /// When a commit flushes and fences.
    pub mode: CommitMode,
    /// Most differences in a row before a page is logged as a whole again. Zero logs whole pages
    /// only, without ranges of zeros.
    pub chain_limit: u8,
    /// Logs every byte of every page, as a log without differences does; to compare with.
    pub whole_pages: bool,
    /// Most pages whose newest images are kept in ordinary memory, so that a difference is computed
    /// without reading the log.
    pub cached_pages: usize,
    /// Most bytes of the log from the mark to the last durable transaction in mode
    /// [checksum](CommitMode::Checksum). The mark lies in another page, which a fence writes
    /// separately where it is a system call. A log that loses these bytes looks like a shorter one.
    pub mark_interval: u64,
    /// Writes the records of a transaction at once, when it commits, where a write is a system call
    /// ([`MapOptions::prewritten`](braid_pmem::MapOptions::prewritten)). Costs a copy of each record.
    pub gather: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            mode: CommitMode::Lazy,
            chain_limit: 16,
            whole_pages: false,
            cached_pages: 1024,
            mark_interval: 0,
            gather: false,
        }
    }
}

impl WriterOptions {
    /// Sets [`mode`](Self::mode).
    #[must_use]
    pub fn mode(mut self, mode: CommitMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`chain_limit`](Self::chain_limit).
    #[must_use]
    pub fn chain_limit(mut self, differences: u8) -> Self {
        self.chain_limit = differences;
        self
    }

    /// Sets [`whole_pages`](Self::whole_pages).
    #[must_use]
    pub fn whole_pages(mut self, whole: bool) -> Self {
        self.whole_pages = whole;
        self
    }

    /// Sets [`cached_pages`](Self::cached_pages).
    #[must_use]
    pub fn cached_pages(mut self, pages: usize) -> Self {
        self.cached_pages = pages;
        self
    }

    /// Sets [`mark_interval`](Self::mark_interval).
    #[must_use]
    pub fn mark_interval(mut self, bytes: u64) -> Self {
        self.mark_interval = bytes;
        self
    }

    /// Sets [`gather`](Self::gather).
    #[must_use]
    pub fn gather(mut self, gather: bool) -> Self {
        self.gather = gather;
        self
    }
}
