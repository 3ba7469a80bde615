//! The report as a table.

use std::fmt;

use super::report::{DisturbanceReport, HotKey, Latency, StallRow, StallsReport};
use crate::report::group;

/// Formats milliseconds with three digits that count.
fn ms(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => group(v),
    }
}

/// One line for each scenario; figures of single scenarios follow.
impl fmt::Display for StallsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = group(self.tx_per_s);
        let (engine, threads) = (&self.engine, self.threads);
        write!(f, "{engine}; load: {threads} threads, {rate} commits/s")?;
        if let Some(most) = self.calibrated_tx_per_s {
            write!(f, ", half of {}", group(most))?;
        }
        writeln!(
            f,
            "; scale {}, pool {} MiB, profile {}\nmachine: {}\n",
            self.scale,
            self.pool_bytes >> 20,
            self.profile,
            self.machine
        )?;
        writeln!(
            f,
            "{:<21}{:>9}{:>9}{:>9}{:>9}{:>10}{:>11}{:>10}  within the limits",
            "scenario (ms)", "p50", "p99", "p99.9", "max", "gap", "bare p99.9", "bare gap"
        )?;
        self.rows.iter().try_for_each(|row| line(f, row))?;
        writeln!(f)?;
        self.rows.iter().try_for_each(|row| details(f, row))?;
        if self.rows.iter().all(|row| row.holds.is_empty()) {
            return Ok(());
        }
        writeln!(
            f,
            "\nlongest holds of gates (ms; in parentheses with the time in which the thread was suspended)"
        )?;
        self.rows.iter().try_for_each(|row| holds(f, row))
    }
}

fn holds(f: &mut fmt::Formatter<'_>, row: &StallRow) -> fmt::Result {
    if row.holds.is_empty() {
        return Ok(());
    }
    write!(f, "{:<21}", row.scenario)?;
    for (at, hold) in row.holds.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(f, "{comma}{} {:.3}", hold.gate, hold.longest_ms)?;
        if hold.elapsed_ms > 1.1 * hold.longest_ms {
            write!(f, " ({:.3})", hold.elapsed_ms)?;
        }
    }
    writeln!(f)
}

fn line(f: &mut fmt::Formatter<'_>, row: &StallRow) -> fmt::Result {
    if let Some(error) = &row.error {
        return writeln!(f, "{:<21}failed: {error}", row.scenario);
    }
    if row.lacks.is_some() {
        let [first, gap, p999] = ["–"; 3];
        return writeln!(
            f,
            "{:<21}{first:>9}{first:>9}{first:>9}{first:>9}{gap:>10}{p999:>11}{gap:>10}",
            row.scenario
        );
    }
    let Latency {
        p50_ms,
        p99_ms,
        p999_ms,
        max_ms,
    } = row.latency;
    write!(
        f,
        "{:<21}{:>9}{:>9}{:>9}{:>9}{:>10}",
        row.scenario,
        ms(p50_ms),
        ms(p99_ms),
        ms(p999_ms),
        ms(max_ms),
        ms(row.gap_ms)
    )?;
    let bare = row.bare.as_ref().map_or_else(Default::default, |bare| {
        (ms(bare.latency.p999_ms), ms(bare.gap_ms))
    });
    write!(f, "{:>11}{:>10}  ", bare.0, bare.1)?;
    match &row.exceeded[..] {
        _ if row.scenario == super::Scenario::Quiet.name() => writeln!(f, "(baseline)"),
        [] => writeln!(f, "yes"),
        exceeded => writeln!(f, "no: {}", exceeded.join(", ")),
    }
}

fn details(f: &mut fmt::Formatter<'_>, row: &StallRow) -> fmt::Result {
    let DisturbanceReport {
        runs,
        seconds,
        longest_s,
    } = row.disturbance;
    if !row.is_measured() || row.scenario == super::Scenario::Quiet.name() {
        return Ok(());
    }
    write!(f, "{:<21}", row.scenario)?;
    match runs {
        1 => write!(f, "took {seconds:.2} s")?,
        _ => write!(
            f,
            "{} runs in {seconds:.1} s, the longest {longest_s:.3} s",
            group(runs as f64)
        )?,
    }
    let (written, read) = (row.written_bytes >> 20, row.read_bytes >> 20);
    write!(f, ", {written} MiB written, {read} MiB read")?;
    write!(f, ", {:.2} s of processor time", row.cpu_s)?;
    if row.unfinished > 0 {
        let n = group(row.unfinished as f64);
        write!(f, "; {n} commits were not performed in time")?;
    }
    if let Some(late) = &row.lateness {
        write!(
            f,
            "; durable after the bound by p50 {}, p99 {}, p99.9 {}, at most {} ms",
            ms(late.p50_ms),
            ms(late.p99_ms),
            ms(late.p999_ms),
            ms(late.max_ms)
        )?;
    }
    if let Some(hot) = &row.hot_key {
        hot_key(f, hot)?;
    }
    writeln!(f)
}

fn hot_key(f: &mut fmt::Formatter<'_>, hot: &HotKey) -> fmt::Result {
    write!(
        f,
        "; {} updates/s instead of {}, {} reads/s instead of {}",
        group(hot.updates_per_s),
        group(hot.fresh_updates_per_s),
        group(hot.reads_per_s),
        group(hot.fresh_reads_per_s)
    )
}

/// The reports of several engines on the same machine: the p99.9 and the longest gap of each.
struct SideBySide<'a>(&'a [StallsReport]);

/// Returns a table of the p99.9 and the longest gap of each scenario and engine, with an asterisk
/// after figures that exceed the limits, and a dash where an engine lacks the operation.
#[must_use]
pub fn stalls_side_by_side(reports: &[StallsReport]) -> String {
    SideBySide(reports).to_string()
}

impl fmt::Display for SideBySide<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<21}", "p99.9 / gap (ms)")?;
        for report in self.0 {
            write!(f, "{:>20}", report.engine)?;
        }
        writeln!(f)?;
        let rows = self.0.first().map_or(&[][..], |report| &report.rows);
        for (n, row) in rows.iter().enumerate() {
            write!(f, "{:<21}", row.scenario)?;
            for report in self.0 {
                write!(
                    f,
                    "{:>20}",
                    report.rows.get(n).map_or_else(String::new, cell)
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn cell(row: &StallRow) -> String {
    if row.error.is_some() {
        return "failed".to_owned();
    }
    if row.lacks.is_some() {
        return "–".to_owned();
    }
    let mark = |limit| {
        if row.exceeded.contains(&limit) {
            "*"
        } else {
            ""
        }
    };
    let (p999, gap) = (ms(row.latency.p999_ms), ms(row.gap_ms));
    format!("{p999}{} / {gap}{}", mark("p99.9"), mark("gap"))
}
