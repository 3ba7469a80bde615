//! Finds out what kind of memory a file's mapping is.

use std::fs::{self, File};

use crate::error::MapError;
use crate::mapped::MappedFile;

/// Maps a file with `MAP_SYNC` and verifies that page faults of the mapping are synchronous. An empty
/// file has no mapping yet; [`is_direct`] verifies it after it has grown.
pub(crate) fn map_synchronously(
    file: File,
    capacity: u64,
    is_read_only: bool,
) -> Result<MappedFile, MapError> {
    if !cfg!(target_os = "linux") {
        return Err(MapError::NotDax);
    }
    let mapped = MappedFile::new(file, capacity, is_read_only, true)?;
    is_direct(&mapped).map(|()| mapped)
}

/// Verifies that page faults of a mapping are synchronous.
pub(crate) fn is_direct(mapped: &MappedFile) -> Result<(), MapError> {
    if mapped.len() == 0 {
        // Nothing was mapped that could have been refused.
        return Ok(());
    }
    // Without /proc, the kernel's promise must do: a file system that does not know the flag
    // refuses it since `MAP_SHARED_VALIDATE` exists.
    let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else {
        return Ok(());
    };
    verify(&smaps, mapped.address())
}

/// Fails if the mapping at an address has no synchronous page faults (flag `sf`) in
/// `/proc/self/smaps`.
pub(crate) fn verify(smaps: &str, address: usize) -> Result<(), MapError> {
    let mut is_here = false;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if is_here && !flags.split_whitespace().any(|flag| flag == "sf") {
                return Err(MapError::FalseDax);
            }
        } else if let Some((start, end)) = addresses(line) {
            is_here = (start..end).contains(&address);
        }
    }
    Ok(())
}

/// The addresses at the beginning of a mapping's first line: `7f00-7fff rw-s …`.
fn addresses(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    Some((parse(start)?, parse(end)?))
}

/// Whether a file lies in a file system whose contents end with the machine's power.
pub(crate) fn is_volatile(file: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        #[allow(
            clippy::cast_sign_loss,
            clippy::unnecessary_cast,
            reason = "the type differs between platforms, the bits do not"
        )]
        rustix::fs::fstatfs(file)
            .is_ok_and(|system| [TMPFS, RAMFS].contains(&(system.f_type as u64 & 0xffff_ffff)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5580a000-5580b000 r--p 00000000 fe:00 1 /bin/a
Size:                  4 kB
VmFlags: rd mr mw me
7f0000000000-7f0000200000 rw-s 00000000 103:01 12 /mnt/pmem/region
Size:               2048 kB
VmFlags: rd wr sh mr mw me ms sf mm
7f0000200000-7f0000400000 rw-s 00000000 fe:00 13 /home/b-c d
VmFlags: rd wr sh mr mw me ms
";

    #[test]
    fn synchronous_faults_are_verified() {
        verify(SMAPS, 0x7f00_0000_0000).unwrap();
        verify(SMAPS, 0x7f00_001f_ffff).unwrap();
        let error = verify(SMAPS, 0x7f00_0020_0000).unwrap_err();
        assert!(matches!(error, MapError::FalseDax), "{error}");
        let error = verify(SMAPS, 0x5580_a000).unwrap_err();
        assert!(matches!(error, MapError::FalseDax), "{error}");
    }

    #[test]
    fn a_system_that_does_not_list_the_mapping_is_believed() {
        verify(SMAPS, 0x1000).unwrap();
        verify("", 0x1000).unwrap();
    }
}
