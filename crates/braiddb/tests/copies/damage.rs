//! Damage to backups: each byte flipped, each length truncated.

use std::sync::Arc;

use braid::Error;
use braid::backup::BackupError;
use braid::device::MemoryDevice;

use super::model::{small, small_restore};

fn stream() -> Vec<u8> {
    let builder = small();
    let db = builder.open_on(Arc::new(MemoryDevice::new())).unwrap();
    let table = db.open_table::<u64, u64>("t").unwrap();
    for key in 0..20 {
        db.transact(|tx| tx.insert(&table, &key, &key)).unwrap();
    }
    let mut stream = Vec::new();
    db.backup_to(&mut stream).unwrap();
    stream
}

fn restore(bytes: &[u8]) -> Result<(), Error> {
    let restore = small_restore().stream(bytes);
    restore.run_on(Arc::new(MemoryDevice::new())).map(drop)
}

#[test]
fn every_flipped_byte_is_detected() {
    let mut bytes = stream();
    restore(&bytes).unwrap();
    let page = 8 + 8 + 8..8 + 8 + 8 + 8192;
    for at in 0..bytes.len() {
        // One checksum covers the pages' bytes, so a few of them are enough.
        if page.contains(&at) && at % 101 != 0
            || at > page.end && at % 7 != 0 && at + 600 < bytes.len()
        {
            continue;
        }
        bytes[at] ^= 0x20;
        let error = restore(&bytes).unwrap_err();
        assert!(matches!(error, Error::Backup(_)), "byte {at}: {error}");
        bytes[at] ^= 0x20;
    }
    restore(&bytes).unwrap();
}

#[test]
fn every_truncation_is_detected() {
    let bytes = stream();
    for len in (0..bytes.len()).filter(|len| len % 97 == 0 || len + 300 > bytes.len() || *len < 100)
    {
        let error = restore(&bytes[..len]).unwrap_err();
        let Error::Backup(error) = error else {
            panic!("{len} bytes: {error}");
        };
        let is_reported = matches!(
            error,
            BackupError::Incomplete { .. } | BackupError::NotABackup { .. }
        );
        assert!(is_reported, "{len} bytes: {error}");
    }
    let mut long = bytes;
    long.push(0);
    assert!(matches!(restore(&long), Err(Error::Backup(_))));
}
