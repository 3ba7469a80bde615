//! The tables of the report.

use maud::{Markup, html};

use crate::compare::Spread;
use crate::compare::drawing::charts::{in_flights, threads};
use crate::compare::row::BARE_LOG;
use crate::compare::run::{Run, WorkloadInfo};
use crate::compare::summary::{BRAID, Metric, Point, Summary};
use crate::report::group;

/// Number of losses that are shown at once; the others are folded.
const LOSSES_SHOWN: usize = 12;

/// Formats a number with three significant digits, or with all digits before the decimal point.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => group(value),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A median above its minimum and maximum. The attributes contain the exact values.
fn cell(point: &Point, metric: Metric, spread: Option<Spread>, is_best: bool) -> Markup {
    let Some(spread) = spread else {
        return html! { td { "–" } };
    };
    let place = format!(
        "{}/{}/{}/{}",
        point.workload, point.engine, point.threads, point.in_flight
    );
    html! {
        td data-point=(place) data-metric=(metric.title()) data-median=(spread.median)
            data-min=(spread.min) data-max=(spread.max)
        {
            span.best[is_best] { (number(spread.median)) }
            @if spread.count > 1 { small { (number(spread.min)) "–" (number(spread.max)) } }
        }
    }
}

/// Returns the engines with measurements, and the bare log.
fn lines(run: &Run) -> Vec<&str> {
    let engines = run.engines.iter().map(|e| e.name.as_str());
    engines.chain([BARE_LOG]).collect()
}

fn row_class(engine: &str) -> &'static str {
    match engine {
        BRAID => "braid",
        BARE_LOG => "limit",
        _ => "",
    }
}

/// Returns whether no engine has a better median at this point.
fn is_best(summary: &Summary, point: &Point, metric: Metric) -> bool {
    let others = summary
        .points()
        .filter(|p| p.with_engine("") == point.with_engine("") && p.engine != BARE_LOG);
    let Some(own) = summary.spread(point, metric) else {
        return false;
    };
    point.engine != BARE_LOG
        && others
            .filter_map(|other| summary.spread(other, metric))
            .all(|other| metric.advantage(own.median, other.median) >= 1.0)
}

/// Throughput of all engines and workloads with the most threads.
pub(super) fn headline(run: &Run, summary: &Summary) -> Markup {
    let columns: Vec<(&WorkloadInfo, usize, usize)> = run
        .workloads
        .iter()
        .flat_map(|workload| {
            let most = threads(summary, &workload.name).last().copied();
            let of = move |in_flight| Some((workload, most?, in_flight));
            in_flights(summary, &workload.name)
                .into_iter()
                .filter_map(of)
        })
        .collect();
    let point =
        |engine: &str, (workload, threads, in_flight): (&WorkloadInfo, usize, usize)| Point {
            workload: workload.name.clone(),
            engine: engine.to_owned(),
            threads,
            in_flight,
        };
    let versus = |column: (&WorkloadInfo, usize, usize)| {
        let own = point(BRAID, column);
        let rate = column.0.rate();
        let braid = summary.spread(&own, rate)?;
        let (_, best) = summary.best_peer(&own, rate)?;
        Some(rate.advantage(braid.median, best.median))
    };
    html! {
        section id="headline" {
            h2 { "Transactions a second" }
            div.wide { table {
                caption { "At the largest number of threads. Below each median, its smallest and largest."
                    @if run.workloads.iter().any(|w| w.finite) { " Of a load: records a second." } }
                thead { tr {
                    th { "engine" }
                    @for (workload, threads, in_flight) in &columns { th {
                        a href={ "#" (workload.name) } { (workload.name) }
                        small { br; (threads) " threads"
                            @if *in_flight > 1 { ", " (in_flight) " in flight" } }
                    } }
                } }
                tbody {
                    @for engine in lines(run) { tr class=(row_class(engine)) {
                        td.text { (engine) }
                        @for &column in &columns {
                            @let point = point(engine, column);
                            @let rate = column.0.rate();
                            (cell(&point, rate, summary.spread(&point, rate), is_best(summary, &point, rate)))
                        }
                    } }
                    tr {
                        td.text { "Braid ÷ best peer" }
                        @for &column in &columns {
                            td { @match versus(column) { Some(times) => { (number(times)) "×" }, None => { "–" } } }
                        }
                    }
                }
            } }
        }
    }
}

/// Points at which other engines are better.
pub(super) fn losses(summary: &Summary) -> Markup {
    let is_peer = |point: &Point| ![BRAID, BARE_LOG].contains(&point.engine.as_str());
    if !summary.points().any(is_peer) {
        return html! {};
    }
    let losses = summary.losses();
    let table = |losses: &[crate::compare::Loss]| {
        html! {
            div.wide { table {
                thead { tr {
                    th { "workload" } th { "threads" } th.text { "what" } th { "Braid" } th.text { "best peer" } th { "its figure" }
                    th { "times better" } th.text { "spreads" }
                } }
                tbody { @for loss in losses { tr {
                    td.text { (loss.point.workload)
                        @if loss.point.in_flight > 1 { ", " (loss.point.in_flight) " in flight" } }
                    td { (loss.point.threads) }
                    td.text { (loss.metric.title()) }
                    (cell(&loss.point.with_engine(BRAID), loss.metric, Some(loss.braid), false))
                    td.text { (loss.point.engine) }
                    (cell(&loss.point, loss.metric, Some(loss.peer), false))
                    td { (number(loss.factor)) }
                    td.text { @if loss.braid.overlaps(&loss.peer) { "overlap" } @else { "apart" } }
                } } }
            } }
        }
    };
    html! {
        section id="losses" {
            h2 { "Where Braid is slower" }
            @if losses.is_empty() {
                p { "Nowhere: in throughput, 99th percentile, processor time and device bytes a transaction no peer's "
                    "median is better." }
            } @else {
                p { (losses.len()) " medians of throughput, 99th percentile of latency, processor time and device bytes a "
                    "transaction are better with a peer. Where the spreads of the repeats overlap, it may be noise." }
                @let (first, rest) = losses.split_at(losses.len().min(LOSSES_SHOWN));
                (table(first))
                @if !rest.is_empty() { details { summary { (rest.len()) " more" } (table(rest)) } }
            }
        }
    }
}

/// All metrics of a workload.
pub(super) fn everything(
    run: &Run,
    summary: &Summary,
    workload: &WorkloadInfo,
    in_flight: usize,
) -> Markup {
    const METRICS: [Metric; 8] = [
        Metric::Throughput,
        Metric::P50,
        Metric::P99,
        Metric::P999,
        Metric::ReadP99,
        Metric::Cpu,
        Metric::LogBytes,
        Metric::DeviceBytes,
    ];
    const OF_LOADS: [Metric; 8] = [
        Metric::Elapsed,
        Metric::Records,
        Metric::Megabytes,
        Metric::P50,
        Metric::P99,
        Metric::Cpu,
        Metric::LogBytes,
        Metric::DeviceBytes,
    ];
    let metrics = if workload.finite { OF_LOADS } else { METRICS };
    let point = |engine: &str, threads| Point {
        workload: workload.name.clone(),
        engine: engine.to_owned(),
        threads,
        in_flight,
    };
    let was_measured = |point: &Point| summary.points().any(|p| p == point);
    html! {
        details {
            summary { "All figures"
                @if in_flight > 1 { " with " (in_flight) " commits in flight a thread" } }
            div.wide { table {
                thead { tr {
                    th { "engine" } th { "threads" }
                    @for metric in metrics { th { (metric.title()) } }
                    @if !workload.finite { th { "share of bare log" } }
                } }
                tbody { @for threads in threads(summary, &workload.name) { @for engine in lines(run) {
                    @let point = point(engine, threads);
                    @if was_measured(&point) { tr class=(row_class(engine)) {
                        td.text { (engine) } td { (threads) }
                        @for metric in metrics {
                            (cell(&point, metric, summary.spread(&point, metric), is_best(summary, &point, metric)))
                        }
                        @if !workload.finite {
                            td { @if engine != BARE_LOG && let Some(share) = summary.share(&point) {
                                (number(share.median))
                            } @else { "–" } }
                        }
                    } }
                } } }
            } }
        }
    }
}

/// Stages of a waiting commit.
pub(super) fn stages(run: &Run, summary: &Summary) -> Markup {
    const STAGES: [(&str, &str); 5] = [
        ("execute", "execute: from the begin to the call of commit"),
        (
            "queue",
            "queue: until the log write that makes it durable begins",
        ),
        ("write", "write and flush: this durable write"),
        (
            "notify",
            "notify: from its end until the committer continues",
        ),
        (
            "commit",
            "commit: all but execute, where the log is not seen",
        ),
    ];
    let sections: Vec<_> = run
        .workloads
        .iter()
        .filter(|workload| !workload.read_only)
        .filter_map(|w| Some((w, threads(summary, &w.name).last().copied()?)))
        .collect();
    if sections.is_empty() {
        return html! {};
    }
    let line = |point: &Point| -> Option<(Vec<(&str, Spread)>, f64)> {
        let of = |metric| summary.spread(point, metric);
        let execute = of(Metric::Execute)?;
        let parts = match (of(Metric::Queue), of(Metric::Write), of(Metric::Notify)) {
            (Some(queue), Some(write), Some(notify)) => vec![
                ("execute", execute),
                ("queue", queue),
                ("write", write),
                ("notify", notify),
            ],
            _ => vec![("execute", execute), ("commit", of(Metric::Mean)?)],
        };
        let sum = parts.iter().map(|(_, spread)| spread.median).sum();
        Some((parts, sum))
    };
    html! {
        section id="stages" {
            h2 { "Where the time of a commit goes" }
            p { "Means of sampled commits that wait, at the largest number of threads. The stages after the call of "
                "commit are seen where the log is Braid's own; for the others there is only the whole." }
            div.key { @for (class, words) in STAGES { span { i class=(class) {} (words) } } }
            @for (workload, threads) in sections {
                h3 { (workload.name) ", " (threads) " threads" }
                div.wide { table {
                    thead { tr {
                        th { "engine" }
                        @for (class, _) in STAGES { th { (class) " (µs)" } }
                        th.text { "parts" }
                    } }
                    tbody { @for engine in &run.engines {
                        @let point = Point { workload: workload.name.clone(), engine: engine.name.clone(), threads, in_flight: 1 };
                        @if let Some((parts, sum)) = line(&point) { tr class=(row_class(&engine.name)) {
                            td.text { (engine.name) }
                            @for (class, _) in STAGES {
                                td { @match parts.iter().find(|(name, _)| *name == class) {
                                    Some((_, spread)) => { (number(spread.median)) },
                                    None => { "–" },
                                } }
                            }
                            td { div.bar { @for (class, spread) in &parts {
                                i class=(class) style={ "flex:" (format!("{:.4}", spread.median / sum)) } {}
                            } } }
                        } }
                    } }
                } }
            }
        }
    }
}
