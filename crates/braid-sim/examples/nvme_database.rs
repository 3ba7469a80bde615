//! Records transactions of a database on a drive, and checks images that a power failure may leave of
//! the drive.
//!
//!     nvme_database run nvme:/dev/nvme0n1|nvme:/dev/ng0n1|vfio:0000:00:04.0 SEED TRANSACTIONS
//!     nvme_database check RECORD BYTES SEED IMAGES
//!     nvme_database pull DRIVE SEED
//!     nvme_database recover DRIVE SEED ACKNOWLEDGED...
//!
//! `run` ERASES the drive, whose writes are recorded below it, for example by QEMU's `blklogwrites`.
//! `check` reads the record of a drive of BYTES bytes and checks IMAGES images.
//!
//! `pull` ERASES the drive, performs transactions until the drive fails, for example because it is
//! pulled out, and prints how many transactions of each thread were acknowledged, and each thread's
//! error. `recover` checks the database with these numbers.

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::fs::File;
    use std::io::BufReader;
    use std::sync::atomic::{AtomicBool, Ordering};

    use braid_nvme::DriveName;
    use braid_nvme::crash::AnnotatedDrive;
    use braid_sim::images;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", name, seed, transactions] => {
            let Ok(name) = name.parse::<DriveName>();
            let opened = name.open()?;
            let transactions = transactions.parse()?;
            images::run(
                &AnnotatedDrive::new(opened.drive),
                seed.parse()?,
                transactions,
            )?;
            let all = transactions * images::THREADS as u64;
            println!("{all} transactions were acknowledged");
        }
        ["check", record, bytes, seed, images] => {
            let input = || File::open(record).map(BufReader::new);
            let random = fastrand::Rng::new();
            let random_seed = random.get_seed();
            let checked = images::check(
                input,
                bytes.parse()?,
                seed.parse()?,
                images.parse()?,
                random,
            )
            .map_err(|error| format!("{error} (random seed {random_seed})"))?;
            println!(
                "{} images of a database ({} with a second failure, {} verified): no acknowledged \
                 transaction was lost",
                checked.images, checked.twice, checked.verified
            );
        }
        ["pull", name, seed] => {
            let Ok(name) = name.parse::<DriveName>();
            let printed = AtomicBool::new(false);
            let note = |counts: &images::Counts| {
                // Relaxed: it orders nothing.
                if counts.iter().all(|count| *count > 50) && !printed.swap(true, Ordering::Relaxed)
                {
                    println!("working");
                }
            };
            let failure = images::run_until_failure(name.open()?.drive, seed.parse()?, note)?;
            for error in failure.errors {
                println!("error: {error}");
            }
            let [a, b, c] = failure.acknowledged;
            println!("acknowledged: {a} {b} {c}");
        }
        ["recover", name, seed, a, b, c] => {
            let Ok(name) = name.parse::<DriveName>();
            let acknowledged = [a.parse()?, b.parse()?, c.parse()?];
            let drive = name.open()?.drive;
            let found = images::check_after_failure(drive, seed.parse()?, &acknowledged)?;
            println!("recovered {found:?}, of which {acknowledged:?} were acknowledged");
        }
        _ => {
            return Err(
                "expected run DRIVE SEED TRANSACTIONS, check RECORD BYTES SEED IMAGES, \
                 pull DRIVE SEED, or recover DRIVE SEED ACKNOWLEDGED..."
                    .into(),
            );
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn main() {
    eprintln!("the program needs a Unix system");
}
