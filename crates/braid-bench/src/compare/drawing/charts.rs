//! The charts of a comparison.

use super::chart::{Axis, Chart, Series, Style};
use crate::compare::Spread;
use crate::compare::row::BARE_LOG;
use crate::compare::run::{Run, WorkloadInfo};
use crate::compare::summary::{Metric, Point, Summary};

/// Returns the charts of each workload, for each number of commits in flight: throughput against
/// threads, latency against throughput, and the share of the bare log. For a load: records per
/// second, and the duration.
pub(super) fn all(run: &Run, summary: &Summary) -> Vec<Chart> {
    let mut charts = Vec::new();
    for workload in &run.workloads {
        for in_flight in in_flights(summary, &workload.name) {
            charts.extend(Results::new(run, summary, workload, in_flight).charts());
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

/// Results of a workload with one number of commits in flight.
struct Results<'a> {
    summary: &'a Summary,
    workload: &'a WorkloadInfo,
    in_flight: usize,
    threads: Vec<usize>,
    /// The engines, and the bare log.
    lines: Vec<(&'a str, Style)>,
}

impl<'a> Results<'a> {
    fn new(
        run: &'a Run,
        summary: &'a Summary,
        workload: &'a WorkloadInfo,
        in_flight: usize,
    ) -> Self {
        let engines = run.engines.iter().enumerate();
        let engines = engines.map(|(place, engine)| (&*engine.name, Style::Engine(place)));
        Self {
            summary,
            workload,
            in_flight,
            threads: threads(summary, &workload.name),
            lines: engines.chain([(BARE_LOG, Style::Limit)]).collect(),
        }
    }

    fn series(&self, of: impl Fn(&Point) -> Option<(f64, Spread)>) -> Vec<Series> {
        let mut series = Vec::new();
        for &(name, style) in &self.lines {
            let points = self.threads.iter().map(|&threads| Point {
                workload: self.workload.name.clone(),
                engine: name.to_owned(),
                threads,
                in_flight: self.in_flight,
            });
            let points: Vec<_> = points.filter_map(|point| of(&point)).collect();
            if !points.is_empty() {
                series.push(Series {
                    name: name.to_owned(),
                    style,
                    points,
                });
            }
        }
        series
    }

    fn by_threads(&self, metric: Metric) -> Vec<Series> {
        self.series(|point| Some((point.threads as f64, self.summary.spread(point, metric)?)))
    }

    /// A chart without series, by the number of threads.
    fn chart(&self, name: &str, title: &str) -> Chart {
        let (suffix, waiting) = match self.in_flight {
            1 => (String::new(), String::new()),
            k => (
                format!("-{k}-in-flight"),
                format!(", {k} commits in flight a thread"),
            ),
        };
        let workload = &self.workload.name;
        Chart {
            name: format!("{workload}{suffix}-{name}"),
            workload: workload.clone(),
            title: format!("{workload}: {title}{waiting}"),
            x_title: "threads",
            y_title: "",
            x: Axis::Steps(self.threads.iter().map(|&n| n as f64).collect()),
            y: Axis::Log,
            series: Vec::new(),
        }
    }

    fn charts(&self) -> Vec<Chart> {
        if self.workload.finite {
            vec![self.records(), self.elapsed()]
        } else {
            vec![self.throughput(), self.latency(), self.share()]
        }
    }

    fn records(&self) -> Chart {
        Chart {
            y_title: "records/s",
            series: self.by_threads(Metric::Records),
            ..self.chart("throughput", "records loaded a second")
        }
    }

    fn elapsed(&self) -> Chart {
        Chart {
            y_title: "seconds",
            y: Axis::Linear,
            series: self.by_threads(Metric::Elapsed),
            ..self.chart("elapsed", "seconds until all is loaded and durable")
        }
    }

    fn throughput(&self) -> Chart {
        Chart {
            y_title: "transactions/s",
            series: self.by_threads(Metric::Throughput),
            ..self.chart("throughput", "durable transactions a second")
        }
    }

    fn latency(&self) -> Chart {
        let operation = if self.workload.read_only {
            "read"
        } else {
            "commit"
        };
        let title = format!("99th percentile of {operation} latency by throughput");
        Chart {
            x_title: "transactions/s",
            y_title: "µs",
            x: Axis::Log,
            series: self.series(|point| {
                let rate = self.summary.spread(point, Metric::Throughput)?;
                Some((rate.median, self.summary.spread(point, Metric::P99)?))
            }),
            ..self.chart("latency", &title)
        }
    }

    fn share(&self) -> Chart {
        let share = |point: &Point| Some((point.threads as f64, self.summary.share(point)?));
        let mut series = self.series(share);
        series.retain(|series| series.name != BARE_LOG);
        Chart {
            y_title: "share",
            y: Axis::Linear,
            series,
            ..self.chart("share", "commits a second as a share of the bare log's")
        }
    }
}
