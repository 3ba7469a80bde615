//! Derived keys and values, and values that serde serializes. Run with `cargo test -p braiddb
//! --features derive --test derive`.
#![cfg(feature = "derive")]

use braid::{AsKey, Bytes, Database, Error, Key, Readable, Result, Serde, Table, Value};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Key)]
struct Place {
    city: String,
    floor: i16,
    door: [u8; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Key)]
struct Number(u64);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Key)]
#[braid(name = "nested")]
struct Nested(Place, Number, bool, u8, u8);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Value)]
struct Account {
    owner: String,
    balance: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Value)]
#[braid(name = "account v2")]
enum Versioned {
    One(Account),
    Two { owner: String },
}

fn encoded<K: Key + AsKey<K>>(key: &K) -> Bytes {
    key.with_key_bytes(Bytes::copy_from_slice)
}

fn place(rng: &mut fastrand::Rng) -> Place {
    let city = (0..rng.usize(..4)).map(|_| rng.char('\0'..'\u{3}'));
    Place {
        city: city.collect(),
        floor: rng.i16(-2..3),
        door: [rng.u8(..2), rng.u8(..2)],
    }
}

#[test]
fn keys_are_tuples_of_their_fields() {
    assert_eq!(Place::type_name(), "(string, i16, [u8; 2])");
    assert_eq!(Place::FIXED_LEN, None);
    assert_eq!(Number::type_name(), "u64");
    assert_eq!(Number::FIXED_LEN, Some(8));
    assert_eq!(Nested::type_name(), "nested");
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..2_000 {
        let mut nested = || {
            let (place, number) = (place(&mut rng), Number(rng.u64(..2)));
            Nested(place, number, rng.bool(), rng.u8(..2), rng.u8(..2))
        };
        let (a, b) = (nested(), nested());
        assert_eq!(encoded(&a).cmp(&encoded(&b)), a.cmp(&b));
        assert_eq!(Nested::from_key_bytes(encoded(&a)).unwrap(), a);
        let tuple = (&a.0.city, a.0.floor, a.0.door);
        let as_tuple = AsKey::<(String, i16, [u8; 2])>::with_key_bytes(&tuple, <[u8]>::to_vec);
        assert_eq!(encoded(&a.0), as_tuple);
    }
}

#[test]
fn tables_of_derived_types() -> Result<()> {
    let db = Database::in_memory()?;
    let table: Table<Place, Account> = db.open_table("accounts")?;
    let place = |floor| Place {
        city: "Bath".into(),
        floor,
        door: [1, 2],
    };
    let account = Account {
        owner: "Jane".into(),
        balance: Some(-3),
    };
    db.ingest(&table, [(place(-1), &account), (place(1), &account)])?;
    let from_cellar = db.snapshot().range(&table, place(0)..)?.next().unwrap()?;
    assert_eq!(from_cellar, (place(1), account.clone()));
    // The tuple opens the table; another value type does not.
    assert_eq!(table.type_names().1, "Account");
    let tuples = db.existing_table::<(String, i16, [u8; 2]), Account>("accounts")?;
    assert_eq!(
        db.get(&tuples.unwrap(), &("Bath", 1, [1, 2]))?,
        Some(account)
    );
    let other = db.existing_table::<Place, Versioned>("accounts");
    assert!(
        matches!(other, Err(Error::TableTypeMismatch { .. })),
        "{other:?}"
    );
    Ok(())
}

#[test]
fn values_come_back_and_nonsense_is_an_error() -> Result<()> {
    let db = Database::in_memory()?;
    let versions: Table<u8, Versioned> = db.open_table("versions")?;
    let two = Versioned::Two {
        owner: "Emma".into(),
    };
    db.transact(|tx| tx.insert(&versions, &1, &two))?;
    assert_eq!(db.get(&versions, &1)?, Some(two));
    let lists: Table<u8, Serde<Vec<Option<String>>>> = db.open_table("lists")?;
    let list = vec![None, Some("a".to_owned())];
    db.transact(|tx| tx.insert(&lists, &1, &Serde(&list)))?;
    assert_eq!(db.get(&lists, &1)?, Some(Serde(list)));
    for bytes in [&b""[..], &[9], &[1], &[0, 1, 0xff, 0], &[1, 0, 7]] {
        let decoded = Versioned::from_value_bytes(Bytes::copy_from_slice(bytes));
        let is_typed = matches!(
            decoded,
            Err(Error::Decode {
                type_name: "account v2",
                ..
            })
        );
        assert!(is_typed, "{bytes:?}: {decoded:?}");
    }
    Ok(())
}
