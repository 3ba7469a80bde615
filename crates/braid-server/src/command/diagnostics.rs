//! SLOWLOG, LATENCY and MONITOR.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;

use super::arguments::{help, is, unknown_subcommand};
use super::table::{commands, find};
use crate::failure::{Failure, Result};
use crate::observe::History;
use crate::resp::Reply;
use crate::resp::number::parse_i64;
use crate::session::Session;
use crate::shared::Shared;

pub(super) fn slowlog(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    match (&subcommand[..], args.len()) {
        (b"len", 2) => Ok(Reply::Integer(shared.slow_log.len() as i64)),
        (b"reset", 2) => {
            shared.slow_log.clear();
            Ok(Reply::OK)
        }
        (b"get", 2 | 3) => {
            let wanted = args.get(2).map_or(Some(10), |count| parse_i64(count));
            let count = wanted.filter(|count| *count >= -1).ok_or_else(|| {
                Failure::client("ERR count should be greater than or equal to -1")
            })?;
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let entries = shared.slow_log.newest(count).into_iter().map(|entry| {
                Reply::Array(vec![
                    Reply::Integer(entry.id as i64),
                    Reply::Integer(entry.time as i64),
                    Reply::Integer(entry.duration.as_micros() as i64),
                    Reply::bulks(entry.args),
                    Reply::copied(entry.peer),
                    Reply::Bulk(entry.name),
                ])
            });
            Ok(Reply::Array(entries.collect()))
        }
        (b"help", 2) => Ok(help(&[
            "SLOWLOG <subcommand> [<arg> ...]. Subcommands are:",
            "GET [<count>], LEN, RESET, HELP",
        ])),
        _ => Err(unknown_subcommand("slowlog", &args[1])),
    }
}

pub(super) fn latency(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    match (&subcommand[..], args.len()) {
        (b"latest", 2) => {
            let latest = shared.spikes.all().into_iter().map(|(name, history)| {
                let (time, last) = history.samples.back().copied().unwrap_or_default();
                Reply::Array(vec![
                    Reply::copied(name),
                    Reply::Integer(time as i64),
                    Reply::Integer(last as i64),
                    Reply::Integer(history.longest as i64),
                ])
            });
            Ok(Reply::Array(latest.collect()))
        }
        (b"history", 3) => {
            let events = shared.spikes.all();
            let found = events.into_iter().find(|(name, _)| is(&args[2], name));
            let samples = found
                .map(|(_, history)| history.samples)
                .unwrap_or_default();
            let samples = samples.into_iter().map(|(time, millis)| {
                Reply::Array(vec![
                    Reply::Integer(time as i64),
                    Reply::Integer(millis as i64),
                ])
            });
            Ok(Reply::Array(samples.collect()))
        }
        (b"graph", 3) => {
            let events = shared.spikes.all();
            let found = events.into_iter().find(|(name, _)| is(&args[2], name));
            let (name, history) = found.ok_or_else(|| {
                let shown = String::from_utf8_lossy(&args[2]).into_owned();
                Failure::client(format!("ERR No samples available for event '{shown}'"))
            })?;
            let now = braid_rt::wall_clock();
            Ok(Reply::text(history.graph(name, now.as_secs())))
        }
        (b"reset", _) => {
            let names = &args[2..];
            let is_meant = |name: &str| names.is_empty() || names.iter().any(|arg| is(arg, name));
            Ok(Reply::Integer(shared.spikes.reset(is_meant) as i64))
        }
        (b"doctor", 2) => Ok(Reply::text(diagnose(
            &shared.spikes.all(),
            shared.options().latency_monitor_threshold,
        ))),
        (b"histogram", _) => Ok(histogram(shared, &args[2..])),
        (b"help", 2) => Ok(help(&[
            "LATENCY <subcommand> [<arg> ...]. Subcommands are:",
            "DOCTOR, GRAPH <event>, HISTOGRAM [<command> ...], HISTORY <event>, LATEST, RESET [<event> ...], HELP",
        ])),
        _ => Err(unknown_subcommand("latency", &args[1])),
    }
}

/// Returns the durations of commands: how many took up to each bound in microseconds.
fn histogram(shared: &Shared, names: &[Bytes]) -> Reply {
    let mut found = Vec::new();
    for command in commands() {
        let is_meant =
            |name: &Bytes| find(name).is_some_and(|meant| meant.number == command.number);
        if !names.is_empty() && !names.iter().any(is_meant) {
            continue;
        }
        let figures = shared.statistics.of(command.number);
        let Some(figures) = figures.filter(|figures| figures.calls > 0) else {
            continue;
        };
        let mut sum = 0;
        let mut bounds = Vec::new();
        for (class, count) in figures.classes.iter().enumerate() {
            sum += count;
            if *count > 0 {
                bounds.push((Reply::Integer(1 << class), Reply::Integer(sum as i64)));
            }
        }
        let fields = vec![
            (Reply::copied("calls"), Reply::Integer(figures.calls as i64)),
            (Reply::copied("histogram_usec"), Reply::Map(bounds)),
        ];
        found.push((Reply::copied(command.name), Reply::Map(fields)));
    }
    Reply::Map(found)
}

/// Says what each event is, and what can be done about it.
fn diagnose(events: &[(&'static str, History)], threshold: Duration) -> String {
    if threshold.is_zero() {
        return "Nothing is recorded: CONFIG SET latency-monitor-threshold MILLISECONDS begins that.\n"
            .to_owned();
    }
    if events.is_empty() {
        return format!("Nothing took {} ms or longer.\n", threshold.as_millis());
    }
    let mut text = String::new();
    for (name, history) in events {
        let count = history.samples.len();
        let sum: u64 = history.samples.iter().map(|(_, millis)| millis).sum();
        let advice = match *name {
            "commit" => "Writes waited for the device: look for other programs that write to it.",
            "expire-cycle" => "Many keys expired at once. Spread their times.",
            _ => {
                "Commands ran long. SLOWLOG GET shows them; SCAN and ranges with limits take less at a time."
            }
        };
        let _ = writeln!(
            text,
            "{name}: {count} seconds with spikes, {} ms on average, {} ms at most. {advice}",
            sum / count.max(1) as u64,
            history.longest,
        );
    }
    text
}

pub(super) fn monitor(shared: &Shared, session: &mut Session, _: &[Bytes]) -> Result<Reply> {
    session.is_monitor = true;
    shared.monitors.add(session.id, &session.mailbox);
    Ok(Reply::OK)
}
