//! The coverage that a long run must reach: a fault that never occurred, or a branch that was never
//! taken, is a gap in the suite.
//!
//! The length of a run is its number of histories, since seeds of one kind of plan are alike. Each
//! event has the number of histories in which it occurred at least ten times on average, so that it
//! is missing in one of 20,000 runs of that length. It may be missing in a shorter run.

use std::collections::BTreeMap;

use crate::simulate::{Count, Summary};

/// The number of histories in `cargo test`.
pub const LONG: u64 = 14_000;

const LONGER: u64 = 100_000;

/// The events, and the number of histories in which each certainly happens: the actions of the
/// simulator, and every branch of the engine that is marked with `braid_rt::coverage_point`. A test
/// compares the list with the sources.
pub const HAPPENS: &[(&str, u64)] = &[
    ("a callback panics", LONG),
    ("a closure panics", LONG),
    ("a log file cut", LONG),
    ("a log file removed", LONG),
    ("a log file replaced by an earlier copy", LONG),
    ("a part of the order lost", LONG),
    ("a scan is forgotten", LONG),
    ("a tablespace created", LONG),
    ("a tablespace dropped", LONG),
    ("a tablespace's device broken for good", LONG),
    ("a tablespace's device full", LONG),
    ("a tablespace's read error", LONG),
    ("a tablespace's write or sync error", LONG),
    ("a tail of the order lost", LONG),
    ("archives lack transactions", LONG),
    ("archives restored", LONG),
    ("checkpoint: pauses", LONG),
    ("checkpoint: somebody waits for a paced one", LONG),
    ("checkpoint: waits for the log", LONG),
    ("a transaction waits for another one of its thread", LONG),
    ("a thread gets no processor for a while", LONG),
    ("a thread wakes for no reason", LONG),
    ("closed cleanly", LONG),
    ("copies of a database share an archive", LONG),
    ("commit: a logged transaction can't be applied", LONG),
    ("damage of a tablespace reported when opening", LONG),
    ("damage reported when opening", LONG),
    ("damage: a chunk after the end names what is missing", LONG),
    (
        "damage: a segment after the end shows that log is missing",
        LONGER,
    ),
    ("damage: a segment of another length", LONGER),
    ("damage: a segment that was begun is missing", LONG),
    (
        "damage: chunks before a later incarnation are missing",
        LONGER,
    ),
    ("damage: acknowledged numbers are missing", LONG),
    (
        "damage: the header of the segment where recovery begins",
        LONG,
    ),
    ("device: a failed sync loses what it was for", LONG),
    ("device: a read fails", LONG),
    ("device: a sector of a killed process is lost", LONG),
    ("device: a sector that was not synced is lost", LONG),
    ("device: a sync fails", LONG),
    ("device: a write fails", LONG),
    ("device: names are lost", LONG),
    ("device: names of a killed process are lost", LONG),
    ("device: the power fails in the middle of a write", LONG),
    ("device: there is no room", LONG),
    ("device: words of a cache line are torn", LONG),
    ("device broken for good", LONG),
    ("device full", LONG),
    ("device full with a small pool", LONG),
    ("foreign document in the directory", LONG),
    ("foreign marker in the directory", LONG),
    ("flipped bit in the data file", LONG),
    ("flipped bit in the log", LONG),
    ("flush: a mark waits for its header", LONG),
    ("flush: chunks share a unit of the device", LONG),
    ("gap rule: a dependency in another lane is lost", LONG),
    ("gap rule: flushes after a gap", LONG),
    ("gap rule: numbers after a gap", LONG),
    ("gate: an operation comes after close", LONG),
    ("gate: close waits for an operation", LONG),
    ("killed while closing", LONG),
    ("killed while opening", LONG),
    ("killed while working", LONG),
    ("locks: a lock overflows", LONG),
    ("locks: a transaction waits for an overflowed lock", LONG),
    ("locks: a wait takes too long", LONG),
    ("log: a commit comes after close", LONG),
    ("log: a commit makes a segment beside one made ahead", LONG),
    ("log: a commit waits for a checkpoint", LONG),
    ("log: a snapshot waits for a long application", LONG),
    ("log: a segment is used again", LONG),
    ("log: background work pauses for commits", LONG),
    ("log: commits slow down", LONG),
    ("log: half of its limit is used", LONG),
    ("log: it has grown", LONG),
    ("log: segments grow", LONG),
    ("log: segments are preallocated", LONG),
    ("log: poisoned", LONG),
    ("looked at before it is opened to write", LONG),
    ("lost sector in the data file", LONG),
    ("lost sector in the log", LONG),
    ("media fault in a tablespace", LONG),
    ("no residue of clients", LONG),
    ("number of strands changed", LONG),
    ("opened again alongside old handles", LONG),
    ("opened in persistent memory", LONG),
    ("opened in spite of a tampered log file", LONG),
    ("opened in spite of media faults", LONG),
    ("opened with small blocks", LONG),
    ("opened with the data in persistent memory", LONG),
    ("opened with the log in persistent memory", LONG),
    ("opening: a removal from a table that is dropped", LONG),
    (
        "opening: a tablespace has a newer checkpoint than the main one",
        LONG,
    ),
    ("opening: a tombstone to be purged", LONG),
    ("opening: a tree that no table refers to", LONG),
    ("opening: an unfinished creation is removed", LONG),
    ("opening: another number of strands", LONG),
    ("opening: another protocol", LONG),
    ("one page damaged, and the rest is open", LONG),
    ("opening: read-only, since a page is damaged", LONG),
    (
        "opening: the marker of a finished creation is removed",
        LONG,
    ),
    ("opening: log is kept for an archive or a feed", LONG),
    ("opening: the rest of a tablespace is removed", LONG),
    ("power cut while closing", LONG),
    ("power cut while opening", LONG),
    ("power cut while working", LONG),
    ("protocol switched", LONG),
    ("read error", LONG),
    ("reads fail at random", LONG),
    ("read error while opening", LONG),
    (
        "readers: a newer checkpoint came between look and pin",
        LONGER,
    ),
    ("readers: a table's handle is used in another state", LONG),
    ("readers: a replaced checkpoint is kept", LONG),
    ("readers: log is kept", LONG),
    (
        "recovery: a lane without chunks alongside one with some",
        LONG,
    ),
    ("recovery: a large log record", LONG),
    ("recovery: a large log record that does not count", LONGER),
    ("recovery: a missing successor mark is written", LONGER),
    ("recovery: a segment after the end", LONGER),
    ("recovery: a segment is removed", LONG),
    ("recovery: a successor mark is removed", LONGER),
    ("recovery: an old segment is kept for use", LONG),
    ("recovery: an unfinished segment is removed", LONG),
    ("recovery: begins in an older incarnation", LONG),
    ("recovery: dead log records of an older incarnation", LONG),
    ("recovery: incarnations that do not count as one", LONG),
    ("recovery: replay fails", LONG),
    (
        "recovery: replay reads again what did not fit in memory",
        LONG,
    ),
    ("recovery: several incarnations", LONG),
    ("recovery: the cut moves to a whole assignment", LONG),
    ("recovery: the next segment is ready", LONG),
    ("recovery: whole log records after the cut", LONG),
    ("replay: a batch before the end", LONG),
    ("replay: an older write in a later batch", LONG),
    ("replay: no room for more during the scan", LONG),
    ("room: a tablespace is full", LONG),
    ("scan: a log record that is not known to be durable", LONG),
    ("scan: a chunk after the end", LONG),
    ("scan: a chunk without a whole log record to replay", LONG),
    ("scan: a stream that was aborted", LONGER),
    ("scan: a stream without a commit record", LONGER),
    ("scan: a log record that the checkpoint has", LONG),
    ("scan: a torn flush", LONG),
    ("scan: ends before a segment that does not continue", LONG),
    ("scan: ends within a unit of the device", LONGER),
    ("scan: ends with the last segment", LONG),
    ("scan: log records are replayed during the scan", LONG),
    ("scan: no room for log records that wait for the cut", LONG),
    ("scan: numbers up to the durable seqno are folded", LONG),
    ("scan: on to a later incarnation", LONG),
    ("scan: on to the next segment", LONG),
    ("scan: the next part to be replayed", LONG),
    ("snapshots: a read finds that its snapshot has ended", LONG),
    ("snapshots: the oldest end because of their space", LONG),
    ("stale page in the data file", LONG),
    ("stale sector in the data file", LONG),
    ("stale sector in the log", LONG),
    ("seen whole after a failure", LONG),
    ("states recovered", LONG),
    ("the health listener panics", LONG),
    ("the last log files removed", LONG),
    ("store: a checkpoint abandoned", LONG),
    ("store: a checkpoint's pages can't be written", LONG),
    ("store: a freed page waits for the checkpoint", LONGER),
    ("store: a layer that has become empty", LONG),
    ("store: a page is read in a batch", LONG),
    ("store: a page is read in place", LONG),
    ("store: a page that is read in place is copied", LONG),
    ("store: a replaced large value is read", LONG),
    ("store: a spare can't be read", LONG),
    ("store: a spare is taken for another page", LONGER),
    ("store: a superblock that is none", LONG),
    ("store: a thread sleeps until a page arrives", LONG),
    ("store: a torn superblock is erased", LONG),
    ("store: an evicted page can't be written", LONGER),
    ("store: births of an unreadable map leaf", LONG),
    ("store: lines of a block are written", LONG),
    ("store: loaded pages can't be written", LONG),
    ("store: poisoned by a superblock's write", LONG),
    ("store: poisoned by a sync", LONG),
    ("store: the data file can't grow", LONG),
    ("store: the data file can't grow for spares", LONGER),
    ("store: the data file's end is cut off", LONG),
    ("store: the image of a changed page moves", LONGER),
    ("store: the newer of two superblocks", LONG),
    ("store: the root can't be written", LONG),
    ("store: the superblock that was found is made durable", LONG),
    ("store: too many lines of a block changed", LONG),
    ("sync error", LONG),
    ("sync error while opening", LONG),
    ("validation: absent because of a later removal", LONG),
    ("validation: an absence of a greater number", LONGER),
    ("validation: the mark of an overflowed lock", LONG),
    ("versions: an older one comes later", LONG),
    ("worked on after a failure", LONG),
    ("write error", LONG),
    ("write error in the archive", LONG),
    ("write error while opening", LONG),
];

/// The events of [`HAPPENS`] that histories with log, data or both in persistent memory do not have.
pub const ON_DISKS: &[&str] = &["opened with small blocks"];

impl Summary {
    /// Returns how often each event happened, including the events that never did.
    pub fn coverage(&self) -> BTreeMap<&'static str, Count> {
        let all = HAPPENS.iter().map(|(what, _)| (*what, Count::default()));
        let mut all: BTreeMap<_, _> = all.collect();
        all.extend(&self.counts);
        all
    }

    /// Returns the events that are missing from a run of this length. The plans must be unchanged
    /// from their seeds except for `pmem`, and cover all protocols.
    pub fn missing(&self, pmem: bool) -> Vec<&'static str> {
        let due = HAPPENS
            .iter()
            .filter(|(_, within)| *within <= self.histories);
        let missing = due.filter(|(what, _)| !self.counts.contains_key(what));
        let missing = missing.filter(|(what, _)| !(pmem && ON_DISKS.contains(what)));
        missing.map(|(what, _)| *what).collect()
    }
}
