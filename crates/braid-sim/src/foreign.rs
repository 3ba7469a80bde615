//! Foreign files in the database's directory: no opening may change or remove them.

use braid::{Database, Error};
use braid_io::{AlignedBuf, Device, LOCK_FILE_NAME, OpenMode, SimDevice};
use fastrand::Rng;

use crate::check::Violation;

const DOCUMENT: &str = "letter.txt";
const MARKER: &str = "CREATING";

/// One in this many openings without other faults finds a foreign file.
const ONE_IN: u32 = 16;

/// Decides when a foreign file appears, independently of a seed's other decisions.
pub(crate) struct Foreign(Rng);

/// A foreign file, and the contents of all files when it was planted.
pub(crate) struct Planted {
    /// The event counted in the summary.
    pub(crate) what: &'static str,
    name: &'static str,
    /// Whether the directory is no longer recognizable as a database.
    is_marker: bool,
    before: Vec<(String, Vec<u8>)>,
}

impl Foreign {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed ^ 0x0f0_4e16))
    }

    /// Occasionally puts a file into the directory.
    pub(crate) fn plant(&mut self, device: &SimDevice) -> Option<Planted> {
        if self.0.u32(..ONE_IN) > 0 {
            return None;
        }
        let entries = device.list().ok()?;
        let is_alone = entries.iter().all(|entry| entry.name == LOCK_FILE_NAME);
        let has_marker = entries.iter().any(|entry| entry.name == MARKER);
        // A marker that proves nothing needs other files to be in doubt about.
        let is_marker = self.0.bool() && !is_alone && !has_marker;
        let bytes = match self.0.u32(..3) {
            0 if is_marker => Vec::new(),
            1 => vec![0; 4096],
            _ => vec![b'd'; 4096],
        };
        let name = if is_marker { MARKER } else { DOCUMENT };
        put(device, name, &bytes).ok()?;
        Some(Planted {
            what: if is_marker {
                "foreign marker in the directory"
            } else {
                "foreign document in the directory"
            },
            name,
            is_marker,
            before: contents(device).ok()?,
        })
    }
}

impl Planted {
    /// Checks the files after an opening, and removes the foreign file.
    pub(crate) fn check(
        &self,
        device: &SimDevice,
        opened: &braid::Result<Database>,
    ) -> Result<(), Violation> {
        let unreadable = |e| format!("files can't be read after an opening: {e}");
        let is_same = read(device, self.name).is_ok_and(|bytes| {
            let mut before = self.before.iter();
            before.any(|(name, before)| name == self.name && *before == bytes)
        });
        if !is_same {
            return Err(format!("opening changed the foreign file {}", self.name));
        }
        if self.is_marker && opened.is_ok() {
            return Err("a foreign marker was believed".into());
        }
        let is_refused = matches!(opened, Err(Error::NotADatabase { .. }));
        if is_refused && contents(device).map_err(unreadable)? != self.before {
            return Err("opening refused a directory and changed it".into());
        }
        let removed = device.remove(self.name);
        removed
            .and_then(|()| device.sync_directory())
            .map_err(|e| format!("a foreign file can't be removed: {e}"))
    }
}

fn put(device: &SimDevice, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let file = device.open(name, OpenMode::CreateNew)?;
    if !bytes.is_empty() {
        let mut aligned = AlignedBuf::new(bytes.len());
        aligned.copy_from_slice(bytes);
        file.write_at(&[&aligned], 0)?;
    }
    file.sync()?;
    device.sync_directory()
}

/// The contents of a file.
pub(crate) fn read(device: &SimDevice, name: &str) -> std::io::Result<Vec<u8>> {
    let file = device.open(name, OpenMode::Existing)?;
    let len = file.len()? as usize;
    let mut bytes = AlignedBuf::new(len.max(1));
    file.read_at(&mut bytes[..len], 0)?;
    Ok(bytes[..len].to_vec())
}

fn contents(device: &SimDevice) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let entries = device.list()?.into_iter();
    entries
        .map(|entry| Ok((entry.name.clone(), read(device, &entry.name)?)))
        .collect()
}
