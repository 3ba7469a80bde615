//! Measures how fast threads get numbers from one counter, with a number for each record or for
//! each flush.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_io::Topology;
use crossbeam_utils::CachePadded;

use super::{Diagram, PaperSpec};

/// Number of records of a flush.
const FLUSH: u64 = 128;

/// Placement of threads.
#[derive(Clone, Copy)]
enum Placement {
    /// All hardware threads of one core first.
    Compact,
    /// One thread on each core first.
    Balanced,
}

/// Returns the processors in the order in which threads are placed on them; further threads start
/// over.
fn processors(placement: Placement) -> Vec<usize> {
    let topology = Topology::read();
    let mut cpus: Vec<(usize, usize, usize)> = Vec::new();
    for cpu in topology.allowed_cpus() {
        // Position among the hardware threads of its core.
        let place = cpus.iter().filter(|(_, core, _)| *core == cpu.core).count();
        cpus.push((place, cpu.core, cpu.id));
    }
    match placement {
        Placement::Compact => cpus.sort_by_key(|&(place, core, _)| (core, place)),
        Placement::Balanced => cpus.sort_by_key(|&(place, core, _)| (place, core)),
    }
    cpus.into_iter().map(|(_, _, id)| id).collect()
}

/// Returns the records per second of all threads together, with one `fetch_add` for `group` records
/// and a wait of `latency` for each flush.
fn records_per_s(
    threads: usize,
    group: u64,
    latency: Duration,
    placement: Placement,
    each: Duration,
) -> f64 {
    let counter = CachePadded::new(AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let begin = Barrier::new(threads + 1);
    let processors = processors(placement);
    let (counter, over, begin) = (&counter, &over, &begin);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|i| {
                let id = processors[i % processors.len()];
                scope.spawn(move || {
                    // If pinning is not allowed, the scheduler places the thread.
                    core_affinity::set_for_current(core_affinity::CoreId { id });
                    begin.wait();
                    let mut records = 0;
                    // Relaxed: only the counter's cache line matters here.
                    while !over.load(Ordering::Relaxed) {
                        for _ in 0..FLUSH.div_ceil(group) {
                            black_box(counter.fetch_add(1, Ordering::Relaxed));
                        }
                        // Work for each record that does not depend on its number.
                        for record in 0..FLUSH {
                            black_box(record);
                        }
                        let end = Instant::now() + latency;
                        while !latency.is_zero() && Instant::now() < end {
                            std::hint::spin_loop();
                        }
                        records += FLUSH;
                    }
                    records
                })
            })
            .collect();
        begin.wait();
        let begun = Instant::now();
        thread::sleep(each);
        over.store(true, Ordering::Relaxed);
        let took = begun.elapsed();
        let records: u64 = running.into_iter().map(|t| t.join().unwrap_or(0)).sum();
        records as f64 / took.as_secs_f64()
    })
}

/// GWSN, Fig. 4.
pub(super) fn by_placement(spec: &PaperSpec, progress: &mut dyn FnMut(&str)) -> Diagram {
    let title = "GWSN Fig. 4: one fetch_add a record, no device";
    let mut diagram = Diagram::new("gwsn-4", title, "threads", "records/s");
    for (name, placement) in [
        ("compact", Placement::Compact),
        ("balanced", Placement::Balanced),
    ] {
        for &threads in &spec.threads {
            progress(&format!("{name}, {threads} threads"));
            let rate = records_per_s(threads, 1, Duration::ZERO, placement, spec.each);
            diagram.add(name, threads as f64, rate);
        }
    }
    diagram
}

/// GWSN, Figs. 5 to 7.
pub(super) fn by_group(
    name: &'static str,
    latency: Duration,
    spec: &PaperSpec,
    progress: &mut dyn FnMut(&str),
) -> Diagram {
    let title = format!(
        "GWSN Fig. {}: one fetch_add for N records, device of {latency:?}",
        name.trim_start_matches("gwsn-")
    );
    let mut diagram = Diagram::new(name, &title, "threads", "records/s");
    for group in [1, 48, 128] {
        for &threads in &spec.threads {
            progress(&format!("N = {group}, {threads} threads"));
            let rate = records_per_s(threads, group, latency, Placement::Balanced, spec.each);
            diagram.add(format!("fetch_add ({group})"), threads as f64, rate);
        }
    }
    diagram
}
