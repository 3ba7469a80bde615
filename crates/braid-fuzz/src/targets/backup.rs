//! Damaged backups and archives, and restores from them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use braid::backup::Restore;
use braid::{Builder, Database, Error, Readable, Table};
use braid_io::{Device, MemoryDevice, OpenMode};

use super::Target;
use crate::edit::{Image, Input};

type State = BTreeMap<u64, u64>;

/// Name of the backup's file, next to the files of the archive.
const FILE: &str = "backup";

struct Base {
    image: Image,
    states: Vec<State>,
}

pub(super) const BACKUP: Target = Target {
    name: "backup",
    run,
    corpus: super::scripts,
    runs: 300,
};

fn options() -> Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(256 << 10)
        .strands(2)
}

fn make() -> Result<Base, Error> {
    let archive = Arc::new(MemoryDevice::new());
    let db = options()
        .archive_on(archive.clone())
        .open_on(Arc::new(MemoryDevice::new()))?;
    let table: Table<u64, u64> = db.open_table("rows")?;
    let mut state = State::new();
    let mut states = vec![state.clone()];
    let mut backup = Vec::new();
    for i in 0..30 {
        let mut tx = db.begin();
        tx.insert(&table, &(i % 20), &i)?;
        state.insert(i % 20, i);
        if i % 7 == 3 {
            tx.remove(&table, &(i % 20 - 2))?;
            state.remove(&(i % 20 - 2));
        }
        tx.commit()?;
        states.push(state.clone());
        if i % 5 == 0 {
            db.archive_now()?;
        }
        if i == 12 {
            db.backup_to(&mut backup)?;
        }
    }
    db.archive_now()?;
    let failed = |e| Error::Io {
        what: "the backup in memory".into(),
        source: Arc::new(e),
    };
    // On a device, files consist of whole blocks.
    backup.resize(backup.len().next_multiple_of(4096), 0);
    let file = archive.open(FILE, OpenMode::CreateNew).map_err(failed)?;
    let mut buf = archive.allocate(backup.len());
    buf[..backup.len()].copy_from_slice(&backup);
    file.write_at(&[&buf[..backup.len()]], 0).map_err(failed)?;
    let mut image = Image::of(&*archive, 4096);
    // The backup comes first, so that scripts find it at the same offset whatever the archive
    // contains.
    image.files.sort_by_key(|(name, _)| name != FILE);
    Ok(Base { image, states })
}

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| make().expect("a database in memory"))
}

/// Removes the zeroes that fill the last block.
fn without_padding(bytes: &mut Vec<u8>) {
    let len = bytes.iter().rposition(|byte| *byte != 0);
    bytes.truncate(len.map_or(0, |last| last + 1));
}

fn run(script: &[u8]) {
    let base = base();
    let mut image = base.image.clone();
    let outcome = image.edit(&mut Input(script));
    let mut backup = Vec::new();
    for (name, bytes) in &mut image.files {
        if name == FILE {
            without_padding(bytes);
            backup.clone_from(bytes);
        }
    }
    if outcome.seals() {
        let rebinds = renumber(&mut backup, script).is_some() || outcome.rebinds();
        braid::fuzzing::seal_backup(&mut backup, rebinds, braid_store::fuzzing::seal_block);
        for (name, bytes) in &mut image.files {
            if name != FILE {
                braid::fuzzing::seal_archive(bytes);
            }
        }
    }
    image.files.retain(|(name, _)| name != FILE);
    let restored = restore(&backup, image.device());
    let Ok((rest, target)) = restored else {
        return;
    };
    // A restored database can be opened, or opening says why not.
    let found = look(target);
    if outcome.must_be_noticed() {
        let found = found.expect("what was restored is a database");
        assert!(base.states.contains(&found), "damage was taken for data");
        assert!(rest > 0);
    }
}

/// Gives a page of the backup's first batch another number, if the script's mode says so. An edit
/// of the number alone is detected, because the page contains its own number; no single edit
/// changes both.
fn renumber(backup: &mut [u8], script: &[u8]) -> Option<()> {
    let (&mode, rest) = script.split_first()?;
    let (&page, &number) = (rest.last()?, rest.first()?);
    if mode & 16 == 0 {
        return None;
    }
    // After the magic and the batch's header; a record is the number and a page.
    let at = 16 + usize::from(page % 8) * 8200;
    let number = (1u64 << (number % 34)).wrapping_sub(u64::from(number >> 7));
    backup
        .get_mut(at..at + 8)?
        .copy_from_slice(&number.to_le_bytes());
    Some(())
}

fn restore(backup: &[u8], archive: Arc<dyn Device>) -> Result<(u64, Arc<dyn Device>), Error> {
    let target = Arc::new(MemoryDevice::new());
    let restore = Restore::new().pool_bytes(1 << 20).stream(backup);
    let report = restore.archive_on(archive).run_on(target.clone())?;
    Ok((report.seqno, target))
}

fn look(target: Arc<dyn Device>) -> Result<State, Error> {
    let db = options().open_on(target)?;
    let table: Table<u64, u64> = db.open_table("rows")?;
    let snapshot = db.snapshot();
    let rows = snapshot.iter(&table)?;
    rows.collect()
}
