//! Guard A: the versions in the database's header.
//!
//! Bytes 18 and 19 of a database say which format writers and readers must know: 2 with a write-ahead
//! log. While the log may have frames they are 3 in the file, so that SQLite without the extension
//! reports that the file is no database; SQLite with the extension is shown 2.

use std::ffi::c_int;

use braid_rt::mutant;

use crate::abi::{BUSY, LOCK_EXCLUSIVE, LOCK_RESERVED, OK};
use crate::inner::Inner;

/// Offset of the two bytes.
const AT: i64 = 18;
const PLAIN: [u8; 2] = [2, 2];
const GUARDED: [u8; 2] = [3, 3];

/// The versions in a database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    /// 3 and 3.
    Guarded,
    /// 2 and 2.
    Plain,
    /// An empty file, or one with a rollback journal.
    Other,
}

/// Reads the versions and the page size.
pub(crate) fn read(inner: Inner) -> (Versions, Option<usize>) {
    let mut header = [0; 20];
    if inner.read(0, &mut header) != OK {
        return (Versions::Other, None);
    }
    let page_size = match usize::from(header[16]) << 8 | usize::from(header[17]) {
        1 => 65536,
        size => size,
    };
    let is_valid = page_size.is_power_of_two() && page_size >= 512;
    let versions = match [header[18], header[19]] {
        GUARDED => Versions::Guarded,
        PLAIN => Versions::Plain,
        _ => Versions::Other,
    };
    (versions, is_valid.then_some(page_size))
}

/// Changes the versions, durably, if they are the others. The caller has an exclusive lock.
pub(crate) fn set(inner: Inner, is_guarded: bool) -> c_int {
    let (from, to) = if is_guarded {
        (Versions::Plain, GUARDED)
    } else {
        (Versions::Guarded, PLAIN)
    };
    if mutant!("sqlite_leave_the_versions") {
        return OK;
    }
    if read(inner).0 == from {
        return inner.write_durably(AT, &to);
    }
    OK
}

/// Calls a function with an exclusive lock of the database, from the lock that the connection has.
/// [`BUSY`] if another connection has the database open.
pub(crate) fn exclusively(inner: Inner, level: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if level >= LOCK_EXCLUSIVE || mutant!("sqlite_guard_without_the_lock") {
        return call();
    }
    let mut code = OK;
    if level < LOCK_RESERVED {
        code = inner.lock(LOCK_RESERVED);
    }
    if code == OK {
        code = inner.lock(LOCK_EXCLUSIVE);
    }
    if code == OK {
        code = call();
    }
    let unlocked = inner.unlock(level);
    if code == OK { unlocked } else { code }
}

/// Whether a code says that another connection has a lock.
pub(crate) fn is_busy(code: c_int) -> bool {
    code & 0xff == BUSY
}

/// Shows SQLite the versions that it knows in bytes that were read from an offset of the database.
pub(crate) fn show(offset: i64, bytes: &mut [u8]) {
    translate(offset, bytes, GUARDED[0], PLAIN[0]);
}

/// Guards the versions in bytes that will be written. Returns whether there are any.
pub(crate) fn has_versions(offset: i64, len: usize) -> bool {
    offset <= AT && offset.saturating_add(i64::try_from(len).unwrap_or(i64::MAX)) > AT
}

pub(crate) fn hide(offset: i64, bytes: &mut [u8]) {
    translate(offset, bytes, PLAIN[0], GUARDED[0]);
}

fn translate(offset: i64, bytes: &mut [u8], from: u8, to: u8) {
    for at in AT..AT + 2 {
        let Ok(index) = usize::try_from(at - offset) else {
            continue;
        };
        if let Some(byte) = bytes.get_mut(index)
            && *byte == from
        {
            *byte = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_sees_the_versions_that_it_knows() {
        let mut page: Vec<u8> = vec![3; 100];
        show(0, &mut page);
        assert_eq!((page[17], page[18], page[19], page[20]), (3, 2, 2, 3));
        hide(0, &mut page);
        assert_eq!(page, vec![3; 100]);
        let mut part = [3; 4];
        show(19, &mut part);
        assert_eq!(part, [2, 3, 3, 3]);
        show(24, &mut part);
        assert_eq!(part, [2, 3, 3, 3]);
        assert!(has_versions(0, 19) && !has_versions(0, 18) && has_versions(18, 1));
        assert!(!has_versions(24, 16));
        // A rollback journal's versions stay.
        let mut page = [1; 20];
        hide(0, &mut page);
        assert_eq!(page, [1; 20]);
    }
}
