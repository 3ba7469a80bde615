//! A device whose files are on several devices, by name.

use std::io;
use std::sync::Arc;

use crate::{AlignedBuf, Device, DeviceKind, Entry, File, OpenMode, ReaderTable};

/// A [`Device`] some of whose files are on devices of their own: a function maps a file's name to a
/// number, and each number to which a device belongs is a *route*. All other files are on the main
/// device. So a database can have a part of its log on another disk.
///
/// A file that is on a device other than its route's is invisible.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::sync::Arc;
/// use braid_io::{Device, MemoryDevice, OpenMode, RoutedDevice};
/// let (main, third) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryDevice::new()));
/// let route = |name: &str| name.strip_prefix("log-")?.parse().ok();
/// let all = RoutedDevice::new(main.clone(), vec![(3, third.clone() as _)], route);
/// all.open("log-1", OpenMode::CreateNew)?;
/// all.open("log-3", OpenMode::CreateNew)?;
/// assert_eq!((main.list()?.len(), third.list()?.len(), all.list()?.len()), (1, 1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RoutedDevice {
    main: Arc<dyn Device>,
    routes: Vec<(usize, Arc<dyn Device>)>,
    route_of: fn(&str) -> Option<usize>,
}

impl RoutedDevice {
    /// Combines a device with those of some routes; `route_of` maps a file's name to its route.
    pub fn new(
        main: Arc<dyn Device>,
        routes: Vec<(usize, Arc<dyn Device>)>,
        route_of: fn(&str) -> Option<usize>,
    ) -> Self {
        Self {
            main,
            routes,
            route_of,
        }
    }

    /// Returns the index of the device of a file: that of its route, if it has one.
    fn route(&self, name: &str) -> Option<usize> {
        let route = (self.route_of)(name)?;
        self.routes.iter().position(|(number, _)| *number == route)
    }

    /// The device of the file with a name.
    fn of(&self, name: &str) -> &dyn Device {
        match self.route(name) {
            Some(index) => &*self.routes[index].1,
            None => &*self.main,
        }
    }
}

impl Device for RoutedDevice {
    fn kind(&self) -> DeviceKind {
        self.main.kind()
    }

    fn block_size(&self) -> usize {
        let others = self.routes.iter().map(|(_, device)| device.block_size());
        others.fold(self.main.block_size(), usize::max)
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
        self.main.allocate(len)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.of(name).open(name, mode)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.of(name).remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if self.route(from) != self.route(to) {
            let what = format!("cannot rename {from} to {to}: they are on different devices");
            return Err(io::Error::new(io::ErrorKind::CrossesDevices, what));
        }
        self.of(from).rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = self.main.list()?;
        entries.retain(|entry| self.route(&entry.name).is_none());
        for (index, (_, device)) in self.routes.iter().enumerate() {
            let own = device.list()?.into_iter();
            entries.extend(own.filter(|entry| self.route(&entry.name) == Some(index)));
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut routes = self.routes.iter();
        routes.try_for_each(|(_, device)| device.sync_directory())?;
        self.main.sync_directory()
    }

    fn reader_table(&self, create: bool) -> io::Result<Option<Arc<dyn ReaderTable>>> {
        self.main.reader_table(create)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, SimDevice};

    fn route(name: &str) -> Option<usize> {
        name.strip_prefix("log-")?.get(..1)?.parse().ok()
    }

    fn names(device: &dyn Device) -> Vec<String> {
        let entries = device.list().unwrap().into_iter();
        entries.map(|entry| entry.name).collect()
    }

    #[test]
    fn each_file_is_on_the_device_of_its_route() {
        let [main, one, two]: [Arc<MemoryDevice>; 3] = Default::default();
        let routes: Vec<(usize, Arc<dyn Device>)> = vec![(1, one.clone()), (2, two.clone())];
        let all = RoutedDevice::new(main.clone(), routes, route);
        for name in ["log-0", "log-1", "log-2", "data"] {
            all.open(name, OpenMode::CreateNew).unwrap();
        }
        all.rename("log-1", "log-1b").unwrap();
        assert_eq!(names(&*main), ["data", "log-0"]);
        assert_eq!(names(&*one), ["log-1b"]);
        assert_eq!(names(&*two), ["log-2"]);
        assert_eq!(names(&all), ["data", "log-0", "log-1b", "log-2"]);
        let error = all.rename("log-1b", "log-2b").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
        // Files on another device than their route's are invisible.
        main.open("log-1", OpenMode::CreateNew).unwrap();
        one.open("data", OpenMode::CreateNew).unwrap();
        assert_eq!(names(&all), ["data", "log-0", "log-1b", "log-2"]);
        all.remove("log-2").unwrap();
        assert_eq!(names(&*two), [""; 0]);
    }

    #[test]
    fn names_on_all_devices_become_durable() {
        let (main, one) = (SimDevice::new(1), SimDevice::new(2));
        one.set_block_size(64);
        let routes: Vec<(usize, Arc<dyn Device>)> = vec![(1, Arc::new(one.clone()))];
        let all = RoutedDevice::new(Arc::new(main.clone()), routes, route);
        assert_eq!((all.block_size(), all.block_size_of("log-1")), (4096, 64));
        all.open("log-0", OpenMode::CreateNew).unwrap();
        all.open("log-1", OpenMode::CreateNew).unwrap();
        all.sync_directory().unwrap();
        for device in [main, one] {
            device.power_off();
            for _ in 0..8 {
                assert_eq!(device.after_crash().list().unwrap().len(), 1);
            }
        }
    }
}
