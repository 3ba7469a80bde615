use std::collections::HashMap;
use std::sync::Mutex;

use super::schema::*;
use super::*;
use crate::engines::broken::{Broken, Defect};
use crate::engines::{Acknowledgement, Body, Order, Session, Stop, TableId, Transaction};
use crate::workload_tests::{in_memory, small};
use crate::{check, run};

/// An engine that only counts writes.
#[derive(Default)]
struct Counting(Mutex<HashMap<TableId, (u64, u64)>>);

impl KvEngine for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            reads: true,
            ..Abilities::NONE
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(CountingSession(self)))
    }

    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }
}

struct CountingSession<'a>(&'a Counting);

impl Session for CountingSession<'_> {
    fn transact(
        &mut self,
        _: crate::engines::Mode,
        _: crate::engines::Wait,
        body: &mut Body<'_>,
    ) -> Result<Acknowledgement, Stop> {
        body(self)?;
        Ok(Acknowledgement::Durable)
    }
}

impl Transaction for CountingSession<'_> {
    fn get(&mut self, _: TableId, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        Ok(false)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        let mut counts = self.0.0.lock().unwrap();
        let (rows, bytes) = counts.entry(table).or_default();
        *rows += 1;
        *bytes += (key.len() + value.len()) as u64;
        Ok(())
    }

    fn delete(&mut self, _: TableId, _: &[u8]) -> Result<(), Stop> {
        Ok(())
    }

    fn scan(
        &mut self,
        _: TableId,
        _: &[u8],
        _: &[u8],
        _: Order,
        _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        Ok(())
    }
}

#[test]
fn the_data_have_the_standards_cardinalities() {
    let engine = Counting::default();
    let sizes = Sizes::new(2, Sizes::ITEMS);
    once(
        &engine,
        schema::CATALOGUE,
        "tpcc",
        1,
        &mut |_| (),
        |loader| load::load(sizes, 42, loader),
    )
    .unwrap();
    let counts = engine.0.into_inner().unwrap();
    // Clause 1.2.1, for two warehouses.
    for (table, wanted) in [
        (WAREHOUSE, 2),
        (WAREHOUSE_YTD, 2),
        (DISTRICT, 20),
        (DISTRICT_NEXT, 20),
        (DISTRICT_YTD, 20),
        (CUSTOMER, 60_000),
        (ACCOUNT, 60_000),
        (CUSTOMER_DATA, 60_000),
        (CUSTOMER_NAME, 60_000),
        (HISTORY, 60_000),
        (ORDER, 60_000),
        (LAST_ORDER, 60_000),
        (NEW_ORDER, 18_000),
        (ITEM, 100_000),
        (STOCK, 200_000),
        (STOCK_LEVEL, 200_000),
        (OLDEST, 20),
    ] {
        assert_eq!(counts[&table].0, wanted, "table {table}");
    }
    let lines = counts[&ORDER_LINE].0;
    assert!(lines.abs_diff(600_000) < 6_000, "{lines} lines");
    let bytes: u64 = counts.values().map(|(_, bytes)| bytes).sum();
    assert!(
        bytes < 2 * WAREHOUSE_BYTES && bytes > WAREHOUSE_BYTES,
        "{bytes} bytes"
    );
}

fn spec(workload: Workload) -> Spec {
    Spec {
        in_flight: 1,
        ..small(workload)
    }
}

/// Returns the violated conditions after a run on Braid with a defect.
fn violations(defect: Defect) -> Vec<String> {
    let spec = spec(Workload::Tpcc);
    let driver = spec.driver().unwrap();
    let sound = in_memory(driver.as_ref());
    driver.load(&sound, &mut |_| ()).unwrap();
    let before = driver.present(&sound).unwrap();
    let broken = Broken::new(&sound, defect);
    // The run may stop at a missing row.
    let _ = run(&broken, driver.as_ref(), &spec, &mut |_| ());
    match check(&sound, driver.as_ref(), before) {
        Ok(checks) => checks.iter().filter_map(Check::complaint).collect(),
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn the_conditions_find_a_lost_write_to_any_table() {
    for (table, condition) in [
        (WAREHOUSE_YTD, "1:"),
        (DISTRICT_NEXT, "every acknowledged"),
        (DISTRICT_YTD, "9:"),
        (ACCOUNT, "12:"),
        (HISTORY, "8:"),
        (NEW_ORDER, "5:"),
        (ORDER, "6:"),
        (LAST_ORDER, "the newest order"),
        (OLDEST, "the oldest new order"),
        (ORDER_LINE, ""),
        (STOCK_LEVEL, "S_YTD"),
    ] {
        let found = violations(Defect::LosesWrite(table));
        assert!(
            found.iter().any(|text| text.starts_with(condition)),
            "table {table}: {found:#?}"
        );
    }
    let found = violations(Defect::LosesRemoval(NEW_ORDER));
    assert!(!found.is_empty());
}

#[test]
fn one_new_order_in_a_hundred_is_rolled_back() {
    let spec = Spec {
        measure: std::time::Duration::from_millis(600),
        ..spec(Workload::TpccNo)
    };
    let driver = spec.driver().unwrap();
    let engine = in_memory(driver.as_ref());
    driver.load(&engine, &mut |_| ()).unwrap();
    let report = run(&engine, driver.as_ref(), &spec, &mut |_| ()).unwrap();
    let (undone, all) = (report.rolled_back, report.commits + report.rolled_back);
    let wanted = all as f64 / 100.0;
    assert!(
        (undone as f64 - wanted).abs() < 5.0 * wanted.sqrt() + 5.0,
        "{undone} of {all}"
    );
}

#[test]
fn a_second_run_uses_the_data_of_the_first() {
    let spec = spec(Workload::Tpcc);
    let first = spec.driver().unwrap();
    let engine = in_memory(first.as_ref());
    assert!(first.load(&engine, &mut |_| ()).unwrap() > 0);
    run(&engine, first.as_ref(), &spec, &mut |_| ()).unwrap();
    let second = spec.driver().unwrap();
    assert_eq!(second.load(&engine, &mut |_| ()).unwrap(), 0);
    let before = second.present(&engine).unwrap();
    run(&engine, second.as_ref(), &spec, &mut |_| ()).unwrap();
    let checks = check(&engine, second.as_ref(), before).unwrap();
    let violations: Vec<_> = checks.iter().filter_map(Check::complaint).collect();
    assert!(violations.is_empty(), "{violations:#?}");
}
