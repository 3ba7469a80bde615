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

use super::errors::{describe, first_line, is_out_of_memory, raised, text_of};
use super::shebang::{FLAGS, NAME_RULE, code_after, is_name};
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

const NO_COMMAND: &str = "ERR Please specify at least one argument for this redis lib call";
const WRONG_ARGUMENTS: &str = "ERR Lua redis lib command arguments must be strings or integers";
const NOT_A_COMMAND: &str = "ERR Invalid command passed to redis.acl_check_cmd()";

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
    /// Makes the environment of a library, and a function that ends the loading of the library.
    new_library: Function,
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
        let error_text = |_: &Lua, error: Value| match error {
            Value::Error(error) => Ok(Some(first_line(&error))),
            _ => Ok(None),
        };
        host.raw_set("error_text", lua.create_function(error_text)?)?;
        host.raw_set("bit", bits::library(&lua)?)?;
        host.raw_set("cjson", json::library(&lua)?)?;
        host.raw_set("cmsgpack", message_pack::library(&lua)?)?;
        host.raw_set("struct", packing::library(&lua)?)?;
        let prelude = lua.load(PRELUDE).set_name("@prelude");
        let (new_environment, new_library, protected_call) = prelude.call(host)?;
        let watched = Rc::clone(&watch);
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        lua.set_global_hook(triggers, move |_, _| watched.check())?;
        Ok(Interpreter {
            lua,
            slot,
            new_environment,
            new_library,
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
        let text = code_after(code);
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
    pub(super) fn load(&mut self, code: &Bytes, limits: &Limits) -> Result<Registered> {
        let function = self.compile(code, "@user_function").map_err(|error| {
            Failure::client(format!(
                "ERR Error compiling function: {}",
                first_line(&error)
            ))
        })?;
        let registered = Rc::new(RefCell::new(Vec::new()));
        let register = {
            let registered = Rc::clone(&registered);
            move |_: &Lua, arguments: (mlua::LuaString, Function, Option<Table>, Option<String>)| {
                register(&mut registered.borrow_mut(), arguments)
            }
        };
        self.begin(limits);
        let run = || -> mlua::Result<(bool, Value)> {
            self.slot
                .raw_set("register", self.lua.create_function(register)?)?;
            let (env, end_loading): (Table, Function) = self.new_library.call(())?;
            function.set_environment(env)?;
            let result = self.protected_call.call(&function)?;
            end_loading.call::<()>(())?;
            Ok(result)
        };
        let result = run();
        let _ = self.slot.raw_set("register", Value::Nil);
        let (is_loaded, error) = self.end(result, "library", None)?;
        if !is_loaded {
            return Err(Failure::client(format!(
                "ERR Error registering functions: {}",
                text_of(&error)
            )));
        }
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
        let arguments = |args: &Variadic<Value>| -> Option<Vec<Bytes>> {
            args.iter().map(convert::argument).collect()
        };
        let result = this.lua.scope(|scope| {
            let call = scope.create_function_mut(|lua, args: Variadic<Value>| {
                this.watch.check()?;
                let reply = match arguments(&args) {
                    None => Reply::error(WRONG_ARGUMENTS),
                    Some(args) if args.is_empty() => Reply::error(NO_COMMAND),
                    Some(args) => host.borrow_mut().call(args).map_err(&stop)?,
                };
                let resp3 = this.slot.raw_get("resp3")?;
                convert::to_lua(lua, &reply, resp3)
            })?;
            let check = scope.create_function_mut(|_, args: Variadic<Value>| {
                let allowed = match arguments(&args) {
                    None => Err(WRONG_ARGUMENTS),
                    Some(args) if args.is_empty() => Err(NO_COMMAND),
                    Some(args) => host.borrow_mut().may(&args).ok_or(NOT_A_COMMAND),
                };
                Ok((allowed == Ok(true), allowed.err()))
            })?;
            this.slot.raw_set("call", call)?;
            this.slot.raw_set("check", check)?;
            this.slot.raw_set("resp3", false)?;
            let (is_result, value) = body(this)?;
            if is_result {
                convert::to_reply(&value, this.slot.raw_get("resp3")?).map(Ok)
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

/// Functions that a library registers.
type Registered = Vec<(FunctionInfo, Function)>;

/// Adds a function of a library; returns why that is not possible.
fn register(
    registered: &mut Registered,
    (name, callback, flags, description): (
        mlua::LuaString,
        Function,
        Option<Table>,
        Option<String>,
    ),
) -> mlua::Result<Option<&'static str>> {
    let name = name.to_string_lossy();
    let given: Vec<Value> = match flags {
        None => Vec::new(),
        Some(flags) => flags.sequence_values().collect::<mlua::Result<_>>()?,
    };
    let mut flags = Vec::new();
    for flag in given {
        let text = flag.to_string()?;
        let known = FLAGS.iter().find(|known| known.eq_ignore_ascii_case(&text));
        match known {
            Some(known) => flags.push(*known),
            None => return Ok(Some("unknown flag given")),
        }
    }
    let flags = FLAGS.into_iter().filter(|flag| flags.contains(flag));
    if !is_name(&name) {
        return Ok(Some(NAME_RULE));
    }
    if registered.iter().any(|(other, _)| other.name == name) {
        return Ok(Some("Function already exists in the library"));
    }
    let info = FunctionInfo {
        name,
        description,
        flags: flags.collect(),
    };
    registered.push((info, callback));
    Ok(None)
}

/// `redis.log(level, text)`, whose level scripts may give with a fraction.
fn log(_: &Lua, (level, text): (f64, mlua::LuaString)) -> mlua::Result<()> {
    let text = text.to_string_lossy();
    match level as i64 {
        0 => tracing::trace!(target: "braid::script", "{text}"),
        1 => tracing::debug!(target: "braid::script", "{text}"),
        2 => tracing::info!(target: "braid::script", "{text}"),
        _ => tracing::warn!(target: "braid::script", "{text}"),
    }
    Ok(())
}
