//! Writes, flushes and reads back on a drive, and measures the cost of a request. ERASES the drive's
//! first blocks.
//!
//!     nvme_probe uring:/dev/nvme0n1|passthrough:/dev/ng0n1|vfio:0000:00:04.0 [REQUESTS] [DEPTH]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use braid_nvme::{Blocking, BlockingOptions, Drive, WriteAt};
    use std::sync::Arc;
    use std::time::Instant;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().ok_or("expected a drive")?;
    let number = |at: usize, default: usize| -> Result<usize, std::num::ParseIntError> {
        arguments.get(at).map_or(Ok(default), |text| text.parse())
    };
    let (requests, depth) = (number(1, 1000)?, number(2, 1)?.max(1));
    let (path, place) = name.split_once(':').ok_or("expected PATH:PLACE")?;
    let drive: Arc<dyn Drive> = match path {
        "uring" => Arc::new(braid_nvme::UringDrive::open(
            place.as_ref(),
            braid_nvme::UringOptions::default(),
        )?),
        "passthrough" => Arc::new(braid_nvme::PassthroughDrive::open(place.as_ref())?),
        "vfio" => Arc::new(braid_nvme::vfio::open(place, Default::default())?),
        _ => return Err("expected uring, passthrough or vfio".into()),
    };
    println!("{:?}", drive.info());
    let block = drive.info().block_size;
    // Polls for long, so that the count of system calls shows only those of the path.
    let blocks = Blocking::with_options(
        drive,
        BlockingOptions {
            idle_us: 100_000,
            ..BlockingOptions::default()
        },
    );

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
    println!("wrote, flushed and read back");

    let begun = (Instant::now(), Usage::now());
    let pages: Vec<&[u8]> = data.chunks(4096).take(depth).collect();
    for round in 0..requests / depth {
        let first = (round * depth % 200) as u64 * (4096 / block) as u64;
        let writes: Vec<WriteAt<'_>> = pages
            .iter()
            .enumerate()
            .map(|(i, buffer)| WriteAt {
                lba: first + (i * 4096 / block) as u64,
                buffer,
            })
            .collect();
        blocks.write_durable_batch(&writes)?;
    }
    let (time, now) = (begun.0.elapsed(), Usage::now());
    let each = |value: f64| value / requests as f64;
    println!(
        "{requests} durable writes of 4 KiB, depth {depth}: {:.0}/s, {:.1} us of processor time, \
         {:.3} context switches, {:.3} interrupts per request",
        requests as f64 / time.as_secs_f64(),
        each((now.micros - begun.1.micros) as f64),
        each((now.switches - begun.1.switches) as f64),
        each((now.interrupts - begun.1.interrupts) as f64),
    );
    Ok(())
}

/// What this process has used, and the interrupts of all NVMe drives.
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
            switches: usage.ru_nvcsw,
            interrupts: counts,
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("the probe needs Linux on x86-64");
}
