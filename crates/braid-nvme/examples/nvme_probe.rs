//! Writes, flushes and reads back on a drive, and measures the cost of a request. ERASES the drive's
//! first blocks.
//!
//!     nvme_probe uring:/dev/nvme0n1|passthrough:/dev/ng0n1|vfio:0000:00:04.0 [REQUESTS] [DEPTH] [IDLE_US]
//!         [drive|heap]
//!
//! The bytes lie in memory of the drive (default), or on the heap, as an engine's buffers do: the driver
//! over VFIO then copies them.
//!
//! A thread polls for IDLE_US microseconds before it lets the path wait; by default for so long that
//! only system calls of the path count.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use braid_nvme::{Blocking, BlockingOptions, Drive, UringDrive, UringOptions, WriteAt};
    use std::sync::Arc;
    use std::time::Instant;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().ok_or("expected a drive")?;
    let number = |at: usize, default: usize| -> Result<usize, std::num::ParseIntError> {
        arguments.get(at).map_or(Ok(default), |text| text.parse())
    };
    let (requests, depth) = (number(1, 1000)?, number(2, 1)?.max(1));
    let idle_us = u32::try_from(number(3, 100_000)?)?;
    let (path, place) = name.split_once(':').ok_or("expected PATH:PLACE")?;
    let mut polled = "";
    let drive: Arc<dyn Drive> = match path {
        "uring" => {
            let drive = UringDrive::open(place.as_ref(), UringOptions::default())?;
            if drive.is_polled() {
                polled = ", polled by the kernel";
            }
            Arc::new(drive)
        }
        "passthrough" => Arc::new(braid_nvme::PassthroughDrive::open(place.as_ref())?),
        "vfio" => Arc::new(braid_nvme::vfio::open(place, Default::default())?),
        _ => return Err("expected uring, passthrough or vfio".into()),
    };
    println!("{:?}", drive.info());
    let block = drive.info().block_size;
    let options = BlockingOptions {
        idle_us,
        ..BlockingOptions::default()
    };
    let blocks = Blocking::with_options(drive, options);

    let mut data = check_contents(&blocks)?;
    println!("wrote, flushed and read back");

    let buffers = arguments.get(4).map_or("drive", String::as_str);
    if buffers == "heap" {
        let mut heap = braid_nvme::DmaBuffer::on_heap(data.len(), 4096);
        heap.copy_from_slice(&data);
        data = heap;
    }
    let pages: Vec<&[u8]> = data.chunks(4096).take(depth).collect();
    let batches = (requests / depth).max(1);
    let mut times = Vec::with_capacity(batches);
    let begun = (Instant::now(), Usage::now());
    for round in 0..batches {
        let first = (round * depth % 200) as u64 * (4096 / block) as u64;
        let writes: Vec<WriteAt<'_>> = pages
            .iter()
            .enumerate()
            .map(|(i, buffer)| WriteAt {
                lba: first + (i * 4096 / block) as u64,
                buffer,
            })
            .collect();
        let at = Instant::now();
        blocks.write_durable_batch(&writes)?;
        times.push(at.elapsed());
    }
    let (time, now) = (begun.0.elapsed(), Usage::now());
    times.sort_unstable();
    let micros = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    let each = |value: f64| value / (batches * depth) as f64;
    println!(
        "durable writes of 4 KiB, depth {depth}, idle {idle_us} us{polled}, buffers of the {buffers}: \
         {:.0} requests/s, batches p50 {:.0} us, p99 {:.0} us; per request {:.1} us of processor time, \
         {:.3} context switches, {:.3} interrupts",
        (batches * depth) as f64 / time.as_secs_f64(),
        micros(50),
        micros(99),
        each((now.micros - begun.1.micros) as f64),
        each((now.switches - begun.1.switches) as f64),
        each((now.interrupts - begun.1.interrupts) as f64),
    );
    Ok(())
}

/// Writes, flushes and reads back; returns the data.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn check_contents(
    blocks: &braid_nvme::Blocking,
) -> Result<braid_nvme::DmaBuffer, braid_nvme::DriveError> {
    let mut data = blocks.allocate(256 << 10);
    for (i, byte) in data.iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    blocks.write(0, &data)?;
    blocks.flush()?;
    blocks.write_durable(1024, &data[..4096])?;
    let mut read = blocks.allocate(256 << 10);
    blocks.read(0, &mut read)?;
    assert!(read[..] == data[..], "the drive returns other bytes");
    blocks.read(1024, &mut read[..4096])?;
    assert!(
        read[..4096] == data[..4096],
        "the drive returns other bytes"
    );
    blocks.deallocate(1024..1032)?;
    Ok(data)
}

/// Resources that this process has used, and the interrupts of all NVMe drives.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
struct Usage {
    micros: i64,
    switches: i64,
    interrupts: u64,
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
impl Usage {
    fn now() -> Self {
        // SAFETY: zero is a valid value of each field.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the structure.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
        let micros = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
        let table = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
        let counts: u64 = table
            .lines()
            .filter(|line| line.contains("nvme") || line.contains("vfio"))
            .flat_map(|line| {
                line.split_whitespace()
                    .skip(1)
                    .map_while(|word| word.parse::<u64>().ok())
            })
            .sum();
        Self {
            micros: micros(usage.ru_utime) + micros(usage.ru_stime),
            switches: usage.ru_nvcsw + usage.ru_nivcsw,
            interrupts: counts,
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("the probe needs Linux on x86-64");
}
