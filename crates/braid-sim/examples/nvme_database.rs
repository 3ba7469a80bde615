//! Records transactions of a database on a drive, and checks images that a power failure may leave of
//! the drive.
//!
//!     nvme_database run nvme:/dev/nvme0n1|nvme:/dev/ng0n1|vfio:0000:00:04.0 SEED TRANSACTIONS
//!     nvme_database check RECORD BYTES SEED IMAGES
//!
//! `run` ERASES the drive, whose writes are recorded below it, for example by QEMU's `blklogwrites`.
//! `check` reads the record of a drive of BYTES bytes and checks IMAGES images.

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::fs::File;
    use std::io::BufReader;

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
        _ => {
            return Err(
                "expected run DRIVE SEED TRANSACTIONS, or check RECORD BYTES SEED IMAGES".into(),
            );
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn main() {
    eprintln!("the program needs a Unix system");
}
