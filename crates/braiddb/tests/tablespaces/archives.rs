//! The archive, point-in-time recovery and feeds of databases with tablespaces.

use braid::backup::{BackupError, Restore, Until};

use super::*;

/// Restores a backup and the archive up to a point, and returns the places.
fn restore(full: &Path, archive: &Path, until: Until) -> braid::Result<Directories> {
    let restored = Directories::new();
    Restore::new()
        .backup(full)
        .archive(archive)
        .until(until)
        .tablespace_directory("one", restored.at("one"))
        .tablespace_directory("two", restored.at("two"))
        .device(DeviceChoice::File)
        .pool_bytes(1 << 20)
        .run(&restored.data)?;
    Ok(restored)
}

#[test]
fn a_database_with_tablespaces_is_restored_to_any_of_its_transactions() {
    let directories = Directories::with_tablespaces();
    let (full, archive) = (directories.at("full"), directories.at("archive"));
    let db = small().archive(&archive).open(&directories.data).unwrap();
    db.backup(&full).unwrap();
    let tables = tables(&db);
    let mut seqnos = Vec::new();
    for key in 0..60_u64 {
        let commit = db.transact(|tx| {
            tx.insert(&tables[key as usize % 3], &key, &[5; 100])?;
            tx.insert(&tables[1], &1_000, &key.to_le_bytes())
        });
        commit.unwrap();
        seqnos.push(db.durable_seqno());
        if key.is_multiple_of(20) {
            db.checkpoint().unwrap();
        }
    }
    db.transact(|tx| tx.remove(&tables[2], &7)).unwrap();
    db.archive_now().unwrap();
    for last in [0, 13, 40, 59] {
        let until = Until::Seqno(seqnos[last]);
        let restored = restore(&full, &archive, until).unwrap();
        let copy = small().open(&restored.data).unwrap();
        let tables = super::tables(&copy);
        let found = copy.get(&tables[1], &1_000).unwrap();
        assert_eq!(found.as_deref(), Some(&last.to_le_bytes()[..]));
        for key in 0..60_u64 {
            let found = copy.get(&tables[key as usize % 3], &key).unwrap();
            let value = if key as usize <= last { 5 } else { 1 };
            assert_eq!(found.as_deref(), Some(&[value; 100][..]), "{key} of {last}");
        }
        assert!(copy.get(&tables[2], &7).unwrap().is_some());
    }
    let restored = restore(&full, &archive, Until::End).unwrap();
    let copy = small().open(&restored.data).unwrap();
    assert_eq!(copy.get(&super::tables(&copy)[2], &7).unwrap(), None);
}

/// A backup has no place for a tablespace that was created later, nor the entries of a table that was
/// loaded; one that was dropped leaves nothing.
#[test]
fn a_restore_stops_before_what_no_backup_has() {
    let directories = Directories::with_tablespaces();
    let (full, archive) = (directories.at("full"), directories.at("archive"));
    let db = small().archive(&archive).open(&directories.data).unwrap();
    db.backup(&full).unwrap();
    let before = db.durable_seqno();
    let mut loader = db
        .bulk_load_in::<u64, u64>("two", "loaded", Default::default())
        .unwrap();
    loader.insert(&1, &1).unwrap();
    drop(loader.finish().unwrap());
    db.archive_now().unwrap();
    let loaded = restore(&full, &archive, Until::End).map(drop);
    let Err(Error::Backup(BackupError::LoadedTable { table, .. })) = loaded else {
        panic!("{loaded:?}");
    };
    assert_eq!(table, "loaded");
    check(
        &small()
            .open(&restore(&full, &archive, Until::Seqno(before)).unwrap().data)
            .unwrap(),
        1,
    );
    let later = directories.at("later");
    db.backup(&later).unwrap();
    for name in ["in one", "in two", "loaded"] {
        db.drop_table(name).unwrap();
    }
    db.drop_tablespace("one").unwrap();
    let dropped = db.durable_seqno();
    db.create_tablespace("three", directories.options("three"))
        .unwrap();
    db.archive_now().unwrap();
    let created = restore(&later, &archive, Until::End).map(drop);
    let Err(Error::Backup(BackupError::NewTablespace { name, seqno })) = created else {
        panic!("{created:?}");
    };
    assert!(name == "three" && seqno > dropped, "{name} {seqno}");
    let restored = restore(&later, &archive, Until::Seqno(seqno - 1)).unwrap();
    let copy = small().open(&restored.data).unwrap();
    assert_eq!(copy.tablespace_names(), ["two"]);
    assert_eq!(copy.table_names().unwrap(), ["in main"]);
    assert!(!restored.at("one").join("data.braid").exists());
}

/// The archive is no part of a tablespace, with which it would be lost.
#[test]
fn an_archive_lies_outside_of_all_tablespaces() {
    let directories = Directories::with_tablespaces();
    let inside = small().archive(directories.at("one").join("archive"));
    let refused = inside.open(&directories.data).unwrap_err();
    assert!(
        matches!(refused, Error::Backup(BackupError::InsideDatabase { .. })),
        "{refused}"
    );
}

#[test]
fn a_feed_shows_the_changes_of_all_tablespaces() {
    let simulated = Simulated::new(8, 2);
    let db = simulated.open().unwrap();
    simulated.create_all(&db).unwrap();
    let tables = simulated.tables(&db).unwrap();
    let feed = db.feed("feed").unwrap();
    put(&db, &tables, 1, b"across").unwrap();
    db.checkpoint().unwrap();
    let mut changes = feed.changes().unwrap();
    let mut seen = Vec::new();
    while let Some(set) = changes.next_within(std::time::Duration::ZERO).unwrap() {
        seen.extend(set.changes.iter().map(|change| change.table.clone()));
    }
    for name in ["main", "in one", "in two"] {
        let found = seen
            .iter()
            .filter(|table| format!("{table:?}").contains(name));
        assert_eq!(found.count(), 1, "{name}: {seen:?}");
    }
}
