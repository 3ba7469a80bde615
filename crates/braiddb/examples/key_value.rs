//! The basics: a table, writes, reads, ranges, and reopening.
//!
//! ```sh
//! cargo run -p braiddb --example key_value
//! ```

use braid::{Database, Readable, Result, Table};

// Not private, so that a test can run it.
pub(crate) fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let db = Database::open(directory.path())?;
    let capitals: Table<String, String> = db.open_table("capitals")?;

    // A transaction is atomic, and durable when `commit` returns.
    let mut tx = db.begin();
    tx.insert(&capitals, "France", "Paris")?;
    tx.insert(&capitals, "Finland", "Helsinki")?;
    tx.insert(&capitals, "Peru", "Lima")?;
    tx.commit()?;

    assert_eq!(db.get(&capitals, "Peru")?.as_deref(), Some("Lima"));
    assert_eq!(db.get(&capitals, "Atlantis")?, None);

    // A snapshot does not change while others write.
    let snapshot = db.snapshot();
    db.transact(|tx| tx.remove(&capitals, "Peru"))?;
    for entry in snapshot.prefix(&capitals, "F")? {
        let (country, capital) = entry?;
        println!("{capital} is the capital of {country}");
    }
    assert_eq!(
        snapshot
            .last(&capitals)?
            .map(|(country, _)| country)
            .as_deref(),
        Some("Peru")
    );
    drop((snapshot, capitals));
    db.close()?;

    let db = Database::open(directory.path())?;
    let capitals: Table<String, String> = db.open_table("capitals")?;
    let countries: Vec<String> = db
        .snapshot()
        .iter(&capitals)?
        .rev()
        .map(|entry| Ok(entry?.0))
        .collect::<Result<_>>()?;
    assert_eq!(countries, ["France", "Finland"]);
    println!("found again: {countries:?}");
    Ok(())
}
