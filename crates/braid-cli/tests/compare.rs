//! `braid bench compare`, as users run it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Whether this build draws plots.
const PLOTS: bool = cfg!(feature = "plots");

fn compare(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(["bench", "compare"])
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario")]
fn a_small_comparison_from_one_end_to_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    let place = |name: &str| out.join(name);
    let args = |rest: &[&'static str]| {
        let mut args = vec!["--out".to_owned(), out.display().to_string()];
        args.extend([
            "--dir".to_owned(),
            dir.path().join("db").display().to_string(),
        ]);
        args.extend(rest.iter().map(ToString::to_string));
        args
    };
    let run = |args: Vec<String>| compare(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let small = args(&[
        "--engines=braid",
        "--device=memory",
        "--workloads=u1,ycsb-c",
        "--threads=1,3",
        "--in-flight=1,20",
        "--repeat=2",
        "--records=500",
        "--seconds=0.1",
        "--warm-up=0.01",
    ]);
    let output = run(small.clone());
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let plots = ["report.html, and 8 plots next to it", "--features plots"];
    assert!(said.contains(plots[usize::from(!PLOTS)]), "{said}");

    // 2 repeats, 2 numbers of threads, 2 of commits in flight; the bare log only for workloads that
    // write.
    let mut rows = csv_rows(&place("measurements.csv"));
    let count = |engine: &str, workload: &str| {
        let of = |row: &&BTreeMap<String, String>| {
            row["engine"] == engine && row["workload"] == workload
        };
        rows.iter().filter(of).count()
    };
    assert_eq!(count("braid", "u1"), 8);
    assert_eq!(count("braid", "ycsb-c"), 4);
    assert_eq!(count("bare-log", "u1"), 8);
    assert_eq!(count("bare-log", "ycsb-c"), 0);
    let order: Vec<_> = rows
        .iter()
        .map(|r| r["sequence"].parse::<usize>().unwrap())
        .collect();
    assert_eq!(order, (0..rows.len()).collect::<Vec<_>>());
    // The second repeat begins with the other engine.
    let turns: Vec<_> = rows
        .chunks(4)
        .take(4)
        .map(|visit| visit[0]["engine"].as_str())
        .collect();
    assert_eq!(turns, ["braid", "bare-log", "bare-log", "braid"]);
    let staged = rows
        .iter()
        .find(|r| r["engine"] == "braid" && r["workload"] == "u1" && r["in_flight"] == "1")
        .unwrap();
    for column in [
        "tx_per_s",
        "p50_us",
        "p999_us",
        "cpu_us_per_tx",
        "log_bytes_per_tx",
        "execute_us",
        "write_us",
    ] {
        assert!(
            staged[column].parse::<f64>().unwrap() > 0.0,
            "{column}: {staged:?}"
        );
    }

    if PLOTS {
        check_report(&out, &mut rows);
    }

    // Results are not overwritten, but can be redrawn.
    let output = run(small);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--redraw"),
        "{}",
        text(&output.stderr)
    );
    if PLOTS {
        let page = fs::read_to_string(place("report.html")).unwrap();
        fs::remove_file(place("report.html")).unwrap();
        let output = run(args(&["--redraw"]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(place("report.html")).unwrap(), page);
    }
}

/// Checks that the report and the plots of the comparison above agree with its rows.
fn check_report(out: &Path, rows: &mut [BTreeMap<String, String>]) {
    let place = |name: &str| out.join(name);
    let page = fs::read_to_string(place("report.html")).unwrap();
    let mut rates: Vec<f64> = rows
        .iter_mut()
        .filter(|r| {
            r["engine"] == "braid"
                && r["workload"] == "u1"
                && r["threads"] == "3"
                && r["in_flight"] == "20"
        })
        .map(|r| r["tx_per_s"].parse().unwrap())
        .collect();
    rates.sort_by(f64::total_cmp);
    let median = f64::midpoint(rates[0], rates[1]);
    let wanted = format!(
        "data-point=\"u1/braid/3/20\" data-metric=\"transactions/s\" data-median=\"{median}\" \
         data-min=\"{}\" data-max=\"{}\"",
        rates[0], rates[1]
    );
    assert!(page.contains(&wanted), "{wanted}");
    assert!(
        page.matches("class=\"plot\"").count() == 8,
        "every plot is in the page"
    );
    assert!(page.contains("peer-redb") || !page.contains("built without it"));
    for name in [
        "u1-throughput",
        "u1-latency",
        "u1-share",
        "u1-20-in-flight-throughput",
        "ycsb-c-throughput",
    ] {
        let Ok(svg) = fs::read_to_string(place(&format!("{name}.svg"))) else {
            panic!("{name}.svg is missing");
        };
        assert!(
            svg.starts_with("<svg") && svg.contains("\nbraid\n"),
            "{name}"
        );
        let png = fs::read(place(&format!("{name}.png"))).unwrap();
        assert!(
            png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 5_000,
            "{name}"
        );
    }
}

#[test]
fn loads_are_compared_from_empty_databases() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    let db = dir.path().join("db");
    let output = compare(&[
        "--engines=braid",
        "--workloads=load",
        "--threads=1,2",
        "--repeat=2",
        "--records=3000",
        "--seconds=0.01",
        "--out",
        out.to_str().unwrap(),
        "--dir",
        db.to_str().unwrap(),
    ]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let plots = ["report.html, and 2 plots next to it", "--features plots"];
    assert!(said.contains(plots[usize::from(!PLOTS)]), "{said}");
    let rows = csv_rows(&out.join("measurements.csv"));
    assert_eq!(rows.len(), 4, "nobody but Braid: {rows:?}");
    for row in &rows {
        let number = |column: &str| row[column].parse::<f64>().unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        let seconds = number("seconds");
        assert!(close(number("records_per_s") * seconds, 3_000.0), "{row:?}");
        let bytes = number("mb_per_s") * seconds * 1e6;
        assert!(close(bytes, 3_000.0 * 1_008.0), "{row:?}");
    }
    assert!(!db.join("braid").exists(), "its data is removed");

    if !PLOTS {
        return;
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for metric in ["seconds", "records/s", "MB/s"] {
        let cell = format!("data-point=\"load/braid/2/1\" data-metric=\"{metric}\"");
        assert!(page.contains(&cell), "{cell}");
    }
    assert!(!page.contains("share of bare log"));
    for name in ["load-throughput.svg", "load-elapsed.png"] {
        assert!(out.join(name).exists(), "{name}");
    }
}

/// Returns the rows of a file without quotes, by the names in its first line.
fn csv_rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let table = fs::read_to_string(path).unwrap();
    let mut lines = table.lines().map(|line| line.split(',').map(str::to_owned));
    let names: Vec<String> = lines.next().unwrap().collect();
    lines
        .map(|line| names.iter().cloned().zip(line).collect())
        .collect()
}

#[test]
fn bad_options_are_reported_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    let path = out.to_str().unwrap();
    for (args, word) in [
        (&["--threads=0"][..], "threads"),
        (&["--threads=1,x"], "--threads"),
        (&["--in-flight=0"], "in-flight"),
        (&["--repeat=0"], "repeat"),
        (&["--data-over-pool=0"], "data-over-pool"),
        (&["--seconds=0"], "--seconds"),
        (&["--workloads=u2"], "u2"),
        (&["--engines=oracle"], "wiredtiger"),
        (&["--records=0"], "records"),
    ] {
        let output = compare(&[args, &["--out", path]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(!out.exists(), "{args:?}");
    }
    let output = compare(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--out"));
    let output = compare(&["--redraw", "--out", path]);
    let (code, word) = if PLOTS {
        (1, "run.json")
    } else {
        (2, "--features plots")
    };
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(word), "{said}");
}

#[test]
#[cfg(not(feature = "peers"))]
fn an_engine_that_is_not_here_is_named_with_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    let output = compare(&["--engines=braid,redb", "--out", out.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("redb") && said.contains("peer-redb"),
        "{said}"
    );
}
