//! The engine under every protocol, over threads or over the device's latency.

use std::time::Duration;

use braid::Protocol;
use braid::device::DeviceChoice;

use super::{Diagram, PaperSpec, new_directory};
use crate::{BenchError, Engine, Report, Spec, Workload};

/// Latencies of durable writes of the comparison in memory.
const LATENCIES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(150),
    Duration::from_micros(1),
    Duration::from_micros(10),
    Duration::from_micros(30),
];

fn measure(
    workload: Workload,
    protocol: Protocol,
    threads: usize,
    latency: Option<Duration>,
    paper: &PaperSpec,
) -> Result<Report, BenchError> {
    let spec = Spec {
        threads,
        in_flight: paper.in_flight,
        warm_up: paper.each / 4,
        measure: paper.each,
        records: paper.records.unwrap_or(Spec::new(workload).records),
        ..Spec::new(workload)
    };
    // Without the last run's database.
    new_directory(&paper.dir)?;
    let lanes = match protocol.forced_strands() {
        Some(_) => 1,
        None if paper.lanes == 0 => threads,
        None => paper.lanes,
    };
    let mut engine = Engine::new(&paper.dir, &spec);
    engine.protocol = protocol;
    engine.device = match latency {
        Some(_) => DeviceChoice::Memory,
        None => paper.device,
    };
    engine.persist_latency = latency;
    engine.lanes = Some(lanes);
    engine.strands = Some(threads.max(lanes));
    let driver = spec.driver()?;
    let engine = engine.open_tables(&driver.tables())?;
    driver.load(&engine, &mut |_| ())?;
    let report = crate::run(&engine, driver.as_ref(), &spec, &mut |_| ())?;
    engine.close()?;
    Ok(report)
}

/// P-WAL, Figs. 7, 8, 13 (U-1) or 9, 10 (U-10).
pub(super) fn by_threads(
    workload: Workload,
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let (rate, storage, latency) = match workload {
        Workload::U10 => ("9", "10", None),
        _ => ("7", "8", Some("13")),
    };
    let diagram = |figure: &str, what: &str, y| {
        let title = format!("P-WAL Fig. {figure}: {workload}, {what}");
        Diagram::new(&format!("pwal-{figure}"), &title, "threads", y)
    };
    let mut rates = diagram(rate, "transactions", "transactions/s");
    let mut bytes = diagram(storage, "storage throughput", "MiB/s");
    let mut latencies = latency.map(|figure| diagram(figure, "mean commit latency", "us"));
    for &protocol in Protocol::ALL {
        for &threads in &spec.threads {
            progress(&format!("{workload}, {protocol}, {threads} threads"));
            let report = measure(workload, protocol, threads, None, spec)?;
            let (series, x) = (protocol.to_string(), threads as f64);
            rates.add(&series, x, report.tx_per_s);
            let mib = report.tx_per_s * report.log_bytes_per_tx.unwrap_or(0.0) / f64::from(1 << 20);
            bytes.add(&series, x, mib);
            if let Some(latencies) = &mut latencies {
                latencies.add(&series, x, report.mean_us);
            }
        }
    }
    Ok([rates, bytes].into_iter().chain(latencies).collect())
}

/// The comparison that GWSN's paper left open, in an engine that does real work.
pub(super) fn by_latency(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    let threads = spec.threads.iter().copied().max().unwrap_or(1);
    let mut diagrams = Vec::new();
    for workload in [Workload::U1, Workload::U10] {
        let title = format!("{workload} in memory, {threads} threads");
        let name = format!("gwsn-engine-{workload}");
        let mut diagram = Diagram::new(&name, &title, "persist latency (us)", "transactions/s");
        for &protocol in Protocol::ALL {
            for latency in LATENCIES {
                progress(&format!("{workload}, {protocol}, {latency:?}"));
                let report = measure(workload, protocol, threads, Some(latency), spec)?;
                let x = latency.as_secs_f64() * 1e6;
                diagram.add(protocol.to_string(), x, report.tx_per_s);
            }
        }
        diagrams.push(diagram);
    }
    Ok(diagrams)
}
