//! The report: one HTML page without external files.

mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::tables::{everything, headline, losses, stages};
use super::chart::Chart;
use super::charts::in_flights;
use crate::BenchError;
use crate::compare::run::Run;
use crate::compare::summary::{BRAID, Metric, Summary};

const STYLE: &str = include_str!("style.css");

pub(super) fn report(run: &Run, summary: &Summary, charts: &[Chart]) -> Result<String, BenchError> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Braid and its peers" }
                style { (PreEscaped(STYLE)) }
            }
            body { main {
                (opening(run, summary))
                (headline(run, summary))
                (losses(summary))
                @for workload in &run.workloads {
                    section id=(workload.name) {
                        h2 { (workload.name) }
                        p {
                            (workload.about) ". " (crate::report::group(workload.records as f64)) " records of "
                            (workload.value_size) " bytes."
                        }
                        div.plots {
                            @for chart in charts.iter().filter(|chart| chart.workload == workload.name) {
                                (figure(chart).map_err(|e| BenchError::io("cannot draw a plot", e))?)
                            }
                        }
                        @for in_flight in in_flights(summary, &workload.name) {
                            (everything(run, summary, workload, in_flight))
                        }
                    }
                }
                (stages(run, summary))
                (device(run))
                (engines(run))
                (method(run))
            } }
        }
    };
    Ok(page.into_string())
}

/// A plot between its title and its legend, which wraps on a narrow page.
fn figure(chart: &Chart) -> std::io::Result<Markup> {
    Ok(html! {
        figure {
            figcaption { (chart.title) }
            div.plot role="img" aria-label=(chart.title) { (PreEscaped(chart.plot()?)) }
            div.key { @for series in &chart.series {
                span { (PreEscaped(series.sample()?)) (series.name) }
            } }
        }
    })
}

/// The summary in two sentences, and how to read it.
fn opening(run: &Run, summary: &Summary) -> Markup {
    let own: Vec<_> = summary.points().filter(|p| p.engine == BRAID).collect();
    let compared: Vec<_> = own
        .into_iter()
        .filter(|p| summary.best_peer(p, Metric::Throughput).is_some())
        .collect();
    let ahead = |metric: Metric| {
        let is_ahead = |p: &&&crate::compare::Point| {
            let own = summary.spread(p, metric);
            let best = summary.best_peer(p, metric);
            own.zip(best)
                .is_some_and(|(own, (_, best))| metric.advantage(own.median, best.median) >= 1.0)
        };
        compared.iter().filter(is_ahead).count()
    };
    let peers = run.engines.iter().filter(|e| e.name != BRAID).count();
    let busy = run
        .machine
        .load
        .split(',')
        .next()
        .and_then(|load| load.parse::<f64>().ok());
    html! {
        h1 { "Braid and its peers" }
        p.soft { (run.began) " · " (run.machine.processor) " · " (run.machine.topology) " · " (run.build) }
        @if compared.is_empty() {
            p.lead { "No peer was measured with Braid." }
        } @else {
            p.lead {
                "At " (compared.len()) " combinations of workload and load, compared with " (peers) " other engines, "
                "Braid has the highest median throughput in " strong { (ahead(Metric::Throughput)) }
                " and the lowest 99th percentile of latency in " strong { (ahead(Metric::P99)) } ". "
                "Every commit of every engine is durable when it is counted."
            }
        }
        @for violation in &run.violations {
            p.warn { strong { "A check of the data failed. " } (violation) }
        }
        @if !run.optimized {
            p.warn { "This is a debug build: the figures say nothing about speed." }
        }
        @if let Some(load) = busy && load > 0.5 {
            p.warn {
                "The machine was not idle when the comparison began (load " (load)
                "): take the figures as a trial."
            }
        }
    }
}

fn device(run: &Run) -> Markup {
    if run.device.is_empty() {
        return html! {};
    }
    html! {
        section {
            h2 { "The device's own limit" }
            p { "Measured before the engines, on the same file system, without any engine." }
            div.wide { table {
                thead { tr {
                    th { "test" } th { "at once" } th { "bytes" } th { "a second" } th { "p50 (µs)" } th { "p99 (µs)" }
                } }
                tbody { @for limit in &run.device { tr {
                    td.text { (limit.test) } td { (limit.depth) }
                    @for value in [limit.bytes as f64, limit.ops_per_s, limit.p50_us, limit.p99_us] {
                        td { (tables::number(value)) }
                    }
                } } }
            } }
        }
    }
}

fn engines(run: &Run) -> Markup {
    html! {
        section {
            h2 { "The engines" }
            p {
                @match run.data_over_pool {
                    Some(ratio) => {
                        "The data are " (tables::number(ratio)) " times as large as the caches; in addition some engines have the "
                        "system's page cache"
                    }
                    None => { "Caches are as large as three times the data, at least 256 MiB" }
                }
                "; everything else is what the engine's own "
                "documentation advises, and commits are durable. Where “serializable” is no, an engine promises less, "
                "and has less to do."
            }
            div.wide { table {
                thead { tr {
                    th { "engine" } th.text { "version" } th.text { "what" } th.text { "opened as" } th.text { "serializable" }
                } }
                tbody { @for engine in &run.engines { tr.braid[engine.name == BRAID] {
                    td.text { (engine.name) } td.text { (engine.version) } td.words { (engine.about) }
                    td.words { (engine.setting) } td.text { @if engine.serializable { "yes" } @else { "no" } }
                } } }
            } }
            @if !run.left_out.is_empty() {
                h3 { "Not measured" }
                div.wide { table {
                    thead { tr { th { "engine" } th.text { "workload" } th.text { "why" } } }
                    tbody { @for left_out in &run.left_out { tr {
                        td.text { (left_out.engine) } td.text { (left_out.workload) } td.words { (left_out.why) }
                    } } }
                } }
            }
        }
    }
}

fn method(run: &Run) -> Markup {
    let machine = &run.machine;
    let facts = [
        ("processor", &machine.processor),
        ("processors", &machine.topology),
        ("memory", &machine.memory),
        ("kernel", &machine.kernel),
        ("file system", &machine.file_system),
        ("write cache", &machine.write_cache),
        ("load before", &machine.load),
        ("build", &run.build),
    ];
    html! {
        section {
            h2 { "Machine and method" }
            dl { @for (name, value) in facts { dt { (name) } dd { (value) } } }
            p {
                "Each load ran " (run.repeats) " times for " (tables::number(run.seconds)) " s after "
                (tables::number(run.warm_up)) " s of warm-up. In every repeat each engine has its turn, so that the drift of the "
                "machine hits all alike; it is opened, its data is read once, and all loads follow. A figure is the median of the "
                "repeats, what stands below it in small print its smallest and largest; bars in the plots, too."
                @if run.workloads.iter().any(|w| w.finite) {
                    " A workload that loads begins with an empty database each time, and runs without warm-up from its first "
                    "transaction until its last is durable."
                }
            }
            p {
                "Latency is that of commits, from the call to durable; for a workload that only reads, that of reads. "
                "The bare log is a group-commit log of a few lines without tables, checksums or recovery, under the same "
                "load. Processor time and device bytes are those of the whole process, and with a server of both."
            }
            p { "The measurements are next to this page in " code { "measurements.csv" } ", what is known of the run in "
                code { "run.json" } "; " code { "braid bench compare --redraw --out DIR" } " makes the page from them." }
        }
    }
}

#[cfg(test)]
mod tests;
