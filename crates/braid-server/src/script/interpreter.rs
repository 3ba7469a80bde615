//! The interpreter of a thread, and the hook that stops its scripts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use mlua::{
    Error, Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, Variadic, VmState,
};

use super::errors::{describe, first_line, is_out_of_memory, raised};
use super::{
    FunctionInfo, Host, Library, Limits, bits, convert, digest, json, message_pack, packing,
};
use crate::failure::{Failure, Result};
use crate::resp::Reply;

const PRELUDE: &str = include_str!("prelude.lua");

/// Instructions between two looks at the time.
const INSTRUCTIONS: u32 = 1_000;

/// Scripts and libraries that a thread keeps compiled.
const COMPILED_MAX: usize = 500;

/// Version of Redis that scripts see.
const VERSION: &str = "7.2.0";
const VERSION_NUMBER: u32 = 0x0007_0200;

/// Why a script has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Time,
    Killed,
    /// The transaction cannot continue.
    Transaction,
}

/// What the hook looks at.
#[derive(Debug)]
struct Watch {
    deadline: Cell<Option<Instant>>,
    killed: RefCell<Arc<AtomicBool>>,
    stop: Cell<Option<Stop>>,
}

impl Watch {
    fn check(&self) -> mlua::Result<VmState> {
        if self.stop.get().is_none() {
            // Relaxed: the flag carries nothing but itself.
            if self.killed.borrow().load(Ordering::Relaxed) {
                self.stop.set(Some(Stop::Killed));
            } else if self
                .deadline
                .get()
                .is_some_and(|deadline| Instant::now() > deadline)
            {
                self.stop.set(Some(Stop::Time));
            }
        }
        match self.stop.get() {
            None => Ok(VmState::Continue),
            Some(_) => Err(Error::runtime("the script is stopped")),
        }
    }
}

/// An interpreter, with what it has compiled.
pub(super) struct Interpreter {
    lua: Lua,
    /// Where the functions of the running script's host are.
    slot: Table,
    pub(super) new_environment: Function,
    /// Calls a function, and returns whether it raised no error, and its result or the error.
    pub(super) protected_call: Function,
    watch: Rc<Watch>,
    scripts: HashMap<String, Function>,
    /// Functions of libraries by the number of the load.
    libraries: HashMap<u64, HashMap<String, Function>>,
}

impl Interpreter {
    pub(super) fn new() -> mlua::Result<Interpreter> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let watch = Rc::new(Watch {
            deadline: Cell::new(None),
            killed: RefCell::default(),
            stop: Cell::new(None),
        });
        let slot = lua.create_table()?;
        let host = lua.create_table()?;
        host.raw_set("slot", &slot)?;
        host.raw_set("version", VERSION)?;
        host.raw_set("version_number", VERSION_NUMBER)?;
        let watched = Rc::clone(&watch);
        let is_stopping = lua.create_function(move |_, ()| Ok(watched.stop.get().is_some()))?;
        host.raw_set("is_stopping", is_stopping)?;
        let sha1hex = |_: &Lua, text: mlua::LuaString| Ok(digest(&text.as_bytes()));
        host.raw_set("sha1hex", lua.create_function(sha1hex)?)?;
        host.raw_set("log", lua.create_function(log)?)?;
        host.raw_set("bit", bits::library(&lua)?)?;
        host.raw_set("cjson", json::library(&lua)?)?;
        host.raw_set("cmsgpack", message_pack::library(&lua)?)?;
        host.raw_set("struct", packing::library(&lua)?)?;
        let prelude = lua.load(PRELUDE).set_name("@prelude");
        let (new_environment, protected_call) = prelude.call(host)?;
        let watched = Rc::clone(&watch);
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        lua.set_global_hook(triggers, move |_, _| watched.check())?;
        Ok(Interpreter {
            lua,
            slot,
            new_environment,
            protected_call,
            watch,
            scripts: HashMap::new(),
            libraries: HashMap::new(),
        })
    }

    /// Returns a compiled script.
    pub(super) fn script(&mut self, sha: &str, code: &Bytes) -> Result<Function> {
        if let Some(function) = self.scripts.get(sha) {
            return Ok(function.clone());
        }
        let function = self.compile(code, "@user_script").map_err(|error| {
            Failure::client(format!(
                "ERR Error compiling script (new function): {}",
                first_line(&error)
            ))
        })?;
        if self.scripts.len() >= COMPILED_MAX {
            self.scripts.clear();
        }
        self.scripts.insert(sha.to_owned(), function.clone());
        Ok(function)
    }

    fn compile(&self, code: &Bytes, name: &str) -> mlua::Result<Function> {
        // Only text: compiled code is not checked before it runs.
        let text = without_shebang(code);
        self.lua
            .load(text)
            .set_name(name)
            .set_mode(mlua::chunk::ChunkMode::Text)
            .into_function()
    }

    pub(super) fn list(&self, items: &[Bytes]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(items.len(), 0)?;
        for item in items {
            table.raw_push(self.lua.create_string(item)?)?;
        }
        Ok(table)
    }

    /// Returns a function of a library, which is loaded if this thread has not done that.
    pub(super) fn function(
        &mut self,
        library: &Library,
        name: &str,
        limits: &Limits,
    ) -> Result<Function> {
        if !self.libraries.contains_key(&library.number) {
            let loaded = self.load(&library.code, limits)?;
            if self.libraries.len() >= COMPILED_MAX {
                self.libraries.clear();
            }
            let functions = loaded
                .into_iter()
                .map(|(info, function)| (info.name, function));
            self.libraries.insert(library.number, functions.collect());
        }
        let functions = &self.libraries[&library.number];
        functions
            .get(name)
            .cloned()
            .ok_or_else(|| Failure::client("ERR Function not found"))
    }

    /// Runs the code of a library.
    pub(super) fn load(
        &mut self,
        code: &Bytes,
        limits: &Limits,
    ) -> Result<Vec<(FunctionInfo, Function)>> {
        let function = self.compile(code, "@user_function").map_err(|error| {
            Failure::client(format!(
                "ERR Error compiling function: {}",
                first_line(&error)
            ))
        })?;
        let registered = Rc::new(RefCell::new(Vec::new()));
        let register = {
            let registered = Rc::clone(&registered);
            move |_: &Lua,
                  (name, callback, flags, description): (
                Value,
                Value,
                Option<Table>,
                Option<String>,
            )| {
                let info = function_info(&name, flags, description)?;
                let Value::Function(callback) = callback else {
                    return Err(Error::runtime(
                        "redis.register_function must get a callback argument",
                    ));
                };
                let mut registered = registered.borrow_mut();
                let taken = |(other, _): &(FunctionInfo, Function)| other.name == info.name;
                if registered.iter().any(taken) {
                    return Err(Error::runtime("Function already exists in the library"));
                }
                registered.push((info, callback));
                Ok(())
            }
        };
        self.begin(limits);
        let run = || {
            self.slot
                .raw_set("register", self.lua.create_function(register)?)?;
            let env: Table = self.new_environment.call((Value::Nil, Value::Nil))?;
            function.set_environment(env)?;
            function.call::<()>(())
        };
        let result = run();
        let _ = self.slot.raw_set("register", Value::Nil);
        self.end(result, "library", None)?;
        let registered = registered.take();
        if registered.is_empty() {
            return Err(Failure::client("ERR No functions registered"));
        }
        Ok(registered)
    }

    fn begin(&self, limits: &Limits) {
        let deadline = Instant::now().checked_add(limits.time);
        self.watch.deadline.set(deadline);
        self.watch.killed.replace(Arc::clone(&limits.killed));
        self.watch.stop.set(None);
        let _ = self.lua.set_memory_limit(limits.memory);
    }

    /// Ends a run: `fatal` is the error of a command that ends the transaction.
    fn end<R>(&self, result: mlua::Result<R>, name: &str, fatal: Option<Failure>) -> Result<R> {
        let stop = self.watch.stop.take();
        self.watch.deadline.set(None);
        // Errors must not fail for lack of memory, and garbage must not count for the next script.
        let _ = self.lua.set_memory_limit(0);
        if let Some(fatal) = fatal {
            return Err(fatal);
        }
        match (stop, result) {
            (Some(Stop::Killed), _) => Err(Failure::client(
                "ERR Error running script: it was killed by SCRIPT KILL",
            )),
            (Some(_), _) => Err(Failure::client(
                "ERR Error running script: it took longer than lua-time-limit",
            )),
            (None, Ok(value)) => Ok(value),
            (None, Err(error)) => {
                if is_out_of_memory(&error) {
                    let _ = self.lua.gc_collect();
                }
                Err(Failure::client(describe(&error, name)))
            }
        }
    }

    /// Runs a script whose commands go to `host`.
    pub(super) fn run(
        &mut self,
        name: &str,
        host: &mut dyn Host,
        limits: &Limits,
        body: impl FnOnce(&Interpreter) -> mlua::Result<(bool, Value)>,
    ) -> Result<Reply> {
        self.begin(limits);
        let fatal: RefCell<Option<Failure>> = RefCell::new(None);
        let host = RefCell::new(host);
        let this = &*self;
        let stop = |failure: Failure| {
            *fatal.borrow_mut() = Some(failure);
            this.watch.stop.set(Some(Stop::Transaction));
            Error::runtime("the transaction cannot continue")
        };
        let arguments = |args: &Variadic<Value>| args.iter().map(convert::argument).collect();
        let result = this.lua.scope(|scope| {
            let call = scope.create_function_mut(|lua, args: Variadic<Value>| {
                this.watch.check()?;
                let Some(args): Option<Vec<Bytes>> = arguments(&args) else {
                    let reply = Reply::error(
                        "ERR Lua redis lib command arguments must be strings or integers",
                    );
                    return convert::to_lua(lua, &reply, false);
                };
                let reply = if args.is_empty() {
                    Reply::error(
                        "ERR Please specify at least one argument for this redis.call() call",
                    )
                } else {
                    host.borrow_mut().call(args).map_err(&stop)?
                };
                let resp3 = this.slot.raw_get("resp3")?;
                convert::to_lua(lua, &reply, resp3)
            })?;
            let check = scope.create_function_mut(|_, args: Variadic<Value>| {
                let args: Option<Vec<Bytes>> = arguments(&args);
                let args = args.filter(|args| !args.is_empty()).ok_or_else(|| {
                    Error::runtime("redis.acl_check_cmd needs the name of a command")
                })?;
                host.borrow_mut()
                    .may(&args)
                    .map_err(|failure| Error::runtime(format!("{:?}", failure.to_reply())))
            })?;
            this.slot.raw_set("call", call)?;
            this.slot.raw_set("check", check)?;
            this.slot.raw_set("resp3", false)?;
            let (is_result, value) = body(this)?;
            if is_result {
                convert::to_reply(&value).map(Ok)
            } else {
                Ok(Err(raised(&value, name)))
            }
        });
        for name in ["call", "check"] {
            let _ = this.slot.raw_set(name, Value::Nil);
        }
        let fatal = fatal.take();
        match self.end(result, name, fatal)? {
            // The script returns an error: its transaction ends like that of one that raises it.
            Ok(Reply::Error(text)) => Err(Failure::Client(text)),
            Ok(reply) => Ok(reply),
            Err(text) => Err(Failure::client(text)),
        }
    }
}

/// Returns the code after a first line that begins with `#!`. The line stays, empty, for the numbers
/// of the others.
fn without_shebang(code: &[u8]) -> &[u8] {
    if !code.starts_with(b"#!") {
        return code;
    }
    let end = code.iter().position(|byte| *byte == b'\n');
    &code[end.unwrap_or(code.len())..]
}

fn function_info(
    name: &Value,
    flags: Option<Table>,
    description: Option<String>,
) -> mlua::Result<FunctionInfo> {
    const FLAGS: [&str; 5] = [
        "no-writes",
        "allow-oom",
        "allow-stale",
        "no-cluster",
        "allow-cross-slot-keys",
    ];
    let Value::String(name) = name else {
        return Err(Error::runtime(
            "redis.register_function must get a function name argument",
        ));
    };
    let name = name.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(Error::runtime(
            "Function names can only contain letters, numbers, or underscores(_) and must be at least one character long",
        ));
    }
    let flags: Vec<String> = match flags {
        None => Vec::new(),
        Some(flags) => flags.sequence_values().collect::<mlua::Result<_>>()?,
    };
    if !flags.iter().all(|flag| FLAGS.contains(&flag.as_str())) {
        return Err(Error::runtime("unknown flag given"));
    }
    Ok(FunctionInfo {
        name,
        description,
        flags,
    })
}

/// `redis.log(level, text...)`.
fn log(_: &Lua, (level, texts): (i64, Variadic<mlua::LuaString>)) -> mlua::Result<()> {
    let texts: Vec<String> = texts.iter().map(|text| text.to_string_lossy()).collect();
    let text = texts.join(" ");
    match level {
        0 => tracing::trace!(target: "braid::script", "{text}"),
        1 => tracing::debug!(target: "braid::script", "{text}"),
        2 => tracing::info!(target: "braid::script", "{text}"),
        3 => tracing::warn!(target: "braid::script", "{text}"),
        _ => return Err(Error::runtime("Invalid log level.")),
    }
    Ok(())
}
