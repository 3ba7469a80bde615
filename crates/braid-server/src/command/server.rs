//! Commands about the server.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::arguments::{help, integer, is, natural, timeout_ms, unknown_subcommand};
use super::keys::DATABASES;
use crate::config::{NOTIFICATION_CLASSES, notification_classes, slow_after};
use crate::failure::{Failure, Result};
use crate::glob::matches;
use crate::options::ServerOptions;
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;

/// Version of Redis whose commands the server has, for clients that look at it.
pub(super) const REDIS_VERSION: &str = "7.2.0";

pub(super) fn time(_: &Shared, _: &mut Session, _: &[Bytes]) -> Result<Reply> {
    let now = braid_rt::wall_clock();
    Ok(Reply::Array(vec![
        Reply::copied(now.as_secs().to_string()),
        Reply::copied(now.subsec_micros().to_string()),
    ]))
}

/// Answers at once: there are no replicas.
pub(super) fn wait(_: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    integer(&args[1])?;
    timeout_ms(&args[2])?;
    Ok(Reply::Integer(0))
}

/// Parses the arguments of WAITAOF; returns whether it waits for this server's device, and how long
/// at most. Nothing waits for replicas: there are none.
pub(crate) fn waits_for_device(args: &[Bytes]) -> Result<(bool, Option<Duration>)> {
    let local = integer(&args[1])?;
    natural(&args[2], "ERR value is out of range, must be positive")?;
    let timeout = timeout_ms(&args[3])?;
    if !(0..=1).contains(&local) {
        return Err(Failure::client(
            "ERR value is out of range, must be between 0 and 1",
        ));
    }
    Ok((local == 1, timeout))
}

/// Returns the reply of WAITAOF for this server's log, and for those of replicas, of which there are none.
pub(crate) fn copies(is_durable: bool) -> Reply {
    Reply::Array(vec![
        Reply::Integer(i64::from(is_durable)),
        Reply::Integer(0),
    ])
}

/// Runs WAITAOF in a transaction or a script, where nothing waits.
pub(crate) fn waitaof_at_once(shared: &Shared, session: &Session, args: &[Bytes]) -> Result<Reply> {
    waits_for_device(args)?;
    Ok(copies(session.sees_own_writes(&shared.keyspace.db)))
}

pub(super) fn lolwut(_: &Shared, _: &mut Session, _: &[Bytes]) -> Result<Reply> {
    Ok(Reply::text(format!(
        "Redis ver. {REDIS_VERSION}, as Braid {} has it\n",
        env!("CARGO_PKG_VERSION")
    )))
}

pub(super) fn role(_: &Shared, _: &mut Session, _: &[Bytes]) -> Result<Reply> {
    Ok(Reply::Array(vec![
        Reply::copied("master"),
        Reply::Integer(0),
        Reply::Array(Vec::new()),
    ]))
}

pub(super) fn shutdown(shared: &Shared, session: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let (mut saves, mut skips) = (false, false);
    for word in &args[1..] {
        if is(word, "ABORT") && args.len() == 2 {
            // A server that stops closes its connections, and continues.
            return Err(Failure::client("ERR No shutdown in progress."));
        }
        saves |= is(word, "SAVE");
        skips |= is(word, "NOSAVE");
        let known = ["NOSAVE", "SAVE", "NOW", "FORCE"];
        if !known.iter().any(|known| is(word, known)) || (saves && skips) {
            return Err(Failure::SYNTAX);
        }
    }
    session.closes = true;
    shared.begin_stop();
    // Redis does not answer either.
    Ok(Reply::Several(Vec::new()))
}

/// Returns the parameters of CONFIG with their values.
fn parameters(options: &ServerOptions) -> Vec<(&'static str, String)> {
    let port = options.bind.first().map_or(0, |address| address.port());
    let bind: Vec<String> = options
        .bind
        .iter()
        .map(|address| address.ip().to_string())
        .collect();
    let shown = |path: &Option<PathBuf>| {
        let path = path.as_ref();
        path.map_or(String::new(), |path| path.display().to_string())
    };
    let limit = options.client_output_buffer_limit;
    vec![
        ("aclfile", shown(&options.aclfile)),
        ("appendfsync", "always".to_owned()),
        ("appendonly", "yes".to_owned()),
        ("backup-directory", shown(&options.backup_directory)),
        ("backup-full-every", options.backup_full_every.to_string()),
        ("bind", bind.join(" ")),
        (
            "client-output-buffer-limit",
            format!("normal {limit} 0 0 slave 0 0 0 pubsub {limit} 0 0"),
        ),
        (
            "client-query-buffer-limit",
            options.client_query_buffer_limit.to_string(),
        ),
        ("databases", DATABASES.to_string()),
        (
            "latency-monitor-threshold",
            options.latency_monitor_threshold.as_millis().to_string(),
        ),
        (
            "lua-time-limit",
            options.lua_time_limit.as_millis().to_string(),
        ),
        ("maxclients", options.maxclients.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("notify-keyspace-events", options.notifications.clone()),
        ("port", port.to_string()),
        ("proto-max-bulk-len", options.proto_max_bulk_len.to_string()),
        (
            "requirepass",
            options.requirepass.clone().unwrap_or_default(),
        ),
        ("save", String::new()),
        (
            "slowlog-log-slower-than",
            options
                .slowlog_log_slower_than
                .map_or("-1".to_owned(), |slow| slow.as_micros().to_string()),
        ),
        (
            "script-memory-limit",
            options.script_memory_limit.to_string(),
        ),
        ("slowlog-max-len", options.slowlog_max_len.to_string()),
        ("tcp-keepalive", options.tcp_keepalive.as_secs().to_string()),
        ("tls-auth-clients", {
            let clients = format!("{:?}", options.tls_auth_clients);
            clients.to_lowercase()
        }),
        ("tls-ca-cert-file", shown(&options.tls_ca_cert_file)),
        ("tls-cert-file", shown(&options.tls_cert_file)),
        ("tls-key-file", shown(&options.tls_key_file)),
        ("tls-port", {
            let first = options.tls_bind.first();
            first.map_or(0, |address| address.port()).to_string()
        }),
        ("timeout", options.timeout.as_secs().to_string()),
        (
            "tracking-table-max-keys",
            options.tracking_table_max_keys.to_string(),
        ),
        ("unixsocket", shown(&options.unixsocket)),
        ("unixsocketperm", {
            // 0 for the permissions of any new file, as in Redis.
            format!("{:o}", options.unixsocketperm.unwrap_or(0))
        }),
    ]
}

/// Changes one parameter.
fn set_parameter(options: &mut ServerOptions, name: &str, value: &str) -> Result<(), String> {
    let number = || {
        let number: Result<usize, _> = value.parse();
        number.map_err(|_| "argument couldn't be parsed into an integer".to_owned())
    };
    match name {
        "maxclients" => options.maxclients = number()?.max(1),
        "timeout" => options.timeout = Duration::from_secs(number()? as u64),
        "tracking-table-max-keys" => options.tracking_table_max_keys = number()?,
        "tcp-keepalive" => options.tcp_keepalive = Duration::from_secs(number()? as u64),
        "proto-max-bulk-len" => {
            options.proto_max_bulk_len = number()?.clamp(1 << 20, braid::MAX_VALUE_LEN);
        }
        "client-query-buffer-limit" => options.client_query_buffer_limit = number()?.max(1 << 20),
        "slowlog-log-slower-than" => {
            let micros: Result<i64, _> = value.parse();
            let micros =
                micros.map_err(|_| "argument couldn't be parsed into an integer".to_owned())?;
            options.slowlog_log_slower_than = slow_after(micros);
        }
        "lua-time-limit" => {
            options.lua_time_limit = Duration::from_millis(number()?.max(1) as u64);
        }
        "script-memory-limit" => options.script_memory_limit = number()?.max(1 << 20),
        "backup-full-every" => options.backup_full_every = number()?.max(1),
        "slowlog-max-len" => options.slowlog_max_len = number()?,
        "latency-monitor-threshold" => {
            options.latency_monitor_threshold = Duration::from_millis(number()? as u64);
        }
        "notify-keyspace-events" => {
            options.notifications = notification_classes(value).ok_or(NOTIFICATION_CLASSES)?;
        }
        "requirepass" => options.requirepass = (!value.is_empty()).then(|| value.to_owned()),
        // What every write gets anyway, or what a server without eviction does.
        "appendfsync" if value == "always" => {}
        "appendonly" if value == "yes" => {}
        "maxmemory" if value == "0" => {}
        "maxmemory-policy" if value == "noeviction" => {}
        "save" => {}
        _ => return Err("can't set immutable config, or the value is not supported".to_owned()),
    }
    Ok(())
}

pub(super) fn config(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let text = |arg: &Bytes| String::from_utf8_lossy(arg).to_lowercase();
    if is(&args[1], "GET") && args.len() >= 3 {
        let patterns: Vec<String> = args[2..].iter().map(text).collect();
        let found = parameters(&shared.options())
            .into_iter()
            .filter(|(name, _)| {
                patterns
                    .iter()
                    .any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
            })
            .map(|(name, value)| (Reply::copied(name), Reply::copied(value)));
        return Ok(Reply::Map(found.collect()));
    }
    if is(&args[1], "SET") && args.len() >= 4 && args.len().is_multiple_of(2) {
        // All or nothing.
        let mut changed = ServerOptions::clone(&shared.options());
        for pair in args[2..].chunks_exact(2) {
            let name = text(&pair[0]);
            if !parameters(&changed).iter().any(|(known, _)| *known == name) {
                return Err(Failure::client(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                )));
            }
            let value = String::from_utf8_lossy(&pair[1]).into_owned();
            set_parameter(&mut changed, &name, &value).map_err(|reason| {
                Failure::client(format!(
                    "ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"
                ))
            })?;
        }
        let changes_password = args[2..]
            .chunks_exact(2)
            .any(|pair| is(&pair[0], "requirepass"));
        if changes_password {
            shared
                .acl
                .set_default_password(changed.requirepass.as_deref());
        }
        shared.set_options(changed);
        return Ok(Reply::OK);
    }
    if is(&args[1], "RESETSTAT") && args.len() == 2 {
        let counters = &shared.counters;
        for counter in [&counters.connections, &counters.rejected, &counters.expired] {
            counter.store(0, Ordering::Relaxed);
        }
        shared.activities.reset();
        shared.statistics.reset();
        shared.errors.reset();
        return Ok(Reply::OK);
    }
    if is(&args[1], "REWRITE") && args.len() == 2 {
        return Err(Failure::client(
            "ERR The server is running without a config file",
        ));
    }
    if is(&args[1], "HELP") && args.len() == 2 {
        return Ok(help(&[
            "CONFIG <subcommand> [<arg> ...]. Subcommands are:",
            "GET <pattern> ..., RESETSTAT, REWRITE, SET <parameter> <value> ..., HELP",
        ]));
    }
    Err(unknown_subcommand("config", &args[1]))
}

/// The parts of DEBUG that test suites of clients use.
pub(super) fn debug(_: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    if is(&args[1], "SLEEP") && args.len() == 3 {
        let seconds = super::arguments::float(&args[2])?;
        let duration = Duration::try_from_secs_f64(seconds).map_err(|_| Failure::NOT_A_FLOAT)?;
        std::thread::sleep(duration.min(Duration::from_secs(60)));
        return Ok(Reply::OK);
    }
    // Lets a client test what it does with an error.
    if is(&args[1], "ERROR") && args.len() == 3 {
        let text = String::from_utf8_lossy(&args[2]).into_owned();
        return Ok(Reply::error(text.trim_start_matches('-').to_owned()));
    }
    if [
        "SET-ACTIVE-EXPIRE",
        "JMAP",
        "RELOAD",
        "QUICKLIST-PACKED-THRESHOLD",
        "LISTPACK",
    ]
    .iter()
    .any(|known| is(&args[1], known))
    {
        return Ok(Reply::OK);
    }
    if is(&args[1], "HELP") && args.len() == 2 {
        return Ok(help(&[
            "DEBUG <subcommand> [<arg> ...]. Subcommands are:",
            "ERROR <text>, SLEEP <seconds>, HELP; others of Redis' do nothing",
        ]));
    }
    Err(unknown_subcommand("debug", &args[1]))
}
