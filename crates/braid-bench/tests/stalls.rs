//! Every scenario of `braid bench stalls` runs and is reported. Nothing is asserted about times.

use std::time::Duration;

use braid_bench::engines::peers;
use braid_bench::{
    Scenario, StallRow, StallsReport, StallsSpec, measure_stalls, stalls_figure,
    stalls_side_by_side,
};
use serde_json::Value;

/// Measures scenarios in a tiny size, and checks that no file is left.
fn measure(scenarios: &[Scenario]) -> StallsReport {
    measure_engine("braid", scenarios)
}

fn measure_engine(engine: &str, scenarios: &[Scenario]) -> StallsReport {
    let dir = tempfile::tempdir().unwrap();
    let spec = StallsSpec {
        engine: engine.to_owned(),
        scenarios: scenarios.to_vec(),
        scale: 0.001,
        seconds: Duration::from_millis(200),
        threads: 2,
        rate: Some(200.0),
        pool_bytes: Some(4 << 20),
        ..StallsSpec::new(dir.path())
    };
    let mut steps = Vec::new();
    let report = measure_stalls(&spec, &mut |what, step, steps_in_total| {
        assert!(step < steps_in_total);
        steps.push(what.to_owned());
    });
    assert_eq!(steps.len(), scenarios.len().max(1), "{steps:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    report.unwrap()
}

fn check(row: &StallRow) {
    assert_eq!(row.error, None, "{}", row.scenario);
    assert!(row.operations > 0 && row.disturbance.runs > 0, "{row:?}");
    let latency = row.latency;
    let ordered = [latency.p50_ms, latency.p99_ms, latency.p999_ms];
    assert!(ordered.is_sorted() && latency.p50_ms > 0.0, "{row:?}");
    assert!(
        row.gap_ms > 0.0 && row.gap_ms <= row.seconds * 1e3,
        "{row:?}"
    );
}

fn check_holds(row: &StallRow) {
    let gates = row.holds.iter();
    let commit_gate = gates.clone().find(|hold| hold.gate == "commit gate");
    assert!(commit_gate.unwrap().elapsed_ms > 0.0, "{row:?}");
    assert!(gates.clone().all(|hold| hold.longest_ms <= hold.elapsed_ms));
}

#[test]
fn every_scenario_runs_next_to_the_load() {
    let report = measure(&Scenario::ALL);
    let names: Vec<_> = report.rows.iter().map(|row| row.scenario).collect();
    assert_eq!(names, Scenario::ALL.map(Scenario::name));
    for (row, scenario) in report.rows.iter().zip(Scenario::ALL) {
        check(row);
        check_holds(row);
        assert_eq!(row.lateness.is_some(), scenario.is_buffered(), "{row:?}");
        assert_eq!(
            row.hot_key.is_some(),
            scenario == Scenario::HotKey,
            "{row:?}"
        );
    }
    let of = |scenario: Scenario| {
        report
            .rows
            .iter()
            .find(|row| row.scenario == scenario.name())
    };
    assert!(
        of(Scenario::Stats).unwrap().disturbance.runs > 1,
        "it repeats"
    );
    let hot = of(Scenario::HotKey).unwrap().hot_key.unwrap();
    for rate in [
        hot.fresh_updates_per_s,
        hot.fresh_reads_per_s,
        hot.updates_per_s,
        hot.reads_per_s,
    ] {
        assert!(rate > 0.0, "{hot:?}");
    }
    if cfg!(target_os = "linux") {
        assert!(of(Scenario::BulkLoad).unwrap().bare.is_some());
        assert!(of(Scenario::BufferedQuiet).unwrap().bare.is_none());
    }
    let json: Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), Scenario::ALL.len());
    assert!(json["rows"][0]["p999_ms"].is_number(), "{json}");
    let mut texts = vec![report.to_string()];
    if braid_bench::PLOTS {
        let reports = std::slice::from_ref(&report);
        texts.push(stalls_figure(reports, "stalls.svg".as_ref()).unwrap());
    }
    for text in texts {
        for name in &names {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
}

#[test]
fn the_quiet_run_is_always_measured_and_first() {
    let report = measure(&[Scenario::Stats, Scenario::Quiet]);
    let names: Vec<_> = report.rows.iter().map(|row| row.scenario).collect();
    assert_eq!(names, ["quiet", "stats"]);
    assert!(report.rows[0].exceeded.is_empty());
}

/// Scenarios that every engine with operations has.
const OF_ALL: [Scenario; 11] = [
    Scenario::Quiet,
    Scenario::LargeTransaction,
    Scenario::ScatteredWrites,
    Scenario::ColdWrites,
    Scenario::BulkLoad,
    Scenario::DropTable,
    Scenario::SnapshotVersions,
    Scenario::SnapshotRemovals,
    Scenario::Backup,
    Scenario::Compaction,
    Scenario::Stats,
];

#[test]
fn peers_run_the_scenarios_whose_operations_they_have() {
    let mut reports = vec![measure(&[Scenario::Quiet])];
    for (engine, more) in [
        ("lmdb", &[Scenario::HotKey][..]),
        ("rocksdb", &[Scenario::HotKey, Scenario::Checkpoints]),
        (
            "wiredtiger",
            &[Scenario::HotKey, Scenario::Checkpoints, Scenario::Verify],
        ),
    ] {
        let peer = peers().iter().find(|peer| peer.name == engine).unwrap();
        if let Err(note) = &peer.version {
            eprintln!("skipped {engine}: {note}");
            continue;
        }
        let report = measure_engine(engine, &Scenario::ALL);
        for (row, scenario) in report.rows.iter().zip(Scenario::ALL) {
            let has = OF_ALL.contains(&scenario) || more.contains(&scenario);
            assert_eq!(row.lacks.is_none(), has, "{engine}: {row:?}");
            if has {
                check(row);
            }
        }
        assert!(report.to_string().contains("–"), "{report}");
        reports.push(report);
    }
    let together = stalls_side_by_side(&reports);
    for report in &reports {
        assert!(together.contains(&report.engine), "{together}");
    }
    if braid_bench::PLOTS {
        let figure = stalls_figure(&reports, "stalls.svg".as_ref()).unwrap();
        assert!(figure.contains("quiet"), "{figure}");
    }
}

#[test]
fn an_engine_without_operations_runs_the_scenarios_of_transactions() {
    let peer = peers().iter().find(|peer| peer.name == "redb").unwrap();
    if peer.version.is_err() {
        return;
    }
    let scenarios = [
        Scenario::Quiet,
        Scenario::LargeTransaction,
        Scenario::Backup,
    ];
    let report = measure_engine("redb", &scenarios);
    let lacking: Vec<_> = report.rows.iter().map(|row| row.lacks).collect();
    assert_eq!(lacking, [None, None, Some("backup")], "{report}");
}

#[test]
fn invalid_parameters_are_refused() {
    let good = StallsSpec::new("does-not-exist");
    for bad in [
        StallsSpec {
            scale: f64::NAN,
            ..good.clone()
        },
        StallsSpec {
            rate: Some(0.0),
            ..good.clone()
        },
        StallsSpec {
            threads: 0,
            ..good.clone()
        },
        StallsSpec {
            device: braid::device::DeviceChoice::Memory,
            ..good.clone()
        },
        StallsSpec {
            engine: "brade".into(),
            ..good.clone()
        },
    ] {
        assert!(measure_stalls(&bad, &mut |_, _, _| ()).is_err(), "{bad:?}");
    }
}
