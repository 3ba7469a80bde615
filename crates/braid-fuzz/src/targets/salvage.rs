//! Damaged databases that salvage saves into a new one.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use braid::offline::Finding;
use braid::{Database, Error, Table};
use braid_io::MemoryDevice;

use super::Target;
use super::database::{State, base, contents, damaged, options};
use crate::edit::Image;

pub(super) const SALVAGE: Target = Target {
    name: "salvage",
    run,
    corpus,
    runs: 300,
};

/// Returns the usual scripts, and scripts that remove a block, a page of two blocks, or the end of
/// a file.
fn corpus() -> Vec<Vec<u8>> {
    let mut all = super::scripts();
    let image = &base().image;
    for block in 0..(image.len() / image.block) as u16 {
        let edit =
            |kind: u8, block: u16| [&[kind << 2 | 3][..], &block.to_le_bytes(), &[0]].concat();
        let (zero, next) = (edit(14, block), edit(14, block + 1));
        all.push([&[0], &zero[..]].concat());
        all.push([&[0], &zero[..], &next].concat());
        all.push([&[0], &edit(15, block)[..]].concat());
    }
    all
}

/// Returns all entries that were ever written.
fn written() -> &'static HashSet<(Vec<u8>, Vec<u8>)> {
    static WRITTEN: OnceLock<HashSet<(Vec<u8>, Vec<u8>)>> = OnceLock::new();
    WRITTEN.get_or_init(|| {
        let base = base();
        let db = options().open_on(base.image.device());
        let db = db.expect("the undamaged one opens");
        let numbers = all_contents(&db).expect("the undamaged one is read");
        let states = base.states.iter().cloned();
        states.chain(numbers).flatten().collect()
    })
}

/// Returns the contents of each table.
fn all_contents(db: &Database) -> Result<Vec<State>, Error> {
    let mut all = Vec::new();
    for name in db.table_names()? {
        let table = db.untyped_table(&name)?.expect("a table that is named");
        all.push(contents(db, &table)?);
    }
    Ok(all)
}

fn run(script: &[u8]) {
    let (image, outcome) = damaged(script);
    let device = image.device();
    let mut findings = Vec::new();
    let saved = braid::fuzzing::salvage(
        device.clone(),
        Arc::new(MemoryDevice::new()),
        &options(),
        &mut |finding| findings.push(finding),
    );
    let unchanged = Image::of(&*device, image.block)
        .files
        .iter()
        .eq(image.there());
    assert!(unchanged, "the damaged one is only read");
    let is_whole = image.there().eq(&base().image.files);
    drop((image, device));
    let (report, db) = match saved {
        Ok(saved) => saved,
        Err(error) => {
            assert!(!is_whole, "{error}");
            return;
        }
    };
    let losses = findings.iter().filter(|f| matches!(f, Finding::Lost(_)));
    assert_eq!(report.losses, losses.count() as u64);
    let all = match all_contents(&db) {
        Ok(all) => all,
        Err(error) => {
            // A structure may be invalid although its checksum fits.
            assert!(outcome.seals(), "{error}");
            return;
        }
    };
    if outcome.must_be_noticed() {
        let made_up = all.iter().flatten().find(|(key, value)| {
            let entry = (key.to_vec(), value.to_vec());
            !written().contains(&entry)
        });
        assert_eq!(made_up, None, "nobody wrote this: {findings:?}");
    }
    if outcome.must_be_noticed() && report.losses == 0 {
        let table = db.untyped_table("rows").expect("the catalog is read");
        let table = table.unwrap_or_else(|| panic!("a lost table was not reported: {findings:?}"));
        let rows = contents(&db, &table).expect("it was read before");
        let is_known = base().states.contains(&rows);
        assert!(is_known, "a loss was not reported: {findings:?}");
        assert!(!is_whole || base().states.last() == Some(&rows));
    }
    assert!(!is_whole || findings.is_empty(), "{findings:?}");
    // The new database can be written; but forged numbers can leave none for another table.
    let rewritten = write_again(&db);
    assert!(rewritten.is_ok() || outcome.seals(), "{rewritten:?}");
    db.close().expect("what was saved can be closed");
}

fn write_again(db: &Database) -> Result<(), Error> {
    let table: Table<u64, u64> = db.open_table("new")?;
    db.transact(|tx| tx.insert(&table, &1, &1))
}
