//! Tables of a record, as text for a terminal that is Markdown too.
//!
//! Promises that every column of a part shows, with `n/a` where a row lacks it, and that bars say asked and measured. Only
//! formats; never drops a row.

use super::{Bar, Part, Report, Row, Side, Summary};
use std::fmt::Write;

/// The short table that goes to stdout: parts, bars, notes.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for part in &report.parts {
        write_part(&mut out, part);
    }
    write_bars(&mut out, &report.bars);
    if let Some(why) = &report.ended_early {
        let _ = writeln!(out, "ENDED EARLY: {why}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// The table with the record's head, for table.md.
pub fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let mut out = format!("# {}\n\n", report.bench);
    let _ = writeln!(out, "- command: `{}`", machine.command_line);
    let _ = writeln!(out, "- commit {}, {}", machine.commit, machine.date_utc);
    let _ = writeln!(
        out,
        "- {} CPUs of {}, {} of memory, Linux {}",
        machine.cpus,
        machine.cpu_model,
        bytes(machine.memory_bytes as f64),
        machine.kernel
    );
    let _ = writeln!(
        out,
        "- medians (smallest to largest) of {} rounds of {} s, peers in turns",
        report.repeats, report.seconds_per_round
    );
    if report.scale_divisor != 1 {
        let _ = writeln!(
            out,
            "- **data sizes divided by {}: a smoke test, no measurement**",
            report.scale_divisor
        );
    }
    out.push('\n');
    out + &text(report)
}

fn write_part(out: &mut String, part: &Part) {
    let _ = writeln!(out, "{}: {}\n", part.name, part.title);
    let mut lines = vec![vec!["case".to_owned(), "peer".to_owned()]];
    lines[0].extend(part.columns.iter().map(|c| heading(c)));
    lines.extend(part.rows.iter().map(|row| cells(part, row)));
    write_aligned(out, &lines);
    out.push('\n');
    for note in &part.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if !part.notes.is_empty() {
        out.push('\n');
    }
}

fn cells(part: &Part, row: &Row) -> Vec<String> {
    let mut cells = vec![row.case.clone(), row.peer.clone()];
    for (i, column) in part.columns.iter().enumerate() {
        cells.push(match row.figures.get(*column) {
            Some(summary) if i == 0 => with_spread(column, summary),
            Some(summary) => figure(column, summary.median),
            None if i == 0 && row.status != "measured" => row.status.clone(),
            None => "n/a".into(),
        });
    }
    cells
}

fn with_spread(column: &str, summary: &Summary) -> String {
    let median = figure(column, summary.median);
    if summary.samples.len() == 1 {
        return median;
    }
    format!(
        "{median} ({}-{})",
        figure(column, summary.min),
        figure(column, summary.max)
    )
}

fn write_bars(out: &mut String, bars: &[Bar]) {
    if bars.is_empty() {
        return;
    }
    let mut lines = vec![["bar", "asked", "measured", ""].map(str::to_owned).to_vec()];
    for bar in bars {
        let sign = if bar.side == Side::AtLeast {
            "\u{2265}"
        } else {
            "\u{2264}"
        };
        lines.push(vec![
            bar.name.clone(),
            format!("{sign} {}", figure(&bar.name, bar.limit)),
            bar.measured.map_or("n/a".into(), |m| figure(&bar.name, m)),
            match bar.met {
                Some(true) => "met".into(),
                Some(false) => "MISSED".into(),
                None => "not judged".into(),
            },
        ]);
    }
    write_aligned(out, &lines);
    out.push('\n');
}

fn write_aligned(out: &mut String, lines: &[Vec<String>]) {
    let columns = lines[0].len();
    let width = |c: usize| {
        lines
            .iter()
            .map(|line| line[c].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (i, line) in lines.iter().enumerate() {
        for (cell, &width) in line.iter().zip(&widths) {
            let _ = write!(out, "| {cell:<width$} ");
        }
        out.push_str("|\n");
        if i == 0 {
            for &width in &widths {
                let _ = write!(out, "|{}", "-".repeat(width + 2));
            }
            out.push_str("|\n");
        }
    }
}

/// `latency_p99_us` reads `latency p99 µs`.
pub fn heading(column: &str) -> String {
    let words = column
        .strip_suffix("_per_s")
        .map_or(column.to_owned(), |c| c.to_owned() + "/s");
    let words = words
        .strip_suffix("_us")
        .map_or(words.clone(), |c| c.to_owned() + " \u{b5}s");
    words.replace('_', " ")
}

/// A figure as its name's unit asks: bytes in binary units, rates with k and M, the rest with three or four digits.
pub fn figure(name: &str, value: f64) -> String {
    // `x_bytes_per_key` is a small number, `x_bytes` a size.
    if name.ends_with("_bytes") || name.ends_with(" bytes") {
        return bytes(value);
    }
    match value.abs() {
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e4 => format!("{:.1} k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

fn bytes(value: f64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if value >= size as f64 {
            return format!("{:.1} {unit}", value / size as f64);
        }
    }
    format!("{value:.0} B")
}

#[cfg(test)]
mod tests {
    use super::super::Samples;
    use super::*;

    #[test]
    fn figures_carry_their_unit() {
        assert_eq!(figure("cgroup_peak_bytes", 301_989_888.0), "288.0 MiB");
        assert_eq!(figure("ops_per_s", 1_234_567.0), "1.23 M");
        assert_eq!(figure("ops_per_s", 98_765.0), "98.8 k");
        assert_eq!(figure("device_reads_per_miss", 1.0123), "1.012");
        assert_eq!(heading("latency_p99_us"), "latency p99 \u{b5}s");
        assert_eq!(heading("ops_per_s"), "ops/s");
    }

    #[test]
    fn missing_shows() {
        let mut part = Part::new("dram", "t", &["ops_per_s", "latency_p99_us"]);
        let mut samples = Samples::default();
        samples.round();
        samples.add("ops_per_s", 5.0);
        part.rows.push(Row::measured("GET", "terrace", &samples));
        part.rows.push(Row::missing(
            "GET",
            "redis",
            "not installed (apt-get install redis-server)",
        ));
        let mut report = Report::new("first", &crate::Options::default());
        report.parts.push(part);
        report.bars.push(Bar::new("x", Side::AtLeast, 0.7, None));
        let text = text(&report);
        assert!(text.contains("5.000"), "{text}");
        assert!(
            text.contains("not installed (apt-get install redis-server) | n/a"),
            "{text}"
        );
        assert!(text.contains("not judged"), "{text}");
        assert!(markdown(&report).starts_with("# first\n"));
    }
}
