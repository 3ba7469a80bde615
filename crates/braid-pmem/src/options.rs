//! Kinds of mappings, and how to map a file.

use std::fmt;
use std::str::FromStr;

/// What a mapping's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingKind {
    /// Persistent memory, accessed directly (DAX): flushed lines are durable after a fence.
    Dax,
    /// An ordinary file: a fence makes a system call that writes its pages. Correct, and slow.
    File,
    /// Ordinary memory that is treated like persistent memory, for measurements. Its bytes are
    /// lost with the power.
    Emulated,
    /// Memory that loses lines as a seed determines; see [`crate::SimulatedMemory`].
    Simulated,
}

impl fmt::Display for MappingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::File => "file",
            Self::Emulated => "emulated",
            Self::Simulated => "simulated",
        })
    }
}

/// How to map a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapAs {
    /// [`MappingKind::Dax`] where the file system offers it, otherwise [`MappingKind::File`].
    #[default]
    Auto,
    /// [`MappingKind::Dax`], or an error.
    Dax,
    /// [`MappingKind::File`].
    File,
    /// [`MappingKind::Emulated`].
    Emulated {
        /// Nanoseconds that flushing one line takes on top of the instruction.
        line_latency: u32,
    },
}

impl FromStr for MapAs {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "dax" => Ok(Self::Dax),
            "file" => Ok(Self::File),
            "emulated" => Ok(Self::Emulated { line_latency: 0 }),
            _ => Err(format!(
                "{name:?} is not a kind of region; choose one of auto, dax, file, emulated"
            )),
        }
    }
}

/// Options of [`crate::Mapping::of_file`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MapOptions {
    /// The kind of mapping.
    pub map_as: MapAs,
    /// Bytes that the mapping can grow to. Addresses are reserved for them, memory is not. If the
    /// process cannot have so many addresses, fewer are reserved, at least for the file's length;
    /// [`Mapping::capacity`](crate::Mapping::capacity) tells how many. By default 64 GiB.
    pub capacity: u64,
    /// Whether to map for reading only. Storing then panics.
    pub read_only: bool,
    /// Whether growing an ordinary file writes its new bytes. A fence then writes pages that have
    /// their place on the device: it waits for the device once, and not for the file system's own log
    /// as well. The kernel keeps the file in single pages, so that it writes no more than was changed.
    /// [`write`](crate::Mapping::write) is a system call then; a thread that reads the same word at the
    /// same time may find a part of the new one.
    pub prewritten: bool,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self {
            map_as: MapAs::Auto,
            capacity: 64 << 30,
            read_only: false,
            prewritten: false,
        }
    }
}

impl MapOptions {
    /// Sets [`map_as`](Self::map_as).
    #[must_use]
    pub fn map_as(mut self, map_as: MapAs) -> Self {
        self.map_as = map_as;
        self
    }

    /// Sets [`capacity`](Self::capacity).
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets [`read_only`](Self::read_only).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets [`prewritten`](Self::prewritten).
    #[must_use]
    pub fn prewritten(mut self, prewritten: bool) -> Self {
        self.prewritten = prewritten;
        self
    }
}
