//! A directory whose files are mapped: persistent memory, or what stands in for it.
//!
//! Reads and writes copy between memory and the mapping, and make no system call. A write flushes
//! its cache lines and ends with a fence, so on persistent memory every write is durable when it
//! returns. Over the pages of an ordinary file, [`File::sync`] and durable writes make the system
//! call that writes the pages.
//!
//! Only changes of a file's length, the bytes after the last whole page of the system, and names
//! need system calls.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use braid_pmem::{FenceError, MapAs, MapError, MapOptions, Mapping, MappingKind, MediaError};
use braid_rt::atomic::{AtomicBool, AtomicU64, Ordering};
use braid_rt::{Mutex, numa};

use crate::device::end_of;
use crate::posix::PosixFile;
use crate::{
    AlignedBuf, Device, DeviceKind, Entry, File, FileDevice, OpenMode, ReaderTable, WriteOp,
};

/// The unit of writes: a cache line.
const LINE: usize = 64;

/// Bytes that a segment of the log can grow to; addresses are reserved for them.
const SEGMENT_CAPACITY: u64 = 1 << 31;

/// As `SEGMENT_CAPACITY`, for every other file.
const FILE_CAPACITY: u64 = 1 << 40;

/// The file with which a directory is probed.
const PROBE: &str = ".braid-probe";

/// A [`Device`] over a directory whose files are mapped; see the module's documentation.
#[derive(Debug)]
pub struct PmemDevice {
    names: FileDevice,
    map_as: MapAs,
    kind: MappingKind,
    /// The memory node on which files grow.
    node: Option<usize>,
}

impl PmemDevice {
    /// Opens an existing directory. Created files get the permissions `mode`, as in `chmod(2)`.
    ///
    /// # Errors
    ///
    /// `NotFound` or `NotADirectory`; `Unsupported` if the directory's file system cannot be mapped
    /// like this; or the error of a system call.
    pub fn with_mode(directory: &Path, mode: u32, map_as: MapAs) -> io::Result<Self> {
        let names = FileDevice::buffered(directory, mode)?;
        let kind = probe(&names, map_as)?;
        Ok(Self {
            names,
            map_as,
            kind,
            node: None,
        })
    }

    /// Sets the memory node on which files grow that lie in the machine's memory. Those on persistent
    /// memory lie where that is.
    #[must_use]
    pub fn on_node(self, node: Option<usize>) -> Self {
        Self { node, ..self }
    }

    fn open_file(&self, name: &str, mode: OpenMode) -> io::Result<PmemFile> {
        let posix = self.names.open_file(name, mode)?;
        let capacity = if name.starts_with("log-") {
            SEGMENT_CAPACITY
        } else {
            FILE_CAPACITY
        };
        let options = MapOptions::default().map_as(self.map_as).capacity(capacity);
        let len = posix.len()?;
        let mapping = Mapping::of_file(posix.file()?, &options).map_err(unmapped);
        let mapping = mapping.map_err(posix.named("map"))?;
        Ok(PmemFile {
            len: AtomicU64::new(len),
            file: posix.file()?,
            posix,
            mapping,
            node: self.node,
            resizing: Mutex::new(()),
            // A process that was killed may have stored bytes without flushing their lines. The
            // system knows which pages were written.
            is_unsynced: AtomicBool::new(true),
            #[cfg(test)]
            resizes: AtomicU64::new(0),
            #[cfg(test)]
            syncs: AtomicU64::new(0),
        })
    }
}

/// Returns the kind of mapping that files of the directory get.
fn probe(names: &FileDevice, map_as: MapAs) -> io::Result<MappingKind> {
    let create = || names.open_file(PROBE, OpenMode::CreateNew);
    let file = create().or_else(|error| match error.kind() {
        // Of a process that ended in the middle.
        io::ErrorKind::AlreadyExists => names.remove(PROBE).and_then(|()| create()),
        _ => Err(error),
    })?;
    let probed = file.reserve(1 << 16).and_then(|()| {
        let options = MapOptions::default().map_as(map_as).capacity(1 << 16);
        Ok(Mapping::of_file(file.file()?, &options)
            .map_err(unmapped)?
            .kind())
    });
    let _ = names.remove(PROBE);
    probed
}

fn unmapped(error: MapError) -> io::Error {
    match error {
        MapError::NotDax
        | MapError::FalseDax
        | MapError::Volatile
        | MapError::Unsupported(_)
        | MapError::NoFiles => io::Error::new(io::ErrorKind::Unsupported, error),
        MapError::NoSpace { .. } => io::Error::new(io::ErrorKind::StorageFull, error),
        MapError::System { action, source } => {
            io::Error::new(source.kind(), format!("{action}: {source}"))
        }
        error => io::Error::other(error),
    }
}

fn lost(error: MediaError) -> io::Error {
    io::Error::other(error)
}

fn unfenced(error: FenceError) -> io::Error {
    io::Error::other(error)
}

/// Copies buffers into a mapping and flushes their lines. Returns the end.
fn store_mapped(mapping: &Mapping, bufs: &[&[u8]], offset: u64) -> u64 {
    let mut at = offset;
    for buf in bufs {
        if braid_rt::mutant!("pmem_skip_flush_of_write") {
            mapping.write(at, buf);
        } else {
            mapping.write_flushed(at, buf);
        }
        at += buf.len() as u64;
    }
    at
}

/// Copies buffers into a mapping and flushes their lines. Ends with a fence if `durable`, or if a
/// fence makes no system call: then every write is durable when it returns.
fn write_mapped(
    mapping: &Mapping,
    bufs: &[&[u8]],
    offset: u64,
    durable: bool,
) -> Result<(), FenceError> {
    let end = store_mapped(mapping, bufs, offset);
    let makes_call = mapping.kind() == MappingKind::File;
    if (durable || !makes_call) && !braid_rt::mutant!("pmem_skip_fence_of_write") {
        mapping.fence()?;
    }
    // A fence of one thread makes nothing durable that another thread flushed.
    debug_assert_eq!(mapping.not_durable(offset..end).filter(|_| durable), None);
    Ok(())
}

/// Writes buffers durably after the place of `mark`, and then the mark at `offset`.
fn write_mapped_marked(
    mapping: &Mapping,
    mark: &[u8],
    bufs: &[&[u8]],
    offset: u64,
) -> Result<(), FenceError> {
    let fences = !braid_rt::mutant!("pmem_mark_without_waiting");
    let begin = offset + mark.len() as u64;
    if fences {
        write_mapped(mapping, bufs, begin, true)?;
    } else {
        store_mapped(mapping, bufs, begin);
    }
    write_mapped(mapping, &[mark], offset, true)
}

/// Performs writes as [`write_mapped`] does, with one fence for all.
fn write_mapped_batch(mapping: &Mapping, ops: &[WriteOp<'_>]) -> Result<(), FenceError> {
    for op in ops {
        store_mapped(mapping, &[op.buf], op.offset);
    }
    let makes_call = mapping.kind() == MappingKind::File;
    if !makes_call && !braid_rt::mutant!("pmem_skip_fence_of_batch") {
        mapping.fence()?;
    }
    Ok(())
}

impl Device for PmemDevice {
    fn kind(&self) -> DeviceKind {
        match self.kind {
            MappingKind::Dax => DeviceKind::Pmem,
            MappingKind::Emulated => DeviceKind::PmemEmulated,
            _ => DeviceKind::PmemFile,
        }
    }

    fn block_size(&self) -> usize {
        LINE
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        AlignedBuf::new(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(name, mode)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.names.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.names.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.names.list()
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.names.sync_directory()
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        self.names.reader_table(create)
    }
}

/// An open file.
#[derive(Debug)]
struct PmemFile {
    posix: PosixFile,
    /// The same file, for bytes that are not mapped.
    file: fs::File,
    mapping: Mapping,
    /// The length of the file, which may be smaller than that of the mapping, or end after its last
    /// whole page.
    len: AtomicU64,
    /// The memory node on which it grows.
    node: Option<usize>,
    /// Held while the length changes.
    resizing: Mutex<()>,
    /// Whether the length, or bytes that are not mapped, changed since the last sync, or another
    /// process may have changed bytes before the file was opened.
    is_unsynced: AtomicBool,
    /// Number of changes of the length.
    #[cfg(test)]
    resizes: AtomicU64,
    /// Number of system calls that make all of the file durable.
    #[cfg(test)]
    syncs: AtomicU64,
}

impl PmemFile {
    /// Whether the mapping has the bytes before `end`, and the file, too.
    fn is_mapped(&self, end: u64) -> bool {
        // Acquire: pairs with `resize`. A page after the end of the file cannot be accessed.
        end <= self.len.load(Ordering::Acquire) && end <= self.mapping.len()
    }

    /// Writes the buffers, and ends with a fence if `durable` or if a fence makes no system call.
    fn write(&self, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        if !self.make_room(end_of(offset, len)?)? {
            return self.write_unmapped(bufs, offset, durable);
        }
        write_mapped(&self.mapping, bufs, offset, durable).map_err(unfenced)
    }

    /// Makes the file as long as `end`. Returns whether all bytes before it are mapped.
    #[inline]
    fn make_room(&self, end: u64) -> io::Result<bool> {
        if end > self.len.load(Ordering::Acquire) {
            self.resize(end, false)?;
        }
        Ok(self.is_mapped(end))
    }

    /// Writes buffers that end after the last mapped page.
    #[cold]
    fn write_unmapped(&self, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.file.write_all_at(buf, at)?;
            at += buf.len() as u64;
        }
        if durable {
            return self.file.sync_data();
        }
        // Release: pairs with `sync`.
        self.is_unsynced.store(true, Ordering::Release);
        Ok(())
    }

    /// Extends the file to `len` bytes, or, if `may_truncate`, also makes it shorter.
    fn resize(&self, len: u64, may_truncate: bool) -> io::Result<()> {
        let _resizing = self.resizing.lock();
        let before = self.len.load(Ordering::Acquire);
        #[cfg(test)]
        if len != before {
            self.resizes.fetch_add(1, Ordering::Relaxed);
        }
        if len > before {
            // The system takes pages of a file in memory from the node of the thread.
            let _there = numa::visit(self.node);
            // Space first: on a full medium, a store to a page without space would be lost.
            self.posix.reserve(len)?;
            self.posix.set_len(len)?;
            let pages = len - len % 4096;
            if pages > self.mapping.len() {
                self.mapping.grow(pages).map_err(unmapped)?;
            }
        } else if may_truncate {
            // Before the pages are gone, so that nobody who sees the old length accesses them: the
            // callers of a truncation exclude other operations beyond the new end.
            self.len.store(len, Ordering::Release);
            // Loads of `words` find zeros there, instead of a signal.
            self.mapping.shrink(len).map_err(unmapped)?;
            self.posix.set_len(len)?;
        }
        self.is_unsynced.store(true, Ordering::Release);
        if len > before {
            // Release: pairs with `is_mapped`.
            self.len.store(len, Ordering::Release);
        }
        Ok(())
    }
}

impl File for PmemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::Acquire))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.resize(len, true)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.resize(len, false)
    }

    /// Makes the file longer once: each further change of the length would be three system calls. New
    /// bytes are zero. Has their pages allocated or writes the zeroes, so that no later store waits for
    /// the file system to allocate its page.
    fn fill_zero(&self, range: Range<u64>) -> io::Result<()> {
        let before = self.len.load(Ordering::Acquire);
        if range.end > before {
            self.resize(range.end, false)?;
        }
        let is_new = range.start >= before || braid_rt::mutant!("pmem_keep_bytes_to_be_zero");
        if is_new && self.is_mapped(range.end) && self.mapping.populate(range.clone()) {
            return Ok(());
        }
        let zeroes = AlignedBuf::new(1 << 16);
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(zeroes.len() as u64);
            self.write(&[&zeroes[..braid_rt::to_usize(len)]], at, false)?;
            at += len;
        }
        Ok(())
    }

    /// Keeps the space: a store to a page without space would be lost if the medium became full.
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let end = range.end.min(self.len()?);
        self.fill_zero(range.start.min(end)..end)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = end_of(offset, buf.len())?;
        if end > self.len.load(Ordering::Acquire) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.is_mapped(end) {
            return self.mapping.read(offset, buf).map_err(lost);
        }
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, false)
            .map_err(self.posix.named("write"))
    }

    fn write_durable_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, true)
            .map_err(self.posix.named("write"))
    }

    fn write_marked_at(&self, mark: &[u8], bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let begin = end_of(offset, mark.len())?;
        let end = end_of(begin, bufs.iter().map(|buf| buf.len()).sum());
        let write = || {
            if !self.make_room(end?)? {
                self.write_unmapped(bufs, begin, true)?;
                return self.write(&[mark], offset, true);
            }
            write_mapped_marked(&self.mapping, mark, bufs, offset).map_err(unfenced)
        };
        write().map_err(self.posix.named("write"))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> io::Result<()> {
        let mut end = 0;
        for op in ops {
            end = end.max(end_of(op.offset, op.buf.len())?);
        }
        if !self.is_mapped(end) {
            return (ops.iter()).try_for_each(|op| self.write_at(&[op.buf], op.offset));
        }
        let written = write_mapped_batch(&self.mapping, ops).map_err(unfenced);
        written.map_err(self.posix.named("write"))
    }

    fn words(&self) -> Option<&[std::sync::atomic::AtomicU64]> {
        self.mapping.reserved_words()
    }

    fn check_words(&self, range: Range<u64>) -> io::Result<()> {
        if !self.is_mapped(range.end) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.mapping.check(range).map_err(lost)
    }

    fn sync(&self) -> io::Result<()> {
        if self.mapping.kind() == MappingKind::File {
            self.mapping.fence().map_err(unfenced)?;
        }
        // Acquire: pairs with those who set it. A sync that fails leaves it unset: the caller stops
        // (I8).
        if self.is_unsynced.swap(false, Ordering::AcqRel) {
            #[cfg(test)]
            self.syncs.fetch_add(1, Ordering::Relaxed);
            self.file.sync_all().map_err(self.posix.named("sync"))?;
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use braid_pmem::{SimulatedMemory, SimulatedOptions, Survivors};

    use super::*;

    fn device(map_as: MapAs) -> (tempfile::TempDir, PmemDevice) {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let device = PmemDevice::with_mode(directory.path(), 0o600, map_as).unwrap();
        (directory, device)
    }

    const EMULATED: MapAs = MapAs::Emulated { line_latency: 0 };

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_file_system_without_direct_access_is_no_persistent_memory() {
        let directory = tempfile::tempdir().unwrap();
        let Err(error) = PmemDevice::with_mode(directory.path(), 0o600, MapAs::Dax) else {
            // The test runs on persistent memory.
            return;
        };
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        // An emulated system that ignores the flag is found out afterwards.
        let text = error.to_string();
        assert!(text.contains("DAX") || text.contains("MAP_SYNC"), "{text}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn lengths_need_not_be_whole_pages() {
        for map_as in [MapAs::File, EMULATED] {
            let (_directory, device) = device(map_as);
            let file = device.open("log-1", OpenMode::CreateNew).unwrap();
            let mut expected = Vec::new();
            for (at, byte) in (1..200_u8).enumerate() {
                let line = [byte; LINE];
                file.write_durable_at(&[&line], (at * LINE) as u64).unwrap();
                expected.extend(line);
            }
            let check = |file: &dyn File, expected: &[u8]| {
                assert_eq!(file.len().unwrap(), expected.len() as u64);
                let mut read = vec![0; expected.len()];
                file.read_at(&mut read, 0).unwrap();
                assert!(read == expected);
                let past = file.read_at(&mut [0; LINE], expected.len() as u64);
                assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            };
            check(&*file, &expected);
            check(
                &*device.open("log-1", OpenMode::Existing).unwrap(),
                &expected,
            );
            // Shorter, and longer again: the new bytes are zeroes.
            file.set_len(5000).unwrap();
            check(&*file, &expected[..5000]);
            file.set_len(20_000).unwrap();
            expected.truncate(5000);
            expected.resize(20_000, 0);
            check(&*file, &expected);
            file.sync().unwrap();
            check(
                &*device.open("log-1", OpenMode::Existing).unwrap(),
                &expected,
            );
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn filling_a_file_with_zeroes_makes_it_longer_once() {
        let (_directory, device) = device(EMULATED);
        let file = device.open_file("log-1", OpenMode::CreateNew).unwrap();
        file.write_at(&[&[7; LINE]], 0).unwrap();
        let before = file.resizes.load(Ordering::Relaxed);
        file.fill_zero(0..5 << 16).unwrap();
        assert_eq!(file.resizes.load(Ordering::Relaxed) - before, 1);
        assert_eq!(file.len().unwrap(), 5 << 16);
        let mut read = vec![1; 5 << 16];
        file.read_at(&mut read, 0).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
        // The pages of new bytes are ready.
        let lines = file.mapping.stats().lines_flushed;
        file.fill_zero(5 << 16..7 << 16).unwrap();
        let is_ready = file.mapping.populate(0..7 << 16);
        assert_eq!(file.mapping.stats().lines_flushed == lines, is_ready);
        let mut read = vec![1; 2 << 16];
        file.read_at(&mut read, 5 << 16).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
    }

    /// A killed process may have left lines in the processor's caches.
    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn the_first_sync_covers_what_earlier_processes_wrote() {
        let (_directory, device) = device(EMULATED);
        let file = device.open("log-1", OpenMode::CreateNew).unwrap();
        file.write_at(&[&[7; 4096]], 0).unwrap();
        let file = device.open_file("log-1", OpenMode::Existing).unwrap();
        for _ in 0..3 {
            file.sync().unwrap();
            assert_eq!(file.syncs.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_batch_is_durable_when_it_returns() {
        let options = SimulatedOptions::default().capacity(1 << 13);
        let memory = SimulatedMemory::new(1 << 13, options);
        let mapping = Mapping::simulated(&memory);
        let mut expected = vec![0; 1 << 13];
        let mut ops = Vec::new();
        for (buf, at) in [(&[1; 64][..], 128), (&[2; 192], 4096), (&[3; 64], 64)] {
            expected[at..at + buf.len()].copy_from_slice(buf);
            let offset = at as u64;
            ops.push(WriteOp { buf, offset });
        }
        write_mapped_batch(&mapping, &ops).unwrap();
        assert!(memory.crash(Survivors::Nothing).bytes() == expected);
    }

    /// A crash that leaves any part of a mark leaves everything that the mark stands for.
    #[test]
    fn a_mark_is_stored_after_what_it_stands_for() {
        let bufs: [&[u8]; 2] = [&[1; 3 * LINE], &[2; LINE]];
        let mark = [3; LINE];
        let (offset, end) = (2 * LINE, 7 * LINE);
        let mut expected = vec![0; 1 << 13];
        expected[offset + LINE..offset + 4 * LINE].fill(1);
        expected[offset + 4 * LINE..end].fill(2);
        let (mut marked, mut unmarked) = (0, 0);
        for (operation, seed) in (0..8).flat_map(|n| (0..20).map(move |seed| (n, seed))) {
            let options = SimulatedOptions::default().capacity(1 << 13);
            let memory = SimulatedMemory::new(1 << 13, options);
            let mapping = Mapping::simulated(&memory);
            memory.power_off_at(memory.operations() + operation);
            let written = write_mapped_marked(&mapping, &mark, &bufs, offset as u64);
            let left = memory.crash(Survivors::Random(seed)).bytes();
            let is_marked = left[offset..offset + LINE].contains(&3);
            assert!(is_marked || written.is_err());
            let rest = offset + LINE..end;
            assert!(
                !is_marked || left[rest.clone()] == expected[rest],
                "operation {operation}, seed {seed}"
            );
            *(if is_marked {
                &mut marked
            } else {
                &mut unmarked
            }) += 1;
        }
        assert!(marked > 0 && unmarked > 0, "{marked} and {unmarked}");
    }

    /// A write is durable when it returns, and a crash in the middle of one changes no other bytes.
    #[test]
    fn a_write_to_persistent_memory_is_durable_and_changes_no_other_bytes() {
        let mut torn = 0;
        for seed in 0..if cfg!(miri) { 4 } else { 200 } {
            let mut rng = fastrand::Rng::with_seed(seed);
            let memory =
                SimulatedMemory::new(1 << 13, SimulatedOptions::default().capacity(1 << 13));
            let mapping = Mapping::simulated(&memory);
            let mut expected = vec![0; 1 << 13];
            for byte in 1..6 {
                let bufs: Vec<Vec<u8>> = (0..rng.usize(1..4))
                    .map(|_| vec![byte; LINE * rng.usize(1..9)])
                    .collect();
                let bufs: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
                let len: usize = bufs.iter().map(|buf| buf.len()).sum();
                let at = LINE * rng.usize(..(expected.len() - len) / LINE);
                let before = expected.clone();
                expected[at..at + len].fill(byte);
                if rng.u8(..4) == 0 {
                    memory.power_off_at(memory.operations() + rng.u64(..2 * bufs.len() as u64 + 1));
                    write_mapped(&mapping, &bufs, at as u64, true).unwrap_err();
                    let left = memory.crash(Survivors::Random(seed)).bytes();
                    for (index, words) in left.chunks(8).enumerate() {
                        let place = index * 8..index * 8 + 8;
                        let is_new = *words == expected[place.clone()];
                        assert!(is_new || *words == before[place], "seed {seed}");
                    }
                    torn += u32::from(left != before && left != expected);
                    break;
                }
                write_mapped(&mapping, &bufs, at as u64, true).unwrap();
                let left = memory.crash(Survivors::Nothing).bytes();
                assert!(left == expected, "seed {seed}");
            }
        }
        assert!(torn > 0);
    }
}
