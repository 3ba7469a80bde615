//! Damaged databases: recovery, the catalog, redo records.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use braid::{Builder, Bytes, Database, Error, Readable, Table};
use braid_io::{Device, MemoryDevice};
use braid_store::PAGE_SIZE;

use super::Target;
use crate::edit::{Image, Input, Outcome};

pub(super) type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// An undamaged database, and its contents after each commit.
pub(super) struct Base {
    pub(super) image: Image,
    /// States of the table `rows`.
    pub(super) states: Vec<State>,
}

pub(super) const DATABASE: Target = Target {
    name: "database",
    run,
    corpus: super::scripts,
    runs: 400,
};

pub(super) fn options() -> Builder {
    Database::builder()
        .background_threads(false)
        .pool_bytes(1 << 20)
        .segment_bytes(64 << 10)
        .strands(2)
}

fn make() -> Result<Base, Error> {
    let device = Arc::new(MemoryDevice::new());
    let db = options().open_on(device.clone())?;
    let table: Table<Bytes, Bytes> = db.open_table("rows")?;
    let other: Table<u64, u64> = db.open_table("numbers")?;
    let mut state = State::new();
    let mut states = vec![state.clone()];
    for i in 0..40u8 {
        let mut tx = db.begin();
        let (key, value) = ([b'k', i % 20], vec![i; usize::from(i) * 90]);
        tx.insert(&table, &key[..], &value[..])?;
        tx.insert(&other, &u64::from(i), &1)?;
        state.insert(key.to_vec(), value);
        if i % 7 == 3 {
            let gone = [b'k', i % 20 - 2];
            tx.remove(&table, &gone[..])?;
            state.remove(&gone[..]);
        }
        tx.commit()?;
        states.push(state.clone());
        if i == 20 {
            db.checkpoint()?;
        }
    }
    db.sync()?;
    let image = Image::of(&*device, 4096);
    drop((table, other, db));
    Ok(Base { image, states })
}

pub(super) fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| make().expect("a database in memory"))
}

/// Returns the database after the edits of a script.
pub(super) fn damaged(script: &[u8]) -> (Image, Outcome) {
    let base = base();
    let mut image = base.image.clone();
    let outcome = image.edit(&mut Input(script));
    if outcome.seals() {
        for ((name, edited), (_, original)) in image.files.iter_mut().zip(&base.image.files) {
            if name.ends_with(".seg") {
                super::log::seal(edited, original, outcome.rebinds())
            } else {
                super::store::seal(edited, original, outcome.rebinds())
            }
        }
    }
    (image, outcome)
}

fn run(script: &[u8]) {
    if script.first().is_some_and(|mode| mode & 32 != 0) {
        return damage_one_page(&mut Input(&script[1..]));
    }
    let (mut image, outcome) = damaged(script);
    let foreign = add_foreign(&mut image, script);
    let device = image.device();
    let is_marked = foreign.iter().any(|(name, _)| name == MARKER);
    let mut before = if is_marked {
        image.there().cloned().collect()
    } else {
        foreign
    };
    before.sort_unstable();
    drop(image);
    let looked = look(base(), device.clone(), outcome);
    if is_marked {
        assert!(
            matches!(looked, Err(Error::NotADatabase { .. })),
            "a foreign marker was believed: {looked:?}"
        );
    }
    let mut after = Image::of(&*device, 1).files.into_iter();
    for file in before {
        assert!(
            after.any(|found| found == file),
            "the foreign file {:?} was changed or removed",
            file.0
        );
    }
}

/// Damages one page of a tree, as a script says. All other entries must stay readable and correct.
fn damage_one_page(script: &mut Input<'_>) {
    let base = base();
    let mut image = base.image.clone();
    let file = image
        .files
        .iter_mut()
        .find(|(name, _)| name == "data.braid");
    let (_, bytes) = file.expect("a database has a data file");
    let blocks = (bytes.len() / PAGE_SIZE) as u64;
    let block = script.number(2) % blocks;
    let bytes = &mut bytes[block as usize * PAGE_SIZE..][..PAGE_SIZE];
    let identity = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if block < 2 || identity >= 1 << 62 {
        // The superblocks, the page map and the root lead to all pages.
        return;
    }
    let at = script.number(2) as usize % PAGE_SIZE;
    bytes[at] ^= script.byte().max(1);
    let db = options().open_on(image.device());
    let db = db.unwrap_or_else(|error| panic!("block {block} closes all others: {error}"));
    let rows = base.states.last().expect("there are states");
    let Some(table) = found(db.existing_table::<Bytes, Bytes>("rows")) else {
        return;
    };
    for (key, value) in rows {
        if let Some(read) = found(db.get(&table, &key[..]).map(Some)) {
            assert_eq!(read.as_deref(), Some(&value[..]), "block {block}");
        }
    }
    if let Some(table) = found(db.existing_table::<u64, u64>("numbers")) {
        for i in 0..40 {
            if let Some(read) = found(db.get(&table, &i).map(Some)) {
                assert_eq!(read, Some(1), "block {block}");
            }
        }
    }
}

/// Returns the result of a read, unless the engine reports damage.
fn found<T>(read: Result<Option<T>, Error>) -> Option<T> {
    match read {
        Ok(read) => Some(read.expect("what is not damaged is there")),
        Err(Error::Corrupted { .. }) => None,
        Err(error) => panic!("damage is reported as: {error}"),
    }
}

const MARKER: &str = "CREATING";

/// Adds foreign files, as the script's mode says: a document, and the marker of a creation that
/// made none of the files. Returns them ordered by name.
fn add_foreign(image: &mut Image, script: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mode = script.first().copied().unwrap_or_default();
    let mut foreign = Vec::new();
    if mode & 8 != 0 {
        let mut marker = vec![0; if mode & 16 != 0 { 4096 } else { script.len() }];
        let len = script.len().min(marker.len());
        marker[..len].copy_from_slice(&script[..len]);
        foreign.push((MARKER.to_owned(), marker));
    }
    if mode & 4 != 0 {
        foreign.push(("letter.txt".to_owned(), script.to_vec()));
    }
    image.files.extend_from_slice(&foreign);
    foreign
}

pub(super) fn contents(db: &Database, table: &Table<Bytes, Bytes>) -> Result<State, Error> {
    let snapshot = db.snapshot();
    let all = snapshot.iter(table)?;
    all.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect()
}

fn look(base: &Base, device: Arc<dyn Device>, outcome: Outcome) -> Result<(), Error> {
    let db = options().open_on(device.clone())?;
    let names = db.table_names()?;
    for name in &names {
        // Whatever type the table has.
        let _ = db.existing_table::<u64, u64>(name);
    }
    let Some(table) = db.existing_table::<Bytes, Bytes>("rows")? else {
        assert!(!outcome.must_be_noticed(), "the table is lost");
        return Ok(());
    };
    let found = contents(&db, &table)?;
    assert!(
        !outcome.must_be_noticed() || base.states.contains(&found),
        "damage was taken for data"
    );
    assert!(
        !outcome.lost_file || base.states.last() == Some(&found),
        "a lost file went unnoticed"
    );
    for i in 0..60u8 {
        let mut tx = db.begin();
        tx.insert(&table, &[b'k', i][..], &[1; 300][..])?;
        tx.commit()?;
    }
    db.open_table::<u64, u64>("another")?;
    db.drop_table("numbers")?;
    let before = contents(&db, &table)?;
    db.checkpoint()?;
    drop(table);
    db.close()?;
    let db = options().open_on(device)?;
    let table = db.open_table::<Bytes, Bytes>("rows")?;
    assert_eq!(contents(&db, &table)?, before, "closed and opened");
    Ok(())
}
