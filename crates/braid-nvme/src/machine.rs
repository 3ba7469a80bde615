//! The NVMe controllers of this machine, and which driver has them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{DriveError, DriveName};

/// Class of NVMe controllers: mass storage, non-volatile memory, NVMe.
const CLASS: &str = "0x010802";

/// A controller, as the system lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundController {
    /// PCI address, such as `0000:00:04.0`.
    pub address: String,
    /// The driver that has it, such as `nvme` or `vfio-pci`.
    pub driver: Option<String>,
    /// Number of its IOMMU group.
    pub iommu_group: Option<String>,
    /// Model name, if the kernel's driver has the controller.
    pub model: String,
    /// Serial number, likewise.
    pub serial: String,
    /// Namespaces that the kernel's driver offers.
    pub namespaces: Vec<FoundNamespace>,
}

/// A namespace that the kernel's driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundNamespace {
    /// Its block device, such as `/dev/nvme0n1`.
    pub block: PathBuf,
    /// Its device for passthrough, such as `/dev/ng0n1`.
    pub passthrough: Option<PathBuf>,
    /// Its bytes.
    pub bytes: u64,
}

/// The files in which the system describes its devices.
#[derive(Clone, Debug)]
pub struct Machine {
    pci: PathBuf,
    dev: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            pci: "/sys/bus/pci".into(),
            dev: "/dev".into(),
        }
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the last part of the target of a link.
fn link(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Returns the names in a directory, sorted; none if it is missing.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Whether a name is that of a namespace: a prefix, a number, `n`, a number.
fn is_namespace(name: &str, prefix: &str) -> bool {
    let numbers = name
        .strip_prefix(prefix)
        .and_then(|rest| rest.split_once('n'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(of, id)| is_number(of) && is_number(id))
}

impl Machine {
    /// Lists all NVMe controllers, sorted by address. Empty on a system that does not list them.
    pub fn controllers(&self) -> Vec<FoundController> {
        let devices = self.pci.join("devices");
        let all = names(&devices).into_iter();
        all.filter(|address| {
            text(&devices.join(address).join("class")).is_some_and(|class| class == CLASS)
        })
        .map(|address| self.controller(address))
        .collect()
    }

    fn controller(&self, address: String) -> FoundController {
        let at = self.device(&address);
        let own = names(&at.join("nvme")).into_iter().next();
        let own = own.map(|name| at.join("nvme").join(name));
        let attribute = |name: &str| {
            let value = own.as_ref().and_then(|own| text(&own.join(name)));
            value.unwrap_or_default()
        };
        let namespaces = own.as_ref().map(|own| self.namespaces(own));
        FoundController {
            driver: link(&at.join("driver")),
            iommu_group: link(&at.join("iommu_group")),
            model: attribute("model"),
            serial: attribute("serial"),
            namespaces: namespaces.unwrap_or_default(),
            address,
        }
    }

    fn namespaces(&self, controller: &Path) -> Vec<FoundNamespace> {
        let found = names(controller).into_iter();
        found
            .filter(|name| is_namespace(name, "nvme"))
            .map(|name| {
                let passthrough = self.dev.join(name.replacen("nvme", "ng", 1));
                let sectors = text(&controller.join(&name).join("size"));
                let sectors: u64 = sectors.and_then(|text| text.parse().ok()).unwrap_or(0);
                FoundNamespace {
                    block: self.dev.join(&name),
                    passthrough: passthrough.exists().then_some(passthrough),
                    // The kernel counts in units of 512 bytes, whatever the block size is.
                    bytes: sectors.saturating_mul(512),
                }
            })
            .collect()
    }

    fn device(&self, address: &str) -> PathBuf {
        self.pci.join("devices").join(address)
    }

    fn found(&self, address: &str, what: &str) -> Result<FoundController, DriveError> {
        let controllers = self.controllers();
        let found = controllers
            .into_iter()
            .find(|controller| controller.address == address);
        found.ok_or_else(|| DriveError::Unsupported {
            what: what.to_owned(),
            reason: "this machine has no NVMe controller at this PCI address; list them (braid \
                     nvme list)"
                .into(),
        })
    }

    /// Binds a controller to `vfio-pci`, so that a program can drive it itself. Its devices
    /// (`/dev/nvme0n1`) disappear.
    ///
    /// # Errors
    ///
    /// [`DriveError::InUse`] if the system uses one of its namespaces, [`DriveError::Unsupported`]
    /// if there is no such controller, no IOMMU, or no driver `vfio-pci`; the system's error.
    pub fn bind(&self, address: &str) -> Result<(), DriveError> {
        let what = format!("bind controller {address} to vfio-pci");
        let controller = self.found(address, &what)?;
        if controller.driver.as_deref() == Some("vfio-pci") {
            return Ok(());
        }
        for namespace in &controller.namespaces {
            let name = DriveName::Path(namespace.block.clone());
            if name.has_root() {
                let by = "it has the root file system".into();
                return Err(DriveError::InUse { what, by });
            }
            if let Some(by) = name.uses().into_iter().next() {
                return Err(DriveError::InUse { what, by });
            }
        }
        let missing = if controller.iommu_group.is_none() {
            Some("it has no IOMMU group; enable the IOMMU of the machine (intel_iommu=on)")
        } else if !self.pci.join("drivers/vfio-pci").exists() {
            Some("the driver is not loaded; load it (modprobe vfio-pci)")
        } else {
            None
        };
        if let Some(reason) = missing {
            let reason = reason.into();
            return Err(DriveError::Unsupported { what, reason });
        }
        self.move_to(&controller, "vfio-pci", &what)
    }

    /// Returns a controller from `vfio-pci` to the kernel's driver.
    ///
    /// # Errors
    ///
    /// [`DriveError::Unsupported`] if there is no such controller; the system's error.
    pub fn unbind(&self, address: &str) -> Result<(), DriveError> {
        let what = format!("return controller {address} to the kernel's driver");
        let controller = self.found(address, &what)?;
        if controller.driver.as_deref() == Some("nvme") {
            return Ok(());
        }
        // An empty line: the driver that claims the class.
        self.move_to(&controller, "\n", &what)
    }

    /// Takes a controller from its driver, and offers it to another one.
    fn move_to(
        &self,
        controller: &FoundController,
        driver: &str,
        what: &str,
    ) -> Result<(), DriveError> {
        let address = &controller.address;
        let at = self.device(address);
        let moved = || -> io::Result<()> {
            fs::write(at.join("driver_override"), driver)?;
            if controller.driver.is_some() {
                fs::write(at.join("driver/unbind"), address)?;
            }
            fs::write(self.pci.join("drivers_probe"), address)
        };
        moved().map_err(DriveError::system(what))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ADDRESS: &str = "0000:00:04.0";

    /// The description of a machine with one controller that has one namespace.
    fn machine(at: &Path) -> Machine {
        let device = at.join("pci/devices").join(ADDRESS);
        let namespace = device.join("nvme/nvme0/nvme0n1");
        fs::create_dir_all(&namespace).unwrap();
        fs::create_dir_all(device.join("nvme/nvme0/hwmon0")).unwrap();
        fs::create_dir_all(at.join("pci/devices/0000:00:05.0")).unwrap();
        fs::create_dir_all(at.join("pci/drivers/nvme")).unwrap();
        fs::create_dir_all(at.join("dev")).unwrap();
        fs::create_dir_all(at.join("groups/5")).unwrap();
        fs::write(at.join("pci/devices/0000:00:05.0/class"), "0x020000\n").unwrap();
        fs::write(device.join("class"), "0x010802\n").unwrap();
        fs::write(device.join("nvme/nvme0/model"), "QEMU NVMe Ctrl   \n").unwrap();
        fs::write(namespace.join("size"), "131072\n").unwrap();
        fs::write(at.join("dev/ng0n1"), "").unwrap();
        symlink(at.join("pci/drivers/nvme"), device.join("driver")).unwrap();
        Machine {
            pci: at.join("pci"),
            dev: at.join("dev"),
        }
    }

    #[test]
    fn controllers_and_namespaces_are_listed() {
        let at = tempfile::tempdir().unwrap();
        let found = machine(at.path()).controllers();
        let [controller] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(controller.address, ADDRESS);
        assert_eq!(controller.driver.as_deref(), Some("nvme"));
        assert_eq!(
            (&*controller.model, &*controller.serial),
            ("QEMU NVMe Ctrl", "")
        );
        let [namespace] = &controller.namespaces[..] else {
            panic!("{controller:?}")
        };
        assert_eq!(namespace.block, at.path().join("dev/nvme0n1"));
        assert_eq!(namespace.passthrough, Some(at.path().join("dev/ng0n1")));
        assert_eq!(namespace.bytes, 64 << 20);
        let missing = Machine {
            pci: at.path().join("none"),
            dev: at.path().into(),
        };
        assert!(missing.controllers().is_empty());
    }

    #[test]
    fn a_controller_is_moved_only_if_the_other_driver_can_take_it() {
        let at = tempfile::tempdir().unwrap();
        let machine = machine(at.path());
        let device = machine.device(ADDRESS);
        let refused = |reason: &str| {
            let error = machine.bind(ADDRESS).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            assert!(!device.join("driver_override").exists());
        };
        refused("no IOMMU group");
        symlink(at.path().join("groups/5"), device.join("iommu_group")).unwrap();
        refused("modprobe vfio-pci");
        fs::create_dir_all(at.path().join("pci/drivers/vfio-pci")).unwrap();
        let other = machine.bind("0000:00:05.0").unwrap_err();
        assert!(matches!(other, DriveError::Unsupported { .. }), "{other}");
        machine.bind(ADDRESS).unwrap();
        let read = |file: PathBuf| fs::read_to_string(file).unwrap();
        assert_eq!(read(device.join("driver_override")), "vfio-pci");
        assert_eq!(read(at.path().join("pci/drivers/nvme/unbind")), ADDRESS);
        assert_eq!(read(at.path().join("pci/drivers_probe")), ADDRESS);
        // As the kernel does then.
        fs::remove_file(device.join("driver")).unwrap();
        symlink(
            at.path().join("pci/drivers/vfio-pci"),
            device.join("driver"),
        )
        .unwrap();
        machine.bind(ADDRESS).unwrap();
        machine.unbind(ADDRESS).unwrap();
        assert_eq!(read(device.join("driver_override")), "\n");
        assert_eq!(read(at.path().join("pci/drivers/vfio-pci/unbind")), ADDRESS);
    }
}
