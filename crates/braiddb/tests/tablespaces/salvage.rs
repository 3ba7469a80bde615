//! Salvage of a database with tablespaces: everything readable of each is saved, and one that is
//! missing, damaged or of another state is named.

use std::collections::BTreeMap;

use braid::offline::{Finding, Salvage, SalvageReport, Verify};

use super::*;

const BLOCK: usize = 8192;

/// Keys from here on were written after the newest checkpoint.
const LOGGED: u64 = 150;

/// Entries of a table.
type Entries = BTreeMap<u64, Vec<u8>>;

/// The files that a kill would leave: the newest checkpoint has the value 1, and the log 2 for the
/// keys from [`LOGGED`] on.
fn killed() -> Directories {
    let directories = Directories::with_tablespaces();
    let db = small().background_threads(false);
    let db = db.open(&directories.data).unwrap();
    let tables = tables(&db);
    for key in LOGGED..200 {
        put(&db, &tables, key, &[2; 100]).unwrap();
    }
    let names = ["data", "one", "two"];
    for name in names {
        copy(
            &directories.at(name),
            &directories.at(&format!("{name}-killed")),
        );
    }
    drop(tables);
    db.close().unwrap();
    for name in names {
        replace(
            &directories.at(&format!("{name}-killed")),
            &directories.at(name),
        );
    }
    directories
}

/// Replaces the directory `to` by `from`.
fn replace(from: &Path, to: &Path) {
    fs::remove_dir_all(to).unwrap();
    fs::rename(from, to).unwrap();
}

fn expected(key: u64) -> Vec<u8> {
    vec![if key < LOGGED { 1 } else { 2 }; 100]
}

fn all() -> Entries {
    (0..200).map(|key| (key, expected(key))).collect()
}

fn logged() -> Entries {
    (LOGGED..200).map(|key| (key, expected(key))).collect()
}

struct Saved {
    report: SalvageReport,
    damaged: Vec<String>,
    lost: Vec<String>,
    /// The tables of the new database.
    tables: BTreeMap<String, Entries>,
}

impl Saved {
    #[track_caller]
    fn expect(&self, tables: [(&str, &Entries); 3]) {
        let found: Vec<&String> = self.tables.keys().collect();
        assert_eq!(found.len(), 3, "{found:?}");
        for (name, entries) in tables {
            assert!(self.tables[name] == *entries, "{name}: {:?}", self.lost);
        }
    }

    #[track_caller]
    fn expect_all(&self) {
        let all = all();
        self.expect(["in main", "in one", "in two"].map(|name| (name, &all)));
    }

    #[track_caller]
    fn expect_lost(&self, lost: &[&[&str]]) {
        assert_eq!(self.lost.len(), lost.len(), "{:#?}", self.lost);
        assert_eq!(self.report.losses, lost.len() as u64);
        for (line, parts) in self.lost.iter().zip(lost) {
            for part in *parts {
                assert!(line.contains(part), "{part:?}: {line}");
            }
        }
    }
}

/// Salvages, and checks that the damaged database stays unchanged, and that the new one is sound and
/// can be used, with tablespaces, too.
fn salvage(directories: &Directories) -> Saved {
    let into = directories.at("into");
    let _ = fs::remove_dir_all(&into);
    let (mut damaged, mut lost) = (Vec::new(), Vec::new());
    let before = directories.files();
    let report = braid::offline::salvage(&directories.data, &into, &mut |finding| match finding {
        Finding::Damaged(what) => damaged.push(what),
        Finding::Lost(what) => lost.push(what),
        other => panic!("{other:?}"),
    });
    let report = report.unwrap();
    assert!(
        directories.files() == before,
        "the damaged one is only read"
    );
    let mut damages = Vec::new();
    braid::offline::verify(&into, &mut |damage| damages.push(damage)).unwrap();
    assert!(damages.is_empty(), "{damages:?}");
    let read = |db: &Database| {
        let mut tables = BTreeMap::new();
        for name in db.table_names().unwrap() {
            let table = db.untyped_table(&name).unwrap().unwrap();
            let snapshot = db.snapshot();
            let entries = snapshot.iter(&table).unwrap().map(|entry| {
                let (key, value) = entry.unwrap();
                let key: [u8; 8] = key[..].try_into().unwrap();
                (u64::from_be_bytes(key), value.to_vec())
            });
            tables.insert(name, entries.collect());
        }
        tables
    };
    let db = small().open(&into).unwrap();
    let tables: BTreeMap<String, Entries> = read(&db);
    assert_eq!(db.tablespace_names(), [""; 0]);
    let new = directories.at("new");
    let _ = fs::remove_dir_all(&new);
    let options = TablespaceOptions::in_directory(&new).pool_bytes(1 << 20);
    db.create_tablespace("one", options).unwrap();
    let main: Table<u64, Bytes> = db.open_table("new in main").unwrap();
    let table = db.open_table_in::<u64, Bytes>("one", "new", Default::default());
    let used = [main, table.unwrap()];
    put(&db, &used, 1, b"new").unwrap();
    drop(used);
    db.close().unwrap();
    let db = small().open(&into).unwrap();
    let again = read(&db);
    assert_eq!(again.len(), tables.len() + 2);
    assert!(tables.iter().all(|(name, entries)| again[name] == *entries));
    Saved {
        report,
        damaged,
        lost,
        tables,
    }
}

/// The leaves of a tablespace's tables: each one's block and the page.
fn leaves(directories: &Directories, space: &str) -> Vec<(usize, u64)> {
    let mut text = String::new();
    braid::offline::dump(&directories.data, &mut text).unwrap();
    let (mut leaves, mut is_in_it) = (Vec::new(), space == "main");
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("tablespace ") {
            is_in_it = rest.starts_with(&format!("{space:?}"));
        } else if let Some(rest) = line.strip_prefix("page ").filter(|_| is_in_it) {
            let (page, rest) = rest.split_once(" at block ").unwrap();
            let (block, rest) = rest.split_once(": ").unwrap();
            if rest.starts_with("leaf") {
                leaves.push((block.parse().unwrap(), page.parse().unwrap()));
            }
        }
    }
    leaves
}

fn damage_block(directories: &Directories, name: &str, block: usize) {
    let path = directories.at(name).join("data.braid");
    let mut bytes = fs::read(&path).unwrap();
    let damaged = &mut bytes[block * BLOCK + 100..block * BLOCK + 164];
    damaged.iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(&path, bytes).unwrap();
}

#[test]
fn the_tables_of_all_tablespaces_are_saved() {
    let saved = salvage(&killed());
    saved.expect_all();
    saved.expect_lost(&[]);
    assert!(saved.damaged.is_empty(), "{:?}", saved.damaged);
    assert_eq!((saved.report.tables, saved.report.transactions), (3, 50));
    assert!(saved.report.entries >= 600, "{:?}", saved.report);
}

/// A salvage reads the tablespaces while no process writes to them.
#[test]
fn a_tablespace_in_use_is_not_salvaged() {
    let directories = killed();
    let other = tempfile::tempdir().unwrap();
    copy(&directories.data, &other.path().join("data"));
    let db = small().open(&directories.data).unwrap();
    let copied = other.path().join("data");
    let saved = braid::offline::salvage(copied, other.path().join("into"), &mut |_| ());
    assert!(matches!(saved, Err(Error::Locked { .. })), "{saved:?}");
    assert!(!other.path().join("into").exists());
    db.close().unwrap();
}

/// The list of a copied database names the tablespaces of the original.
#[test]
fn a_copy_is_verified_and_salvaged_with_its_own_tablespaces() {
    let directories = killed();
    let copied = tempfile::tempdir().unwrap();
    let at = |name: &str| copied.path().join(name);
    for name in ["data", "one", "two"] {
        copy(&directories.at(name), &at(name));
    }
    // Damaged in the copy alone, and not to be found in the original.
    let (block, page) = leaves(&directories, "one")[1];
    let path = at("one/data.braid");
    let mut bytes = fs::read(&path).unwrap();
    bytes[block * BLOCK + 100..block * BLOCK + 164].fill(0x5a);
    fs::write(&path, bytes).unwrap();

    let mut damages = Vec::new();
    let verified = braid::offline::verify(at("data"), &mut |damage| damages.push(damage)).unwrap();
    assert_eq!(verified.damages, 2, "{damages:?}");
    let unnamed = "it belongs to the database in";
    assert!(
        damages.iter().all(|damage| damage.contains(unnamed)),
        "{damages:?}"
    );
    let mut findings = Vec::new();
    let saved = braid::offline::salvage(at("data"), at("into"), &mut |finding| {
        findings.push(finding)
    });
    let Err(Error::Tablespace(TablespaceError::Foreign { name, reason, .. })) = saved else {
        panic!("{saved:?}, {findings:?}");
    };
    assert!(
        name == "one" && reason.contains("name the copy"),
        "{reason}"
    );
    assert!(!at("into").exists(), "nothing was begun");

    let verify = Verify::new()
        .tablespace_directory("one", at("one"))
        .tablespace_directory("two", at("two"));
    damages.clear();
    let verified = verify.check(at("data"), &mut |damage| damages.push(damage));
    assert_eq!(verified.unwrap().damages, damages.len() as u64);
    let found = format!("page {page}");
    let names_it = |damage: &String| damage.contains("\"one\"") && damage.contains(&found);
    assert!(damages.iter().any(names_it), "{damages:?}");
    let mut text = String::new();
    let _ = verify.dump(at("data"), &mut text);
    assert!(text.contains("tablespace \"one\""), "{text}");
    let reader = verify.open(at("data")).unwrap();
    assert_eq!(reader.tablespace_names(), ["one", "two"]);
    drop(reader);

    let salvage = Salvage::new()
        .tablespace_directory("one", at("one"))
        .tablespace_directory("two", at("two"));
    let saved = salvage.run(at("data"), at("into"), &mut |finding| {
        findings.push(finding)
    });
    let saved = saved.unwrap();
    assert_eq!((saved.tables, saved.losses), (3, 1), "{findings:?}");
    let is_the_leaf = |finding: &Finding| format!("{finding:?}").contains(&found);
    assert!(findings.iter().any(is_the_leaf), "{findings:?}");
}

#[test]
fn a_damaged_page_of_a_tablespace_costs_its_keys() {
    let directories = killed();
    let leaves = leaves(&directories, "one");
    assert!(leaves.len() > 2, "{leaves:?}");
    let (block, page) = leaves[1];
    damage_block(&directories, "one", block);
    let saved = salvage(&directories);
    let page = format!("page {page}");
    saved.expect_lost(&[&[
        "table \"in one\" of tablespace \"one\": entries from ",
        "up to but not including",
        &page,
    ]]);
    let found = &saved.tables["in one"];
    saved.expect([("in main", &all()), ("in one", found), ("in two", &all())]);
    assert!(found.len() < 200 && found.len() > 100, "{}", found.len());
    for key in LOGGED..200 {
        assert_eq!(found.get(&key), Some(&expected(key)), "it is in the log");
    }
    for (key, value) in found {
        assert_eq!(*value, expected(*key));
    }
}

#[test]
fn a_missing_tablespace_is_named_with_its_tables_and_the_rest_is_saved() {
    type Removal = fn(&Directories);
    let missing: [(&str, Removal); 4] = [
        ("does not exist", |directories| {
            fs::rename(directories.at("two"), directories.at("away")).unwrap();
        }),
        ("it contains no data.braid", |directories| {
            fs::remove_file(directories.at("two").join("data.braid")).unwrap();
        }),
        ("no checkpoint can be found", |directories| {
            let file = fs::File::create(directories.at("two").join("data.braid"));
            file.unwrap().set_len(1 << 20).unwrap();
        }),
        ("that of another tablespace", |directories| {
            let file = |name: &str| directories.at(name).join("data.braid");
            fs::copy(file("one"), file("two")).unwrap();
        }),
    ];
    for (reason, remove) in missing {
        let directories = killed();
        remove(&directories);
        let saved = salvage(&directories);
        saved.expect([
            ("in main", &all()),
            ("in one", &all()),
            ("in two", &logged()),
        ]);
        let parts = [
            "tablespace \"two\": entries of its tables \"in two\"",
            reason,
        ];
        saved.expect_lost(&[&parts]);
    }
}

/// Without tables, nothing is lost with a tablespace.
#[test]
fn a_missing_tablespace_without_tables_is_no_loss() {
    let directories = Directories::new();
    let db = small().open(&directories.data).unwrap();
    db.create_tablespace("one", directories.options("one"))
        .unwrap();
    let table: Table<u64, Bytes> = db.open_table("in main").unwrap();
    put(&db, &[table], 1, b"kept").unwrap();
    db.close().unwrap();
    fs::remove_dir_all(directories.at("one")).unwrap();
    let saved = salvage(&directories);
    saved.expect_lost(&[]);
    assert!(
        saved.damaged[0].contains("tablespace \"one\""),
        "{:?}",
        saved.damaged
    );
    assert_eq!(saved.tables["in main"][&1], b"kept");
}

/// The identity in its data file is enough to recognize a tablespace.
#[test]
fn a_lost_note_and_a_moved_database_cost_nothing() {
    let mut directories = killed();
    fs::remove_file(directories.at("one").join("TABLESPACE-OWNER")).unwrap();
    let moved = directories.at("moved");
    fs::rename(&directories.data, &moved).unwrap();
    directories.data = moved;
    let saved = salvage(&directories);
    saved.expect_all();
    saved.expect_lost(&[]);
}

#[test]
fn without_the_list_each_tablespace_is_named() {
    let removed = |path: &Path| fs::remove_file(path).unwrap();
    let damaged = |path: &Path| fs::write(path, [7; 4096]).unwrap();
    for damage in [removed as fn(&Path), damaged] {
        let directories = killed();
        damage(&directories.data.join("TABLESPACES"));
        let saved = salvage(&directories);
        saved.expect([
            ("in main", &all()),
            ("in one", &logged()),
            ("in two", &logged()),
        ]);
        saved.expect_lost(&[
            &["tablespace \"one\"", "\"in one\"", "not in TABLESPACES"],
            &["tablespace \"two\"", "\"in two\"", "not in TABLESPACES"],
        ]);
    }
}

#[test]
fn lost_superblocks_of_a_tablespace_are_found_by_their_roots() {
    for blocks in [&[0][..], &[1], &[0, 1]] {
        let directories = killed();
        for block in blocks {
            damage_block(&directories, "one", *block);
        }
        let saved = salvage(&directories);
        saved.expect_all();
        saved.expect_lost(&[]);
        let is_named = |what: &String| what.starts_with("tablespace \"one\": ");
        assert!(saved.damaged.iter().any(is_named), "{:?}", saved.damaged);
    }
}

/// An older copy of a tablespace has its entries, and not the newest ones.
#[test]
fn a_tablespace_of_another_state_is_used_and_named() {
    let directories = Directories::with_tablespaces();
    copy(&directories.at("one"), &directories.at("older"));
    let db = small().open(&directories.data).unwrap();
    fill(&db, 2);
    db.close().unwrap();
    // Its first opening writes a checkpoint, and the second another, which the copy does not precede.
    small().open(&directories.data).unwrap().close().unwrap();
    replace(&directories.at("older"), &directories.at("one"));
    let saved = salvage(&directories);
    saved.expect_lost(&[&["tablespace \"one\": changes of its tables from sequence number"]]);
    for (name, value) in [("in main", 2), ("in one", 1), ("in two", 2)] {
        let all = (0..200).map(|key| (key, vec![value; 100]));
        assert!(saved.tables[name] == all.collect(), "{name}");
    }
}

/// Without the catalog, the tables of tablespaces get names, too.
#[test]
fn tables_of_tablespaces_without_a_name_get_one() {
    let directories = Directories::with_tablespaces();
    // The catalog is the first tree of the main tablespace.
    damage_block(&directories, "data", leaves(&directories, "main")[0].0);
    let saved = salvage(&directories);
    assert!(
        saved.lost.iter().any(|loss| loss.contains("the catalog")),
        "{:?}",
        saved.lost
    );
    let all: Entries = (0..200).map(|key| (key, vec![1; 100])).collect();
    let names: Vec<&String> = saved.tables.keys().collect();
    assert_eq!(names, ["salvaged-2", "salvaged-3", "salvaged-4"]);
    assert!(saved.tables.values().all(|entries| *entries == all));
}
