//! The report as a figure: two bars for each scenario, on a logarithmic scale.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{GAP_MS, StallRow, StallsReport};

const WIDTH: u32 = 760;

/// Height of the lines of one scenario.
const ROW: u32 = 26;

/// Space above and below the rows, and left of the bars.
const TOP: u32 = 46;
const BOTTOM: u32 = 44;
const LEFT: u32 = 170;
const RIGHT: u32 = 30;

/// Shortest time shown, in milliseconds.
const SHORTEST_MS: f64 = 0.1;

const GAP: RGBColor = RGBColor(0xc4, 0x4e, 0x52);
const P999: RGBColor = RGBColor(0x4c, 0x72, 0xb0);
const INK: RGBColor = RGBColor(0x40, 0x40, 0x40);

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns an SVG image: the longest gap and the p99.9 of each scenario.
pub(super) fn svg(report: &StallsReport) -> std::io::Result<String> {
    let rows = report.rows.iter().filter(|row| row.error.is_none());
    let mut text = String::new();
    let drawn = draw(&rows.collect::<Vec<_>>(), &mut text);
    drawn.map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(text)
}

fn draw(rows: &[&StallRow], text: &mut String) -> Drawn {
    crate::compare::use_font();
    let height = TOP + BOTTOM + ROW * rows.len() as u32;
    let area = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let most = rows.iter().map(|row| row.gap_ms.max(row.latency.p999_ms));
    let longest = most.fold(GAP_MS * 10.0, f64::max) * 1.2;
    let pen = Pen { area, longest };
    pen.legend()?;
    pen.axis(rows.len())?;
    for (n, row) in rows.iter().enumerate() {
        let top = (TOP + ROW * n as u32) as i32;
        pen.text(row.scenario, (LEFT as i32 - 8, top + 11), HPos::Right)?;
        pen.bar(row.gap_ms, top + 2, GAP)?;
        pen.bar(row.latency.p999_ms, top + 12, P999)?;
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
        let corners = [(LEFT as i32, top), (self.x(ms), top + 9)];
        self.area.draw(&Rectangle::new(corners, color.filled()))?;
        Ok(())
    }

    fn legend(&self) -> Drawn {
        for (left, color, name) in [
            (LEFT as i32, GAP, "longest time without a commit"),
            (LEFT as i32 + 230, P999, "p99.9 of a commit"),
        ] {
            let corners = [(left, 14), (left + 12, 23)];
            self.area.draw(&Rectangle::new(corners, color.filled()))?;
            self.text(name, (left + 18, 18), HPos::Left)?;
        }
        Ok(())
    }

    /// Draws a line for each power of ten, and the limit of the gap.
    fn axis(&self, rows: usize) -> Drawn {
        let (top, bottom) = (TOP as i32 - 6, (TOP + ROW * rows as u32) as i32);
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
