//! The `braid` binary, as users run it.

use std::fs;
use std::path::Path;
use std::process::{
    Output, {Command, Stdio},
};

use serde_json::Value;

use crate::common::{braid, braid_in, expect_code, stderr, stdout};

/// A small database on the disk in `dir`.
fn make_database(dir: &Path) {
    let path = dir.to_str().unwrap();
    let output = braid(&[
        "bench",
        "u1",
        "--seconds",
        "0.2",
        "--records",
        "2000",
        "--dir",
        path,
        "--json",
    ]);
    expect_code(&output, 0);
}

/// The database's file whose name starts with `prefix`.
fn file_of(dir: &Path, prefix: &str) -> std::path::PathBuf {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(prefix)
        })
        .collect();
    names.sort();
    names
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("no {prefix} file in {}", dir.display()))
}

#[test]
fn demo_survives_its_kills() {
    for protocol in ["glsn", "serial"] {
        let dir = tempfile::tempdir().unwrap();
        let args = [
            "demo",
            "--seconds",
            "4",
            "--kills",
            "3",
            "--threads",
            "4",
            "--protocol",
            protocol,
        ];
        let output = braid_in(dir.path(), &args);
        expect_code(&output, 0);
        let text = stdout(&output);
        assert!(
            text.contains("kill 3") && text.contains("4 passed"),
            "{text}"
        );
        assert!(!text.contains("VIOLATED"), "{text}");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert!(
            left.is_empty(),
            "the temporary directory is removed: {left:?}"
        );
    }
}

#[test]
fn bench_json_has_every_field() {
    for args in [
        &[
            "bench",
            "u1",
            "--protocol",
            "glsn",
            "--threads",
            "2",
            "--in-flight",
            "8",
        ][..],
        &[
            "bench",
            "ycsb-a",
            "--protocol",
            "serial",
            "--records",
            "3000",
        ],
        &[
            "bench",
            "ycsb-c",
            "--device",
            "memory",
            "--records",
            "3000",
            "--threads",
            "2",
        ],
        &["bench", "u10", "--device", "file", "--value-size", "64"],
    ] {
        let args = [args, &["--seconds", "0.3", "--json"]].concat();
        let output = braid(&args);
        expect_code(&output, 0);
        let text = stdout(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["workload"], args[1]);
        for field in ["protocol", "device"] {
            assert!(
                report[field].as_str().is_some_and(|s| !s.is_empty()),
                "{field}: {text}"
            );
        }
        for field in [
            "threads",
            "in_flight",
            "tx_per_s",
            "p50_us",
            "p99_us",
            "p999_us",
            "mean_us",
            "log_bytes_per_tx",
            "device_bytes_per_tx",
            "cpu_us_per_tx",
            "aborts",
            "flushes_per_s",
            "tx_per_flush",
        ] {
            assert!(
                report[field].as_f64().is_some_and(|n| n >= 0.0),
                "{field}: {text}"
            );
        }
        assert!(report["tx_per_s"].as_f64().unwrap() > 0.0, "{text}");
        if args[1] != "ycsb-c" {
            assert!(report["log_bytes_per_tx"].as_f64().unwrap() > 0.0, "{text}");
        }
    }
}

#[test]
fn every_workload_is_in_the_help_with_a_sentence() {
    let output = braid(&["bench", "--help"]);
    expect_code(&output, 0);
    let help = stdout(&output);
    for workload in braid_bench::Workload::ALL {
        let line = format!("- {}:", workload.name());
        let (_, sentence) = help
            .split_once(&line)
            .unwrap_or_else(|| panic!("{line} {help}"));
        assert!(sentence.trim_start().len() > 10, "{line}");
    }
}

#[test]
fn tpcc_is_checked_after_the_run() {
    let args = ["bench", "tpcc", "--warehouses", "2", "--records", "300"];
    let rest = [
        "--threads",
        "2",
        "--in-flight",
        "4",
        "--seconds",
        "0.5",
        "--json",
    ];
    let output = braid(&[&args[..], &rest].concat());
    expect_code(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(report["checks"].as_u64().unwrap() > 12, "{report}");
    assert_eq!(report["violations"].as_array().unwrap().len(), 0);
    assert!(report["response_mean_us"].as_f64().unwrap() > 0.0);
    let kinds = report["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), 5, "{report}");
    assert!(kinds[0]["done"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn a_killed_workload_keeps_acknowledged_transactions() {
    for workload in ["tpcc", "tpcb", "bank"] {
        let dir = tempfile::tempdir().unwrap();
        let args = ["bench", workload, "--records", "300", "--threads", "2"];
        let rest = ["--in-flight", "8", "--seconds", "0.5", "--kill", "2"];
        let output = braid_in(dir.path(), &[&args[..], &rest].concat());
        expect_code(&output, 0);
        let text = stdout(&output);
        assert_eq!(text.lines().count(), 2, "{text}");
        for line in text.lines() {
            assert!(line.contains("recovered in"), "{text}");
        }
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is left"
        );
    }
    let output = braid(&["bench", "u1", "--records", "100", "--kill"]);
    expect_code(&output, 2);
    assert!(stderr(&output).contains("tpcc"), "{}", stderr(&output));
}

#[test]
fn the_limit_is_measured_alongside_the_run() {
    let output = braid(&["bench", "u1", "--seconds", "0.2", "--with-limit", "--json"]);
    expect_code(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    // Cargo puts a program into a directory with the name of its profile.
    let program = Path::new(env!("CARGO_BIN_EXE_braid"));
    let profile = program.parent().unwrap().file_name().unwrap();
    assert_eq!(report["profile"], profile.to_str().unwrap(), "{report}");
    let (rate, limit) = (&report["tx_per_s"], &report["limit_tx_per_s"]);
    let ratio = rate.as_f64().unwrap() / limit.as_f64().unwrap();
    assert!(
        (report["limit_ratio"].as_f64().unwrap() - ratio).abs() < 1e-6,
        "{report}"
    );
}

#[test]
fn bench_paper_writes_tables_and_plots() {
    let dir = tempfile::tempdir().unwrap();
    let quick = ["--seconds", "0.01", "--threads", "1,2", "--records", "300"];
    for (figure, name, series) in [
        ("gwsn-5", "gwsn-5", "fetch_add (48)"),
        ("pwal-u1", "pwal-13", "gwsn-strict"),
        ("gwsn-engine", "gwsn-engine-u10", "epoch"),
        ("pwal-15", "pwal-15", "without trim"),
    ] {
        let args = [&["bench", "paper", figure][..], &quick].concat();
        let output = braid_in(dir.path(), &args);
        expect_code(&output, 0);
        assert!(stdout(&output).contains(series), "{}", stdout(&output));
        let file = |ending| {
            let path = dir.path().join(format!("paper-figures/{name}.{ending}"));
            fs::read_to_string(path)
        };
        let csv = file("csv").unwrap();
        assert!(csv.contains(series), "{csv}");
        match file("svg") {
            Ok(svg) => assert!(svg.starts_with("<svg") && svg.contains(series)),
            Err(error) if cfg!(feature = "plots") => panic!("{error}"),
            Err(_) => {}
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the figures are left");
    let output = braid(&["bench", "paper", "gwsn-5", "--threads", "0"]);
    expect_code(&output, 2);
}

#[test]
fn bench_device_measures_durable_writes() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "device", "--seconds", "0.01"];
    let output = braid_in(dir.path(), &[&args[..], &["--json"]].concat());
    expect_code(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(
        report["durable_4k_per_s"].as_f64().unwrap() > 0.0,
        "{report}"
    );
    assert!(report["rows"].as_array().unwrap().len() > 10, "{report}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing is left"
    );

    let output = braid(&[&args[..], &["--device", "memory"]].concat());
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("strands-gathered"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn bench_recovery_replays_the_log_of_a_killed_process() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "recovery", "--log-mib", "128", "--json"];
    let output = braid_in(dir.path(), &args);
    expect_code(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(report["transactions"].as_u64().unwrap() > 0, "{report}");
    assert!(report["mib_per_s"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing is left"
    );
}

#[test]
fn bench_stalls_compares_each_scenario_with_a_quiet_run() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "bench",
        "stalls",
        "--scenario",
        "stats,bulk-load",
        "--scale",
        "0.001",
        "--seconds",
        "0.2",
        "--rate",
        "500",
    ];
    let output = braid_in(dir.path(), &[&args[..], &["--json"]].concat());
    expect_code(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| &row["scenario"]).collect();
    assert_eq!(names, ["quiet", "bulk-load", "stats"]);
    assert!(rows.iter().all(|row| row["error"].is_null()), "{report}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing is left"
    );

    let with_figure = [&args[..], &["--figure", "stalls.svg"]].concat();
    let output = if cfg!(feature = "plots") {
        let output = braid_in(dir.path(), &with_figure);
        let figure = fs::read_to_string(dir.path().join("stalls.svg")).unwrap();
        assert!(figure.contains("bulk-load"), "{figure}");
        output
    } else {
        let output = braid_in(dir.path(), &with_figure);
        expect_code(&output, 2);
        assert!(stderr(&output).contains("--features plots"));
        braid_in(dir.path(), &args)
    };
    expect_code(&output, 0);
    let text = stdout(&output);
    for part in ["500 commits/s", "quiet", "(baseline)", "bare p99.9"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn bench_for_people_is_a_table() {
    let output = braid(&["bench", "u1", "--seconds", "0.2", "--device", "memory"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    for row in [
        "workload",
        "transactions/s",
        "commit latency",
        "log",
        "conflicts retried",
    ] {
        assert!(text.contains(row), "{row}: {text}");
    }
}

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
fn bad_usage_exits_with_2() {
    for args in [
        &["frobnicate"][..],
        &["bench"],
        &["bench", "u2"],
        &["bench", "u1", "--threads", "0"],
        &["bench", "u1", "--in-flight", "-1"],
        &["bench", "u1", "--seconds", "0"],
        &["bench", "u1", "--seconds", "soon"],
        &["bench", "u1", "--protocol", "paxos"],
        &["bench", "u1", "--device", "tape"],
        &["bench", "u1", "--records", "0"],
        &["bench", "u1", "--value-size", "1"],
        &["bench", "ycsb-c", "--with-limit"],
        &["bench", "recovery", "--device", "memory"],
        &["bench", "stalls", "--device", "memory"],
        &["bench", "stalls", "--scenario", "noise"],
        &["bench", "stalls", "--engine", "brade"],
        &["bench", "stalls", "--scale", "0"],
        &["bench", "stalls", "--rate", "-1"],
        &["bench", "recovery", "--workload", "ycsb-c"],
        &["demo", "--device", "memory"],
        &["demo", "--accounts", "1"],
        &["stat"],
    ] {
        let output = braid(args);
        expect_code(&output, 2);
        assert!(!stderr(&output).is_empty(), "{args:?}");
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error() {
    let output = braid(&["bench", "u1", "--seconds", "0.1", "--dir", "/proc/nowhere"]);
    expect_code(&output, 1);
    assert!(
        stderr(&output).starts_with("braid: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    make_database(dir.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(["dump", dir.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    expect_code(&child.wait_with_output().unwrap(), 0);
}

#[test]
fn help_names_every_command() {
    let output = braid(&["--help"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    for command in [
        "demo", "bench", "stat", "verify", "dump", "export", "import", "shell", "compact",
        "upgrade", "pmem",
    ] {
        assert!(text.contains(command), "{command}: {text}");
        expect_code(&braid(&[command, "--help"]), 0);
    }
    assert!(!text.contains("demo-worker"), "{text}");
}

#[test]
fn simulate_runs_histories_and_reports_a_violation_with_its_seed() {
    let output = braid(&["simulate", "--seeds", "3..40", "--jobs", "2"]);
    expect_code(&output, 0);
    let out = stdout(&output);
    assert!(out.starts_with("37 histories, "), "{out}");
    assert!(out.contains("states recovered"), "{out}");

    let lying = "lies=true,crashes=true,media_faults=false";
    let args = [
        "--seeds",
        "0..200",
        "--protocol",
        "glsn",
        "--with",
        lying,
        "--shrink",
    ];
    let output = braid(&[&["simulate"], &args[..]].concat());
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("the history of seed"),
        "{}",
        stderr(&output)
    );
    let out = stdout(&output);
    let again = out
        .lines()
        .find_map(|line| line.strip_prefix("again: braid "))
        .unwrap();
    let output = braid(&again.split(' ').collect::<Vec<_>>());
    expect_code(&output, 1);

    for nonsense in [
        &["--seeds", "5..5"],
        &["--protocol", "best"],
        &["--with", "keys=0"],
    ] {
        expect_code(&braid(&[&["simulate"], &nonsense[..]].concat()), 2);
    }
}

fn json_lines(output: &Output) -> Vec<Value> {
    let lines = stdout(output);
    let parse = |line| serde_json::from_str(line).expect("a line is JSON");
    lines.lines().map(parse).collect()
}

#[test]
fn a_database_is_backed_up_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    make_database(&dir.path().join("db"));
    expect_code(&braid(&["backup", "db", "full"]), 0);
    expect_code(&braid(&["archive", "db", "archive"]), 0);
    let incremental = braid(&["backup", "db", "next", "--incremental-from", "full"]);
    expect_code(&incremental, 0);
    let text = stdout(&incremental);
    assert!(
        text.contains("next: 0 of ") && text.contains("number"),
        "{text}"
    );
    expect_code(&braid(&["restore", "full", "next", "restored"]), 0);
    expect_code(&braid(&["verify", "restored"]), 0);
    let archived = braid(&["restore", "full", "again", "--archive", "archive"]);
    expect_code(&archived, 0);
    let stat = |name| {
        let text = stdout(&braid(&["stat", name]));
        let is_table = |line: &&str| line.starts_with("              ");
        text.lines()
            .filter(is_table)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(
        !stat("db").is_empty() && stat("db") == stat("restored") && stat("db") == stat("again")
    );
    // The error names the problem, and nothing is written.
    for (args, what) in [
        (
            &["restore", "next", "x"][..],
            "it is incremental and builds on",
        ),
        (
            &["restore", "full", "restored"],
            "choose an empty or new place",
        ),
        (
            &["restore", "full", "x", "--until-seqno", "1"],
            "cannot restore up to ",
        ),
        (
            &["restore", "db/LOCK", "x"],
            "it is not a backup of a Braid database",
        ),
        (&["backup", "db", "full"], "choose an empty or new place"),
        (&["backup", "missing", "x"], "missing"),
        (
            &[
                "restore",
                "full",
                "y",
                "--archive",
                "archive",
                "--until-time",
                "2001-01-01T00:00:00Z",
            ],
            "cannot restore up to ",
        ),
    ] {
        let output = braid(args);
        expect_code(&output, 1);
        assert!(
            stderr(&output).contains(what),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    assert!(!dir.path().join("x/data.braid").exists());
    let nonsense = [
        "restore",
        "full",
        "x",
        "--archive",
        "a",
        "--until-time",
        "noon",
    ];
    expect_code(&braid(&nonsense), 2);
    expect_code(&braid(&["restore", "full"]), 2);
}

/// The archive begins after the backup: what lies between is named, by the command and when
/// restoring.
#[test]
fn an_archive_reports_missing_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let put = |key: &str| {
        let command = format!("put t {key} 1");
        expect_code(&braid(&["shell", "db", "-c", &command]), 0);
    };
    let create = "create t string u64; put t a 1";
    expect_code(&braid(&["shell", "db", "--create", "-c", create]), 0);
    expect_code(&braid(&["backup", "db", "full"]), 0);
    put("b");
    for _ in 0..2 {
        let archive = braid(&["archive", "db", "archive"]);
        expect_code(&archive, 1);
        let error = stderr(&archive);
        assert!(
            error.contains("lacks the transactions with sequence numbers")
                && error.contains("new backup"),
            "{error}"
        );
        let restore = braid(&["restore", "full", "restored", "--archive", "archive"]);
        expect_code(&restore, 1);
        let error = stderr(&restore);
        assert!(error.contains("the archive lacks"), "{error}");
        assert!(!dir.path().join("restored").exists());
    }
    let restore = braid(&["restore", "full", "restored", "--archive", "elsewhere"]);
    expect_code(&restore, 1);
    // From a new backup on, nothing is missing, whatever is written without the archive.
    expect_code(&braid(&["backup", "db", "next"]), 0);
    put("c");
    put("d");
    let archive = braid(&["archive", "db", "archive"]);
    expect_code(&archive, 0);
    assert!(stdout(&archive).contains("complete up to"));
    let restore = braid(&["restore", "next", "restored", "--archive", "archive"]);
    expect_code(&restore, 0);
    let count = braid(&["shell", "restored", "-c", "count t"]);
    assert_eq!(stdout(&count).trim(), "4");
    // A copy of the database has to archive elsewhere.
    fs::create_dir(dir.path().join("copy")).unwrap();
    for entry in fs::read_dir(dir.path().join("db")).unwrap() {
        let from = entry.unwrap().path();
        let to = dir.path().join("copy").join(from.file_name().unwrap());
        fs::copy(from, to).unwrap();
    }
    put("e");
    expect_code(&braid(&["archive", "db", "archive"]), 0);
    let refused = braid(&["archive", "copy", "archive"]);
    expect_code(&refused, 1);
    let error = stderr(&refused);
    assert!(
        error.contains("another copy") && error.contains("OWNER"),
        "{error}"
    );
    // No log is kept for an archive that was ended.
    expect_code(&braid(&["archive", "db", "--end"]), 0);
    put("f");
    expect_code(&braid(&["archive", "db", "archive"]), 1);
    expect_code(&braid(&["archive", "db"]), 2);
}

#[test]
fn changes_are_lines_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let braid = |args: &[&str]| braid_in(dir.path(), args);
    let put = |key: &str, value: u32| {
        let db = braid::Database::open(&path).unwrap();
        let table = db.open_table::<String, u32>("stock").unwrap();
        db.transact(|tx| tx.insert(&table, key, &value)).unwrap();
        db.close().unwrap();
    };
    put("cups", 1);
    expect_code(&braid(&["changes", "db", "--feed", "f"]), 0);
    put("tea", 7);
    put("pots", 9);
    let output = braid(&["changes", "db"]);
    expect_code(&output, 0);
    let all = json_lines(&output);
    let keys: Vec<_> = all
        .iter()
        .map(|set| set["changes"][0]["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["746561", "706f7473"], "tea, pots");
    assert_eq!(all[0]["changes"][0]["table"], "stock");
    assert!(all[0]["changes"][0]["value"].is_string());
    let number = all[0]["seqno"].to_string();
    let later = json_lines(&braid(&["changes", "db", "--from", &number]));
    assert_eq!(later, all[1..]);
    // The feed is acknowledged with what was printed.
    assert_eq!(json_lines(&braid(&["changes", "db", "--feed", "f"])), all);
    assert_eq!(
        json_lines(&braid(&["changes", "db", "--feed", "f"])),
        [Value::Null; 0]
    );
    let lost = braid(&["changes", "db", "--from", "0"]);
    expect_code(&lost, 1);
    assert!(
        stderr(&lost).contains("the log keeps only those after"),
        "{}",
        stderr(&lost)
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
