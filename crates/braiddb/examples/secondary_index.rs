//! Finds records by something other than their key: an index is a table that the same transactions
//! maintain.
//!
//! ```sh
//! cargo run -p braiddb --example secondary_index
//! ```

use braid::{Database, Readable, Result, Table, Transaction};

/// People by number, and their numbers by city.
struct People {
    by_id: Table<u64, String>,
    /// All numbers of a city are adjacent and ordered. The value is empty.
    by_city: Table<(String, u64), ()>,
}

/// Returns the city of a stored "name, city".
fn city_of(person: &str) -> &str {
    person.split_once(", ").map_or("", |(_, city)| city)
}

impl People {
    fn open(db: &Database) -> Result<Self> {
        Ok(Self {
            by_id: db.open_table("people")?,
            by_city: db.open_table("people.by_city")?,
        })
    }

    /// Writes a person and the index entry, both or neither.
    fn put(&self, tx: &mut Transaction, id: u64, name: &str, city: &str) -> Result<()> {
        let person = format!("{name}, {city}");
        if let Some(before) = tx.replace(&self.by_id, &id, &person)? {
            tx.remove(&self.by_city, &(city_of(&before), id))?;
        }
        tx.insert(&self.by_city, &(city, id), &())
    }

    fn remove(&self, tx: &mut Transaction, id: u64) -> Result<bool> {
        let Some(before) = tx.take(&self.by_id, &id)? else {
            return Ok(false);
        };
        tx.remove(&self.by_city, &(city_of(&before), id))?;
        Ok(true)
    }

    /// Works with a transaction and with a snapshot.
    fn of_city(&self, reader: &impl Readable, city: &str) -> Result<Vec<String>> {
        let mut people = Vec::new();
        for entry in reader.prefix(&self.by_city, &(city,))? {
            let ((_, id), ()) = entry?;
            people.extend(reader.get(&self.by_id, &id)?);
        }
        Ok(people)
    }
}

// Not private, so that a test can run it.
pub(crate) fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let db = Database::open(directory.path())?;
    let people = People::open(&db)?;
    db.transact(|tx| {
        people.put(tx, 1, "Ada", "London")?;
        people.put(tx, 2, "Emmy", "Göttingen")?;
        people.put(tx, 3, "Alan", "London")?;
        people.put(tx, 4, "Grace", "New York")
    })?;
    let before = db.snapshot();
    db.transact(|tx| {
        people.put(tx, 2, "Emmy", "Bryn Mawr")?;
        people.remove(tx, 3)
    })?;

    let now = db.snapshot();
    assert_eq!(people.of_city(&now, "London")?, ["Ada, London"]);
    assert_eq!(people.of_city(&now, "Bryn Mawr")?, ["Emmy, Bryn Mawr"]);
    assert!(people.of_city(&now, "Göttingen")?.is_empty());
    assert_eq!(people.of_city(&before, "London")?.len(), 2);
    assert_eq!(
        now.iter(&people.by_id)?.count(),
        now.iter(&people.by_city)?.count()
    );
    println!("in London: {:?}", people.of_city(&now, "London")?);
    Ok(())
}
