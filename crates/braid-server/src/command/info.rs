//! INFO.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::arguments::is;
use super::keys::DATABASES;
use super::server::REDIS_VERSION;
use super::table::commands;
use crate::channels::Topic;
use crate::failure::Result;
use crate::observe::process;
use crate::resp::Reply;
use crate::session::Session;
use crate::shared::Shared;

/// A section of INFO.
type Section = (&'static str, fn(&Shared, &mut String) -> Result<()>);

const SECTIONS: [Section; 11] = [
    ("server", server_section),
    ("clients", clients_section),
    ("memory", memory_section),
    ("persistence", persistence_section),
    ("stats", stats_section),
    ("replication", replication_section),
    ("cpu", cpu_section),
    ("commandstats", commandstats_section),
    ("errorstats", errorstats_section),
    ("cluster", cluster_section),
    ("keyspace", keyspace_section),
];

fn server_section(shared: &Shared, out: &mut String) -> Result<()> {
    let uptime = shared.started.elapsed().as_secs();
    let port = shared
        .options()
        .bind
        .first()
        .map_or(0, |address| address.port());
    let _ = write!(
        out,
        "redis_version:{REDIS_VERSION}\r\nbraid_version:{}\r\nredis_mode:standalone\r\nos:{} {}\r\narch_bits:{}\r\nprocess_id:{}\r\nrun_id:{}\r\ntcp_port:{port}\r\nuptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        usize::BITS,
        std::process::id(),
        shared.run_id,
        uptime / 86_400,
    );
    Ok(())
}

fn clients_section(shared: &Shared, out: &mut String) -> Result<()> {
    let _ = write!(
        out,
        "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:{}\r\ntracking_clients:{}\r\n",
        shared.clients().len(),
        shared.options().maxclients,
        shared.waiters.len(),
        shared.tracking.figures().clients,
    );
    Ok(())
}

/// Returns a number of bytes as people read it.
fn human(bytes: u64) -> String {
    let mut shown = bytes as f64;
    for unit in ["B", "K", "M", "G", "T"] {
        if shown < 1024.0 {
            return if unit == "B" {
                format!("{bytes}B")
            } else {
                format!("{shown:.2}{unit}")
            };
        }
        shown /= 1024.0;
    }
    format!("{shown:.2}P")
}

fn memory_section(shared: &Shared, out: &mut String) -> Result<()> {
    let stats = shared.keyspace.db.stats();
    let pages = stats.store.resident_pages as u64 * stats.store.page_size as u64;
    let mut sized = |name: &str, bytes: u64| {
        let _ = write!(out, "{name}:{bytes}\r\n{name}_human:{}\r\n", human(bytes));
    };
    // The pages of the pool, which hold the data.
    sized("used_memory", pages);
    sized("used_memory_peak", pages);
    if let Some(resident) = process::resident_memory() {
        sized("used_memory_rss", resident);
    }
    if let Some(total) = process::total_memory() {
        sized("total_system_memory", total);
    }
    sized("maxmemory", 0);
    let _ = write!(
        out,
        "maxmemory_policy:noeviction\r\nversion_bytes:{}\r\n",
        stats.old_version_bytes
    );
    #[cfg(feature = "scripts")]
    {
        let (count, bytes) = shared.scripts.size();
        let libraries = shared.scripts.libraries();
        let functions: usize = libraries
            .values()
            .map(|library| library.functions.len())
            .sum();
        let _ = write!(
            out,
            "number_of_cached_scripts:{count}\r\nused_memory_scripts:{bytes}\r\nnumber_of_libraries:{}\r\nnumber_of_functions:{functions}\r\n",
            libraries.len(),
        );
    }
    Ok(())
}

fn persistence_section(shared: &Shared, out: &mut String) -> Result<()> {
    let db = &shared.keyspace.db;
    let health = db.health();
    let is_good = matches!(health, braid::Health::Good);
    let report = shared.backups.report();
    let last = report.last.duration_since(UNIX_EPOCH);
    let _ = write!(
        out,
        "loading:0\r\nasync_loading:0\r\naof_enabled:1\r\naof_rewrite_in_progress:0\r\naof_last_write_status:{}\r\nrdb_bgsave_in_progress:{}\r\nrdb_last_save_time:{}\r\nrdb_last_bgsave_status:{}\r\nrdb_last_bgsave_time_sec:{}\r\nhealth:{health:?}\r\ndurable_seqno:{}\r\n",
        if is_good { "ok" } else { "err" },
        u8::from(report.is_running),
        last.unwrap_or_default().as_secs(),
        if report.failure.is_none() {
            "ok"
        } else {
            "err"
        },
        report.took.map_or(-1, |took| took.as_secs() as i64),
        db.durable_seqno(),
    );
    Ok(())
}

fn stats_section(shared: &Shared, out: &mut String) -> Result<()> {
    let (counters, activities) = (&shared.counters, &shared.activities);
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let tracking = shared.tracking.figures();
    let channels = |topic| shared.channels.names(topic, None).len();
    let _ = write!(
        out,
        "total_connections_received:{}\r\ntotal_commands_processed:{}\r\ninstantaneous_ops_per_sec:{}\r\ntotal_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\nrejected_connections:{}\r\nexpired_keys:{}\r\nevicted_keys:0\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n\
         pubsub_channels:{}\r\npubsub_patterns:{}\r\npubsubshard_channels:{}\r\ntotal_error_replies:{}\r\n\
         tracking_total_keys:{}\r\ntracking_total_items:{}\r\ntracking_total_prefixes:{}\r\ntracking_evicted_keys:{}\r\n",
        count(&counters.connections),
        activities.sum(|activity| &activity.commands),
        activities.commands_per_second(),
        activities.sum(|activity| &activity.received),
        activities.sum(|activity| &activity.sent),
        count(&counters.rejected),
        count(&counters.expired),
        activities.sum(|activity| &activity.hits),
        activities.sum(|activity| &activity.misses),
        channels(Topic::Channel),
        channels(Topic::Pattern),
        channels(Topic::Shard),
        shared.errors.total(),
        tracking.keys,
        tracking.items,
        tracking.prefixes,
        tracking.evicted,
    );
    Ok(())
}

fn replication_section(shared: &Shared, out: &mut String) -> Result<()> {
    let _ = write!(
        out,
        "role:master\r\nconnected_slaves:0\r\nmaster_failover_state:no-failover\r\nmaster_replid:{}\r\nmaster_repl_offset:0\r\nrepl_backlog_active:0\r\n",
        shared.run_id,
    );
    Ok(())
}

fn cpu_section(_: &Shared, out: &mut String) -> Result<()> {
    if let Some((user, system)) = process::processor_seconds() {
        let _ = write!(
            out,
            "used_cpu_sys:{system:.6}\r\nused_cpu_user:{user:.6}\r\n"
        );
    }
    Ok(())
}

fn cluster_section(_: &Shared, out: &mut String) -> Result<()> {
    out.push_str("cluster_enabled:0\r\n");
    Ok(())
}

fn keyspace_section(shared: &Shared, out: &mut String) -> Result<()> {
    let mut data = shared.keyspace.durable(0)?;
    for database in 0..DATABASES {
        data.select(database)?;
        let len = data.len()?;
        if len > 0 {
            let _ = write!(out, "db{database}:keys={len},expires=0,avg_ttl=0\r\n");
        }
    }
    Ok(())
}

/// How often each command ran, and how long it took.
fn commandstats_section(shared: &Shared, out: &mut String) -> Result<()> {
    for command in commands() {
        if let Some(figures) = shared.statistics.of(command.number) {
            let micros = figures.nanoseconds as f64 / 1e3;
            let _ = write!(
                out,
                "cmdstat_{}:calls={},usec={micros:.0},usec_per_call={:.2},rejected_calls={},failed_calls={}\r\n",
                command.name,
                figures.calls,
                micros / figures.calls.max(1) as f64,
                figures.rejected,
                figures.failed,
            );
        }
    }
    Ok(())
}

/// How often each kind of error was a reply.
fn errorstats_section(shared: &Shared, out: &mut String) -> Result<()> {
    for (name, count) in shared.errors.all() {
        let _ = write!(out, "errorstat_{name}:count={count}\r\n");
    }
    Ok(())
}

pub(super) fn info(shared: &Shared, _: &mut Session, args: &[Bytes]) -> Result<Reply> {
    let wanted = |name: &str| {
        let is_default = name != "commandstats";
        (args.len() == 1 && is_default)
            || args[1..].iter().any(|arg| {
                is(arg, name)
                    || (is(arg, "default") && is_default)
                    || is(arg, "all")
                    || is(arg, "everything")
            })
    };
    let mut out = String::new();
    for (name, section) in SECTIONS {
        if wanted(name) {
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            let mut title = name.to_owned();
            title[..1].make_ascii_uppercase();
            let _ = write!(out, "# {title}\r\n");
            section(shared, &mut out)?;
        }
    }
    Ok(Reply::text(out))
}
