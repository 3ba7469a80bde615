//! What every device promises, tried on each.

use std::io::ErrorKind;
use std::sync::Arc;

use braid_io::{
    AlignedBuf, Device, DeviceChoice, DirectoryLock, LockError, MemoryDevice, OpenMode, ReadOp,
    SimDevice, WriteOp, create_directory, open_directory,
};

fn on_each(test: impl Fn(&dyn Device)) {
    test(&MemoryDevice::new());
    test(&SimDevice::new(1));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device: Arc<dyn Device> = open_directory(directory.path(), DeviceChoice::File).unwrap();
    test(&*device);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    match open_directory(directory.path(), DeviceChoice::Uring) {
        Ok(device) => test(&*device),
        // A sandbox may forbid it; then there is nothing to try.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
    }
}

fn block(byte: u8, blocks: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(4096 * blocks);
    buf.fill(byte);
    buf
}

#[test]
fn what_is_written_is_read() {
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
fn batches_do_what_single_operations_do() {
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
fn room_reads_as_zero_and_takes_nothing_away() {
    on_each(|device| {
        let file = device.open("a", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(7, 4)], 0).unwrap();
        file.reserve(8 * 4096).unwrap();
        // Some devices have no room to set aside.
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
        assert_eq!(list, [("b".to_owned(), 4096)]);
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
fn what_a_probe_left_goes_with_the_next() {
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
