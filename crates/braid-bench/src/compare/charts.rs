//! The charts of a comparison.

use super::Spread;
use super::chart::{Axis, Chart, Series, Style};
use super::row::BARE_LOG;
use super::run::{Run, WorkloadInfo};
use super::summary::{Metric, Point, Summary};

/// Returns the charts of each workload, for each number of commits in flight: throughput against
/// threads, latency against throughput, and the share of the bare log. For a load: records per
/// second, and the duration.
pub(super) fn all(run: &Run, summary: &Summary) -> Vec<Chart> {
    let mut charts = Vec::new();
    for workload in &run.workloads {
        for in_flight in in_flights(summary, &workload.name) {
            charts.extend(of_workload(run, summary, workload, in_flight));
        }
    }
    charts.retain(|chart| !chart.series.is_empty());
    charts
}

/// Returns the numbers of commits in flight with which a workload was measured.
pub(super) fn in_flights(summary: &Summary, workload: &str) -> Vec<usize> {
    unique(summary, workload, |point| point.in_flight)
}

/// Returns the numbers of threads with which a workload was measured.
pub(super) fn threads(summary: &Summary, workload: &str) -> Vec<usize> {
    unique(summary, workload, |point| point.threads)
}

fn unique(summary: &Summary, workload: &str, of: fn(&Point) -> usize) -> Vec<usize> {
    let mut values: Vec<_> = summary
        .points()
        .filter(|point| point.workload == workload)
        .map(of)
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn of_workload(
    run: &Run,
    summary: &Summary,
    workload: &WorkloadInfo,
    in_flight: usize,
) -> Vec<Chart> {
    let threads = threads(summary, &workload.name);
    let point = |engine: &str, threads: usize| Point {
        workload: workload.name.clone(),
        engine: engine.to_owned(),
        threads,
        in_flight,
    };
    let mut lines: Vec<(&str, Style)> = run
        .engines
        .iter()
        .enumerate()
        .map(|(place, engine)| (engine.name.as_str(), Style::Engine(place)))
        .collect();
    lines.push((BARE_LOG, Style::Limit));
    let series = |of: &dyn Fn(&Point) -> Option<(f64, Spread)>| {
        let mut series = Vec::new();
        for &(name, style) in &lines {
            let points = threads.iter().map(|&threads| of(&point(name, threads)));
            let points: Vec<_> = points.flatten().collect();
            if !points.is_empty() {
                series.push(Series {
                    name: name.to_owned(),
                    style,
                    points,
                });
            }
        }
        series
    };
    let steps = Axis::Steps(threads.iter().map(|&n| n as f64).collect());
    let (suffix, waiting) = match in_flight {
        1 => (String::new(), String::new()),
        k => (
            format!("-{k}-in-flight"),
            format!(", {k} commits in flight a thread"),
        ),
    };
    let chart = |name: &str, title: &str| Chart {
        name: format!("{}{suffix}-{name}", workload.name),
        workload: workload.name.clone(),
        title: format!("{}: {title}{waiting}", workload.name),
        x_title: "threads",
        y_title: "",
        x: steps.clone(),
        y: Axis::Log,
        series: Vec::new(),
    };
    let by_threads = |metric| series(&|p| Some((p.threads as f64, summary.spread(p, metric)?)));
    if workload.finite {
        let records = Chart {
            y_title: "records/s",
            series: by_threads(Metric::Records),
            ..chart("throughput", "records loaded a second")
        };
        let elapsed = Chart {
            y_title: "seconds",
            y: Axis::Linear,
            series: by_threads(Metric::Elapsed),
            ..chart("elapsed", "seconds until all is loaded and durable")
        };
        return vec![records, elapsed];
    }
    let latency = if workload.read_only { "read" } else { "commit" };
    let throughput = Chart {
        y_title: "transactions/s",
        series: by_threads(Metric::Throughput),
        ..chart("throughput", "durable transactions a second")
    };
    let latency = Chart {
        x_title: "transactions/s",
        y_title: "µs",
        x: Axis::Log,
        series: series(&|p| {
            let rate = summary.spread(p, Metric::Throughput)?;
            Some((rate.median, summary.spread(p, Metric::P99)?))
        }),
        ..chart(
            "latency",
            &format!("99th percentile of {latency} latency by throughput"),
        )
    };
    let share = Chart {
        y_title: "share",
        y: Axis::Linear,
        series: series(&|p| Some((p.threads as f64, summary.share(p)?)))
            .into_iter()
            .filter(|series| series.name != BARE_LOG)
            .collect(),
        ..chart("share", "commits a second as a share of the bare log's")
    };
    vec![throughput, latency, share]
}
