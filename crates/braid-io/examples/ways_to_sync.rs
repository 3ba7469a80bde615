//! Compares ways to make a short log record durable in a file whose blocks have been written, each in
//! turn with the others. The figures justify how a log in a file is written.
//!
//! `cargo run --profile fat -p braid-io --example ways_to_sync -- DIRECTORY [RECORDS]`

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;
    use std::time::Instant;

    use braid_io::AlignedBuf;

    const BLOCK: usize = 4096;
    const SECTOR: usize = 512;
    const FILE_BYTES: usize = 4 << 20;
    const RECORD: usize = 300;
    /// Bytes of SQLite's frame header, and of a frame.
    const FRAME_HEADER: usize = 24;
    const FRAME: usize = FRAME_HEADER + BLOCK;

    /// A way to make a record durable.
    #[derive(Clone, Copy)]
    enum Way {
        WriteAndMsync,
        WriteDsync,
        DirectBlock,
        DirectSector,
        /// A frame header and a page over old ones, then `fdatasync`.
        Frame,
        /// The two halves of a direct write: without a flush of the device, and the flush alone.
        DirectUnsynced,
        FlushAlone,
    }

    const WAYS: [(Way, &str); 7] = [
        (Way::WriteAndMsync, "pwrite, msync of the mapping"),
        (Way::WriteDsync, "pwritev2 with RWF_DSYNC"),
        (Way::DirectBlock, "O_DIRECT | O_DSYNC, 4096 bytes"),
        (Way::DirectSector, "O_DIRECT | O_DSYNC, 512 bytes"),
        (Way::Frame, "frame of SQLite, fdatasync"),
        (Way::DirectUnsynced, "O_DIRECT, 4096 bytes, no flush"),
        (Way::FlushAlone, "fdatasync of nothing"),
    ];

    /// A file of its own for each way.
    struct Target {
        way: Way,
        cached: File,
        direct: File,
        mapping: *mut libc::c_void,
        at: usize,
        frames: usize,
        nanos: Vec<u128>,
    }

    impl Target {
        fn create(path: &Path, way: Way) -> io::Result<Self> {
            let mut open = OpenOptions::new();
            let cached = open
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)?;
            // Written page by page, so that the file is cached in single pages.
            for at in (0..FILE_BYTES).step_by(BLOCK) {
                cached.write_all_at(&[0; BLOCK], at as u64)?;
            }
            cached.sync_all()?;
            let flags = match way {
                Way::DirectUnsynced | Way::FlushAlone => libc::O_DIRECT,
                _ => libc::O_DIRECT | libc::O_DSYNC,
            };
            let direct = OpenOptions::new()
                .write(true)
                .custom_flags(flags)
                .open(path)?;
            // SAFETY: a new mapping of an open file, which lives as long as the process.
            let mapping = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    FILE_BYTES,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    cached.as_raw_fd(),
                    0,
                )
            };
            assert_ne!(mapping, libc::MAP_FAILED);
            Ok(Self {
                way,
                cached,
                direct,
                mapping,
                at: 0,
                frames: 0,
                nanos: Vec::new(),
            })
        }

        fn put(&mut self, bytes: &AlignedBuf) -> io::Result<()> {
            if self.at + 2 * BLOCK > FILE_BYTES {
                self.at = 0;
            }
            let (start, end) = (self.at, self.at + RECORD);
            let whole = |unit: usize| {
                let first = start / unit * unit;
                (first as u64, end.next_multiple_of(unit) - first)
            };
            let begun = Instant::now();
            match self.way {
                Way::WriteAndMsync => {
                    self.cached.write_all_at(&bytes[..RECORD], start as u64)?;
                    let (first, len) = whole(BLOCK);
                    let address = self.mapping.wrapping_byte_add(first as usize);
                    // SAFETY: the range is within the mapping.
                    let code = unsafe { libc::msync(address, len, libc::MS_SYNC) };
                    assert_eq!(code, 0);
                }
                Way::WriteDsync => {
                    let slices = [io::IoSlice::new(&bytes[..RECORD])];
                    let durable = rustix::io::ReadWriteFlags::DSYNC;
                    rustix::io::pwritev2(&self.cached, &slices, start as u64, durable)?;
                }
                Way::DirectBlock | Way::DirectUnsynced => {
                    let (first, len) = whole(BLOCK);
                    self.direct.write_all_at(&bytes[..len], first)?;
                }
                Way::DirectSector => {
                    let (first, len) = whole(SECTOR);
                    self.direct.write_all_at(&bytes[..len], first)?;
                }
                Way::Frame => {
                    let at = (self.frames % (FILE_BYTES / FRAME) * FRAME) as u64;
                    self.cached.write_all_at(&bytes[..FRAME_HEADER], at)?;
                    let page = at + FRAME_HEADER as u64;
                    self.cached.write_all_at(&bytes[..BLOCK], page)?;
                    self.cached.sync_data()?;
                }
                Way::FlushAlone => self.cached.sync_data()?,
            }
            self.nanos.push(begun.elapsed().as_nanos());
            self.at += RECORD;
            self.frames += 1;
            Ok(())
        }
    }

    pub(super) fn measure(directory: &Path, records: usize) -> io::Result<()> {
        let directory = directory.join("ways_to_sync");
        fs::create_dir_all(&directory)?;
        let mut targets = Vec::new();
        for (number, (way, _)) in WAYS.into_iter().enumerate() {
            targets.push(Target::create(&directory.join(number.to_string()), way)?);
        }
        let mut bytes = AlignedBuf::new(2 * BLOCK);
        bytes.fill(7);
        for turn in 0..records {
            for number in 0..targets.len() {
                let next = (turn + number) % targets.len();
                targets[next].put(&bytes)?;
            }
        }
        for (target, (_, name)) in targets.iter_mut().zip(WAYS) {
            let nanos = &mut target.nanos;
            nanos.sort_unstable();
            let at = |percent: usize| nanos[nanos.len() * percent / 100] as f64 / 1e3;
            let (low, median, high) = (at(10), at(50), at(90));
            println!("{name:<32} p10 {low:>6.1}   p50 {median:>6.1}   p90 {high:>6.1} us");
        }
        fs::remove_dir_all(&directory)
    }
}

fn main() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let mut args = std::env::args_os().skip(1);
        let directory = args.next().unwrap_or_else(|| ".".into());
        let records = args.next().and_then(|count| count.to_str()?.parse().ok());
        linux::measure(directory.as_ref(), records.unwrap_or(2000))
    }
    #[cfg(not(target_os = "linux"))]
    Err(std::io::Error::other("needs Linux"))
}
