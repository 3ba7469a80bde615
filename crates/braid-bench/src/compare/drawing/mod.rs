//! Plots and the report of a comparison.

mod chart;
mod charts;
mod html;

use std::path::{Path, PathBuf};

pub(crate) use self::chart::use_font;

use super::{RUN, Run, Summary, TABLE, row};
use crate::BenchError;

const REPORT: &str = "report.html";

/// Does the work of [`super::draw`].
pub(super) fn draw(out: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let run = Run::read(&out.join(RUN))?;
    let rows = row::read(&out.join(TABLE))?;
    let summary = Summary::new(&rows);
    let charts = charts::all(&run, &summary);
    let report = out.join(REPORT);
    std::fs::write(&report, html::report(&run, &summary, &charts)?)
        .map_err(|error| BenchError::file("write", &report, error))?;
    let mut written = vec![report];
    for chart in &charts {
        written.extend(chart.write(out)?);
    }
    Ok(written)
}
