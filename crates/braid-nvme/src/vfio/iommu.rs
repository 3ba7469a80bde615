//! The system calls of VFIO that connect a controller with memory.
//!
//! x86 and Arm (IOMMU type 1) map any memory at any address. POWER (sPAPR) first wants the memory to
//! be registered and a window of addresses to be created, which begins at zero if the default
//! window is removed before.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Number of the region that is the configuration space.
pub(super) const CONFIGURATION: u32 = 7;

/// `_IO(';', 100 + n)`, whose direction has a bit on some processors.
const fn request(n: u32) -> u32 {
    let none = if cfg!(any(target_arch = "powerpc64", target_arch = "powerpc")) {
        1 << 29
    } else {
        0
    };
    none | (b';' as u32) << 8 | (100 + n)
}

const API_VERSION: u32 = request(0);
const CHECK_EXTENSION: u32 = request(1);
const SET_IOMMU: u32 = request(2);
const GROUP_STATUS: u32 = request(3);
const SET_CONTAINER: u32 = request(4);
const DEVICE_FD: u32 = request(6);
const REGION_INFO: u32 = request(8);
const MAP_DMA: u32 = request(13);
const SPAPR_INFO: u32 = request(12);
const SPAPR_REGISTER: u32 = request(17);
const SPAPR_CREATE: u32 = request(19);
const SPAPR_REMOVE: u32 = request(20);

const TYPE1_V2: usize = 3;
const SPAPR_V2: usize = 7;

/// The calls, which tests record.
pub(super) trait Calls {
    fn number(&self, fd: RawFd, request: u32, argument: usize) -> io::Result<i32>;

    /// With a structure, which the kernel may change.
    fn bytes(&self, fd: RawFd, request: u32, argument: &mut [u8]) -> io::Result<i32>;
}

pub(super) struct SystemCalls;

impl Calls for SystemCalls {
    fn number(&self, fd: RawFd, request: u32, argument: usize) -> io::Result<i32> {
        // SAFETY: the requests of this module that take a number access no memory.
        let result = unsafe { libc::ioctl(fd, request as _, argument) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(result)
        }
    }

    fn bytes(&self, fd: RawFd, request: u32, argument: &mut [u8]) -> io::Result<i32> {
        // SAFETY: the requests of this module that take a structure access as many bytes as its
        // first word says, which is the length of the slice, or a text that ends with zero.
        let result = unsafe { libc::ioctl(fd, request as _, argument.as_mut_ptr()) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(result)
        }
    }
}

/// Builds a structure: its length, then the words.
fn structure(words: &[(u64, usize)]) -> Vec<u8> {
    let len = 4 + words.iter().map(|(_, len)| len).sum::<usize>();
    let mut bytes = u32::try_from(len).unwrap_or(0).to_ne_bytes().to_vec();
    for (word, len) in words {
        match len {
            4 => bytes.extend(u32::try_from(*word).unwrap_or(u32::MAX).to_ne_bytes()),
            _ => bytes.extend(word.to_ne_bytes()),
        }
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) struct Iommu {
    group: File,
    _container: File,
}

type Failed = (&'static str, io::Error);

impl Iommu {
    /// Lets all controllers of the group access the memory, at the same addresses.
    pub(super) fn attach(
        calls: &dyn Calls,
        container: File,
        group: File,
        address: usize,
        len: usize,
    ) -> Result<Self, Failed> {
        let (container_fd, group_fd) = (container.as_raw_fd(), group.as_raw_fd());
        let failed = |step| move |error| (step, error);
        let unsupported = |step| (step, io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        let version = calls.number(container_fd, API_VERSION, 0);
        if version.map_err(failed("ask for VFIO's version"))? != 0 {
            return Err(unsupported("use this version of VFIO"));
        }
        let mut status = structure(&[(0, 4)]);
        calls
            .bytes(group_fd, GROUP_STATUS, &mut status)
            .map_err(failed("ask for the state of the group"))?;
        if status[4] & 1 == 0 {
            let step = "use the group, of which all devices must be bound to vfio-pci";
            return Err((step, io::Error::from_raw_os_error(libc::EBUSY)));
        }
        // The request takes the address of a descriptor.
        calls
            .bytes(group_fd, SET_CONTAINER, &mut container_fd.to_ne_bytes())
            .map_err(failed("put the group into a container"))?;
        let has = |kind| calls.number(container_fd, CHECK_EXTENSION, kind);
        if has(TYPE1_V2).is_ok_and(|has| has > 0) {
            let set = calls.number(container_fd, SET_IOMMU, TYPE1_V2);
            set.map_err(failed("use the IOMMU (type 1)"))?;
        } else if has(SPAPR_V2).is_ok_and(|has| has > 0) {
            let set = calls.number(container_fd, SET_IOMMU, SPAPR_V2);
            set.map_err(failed("use the IOMMU (sPAPR)"))?;
            window(calls, container_fd, address, len)?;
        } else {
            return Err(unsupported("find an IOMMU that Braid knows"));
        }
        let (address, len) = (address as u64, len as u64);
        // Readable and writable.
        let mut map = structure(&[(3, 4), (address, 8), (address, 8), (len, 8)]);
        calls
            .bytes(container_fd, MAP_DMA, &mut map)
            .map_err(failed("map memory for the device (raise ulimit -l)"))?;
        Ok(Self {
            group,
            _container: container,
        })
    }

    /// Returns the descriptor of a device of the group.
    pub(super) fn device(&self, calls: &dyn Calls, address: &str) -> io::Result<RawFd> {
        let mut text = address.as_bytes().to_vec();
        text.push(0);
        calls.bytes(self.group.as_raw_fd(), DEVICE_FD, &mut text)
    }
}

/// Creates a window on POWER that contains the memory.
fn window(calls: &dyn Calls, fd: RawFd, address: usize, len: usize) -> Result<(), Failed> {
    let failed = |step| move |error| (step, error);
    // Flags; default window: start, length; page sizes, windows, levels.
    let mut info = structure(&[(0, 4), (0, 4), (0, 4), (0, 8), (0, 4), (0, 4)]);
    calls
        .bytes(fd, SPAPR_INFO, &mut info)
        .map_err(failed("ask for the window of addresses"))?;
    let start = u32::from_ne_bytes(info[8..12].try_into().expect("four bytes"));
    let (address, len) = (address as u64, len as u64);
    let mut register = structure(&[(0, 4), (address, 8), (len, 8)]);
    calls
        .bytes(fd, SPAPR_REGISTER, &mut register)
        .map_err(failed("register memory (raise ulimit -l)"))?;
    let mut remove = structure(&[(0, 4), (start.into(), 8)]);
    calls
        .bytes(fd, SPAPR_REMOVE, &mut remove)
        .map_err(failed("remove the default window of addresses"))?;
    // The largest page size up to 64 KiB that the IOMMU has.
    let page_shift = if word(&info, 16) & 1 << 16 != 0 {
        16
    } else {
        12
    };
    let size = (address + len).next_power_of_two();
    let mut create = structure(&[
        (0, 4),
        (page_shift, 4),
        (0, 4),
        (size, 8),
        (1, 4),
        (0, 4),
        (0, 8),
    ]);
    calls
        .bytes(fd, SPAPR_CREATE, &mut create)
        .map_err(failed("create a window of addresses"))?;
    let created = word(&create, 32);
    if created > address || created + size < address + len {
        let error = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        return Err(("create a window that contains the memory", error));
    }
    Ok(())
}

/// A region of a device.
pub(super) struct Region {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) is_mappable: bool,
}

pub(super) fn region(calls: &dyn Calls, device: RawFd, index: u32) -> io::Result<Region> {
    let mut info = structure(&[(0, 4), (index.into(), 4), (0, 4), (0, 8), (0, 8)]);
    calls.bytes(device, REGION_INFO, &mut info)?;
    Ok(Region {
        len: word(&info, 16),
        offset: word(&info, 24),
        is_mappable: info[4] & 4 != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Answers as a kernel, and records the requests.
    struct Recorded {
        kind: usize,
        window: u64,
        requests: RefCell<Requests>,
    }

    impl Calls for Recorded {
        fn number(&self, _fd: RawFd, request: u32, argument: usize) -> io::Result<i32> {
            let bytes = argument.to_ne_bytes().to_vec();
            self.requests.borrow_mut().push((request, bytes));
            Ok(i32::from(
                request == CHECK_EXTENSION && argument == self.kind,
            ))
        }

        fn bytes(&self, _fd: RawFd, request: u32, argument: &mut [u8]) -> io::Result<i32> {
            self.requests
                .borrow_mut()
                .push((request, argument.to_vec()));
            match request {
                GROUP_STATUS => argument[4] = 1,
                // Default window at 1 GiB; pages of 4 and 64 KiB.
                SPAPR_INFO => {
                    argument[8..12].copy_from_slice(&(1u32 << 30).to_ne_bytes());
                    argument[16..24].copy_from_slice(&(1u64 << 12 | 1 << 16).to_ne_bytes());
                }
                SPAPR_CREATE => argument[32..40].copy_from_slice(&self.window.to_ne_bytes()),
                _ => {}
            }
            Ok(0)
        }
    }

    type Requests = Vec<(u32, Vec<u8>)>;

    fn attach(kind: usize, window: u64) -> (Result<Iommu, Failed>, Requests) {
        let calls = Recorded {
            kind,
            window,
            requests: RefCell::new(Vec::new()),
        };
        let file = || File::open("/dev/null").unwrap();
        let result = Iommu::attach(&calls, file(), file(), 1 << 32, 1 << 20);
        (result, calls.requests.into_inner())
    }

    fn names(requests: &[(u32, Vec<u8>)]) -> Vec<u32> {
        requests
            .iter()
            .map(|(request, _)| request & 0xff)
            .map(|n| n - 100)
            .collect()
    }

    #[test]
    fn type_1_maps_the_memory_at_its_own_address() {
        let (result, requests) = attach(TYPE1_V2, 0);
        assert!(result.is_ok());
        assert_eq!(names(&requests), [0, 3, 4, 1, 2, 13]);
        let map = &requests[5].1;
        assert_eq!(map.len(), 32);
        assert_eq!((map[0], map[4]), (32, 3));
        assert_eq!(
            [word(map, 8), word(map, 16), word(map, 24)],
            [1 << 32, 1 << 32, 1 << 20]
        );
    }

    #[test]
    fn spapr_replaces_the_window_by_one_that_contains_the_memory() {
        let (result, requests) = attach(SPAPR_V2, 0);
        assert!(result.is_ok());
        assert_eq!(names(&requests), [0, 3, 4, 1, 1, 2, 12, 17, 20, 19, 13]);
        let [register, remove, create] = [7, 8, 9].map(|i| &requests[i].1);
        assert_eq!([word(register, 8), word(register, 16)], [1 << 32, 1 << 20]);
        assert_eq!(word(remove, 8), 1 << 30);
        assert_eq!((create.len(), create[8]), (40, 16));
        assert_eq!(word(create, 16), 1 << 33);
    }

    #[test]
    fn a_window_elsewhere_is_refused() {
        let (result, requests) = attach(SPAPR_V2, 1 << 59);
        assert!(result.is_err());
        assert!(!names(&requests).contains(&13), "nothing is mapped");
    }

    #[test]
    fn an_unknown_iommu_is_refused() {
        assert!(attach(99, 0).0.is_err());
    }
}
