//! `braid stat`: shows the contents and counters of a database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid::device::DeviceChoice;
use braid::stats::{NodePlacement, StoreStats, TablespacePlacement, TablespaceStats};
use braid::{Database, Error, Health};

use super::watch::watch;
use crate::failure::Failure;
use crate::numbers::{grouped, mib, parse_seconds};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct StatArgs {
    /// Directory of the database; other processes may have it open
    dir: PathBuf,
    /// Print every counter in the text format of Prometheus
    #[arg(long, conflicts_with = "watch")]
    prometheus: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with_all = ["watch", "prometheus"])]
    json: bool,
    /// Read all pages of every table, instead of estimating large tables ("about") from 64 of their
    /// pages
    #[arg(long, conflicts_with_all = ["watch", "prometheus"])]
    exact: bool,
    /// Monitor a database that another process has open with `Builder::stats_file(true)`, every
    /// SECONDS [default: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = parse_seconds)]
    watch: Option<Duration>,
    /// Stop after this many updates
    #[arg(long, value_name = "TIMES", requires = "watch")]
    count: Option<u64>,
}

pub(crate) fn run(args: &StatArgs, output: &mut Output) -> Result<(), Failure> {
    if let Some(interval) = args.watch {
        return watch(&args.dir, interval, args.count, output);
    }
    // Opened read-only: read permission suffices.
    let db = Database::open_read_only(&args.dir)?;
    if args.json {
        output.line(json(&db, &args.dir, args.exact)?)?;
        db.close()?;
        return Ok(());
    }
    if args.prometheus {
        let text = db.stats().to_prometheus();
        output.line(text.trim_end())?;
        db.close()?;
        return Ok(());
    }
    let rows = rows(&db, args.exact)?;
    output.line(format_args!("{:<14}{}", "database", args.dir.display()))?;
    for (name, value) in rows {
        output.line(format_args!("{name:<14}{value}"))?;
    }
    db.close()?;
    Ok(())
}

/// Entries of a table and the use of its pages; estimates unless `exact`.
#[derive(serde::Serialize)]
struct TableRow {
    name: String,
    /// The tablespace, if it is not the main one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tablespace: Option<String>,
    key_type: String,
    value_type: String,
    entries: u64,
    bytes: u64,
    height: u32,
    leaf_pages: u64,
    fill: f64,
    exact: bool,
}

impl TableRow {
    fn line(&self) -> String {
        let place = self.tablespace.as_ref();
        format!(
            "{}{}: {} -> {}, {}{} entries, {}, height {}, {} leaf page{} {:.0} % full",
            self.name,
            place.map_or_else(String::new, |place| format!(" in {place}")),
            self.key_type,
            self.value_type,
            if self.exact { "" } else { "about " },
            grouped(self.entries),
            mib(self.bytes),
            self.height,
            grouped(self.leaf_pages),
            if self.leaf_pages == 1 { "" } else { "s" },
            100.0 * self.fill
        )
    }
}

/// A table whose tablespace cannot be opened.
#[derive(serde::Serialize)]
struct ClosedTable {
    name: String,
    /// The reason.
    error: String,
}

/// Returns the tables, and those whose tablespace is missing.
fn tables(db: &Database, exact: bool) -> Result<(Vec<TableRow>, Vec<ClosedTable>), Failure> {
    let (mut rows, mut closed) = (Vec::new(), Vec::new());
    for name in db.table_names()? {
        let table = match db.untyped_table(&name) {
            Ok(Some(table)) => table,
            // It was dropped meanwhile.
            Ok(None) => continue,
            Err(Error::Tablespace(error)) => {
                let error = error.to_string();
                closed.push(ClosedTable { name, error });
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let (key_type, value_type) = table.type_names();
        let (key_type, value_type) = (key_type.to_owned(), value_type.to_owned());
        let stats = db.table_stats(&table, exact)?;
        rows.push(TableRow {
            tablespace: db.tablespace_of(&table)?,
            name,
            key_type,
            value_type,
            entries: stats.entries,
            bytes: stats.bytes,
            height: stats.height,
            leaf_pages: stats.leaf_pages,
            fill: stats.fill,
            exact: stats.exact,
        });
    }
    Ok((rows, closed))
}

fn json(db: &Database, dir: &Path, exact: bool) -> Result<serde_json::Value, Failure> {
    let (recovery, stats) = (db.recovery(), db.stats());
    let (log, store) = (&stats.log, &stats.store);
    let log_directory = db.log_directory();
    let (tables, closed) = tables(db, exact)?;
    Ok(serde_json::json!({
        "database": dir.display().to_string(),
        "log_directory": log_directory.map(|(directory, _)| directory.display().to_string()),
        "log_device": log_directory.map(|(_, device)| device.to_string()),
        "protocol": stats.protocol.to_string(),
        "tables": tables,
        "tables_without_tablespace": closed,
        "data_file_bytes": store.file_bytes,
        "data_file_free_bytes": store.file_free_bytes,
        "pages": store.pages,
        "page_bytes": store.page_size,
        "checkpoint": store.checkpoint_sequence,
        "log_segments": log.segments,
        "log_used_bytes": log.used_bytes,
        "tablespaces": stats.tablespaces.iter().map(|space| serde_json::json!({
            "name": space.name,
            "directory": space.directory.as_ref().map(|directory| directory.display().to_string()),
            "data_file_bytes": space.store.file_bytes,
            "data_file_free_bytes": space.store.file_free_bytes,
            "pages": space.store.pages,
            "own_log": space.own_log,
            "log_directory": space.log_directory.as_ref().map(|directory| directory.display().to_string()),
            "log_bytes": space.log_bytes,
            "memory_node": space.memory_node,
            "is_on_node": space.is_on_node,
            "remote_access": space.remote_access.to_string(),
            "agent_requests": space.agent_requests,
            "agent_refusals": space.agent_refusals,
            "failing": space.failing,
            "log_kept_bytes": space.log_kept_bytes,
        })).collect::<Vec<_>>(),
        "durable_up_to": stats.durable_seqno,
        "recovered_transactions": recovery.transactions,
        "recovered_log_bytes": recovery.log_bytes,
        "memory_nodes": db.placement().iter().map(|node| serde_json::json!({
            "node": node.node,
            "strand_bytes": node.strand_bytes,
            "pool_bytes": node.pool_bytes,
            "lock_bytes": node.lock_bytes,
            "tablespaces": node.tablespaces.iter().map(|part| serde_json::json!({
                "name": part.name,
                "pool_bytes": part.pool_bytes,
                "strand_bytes": part.strand_bytes,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    }))
}

/// The name of a device, and for mapped files what kind of memory they are.
fn described(device: DeviceChoice) -> String {
    let kind = match device {
        DeviceChoice::Pmem => ": persistent memory with direct access",
        DeviceChoice::PmemFile => ": mapped files; a flush is a system call, slower than file",
        DeviceChoice::PmemEmulated { .. } => ": ordinary memory, which a loss of power erases",
        _ => "",
    };
    format!("{device}{kind}")
}

fn file_of(store: &StoreStats) -> String {
    let (bytes, free) = (mib(store.file_bytes), mib(store.file_free_bytes));
    format!("{bytes}, {free} of it free")
}

fn pages_of(store: &StoreStats) -> String {
    format!(
        "{} of {} bytes; {} of at most {} in memory",
        grouped(store.pages),
        grouped(store.page_size as u64),
        grouped(store.resident_pages as u64),
        grouped(store.pool_pages as u64)
    )
}

/// Where a tablespace is, and what its files have.
fn tablespace_line(space: &TablespaceStats) -> String {
    let directory = space.directory.as_ref();
    let place = directory.map_or_else(String::new, |path| format!(" in {}", path.display()));
    let (file, pages) = (file_of(&space.store), pages_of(&space.store));
    let log = match &space.log_directory {
        Some(directory) => format!("; own log in {}", directory.display()),
        None if space.own_log => "; own log".to_owned(),
        None => String::new(),
    };
    let node = match space.memory_node {
        Some(node) if space.is_on_node => format!("; on memory node {node}"),
        Some(node) => {
            format!("; on memory node {node}, which this machine lacks: placed as without a node")
        }
        None => String::new(),
    };
    let kept = if space.failing {
        let kept = mib(space.log_kept_bytes);
        format!("; its data file cannot be written, and {kept} of log are kept for it")
    } else {
        String::new()
    };
    format!(
        "{}{place}: {file}; pages: {pages}{log}{node}{kept}",
        space.name
    )
}

/// What lies on a memory node.
fn node_line(node: &NodePlacement) -> String {
    let parts = format!(
        "{} of log buffers, {} of the buffer pool, {} of locks",
        mib(node.strand_bytes),
        mib(node.pool_bytes),
        mib(node.lock_bytes)
    );
    let of_tablespace = |part: &TablespacePlacement| {
        let (pool, log) = (mib(part.pool_bytes), mib(part.strand_bytes));
        format!(
            "; of {}: {pool} of its pool, {log} of its log's buffers",
            part.name
        )
    };
    let here = node.tablespaces.iter();
    let here = here.filter(|part| part.pool_bytes + part.strand_bytes > 0);
    let tablespaces: String = here.map(of_tablespace).collect();
    format!("{}: {parts}{tablespaces}", node.node)
}

pub(crate) fn rows(db: &Database, exact: bool) -> Result<Vec<(&'static str, String)>, Failure> {
    let (recovery, stats) = (db.recovery(), db.stats());
    let (log, store) = (&stats.log, &stats.store);
    let health = match db.health() {
        Health::Good => "good".to_owned(),
        Health::CheckpointFailing { error } => format!("cannot write checkpoints: {error}"),
        Health::OutOfSpace { what } => format!("out of space: {what}"),
        Health::ArchiveFailing { error } => format!("cannot write the archive: {error}"),
        Health::Poisoned { cause } => format!("read-only after a failure: {cause}"),
        Health::Damaged { what } => format!("damaged, opened read-only: {what}"),
        other => format!("{other:?}"),
    };
    let (tables, closed) = tables(db, exact)?;
    let count = (tables.len() + closed.len()) as u64;
    let mut rows = vec![("health", health), ("tables", grouped(count))];
    rows.extend(tables.iter().map(|table| ("", table.line())));
    let closed = closed.iter();
    rows.extend(closed.map(|table| ("", format!("{}: {}", table.name, table.error))));
    if let Some((directory, device)) = db.log_directory() {
        rows.push(("log directory", directory.display().to_string()));
        rows.push(("log device", described(device)));
    }
    rows.push(("data file", file_of(store)));
    rows.push(("pages", pages_of(store)));
    let spaces = stats.tablespaces.iter();
    rows.extend(spaces.map(|space| ("tablespace", tablespace_line(space))));
    rows.extend([
        (
            "checkpoint",
            format!("number {}", grouped(store.checkpoint_sequence)),
        ),
        (
            "log",
            format!(
                "{} in {} segments, {} of them ready for use",
                mib(log.used_bytes),
                grouped(log.segments),
                grouped(log.segments_ready)
            ),
        ),
        (
            "durable up to",
            format!("sequence number {}", grouped(stats.durable_seqno)),
        ),
        (
            "recovery",
            format!(
                "{} transactions from {} of log in {:.3} s; {} unacknowledged ones discarded",
                grouped(recovery.transactions),
                mib(recovery.log_bytes),
                recovery.duration.as_secs_f64(),
                grouped(recovery.discarded)
            ),
        ),
    ]);
    let placement = db.placement();
    if placement.len() > 1 {
        rows.extend(
            placement
                .iter()
                .map(|node| ("memory node", node_line(node))),
        );
    }
    Ok(rows)
}
