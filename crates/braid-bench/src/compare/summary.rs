//! Medians over the repeats, and what follows from them.

use super::Spread;
use super::row::{BARE_LOG, Row};

/// The engine whose comparison this is.
pub(super) const BRAID: &str = "braid";

/// An engine under a load of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The workload's name.
    pub workload: String,
    /// The engine's name.
    pub engine: String,
    /// Its threads.
    pub threads: usize,
    /// Commits that each kept outstanding.
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

    /// The same for another engine.
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
    /// Transactions a second.
    Throughput,
    /// Records loaded a second.
    Records,
    /// Megabytes of them a second.
    Megabytes,
    /// Seconds that it took.
    Elapsed,
    /// Durable commits a second.
    Commits,
    /// Median latency in microseconds.
    P50,
    /// 99th percentile in microseconds.
    P99,
    /// 99.9th percentile in microseconds.
    P999,
    /// 99th percentile of reads in microseconds.
    ReadP99,
    /// Microseconds until commit is called.
    Execute,
    /// Microseconds from there to the log write.
    Queue,
    /// Microseconds of the log write.
    Write,
    /// Microseconds from its end until the committer knows.
    Notify,
    /// Mean latency in microseconds.
    Mean,
    /// Processor time a transaction in microseconds.
    Cpu,
    /// Log bytes a transaction.
    LogBytes,
    /// Device bytes a transaction.
    DeviceBytes,
}

impl Metric {
    /// Those by which engines are held against each other.
    pub(super) const COMPARED: [Metric; 5] = [
        Metric::Throughput,
        Metric::Records,
        Metric::P99,
        Metric::Cpu,
        Metric::DeviceBytes,
    ];

    /// Words for a report, with the unit.
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

    /// The column's value, if the row has one.
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

    /// How many times better `a` is than `b`.
    #[must_use]
    pub fn advantage(self, a: f64, b: f64) -> f64 {
        match self {
            Metric::Throughput | Metric::Records | Metric::Megabytes | Metric::Commits => a / b,
            _ => b / a,
        }
    }
}

/// A place where a peer's median is better than Braid's.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Where; the engine is the peer.
    pub point: Point,
    /// In what.
    pub metric: Metric,
    /// Braid's.
    pub braid: Spread,
    /// The peer's, the best of all.
    pub peer: Spread,
    /// How many times better it is.
    pub factor: f64,
}

/// Rows by point.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    points: Vec<(Point, Vec<Row>)>,
}

impl Summary {
    /// That of some rows, in any order.
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

    /// All points, in the order of their first measurement.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().map(|(point, _)| point)
    }

    fn rows(&self, point: &Point) -> &[Row] {
        let found = self.points.iter().find(|(p, _)| p == point);
        found.map_or(&[], |(_, rows)| rows)
    }

    /// A metric's median and spread at a point; `None` if it was not measured.
    #[must_use]
    pub fn spread(&self, point: &Point, metric: Metric) -> Option<Spread> {
        Spread::of(self.rows(point).iter().filter_map(|row| metric.of(row)))
    }

    /// The part of the bare log's commits a second that an engine reached, each repeat against its own.
    #[must_use]
    pub fn share(&self, point: &Point) -> Option<Spread> {
        let limits = self.rows(&point.with_engine(BARE_LOG));
        let shares = self.rows(point).iter().filter_map(|row| {
            let limit = limits.iter().find(|limit| limit.repeat == row.repeat)?;
            (limit.commits_per_s > 0.0).then(|| row.commits_per_s / limit.commits_per_s)
        });
        Spread::of(shares)
    }

    /// The peer with the best median at the load of `point`.
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

    /// Where a peer is better than Braid, metric by metric, the largest factor first.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses: Vec<Loss> = Vec::new();
        for metric in Metric::COMPARED {
            let first = losses.len();
            for braid in self.points().filter(|p| p.engine == BRAID) {
                // Of a load both say the same, and records say it better.
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
    fn losses_are_told_with_the_best_peer() {
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
        let told: Vec<_> = losses
            .iter()
            .map(|l| (l.point.engine.as_str(), l.metric, l.factor))
            .collect();
        assert_eq!(
            told,
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
        let told: Vec<_> = losses.iter().map(|l| (l.metric, l.factor)).collect();
        assert_eq!(told, [(Metric::Records, 2.0)], "records, not transactions");
        let nobody = braid.with_engine("nobody");
        assert_eq!(summary.spread(&nobody, Metric::P50), None);
        assert_eq!(summary.spread(&braid, Metric::LogBytes), None);
    }
}
