//! Commands that check and repair a database.

use std::fs;
use std::path::Path;

use super::{file_of, make_database};
use crate::common::{braid, expect_code, stderr, stdout};

#[test]
fn a_sound_database_is_shown_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let path = dir.path().to_str().unwrap();
    let stat = braid(&["stat", path]);
    expect_code(&stat, 0);
    assert!(
        stdout(&stat).contains("uniform-2000-100"),
        "{}",
        stdout(&stat)
    );
    let verify = braid(&["verify", path]);
    expect_code(&verify, 0);
    assert!(stdout(&verify).contains("sound"), "{}", stdout(&verify));
    let limited = braid(&["verify", path, "--max-rate", "1000"]);
    expect_code(&limited, 0);
    assert_eq!(stdout(&limited), stdout(&verify));
    expect_code(&braid(&["verify", path, "--max-rate", "0"]), 2);
    let dump = braid(&["dump", path]);
    expect_code(&dump, 0);
    assert!(stdout(&dump).lines().count() > 3, "{}", stdout(&dump));
}

/// Flips bits in `len` bytes of a file.
fn damage(path: &Path, offset: usize, len: usize) {
    let mut bytes = fs::read(path).unwrap();
    for byte in &mut bytes[offset..offset + len] {
        *byte ^= 0x5a;
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn verify_names_a_damaged_page() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let path = dir.path().to_str().unwrap();
    // The dump says where pages are; the last one is a leaf of the loaded records.
    let dump = stdout(&braid(&["dump", path]));
    let place = dump
        .lines()
        .filter_map(|line| line.split_once(" at block "))
        .next_back();
    let (page, rest) = place.expect("the dump lists pages");
    let page = page.trim();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let block: usize = digits.parse().unwrap();
    damage(&file_of(dir.path(), "data"), block * 8192 + 4000, 16);
    let output = braid(&["verify", path]);
    expect_code(&output, 1);
    let text = stdout(&output);
    assert!(text.starts_with("damaged: "), "{text}");
    assert!(text.contains(page), "{page} is named: {text}");
    assert!(stderr(&output).contains("damaged"), "{}", stderr(&output));
}

#[test]
fn verify_names_damaged_superblocks() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let path = dir.path().to_str().unwrap();
    let data = file_of(dir.path(), "data");
    damage(&data, 100, 8);
    damage(&data, 8192 + 100, 8);
    let output = braid(&["verify", path]);
    expect_code(&output, 1);
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("superblock"), "{text}");
    let output = braid(&["stat", path]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("superblock"),
        "{}",
        stderr(&output)
    );
}

/// Verify, dump and repair take the present directory of the tablespace "disk".
fn checks_find_it_elsewhere(dir: &Path) {
    let (main, disk) = (dir.join("main"), dir.join("disk"));
    let (elsewhere, saved) = (dir.join("elsewhere"), dir.join("saved"));
    let path = main.to_str().unwrap();
    fs::rename(&disk, &elsewhere).unwrap();
    expect_code(&braid(&["verify", path]), 1);
    let place = format!("disk={}", elsewhere.display());
    let verify = braid(&["verify", path, "--tablespace", &place]);
    expect_code(&verify, 0);
    assert!(stdout(&verify).contains("(2 tables"), "{}", stdout(&verify));
    let dump = braid(&["dump", path, "--tablespace", &place]);
    expect_code(&dump, 0);
    assert!(stdout(&dump).contains("tablespace \"disk\", number 1"));
    let saved = saved.to_str().unwrap();
    let repair = ["verify", "--repair", path, "--into", saved];
    let repair = braid(&[&repair[..], &["--tablespace", &place]].concat());
    expect_code(&repair, 0);
    assert!(stdout(&repair).ends_with("nothing is lost\n"));
    fs::rename(&elsewhere, &disk).unwrap();
}

/// A tablespace is shown with its tables, and named if it is damaged or missing.
#[test]
fn tablespaces_are_shown_verified_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (main, disk) = (dir.path().join("main"), dir.path().join("disk"));
    {
        let db = braid::Database::open(&main).unwrap();
        let options = braid::tablespace::TablespaceOptions::in_directory(&disk);
        let node = db.placement().first().map_or(0, |first| first.node);
        db.create_tablespace("disk", options.pool_bytes(1 << 20).memory_node(node))
            .unwrap();
        let here = db.open_table::<u64, String>("here").unwrap();
        let there = db.open_table_in::<u64, String>("disk", "there", Default::default());
        let there = there.unwrap();
        for key in 0..1_000 {
            db.transact(|tx| {
                tx.insert(&here, &key, "a value")?;
                tx.insert(&there, &key, "a value")
            })
            .unwrap();
        }
        db.close().unwrap();
    }
    let path = main.to_str().unwrap();
    let json = || {
        let stat = braid(&["stat", path, "--json"]);
        expect_code(&stat, 0);
        serde_json::from_str::<serde_json::Value>(&stdout(&stat)).unwrap()
    };
    let stat = braid(&["stat", path]);
    expect_code(&stat, 0);
    let text = stdout(&stat);
    assert!(text.contains("there in disk: u64 ->"), "{text}");
    assert!(text.contains("here: u64 ->"), "{text}");
    let line = text.lines().find(|line| line.starts_with("tablespace"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("disk in /") && line.contains("MiB"), "{line}");
    assert!(line.contains("; on memory node "), "{line}");
    let shown = json();
    assert_eq!(shown["tablespaces"][0]["is_on_node"], true);
    // A system may not say where memory lies.
    for node in shown["memory_nodes"].as_array().unwrap() {
        assert_eq!(node["tablespaces"][0]["name"], "disk");
    }
    assert_eq!(shown["tablespaces"][0]["name"], "disk");
    assert_eq!(shown["tables"][1]["tablespace"], "disk");
    let verify = braid(&["verify", path]);
    expect_code(&verify, 0);
    assert!(stdout(&verify).contains("(2 tables"), "{}", stdout(&verify));

    checks_find_it_elsewhere(dir.path());

    // A damaged page, and no data file.
    let data = disk.join("data.braid");
    let len = fs::metadata(&data).unwrap().len() as usize;
    (3..len / 8192).for_each(|block| damage(&data, block * 8192 + 4_000, 16));
    let verify = braid(&["verify", path]);
    expect_code(&verify, 1);
    assert!(stdout(&verify).contains("\"disk\""), "{}", stdout(&verify));
    fs::remove_file(&data).unwrap();
    let verify = braid(&["verify", path]);
    expect_code(&verify, 1);
    let text = stdout(&verify);
    assert!(
        text.contains("tablespace \"disk\"") && text.contains("no data.braid"),
        "{text}"
    );
    let stat = braid(&["stat", path]);
    expect_code(&stat, 0);
    let text = stdout(&stat);
    assert!(
        text.contains("there: cannot open tablespace \"disk\""),
        "{text}"
    );
    let shown = json();
    assert_eq!(shown["tables"][0]["name"], "here");
    assert_eq!(shown["tables_without_tablespace"][0]["name"], "there");
}

#[test]
fn other_directories_are_no_database() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letter.txt"), "Dear engine").unwrap();
    let missing = dir.path().join("missing");
    for place in [dir.path(), &missing] {
        for command in ["stat", "verify", "dump"] {
            let output = braid(&[command, place.to_str().unwrap()]);
            expect_code(&output, 1);
            let text = stderr(&output);
            assert!(text.starts_with("braid: "), "{command}: {text}");
            assert!(text.contains(place.to_str().unwrap()), "{command}: {text}");
        }
    }
    assert!(!missing.exists(), "nothing is created");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing is added"
    );
}

#[test]
fn a_damaged_database_is_repaired_into_another_one() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let path = dir.path().to_str().unwrap();
    let place = tempfile::tempdir().unwrap();
    let into = place.path().join("saved");
    let into = into.to_str().unwrap();
    expect_code(&braid(&["verify", path, "--repair"]), 2);
    expect_code(&braid(&["verify", path, "--into", into]), 2);
    // Sound: everything is copied.
    let output = braid(&["verify", path, "--repair", "--into", into]);
    expect_code(&output, 0);
    assert!(
        stdout(&output).ends_with("nothing is lost\n"),
        "{}",
        stdout(&output)
    );
    let count = |dir: &str| {
        let output = braid(&["shell", dir, "-c", "count uniform-2000-100"]);
        expect_code(&output, 0);
        stdout(&output).trim().parse::<u64>().unwrap()
    };
    assert_eq!(count(into), 2000);
    expect_code(&braid(&["verify", path, "--repair", "--into", into]), 1);

    let dump = stdout(&braid(&["dump", path]));
    let leaf = dump
        .lines()
        // One of several in its tree.
        .rfind(|line| {
            line.contains(": leaf, ") && !line.contains(" - .. ") && !line.ends_with(" -")
        })
        .unwrap();
    let block = leaf
        .split_once(" at block ")
        .unwrap()
        .1
        .split(':')
        .next()
        .unwrap();
    damage(
        &file_of(dir.path(), "data"),
        block.parse::<usize>().unwrap() * 8192 + 4000,
        16,
    );
    fs::remove_dir_all(into).unwrap();
    let output = braid(&["verify", path, "--repair", "--into", into]);
    expect_code(&output, 3);
    let text = stdout(&output);
    assert!(
        text.contains("lost: table \"uniform-2000-100\": entries from "),
        "{text}"
    );
    assert!(stderr(&output).contains("1 losses"), "{}", stderr(&output));
    assert!((1900..2000).contains(&count(into)), "{text}");
}

#[test]
fn compact_and_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let path = dir.path().to_str().unwrap();
    let output = braid(&["shell", path, "-c", "drop uniform-2000-100"]);
    expect_code(&output, 0);
    let before = file_of(dir.path(), "data").metadata().unwrap().len();
    let output = braid(&["compact", path]);
    expect_code(&output, 0);
    assert!(stdout(&output).contains("before"), "{}", stdout(&output));
    let after = file_of(dir.path(), "data").metadata().unwrap().len();
    assert!(after < before / 2, "{before} {after}");
    expect_code(&braid(&["verify", path]), 0);
    let output = braid(&["upgrade", path]);
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("which is current"),
        "{}",
        stdout(&output)
    );
    for command in ["compact", "upgrade"] {
        expect_code(&braid(&[command, "/nonexistent"]), 1);
    }
}
