//! `braid pmem`: regions of persistent memory.

#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_pmem::{Heap, HeapOptions, MapAs, Region, RegionOptions};
use serde_json::Value;

use crate::common::{braid, expect_code, stderr, stdout};

const EMULATED: MapAs = MapAs::Emulated { line_latency: 0 };

struct Fixture {
    _directory: tempfile::TempDir,
    file: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            file: directory.path().join("region"),
            _directory: directory,
        }
    }

    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }

    /// Runs a subcommand for the region's file.
    #[track_caller]
    fn run(&self, command: &str, options: &[&str], code: i32) -> (String, String) {
        let output = braid(&[&["pmem", command, self.file()], options].concat());
        expect_code(&output, code);
        (stdout(&output), stderr(&output))
    }

    fn created() -> Self {
        let fixture = Self::new();
        let (out, _) = fixture.run("create", &["--size", "2", "--kind", "emulated"], 0);
        assert!(out.contains("created, 2.0 MiB (emulated"), "{out}");
        fixture
    }

    fn open(&self) -> Region {
        Region::open(&self.file, &RegionOptions::default().map_as(EMULATED)).unwrap()
    }
}

fn overwrite(file: &Path, offset: usize, bytes: &[u8]) {
    let mut contents = fs::read(file).unwrap();
    contents[offset..offset + bytes.len()].copy_from_slice(bytes);
    fs::write(file, contents).unwrap();
}

#[test]
fn a_created_region_is_shown_and_sound() {
    let fixture = Fixture::created();
    let (out, _) = fixture.run("info", &[], 0);
    for part in ["2.0 MiB, in pages of 4,096 bytes", "closed", "for lines of"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (out, _) = fixture.run("info", &["--json"], 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    let identity = fixture.open().identity();
    assert_eq!(json["identity"], format!("{identity:032x}"));
    assert_eq!(
        (&json["bytes"], &json["closed"]),
        (&(2 << 20).into(), &true.into())
    );
    assert_eq!(json["heaps"], Value::Array(Vec::new()));
    let (out, _) = fixture.run("check", &[], 0);
    assert!(out.contains("sound (2.0 MiB, closed)"), "{out}");
}

#[test]
fn a_heap_is_counted_while_the_region_is_open() {
    let fixture = Fixture::created();
    let region = Arc::new(fixture.open());
    let options = HeapOptions::default()
        .piece_size(64 << 10)
        .max_bytes(512 << 10)
        .classes(&[4096]);
    let heap = Heap::create(Arc::clone(&region), Region::DATA_START, &options).unwrap();
    let block = heap.allocate(4096).unwrap();
    heap.publish(block.offset).unwrap();
    heap.allocate(4096).unwrap();
    region.set_root(2, Region::DATA_START).unwrap();
    let (out, _) = fixture.run("info", &[], 0);
    let line = "heap          at offset 131,072: 1 blocks with 0.0 MiB in use, 1 pending, 13 free";
    assert!(out.contains(line), "{out}");
    assert!(out.contains("open in another process"), "{out}");
    assert!(out.contains("root          2: 131,072"), "{out}");
    fixture.run("check", &[], 0);
    let (out, _) = fixture.run("info", &["--json"], 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["heaps"][0]["bytes_in_use"], 4096);
    drop((heap, region));

    // A word of the heap without a meaning: the state of its first block.
    let first_piece = fs::read(&fixture.file).unwrap();
    let state = first_piece
        .windows(8)
        .position(|word| word == (2_u64 | !2_u64 << 32).to_le_bytes());
    overwrite(&fixture.file, state.unwrap(), &[7]);
    let (out, err) = fixture.run("check", &[], 1);
    assert!(
        out.contains("damaged: the heap is damaged at offset"),
        "{out}"
    );
    assert!(err.contains("1 place damaged"), "{err}");
}

#[test]
fn a_damaged_header_copy_is_found_and_repaired_by_the_next_opening() {
    let fixture = Fixture::created();
    overwrite(&fixture.file, 32, &[9; 8]);
    let before = fs::read(&fixture.file).unwrap();
    let (out, _) = fixture.run("check", &[], 1);
    assert!(
        out.contains("damaged: the copy of the header at offset 0 is invalid"),
        "{out}"
    );
    fixture.run("info", &[], 0);
    assert!(
        fs::read(&fixture.file).unwrap() == before,
        "the file was changed"
    );
    drop(fixture.open());
    fixture.run("check", &[], 0);
}

/// Changes a word of both copies of the header, as another machine or version would have written it.
fn rewrite_header(file: &Path, word: usize, value: impl Fn(u64) -> u64) {
    let mut contents = fs::read(file).unwrap();
    for copy in [0, 1 << 16] {
        let (body, sum) = contents[copy..copy + 128].split_at_mut(120);
        let bytes = &mut body[word * 8..][..8];
        let changed = value(u64::from_le_bytes(bytes.try_into().unwrap()));
        bytes.copy_from_slice(&changed.to_le_bytes());
        let crc = u64::from(crc32c::crc32c(body));
        sum.copy_from_slice(&(crc | !crc << 32).to_le_bytes());
    }
    fs::write(file, contents).unwrap();
}

#[test]
fn a_region_of_another_machine_is_opened_or_named() {
    let fixture = Fixture::created();
    // Flushed by an instruction that this program does not know.
    rewrite_header(&fixture.file, 6, |word| word & !0xffff_ffff | 250);
    let (out, _) = fixture.run("info", &[], 0);
    assert!(out.contains("unknown, by the newest writer"), "{out}");
    fixture.run("check", &[], 0);
    drop(fixture.open());
    let (out, _) = fixture.run("info", &[], 0);
    assert!(!out.contains("unknown"), "{out}");

    let sound = fs::read(&fixture.file).unwrap();
    for (word, value, says) in [
        (5, 4096 | 128 << 32, "made for cache lines of 128 bytes"),
        (1, 2, "it has format version 2"),
        (4, 4 << 20, "it has 2097152 bytes, and needs 4194304"),
    ] {
        rewrite_header(&fixture.file, word, |_| value);
        let other = fs::read(&fixture.file).unwrap();
        for command in ["info", "check"] {
            let (_, err) = fixture.run(command, &[], 1);
            assert!(err.contains(says), "{err}");
        }
        let options = RegionOptions::default().map_as(EMULATED);
        Region::open(&fixture.file, &options).unwrap_err();
        assert!(fs::read(&fixture.file).unwrap() == other, "{says}");
        fs::write(&fixture.file, &sound).unwrap();
    }
    fixture.run("check", &[], 0);
}

#[test]
fn a_region_of_another_page_size_is_shown_and_kept() {
    let fixture = Fixture::new();
    let options = ["--size", "2", "--kind", "emulated", "--page-size", "16384"];
    fixture.run("create", &options, 0);
    let (out, _) = fixture.run("info", &[], 0);
    assert!(out.contains("in pages of 16,384 bytes"), "{out}");
    fixture.run("check", &[], 0);
    let before = fs::read(&fixture.file).unwrap();
    let options = RegionOptions::default().map_as(EMULATED).page_size(4096);
    let error = Region::open(&fixture.file, &options).unwrap_err();
    assert!(
        error.to_string().contains("open it with its own page size"),
        "{error}"
    );
    assert!(fs::read(&fixture.file).unwrap() == before);
}

#[test]
fn files_that_are_no_regions_are_refused_and_kept() {
    let fixture = Fixture::new();
    for command in ["info", "check"] {
        let (_, err) = fixture.run(command, &[], 1);
        assert!(err.contains("create the region first"), "{err}");
    }
    fs::write(&fixture.file, "important").unwrap();
    let (_, err) = fixture.run("create", &["--size", "2", "--kind", "emulated"], 1);
    assert!(err.contains("the file exists"), "{err}");
    for command in ["info", "check"] {
        let (_, err) = fixture.run(command, &[], 1);
        assert!(err.contains("not a region of Braid"), "{err}");
    }
    assert_eq!(fs::read(&fixture.file).unwrap(), b"important");
}

#[test]
fn options_of_pmem_create_are_checked() {
    let fixture = Fixture::new();
    for (options, what) in [
        (&["--size", "0"][..], "0 is not in 1..="),
        (
            &["--size", "2", "--page-size", "1000"],
            "must be a power of two",
        ),
        (
            &["--size", "2", "--kind", "tape"],
            "choose one of auto, dax, file, emulated",
        ),
        (&[], "--size <MIB>"),
    ] {
        let (_, err) = fixture.run("create", options, 2);
        assert!(err.contains(what), "{err}");
    }
    assert!(!fixture.file.exists());
    // The file system may have direct access after all.
    let output = braid(&[
        "pmem",
        "create",
        fixture.file(),
        "--size",
        "2",
        "--kind",
        "dax",
    ]);
    if output.status.code() != Some(0) {
        expect_code(&output, 1);
        assert!(
            stderr(&output).contains("direct access"),
            "{}",
            stderr(&output)
        );
        assert!(!fixture.file.exists());
    }
}

#[test]
fn commits_are_measured_in_each_mode_and_with_a_latency() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let bench = |options: &[&str]| {
        let common = [
            "bench",
            "u1",
            "--seconds",
            "0.1",
            "--records",
            "100",
            "--dir",
            path,
            "--json",
        ];
        braid(&[&common, options].concat())
    };
    for mode in ["eager", "lazy", "checksum"] {
        let options = [
            "--device",
            "pmem-emulated",
            "--pmem-latency",
            "100000",
            "--pmem-commit",
            mode,
        ];
        let output = bench(&options);
        expect_code(&output, 0);
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(json["device"], "pmem-emulated");
        // A commit flushes several lines.
        assert!(json["p50_us"].as_f64().unwrap() > 200.0, "{json}");
    }
    let output = bench(&["--device", "file", "--pmem-latency", "100"]);
    expect_code(&output, 2);
    let err = stderr(&output);
    assert!(
        err.contains("applies to --device pmem-emulated, not to file"),
        "{err}"
    );
    let output = bench(&["--pmem-commit", "late"]);
    expect_code(&output, 2);
    assert!(
        stderr(&output).contains("choose one of eager, lazy, checksum"),
        "{}",
        stderr(&output)
    );
}
