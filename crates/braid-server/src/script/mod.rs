//! Runs scripts: an interpreter of Lua 5.1 for each thread.
//!
//! A script reaches data only through [`Host::call`]. It has a limit of time, checked every thousand
//! instructions, and of memory; it cannot load code or open files; and it cannot change what other
//! scripts see. When it has to stop, its own `pcall` does not catch that.

mod bits;
mod convert;
mod errors;
mod interpreter;
mod json;
mod message_pack;
mod packing;
mod registry;
mod shebang;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use mlua::Table;
use sha1::{Digest, Sha1};

use crate::failure::{Failure, Result};
use crate::resp::Reply;

use interpreter::Interpreter;
pub(crate) use registry::{Libraries, Running, Scripts};
pub(crate) use shebang::{NO_WRITES, library_name, says_no_writes};

/// What a script asks of the server.
pub(crate) trait Host {
    /// Runs a command. An error ends the script and its transaction.
    fn call(&mut self, args: Vec<Bytes>) -> Result<Reply>;

    /// Returns whether the user may run a command; `None` if there is no such command.
    fn may(&mut self, args: &[Bytes]) -> Option<bool>;
}

/// Bounds of one run of a script.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) time: Duration,
    /// Memory of the thread's interpreter in bytes.
    pub(crate) memory: usize,
    /// Set by SCRIPT KILL.
    pub(crate) killed: Arc<AtomicBool>,
}

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionInfo {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// In the order of all flags.
    pub(crate) flags: Vec<&'static str>,
}

/// A library that is loaded.
#[derive(Debug)]
pub(crate) struct Library {
    /// Number of the load, by which threads know whether they have compiled it.
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) code: Bytes,
    pub(crate) functions: Vec<FunctionInfo>,
}

thread_local! {
    static INTERPRETER: RefCell<Option<Interpreter>> = const { RefCell::new(None) };
}

/// Runs `use_it` with the thread's interpreter.
fn with_interpreter<R>(use_it: impl FnOnce(&mut Interpreter) -> Result<R>) -> Result<R> {
    INTERPRETER.with_borrow_mut(|interpreter| {
        let interpreter = match interpreter {
            Some(interpreter) => interpreter,
            None => {
                let new = Interpreter::new().map_err(|error| {
                    Failure::client(format!("ERR cannot start the interpreter: {error}"))
                })?;
                interpreter.insert(new)
            }
        };
        use_it(interpreter)
    })
}

/// Returns the SHA-1 digest of a script in hexadecimal digits.
pub(crate) fn digest(code: &[u8]) -> String {
    use std::fmt::Write;
    let digest = Sha1::digest(code);
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Checks that a script has a first line that is known, and compiles.
pub(crate) fn compile(code: &Bytes) -> Result<()> {
    says_no_writes(code)?;
    with_interpreter(|interpreter| {
        let sha = digest(code);
        interpreter.script(&sha, code).map(drop)
    })
}

/// Runs a script.
pub(crate) fn eval(
    sha: &str,
    code: &Bytes,
    keys: &[Bytes],
    args: &[Bytes],
    host: &mut dyn Host,
    limits: &Limits,
) -> Result<Reply> {
    with_interpreter(|interpreter| {
        let function = interpreter.script(sha, code)?;
        interpreter.run(sha, host, limits, |interpreter| {
            let (keys, args) = (interpreter.list(keys)?, interpreter.list(args)?);
            let env: Table = interpreter.new_environment.call((keys, args))?;
            function.set_environment(env)?;
            interpreter.protected_call.call(&function)
        })
    })
}

/// Calls a function of a library.
pub(crate) fn call(
    library: &Library,
    name: &str,
    keys: &[Bytes],
    args: &[Bytes],
    host: &mut dyn Host,
    limits: &Limits,
) -> Result<Reply> {
    with_interpreter(|interpreter| {
        let function = interpreter.function(library, name, limits)?;
        interpreter.run(name, host, limits, |interpreter| {
            let (keys, args) = (interpreter.list(keys)?, interpreter.list(args)?);
            interpreter.protected_call.call((&function, keys, args))
        })
    })
}

/// Runs the code of a library; returns the functions that it registers.
pub(crate) fn load(code: &Bytes, limits: &Limits) -> Result<Vec<FunctionInfo>> {
    with_interpreter(|interpreter| {
        let loaded = interpreter.load(code, limits)?;
        Ok(loaded.into_iter().map(|(info, _)| info).collect())
    })
}
