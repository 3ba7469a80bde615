//! Medians over the repeats, and comparisons of them.

use super::Spread;
use super::row::{BARE_LOG, Row};

/// Name of the engine that is compared with the others.
pub(super) const BRAID: &str = "braid";

/// A load of an engine by a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Name of the workload.
    pub workload: String,
    /// Name of the engine.
    pub engine: String,
    /// Number of threads.
    pub threads: usize,
    /// Commits that each thread kept in flight.
    pub in_flight: usize,
}

impl Point {
    fn of(row: &Row) -> Self {
        Point {
            workload: row.workload.clone(),
            engine: row.engine.clone(),
            threads: row.threads,
            in_flight: row.in_flight,
        }
    }

    /// Returns the same load of another engine.
    #[must_use]
    pub fn with_engine(&self, engine: &str) -> Self {
        Point {
            engine: engine.to_owned(),
            ..self.clone()
        }
    }
}

/// A column of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Transactions per second.
    Throughput,
    /// Records loaded per second.
    Records,
    /// Megabytes loaded per second.
    Megabytes,
    /// Duration, in seconds.
    Elapsed,
    /// Durable commits per second.
    Commits,
    /// Median latency in microseconds.
    P50,
    /// 99th percentile in microseconds.
    P99,
    /// 99.9th percentile in microseconds.
    P999,
    /// 99th percentile of reads in microseconds.
    ReadP99,
    /// Microseconds until the call of `commit`.
    Execute,
    /// Microseconds from the call of `commit` to the log write.
    Queue,
    /// Microseconds of the log write.
    Write,
    /// Microseconds from the end of the log write to the return of `commit`.
    Notify,
    /// Mean latency in microseconds.
    Mean,
    /// Processor time per transaction, in microseconds.
    Cpu,
    /// Log bytes per transaction.
    LogBytes,
    /// Device bytes per transaction.
    DeviceBytes,
}

impl Metric {
    /// Metrics by which engines are compared.
    pub(super) const COMPARED: [Metric; 5] = [
        Metric::Throughput,
        Metric::Records,
        Metric::P99,
        Metric::Cpu,
        Metric::DeviceBytes,
    ];

    /// Returns the name for a report, with the unit.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Metric::Throughput => "transactions/s",
            Metric::Records => "records/s",
            Metric::Megabytes => "MB/s",
            Metric::Elapsed => "seconds",
            Metric::Commits => "commits/s",
            Metric::P50 => "p50 (µs)",
            Metric::P99 => "p99 (µs)",
            Metric::P999 => "p99.9 (µs)",
            Metric::ReadP99 => "read p99 (µs)",
            Metric::Execute => "execute (µs)",
            Metric::Queue => "queue (µs)",
            Metric::Write => "write and flush (µs)",
            Metric::Notify => "notify (µs)",
            Metric::Mean => "mean (µs)",
            Metric::Cpu => "CPU µs/tx",
            Metric::LogBytes => "log bytes/tx",
            Metric::DeviceBytes => "device bytes/tx",
        }
    }

    /// Returns the column's value, if the row has one.
    #[must_use]
    pub fn of(self, row: &Row) -> Option<f64> {
        match self {
            Metric::Throughput => Some(row.tx_per_s),
            Metric::Records => row.records_per_s,
            Metric::Megabytes => row.mb_per_s,
            Metric::Elapsed => Some(row.seconds),
            Metric::Commits => Some(row.commits_per_s),
            Metric::P50 => Some(row.p50_us),
            Metric::P99 => Some(row.p99_us),
            Metric::P999 => Some(row.p999_us),
            Metric::ReadP99 => row.read_p99_us,
            Metric::Execute => row.execute_us,
            Metric::Queue => row.queue_us,
            Metric::Write => row.write_us,
            Metric::Notify => row.notify_us,
            Metric::Mean => row.mean_us,
            Metric::Cpu => Some(row.cpu_us_per_tx),
            Metric::LogBytes => row.log_bytes_per_tx,
            Metric::DeviceBytes => row.device_bytes_per_tx,
        }
    }

    /// Returns how many times better `a` is than `b`.
    #[must_use]
    pub fn advantage(self, a: f64, b: f64) -> f64 {
        match self {
            Metric::Throughput | Metric::Records | Metric::Megabytes | Metric::Commits => a / b,
            _ => b / a,
        }
    }
}

/// A point at which another engine's median is better than Braid's.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The point; the engine is the better one.
    pub point: Point,
    /// The metric.
    pub metric: Metric,
    /// Braid's values.
    pub braid: Spread,
    /// Values of the best other engine.
    pub peer: Spread,
    /// How many times better the other engine is.
    pub factor: f64,
}

/// Rows by point.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    points: Vec<(Point, Vec<Row>)>,
}

impl Summary {
    /// Summarizes rows, in any order.
    #[must_use]
    pub fn new(rows: &[Row]) -> Self {
        let mut points: Vec<(Point, Vec<Row>)> = Vec::new();
        for row in rows {
            let point = Point::of(row);
            match points.iter_mut().find(|(p, _)| *p == point) {
                Some((_, rows)) => rows.push(row.clone()),
                None => points.push((point, vec![row.clone()])),
            }
        }
        Summary { points }
    }

    /// Returns all points, in the order of their first measurement.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().map(|(point, _)| point)
    }

    fn rows(&self, point: &Point) -> &[Row] {
        let found = self.points.iter().find(|(p, _)| p == point);
        found.map_or(&[], |(_, rows)| rows)
    }

    /// Returns a metric's median and spread at a point; `None` if it was not measured.
    #[must_use]
    pub fn spread(&self, point: &Point, metric: Metric) -> Option<Spread> {
        Spread::of(self.rows(point).iter().filter_map(|row| metric.of(row)))
    }

    /// Returns the fraction of the bare log's commits per second that an engine reached, each
    /// repeat compared with its own bare log.
    #[must_use]
    pub fn share(&self, point: &Point) -> Option<Spread> {
        let limits = self.rows(&point.with_engine(BARE_LOG));
        let shares = self.rows(point).iter().filter_map(|row| {
            let limit = limits.iter().find(|limit| limit.repeat == row.repeat)?;
            (limit.commits_per_s > 0.0).then(|| row.commits_per_s / limit.commits_per_s)
        });
        Spread::of(shares)
    }

    /// Returns the other engine with the best median at the load of `point`.
    #[must_use]
    pub fn best_peer(&self, point: &Point, metric: Metric) -> Option<(Point, Spread)> {
        let peers = self.points().filter(|p| {
            p.with_engine("") == point.with_engine("") && p.engine != BRAID && p.engine != BARE_LOG
        });
        let spreads = peers.filter_map(|p| Some((p.clone(), self.spread(p, metric)?)));
        spreads
            .filter(|(_, spread)| spread.median > 0.0)
            .max_by(|(_, a), (_, b)| {
                let better = metric.advantage(a.median, b.median);
                better.total_cmp(&1.0)
            })
    }

    /// Returns the points at which another engine is better than Braid, metric by metric, the
    /// largest factor first.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses: Vec<Loss> = Vec::new();
        for metric in Metric::COMPARED {
            let first = losses.len();
            for braid in self.points().filter(|p| p.engine == BRAID) {
                // For a load, throughput and records are equivalent; report records.
                let is_load = self.spread(braid, Metric::Records).is_some();
                if is_load && metric == Metric::Throughput {
                    continue;
                }
                let Some(own) = self.spread(braid, metric).filter(|s| s.median > 0.0) else {
                    continue;
                };
                let Some((point, peer)) = self.best_peer(braid, metric) else {
                    continue;
                };
                let factor = metric.advantage(peer.median, own.median);
                if factor > 1.0 {
                    losses.push(Loss {
                        point,
                        metric,
                        braid: own,
                        peer,
                        factor,
                    });
                }
            }
            losses[first..].sort_by(|a, b| b.factor.total_cmp(&a.factor));
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(engine: &str, repeat: usize, tx_per_s: f64, p99_us: f64) -> Row {
        Row {
            repeat,
            workload: "u1".into(),
            engine: engine.into(),
            threads: 2,
            in_flight: 1,
            tx_per_s,
            commits_per_s: tx_per_s,
            p99_us,
            cpu_us_per_tx: 1.0,
            ..Row::default()
        }
    }

    #[test]
    fn losses_are_shown_with_the_best_peer() {
        let rows = [
            row(BRAID, 1, 100.0, 9.0),
            row("slow", 1, 50.0, 8.0),
            row("quick", 1, 210.0, 12.0),
            row(BARE_LOG, 1, 400.0, 1.0),
            row(BRAID, 2, 120.0, 9.0),
            row("slow", 2, 60.0, 6.0),
            row("quick", 2, 90.0, 20.0),
            row(BARE_LOG, 2, 300.0, 1.0),
        ];
        let summary = Summary::new(&rows);
        assert_eq!(summary.points().count(), 4);
        let losses = summary.losses();
        let shown: Vec<_> = losses
            .iter()
            .map(|l| (l.point.engine.as_str(), l.metric, l.factor))
            .collect();
        assert_eq!(
            shown,
            [
                ("quick", Metric::Throughput, 150.0 / 110.0),
                ("slow", Metric::P99, 9.0 / 7.0)
            ],
            "the bare log is no peer, and equal is no loss"
        );
        assert!(losses[0].braid.overlaps(&losses[0].peer));
        let braid = Point::of(&rows[0]);
        let share = summary.share(&braid).unwrap();
        assert_eq!(
            (share.min, share.max),
            (0.25, 0.4),
            "each with its own repeat"
        );
        let load = |mut row: Row, records: f64| {
            row.workload = "load".into();
            row.records_per_s = Some(records);
            row
        };
        let rows = [
            load(row(BRAID, 1, 1.0, 5.0), 1_000.0),
            load(row("quick", 1, 2.0, 5.0), 2_000.0),
        ];
        let losses = Summary::new(&rows).losses();
        let shown: Vec<_> = losses.iter().map(|l| (l.metric, l.factor)).collect();
        assert_eq!(shown, [(Metric::Records, 2.0)], "records, not transactions");
        let nobody = braid.with_engine("nobody");
        assert_eq!(summary.spread(&nobody, Metric::P50), None);
        assert_eq!(summary.spread(&braid, Metric::LogBytes), None);
    }
}
