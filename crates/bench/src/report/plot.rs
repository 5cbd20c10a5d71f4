//! Plots as PNG: grouped columns with their spread, and lines.
//!
//! Promises to need no font of the system: a small part of DejaVu Sans is bundled (its licence lies beside it). Only draws what
//! it is given; a figure that is missing leaves a gap.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;
use std::sync::Once;

const FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-subset.ttf");
const SIZE_PX: (u32, u32) = (960, 540);
const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(117, 112, 179),
];

/// One column: who, and the median with its spread, if measured.
pub struct Column {
    /// Name in the legend.
    pub series: String,
    /// Median, smallest, largest.
    pub figure: Option<(f64, f64, f64)>,
}

/// Columns that stand together over one label.
pub struct Group {
    /// Label under the group.
    pub label: String,
    /// The columns; every group has the same series in the same order.
    pub columns: Vec<Column>,
}

/// One line of points.
pub struct Line {
    /// Name in the legend.
    pub series: String,
    /// Points, x ascending.
    pub points: Vec<(f64, f64)>,
}

/// Axis names and an optional bar drawn across.
pub struct Frame<'a> {
    /// Above the plot.
    pub title: &'a str,
    /// Under the plot.
    pub x: &'a str,
    /// Left of the plot, with its unit.
    pub y: &'a str,
    /// A limit drawn as a dashed line.
    pub limit: Option<f64>,
}

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

fn area(path: &Path) -> Result<Area<'_>> {
    static FONT_ONCE: Once = Once::new();
    let mut registered = true;
    FONT_ONCE
        .call_once(|| registered = register_font("sans-serif", FontStyle::Normal, FONT).is_ok());
    if !registered {
        return Err(anyhow!("the bundled font cannot be read"));
    }
    let area = BitMapBackend::new(path, SIZE_PX).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}

fn colour(i: usize) -> RGBColor {
    COLOURS[i % COLOURS.len()]
}

/// Columns in groups, a whisker from the smallest to the largest sample on each.
pub fn columns(path: &Path, frame: &Frame<'_>, groups: &[Group]) -> Result<()> {
    let figures = groups
        .iter()
        .flat_map(|g| &g.columns)
        .filter_map(|c| c.figure);
    let top = figures
        .map(|(_, _, max)| max)
        .chain(frame.limit)
        .fold(0.0, f64::max)
        * 1.25;
    if groups.is_empty() || top <= 0.0 {
        return Err(anyhow!("there is no figure to draw"));
    }
    let area = area(path)?;
    let labels: Vec<String> = groups.iter().map(|g| g.label.clone()).collect();
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(frame.title, ("sans-serif", 20))
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(groups.len() * 2 + 1)
        .x_label_formatter(&|x| group_label(*x, &labels))
        .y_label_formatter(&|y| super::table::figure("", *y))
        .x_desc(frame.x)
        .y_desc(frame.y)
        .label_style(("sans-serif", 14))
        .draw()?;
    let series = groups[0].columns.len();
    let width = 0.8 / series as f64;
    for s in 0..series {
        let colour = colour(s);
        let at = |g: usize| g as f64 + 0.1 + s as f64 * width;
        let figures = || {
            groups
                .iter()
                .enumerate()
                .filter_map(|(g, group)| Some((g, group.columns[s].figure?)))
        };
        chart
            .draw_series(figures().map(|(g, (median, _, _))| {
                Rectangle::new(
                    [(at(g), 0.0), (at(g) + width * 0.92, median)],
                    colour.filled(),
                )
            }))?
            .label(&groups[0].columns[s].series)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
        chart.draw_series(figures().map(|(g, (_, min, max))| {
            let x = at(g) + width * 0.46;
            PathElement::new(vec![(x, min), (x, max)], BLACK.stroke_width(2))
        }))?;
    }
    if let Some(limit) = frame.limit {
        chart.draw_series(DashedLineSeries::new(
            [(0.0, limit), (groups.len() as f64, limit)],
            8,
            6,
            RED.stroke_width(2),
        ))?;
    }
    legend(&mut chart)?;
    area.present()?;
    Ok(())
}

/// Labels stand in the middle of groups only; plotters asks for many other places too.
fn group_label(x: f64, labels: &[String]) -> String {
    let group = x.floor();
    if (x - group - 0.5).abs() > 1e-6 {
        return String::new();
    }
    labels.get(group as usize).cloned().unwrap_or_default()
}

/// Lines over a logarithmic x axis.
pub fn lines(path: &Path, frame: &Frame<'_>, lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points).copied();
    let (left, right) = points().fold((f64::MAX, 0.0f64), |(lo, hi), (x, _)| {
        (lo.min(x), hi.max(x))
    });
    let top = points()
        .map(|(_, y)| y)
        .chain(frame.limit)
        .fold(0.0, f64::max)
        * 1.15;
    if left <= 0.0 || right <= left || top <= 0.0 {
        return Err(anyhow!("there is no line to draw"));
    }
    let area = area(path)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(frame.title, ("sans-serif", 20))
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d((left..right).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| super::table::figure("", *x))
        .y_label_formatter(&|y| super::table::figure("", *y))
        .x_desc(frame.x)
        .y_desc(frame.y)
        .label_style(("sans-serif", 14))
        .draw()?;
    for (i, line) in lines.iter().enumerate() {
        let colour = colour(i);
        chart
            .draw_series(LineSeries::new(
                line.points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(&line.series)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 14, y)], colour.stroke_width(2))
            });
    }
    if let Some(limit) = frame.limit {
        chart.draw_series(DashedLineSeries::new(
            [(left, limit), (right, limit)],
            8,
            6,
            RED.stroke_width(2),
        ))?;
    }
    legend(&mut chart)?;
    area.present()?;
    Ok(())
}

fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, BitMapBackend<'a>, Cartesian2d<X, Y>>,
) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()
        .map_err(|e| anyhow!("the legend: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!(
            "terrace-bench-plot-{}-{name}.png",
            std::process::id()
        ))
    }

    #[test]
    fn draws_columns_and_lines() {
        let path = file("columns");
        let column = |series: &str, figure| Column {
            series: series.into(),
            figure,
        };
        let groups: Vec<Group> = ["GET 1", "GET 16"]
            .iter()
            .map(|label| Group {
                label: (*label).into(),
                columns: vec![
                    column("terrace", Some((5e5, 4e5, 6e5))),
                    column("redis", None),
                ],
            })
            .collect();
        let frame = Frame {
            title: "t",
            x: "x",
            y: "ops/s",
            limit: Some(3e5),
        };
        columns(&path, &frame, &groups).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
        std::fs::remove_file(&path).unwrap();

        let path = file("lines");
        let line = Line {
            series: "bytes".into(),
            points: (0..20)
                .map(|i| (1000.0 * 2f64.powi(i), 9.0 + (i % 3) as f64))
                .collect(),
        };
        lines(&path, &frame, &[line]).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        let frame = Frame {
            title: "t",
            x: "x",
            y: "y",
            limit: None,
        };
        assert!(columns(&file("none"), &frame, &[]).is_err());
        assert!(lines(&file("none"), &frame, &[]).is_err());
    }
}
