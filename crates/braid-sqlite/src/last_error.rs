//! Why the extension refused something, for `braid_error()`.
//!
//! SQLite has codes alone for what a VFS refuses, and passes the reasons to its error log, which few
//! programs have.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr::null;

thread_local! {
    /// The newest reason, which nobody has asked for, and the one that C got last.
    static NEWEST: RefCell<(Option<CString>, Option<CString>)> = const { RefCell::new((None, None)) };
}

/// Remembers a reason for the calling thread, which SQLite answers with a code next.
pub(crate) fn note(message: &str) {
    let text = message.strip_prefix("braid: ").unwrap_or(message);
    let text = CString::new(text.replace('\0', "")).ok();
    // A thread that ends asks for no reason.
    let _ = NEWEST.try_with(|newest| newest.borrow_mut().0 = text);
}

/// Returns the newest reason of the calling thread, and forgets it.
pub(crate) fn take() -> Option<CString> {
    let taken = NEWEST.try_with(|newest| newest.borrow_mut().0.take());
    taken.ok().flatten()
}

/// Returns the newest reason for which the extension refused a call of SQLite in this thread, and
/// forgets it. Null if there is none. The string lasts until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn braid_sqlite_error() -> *const c_char {
    let text = NEWEST.try_with(|newest| {
        let (newest, given) = &mut *newest.borrow_mut();
        *given = newest.take();
        given.as_ref().map_or(null(), |text| text.as_ptr())
    });
    text.unwrap_or(null())
}
