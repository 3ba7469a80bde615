//! Every workload runs and is consistent on a sound engine, and its checks fail on a broken one.

use std::time::Duration;

use braid::Database;

use crate::engines::broken::{Broken, Defect};
use crate::engines::{BraidEngine, KvEngine};
use crate::{BenchError, Check, Driver, Report, Spec, Workload, check, run};

/// Returns the parameters of a small database of each workload.
pub(crate) fn small(workload: Workload) -> Spec {
    Spec {
        threads: 2,
        in_flight: 4,
        warm_up: Duration::from_millis(20),
        measure: Duration::from_millis(200),
        records: match workload {
            Workload::Large => 20,
            _ if workload.is_tpcc() => 500,
            _ => 2_000,
        },
        scale: 2,
        ..Spec::new(workload)
    }
}

pub(crate) fn in_memory(driver: &dyn Driver) -> BraidEngine {
    let db = Database::in_memory().unwrap();
    BraidEngine::new(db, &driver.tables()).unwrap()
}

/// Loads Braid, runs the workload on it, with a defect if one is given, and checks the data.
fn run_on(spec: &Spec, defect: Option<Defect>) -> (Result<Report, BenchError>, Vec<Check>) {
    let driver = spec.driver().unwrap();
    let driver = driver.as_ref();
    let sound = in_memory(driver);
    driver.load(&sound, &mut |_| ()).unwrap();
    let before = driver.present(&sound).unwrap();
    let broken = defect.map(|defect| Broken::new(&sound, defect));
    let engine: &dyn KvEngine = match &broken {
        Some(broken) => broken,
        None => &sound,
    };
    let report = run(engine, driver, spec, &mut |_| ());
    let checks = match check(&sound, driver, before) {
        Ok(checks) => checks,
        // The check reports rows that are missing altogether.
        Err(error @ BenchError::Row { .. }) => {
            vec![Check::new("rows", Some(error.to_string()))]
        }
        Err(error) => panic!("{error}"),
    };
    (report, checks)
}

/// As in a comparison, with one number of threads after the other.
#[test]
fn runs_on_the_same_data_do_not_get_into_each_others_way() {
    for workload in Workload::ALL {
        if workload.is_read_only() || workload.is_finite() {
            continue;
        }
        let spec = Spec {
            measure: Duration::from_millis(50),
            ..small(workload)
        };
        let driver = spec.driver().unwrap();
        let driver = driver.as_ref();
        let engine = in_memory(driver);
        driver.load(&engine, &mut |_| ()).unwrap();
        let before = driver.present(&engine).unwrap();
        for threads in [1, 2] {
            let spec = Spec { threads, ..spec };
            run(&engine, driver, &spec, &mut |_| ()).unwrap();
        }
        let checks = check(&engine, driver, before).unwrap();
        let violations: Vec<_> = checks.iter().filter_map(Check::complaint).collect();
        assert!(violations.is_empty(), "{workload}: {violations:#?}");
    }
}

#[test]
fn every_workload_runs_and_is_consistent() {
    for workload in Workload::ALL {
        for (threads, in_flight) in [(2, 1), (2, 16)] {
            let spec = Spec {
                threads,
                in_flight,
                ..small(workload)
            };
            let (report, checks) = run_on(&spec, None);
            let report = report.unwrap();
            let violations: Vec<_> = checks.iter().filter_map(Check::complaint).collect();
            assert!(violations.is_empty(), "{workload}: {violations:#?}");
            assert!(report.tx_per_s > 0.0, "{workload}");
            assert_eq!((report.threads, report.in_flight), (threads, in_flight));
            assert_eq!(report.commits == 0, workload.is_read_only(), "{workload}");
            assert!(
                report.p50_us > 0.0 && report.p50_us <= report.p99_us,
                "{workload}"
            );
            assert!(report.p99_us <= report.p999_us, "{workload}");
            if report.commits > 1_000 {
                let rounding = 1.01;
                assert!(
                    report.response_p50_us * rounding >= report.p50_us * 0.5,
                    "{workload}: begin to durable is no shorter than commit to durable"
                );
            }
            if workload != Workload::YcsbD {
                assert_eq!(
                    report.missing, 0,
                    "{workload}: every loaded record is found"
                );
            }
        }
    }
}

#[test]
fn a_finite_workload_ends_by_itself_and_counts_all() {
    let spec = Spec {
        records: 10_001,
        measure: Duration::from_secs(86_400),
        ..small(Workload::Load)
    };
    let (report, checks) = run_on(&spec, None);
    let report = report.unwrap();
    let written = report.written_mb_per_s * report.seconds * 1e6;
    assert!((written / (10_001.0 * 1_008.0) - 1.0).abs() < 1e-6);
    assert!(
        checks.len() == 1 && checks[0].violation.is_none(),
        "{checks:?}"
    );
}

#[test]
fn a_bulk_load_wants_an_empty_table() {
    let spec = small(Workload::Load);
    let driver = spec.driver().unwrap();
    let engine = in_memory(driver.as_ref());
    driver.load(&engine, &mut |_| ()).unwrap();
    run(&engine, driver.as_ref(), &spec, &mut |_| ()).unwrap();
    let again = driver.load(&engine, &mut |_| ());
    assert!(
        matches!(again, Err(BenchError::NotEmpty { .. })),
        "{again:?}"
    );
}

#[test]
fn checks_find_lost_and_doubled_transactions() {
    for workload in [
        Workload::Bank,
        Workload::Tpcb,
        Workload::Tpcc,
        Workload::TpccNo,
        Workload::Load,
    ] {
        for defect in [Defect::LosesTransaction, Defect::DoublesTransaction] {
            if (workload, defect) == (Workload::Load, Defect::DoublesTransaction) {
                // Writing the same records again changes nothing.
                continue;
            }
            let spec = Spec {
                records: match workload {
                    // Enough batches that one of them is spoilt.
                    Workload::Load => 60_000,
                    _ => small(workload).records,
                },
                ..small(workload)
            };
            let (_, checks) = run_on(&spec, Some(defect));
            let found = checks.iter().any(|check| check.violation.is_some());
            assert!(found, "{workload}, {defect:?}");
        }
    }
}

#[test]
fn checks_find_a_lost_write_to_any_table() {
    for (workload, tables) in [(Workload::Bank, 1), (Workload::Tpcb, 4)] {
        for table in 0..tables {
            let defect = Defect::LosesWrite(table);
            let (_, checks) = run_on(&small(workload), Some(defect));
            let found = checks.iter().any(|check| check.violation.is_some());
            assert!(found, "{workload}, {defect:?}");
        }
    }
}
