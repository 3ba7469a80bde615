//! Diagrams as SVG.

use std::path::{Path, PathBuf};

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::{Diagram, Point};
use crate::BenchError;

const SIZE: (u32, u32) = (720, 480);

/// Writes the plot to a file; returns its path.
pub(super) fn svg(diagram: &Diagram, path: PathBuf) -> Result<PathBuf, BenchError> {
    draw(diagram, &path).map_err(|error| {
        BenchError::io(
            "cannot draw a plot",
            std::io::Error::other(error.to_string()),
        )
    })?;
    Ok(path)
}

fn draw(diagram: &Diagram, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let most = |of: fn(&Point) -> f64| diagram.points.iter().map(of).fold(1e-9, f64::max);
    let (x_most, y_most) = (most(|p| p.x), most(|p| p.y));
    crate::compare::use_font();
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&root);
    builder
        .caption(&diagram.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80);
    let x = 0.0..x_most * 1.05;
    if diagram.is_log_y {
        let least = diagram.points.iter().map(|p| p.y).fold(y_most, f64::min);
        let y = (least.max(y_most / 1e9) / 2.0..y_most * 10.0).log_scale();
        curves(diagram, builder.build_cartesian_2d(x, y)?)?;
    } else {
        curves(diagram, builder.build_cartesian_2d(x, 0.0..y_most * 1.1)?)?;
    }
    root.present()?;
    Ok(())
}

/// Draws axes, curves and the legend.
fn curves<'a, DB: DrawingBackend + 'a, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    diagram: &Diagram,
    mut chart: ChartContext<'a, DB, Cartesian2d<RangedCoordf64, Y>>,
) -> Result<(), Box<dyn std::error::Error>>
where
    DB::ErrorType: 'static,
{
    chart
        .configure_mesh()
        .x_desc(diagram.x)
        .y_desc(diagram.y)
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let mut series: Vec<&str> = Vec::new();
    for point in &diagram.points {
        if !series.contains(&point.series.as_str()) {
            series.push(&point.series);
        }
    }
    for (i, name) in series.into_iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let points = diagram.points.iter().filter(|p| p.series == name);
        let points: Vec<(f64, f64)> = points.map(|p| (p.x, p.y)).collect();
        chart
            .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        chart.draw_series(
            points
                .into_iter()
                .map(|at| Circle::new(at, 3, color.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

/// Formats a number for an axis: 1500000 is 1.5M.
fn short(y: f64) -> String {
    match y {
        y if y >= 1e9 => format!("{:.1}G", y / 1e9),
        y if y >= 1e6 => format!("{:.1}M", y / 1e6),
        y if y >= 1e3 => format!("{:.0}k", y / 1e3),
        y => format!("{y:.0}"),
    }
}
