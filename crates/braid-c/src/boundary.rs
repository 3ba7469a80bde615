//! The boundary to C: every function runs its body in [`call`], which catches all panics.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use braid::Error;

use crate::handle_error::HandleError;
use crate::status::{self, braid_status};

/// Why a call failed. It is boxed, so that the result of a body fits into registers.
#[derive(Debug)]
pub(crate) struct Failure(Box<Cause>);

#[derive(Debug)]
enum Cause {
    Engine(Error),
    Handle(HandleError),
    /// A required argument is NULL.
    Null(&'static str),
    /// An argument has an invalid value.
    Argument(String),
    /// A status of the interface itself.
    Status(braid_status, String),
}

// Cold functions keep the error paths out of successful calls.
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

    /// Returns the handle error, if the failure is one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn handle(&self) -> Option<HandleError> {
        match &*self.0 {
            Cause::Handle(error) => Some(*error),
            _ => None,
        }
    }

    /// Returns whether running the transaction again can succeed.
    #[cold]
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&*self.0, Cause::Engine(error) if error.is_retryable())
    }

    /// Returns the engine's error, if the failure is one.
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
    // Unwind safety: a body shares state with other calls only through handles, the engine's locks
    // and its atomics. After a panic, that state is trusted no more than after an error.
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
    // Dropping the payload could panic too; the second payload is leaked.
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
    // A thread that is about to exit has no thread-local message.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
}

/// Returns the message of this thread's last call that returned a negative status, in English; an
/// empty string if there was none. The string belongs to this thread and is valid until the
/// thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn braid_error_message() -> *const c_char {
    let message = LAST.try_with(|last| last.borrow().as_ptr());
    message.unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as `"0.1.0"`.
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
