//! The guarantees of every device, tested on each one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_io::{
    AlignedBuf, Device, DeviceChoice, DirectoryLock, LockError, MemoryDevice, OpenMode,
    OverlayDevice, ReadOp, SimDevice, VolumeDevice, WriteOp, create_directory, has_file,
    list_directory, open_directory,
};
use braid_nvme::volume::FormatOptions;
use braid_nvme::{Blocking, DriveName, MemoryDrive, Volume};
use tempfile::NamedTempFile;

fn on_each(test: impl Fn(&dyn Device)) {
    test(&MemoryDevice::new());
    test(&SimDevice::new(1));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device: Arc<dyn Device> = open_directory(directory.path(), DeviceChoice::File).unwrap();
    test(&*device);
    for choice in [
        DeviceChoice::PmemFile,
        DeviceChoice::PmemEmulated { line_latency: 0 },
    ] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        test(&*open_directory(directory.path(), choice).unwrap());
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    match open_directory(directory.path(), DeviceChoice::Uring) {
        Ok(device) => test(&*device),
        // A sandbox may forbid it; then nothing is tested.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
    }
    let drive = Blocking::new(Arc::new(MemoryDrive::new(1 << 15)));
    let volume = Volume::format(drive, FormatOptions::default()).unwrap();
    test(&VolumeDevice::new(volume, "a name").unwrap());
    if let Some((_file, name)) = volume_in_a_file() {
        test(&*open_directory(&name, DeviceChoice::Auto).unwrap());
    }
}

/// Creates a volume in a file, if the system allows direct I/O through io_uring, and returns the
/// name of a database on it.
fn volume_in_a_file() -> Option<(NamedTempFile, PathBuf)> {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    let formatted = (|| {
        let opened = DriveName::Path(file.path().into()).open()?;
        Volume::format(Blocking::new(opened.drive), FormatOptions::default())
    })();
    if let Err(error) = formatted {
        println!("SKIPPED: {error}");
        return None;
    }
    let name = format!("nvme:{}/library", file.path().display());
    Some((file, name.into()))
}

fn block(byte: u8, blocks: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(4096 * blocks);
    buf.fill(byte);
    buf
}

#[test]
fn written_bytes_are_read() {
    on_each(|device| {
        let file = device.open("a", OpenMode::CreateNew).unwrap();
        assert!(file.is_empty().unwrap());
        file.write_at(&[&block(1, 1), &block(2, 2)], 4096).unwrap();
        file.write_durable_at(&[&block(3, 1), &block(4, 1)], 2 * 4096)
            .unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 4 * 4096);
        let mut read = block(9, 4);
        file.read_at(&mut read, 0).unwrap();
        let firsts: Vec<u8> = read.chunks(4096).map(|b| b[17]).collect();
        assert_eq!(firsts, [0, 1, 3, 4]);
        let error = file.read_at(&mut read, 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn batches_equal_single_operations() {
    on_each(|device| {
        let file = device.open("a", OpenMode::CreateNew).unwrap();
        let bufs: Vec<AlignedBuf> = (0..40).map(|i| block(i, 1)).collect();
        let writes: Vec<WriteOp<'_>> = bufs
            .iter()
            .enumerate()
            .map(|(i, buf)| WriteOp {
                buf,
                offset: 4096 * i as u64,
            })
            .collect();
        file.write_batch(&writes).unwrap();
        let mut read: Vec<AlignedBuf> = (0..40).map(|_| block(99, 1)).collect();
        let mut reads: Vec<ReadOp<'_>> = read
            .iter_mut()
            .enumerate()
            .map(|(i, buf)| ReadOp {
                buf,
                offset: 4096 * (39 - i) as u64,
            })
            .collect();
        file.read_batch(&mut reads).unwrap();
        assert!(
            read.iter()
                .enumerate()
                .all(|(i, buf)| buf.iter().all(|b| *b == 39 - i as u8))
        );
    });
}

#[test]
fn zeroes_and_holes_read_as_zero() {
    on_each(|device| {
        let file = device.open("a", OpenMode::CreateNew).unwrap();
        file.fill_zero(0..3 << 20).unwrap();
        assert_eq!(file.len().unwrap(), 3 << 20);
        file.write_at(&[&block(7, 4)], 0).unwrap();
        file.punch_hole(4096..3 * 4096).unwrap();
        let mut read = block(9, 4);
        file.read_at(&mut read, 0).unwrap();
        let firsts: Vec<u8> = read.chunks(4096).map(|b| b[0]).collect();
        assert_eq!(firsts, [7, 0, 0, 7]);
        file.set_len(4096).unwrap();
        assert_eq!(file.len().unwrap(), 4096);
    });
}

#[test]
fn offsets_beyond_every_file_are_errors() {
    on_each(|device| {
        let file = device.open("a", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(7, 1)], 0).unwrap();
        let overlay = OverlayDevice::new(Arc::new(MemoryDevice::new())).unwrap();
        let changed = overlay.open("a", OpenMode::CreateNew).unwrap();
        for file in [file, changed] {
            let len = file.len().unwrap();
            for offset in [1 << 62, (1 << 63) - 4096, 1 << 63, u64::MAX - 4095] {
                let mut read = block(9, 2);
                let reads = &mut [ReadOp {
                    buf: &mut read,
                    offset,
                }];
                assert!(file.read_batch(reads).is_err(), "{offset}");
                assert!(file.read_at(&mut read, offset).is_err(), "{offset}");
            }
            for offset in [(1 << 63) - 4096, 1 << 63, u64::MAX - 4095] {
                let buf = &block(9, 2);
                assert!(file.write_at(&[buf], offset).is_err(), "{offset}");
                assert!(file.write_durable_at(&[buf], offset).is_err(), "{offset}");
                assert!(file.write_batch(&[WriteOp { buf, offset }]).is_err());
            }
            assert_eq!(file.len().unwrap(), len);
        }
    });
}

#[test]
fn a_length_beyond_memory_is_an_error() {
    let file = MemoryDevice::new().open("a", OpenMode::CreateNew).unwrap();
    for len in [1 << 62, u64::MAX - 4095] {
        assert_eq!(
            file.set_len(len).unwrap_err().kind(),
            ErrorKind::OutOfMemory
        );
    }
    let error = file.write_at(&[&block(1, 1)], 1 << 62).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(file.is_empty().unwrap());
}

#[test]
fn room_reads_as_zero_and_takes_nothing_away() {
    on_each(|device| {
        let file = device.open("a", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(7, 4)], 0).unwrap();
        file.reserve(8 * 4096).unwrap();
        // Some devices do not support reserving space.
        let len = file.len().unwrap();
        assert!(len == 4 * 4096 || len == 8 * 4096, "{len}");
        file.reserve(4096).unwrap();
        assert_eq!(file.len().unwrap(), len);
        file.write_at(&[&block(9, 1)], 7 * 4096).unwrap();
        let mut read = block(1, 8);
        file.read_at(&mut read, 0).unwrap();
        let firsts: Vec<u8> = read.chunks(4096).map(|b| b[0]).collect();
        assert_eq!(firsts, [7, 7, 7, 7, 0, 0, 0, 9]);
    });
}

#[test]
fn names_behave_like_a_directory() {
    on_each(|device| {
        let missing = device.open("a", OpenMode::Existing).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        device
            .open("a", OpenMode::CreateNew)
            .unwrap()
            .write_at(&[&block(1, 1)], 0)
            .unwrap();
        device.open("b", OpenMode::CreateNew).unwrap();
        let exists = device.open("a", OpenMode::CreateNew).unwrap_err();
        assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
        device.rename("a", "b").unwrap();
        device.sync_directory().unwrap();
        let list: Vec<(String, u64)> = device
            .list()
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name, entry.len))
            .collect();
        // A mapped file grows by whole pages of the system, which have up to 64 KiB.
        let (name, len) = &list[0];
        assert!(list.len() == 1 && name == "b", "{list:?}");
        assert!([4096, 16384, 65536].contains(len), "{list:?}");
        device.remove("b").unwrap();
        assert_eq!(device.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_directory_is_locked_once() {
    let directory = tempfile::tempdir().unwrap();
    let lock = DirectoryLock::acquire(directory.path()).unwrap();
    assert!(matches!(
        DirectoryLock::acquire(directory.path()),
        Err(LockError::Held)
    ));
    drop(lock);
    DirectoryLock::acquire(directory.path()).unwrap();
    assert!(matches!(
        DirectoryLock::acquire(&directory.path().join("missing")),
        Err(LockError::Io(error)) if error.kind() == ErrorKind::NotFound
    ));
}

/// A process may end at any moment, also while it finds out what its directory can do.
#[test]
fn a_probe_removes_files_of_the_previous_one() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(directory.path().join(".braid-probe"), "half").unwrap();
    let device = open_directory(directory.path(), DeviceChoice::File).unwrap();
    assert_eq!(device.list().unwrap(), []);
}

#[test]
fn a_directory_is_created_with_all_above_it() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("a/b/c");
    create_directory(&path).unwrap();
    create_directory(&path).unwrap();
    assert!(path.is_dir());
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(create_directory(&file.join("d")).is_err());
}

/// A symbolic link in the way is neither followed nor written to.
#[test]
#[cfg(unix)]
fn no_symbolic_link_is_followed() {
    use std::os::unix::fs::symlink;

    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (place, letter) = (directory.path().join("db"), directory.path().join("letter"));
    std::fs::write(&letter, "Dear engine").unwrap();
    std::fs::create_dir(&place).unwrap();
    for name in [".braid-probe", "old", "new", "LOCK", "copy"] {
        symlink(&letter, place.join(name)).unwrap();
    }
    let device = open_directory(&place, DeviceChoice::File).unwrap();
    assert!(!place.join(".braid-probe").exists());
    assert_eq!(device.list().unwrap(), []);
    let opened = device.open("old", OpenMode::Existing).unwrap_err();
    assert!(opened.to_string().contains("old"), "{opened}");
    let created = device.open("new", OpenMode::CreateNew).unwrap_err();
    assert_eq!(created.kind(), ErrorKind::AlreadyExists);
    assert!(matches!(
        DirectoryLock::acquire(&place),
        Err(LockError::Io(_))
    ));
    // A new file replaces the link.
    let mut copy = braid_io::create_file(&place.join("copy"), 0o600).unwrap();
    std::io::Write::write_all(&mut copy, b"copy").unwrap();
    assert!(!place.join("copy").is_symlink());
    assert_eq!(std::fs::read_to_string(&letter).unwrap(), "Dear engine");
}

/// An error names the file and the operation; its kind is the system's.
#[test]
fn errors_name_the_file() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = open_directory(directory.path(), DeviceChoice::Auto).unwrap();
    let path = directory.path().join("a").display().to_string();
    let error = device.open("a", OpenMode::Existing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot open {path}: ")),
        "{error}"
    );
    let error = device.remove("a").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot remove {path}: ")),
        "{error}"
    );
    let file = device.open("a", OpenMode::CreateNew).unwrap();
    let mut buf = device.allocate(device.block_size());
    let error = file.read_at(&mut buf, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot read {path}: ")),
        "{error}"
    );
    let mut op = [braid_io::ReadOp {
        buf: &mut buf,
        offset: 0,
    }];
    let error = file.read_batch(&mut op).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains(&path), "{error}");
}

/// Databases of one process share a drive; another opening of the drive is refused until the last
/// of them has released its lock, whatever handles still exist.
#[test]
fn names_on_a_volume_share_the_drive_and_are_locked() {
    let Some((file, first)) = volume_in_a_file() else {
        return;
    };
    let drive = DriveName::Path(file.path().into());
    let second: PathBuf = format!("nvme:{}/second", file.path().display()).into();
    let lock = DirectoryLock::acquire(&first).unwrap();
    let device = open_directory(&first, DeviceChoice::Auto).unwrap();
    let opened = device.open("a", OpenMode::CreateNew).unwrap();
    opened.write_durable_at(&[&block(5, 1)], 0).unwrap();
    let held = |lock| matches!(lock, Err(LockError::Held));
    assert!(held(DirectoryLock::acquire(&first)));
    assert!(held(DirectoryLock::acquire_shared(&first)));
    assert!(drive.open().is_err());
    assert!(has_file(&first, "a").unwrap() && !has_file(&second, "a").unwrap());
    assert_eq!(list_directory(&first).unwrap(), ["a"]);
    let others = DirectoryLock::acquire_shared(&second).unwrap();
    let more = DirectoryLock::acquire_shared(&second).unwrap();
    drop((lock, others));
    assert!(drive.open().is_err());
    assert!(held(DirectoryLock::acquire(&second)));
    drop(more);
    // As another process does.
    let other = drive.open().unwrap();
    assert!(held(DirectoryLock::acquire(&second)));
    let error = open_directory(&first, DeviceChoice::Auto).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    drop((other, opened, device));
    let again = open_directory(&first, DeviceChoice::Auto).unwrap();
    assert_eq!(again.list().unwrap().len(), 1);
    // Without a lock, the device itself keeps the drive.
    assert!(drive.open().is_err());
    drop(again);
    drive.open().unwrap();
}

#[test]
fn a_name_without_a_volume_says_what_is_there() {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    let name = format!("nvme:{}/a", file.path().display());
    let error = open_directory(Path::new(&name), DeviceChoice::Auto).unwrap_err();
    if [ErrorKind::InvalidInput, ErrorKind::Unsupported].contains(&error.kind()) {
        // The file system has no direct I/O, or the system no io_uring.
        return println!("SKIPPED: {error}");
    }
    assert!(error.to_string().contains("begins with zeros"), "{error}");
    let missing = open_directory(Path::new("nvme:/no/such/a"), DeviceChoice::Auto).unwrap_err();
    let kinds = [ErrorKind::NotFound, ErrorKind::Unsupported];
    assert!(kinds.contains(&missing.kind()), "{missing}");
}
