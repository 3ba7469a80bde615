//! MEMORY.

use bytes::Bytes;

use super::arguments::{Options, help, integer, unknown_subcommand};
use super::keys::DATABASES;
use crate::failure::{Failure, Result};
use crate::keyspace::{Body, Data};
use crate::resp::Reply;

/// Elements that stand for all, unless the client says how many.
const SAMPLES: usize = 5;

pub(super) fn memory(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let subcommand = args[1].to_ascii_lowercase();
    match (&subcommand[..], args.len()) {
        (b"usage", 3..) => usage(data, args),
        (b"stats", 2) => stats(data),
        (b"doctor", 2) => Ok(Reply::text(
            "Pages lie in a pool of a fixed size, and nothing is evicted: the option `pool` sets the size.\n"
                .to_owned(),
        )),
        // Pages that are not needed are reused by the pool itself.
        (b"purge", 2) => Ok(Reply::OK),
        (b"malloc-stats", 2) => Ok(Reply::copied("Stats not supported for the current allocator")),
        (b"help", 2) => Ok(help(&[
            "MEMORY <subcommand> [<arg> ...]. Subcommands are:",
            "DOCTOR, MALLOC-STATS, PURGE, STATS, USAGE <key> [SAMPLES <count>], HELP",
        ])),
        _ => Err(unknown_subcommand("memory", &args[1])),
    }
}

/// Returns about how many bytes a key takes in the tables. Elements of a collection are estimated
/// from some of them.
fn usage(data: &mut Data, args: &[Bytes]) -> Result<Reply> {
    let key = &args[2];
    let mut samples = SAMPLES;
    let mut options = Options::new(&args[3..]);
    if options.take("SAMPLES") {
        let count = usize::try_from(integer(options.value()?)?).map_err(|_| Failure::SYNTAX)?;
        // Zero stands for all.
        samples = if count == 0 { usize::MAX } else { count };
    }
    options.end()?;
    let Some(entry) = data.entry(key)? else {
        return Ok(Reply::Null);
    };
    let mut bytes = (entry.encode().len() + key.len() + 16) as u64;
    if let Body::Collection(collection) = &entry.body {
        let table = data.elements();
        let prefix = collection.id.to_be_bytes();
        let (mut seen, mut sum) = (0, 0);
        for element in data.view.prefix(&table, &prefix)?.take(samples) {
            let (at, value) = element?;
            seen += 1;
            sum += (at.len() + value.len()) as u64;
        }
        bytes += if seen < samples as u64 {
            sum
        } else {
            sum * collection.len.max(seen) / seen.max(1)
        };
    }
    Ok(Reply::Integer(bytes as i64))
}

fn stats(data: &mut Data) -> Result<Reply> {
    let stats = data.keyspace.db.stats();
    let resident = stats.store.resident_pages * stats.store.page_size;
    let selected = data.database;
    let mut keys = 0;
    for database in 0..DATABASES {
        data.select(database)?;
        keys += data.len()?;
    }
    data.select(selected)?;
    let fields = [
        ("peak.allocated", resident),
        ("total.allocated", resident + stats.old_version_bytes),
        ("pool.pages", stats.store.resident_pages),
        ("pool.page-size", stats.store.page_size),
        ("versions.bytes", stats.old_version_bytes),
        ("keys.count", keys as usize),
    ];
    Ok(Reply::Map(
        fields
            .into_iter()
            .map(|(name, value)| (Reply::copied(name), Reply::Integer(value as i64)))
            .collect(),
    ))
}
