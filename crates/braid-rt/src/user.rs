//! Calls of user code on the engine's threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The payload of a panic that a test raises on purpose in user code. Any other panic under a
/// simulation is a finding, even if the engine catches it.
#[derive(Clone, Copy, Debug)]
pub struct Deliberate;

/// Panics on purpose, without running the panic hook.
pub fn panic_deliberately() -> ! {
    resume_unwind(Box::new(Deliberate))
}

/// Calls user code whose panic must not unwind the calling thread: a callback, a listener or an
/// external device. The process's panic hook reports the panic before this function returns.
///
/// # Errors
/// The panic's message.
pub fn call_user<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    if crate::mutant!("unwind_from_callbacks") {
        return Ok(code());
    }
    // Unwind safe: state shared with the engine is behind locks and atomics, and the engine holds
    // no lock during the call. State shared with the program is the program's responsibility, as
    // with a panicking thread.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        if crate::simulation::is_on() && !panic.is::<Deliberate>() {
            resume_unwind(panic);
        }
        let message = message(&*panic);
        // Dropping the payload runs user code again. If that panics too, the second payload is
        // leaked.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(second);
        }
        message
    })
}

/// Extracts the message from a panic's payload.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_call() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                resume_unwind(Box::new("the payload"));
            }
        }
        assert_eq!(call_user(|| 7), Ok(7));
        let outcome: Result<(), String> = call_user(|| resume_unwind(Box::new("of the user")));
        assert_eq!(outcome, Err("of the user".to_owned()));
        let outcome: Result<(), String> = call_user(|| resume_unwind(Box::new(Bomb)));
        assert!(outcome.is_err());
    }
}
