//! Where C calls in: every function's body runs in [`call`], out of which nothing unwinds.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use braid::Error;

use crate::handles::HandleError;
use crate::status::{self, braid_status};

/// Why a call failed. It is in a box, so that what a body returns fits into registers.
#[derive(Debug)]
pub(crate) struct Failure(Box<Cause>);

#[derive(Debug)]
enum Cause {
    Engine(Error),
    Handle(HandleError),
    /// An argument that must not be NULL is.
    Null(&'static str),
    /// An argument has a value that it can't have.
    Argument(String),
    /// A status of its own.
    Status(braid_status, String),
}

// Out of the way of the calls that succeed.
impl Failure {
    #[cold]
    pub(crate) fn null(argument: &'static str) -> Self {
        Self(Box::new(Cause::Null(argument)))
    }

    #[cold]
    pub(crate) fn argument(what: String) -> Self {
        Self(Box::new(Cause::Argument(what)))
    }

    #[cold]
    pub(crate) fn of(status: braid_status, what: String) -> Self {
        Self(Box::new(Cause::Status(status, what)))
    }

    /// What is wrong with a handle, if that is it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn handle(&self) -> Option<HandleError> {
        match &*self.0 {
            Cause::Handle(error) => Some(*error),
            _ => None,
        }
    }

    /// Whether another try may help.
    #[cold]
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&*self.0, Cause::Engine(error) if error.is_retryable())
    }

    /// The engine's error, if it is one.
    #[cold]
    pub(crate) fn into_error(self) -> Result<Error, Self> {
        match *self.0 {
            Cause::Engine(error) => Ok(error),
            _ => Err(self),
        }
    }
}

impl Failure {
    pub(crate) fn status(&self) -> braid_status {
        match &*self.0 {
            Cause::Engine(error) => status::of_error(error),
            Cause::Handle(error) => error.status(),
            Cause::Null(_) => braid_status::BRAID_NULL_ARGUMENT,
            Cause::Argument(_) => braid_status::BRAID_INVALID_ARGUMENT,
            Cause::Status(status, _) => *status,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::Engine(error) => error.fmt(f),
            Cause::Handle(error) => error.fmt(f),
            Cause::Null(argument) => write!(f, "invalid argument {argument}: must not be NULL"),
            Cause::Argument(what) | Cause::Status(_, what) => f.write_str(what),
        }
    }
}

impl From<Error> for Failure {
    #[cold]
    #[inline(never)]
    fn from(error: Error) -> Self {
        Self(Box::new(Cause::Engine(error)))
    }
}

impl From<HandleError> for Failure {
    #[cold]
    #[inline(never)]
    fn from(error: HandleError) -> Self {
        Self(Box::new(Cause::Handle(error)))
    }
}

pub(crate) type Outcome<T = braid_status> = Result<T, Failure>;

/// Runs the body of a function that C calls.
#[inline(always)]
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> braid_status {
    // Unwind safety: what the body works on is shared with other calls only through handles, the engine's
    // locks and its atomics. Nothing of it is trusted more after a panic than after an error.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failed(failure),
        Err(panic) => panicked(panic),
    }
}

#[cold]
fn failed(failure: Failure) -> braid_status {
    remember(failure.to_string());
    failure.status()
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>) -> braid_status {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    remember(format!(
        "the library panicked: {text}; close and reopen the database"
    ));
    // Dropping what was thrown could panic, too; what that throws is let be.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
    braid_status::BRAID_PANIC
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(message: String) {
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // A thread that is about to end has none.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
}

/// Returns the message of this thread's last call that returned a negative status, in English; empty
/// if there was none. Each thread has its own message, which is valid until its next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn braid_error_message() -> *const c_char {
    let message = LAST.try_with(|last| last.borrow().as_ptr());
    message.unwrap_or(c"".as_ptr())
}

/// The version of the library, as `"0.1.0"`. It lasts for ever.
#[unsafe(no_mangle)]
pub extern "C" fn braid_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn message() -> String {
        // SAFETY: the message ends with a NUL and lasts until the next failure.
        let message = unsafe { CStr::from_ptr(braid_error_message()) };
        message.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(call(|| panic!("of {}", 7)), braid_status::BRAID_PANIC);
        assert_eq!(
            message(),
            "the library panicked: of 7; close and reopen the database"
        );
        assert_eq!(call(|| std::panic::panic_any(7)), braid_status::BRAID_PANIC);
        assert_eq!(
            message(),
            "the library panicked: no message; close and reopen the database"
        );
    }

    #[test]
    fn a_message_is_its_threads_own_and_lasts_through_success() {
        let status = call(|| Err(Failure::argument("with a \0 in it".into())));
        assert_eq!(status, braid_status::BRAID_INVALID_ARGUMENT);
        std::thread::spawn(|| assert_eq!(message(), ""))
            .join()
            .unwrap();
        call(|| Ok(braid_status::BRAID_OK));
        assert_eq!(message(), "with a \\0 in it");
    }
}
