use super::super::charts;
use super::*;
use crate::compare::Spread;
use crate::compare::row::{BARE_LOG, Row};
use crate::compare::run::{EngineInfo, WorkloadInfo};

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for repeat in 1..=3 {
        for (place, engine) in [BRAID, "peer", BARE_LOG].into_iter().enumerate() {
            for threads in [1, 8] {
                let base = (100 * threads * (3 - place) + 7 * repeat) as f64;
                rows.push(Row {
                    sequence: rows.len(),
                    repeat,
                    workload: "u1".into(),
                    engine: engine.into(),
                    threads,
                    in_flight: 1,
                    tx_per_s: base * 10.1,
                    commits_per_s: base * 10.1,
                    mean_us: Some(base / 3.0),
                    p50_us: base / 4.0,
                    p99_us: base,
                    p999_us: base * 2.0,
                    execute_us: (place < 2).then_some(1.5),
                    queue_us: (place < 1).then_some(20.0),
                    write_us: (place < 1).then_some(80.0),
                    notify_us: (place < 1).then_some(7.0),
                    cpu_us_per_tx: 12.0 + place as f64,
                    device_bytes_per_tx: Some(4_097.0),
                    ..Row::default()
                });
            }
        }
    }
    rows
}

fn run() -> Run {
    let engine = |name: &str| EngineInfo {
        name: name.into(),
        about: "an <engine> & more".into(),
        ..EngineInfo::default()
    };
    Run {
        optimized: true,
        repeats: 3,
        workloads: vec![WorkloadInfo {
            name: "u1".into(),
            ..WorkloadInfo::default()
        }],
        engines: vec![engine(BRAID), engine("peer")],
        ..Run::default()
    }
}

/// Returns the value of an attribute in an element's opening tag.
fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let (_, rest) = tag.split_once(&format!("{name}=\"")).unwrap();
    rest.split('"').next().unwrap()
}

#[test]
fn the_figures_are_those_of_the_rows() {
    let (run, rows) = (run(), rows());
    let summary = Summary::new(&rows);
    let charts = charts::all(&run, &summary);
    let names: Vec<_> = charts.iter().map(|chart| chart.name.as_str()).collect();
    assert_eq!(names, ["u1-throughput", "u1-latency", "u1-share"]);
    let page = report(&run, &summary, &charts).unwrap();
    let metrics = [
        Metric::Throughput,
        Metric::P50,
        Metric::P99,
        Metric::P999,
        Metric::Cpu,
    ];
    let mut cells = 0;
    for tag in page.split("<td data-point=").skip(1) {
        let tag = format!("data-point={tag}");
        let place: Vec<_> = attribute(&tag, "data-point").split('/').collect();
        let title = attribute(&tag, "data-metric");
        let Some(metric) = metrics.into_iter().find(|m| m.title() == title) else {
            continue;
        };
        let values = rows
            .iter()
            .filter(|r| {
                [&r.workload, &r.engine, &r.threads.to_string()] == [place[0], place[1], place[2]]
            })
            .filter_map(|row| metric.of(row));
        let spread = Spread::of(values).unwrap();
        let shown = |name| attribute(&tag, name).parse::<f64>().unwrap();
        assert_eq!(shown("data-median"), spread.median, "{place:?} {title}");
        assert_eq!(
            (shown("data-min"), shown("data-max")),
            (spread.min, spread.max)
        );
        let text = tag
            .split("<span")
            .nth(1)
            .unwrap()
            .split('>')
            .nth(1)
            .unwrap();
        assert_eq!(
            text.split('<').next().unwrap(),
            tables::number(spread.median)
        );
        cells += 1;
    }
    // All cells of a workload's table, of the headline, and of the losses.
    assert!(cells >= 6 * metrics.len() + 3, "{cells}");
    assert!(
        page.contains("an &lt;engine&gt; &amp; more"),
        "text is escaped"
    );
    assert!(page.contains("class=\"notify\""), "stages are there");
    assert!(
        !page.contains("http://") || page.contains("www.w3.org"),
        "nothing is loaded"
    );
    assert!(
        !page.contains("src=") && !page.contains("<link"),
        "nothing is loaded"
    );
}

/// On a screen of 390 pixels, nothing is wider than the page except tables, which scroll.
#[test]
fn a_phone_shows_legends_and_every_column() {
    let (run, rows) = (run(), rows());
    let summary = Summary::new(&rows);
    let charts = charts::all(&run, &summary);
    let page = report(&run, &summary, &charts).unwrap();
    assert!(page.contains("content=\"width=device-width, initial-scale=1\""));
    assert_eq!(page.matches("<figure>").count(), charts.len());
    for (figure, chart) in page.split("<figure>").skip(1).zip(&charts) {
        let (figure, _) = figure.split_once("</figure>").unwrap();
        assert!(figure.starts_with(&format!("<figcaption>{}<", chart.title)));
        let (plot, legend) = figure.split_once("<div class=\"key\">").unwrap();
        // The labels of a plot that is drawn larger than the screen are too small to read.
        let svg = plot.split_once("<svg ").unwrap().1;
        let width: u32 = attribute(svg, "width").parse().unwrap();
        assert!(width <= 400, "{width}");
        for series in &chart.series {
            let name = format!("\n{}</span>", series.name);
            assert!(legend.contains(&name), "{name} in {legend}");
            let in_plot = format!("\n{}\n", series.name);
            assert!(!plot.contains(&in_plot), "a legend within the plot: {plot}");
        }
    }
    assert_eq!(
        page.matches("<table>").count(),
        page.matches("<div class=\"wide\"><table>").count(),
        "a table does not scroll"
    );
    let (_, style) = page.split_once("<style>").unwrap();
    let (style, _) = style.split_once("</style>").unwrap();
    for rule in [
        ".wide { overflow-x: auto;",
        ".wide :is(th, td):first-child { position: sticky; left: 0;",
        ".key { display: flex; flex-wrap: wrap;",
    ] {
        assert!(style.contains(rule), "{rule}");
    }
    for rule in style.split("min-width: ").skip(1) {
        let value = rule.split([';', ' ', '}']).next().unwrap();
        let rem = value
            .strip_suffix("rem")
            .map(|rem| rem.parse::<f64>().unwrap());
        assert!(rem.is_none_or(|rem| rem <= 20.0), "{value}");
    }
}

#[test]
fn losses_are_reported() {
    let (run, mut rows) = (run(), rows());
    let page = |rows: &[Row]| report(&run, &Summary::new(rows), &[]).unwrap();
    for row in &mut rows {
        row.p99_us = 5.0;
    }
    assert!(page(&rows).contains("Nowhere:"));
    rows.iter_mut()
        .filter(|row| row.engine == "peer" && row.threads == 8)
        .for_each(|row| row.p99_us = 2.0);
    let page = page(&rows);
    assert!(!page.contains("Nowhere:"));
    let (_, losses) = page.split_once("id=\"losses\"").unwrap();
    let (losses, _) = losses.split_once("</section>").unwrap();
    assert_eq!(
        losses.matches("<td class=\"text\">apart").count(),
        1,
        "{losses}"
    );
    assert!(
        losses.contains("u1/peer/8/1") && losses.contains(">2.50<"),
        "{losses}"
    );
}

#[test]
fn numbers_have_three_digits_or_more() {
    for (value, text) in [
        (0.0, "0"),
        (0.123, "0.12"),
        (9.99, "9.99"),
        (9.999, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1_234.5, "1,234"),
        (1_234_567.0, "1,234,567"),
    ] {
        assert_eq!(tables::number(value), text, "{value}");
    }
}
