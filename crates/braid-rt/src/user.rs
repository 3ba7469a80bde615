//! Code of the user on threads of the engine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The payload of a panic that a test makes on purpose, in place of code of the user. Any other panic under a simulation is a
/// finding, wherever it ends otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Deliberate;

/// Panics on purpose, without a word from the panic hook.
pub fn panic_deliberately() -> ! {
    resume_unwind(Box::new(Deliberate))
}

/// Calls code of the user whose panic must not unwind the calling thread: a callback, a listener, a device from
/// outside. The process's panic hook has reported the panic when this returns.
///
/// # Errors
/// The panic's message.
pub fn call_user<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    if crate::mutant!("unwind_from_callbacks") {
        return Ok(code());
    }
    // Unwind safe: what the code shares with the engine is behind locks and atomics, and the engine holds no lock while
    // it calls. What the code shares with its own program is its program's business, as with a thread that panics.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        if crate::simulation::is_on() && !panic.is::<Deliberate>() {
            resume_unwind(panic);
        }
        let message = message(&*panic);
        // Dropping the payload runs code of the user again. A second payload is leaked.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(second);
        }
        message
    })
}

/// The text of a panic's payload.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".to_owned())
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
