//! Drawing of a chart: as a separate file, as an image, and for the report, which has title and
//! legend as HTML.

use std::path::{Path, PathBuf};
use std::sync::Once;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::BenchError;
use crate::compare::Spread;

/// Size of a drawing, and position of the plot within it.
struct Layout {
    size: (u32, u32),
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// Left end of the title of the vertical axis.
    y_title: f64,
    /// Font size of the labels.
    label: f64,
    /// Whether the drawing has a title above the plot and a legend to the right of it.
    has_words: bool,
}

/// Layout of a separate file.
const ALONE: Layout = Layout {
    size: (860, 440),
    left: 74.0,
    right: 690.0,
    top: 44.0,
    bottom: 386.0,
    y_title: 8.0,
    label: 13.0,
    has_words: true,
};

/// Layout of a part of the report: as wide as a phone, so that labels are readable there without
/// scrolling.
const IN_PAGE: Layout = Layout {
    size: (400, 310),
    left: 44.0,
    right: 390.0,
    top: 30.0,
    bottom: 256.0,
    y_title: 2.0,
    label: 16.0,
    has_words: false,
};

/// Size of a curve's sample in the report's legend.
const SAMPLE: (u32, u32) = (26, 14);

/// Maximum width of a character of a label, and gap between two labels.
const CHARACTER: f64 = 7.5;
const GAP: f64 = 8.0;

/// Pixels per unit of an image.
const IMAGE_SCALE: u32 = 2;

/// Color of text and axes; within the report they take the page's color.
const INK: RGBColor = RGBColor(0x1f, 0x29, 0x33);
const INK_NAME: &str = "#1F2933";

/// Color of Braid, then those of the other engines. They can be told apart on white and on black,
/// also with a color vision deficiency; the shapes of the markers differ, too.
const COLORS: [RGBColor; 10] = [
    RGBColor(0xd9, 0x48, 0x1c),
    RGBColor(0x2f, 0x7f, 0xd1),
    RGBColor(0x17, 0x93, 0x7d),
    RGBColor(0x8f, 0x63, 0xc4),
    RGBColor(0xb5, 0x89, 0x0b),
    RGBColor(0xcc, 0x52, 0x97),
    RGBColor(0x5b, 0x99, 0x35),
    RGBColor(0x8a, 0x6a, 0x4f),
    RGBColor(0x2f, 0x9f, 0xbf),
    RGBColor(0x6b, 0x74, 0xc9),
];
const LIMIT_COLOR: RGBColor = RGBColor(0x80, 0x88, 0x90);

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Axis {
    /// Evenly spaced values.
    Steps(Vec<f64>),
    /// A logarithmic axis.
    Log,
    /// A linear axis from zero.
    Linear,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// An engine, by its position in the list of engines; Braid is the first.
    Engine(usize),
    /// A limit of the engines.
    Limit,
}

impl Style {
    fn color(self) -> RGBColor {
        match self {
            Style::Engine(0) => COLORS[0],
            Style::Engine(place) => COLORS[1 + (place - 1) % (COLORS.len() - 1)],
            Style::Limit => LIMIT_COLOR,
        }
    }

    fn width(self) -> f64 {
        if self == Style::Engine(0) { 3.0 } else { 1.6 }
    }
}

/// A curve.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) style: Style,
    /// Points of the curve, with the spread of the vertical value.
    pub(super) points: Vec<(f64, Spread)>,
}

impl Series {
    /// Returns a sample of the curve as SVG, for a legend.
    pub(super) fn sample(&self) -> std::io::Result<String> {
        let (width, height) = SAMPLE;
        svg(SAMPLE, |area| {
            let pen = Pen { area, scale: 1.0 };
            pen.sample(self.style, (0.0, f64::from(height) / 2.0), f64::from(width))
        })
    }
}

/// A chart.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// Name of the chart's files.
    pub(super) name: String,
    /// Workload of the chart.
    pub(super) workload: String,
    pub(super) title: String,
    pub(super) x_title: &'static str,
    pub(super) y_title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

impl Chart {
    /// Writes `NAME.svg` and `NAME.png` into a directory; returns their paths.
    pub(super) fn write(&self, directory: &Path) -> Result<[PathBuf; 2], BenchError> {
        let path = |ending: &str| directory.join(format!("{}.{ending}", self.name));
        let (svg, png) = (path("svg"), path("png"));
        let written = self.svg().and_then(|text| std::fs::write(&svg, text));
        written.map_err(|error| BenchError::file("write", &svg, error))?;
        let written = self.png().and_then(|bytes| std::fs::write(&png, bytes));
        written.map_err(|error| BenchError::file("write", &png, error))?;
        Ok([svg, png])
    }

    /// Returns the plot alone as SVG, without a background and in the color of the surrounding
    /// text.
    pub(super) fn plot(&self) -> std::io::Result<String> {
        let text = svg(IN_PAGE.size, |area| self.draw(area, &IN_PAGE, 1.0))?;
        Ok(text.replace(INK_NAME, "currentColor"))
    }

    /// Returns the chart with title and legend as SVG, on white.
    fn svg(&self) -> std::io::Result<String> {
        svg(ALONE.size, |area| {
            area.fill(&WHITE)?;
            self.draw(area, &ALONE, 1.0)
        })
    }

    fn png(&self) -> std::io::Result<Vec<u8>> {
        let (width, height) = (ALONE.size.0 * IMAGE_SCALE, ALONE.size.1 * IMAGE_SCALE);
        let mut pixels = vec![0; 3 * width as usize * height as usize];
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        self.draw(&area, &ALONE, f64::from(IMAGE_SCALE))
            .map_err(failed)?;
        area.present().map_err(failed)?;
        drop(area);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(&pixels));
        written.map_err(failed)?;
        Ok(bytes)
    }

    fn draw<D: DrawingBackend>(
        &self,
        area: &DrawingArea<D, Shift>,
        layout: &Layout,
        scale: f64,
    ) -> Drawn<D> {
        use_font();
        let &Layout {
            left,
            right,
            top,
            bottom,
            label: size,
            ..
        } = layout;
        let x = Scale::new(&self.x, self.xs(), left, right);
        let y = Scale::new(&self.y, self.ys(), bottom, top);
        let pen = Pen { area, scale };
        if layout.has_words {
            pen.text(&self.title, (left, 16.0), 17.0, INK, HPos::Left)?;
        }
        for (at, label) in y.ticks() {
            pen.line(&[(left, at), (right, at)], INK.mix(0.16), 1.0)?;
            pen.text(&label, (left - 8.0, at), size, INK, HPos::Right)?;
        }
        pen.line(&[(left, bottom), (right, bottom)], INK.mix(0.6), 1.0)?;
        for (at, label) in apart(x.ticks()) {
            pen.line(&[(at, bottom), (at, bottom + 5.0)], INK.mix(0.6), 1.0)?;
            pen.text(&label, (at, bottom + 16.0), size, INK, HPos::Center)?;
        }
        let below = (f64::midpoint(left, right), bottom + 38.0);
        pen.text(self.x_title, below, size, INK, HPos::Center)?;
        let above = (layout.y_title, top - 12.0);
        pen.text(self.y_title, above, size - 1.0, INK, HPos::Left)?;
        // Draw Braid last, on top.
        for series in self.series.iter().rev() {
            self.draw_series(&pen, series, &x, &y)?;
        }
        if layout.has_words {
            self.draw_legend(&pen, layout, &y)
        } else {
            Ok(())
        }
    }

    fn draw_series<D: DrawingBackend>(
        &self,
        pen: &Pen<'_, D>,
        series: &Series,
        x: &Scale,
        y: &Scale,
    ) -> Drawn<D> {
        let color = series.style.color();
        let at = |&(px, spread): &(f64, Spread)| (x.place(px), y.place(spread.median));
        let path: Vec<_> = series.points.iter().map(at).collect();
        pen.curve(&path, series.style)?;
        for ((px, spread), &place) in series.points.iter().zip(&path) {
            let px = x.place(*px);
            let bar = [(px, y.place(spread.min)), (px, y.place(spread.max))];
            pen.line(&bar, color.mix(0.55), 1.2)?;
            pen.marker(series.style, place)?;
        }
        Ok(())
    }

    /// Draws the names at the right, in the order of the curves' ends and as close to them as
    /// possible.
    fn draw_legend<D: DrawingBackend>(
        &self,
        pen: &Pen<'_, D>,
        layout: &Layout,
        y: &Scale,
    ) -> Drawn<D> {
        const LINE: f64 = 19.0;
        let end = |series: &Series| series.points.last().map(|(_, s)| y.place(s.median));
        let mut names: Vec<(f64, &Series)> = self
            .series
            .iter()
            .filter_map(|series| Some((end(series)?, series)))
            .collect();
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Downwards, no name may overlap the previous one; upwards, none may leave the plot.
        let mut lowest = layout.top - LINE;
        for (at, _) in &mut names {
            *at = at.max(lowest + LINE);
            lowest = *at;
        }
        let mut highest = layout.bottom + LINE;
        for (at, _) in names.iter_mut().rev() {
            *at = at.min(highest - LINE);
            highest = *at;
        }
        for (at, series) in names {
            let from = layout.right + 14.0;
            pen.sample(series.style, (from, at), 18.0)?;
            pen.text(&series.name, (from + 25.0, at), 13.0, INK, HPos::Left)?;
        }
        Ok(())
    }

    fn xs(&self) -> impl Iterator<Item = f64> {
        self.series
            .iter()
            .flat_map(|s| s.points.iter().map(|p| p.0))
    }

    fn ys(&self) -> impl Iterator<Item = f64> {
        let of = |s: &Spread| [s.min, s.max];
        self.series
            .iter()
            .flat_map(move |s| s.points.iter().flat_map(move |p| of(&p.1)))
    }
}

/// Returns an SVG image of what `draw` draws.
fn svg(
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&DrawingArea<SVGBackend<'a>, Shift>) -> Drawn<SVGBackend<'a>>,
) -> std::io::Result<String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    draw(&area).map_err(failed)?;
    area.present().map_err(failed)?;
    drop(area);
    Ok(text)
}

type Drawn<D> = Result<(), DrawingAreaErrorKind<<D as DrawingBackend>::ErrorType>>;

fn failed(error: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

/// Registers the font of images. SVG files name a font of the reader's system, and take text widths
/// from this one.
pub(crate) fn use_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        // The font is valid, so this cannot fail.
        let _ = plotters::style::register_font("sans-serif", FontStyle::Normal, font);
    });
}

/// Maps values to positions on the drawing.
struct Scale {
    axis: Axis,
    /// First and last value shown.
    shown: (f64, f64),
    /// Their positions.
    places: (f64, f64),
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let wide = |range: (f64, f64), value: f64| (range.0.min(value), range.1.max(value));
        let is_shown = |value: &f64| value.is_finite() && (*axis != Axis::Log || *value > 0.0);
        let range = values
            .filter(is_shown)
            .fold((f64::INFINITY, f64::NEG_INFINITY), wide);
        let (least, most) = if range.0 > range.1 {
            (1.0, 10.0)
        } else {
            range
        };
        let shown = match axis {
            Axis::Steps(steps) => (0.0, steps.len().saturating_sub(1).max(1) as f64),
            Axis::Log => (least / 1.15, most * 1.15),
            Axis::Linear if most <= 0.0 => (0.0, 1.0),
            Axis::Linear => (0.0, most * 1.08),
        };
        // Keep the curves away from the frame.
        let places = match axis {
            Axis::Steps(_) => (from + 24.0, to - 24.0),
            _ => (from, to),
        };
        Scale {
            axis: axis.clone(),
            shown,
            places,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let (first, last) = self.shown;
        let part = match &self.axis {
            Axis::Steps(steps) => {
                let step = steps.iter().position(|&step| step == value);
                step.unwrap_or(0) as f64 / last
            }
            Axis::Log => (value.max(first) / first).ln() / (last / first).ln(),
            Axis::Linear => value / last,
        };
        self.places.0 + part * (self.places.1 - self.places.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let values = match &self.axis {
            Axis::Steps(steps) => steps.clone(),
            Axis::Log => log_ticks(self.shown.0, self.shown.1),
            Axis::Linear => linear_ticks(self.shown.1),
        };
        let label = |value: f64| (self.place(value), short(value));
        values.into_iter().map(label).collect()
    }
}

/// Returns the labels of a horizontal axis that do not overlap the previous one.
fn apart(ticks: Vec<(f64, String)>) -> Vec<(f64, String)> {
    let half = |label: &str| label.chars().count() as f64 * CHARACTER / 2.0;
    let mut end = f64::NEG_INFINITY;
    let mut kept = Vec::new();
    for (at, label) in ticks {
        if at - half(&label) >= end {
            end = at + half(&label) + GAP;
            kept.push((at, label));
        }
    }
    kept
}

/// Returns powers of ten with their doubles and halves, as many as fit.
fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let decades = (to / from).log10();
    let steps: &[f64] = match decades {
        d if d > 3.5 => &[1.0],
        d if d > 0.6 => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    };
    let powers = (from.log10().floor() as i32)..=(to.log10().ceil() as i32);
    powers
        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
        .filter(|tick| (from..=to).contains(tick))
        .collect()
}

fn linear_ticks(to: f64) -> Vec<f64> {
    let rough = to / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    (0..=5)
        .map(|i| f64::from(i) * step)
        .filter(|tick| *tick <= to)
        .collect()
}

/// Formats a number for an axis: 1500000 is 1.5M.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    // Up to three significant digits.
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

/// Draws in the chart's units.
struct Pen<'a, D: DrawingBackend> {
    area: &'a DrawingArea<D, Shift>,
    scale: f64,
}

impl<D: DrawingBackend> Pen<'_, D> {
    fn pixel(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (
            (x * self.scale).round() as i32,
            (y * self.scale).round() as i32,
        )
    }

    fn line(&self, path: &[(f64, f64)], color: RGBAColor, width: f64) -> Drawn<D> {
        let path: Vec<_> = path.iter().map(|&at| self.pixel(at)).collect();
        let width = (width * self.scale).round().max(1.0) as u32;
        self.area
            .draw(&PathElement::new(path, color.stroke_width(width)))
    }

    fn curve(&self, path: &[(f64, f64)], style: Style) -> Drawn<D> {
        if style != Style::Limit {
            return self.line(path, style.color().to_rgba(), style.width());
        }
        let path: Vec<_> = path.iter().map(|&at| self.pixel(at)).collect();
        let length = (6.0 * self.scale) as u32;
        let stroke = style
            .color()
            .stroke_width((style.width() * self.scale) as u32);
        let dashes = DashedPathElement::new(path, length, length * 2 / 3, stroke);
        self.area.draw(&dashes)
    }

    fn marker(&self, style: Style, at: (f64, f64)) -> Drawn<D> {
        let (at, size, color) = (self.pixel(at), (4.0 * self.scale) as i32, style.color());
        match style {
            Style::Engine(place) => match place % 4 {
                0 => self.area.draw(&Circle::new(at, size, color.filled())),
                1 => {
                    let (x, y, half) = (at.0, at.1, size - self.scale as i32 / 2);
                    let corners = [(x - half, y - half), (x + half, y + half)];
                    self.area.draw(&Rectangle::new(corners, color.filled()))
                }
                2 => self
                    .area
                    .draw(&TriangleMarker::new(at, size + 1, color.filled())),
                _ => {
                    let stroke = color.stroke_width((1.6 * self.scale) as u32);
                    self.area.draw(&Cross::new(at, size, stroke))
                }
            },
            Style::Limit => Ok(()),
        }
    }

    /// Draws a short curve with its marker, for a legend.
    fn sample(&self, style: Style, (x, y): (f64, f64), width: f64) -> Drawn<D> {
        self.curve(&[(x, y), (x + width, y)], style)?;
        self.marker(style, (x + width / 2.0, y))
    }

    /// Draws text, centered vertically.
    fn text(
        &self,
        text: &str,
        at: (f64, f64),
        size: f64,
        color: RGBColor,
        anchor: HPos,
    ) -> Drawn<D> {
        let style = TextStyle::from(("sans-serif", size * self.scale).into_font())
            .color(&color)
            .pos(Pos::new(anchor, VPos::Center));
        self.area
            .draw(&Text::new(text.to_owned(), self.pixel(at), style))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_readable_ticks() {
        assert_eq!(linear_ticks(1.08), [0.0, 0.5, 1.0]);
        assert_eq!(linear_ticks(7.0), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(log_ticks(900.0, 12_000.0), [1e3, 2e3, 5e3, 1e4]);
        for (value, text) in [
            (0.5, "0.5"),
            (32.0, "32"),
            (100.0, "100"),
            (2_000.0, "2k"),
            (1_500_000.0, "1.5M"),
            (20_000.0, "20k"),
        ] {
            assert_eq!(short(value), text);
        }
        for (from, to) in [(3.0, 4.0), (1.0, 1e6), (0.01, 500.0)] {
            let ticks = log_ticks(from, to);
            assert!((1..=12).contains(&ticks.len()), "{ticks:?}");
        }
    }

    #[test]
    fn labels_that_touch_are_left_out() {
        let ticks = [(10.0, "1k"), (30.0, "2k"), (70.0, "1.5M"), (120.0, "2M")];
        let ticks = ticks.map(|(at, label)| (at, label.to_owned()));
        let kept: Vec<f64> = apart(ticks.to_vec())
            .into_iter()
            .map(|(at, _)| at)
            .collect();
        assert_eq!(kept, [10.0, 70.0, 120.0]);
    }

    #[test]
    fn values_go_to_their_places() {
        let log = Scale::new(&Axis::Log, [10.0, 1_000.0].into_iter(), 0.0, 100.0);
        assert!((log.place(100.0) - 50.0).abs() < 1e-9);
        let steps = Axis::Steps(vec![1.0, 2.0, 8.0]);
        let steps = Scale::new(&steps, std::iter::empty(), 0.0, 100.0);
        assert_eq!([1.0, 2.0, 8.0].map(|v| steps.place(v)), [24.0, 50.0, 76.0]);
        // Empty data, zeroes and a single value can be drawn, too.
        for values in [vec![], vec![0.0], vec![5.0]] {
            for axis in [Axis::Log, Axis::Linear] {
                let scale = Scale::new(&axis, values.iter().copied(), 0.0, 1.0);
                assert!(scale.place(5.0).is_finite() && !scale.ticks().is_empty());
            }
        }
    }
}
