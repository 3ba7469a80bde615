//! Interrupted creations, and files of others in their directory.

use std::fs;
use std::sync::Arc;

use braid::{Database, Error, offline};
use braid_io::{AlignedBuf, Device, OpenMode, SimDevice};

use super::{assert_holds, fill, open_sim};

#[test]
fn an_interrupted_creation_starts_over() {
    for n in 1..40 {
        let device = SimDevice::new(n);
        device.crash_after(n);
        if open_sim(&device).is_ok() {
            continue;
        }
        let image = device.after_crash();
        let db = open_sim(&image).unwrap_or_else(|e| panic!("crash at step {n}: {e}"));
        assert_eq!(fill(&db, 10, 5).0.len(), 5);
    }
}

/// The names and contents of all files.
fn contents(device: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let entries = device.list().unwrap();
    let read = |entry: braid_io::Entry| {
        let len = entry.len as usize;
        let mut bytes = AlignedBuf::new(len.max(1));
        let file = device.open(&entry.name, OpenMode::Existing).unwrap();
        file.read_at(&mut bytes[..len], 0).unwrap();
        (entry.name, bytes[..len].to_vec())
    };
    entries.into_iter().map(read).collect()
}

fn put_file(device: &SimDevice, name: &str, bytes: &[u8]) {
    let file = device.open(name, OpenMode::CreateNew).unwrap();
    let mut aligned = AlignedBuf::new(bytes.len().max(1));
    aligned[..bytes.len()].copy_from_slice(bytes);
    file.write_at(&[&aligned[..bytes.len()]], 0).unwrap();
    file.sync().unwrap();
    device.sync_directory().unwrap();
}

/// Returns the files that a creation leaves if the power fails after `steps` steps; `None` if the
/// creation was complete.
fn interrupted_creation(steps: u64) -> Option<SimDevice> {
    let device = SimDevice::new(steps);
    device.crash_after(steps);
    match open_sim(&device) {
        Ok(_) => None,
        Err(_) => Some(device.after_crash()),
    }
}

/// Returns the marker of any creation.
fn some_marker() -> Vec<u8> {
    let images = (1..40).filter_map(interrupted_creation);
    let mut markers = images.flat_map(|image| contents(&image));
    let is_marker =
        |(name, bytes): &(String, Vec<u8>)| name == "CREATING" && bytes.starts_with(b"BRAIDNEW");
    markers.find(is_marker).expect("a marker that is whole").1
}

/// Markers that match no file in the directory: blank, random, torn, damaged, of another creation.
fn markers() -> Vec<Vec<u8>> {
    let whole = some_marker();
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    let mut torn = whole.clone();
    torn[16..].fill(0);
    vec![
        vec![],
        vec![0; 4096],
        vec![b'x'; 4096],
        torn,
        damaged,
        whole,
    ]
}

#[test]
fn opening_removes_no_document_next_to_a_marker() {
    for marker in markers() {
        for name in [
            "letter.txt",
            "data.braid",
            "log-00-00000001.seg",
            "log-diary.new",
        ] {
            let device = SimDevice::new(1);
            put_file(&device, name, &[b'd'; 16 << 10]);
            put_file(&device, "CREATING", &marker);
            let before = contents(&device);
            let error = open_sim(&device).unwrap_err();
            assert!(
                matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("CREATING")),
                "{name}: {error}"
            );
            assert!(contents(&device) == before, "{name}: {error}");
        }
    }
}

#[test]
fn opening_removes_no_database_next_to_a_marker() {
    for marker in markers() {
        let device = SimDevice::new(1);
        let db = open_sim(&device).unwrap();
        let (acknowledged, _) = fill(&db, 100, 50);
        drop(db);
        let image = device.after_crash();
        put_file(&image, "CREATING", &marker);
        let before = contents(&image);
        let error = open_sim(&image).unwrap_err();
        assert!(
            matches!(&error, Error::NotADatabase { reason, .. } if reason.contains("CREATING")),
            "{error}"
        );
        assert!(contents(&image) == before, "{error}");
        image.remove("CREATING").unwrap();
        assert_holds(&open_sim(&image).unwrap(), &acknowledged);
    }
}

/// A database that was copied with the marker of its own unfinished creation is complete.
#[test]
fn a_finished_database_with_its_own_marker_is_opened() {
    let device = SimDevice::new(1);
    let mut marker = None;
    for steps in 1..100 {
        let device = SimDevice::new(1);
        device.crash_after(steps);
        drop(open_sim(&device));
        let image = device.after_crash();
        let found = contents(&image)
            .into_iter()
            .find(|(name, bytes)| name == "CREATING" && bytes.starts_with(b"BRAIDNEW"));
        marker = marker.or(found);
    }
    let (_, marker) = marker.expect("a marker that is whole");
    // The same seed yields the same identity only under a simulation, so the marker is adapted
    // here.
    let db = open_sim(&device).unwrap();
    let (acknowledged, _) = fill(&db, 100, 50);
    drop(db);
    let image = device.after_crash();
    let mut own = marker;
    let data = &contents(&image)[0];
    assert_eq!(data.0, "data.braid");
    own[16..32].copy_from_slice(&data.1[8192 + 48..8192 + 64]);
    let crc = crc32c::crc32c(&own[16..32]);
    own[8..12].copy_from_slice(&crc.to_le_bytes());
    put_file(&image, "CREATING", &own);
    let is_marked = |image: &SimDevice| contents(image).iter().any(|(name, _)| name == "CREATING");
    // The marker stays until the checkpoint that was found is durable.
    let failing = image.after_crash();
    failing.fail_write_after(0);
    assert!(matches!(open_sim(&failing), Err(Error::Io { .. })));
    assert!(is_marked(&failing));
    let db = open_sim(&image).unwrap();
    assert_holds(&db, &acknowledged);
    assert!(!is_marked(&image));
}

/// A foreign file appears in the directory of an interrupted creation: the creation's files stay as
/// well, because it is unknown which of them are still wanted.
#[test]
fn foreign_files_in_an_interrupted_creation_stay() {
    let mut refused = 0;
    for image in (1..40).filter_map(interrupted_creation) {
        put_file(&image, "letter.txt", &[b'd'; 4096]);
        let before = contents(&image);
        match open_sim(&image) {
            Err(error) => {
                assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
                assert!(contents(&image) == before, "{error}");
                refused += 1;
            }
            // Either only the marker remained, or nothing.
            Ok(_) => {
                assert!(contents(&image).contains(&("letter.txt".into(), vec![b'd'; 4096])));
            }
        }
        image.remove("letter.txt").unwrap();
        open_sim(&image).unwrap();
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn opening_removes_no_statistics_of_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("STATS"), "goals per season").unwrap();
    Database::open(dir.path()).unwrap_err();
    let read = fs::read(dir.path().join("STATS")).unwrap();
    assert_eq!(read, b"goals per season");
}

/// A creation with an archive writes one more file.
#[test]
fn an_interrupted_creation_with_an_archive_starts_over() {
    let mut interrupted = 0;
    for n in 1..60 {
        let (device, archive) = (SimDevice::new(n), SimDevice::new(n));
        let open = |device: &SimDevice, archive: &SimDevice| {
            Database::builder()
                .background_threads(false)
                .pool_bytes(1 << 20)
                .segment_bytes(64 << 10)
                .archive_on(Arc::new(archive.clone()))
                .open_on(Arc::new(device.clone()))
        };
        device.crash_after(n);
        if open(&device, &archive).is_ok() {
            continue;
        }
        interrupted += 1;
        let image = device.after_crash();
        let db = open(&image, &SimDevice::new(n));
        let db = db.unwrap_or_else(|e| panic!("crash at step {n}: {e}"));
        assert_eq!(fill(&db, 10, 5).0.len(), 5);
    }
    assert!(interrupted > 20, "{interrupted}");
}

/// Copies all files to a directory.
fn copy_to(device: &SimDevice, directory: &std::path::Path) {
    for (name, bytes) in contents(device) {
        fs::write(directory.join(name), bytes).unwrap();
    }
}

/// Opening starts an interrupted creation over, so it is no damage.
#[test]
fn verify_notes_an_interrupted_creation() {
    let (mut unfinished, mut with_data_file) = (0, 0);
    for image in (1..40).filter_map(interrupted_creation) {
        let directory = tempfile::tempdir().unwrap();
        copy_to(&image, directory.path());
        let has = |name| directory.path().join(name).exists();
        let (has_marker, has_data_file) = (has("CREATING"), has("data.braid"));
        let mut findings = Vec::new();
        let verified = offline::verify(directory.path(), &mut |finding| findings.push(finding));
        assert_eq!(findings, Vec::<String>::new());
        match verified {
            Ok(report) => {
                assert_eq!(report.damages, 0);
                // A creation that completed except for its marker is a database.
                let is_database = Database::open_read_only(directory.path()).is_ok();
                assert_eq!(report.creation_interrupted, !is_database);
                unfinished += u32::from(report.creation_interrupted);
                with_data_file += u32::from(report.creation_interrupted && has_data_file);
            }
            Err(Error::NotADatabase { .. }) => assert!(!has_marker && !has_data_file),
            Err(error) => panic!("{error}"),
        }
        let db = Database::builder().pool_bytes(1 << 20);
        db.open(directory.path()).unwrap().close().unwrap();
        let report = offline::verify(directory.path(), &mut |what| panic!("{what}")).unwrap();
        assert!(!report.creation_interrupted);
    }
    assert!(with_data_file > 0 && unfinished > with_data_file);
}
