//! `braid_error()`, in SQL and in C: why the extension refused something.
//!
//! SQLite has codes alone for what a VFS refuses, and passes the reasons to its error log, which few
//! programs have.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::ptr::null;

use crate::abi::{Context, Value};
use crate::database::guarded;
use crate::library::functions;

thread_local! {
    /// The newest reason, which nobody has asked for, and the one that the thread got last.
    static NEWEST: RefCell<(Option<CString>, Option<CString>)> = const { RefCell::new((None, None)) };
}

/// Remembers a reason for the calling thread, which SQLite answers with a code next.
pub(crate) fn note(message: &str) {
    let text = message.strip_prefix("braid: ").unwrap_or(message);
    let text = CString::new(text.replace('\0', "")).ok();
    // A thread that ends asks for no reason.
    let _ = NEWEST.try_with(|newest| newest.borrow_mut().0 = text);
}

/// Returns the newest reason for which the extension refused a call of SQLite in this thread, and
/// forgets it. Null if there is none. The string lasts until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn braid_sqlite_error() -> *const c_char {
    let text = NEWEST.try_with(|newest| {
        let (newest, taken) = &mut *newest.borrow_mut();
        *taken = newest.take();
        taken.as_ref().map_or(null(), |text| text.as_ptr())
    });
    text.unwrap_or(null())
}

/// `braid_error()`: the reason, or null.
pub(crate) unsafe extern "C" fn error_in_sql(context: *mut Context, _: c_int, _: *mut *mut Value) {
    guarded(crate::abi::ERROR, || {
        let Some(functions) = functions() else {
            return crate::abi::ERROR;
        };
        let taken = NEWEST.try_with(|newest| newest.borrow_mut().0.take());
        if let Ok(Some(text)) = taken {
            let text = functions.string(&text.to_string_lossy());
            // SAFETY: the context is valid during the call, and SQLite frees the copy. Without memory
            // there is none, and the answer is null.
            unsafe { (functions.result_text)(context, text, -1, Some(functions.free)) };
        }
        crate::abi::OK
    });
}
