//! A device that consists of two: one for the files of the log, one for all others.

use std::io;
use std::sync::Arc;

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReaderTable};

/// A [`Device`] whose files are on two devices: those of the log on one, all others on the other.
/// So the log of a database can be in persistent memory and its data on a disk, or the reverse.
///
/// [`Device::block_size_of`] and [`Device::kind_of`] depend on the file. A file of one device that
/// has a name for the other one is invisible.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::sync::Arc;
/// use braid_io::{Device, MemoryDevice, OpenMode, SplitDevice};
/// let (data, log) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryDevice::new()));
/// let both = SplitDevice::new(data.clone(), log.clone(), |name| name.starts_with("log-"));
/// both.open("log-1", OpenMode::CreateNew)?;
/// both.open("data", OpenMode::CreateNew)?;
/// assert_eq!((data.list()?.len(), log.list()?.len(), both.list()?.len()), (1, 1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SplitDevice {
    data: Arc<dyn Device>,
    log: Arc<dyn Device>,
    is_log: fn(&str) -> bool,
}

impl SplitDevice {
    /// Combines two devices; `is_log` decides by a file's name whether `log` has it.
    pub fn new(data: Arc<dyn Device>, log: Arc<dyn Device>, is_log: fn(&str) -> bool) -> Self {
        Self { data, log, is_log }
    }

    /// The device of the file with a name.
    fn of(&self, name: &str) -> &dyn Device {
        if (self.is_log)(name) {
            &*self.log
        } else {
            &*self.data
        }
    }
}

impl Device for SplitDevice {
    fn kind(&self) -> DeviceKind {
        self.data.kind()
    }

    fn block_size(&self) -> usize {
        self.data.block_size().max(self.log.block_size())
    }

    fn kind_of(&self, name: &str) -> DeviceKind {
        self.of(name).kind_of(name)
    }

    fn block_size_of(&self, name: &str) -> usize {
        self.of(name).block_size_of(name)
    }

    fn writes_at_once(&self, name: &str) -> bool {
        self.of(name).writes_at_once(name)
    }

    fn allocate(&self, len: usize) -> AlignedBuf {
        // Every device needs the same alignment, which is that of the largest block.
        self.data.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.of(name).open(name, mode)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.of(name).remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if (self.is_log)(from) != (self.is_log)(to) {
            let what = format!("cannot rename {from} to {to}: they are on different devices");
            return Err(io::Error::new(io::ErrorKind::CrossesDevices, what));
        }
        self.of(from).rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = self.data.list()?;
        entries.retain(|entry| !(self.is_log)(&entry.name));
        let logs = self.log.list()?.into_iter();
        entries.extend(logs.filter(|entry| (self.is_log)(&entry.name)));
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.log.sync_directory()?;
        self.data.sync_directory()
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        self.data.reader_table(create)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, SimDevice};

    fn is_log(name: &str) -> bool {
        name.starts_with("log-")
    }

    fn devices() -> (Arc<dyn Device>, Arc<dyn Device>, SplitDevice) {
        let (data, log) = (SimDevice::new(1), SimDevice::new(2));
        log.set_block_size(64);
        let (data, log): (Arc<dyn Device>, Arc<dyn Device>) = (Arc::new(data), Arc::new(log));
        (
            data.clone(),
            log.clone(),
            SplitDevice::new(data, log, is_log),
        )
    }

    #[test]
    fn each_file_is_on_its_device_and_has_its_blocks() {
        let (data, log, both) = devices();
        both.open("log-1", OpenMode::CreateNew).unwrap();
        both.open("pages", OpenMode::CreateNew).unwrap();
        both.rename("log-1", "log-2").unwrap();
        let names = |device: &dyn Device| -> Vec<String> {
            device.list().unwrap().into_iter().map(|e| e.name).collect()
        };
        assert_eq!(names(&*data), ["pages"]);
        assert_eq!(names(&*log), ["log-2"]);
        assert_eq!(names(&both), ["log-2", "pages"]);
        assert_eq!(both.block_size(), 4096);
        assert_eq!(both.block_size_of("log-9"), 64);
        assert_eq!(both.block_size_of("pages"), 4096);
        assert_eq!(both.kind_of("log-9"), DeviceKind::Simulator);
        let file = both.open("log-2", OpenMode::Existing).unwrap();
        file.write_durable_at(&[&both.allocate(64)], 64).unwrap();
        let file = both.open("pages", OpenMode::Existing).unwrap();
        assert!(file.write_at(&[&both.allocate(64)], 64).is_err());
        both.remove("log-2").unwrap();
        assert_eq!(names(&both), ["pages"]);
    }

    #[test]
    fn a_file_does_not_move_between_the_devices() {
        let (_, _, both) = devices();
        both.open("log-1", OpenMode::CreateNew).unwrap();
        let error = both.rename("log-1", "pages").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
    }

    #[test]
    fn files_with_names_for_the_other_device_are_invisible() {
        let (data, log) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryDevice::new()));
        data.open("log-1", OpenMode::CreateNew).unwrap();
        log.open("pages", OpenMode::CreateNew).unwrap();
        let both = SplitDevice::new(data, log, is_log);
        assert_eq!(both.list().unwrap(), []);
        let opened = both.open("log-1", OpenMode::Existing);
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn names_on_both_devices_become_durable() {
        let (data, log) = (SimDevice::new(1), SimDevice::new(2));
        let both = SplitDevice::new(Arc::new(data.clone()), Arc::new(log.clone()), is_log);
        both.open("log-1", OpenMode::CreateNew).unwrap();
        both.open("pages", OpenMode::CreateNew).unwrap();
        both.sync_directory().unwrap();
        for device in [data, log] {
            device.power_off();
            for _ in 0..8 {
                assert_eq!(device.after_crash().list().unwrap().len(), 1);
            }
        }
    }
}
