//! Reports as a figure: bars for each scenario, on a logarithmic scale.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{GAP_MS, StallRow, StallsReport};

const WIDTH: u32 = 760;

/// Height of a bar, and of the space between two scenarios.
const BAR: u32 = 10;
const BETWEEN: u32 = 6;

/// Space above and below the rows, and left of the bars.
const TOP: u32 = 46;
const BOTTOM: u32 = 44;
const LEFT: u32 = 170;
const RIGHT: u32 = 30;

/// Shortest time shown, in milliseconds.
const SHORTEST_MS: f64 = 0.1;

const GAP: RGBColor = RGBColor(0xc4, 0x4e, 0x52);
const P999: RGBColor = RGBColor(0x4c, 0x72, 0xb0);
/// Colors of engines, Braid's usually first.
const ENGINES: [RGBColor; 5] = [
    P999,
    RGBColor(0xdd, 0x84, 0x52),
    RGBColor(0x55, 0xa8, 0x68),
    RGBColor(0x81, 0x72, 0xb3),
    RGBColor(0x93, 0x78, 0x60),
];
const INK: RGBColor = RGBColor(0x40, 0x40, 0x40);

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A bar of each scenario: its name in the legend, its color, and its length in milliseconds for
/// each row; `None` for a scenario without figures.
struct Series<'a> {
    name: &'a str,
    color: RGBColor,
    ms: Vec<Option<f64>>,
}

fn series<'a>(
    report: &StallsReport,
    name: &'a str,
    color: RGBColor,
    ms: impl Fn(&StallRow) -> f64,
) -> Series<'a> {
    let of = |row: &StallRow| row.is_measured().then(|| ms(row));
    let ms = report.rows.iter().map(of).collect();
    Series { name, color, ms }
}

/// Returns an SVG image of the reports, which have the same scenarios: the longest gap and the p99.9
/// of one report, or the p99.9 of each of several.
pub(super) fn svg(reports: &[StallsReport]) -> std::io::Result<String> {
    let p999 = |row: &StallRow| row.latency.p999_ms;
    let series: Vec<_> = match reports {
        [report] => vec![
            series(report, "longest time without a commit", GAP, |row| {
                row.gap_ms
            }),
            series(report, "p99.9 of a commit", P999, p999),
        ],
        reports => (reports.iter().zip(ENGINES.into_iter().cycle()))
            .map(|(report, color)| series(report, &report.engine, color, p999))
            .collect(),
    };
    let rows = reports.first().map_or(&[][..], |report| &report.rows);
    let names: Vec<_> = rows.iter().map(|row| row.scenario).collect();
    let mut text = String::new();
    let drawn = draw(&names, &series, &mut text);
    drawn.map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(text)
}

fn draw(names: &[&str], series: &[Series<'_>], text: &mut String) -> Drawn {
    crate::compare::use_font();
    let row_height = BAR * series.len() as u32 + BETWEEN;
    let height = TOP + BOTTOM + row_height * names.len() as u32;
    let area = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let all = series.iter().flat_map(|series| series.ms.iter().flatten());
    let longest = all.fold(GAP_MS * 10.0, |most, &ms| most.max(ms)) * 1.2;
    let pen = Pen { area, longest };
    pen.legend(series)?;
    pen.axis((TOP + row_height * names.len() as u32) as i32)?;
    for (n, name) in names.iter().enumerate() {
        let top = TOP + row_height * n as u32;
        let middle = (top + row_height / 2 - 2) as i32;
        pen.text(name, (LEFT as i32 - 8, middle), HPos::Right)?;
        for (bar, series) in series.iter().enumerate() {
            if let Some(ms) = series.ms[n] {
                pen.bar(ms, (top + 2 + BAR * bar as u32) as i32, series.color)?;
            }
        }
    }
    pen.area.present()?;
    Ok(())
}

/// A drawing, and the longest time on its axis.
struct Pen<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
    longest: f64,
}

impl Pen<'_> {
    fn x(&self, ms: f64) -> i32 {
        let share = (ms.max(SHORTEST_MS) / SHORTEST_MS).ln() / (self.longest / SHORTEST_MS).ln();
        LEFT as i32 + (share * f64::from(WIDTH - LEFT - RIGHT)) as i32
    }

    fn text(&self, text: &str, at: (i32, i32), side: HPos) -> Drawn {
        let style = TextStyle::from(("sans-serif", 12).into_font())
            .color(&INK)
            .pos(Pos::new(side, VPos::Center));
        self.area.draw(&Text::new(text, at, style))?;
        Ok(())
    }

    fn bar(&self, ms: f64, top: i32, color: RGBColor) -> Drawn {
        let corners = [(LEFT as i32, top), (self.x(ms), top + BAR as i32 - 1)];
        self.area.draw(&Rectangle::new(corners, color.filled()))?;
        Ok(())
    }

    fn legend(&self, series: &[Series<'_>]) -> Drawn {
        let room = (WIDTH - LEFT) as usize / series.len().clamp(2, 8);
        for (n, series) in series.iter().enumerate() {
            let left = LEFT as i32 + (room * n) as i32;
            let corners = [(left, 14), (left + 12, 23)];
            self.area
                .draw(&Rectangle::new(corners, series.color.filled()))?;
            self.text(series.name, (left + 18, 18), HPos::Left)?;
        }
        Ok(())
    }

    /// Draws a line for each power of ten, and the limit of the gap.
    fn axis(&self, bottom: i32) -> Drawn {
        let top = TOP as i32 - 6;
        let mut ms = SHORTEST_MS;
        while ms <= self.longest {
            let x = self.x(ms);
            let ink = if ms == GAP_MS {
                BLACK.mix(0.7)
            } else {
                BLACK.mix(0.15)
            };
            self.area
                .draw(&PathElement::new([(x, top), (x, bottom)], ink))?;
            let label = match ms {
                ms if ms >= 1_000.0 => format!("{} s", ms / 1_000.0),
                ms => format!("{ms} ms"),
            };
            self.text(&label, (x, bottom + 14), HPos::Center)?;
            ms = (ms * 100.0).round() / 10.0;
        }
        Ok(())
    }
}
