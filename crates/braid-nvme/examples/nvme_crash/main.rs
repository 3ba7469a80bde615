//! Records operations on a volume, and checks images that a power failure may leave of its drive.
//!
//!     nvme_crash run uring:/dev/nvme0n1|passthrough:/dev/ng0n1|vfio:0000:00:04.0 SEED OPERATIONS
//!     nvme_crash check RECORD BYTES SEED IMAGES
//!
//! `run` ERASES the drive, whose writes are recorded below it, for example by QEMU's `blklogwrites`.
//! `check` reads the record of a drive of BYTES bytes and checks IMAGES images.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod workload;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use braid_nvme::Drive;
    use std::fs::File;
    use std::io::BufReader;
    use std::sync::Arc;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", name, seed, operations] => {
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
            let drive = braid_nvme::crash::AnnotatedDrive::new(drive);
            workload::run(&drive, seed.parse()?, operations.parse()?)?;
            println!("{operations} operations were acknowledged");
        }
        ["check", record, bytes, seed, images] => {
            let input = || File::open(record).map(BufReader::new);
            let random = fastrand::Rng::new();
            let random_seed = random.get_seed();
            let images = workload::check(
                input,
                bytes.parse()?,
                seed.parse()?,
                images.parse()?,
                random,
            )
            .map_err(|error| format!("{error} (random seed {random_seed})"))?;
            println!("{images} images: no acknowledged operation was lost");
        }
        _ => {
            return Err(
                "expected run DRIVE SEED OPERATIONS, or check RECORD BYTES SEED IMAGES".into(),
            );
        }
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("the program needs Linux on x86-64");
}
