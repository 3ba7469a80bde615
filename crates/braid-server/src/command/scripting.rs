//! EVAL, SCRIPT and FCALL. A script is one transaction: if it fails, it has changed nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use braid_rt::mutant;
use bytes::Bytes;

use super::arguments::{help, integer, is, unknown_subcommand};
use super::functions::find_function;
use super::keys::database;
use super::{Command, Control, Misuse, Run, find, keys_of, remember, waitaof_at_once};
use crate::channels::Topic;
use crate::failure::{Failure, Result};
use crate::keyspace::{Data, Message};
use crate::resp::Reply;
use crate::resp::number::parse_i64;
use crate::script::{self, Host, Limits, NO_WRITES, Running};
use crate::session::Session;
use crate::shared::Shared;
use crate::signature::Flag;

/// Digits of a SHA-1 digest.
const DIGEST_LEN: usize = 40;

/// Runs the commands of a script.
struct Caller<'a> {
    shared: &'a Shared,
    session: &'a mut Session,
    data: &'a mut Data,
    is_readonly: bool,
}

/// Commands that Redis may send to replicas, and so counts as writes in scripts that do not write.
const PROPAGATED: [&str; 3] = ["pfcount", "publish", "spublish"];

/// The error that a script gets for a command that it must not run; the script continues.
type Refusal = &'static str;

impl Caller<'_> {
    fn find(&self, args: &[Bytes]) -> std::result::Result<&'static Command, Refusal> {
        let command = find(&args[0]).ok_or("ERR Unknown Redis command called from script")?;
        command.check(args).map_err(|misuse| match misuse {
            Misuse::Arguments(_) => "ERR Wrong number of args calling Redis command from script",
            Misuse::Subcommand => "ERR Unknown Redis command called from script",
        })?;
        let is_allowed = matches!(
            command.run,
            Run::Data(_) | Run::Session(_) | Run::Executor(Control::Waitaof)
        ) && !command.is(Flag::Noscript)
            && command.name != "quit";
        if !is_allowed {
            return Err("ERR This Redis command is not allowed from script");
        }
        if self.is_readonly && (command.is(Flag::Write) || PROPAGATED.contains(&command.name)) {
            return Err("ERR Write commands are not allowed from read-only scripts.");
        }
        Ok(command)
    }

    /// Publishes a message when the transaction has committed.
    fn publish(&mut self, args: &[Bytes], topic: Topic) -> Reply {
        let receivers = self.shared.channels.receivers(topic, &args[1]);
        self.data.effects.messages.push(Message {
            is_shard: topic == Topic::Shard,
            channel: args[1].clone(),
            text: args[2].clone(),
        });
        Reply::Integer(receivers as i64)
    }
}

impl Host for Caller<'_> {
    fn call(&mut self, args: Vec<Bytes>) -> Result<Reply> {
        let command = match self.find(&args) {
            Ok(command) => command,
            Err(refusal) => return Ok(Reply::error(refusal)),
        };
        let (shared, session) = (self.shared, &mut *self.session);
        if let Err(denied) = session
            .user
            .check(command, &args, || keys_of(command, &args))
        {
            let text = super::refuse(shared, session, "lua", command, &denied);
            return Ok(Reply::error(text));
        }
        if !shared.monitors.is_empty() {
            let shown = crate::observe::shown(command.name, &args);
            shared.monitors.show(self.data.database, "lua", &shown);
        }
        if !mutant!("server_forget_reads_of_scripts") {
            remember(shared, session, command, &args);
        }
        match (command.name, command.run) {
            ("publish", _) => Ok(self.publish(&args, Topic::Channel)),
            ("spublish", _) => Ok(self.publish(&args, Topic::Shard)),
            ("select", _) => match database(&args[1]) {
                Ok(number) => self.data.select(number).map(|()| Reply::OK),
                Err(failure) => Ok(failure.to_reply()),
            },
            (_, Run::Executor(Control::Waitaof)) => {
                let result = waitaof_at_once(shared, session, &args);
                Ok(result.unwrap_or_else(|failure| failure.to_reply()))
            }
            (_, Run::Session(run)) => {
                let result = run(shared, session, &args);
                Ok(result.unwrap_or_else(|failure| failure.to_reply()))
            }
            (_, Run::Data(run)) => {
                super::run_or_undo(self.data, |data| super::run_on(command, run, data, &args))
            }
            _ => Ok(Reply::error(
                "ERR This Redis command is not allowed from script",
            )),
        }
    }

    fn may(&mut self, args: &[Bytes]) -> Option<bool> {
        // As Redis, also for a wrong number of arguments.
        let command =
            find(&args[0]).filter(|command| command.check(args) != Err(Misuse::Subcommand))?;
        let user = &self.session.user;
        Some(user.check(command, args, || keys_of(command, args)).is_ok())
    }
}

/// Returns the keys and the other arguments after the number of keys.
fn divide(args: &[Bytes]) -> Result<(&[Bytes], &[Bytes])> {
    let count = integer(&args[2])?;
    let count = usize::try_from(count)
        .map_err(|_| Failure::client("ERR Number of keys can't be negative"))?;
    args[3..]
        .split_at_checked(count)
        .ok_or_else(|| Failure::client("ERR Number of keys can't be greater than number of args"))
}

pub(super) fn limits(shared: &Shared, killed: Arc<AtomicBool>) -> Limits {
    let options = shared.options();
    Limits {
        time: options.lua_time_limit,
        memory: options.script_memory_limit,
        killed,
    }
}

/// A call of a script or a function: its name, its arguments and its kind.
struct Invocation<'a> {
    name: &'a str,
    args: &'a [Bytes],
    is_readonly: bool,
    is_function: bool,
}

/// Runs a script with a caller and limits, and notes that it runs.
fn run_with(
    shared: &Shared,
    session: &mut Session,
    data: &mut Data,
    invocation: &Invocation<'_>,
    body: impl FnOnce(&mut Caller<'_>, &Limits) -> Result<Reply>,
) -> Result<Reply> {
    let killed = Arc::new(AtomicBool::new(false));
    let limits = limits(shared, Arc::clone(&killed));
    let turn = shared.scripts.begin(Running {
        name: invocation.name.to_owned(),
        args: invocation.args.to_vec(),
        since: Instant::now(),
        is_function: invocation.is_function,
        killed,
    });
    let selected = session.database;
    let mut caller = Caller {
        shared,
        session,
        data: &mut *data,
        is_readonly: invocation.is_readonly,
    };
    let result = body(&mut caller, &limits);
    drop(turn);
    // SELECT lasts until the end of the script.
    data.select(selected)?;
    result
}

fn evaluate(
    shared: &Shared,
    session: &mut Session,
    data: &mut Data,
    (sha, code): (&str, &Bytes),
    args: &[Bytes],
) -> Result<Reply> {
    let (keys, rest) = divide(args)?;
    let is_readonly =
        script::says_no_writes(code)? || args[0].to_ascii_lowercase().ends_with(b"_ro");
    let invocation = Invocation {
        name: sha,
        args,
        is_readonly,
        is_function: false,
    };
    run_with(shared, session, data, &invocation, |caller, limits| {
        script::eval(sha, code, keys, rest, caller, limits)
    })
}

pub(super) fn eval(
    shared: &Shared,
    session: &mut Session,
    data: &mut Data,
    args: &[Bytes],
) -> Result<Reply> {
    divide(args)?;
    let sha = script::digest(&args[1]);
    script::compile(&args[1])?;
    shared.scripts.keep_evaluated(&sha, &args[1]);
    evaluate(shared, session, data, (&sha, &args[1]), args)
}

pub(super) fn evalsha(
    shared: &Shared,
    session: &mut Session,
    data: &mut Data,
    args: &[Bytes],
) -> Result<Reply> {
    let unknown = || Failure::client("NOSCRIPT No matching script. Please use EVAL.");
    if args[1].len() != DIGEST_LEN {
        return Err(unknown());
    }
    divide(args)?;
    let sha = String::from_utf8_lossy(&args[1]).to_lowercase();
    let code = shared.scripts.text(&sha).ok_or_else(unknown)?;
    evaluate(shared, session, data, (&sha, &code), args)
}

pub(super) fn fcall(
    shared: &Shared,
    session: &mut Session,
    data: &mut Data,
    args: &[Bytes],
) -> Result<Reply> {
    let name = String::from_utf8_lossy(&args[1]);
    let libraries = shared.scripts.libraries();
    let (library, function) = find_function(libraries.values(), &name)
        .ok_or_else(|| Failure::client("ERR Function not found"))?;
    if parse_i64(&args[2]).is_none() {
        return Err(Failure::client("ERR Bad number of keys provided"));
    }
    let (keys, rest) = divide(args)?;
    let name = &function.name;
    let no_writes = function.flags.contains(&NO_WRITES);
    let asks_readonly = is(&args[0], "FCALL_RO");
    if asks_readonly && !no_writes {
        return Err(Failure::client(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    let invocation = Invocation {
        name,
        args,
        is_readonly: no_writes,
        is_function: true,
    };
    run_with(shared, session, data, &invocation, |caller, limits| {
        script::call(library, name, keys, rest, caller, limits)
    })
}

pub(super) fn script(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    let scripts = &shared.scripts;
    match (&subcommand[..], args.len()) {
        (b"load", 3) => {
            script::compile(&args[2])?;
            let sha = script::digest(&args[2]);
            if !scripts.keep_loaded(&sha, &args[2]) {
                return Err(Failure::client(
                    "ERR the scripts that are loaded have 64 MiB; SCRIPT FLUSH removes them",
                ));
            }
            Ok(Reply::copied(sha))
        }
        (b"exists", 3..) => {
            let known = args[2..].iter().map(|sha| {
                let sha = String::from_utf8_lossy(sha).to_lowercase();
                Reply::Integer(i64::from(scripts.text(&sha).is_some()))
            });
            Ok(Reply::Array(known.collect()))
        }
        (b"flush", 2) => {
            scripts.flush();
            Ok(Reply::OK)
        }
        (b"flush", 3) if is(&args[2], "ASYNC") || is(&args[2], "SYNC") => {
            scripts.flush();
            Ok(Reply::OK)
        }
        (b"flush", _) => Err(Failure::client(
            "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
        )),
        (b"kill", 2) => kill(shared, false),
        (b"help", 2) => Ok(help(&[
            "SCRIPT <subcommand> [<arg> ...]. Subcommands are:",
            "EXISTS <sha1> [<sha1> ...], FLUSH [ASYNC|SYNC], KILL, LOAD <script>, HELP",
        ])),
        _ => Err(unknown_subcommand("script", &args[1])),
    }
}

/// Stops the scripts that run. What they did is undone, so that none is beyond being stopped.
pub(super) fn kill(shared: &Shared, functions: bool) -> Result<Reply> {
    if shared.scripts.kill(functions) {
        Ok(Reply::OK)
    } else {
        Err(Failure::client(
            "NOTBUSY No scripts in execution right now.",
        ))
    }
}

/// Longest time that the code of a library may run when it is loaded.
pub(super) const LOAD_TIME: Duration = Duration::from_millis(500);
