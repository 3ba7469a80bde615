//! `braid bench` and `braid demo`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{braid, braid_in, expect_code, stderr, stdout};

#[test]
fn demo_survives_its_kills() {
    for (protocol, tablespaces) in [("glsn", "2"), ("serial", "0")] {
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
            "--tablespaces",
            tablespaces,
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
        ("nvwal", "nvwal-bytes", "update, differences"),
        ("goldenx-cla", "goldenx-cla-time", "changed lines, 437 ns"),
        ("nvme", "nvme-ycsb-d-latency", "file system"),
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
    let model = ["bench", "paper", "goldenx", "--model", "remote-latency"];
    let quick = ["--seconds", "0.005", "--threads", "1", "--records", "100"];
    let output = braid_in(dir.path(), &[&model[..], &quick].concat());
    expect_code(&output, 0);
    let shown = stdout(&output);
    assert!(
        shown.contains("(modelled: remote latency, 3 ns a unit)"),
        "{shown}"
    );
    let csv = fs::read_to_string(dir.path().join("paper-figures/goldenx-nodes-ycsb-e.csv"));
    let csv = csv.unwrap();
    assert!(csv.contains("each with its own log,1,"), "{csv}");
    assert_eq!(
        csv.lines().count(),
        1 + 6,
        "a point for each placement, and two with agents: {csv}"
    );
    let saved = "saved by reads,4,3460";
    let handover = fs::read_to_string(dir.path().join("paper-figures/goldenx-handover.csv"));
    assert!(handover.unwrap().contains(saved));
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
fn bench_tablespaces_measures_transactions_across_two_and_logs_on_two_devices() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "bench",
        "tablespaces",
        "--device",
        "memory",
        "--seconds",
        "0.05",
        "--repeat",
        "1",
        "--bandwidth",
        "256",
    ];
    let output = braid_in(dir.path(), &[&args[..], &["--json"]].concat());
    expect_code(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| (row["tablespaces"].as_u64(), row["in_flight"].as_u64()))
        .collect();
    let expected = [(1, 1), (2, 1), (1, 1000), (2, 1000)];
    assert_eq!(
        kinds,
        expected.map(|(spaces, most)| (Some(spaces), Some(most)))
    );
    for row in rows {
        for figure in ["tx_per_s", "p50_us", "p99_us"] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{figure}: {report}");
        }
    }
    for figure in ["one_mib_per_s", "two_mib_per_s"] {
        assert!(report[figure].as_f64().unwrap() > 0.0, "{report}");
    }
    let output = braid_in(dir.path(), &args);
    expect_code(&output, 0);
    assert!(stdout(&output).contains("of two tablespaces on two"));
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

/// `scripts/stalls-table.sh` makes the table from what the command prints.
#[test]
#[cfg(target_os = "linux")]
fn the_script_for_stalls_prints_the_table_of_the_book() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(root.join("scripts/stalls-table.sh"))
        .arg("stats,buffered-quiet")
        .env("BRAID", env!("CARGO_BIN_EXE_braid"))
        .env("DIR", dir.path())
        .env("SCALE", "0.001")
        .env("SECONDS_EACH", "0.1")
        .output()
        .unwrap();
    expect_code(&output, 0);
    let (text, page) = (
        stdout(&output),
        fs::read_to_string(root.join("docs/stalls.md")),
    );
    let page = page.unwrap();
    let is_row = |line: &&str| line.starts_with("| `") && line.matches('|').count() == 10;
    let head = text
        .lines()
        .find(|line| line.starts_with("| next"))
        .unwrap();
    assert!(page.contains(&format!("\n{head}\n")), "{head}");
    let names: Vec<_> = text.lines().filter(is_row).collect();
    for (row, (name, end)) in names.iter().zip([
        ("`quiet`", "|  |"),
        ("`stats`", "|"),
        ("`buffered-quiet`", "|"),
    ]) {
        assert!(
            row.starts_with(&format!("| {name} | ")) && row.ends_with(end),
            "{row}"
        );
        assert!(
            page.lines().filter(is_row).any(|line| line.contains(name)),
            "{name}"
        );
    }
    assert_eq!(names.len(), 3, "{text}");
    assert!(
        names[2].contains("|  |  |"),
        "buffered commits have no bare log: {text}"
    );
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
