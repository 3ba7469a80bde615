//! Compares the speed of a bulk load with a plain sequential write of as many bytes to the same
//! disk.
//!
//! ```sh
//! cargo run --profile fat -p braiddb --example bulk_load -- [DIRECTORY [ENTRIES [VALUE_BYTES]]]
//! ```
//!
//! By default it loads 1,000,000 entries with values of 1,000 bytes and writes as many bytes, five
//! times each, alternating, and prints the medians. The plain write bypasses the page cache, in
//! writes of a megabyte, four at a time, and ends with a sync. The program prints the bytes of keys
//! and values, and those of the data file: eight such entries do not quite fit in a page, so a page
//! contains seven.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use braid::{Bytes, Database, Readable};
use braid_io::{AlignedBuf, DeviceChoice, OpenMode, WriteOp};

const CHUNK: usize = 1 << 20;
const AT_ONCE: usize = 4;
const RUNS: usize = 5;

fn plain_write(directory: &Path, bytes: u64) -> Result<Duration, Box<dyn Error>> {
    let device = braid_io::open_directory(directory, DeviceChoice::Auto)?;
    let file = device.open("plain", OpenMode::CreateNew)?;
    let mut buf = AlignedBuf::new(CHUNK);
    // Not zeroes, which some devices handle faster than data.
    let mut rng = fastrand::Rng::with_seed(1);
    rng.fill(&mut buf);
    let began = Instant::now();
    for at in (0..bytes).step_by(CHUNK * AT_ONCE) {
        let op = |i| WriteOp {
            buf: &buf,
            offset: at + (i * CHUNK) as u64,
        };
        let ops: Vec<WriteOp<'_>> = (0..AT_ONCE).map(op).collect();
        file.write_batch(&ops)?;
    }
    file.sync()?;
    let took = began.elapsed();
    drop(file);
    device.remove("plain")?;
    Ok(took)
}

/// Returns the duration of the load, and the size of the data file afterwards.
fn load(directory: &Path, entries: u64, value: &[u8]) -> Result<(Duration, u64), Box<dyn Error>> {
    let db = Database::open(directory.join("db"))?;
    let began = Instant::now();
    let mut loader = db.bulk_load::<u64, Bytes>("entries")?;
    let mut value = value.to_vec();
    for i in 0..entries {
        if let Some(first) = value.first_chunk_mut() {
            *first = i.to_le_bytes();
        }
        loader.insert(&i, &value)?;
    }
    let table = loader.finish()?;
    let took = began.elapsed();
    assert_eq!(
        db.snapshot().last(&table)?.map(|(key, _)| key + 1),
        Some(entries)
    );
    drop(table);
    let written = std::fs::metadata(directory.join("db/data.braid"))?.len();
    db.close()?;
    std::fs::remove_dir_all(directory.join("db"))?;
    Ok((took, written))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let entries: u64 = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let value_bytes: usize = arguments.next().map_or(Ok(1_000), |n| n.parse())?;
    let directory = tempfile::tempdir_in(parent)?;
    let mut value = vec![0; value_bytes];
    fastrand::Rng::with_seed(2).fill(&mut value);
    let bytes = entries * (8 + value_bytes as u64);
    let (mut plain, mut loaded, mut written) = (Vec::new(), Vec::new(), 0);
    for run in 1..=RUNS {
        let plain_took = plain_write(directory.path(), bytes)?;
        let (load_took, file) = load(directory.path(), entries, &value)?;
        println!("run {run}: plain {plain_took:?}, load {load_took:?}");
        plain.push(plain_took);
        loaded.push(load_took);
        written = file;
    }
    let rate = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    let (plain, loaded) = (median(&mut plain), median(&mut loaded));
    let limit = rate(bytes, plain);
    println!("plain write: {limit:.0} MB/s");
    for (what, bytes) in [("keys and values", bytes), ("the data file", written)] {
        let rate = rate(bytes, loaded);
        let share = 100.0 * rate / limit;
        println!("load: {rate:.0} MB/s, {share:.0} % of that, by the {bytes} bytes of {what}");
    }
    Ok(())
}
