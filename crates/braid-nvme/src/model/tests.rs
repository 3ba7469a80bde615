use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::controller::{ControllerOptions, NvmeDrive};
use crate::{Blocking, Drive};

fn open(options: ModelOptions) -> (ModelHost, NvmeDrive<ModelHost>) {
    let host = ModelHost::new(options);
    let controller = ControllerOptions {
        timeout: Duration::from_millis(50),
        ..ControllerOptions::default()
    };
    let drive = NvmeDrive::open(host.clone(), controller).unwrap();
    (host, drive)
}

#[test]
fn a_drive_without_faults_keeps_what_was_written() {
    let (host, drive) = open(ModelOptions::default());
    assert_eq!(drive.info().model, "Braid model");
    assert_eq!(drive.info().max_transfer, 128 << 10);
    let blocks = Blocking::new(Arc::new(drive));
    let data: Vec<u8> = (0..512 * 2000).map(|i| (i % 253) as u8).collect();
    blocks.write(5, &data).unwrap();
    blocks.flush().unwrap();
    let mut read = vec![0; data.len()];
    blocks.read(5, &mut read).unwrap();
    assert!(read == data);
    blocks.deallocate(5..6).unwrap();
    assert_eq!(host.after_power_failure(3)(6), data[512..1024]);
    drop(blocks);
    assert_eq!(host.violations(), Vec::<String>::new());
}

#[test]
fn a_lost_completion_ends_as_a_time_out() {
    let (host, drive) = open(ModelOptions {
        faults: ModelFaults {
            lost: 255,
            ..ModelFaults::default()
        },
        ..ModelOptions::default()
    });
    let blocks = Blocking::new(Arc::new(drive));
    let error = blocks.write(0, &[1; 512]).unwrap_err();
    assert!(
        matches!(error, DriveError::TimedOut { millis: 50, .. }),
        "{error}"
    );
    assert_eq!(host.violations(), Vec::<String>::new());
}

#[test]
fn after_a_reset_a_drive_with_a_cache_only_reads() {
    for volatile_cache in [false, true] {
        let (_host, drive) = open(ModelOptions {
            volatile_cache,
            faults: ModelFaults {
                lost: 255,
                deaf: 255,
                ..ModelFaults::default()
            },
            ..ModelOptions::default()
        });
        let drive = Arc::new(drive);
        let blocks = Blocking::new(drive.clone());
        assert!(blocks.write(0, &[1; 512]).is_err());
        assert_eq!(drive.resets(), 1);
        let error = blocks.write(1, &[1; 512]).unwrap_err();
        let refused = matches!(error, DriveError::Controller { .. });
        assert_eq!(refused, volatile_cache, "{error}");
    }
}

#[test]
fn a_drive_that_is_pulled_out_is_reported() {
    let (host, drive) = open(ModelOptions::default());
    let blocks = Blocking::new(Arc::new(drive));
    blocks.write(0, &[1; 512]).unwrap();
    host.remove();
    let error = blocks.read(0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, DriveError::Removed { .. }), "{error}");
    let error = blocks.flush().unwrap_err();
    assert!(matches!(error, DriveError::Removed { .. }), "{error}");
}

#[test]
fn no_more_queues_than_the_controller_has() {
    let (_, drive) = open(ModelOptions {
        queues: 2,
        ..ModelOptions::default()
    });
    let first = drive.open_queue().unwrap();
    let _second = drive.open_queue().unwrap();
    assert!(matches!(
        drive.open_queue(),
        Err(DriveError::NoQueue { limit: 2 })
    ));
    drop(first);
    drive.open_queue().unwrap();
}

/// `BRAID_NVME_SEEDS` sets the number of seeds.
#[test]
fn no_seed_makes_the_driver_break_a_rule() {
    let seeds = std::env::var("BRAID_NVME_SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    let mut sum = Exercise::default();
    for seed in 0..seeds {
        match exercise(seed) {
            Ok(one) => {
                sum.commands += one.commands;
                sum.failed += one.failed;
                sum.resets += one.resets;
                sum.removed |= one.removed;
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{sum:?}");
    assert!(sum.failed > 0 && sum.resets > 0 && sum.removed);
}

/// A drive's alignment is that of its commands, and not the page of the system or of the controller:
/// the pages of a transfer are listed from wherever it begins.
#[test]
fn buffers_are_aligned_as_the_drive_needs_it() {
    let (host, drive) = open(ModelOptions::default());
    assert_eq!(drive.info().alignment, 4);
    let drive = Arc::new(drive);
    let blocks = Blocking::new(drive.clone());
    let mut buffer = drive.allocate(64 << 10).unwrap();
    for start in [4, 508, 4092, 4096, 12_300] {
        let data = &mut buffer[start..start + 5 * 4096];
        data.iter_mut()
            .enumerate()
            .for_each(|(i, byte)| *byte = (i % 241) as u8);
        assert!(drive.accepts(data.as_ptr(), data.len()));
        blocks.write_durable(9, data).unwrap();
        data.fill(0);
        blocks.read(9, data).unwrap();
        assert!(
            data.iter()
                .enumerate()
                .all(|(i, byte)| *byte == (i % 241) as u8)
        );
    }
    assert!(!drive.accepts(buffer[2..].as_ptr(), 512));
    drop(blocks);
    assert_eq!(host.violations(), Vec::<String>::new());
}
