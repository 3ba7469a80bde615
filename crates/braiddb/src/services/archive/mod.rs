//! The archive of the log: every transaction that was ever durable, in order, in separate files.
//!
//! An archive is written by reading the log, not by copying its segments. So its transactions are
//! committed, durable and ordered by sequence number, whatever the protocol, the lanes and the
//! crashes in between. Each batch records its range of sequence numbers, so a hole can be reported
//! exactly, and the time of its writing, so a time can be mapped to a sequence number. Format:
//! `docs/backup.md`.

mod batch;
mod owner;
mod read;
mod service;
mod until;
mod write;

pub(crate) use read::{Archive, ArchivedTransaction};
pub(crate) use service::ArchiveWriter;
pub use until::Until;
pub(crate) use write::Archiver;

/// Name of an archive on a device, which has no path.
pub(crate) const ON_DEVICE: &str = "(on a device)";

pub(crate) use batch::nanos;
pub(crate) use batch::seal;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use braid_io::{Device, MemoryDevice, OpenMode};

    use crate::{Builder, Database, Table};

    fn small() -> Builder {
        Database::builder()
            .pool_bytes(1 << 20)
            .background_threads(false)
    }

    #[test]
    fn messages_about_devices_name_no_path() {
        let archive = Arc::new(MemoryDevice::new());
        let open = |device| small().archive_on(archive.clone()).open_on(device);
        let first = open(Arc::new(MemoryDevice::new())).unwrap();
        let t: Table<u32, u32> = first.open_table("t").unwrap();
        first.transact(|tx| tx.insert(&t, &1, &1)).unwrap();
        first.archive_now().unwrap();
        let refused = open(Arc::new(MemoryDevice::new())).unwrap_err().to_string();
        let expected = "cannot use archive (on a device): it belongs to another database";
        assert!(refused.starts_with(expected), "{refused}");

        let foreign = MemoryDevice::new();
        foreign.open("letter", OpenMode::CreateNew).unwrap();
        let refused = open(Arc::new(foreign)).unwrap_err().to_string();
        let expected = "cannot open the device as a Braid database: it contains \"letter\"";
        assert!(refused.starts_with(expected), "{refused}");
    }
}
