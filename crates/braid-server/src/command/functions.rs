//! FUNCTION: libraries of functions, which are durable.

use std::sync::Arc;

use bytes::{BufMut, Bytes};

use super::arguments::{Options, help, is, unknown_subcommand, wrong_arity};
use super::scripting::{LOAD_TIME, kill, limits};
use crate::failure::{Failure, Result};
use crate::glob::matches;
use crate::keyspace::Scope;
use crate::rdb;
use crate::resp::Reply;
use crate::script::{self, FunctionInfo, Libraries, Library};
use crate::session::Session;
use crate::shared::Shared;

/// Mark of a library in the payload of FUNCTION DUMP, and the payload's version.
const LIBRARY: u8 = 245;
const VERSION: u16 = 10;

/// Runs the code of a library, and returns it with its functions.
fn read(shared: &Shared, code: &Bytes) -> Result<Library> {
    let name = script::library_name(code)?;
    let mut limits = limits(shared, Arc::default());
    limits.time = LOAD_TIME;
    let functions = script::load(code, &limits)?;
    Ok(Library {
        number: shared.scripts.new_number(),
        name,
        code: Bytes::copy_from_slice(code),
        functions,
    })
}

/// Checks that no library has this name.
fn check_is_new(libraries: &Libraries, name: &str) -> Result<()> {
    if libraries.contains_key(name) {
        return Err(Failure::client(format!(
            "ERR Library '{name}' already exists"
        )));
    }
    Ok(())
}

/// Finds a function. FCALL takes names that differ only in case for the same, so libraries cannot have
/// such functions; but one library can, of which the name as it is given comes first.
pub(super) fn find_function<'a>(
    libraries: impl Iterator<Item = &'a Arc<Library>> + Clone,
    name: &str,
) -> Option<(&'a Arc<Library>, &'a FunctionInfo)> {
    let functions = libraries.flat_map(|library| {
        let functions = library.functions.iter();
        functions.map(move |function| (library, function))
    });
    let mut exact = functions.clone();
    let exact = exact.find(|(_, function)| function.name == name);
    exact.or_else(|| {
        let mut functions = functions;
        functions.find(|(_, function)| function.name.eq_ignore_ascii_case(name))
    })
}

/// Adds a library.
fn add(libraries: &mut Libraries, library: Library, replaces: bool) -> Result<()> {
    if !replaces {
        check_is_new(libraries, &library.name)?;
    }
    let others = libraries
        .values()
        .filter(|other| other.name != library.name);
    let is_taken =
        |function: &&FunctionInfo| find_function(others.clone(), &function.name).is_some();
    if let Some(taken) = library.functions.iter().find(is_taken) {
        return Err(Failure::client(format!(
            "ERR Function {} already exists",
            taken.name
        )));
    }
    libraries.insert(library.name.clone(), Arc::new(library));
    Ok(())
}

/// Changes the libraries, durably, by a function of those that there are.
fn change<R>(
    shared: &Shared,
    session: &mut Session,
    by: impl FnOnce(&mut Libraries) -> Result<R>,
) -> Result<R> {
    let scripts = &shared.scripts;
    let _lock = scripts.lock_libraries();
    let before = scripts.libraries();
    let mut after = Libraries::clone(&before);
    let result = by(&mut after)?;
    let scope = Scope {
        database: 0,
        stripe: session.stripe,
        writes: true,
        durability: braid::Durability::Immediate,
    };
    let committed = shared.keyspace.transact(scope, |data| {
        for name in before.keys().filter(|name| !after.contains_key(*name)) {
            data.view.remove(&scripts.table, name.as_bytes())?;
        }
        for (name, library) in &after {
            if before
                .get(name)
                .is_none_or(|old| !Arc::ptr_eq(old, library))
            {
                data.view
                    .put(&scripts.table, name.as_bytes(), &library.code)?;
            }
        }
        Ok(())
    })?;
    committed.ticket.wait()?;
    scripts.set_libraries(after);
    Ok(result)
}

/// Reads the libraries of the database.
pub(crate) fn load_all(shared: &Shared) -> Result<()> {
    let data = shared.keyspace.durable(0)?;
    let mut libraries = Libraries::new();
    for entry in data.view.prefix(&shared.scripts.table, &[])? {
        let (_, code) = entry?;
        add(&mut libraries, read(shared, &code)?, false)?;
    }
    shared.scripts.set_libraries(libraries);
    Ok(())
}

fn load(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let (code, options) = args
        .split_last()
        .ok_or_else(|| wrong_arity("function|load"))?;
    if let Some(option) = options.iter().find(|option| !is(option, "REPLACE")) {
        let shown = String::from_utf8_lossy(option).into_owned();
        return Err(Failure::client(format!(
            "ERR Unknown option given: {shown}"
        )));
    }
    let replaces = !options.is_empty();
    if !replaces {
        // Before its code runs.
        check_is_new(&shared.scripts.libraries(), &script::library_name(code)?)?;
    }
    let library = read(shared, code)?;
    let name = Reply::copied(&library.name);
    change(shared, session, |libraries| {
        add(libraries, library, replaces)
    })?;
    Ok(name)
}

fn list(shared: &Shared, args: &[Bytes]) -> Result<Reply> {
    let (mut pattern, mut with_code) = (None, false);
    let mut options = Options::new(args);
    while let Some(option) = options.next() {
        if is(option, "WITHCODE") && !with_code {
            with_code = true;
        } else if is(option, "LIBRARYNAME") && pattern.is_none() {
            let value = options.next();
            let value =
                value.ok_or_else(|| Failure::client("ERR library name argument was not given"))?;
            pattern = Some(value.to_ascii_lowercase());
        } else {
            let shown = String::from_utf8_lossy(option).into_owned();
            return Err(Failure::client(format!("ERR Unknown argument {shown}")));
        }
    }
    let libraries = shared.scripts.libraries();
    let meant = libraries.values().filter(|library| {
        let name = library.name.to_ascii_lowercase();
        let is_meant = |pattern: &Vec<u8>| matches(pattern, name.as_bytes());
        pattern.as_ref().is_none_or(is_meant)
    });
    Ok(Reply::Array(
        meant.map(|library| describe(library, with_code)).collect(),
    ))
}

fn describe(library: &Library, with_code: bool) -> Reply {
    let functions = library.functions.iter().map(|function| {
        let flags = function.flags.iter().map(|flag| Reply::Status(flag));
        let description = function.description.as_ref();
        Reply::Map(vec![
            (Reply::copied("name"), Reply::copied(&function.name)),
            (
                Reply::copied("description"),
                description.map_or(Reply::Null, Reply::copied),
            ),
            (Reply::copied("flags"), Reply::Set(flags.collect())),
        ])
    });
    let mut fields = vec![
        (Reply::copied("library_name"), Reply::copied(&library.name)),
        (Reply::copied("engine"), Reply::copied("LUA")),
        (
            Reply::copied("functions"),
            Reply::Array(functions.collect()),
        ),
    ];
    if with_code {
        let code = Reply::Bulk(library.code.clone());
        fields.push((Reply::copied("library_code"), code));
    }
    Reply::Map(fields)
}

fn stats(shared: &Shared) -> Reply {
    let running = shared.scripts.running();
    let function = running.values().find(|script| script.is_function);
    let running = function.map_or(Reply::Null, |script| {
        Reply::Map(vec![
            (Reply::copied("name"), Reply::copied(&script.name)),
            (Reply::copied("command"), Reply::bulks(script.args.clone())),
            (
                Reply::copied("duration_ms"),
                Reply::Integer(script.since.elapsed().as_millis() as i64),
            ),
        ])
    });
    let libraries = shared.scripts.libraries();
    let functions: usize = libraries
        .values()
        .map(|library| library.functions.len())
        .sum();
    let engine = Reply::Map(vec![
        (
            Reply::copied("libraries_count"),
            Reply::Integer(libraries.len() as i64),
        ),
        (
            Reply::copied("functions_count"),
            Reply::Integer(functions as i64),
        ),
    ]);
    Reply::Map(vec![
        (Reply::copied("running_script"), running),
        (
            Reply::copied("engines"),
            Reply::Map(vec![(Reply::copied("LUA"), engine)]),
        ),
    ])
}

fn dump(shared: &Shared) -> Reply {
    let mut out = Vec::new();
    for library in shared.scripts.libraries().values() {
        out.put_u8(LIBRARY);
        rdb::put_string(&mut out, &library.code);
    }
    Reply::Bulk(rdb::seal(out, VERSION))
}

fn restore(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let (flushes, replaces) = match args.get(1) {
        None => (false, false),
        Some(policy) if is(policy, "APPEND") => (false, false),
        Some(policy) if is(policy, "REPLACE") => (false, true),
        Some(policy) if is(policy, "FLUSH") => (true, false),
        Some(_) => {
            return Err(Failure::client(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let wrong = |_| Failure::client("ERR DUMP payload version or checksum are wrong");
    let mut reader = rdb::Reader::new(rdb::unseal(&args[0]).map_err(wrong)?);
    let bad = |_| Failure::client("ERR failed loading functions payload");
    let mut restored = Vec::new();
    while reader.end().is_err() {
        if reader.byte().map_err(bad)? != LIBRARY {
            return Err(Failure::client("ERR given type is not a function"));
        }
        restored.push(read(shared, &reader.string().map_err(bad)?)?);
    }
    change(shared, session, |libraries| {
        if flushes {
            libraries.clear();
        }
        restored
            .into_iter()
            .try_for_each(|library| add(libraries, library, replaces))
    })?;
    Ok(Reply::OK)
}

pub(super) fn function(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    match (&subcommand[..], args.len()) {
        (b"load", 3..) => load(shared, session, &args[2..]),
        (b"list", _) => list(shared, &args[2..]),
        (b"delete", 3) => {
            let name = String::from_utf8_lossy(&args[2]).into_owned();
            change(shared, session, |libraries| {
                let removed = libraries.remove(&name);
                removed
                    .map(drop)
                    .ok_or_else(|| Failure::client("ERR Library not found"))
            })?;
            Ok(Reply::OK)
        }
        (b"flush", 2 | 3) => {
            let mode = args.get(2);
            if mode.is_some_and(|mode| !is(mode, "ASYNC") && !is(mode, "SYNC")) {
                return Err(Failure::client(
                    "ERR FUNCTION FLUSH only supports SYNC|ASYNC option",
                ));
            }
            change(shared, session, |libraries| {
                libraries.clear();
                Ok(())
            })?;
            Ok(Reply::OK)
        }
        (b"dump", 2) => Ok(dump(shared)),
        (b"restore", 3 | 4) => restore(shared, session, &args[2..]),
        (b"stats", 2) => Ok(stats(shared)),
        (b"kill", 2) => kill(shared, true),
        (b"help", 2) => Ok(help(&[
            "FUNCTION <subcommand> [<arg> ...]. Subcommands are:",
            "DELETE <name>, DUMP, FLUSH [ASYNC|SYNC], KILL, LIST [LIBRARYNAME <pattern>] [WITHCODE],",
            "LOAD [REPLACE] <code>, RESTORE <payload> [FLUSH|APPEND|REPLACE], STATS, HELP",
        ])),
        _ => Err(unknown_subcommand("function", &args[1])),
    }
}
