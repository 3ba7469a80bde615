use std::sync::Arc;

use super::superblock::{COPIES, JOURNAL};
use super::*;
use crate::{Blocking, Drive, DriveError, MemoryDrive, MemoryOptions};

mod histories;

/// Bytes of a unit of the volumes here.
const UNIT: u64 = 8192;

fn options() -> FormatOptions {
    FormatOptions::default().unit(UNIT).journal(32 << 10)
}

/// A drive with room for `units` units.
fn drive_of(units: u64, block_size: usize, volatile_cache: bool, seed: u64) -> MemoryDrive {
    let bytes = JOURNAL + (64 << 10) + units * UNIT;
    MemoryDrive::with_options(MemoryOptions {
        blocks: bytes / block_size as u64,
        block_size,
        volatile_cache,
        seed,
        ..MemoryOptions::default()
    })
}

fn blocking(drive: &MemoryDrive) -> Blocking {
    Blocking::new(Arc::new(drive.clone()))
}

fn format(drive: &MemoryDrive) -> Volume {
    Volume::format(blocking(drive), options()).unwrap()
}

fn open(drive: &MemoryDrive) -> Result<Volume, VolumeError> {
    Volume::open(blocking(drive))
}

fn block(byte: u8, blocks: usize) -> Vec<u8> {
    vec![byte; 4096 * blocks]
}

fn read(file: &VolumeFile, offset: u64, blocks: usize) -> Vec<u8> {
    let mut buffer = block(0xee, blocks);
    file.read_batch([(offset, &mut buffer[..])]).unwrap();
    let firsts = buffer.chunks(4096).map(|block| {
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    });
    firsts.collect()
}

#[test]
fn files_are_found_again() {
    let drive = drive_of(64, 512, true, 1);
    let volume = format(&drive);
    let file = volume.create("db/a").unwrap();
    file.write_batch(&[(4096, &block(2, 3)), (8 * 4096, &block(3, 1))])
        .unwrap();
    assert_eq!(read(&file, 0, 9), [0, 2, 2, 2, 0, 0, 0, 0, 3]);
    volume.create("b").unwrap().set_len(4096).unwrap();
    volume.rename("db/a", "db/c").unwrap();
    assert!(matches!(
        volume.create("b"),
        Err(VolumeError::Exists { .. })
    ));
    volume.commit().unwrap();
    let after = drive.crash(7);
    let volume = open(&after).unwrap();
    let expected = [("b".to_owned(), 4096), ("db/c".to_owned(), 9 * 4096)];
    assert_eq!(volume.list(), expected);
    let file = volume.open_file("db/c").unwrap();
    assert_eq!(read(&file, 0, 9), [0, 2, 2, 2, 0, 0, 0, 0, 3]);
    let report = fsck(&blocking(&after)).unwrap();
    assert_eq!((report.faults.len(), report.notes.len()), (0, 0));
    assert_eq!(report.info, Some(volume.info()));
    assert_eq!(report.files, expected);
    let error = file
        .read_batch([(8 * 4096, &mut block(0, 2)[..])])
        .unwrap_err();
    assert!(matches!(error, VolumeError::PastEnd { len: 36_864, .. }));
}

#[test]
fn a_removed_file_lives_until_its_last_handle() {
    let drive = drive_of(8, 512, true, 1);
    let volume = format(&drive);
    let file = volume.create("a").unwrap();
    file.write_batch(&[(0, &block(5, 16))]).unwrap();
    volume.remove("a").unwrap();
    volume.commit().unwrap();
    assert!(matches!(
        volume.open_file("a"),
        Err(VolumeError::NoFile { .. })
    ));
    let other = volume.create("a").unwrap();
    let full = other.write_batch(&[(0, &block(6, 2))]).unwrap_err();
    assert!(matches!(
        full,
        VolumeError::Full {
            bytes: UNIT,
            free: 0
        }
    ));
    assert_eq!(read(&file, 0, 16), [5; 16]);
    drop(file);
    other.write_batch(&[(0, &block(6, 16))]).unwrap();
    assert_eq!(read(&other, 0, 16), [6; 16]);
    assert_eq!(volume.info().free, 0);
}

#[test]
fn punched_units_are_free_and_read_as_zero() {
    let drive = drive_of(8, 4096, true, 1);
    let volume = format(&drive);
    let file = volume.create("a").unwrap();
    file.write_batch(&[(0, &block(5, 16))]).unwrap();
    file.punch_hole(4096..5 * 4096).unwrap();
    file.sync().unwrap();
    assert_eq!(volume.info().free, UNIT);
    assert_eq!(file.len(), 16 * 4096);
    let file = open(&drive.crash(3)).unwrap().open_file("a").unwrap();
    assert_eq!(read(&file, 0, 6), [5, 0, 0, 0, 0, 5]);
    file.write_batch(&[(3 * 4096, &block(6, 1))]).unwrap();
    assert_eq!(read(&file, 0, 6), [5, 0, 0, 6, 0, 5]);
    file.punch_hole(0..16 * 4096).unwrap();
    assert_eq!(read(&file, 0, 16), [0; 16]);
}

#[test]
fn a_smaller_drive_is_refused_and_a_larger_one_used() {
    let drive = drive_of(16, 512, true, 1);
    let volume = format(&drive);
    volume.create("a").unwrap().set_len(16 * UNIT).unwrap();
    volume.commit().unwrap();
    let sized = |units: u64| {
        drive.reopen(MemoryOptions {
            blocks: drive.info().blocks - 16 * UNIT / 512 + units * UNIT / 512,
            ..MemoryOptions::default()
        })
    };
    let error = open(&sized(15)).unwrap_err();
    assert!(
        matches!(error, VolumeError::Smaller { was, is } if was - is == UNIT),
        "{error}"
    );
    let report = fsck(&blocking(&sized(15))).unwrap();
    assert!(report.faults[0].contains("former size"), "{report:?}");
    let larger = sized(20);
    assert!(fsck(&blocking(&larger)).unwrap().notes[0].contains("more than the volume uses"));
    let volume = open(&larger).unwrap();
    assert_eq!(volume.info().free, 4 * UNIT);
    volume.create("b").unwrap().set_len(4 * UNIT).unwrap();
    volume.commit().unwrap();
    // V9: the volume knows its new size at once.
    let after = larger.crash(1);
    assert_eq!(open(&after).unwrap().info().free, 0);
    let before = after.reopen(MemoryOptions {
        blocks: drive.info().blocks,
        ..MemoryOptions::default()
    });
    assert!(matches!(open(&before), Err(VolumeError::Smaller { .. })));
}

/// Changes a byte, whatever it is.
fn flip(drive: &MemoryDrive, at: u64) {
    let size = drive.info().block_size as u64;
    let byte = drive.block(at / size)[(at % size) as usize];
    put(drive, at, &[!byte]);
}

/// Writes raw bytes.
fn put(drive: &MemoryDrive, at: u64, bytes: &[u8]) {
    let blocks = blocking(drive);
    let size = drive.info().block_size as u64;
    let mut sector = vec![0; size as usize];
    let lba = at / size;
    blocks.read(lba, &mut sector).unwrap();
    let start = (at % size) as usize;
    sector[start..start + bytes.len()].copy_from_slice(bytes);
    blocks.write_durable(lba, &sector).unwrap();
}

#[test]
fn foreign_and_newer_drives_are_named() {
    let drive = drive_of(16, 512, true, 1);
    let error = open(&drive).unwrap_err();
    assert!(
        error.to_string().contains("it begins with zeros"),
        "{error}"
    );
    assert_eq!(contents(&blocking(&drive)).unwrap(), Contents::Nothing);
    put(&drive, 1080, b"\x53\xef");
    let error = open(&drive).unwrap_err();
    assert!(error.to_string().contains("ext4 file system"), "{error}");
    assert!(matches!(
        contents(&blocking(&drive)).unwrap(),
        Contents::Foreign(_)
    ));
    format(&drive);
    assert_eq!(contents(&blocking(&drive)).unwrap(), Contents::Volume);
    for at in COPIES {
        put(&drive, at + 8, &2_u32.to_le_bytes());
    }
    let error = open(&drive).unwrap_err();
    assert_eq!(
        error,
        VolumeError::Newer {
            version: 2,
            known: 1
        }
    );
    assert_eq!(fsck(&blocking(&drive)).unwrap_err(), error);
    let blocks = MemoryDrive::with_options(MemoryOptions {
        block_size: 8192,
        ..MemoryOptions::default()
    });
    let error = Volume::format(blocking(&blocks), options()).unwrap_err();
    assert!(matches!(error, VolumeError::Unsuitable { .. }));
    let error = Volume::format(blocking(&MemoryDrive::new(1024)), options()).unwrap_err();
    assert!(matches!(error, VolumeError::Unsuitable { .. }));
}

#[test]
fn either_superblock_suffices() {
    for lost in 0..2 {
        for is_media in [false, true] {
            let drive = drive_of(16, 512, true, 1);
            format(&drive).create("a").unwrap().inner.commit().unwrap();
            if is_media {
                drive.damage(COPIES[lost] / 512 + 1);
            } else {
                flip(&drive, COPIES[lost] + 20);
            }
            let notes = fsck(&blocking(&drive)).unwrap().notes;
            assert!(notes[0].contains("is unreadable"), "{notes:?}");
            assert_eq!(open(&drive).unwrap().list().len(), 1);
            // The opening has mended it.
            flip(&drive, COPIES[1 - lost] + 20);
            assert_eq!(open(&drive).unwrap().list().len(), 1);
        }
    }
    let drive = drive_of(16, 512, true, 1);
    format(&drive);
    COPIES.iter().for_each(|at| flip(&drive, at + 20));
    assert!(matches!(open(&drive), Err(VolumeError::Damaged { .. })));
    assert_eq!(fsck(&blocking(&drive)).unwrap().faults.len(), 1);
}

#[test]
fn a_damaged_entry_is_no_torn_tail() {
    let drive = drive_of(16, 512, true, 1);
    let volume = format(&drive);
    for name in ["a", "b", "c"] {
        volume.create(name).unwrap();
        volume.commit().unwrap();
    }
    let half = JOURNAL + (32 << 10);
    let damaged = |at: u64| {
        let copy = drive.crash(0);
        flip(&copy, half + at);
        (
            open(&copy).map(|volume| volume.list().len()),
            fsck(&blocking(&copy)).unwrap(),
        )
    };
    // The snapshot, and the entries of "a" and "b", were acknowledged.
    for entry in 0..3 {
        let (opened, report) = damaged(entry * 4096 + 44);
        assert!(
            matches!(opened, Err(VolumeError::Damaged { .. })),
            "{entry}: {opened:?}"
        );
        assert_eq!(report.faults.len(), 1, "{report:?}");
    }
    // A torn entry looks like this.
    assert_eq!(damaged(3 * 4096 + 44).0, Ok(2));
    drive.damage((half + 4096) / 512);
    let error = open(&drive).unwrap_err();
    assert!(
        matches!(error, VolumeError::Drive(DriveError::Media { .. })),
        "{error}"
    );
    assert!(fsck(&blocking(&drive)).unwrap().faults[0].contains("cannot read the journal"));
}

#[test]
fn files_that_share_units_are_a_fault() {
    use super::image::{Extent, Layout, put_file, put_name};
    let drive = drive_of(16, 512, true, 1);
    let volume = format(&drive);
    let mut payload = Vec::new();
    for (id, at) in [(1, 3), (2, 4), (3, 15)] {
        put_name(&mut payload, &format!("f{id}"), Some(id));
        let layout = Layout {
            len: 2 * UNIT,
            valid: 0,
            extents: vec![Extent {
                at: Some(at),
                units: 2,
            }],
        };
        put_file(&mut payload, id, &layout, &Layout::default());
    }
    let mut image = super::image::Image::default();
    image.apply(&payload).unwrap();
    let faults = image.faults(16, UNIT);
    assert!(
        faults[0].contains("\"f2\" and \"f1\" share units"),
        "{faults:?}"
    );
    assert!(faults[1].contains("the volume has 16"), "{faults:?}");
    drop(volume);
}

#[test]
fn after_a_failure_nothing_is_acknowledged() {
    let drive = drive_of(16, 512, true, 1);
    let volume = format(&drive);
    let file = volume.create("a").unwrap();
    file.write_durable_batch(&[(0, &block(1, 1))]).unwrap();
    volume.create("b").unwrap();
    // The flush, or the entry.
    for command in 0..2 {
        let drive = drive.crash(1);
        let volume = open(&drive).unwrap();
        let file = volume.open_file("a").unwrap();
        volume.create("c").unwrap();
        drive.fail_after(command);
        let error = volume.commit().unwrap_err();
        assert!(
            matches!(error, VolumeError::Drive(DriveError::Media { .. })),
            "{error}"
        );
        for result in [
            volume.commit(),
            file.sync(),
            file.write_batch(&[(0, &block(1, 1))]),
            file.write_durable_batch(&[(0, &block(1, 1))]),
            volume.create("d").map(drop),
            volume.remove("a"),
            volume.rename("a", "e"),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, VolumeError::Stopped(_)), "{error}");
            assert!(error.to_string().contains("open it again"), "{error}");
        }
        assert_eq!(read(&file, 0, 1), [1]);
    }
}

#[test]
fn a_full_directory_is_an_error_that_removals_end() {
    let drive = drive_of(16, 512, true, 1);
    let volume = format(&drive);
    let name = |i: u32| format!("{i:0>1000}");
    let full = (0..).find_map(|i| {
        volume.create(&name(i)).unwrap();
        volume.commit().err()
    });
    assert!(
        matches!(full, Some(VolumeError::DirectoryFull { limit: 32_768, .. })),
        "{full:?}"
    );
    volume.remove(&name(0)).unwrap();
    volume.commit().unwrap();
    let names = volume.list().len();
    assert!(names > 25, "{names}");
    assert_eq!(open(&drive.crash(1)).unwrap().list().len(), names);
    assert!(matches!(
        volume.create(&"x".repeat(1025)),
        Err(VolumeError::Invalid { .. })
    ));
}

#[test]
fn several_threads_write_create_and_commit() {
    let drive = drive_of(400, 512, true, 1);
    let volume = format(&drive);
    let shared = volume.create("shared").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (volume, shared) = (&volume, &shared);
            scope.spawn(move || {
                for round in 0..20_u64 {
                    let byte = (thread * 20 + round + 1) as u8;
                    let name = format!("{thread}-{}", round % 3);
                    let _ = volume.remove(&name);
                    let file = volume.create(&name).unwrap();
                    file.write_batch(&[(0, &block(byte, 5))]).unwrap();
                    let at = (thread * 20 + round) * 4096;
                    shared
                        .write_durable_batch(&[(at, &block(byte, 1))])
                        .unwrap();
                    file.sync().unwrap();
                    assert_eq!(read(&file, 0, 5), [byte; 5]);
                }
                volume.commit().unwrap();
            });
        }
    });
    let volume = open(&drive.crash(5)).unwrap();
    assert_eq!(volume.list().len(), 13);
    let shared = volume.open_file("shared").unwrap();
    let bytes: Vec<u8> = (1..=80).collect();
    assert_eq!(read(&shared, 0, 80), bytes);
    for thread in 0..4_u64 {
        let file = volume.open_file(&format!("{thread}-1")).unwrap();
        assert_eq!(read(&file, 0, 5), [(thread * 20 + 20) as u8; 5]);
    }
}
