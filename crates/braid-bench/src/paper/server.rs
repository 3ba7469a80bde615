//! Servers for Redis clients: YCSB over their sockets, by clients.

use super::{Diagram, PaperSpec, RECORDS};
use crate::remote::{ServerReport, ServerSpec, measure_server};
use crate::{BenchError, Spec, Workload};

/// YCSB's load, each record in a write of its own, comes last because it takes space.
const WORKLOADS: [(Workload, &str); 7] = [
    (Workload::YcsbA, "ycsb-a"),
    (Workload::YcsbB, "ycsb-b"),
    (Workload::YcsbC, "ycsb-c"),
    (Workload::YcsbD, "ycsb-d"),
    (Workload::YcsbE, "ycsb-e"),
    (Workload::YcsbF, "ycsb-f"),
    (Workload::YcsbInsert, "ycsb-load"),
];

/// A diagram of each workload: the ending of its name, the unit, and the value of a report.
type Quantity = (&'static str, &'static str, fn(&ServerReport) -> f64);

const QUANTITIES: [Quantity; 2] = [
    ("", "operations/s", |report| report.ops_per_s),
    ("-p99", "p99 latency, us", |report| report.p99_us),
];

/// Throughput and p99 of each workload. At each point the servers take turns, so that a drift of
/// the machine affects all of them.
pub(super) fn by_clients(
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Diagram>, BenchError> {
    if spec.servers.is_empty() {
        return Err(BenchError::Option {
            option: "server",
            wanted: "an address, such as --server braid=localhost:6379".into(),
            given: "nothing".into(),
        });
    }
    let mut diagrams = Vec::new();
    for (workload, name) in WORKLOADS {
        let mut drawn = QUANTITIES.map(|(ending, unit, _)| {
            let title = format!("{name} over a socket");
            Diagram::new(&format!("server-{name}{ending}"), &title, "clients", unit).with_log_y()
        });
        for &clients in &spec.threads {
            for (series, address) in &spec.servers {
                progress(&format!("{series}, {name}, {clients} clients"));
                let server = ServerSpec {
                    address: address.clone(),
                    rate: None,
                    spec: Spec {
                        threads: clients,
                        warm_up: spec.each / 4,
                        measure: spec.each,
                        records: spec.records.unwrap_or(RECORDS),
                        ..Spec::new(workload)
                    },
                };
                let report = measure_server(&server, &mut |_| ())?;
                for (diagram, (_, _, value)) in drawn.iter_mut().zip(QUANTITIES) {
                    diagram.add(series, clients as f64, value(&report));
                }
            }
        }
        diagrams.extend(drawn);
    }
    Ok(diagrams)
}
