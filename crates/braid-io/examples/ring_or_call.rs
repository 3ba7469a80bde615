//! Compares the cost of io_uring and of plain system calls. The figures justify the choices in
//! `uring.rs`.
//!
//! `cargo run --profile fat -p braid-io --example ring_or_call -- DIRECTORY [SECONDS_EACH]`

#[cfg(uring)]
mod linux {
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use braid_io::AlignedBuf;
    use io_uring::{IoUring, opcode, types};

    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 16 * 1024;
    const DEPTH: usize = 64;

    /// Repeats `operation`, which counts as `ops` operations, for a while; prints the rate, latency
    /// and cost.
    fn time(name: &str, each: Duration, ops: usize, mut operation: impl FnMut(u64)) {
        let mut nanos = Vec::with_capacity(1 << 20);
        let cpu = cpu_time();
        let start = Instant::now();
        let mut before = start;
        for i in 0.. {
            operation(i);
            let now = Instant::now();
            nanos.push((now - before).as_nanos());
            before = now;
            if now - start > each {
                break;
            }
        }
        let cpu = (cpu_time() - cpu).as_nanos() as f64 / 1e3 / (nanos.len() * ops) as f64;
        nanos.sort_unstable();
        println!(
            "{name:<44} {:>9.0} ops/s   p50 {:>7.1} us   p99 {:>7.1} us   cpu {cpu:>6.2} us/op",
            (nanos.len() * ops) as f64 / start.elapsed().as_secs_f64(),
            nanos[nanos.len() / 2] as f64 / 1e3,
            nanos[nanos.len() * 99 / 100] as f64 / 1e3,
        );
    }

    fn cpu_time() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a local timespec.
        let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        assert_eq!(rc, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Submits, waits for all operations, and panics if any is short.
    fn submit(ring: &mut IoUring, entries: &[io_uring::squeue::Entry], bytes: usize) {
        // SAFETY: the callers' buffers live until the completions are reaped below.
        unsafe {
            ring.submission()
                .push_multiple(entries)
                .expect("the queue has room")
        };
        ring.submit_and_wait(entries.len()).expect("submitted");
        let mut done = 0;
        for completion in ring.completion() {
            assert_eq!(completion.result(), bytes as i32);
            done += 1;
        }
        assert_eq!(done, entries.len());
    }

    fn scattered(i: u64) -> u64 {
        i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % BLOCKS * BLOCK as u64
    }

    fn prepare(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECT);
        let file = options.open(path)?;
        let mut buf = AlignedBuf::new(1 << 20);
        buf.fill(0x5a);
        for at in (0..BLOCKS * BLOCK as u64).step_by(buf.len()) {
            file.write_all_at(&buf, at)?;
        }
        file.sync_all()?;
        Ok(file)
    }

    pub(super) fn measure(directory: &Path, each: Duration) -> io::Result<()> {
        let path = directory.join("ring-or-call.tmp");
        let file = prepare(&path)?;
        let result = measure_file(&file, each);
        fs::remove_file(&path)?;
        result
    }

    #[allow(clippy::too_many_lines, reason = "a list of measurements")]
    fn measure_file(file: &File, each: Duration) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        let mut ring = IoUring::builder()
            .setup_coop_taskrun()
            .build(DEPTH as u32)?;
        let mut memory = AlignedBuf::new(DEPTH * BLOCK);
        let base = memory.as_mut_ptr();
        let iovec = libc::iovec {
            iov_base: base.cast(),
            iov_len: memory.len(),
        };
        // SAFETY: the memory lives until the ring is dropped, at the end of this function.
        unsafe { ring.submitter().register_buffers(&[iovec])? };
        // Within the allocation, because `i` is below DEPTH.
        let slot = |i: usize| base.wrapping_add(i * BLOCK);
        let durable = rustix::io::ReadWriteFlags::DSYNC;
        let block = AlignedBuf::new(BLOCK);
        for round in 0..2 {
            println!("round {round}");
            time("4 KiB durable write, pwritev2", each, 1, |i| {
                let slices = [io::IoSlice::new(&block)];
                let at = i % BLOCKS * BLOCK as u64;
                assert_eq!(rustix::io::pwritev2(file, &slices, at, durable), Ok(BLOCK));
            });
            for fixed in [false, true] {
                let name = [
                    "4 KiB durable write, ring",
                    "4 KiB durable write, ring, registered",
                ];
                time(name[usize::from(fixed)], each, 1, |i| {
                    let at = i % BLOCKS * BLOCK as u64;
                    let entry = if fixed {
                        opcode::WriteFixed::new(fd, slot(0), BLOCK as u32, 0)
                            .offset(at)
                            .rw_flags(libc::RWF_DSYNC)
                            .build()
                    } else {
                        opcode::Write::new(fd, slot(0), BLOCK as u32)
                            .offset(at)
                            .rw_flags(libc::RWF_DSYNC)
                            .build()
                    };
                    submit(&mut ring, &[entry], BLOCK);
                });
            }
            let mut target = AlignedBuf::new(BLOCK);
            time("4 KiB read, pread", each, 1, |i| {
                file.read_exact_at(&mut target, scattered(i)).expect("read");
            });
            for depth in [1, 8, 32, 64] {
                for (fixed, what) in [(false, "ring"), (true, "ring, registered")] {
                    time(
                        &format!("4 KiB read, {what}, depth {depth}"),
                        each,
                        depth,
                        |i| {
                            let entries: Vec<_> = (0..depth)
                                .map(|k| {
                                    let at = scattered(i * depth as u64 + k as u64);
                                    if fixed {
                                        opcode::ReadFixed::new(fd, slot(k), BLOCK as u32, 0)
                                            .offset(at)
                                            .build()
                                    } else {
                                        opcode::Read::new(fd, slot(k), BLOCK as u32)
                                            .offset(at)
                                            .build()
                                    }
                                })
                                .collect();
                            submit(&mut ring, &entries, BLOCK);
                        },
                    );
                }
            }
            for depth in [8, 64] {
                time(
                    &format!("4 KiB write, ring, depth {depth}"),
                    each,
                    depth,
                    |i| {
                        let entries: Vec<_> = (0..depth)
                            .map(|k| {
                                opcode::Write::new(fd, slot(k), BLOCK as u32)
                                    .offset(scattered(i * depth as u64 + k as u64))
                                    .build()
                            })
                            .collect();
                        submit(&mut ring, &entries, BLOCK);
                    },
                );
            }
            time("4 KiB write, pwrite", each, 1, |i| {
                file.write_all_at(&block, scattered(i)).expect("written");
            });
        }
        Ok(())
    }
}

fn main() -> std::io::Result<()> {
    #[cfg(uring)]
    {
        let mut args = std::env::args_os().skip(1);
        let directory = args.next().unwrap_or_else(|| ".".into());
        let seconds = args
            .next()
            .and_then(|s| s.to_str()?.parse().ok())
            .unwrap_or(1.0);
        linux::measure(
            directory.as_ref(),
            std::time::Duration::from_secs_f64(seconds),
        )
    }
    #[cfg(not(all(
        target_os = "linux",
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "riscv64",
            target_arch = "loongarch64",
            target_arch = "powerpc64"
        )
    )))]
    {
        println!("there is no io_uring here");
        Ok(())
    }
}
