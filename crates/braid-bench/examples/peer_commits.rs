//! Makes waited commits on one engine, for scripts/peer-syncs.sh to trace:
//! `peer_commits ENGINE DIRECTORY COMMITS`.
//!
//! `braid-file` is Braid with plain system calls, which a trace shows, instead of io_uring.

use std::ops::Range;
use std::path::Path;

use braid::Database;
use braid::device::DeviceChoice;
use braid_bench::engines::{BraidEngine, KvEngine, Mode, Session, Wait, open, peers};

const TABLES: [&str; 1] = ["records"];
const CACHE: usize = 64 << 20;
const RECORDS: u64 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [name, dir, commits] = &args[..] else {
        // Without arguments, list the engines, with their versions where known.
        for peer in peers() {
            match &peer.version {
                Ok(version) => println!("{}\t{version}", peer.name),
                Err(note) => eprintln!("{}: {note}", peer.name),
            }
        }
        return Ok(());
    };
    let dir = Path::new(dir);
    let engine: Box<dyn KvEngine> = if name == "braid-file" {
        let db = Database::builder()
            .device(DeviceChoice::File)
            .pool_bytes(CACHE)
            .create_if_missing(true)
            .open(dir)?;
        Box::new(BraidEngine::new(db, &TABLES)?)
    } else {
        open(name, dir, &TABLES, CACHE)?
    };
    let mut session = engine.session()?;
    // Create and grow the files before the traced part begins.
    commit(&mut *session, 0..RECORDS)?;
    let commits: u64 = commits.parse()?;
    // The trace finds these two lines by their time.
    eprintln!("peer_commits: begin");
    commit(&mut *session, RECORDS..RECORDS + commits)?;
    eprintln!("peer_commits: end");
    Ok(())
}

/// Runs transactions of one record of 100 bytes, one after the other, each durable before the next
/// begins. No value is written twice: SQLite writes nothing if a row stays unchanged.
fn commit(
    session: &mut dyn Session,
    numbers: Range<u64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut value = [7; 100];
    for i in numbers {
        value[..8].copy_from_slice(&i.to_le_bytes());
        let key = format!("record{:010}", i.wrapping_mul(0x9E37_79B9) % RECORDS);
        session.transact(Mode::ReadWrite, Wait::Durable, &mut |tx| {
            tx.put(0, key.as_bytes(), &value)
        })?;
    }
    Ok(())
}
