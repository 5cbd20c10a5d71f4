//! The record of a bench: rows of figures, bars, and where they are written.
//!
//! Promises that a figure is never made up: what could not be measured is absent and shows as `n/a`, a peer that is missing has
//! a row that says so, and a bar that could not be judged counts as neither met nor missed. The JSON schema is
//! `terrace-bench/1`; names carry units, and names are only ever added. Never measures anything itself.

pub mod plot;
pub mod table;

use crate::machine::Machine;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Name and version of the JSON schema.
pub const SCHEMA: &str = "terrace-bench/1";
/// Exit code when every bar is met.
pub const EXIT_MET: i32 = 0;
/// Exit code when a bar is missed.
pub const EXIT_MISSED: i32 = 1;
/// Exit code when no bar is missed but one could not be judged (a peer not installed, not root, a scaled-down run).
pub const EXIT_NOT_JUDGED: i32 = 3;

/// Median and spread of the repeats of one figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// All samples in the order they were taken.
    pub samples: Vec<f64>,
}

impl Summary {
    /// None when there is no sample, or one that is no number.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        if samples.is_empty() || samples.iter().any(|s| !s.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Summary {
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            samples: samples.to_vec(),
        })
    }
}

/// Samples of many figures, gathered round by round. A figure that is missing in one round is missing in all.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    rounds: usize,
    by_name: BTreeMap<&'static str, Vec<f64>>,
}

impl Samples {
    /// Begins the next round.
    pub fn round(&mut self) {
        self.rounds += 1;
    }

    /// Adds this round's sample of a figure, if there is one.
    pub fn add(&mut self, name: &'static str, sample: impl Into<Option<f64>>) {
        if let Some(sample) = sample.into() {
            self.by_name.entry(name).or_default().push(sample);
        }
    }

    /// The samples of one figure, in the order of the rounds; empty when a round lacks it.
    pub fn of(&self, name: &str) -> &[f64] {
        match self.by_name.get(name) {
            Some(samples) if samples.len() == self.rounds => samples,
            _ => &[],
        }
    }

    /// Adds the rounds of another to these.
    pub fn append(&mut self, other: Samples) {
        self.rounds += other.rounds;
        for (name, samples) in other.by_name {
            self.by_name.entry(name).or_default().extend(samples);
        }
    }

    fn figures(&self) -> BTreeMap<String, Summary> {
        self.by_name
            .keys()
            .filter_map(|name| Some((name.to_string(), Summary::of(self.of(name))?)))
            .collect()
    }
}

/// Round by round the ratio of one figure of ours to a peer's: rounds are interleaved, so what disturbs one disturbs the other.
pub fn paired_ratio(ours: &Samples, peer: &Samples, name: &str) -> Option<Summary> {
    let (ours, peer) = (ours.of(name), peer.of(name));
    if ours.len() != peer.len() || peer.contains(&0.0) {
        return None;
    }
    Summary::of(
        &ours
            .iter()
            .zip(peer)
            .map(|(a, b)| a / b)
            .collect::<Vec<_>>(),
    )
}

/// One line of a part: one peer in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was done, e.g. `GET, 16 in flight`.
    pub case: String,
    /// Who did it.
    pub peer: String,
    /// `measured`, or why not.
    pub status: String,
    /// Figures by name; names carry units.
    pub figures: BTreeMap<String, Summary>,
}

impl Row {
    /// A row of measured figures.
    pub fn measured(case: &str, peer: &str, samples: &Samples) -> Row {
        Row {
            case: case.into(),
            peer: peer.into(),
            status: "measured".into(),
            figures: samples.figures(),
        }
    }

    /// A row that says why there are no figures.
    pub fn missing(case: &str, peer: &str, why: &str) -> Row {
        Row {
            case: case.into(),
            peer: peer.into(),
            status: why.into(),
            figures: BTreeMap::new(),
        }
    }
}

/// Rows that share their columns.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// Short name, e.g. `dram`.
    pub name: String,
    /// One line on what was done.
    pub title: String,
    /// The figures the table shows, in order; the JSON has them all.
    pub columns: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What the reader must know beside the figures.
    pub notes: Vec<String>,
}

impl Part {
    /// An empty part.
    pub fn new(name: &str, title: &str, columns: &[&'static str]) -> Part {
        Part {
            name: name.into(),
            title: title.into(),
            columns: columns.to_vec(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Which side of its limit a bar wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The figure must be the limit or more.
    AtLeast,
    /// The figure must be the limit or less.
    AtMost,
}

/// A figure that must hold.
#[derive(Debug, Clone, Serialize)]
pub struct Bar {
    /// What is judged, with its unit.
    pub name: String,
    /// Which side of the limit is wanted.
    pub side: Side,
    /// The limit.
    pub limit: f64,
    /// What was measured.
    pub measured: Option<f64>,
    /// Whether it holds; None when it could not be judged.
    pub met: Option<bool>,
}

impl Bar {
    /// Judges `measured` against a limit.
    pub fn new(name: impl Into<String>, side: Side, limit: f64, measured: Option<f64>) -> Bar {
        let met = measured.map(|m| match side {
            Side::AtLeast => m >= limit,
            Side::AtMost => m <= limit,
        });
        Bar {
            name: name.into(),
            side,
            limit,
            measured,
            met,
        }
    }
}

/// A whole record.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Name of the bench.
    pub bench: String,
    /// The machine and the moment.
    pub machine: Machine,
    /// Repeats of each round.
    pub repeats: u32,
    /// Length of a round.
    pub seconds_per_round: f64,
    /// Data sizes were divided by this; only 1 is a measurement, more is a smoke test.
    pub scale_divisor: u64,
    /// The parts.
    pub parts: Vec<Part>,
    /// The bars.
    pub bars: Vec<Bar>,
    /// Why the run ended before its end, if it did.
    pub ended_early: Option<String>,
    /// What the reader must know beside the figures.
    pub notes: Vec<String>,
    /// File names of plots beside the JSON.
    pub plots: Vec<String>,
}

impl Report {
    /// An empty record of the bench `name`.
    pub fn new(name: &str, options: &crate::Options) -> Report {
        Report {
            schema: SCHEMA,
            bench: name.into(),
            machine: Machine::read(),
            repeats: options.repeats,
            seconds_per_round: options.seconds,
            scale_divisor: options.scale_divisor,
            parts: Vec::new(),
            bars: Vec::new(),
            ended_early: None,
            notes: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Marks every bar as not judged: a scaled-down run proves nothing.
    pub fn unjudge(&mut self, why: &str) {
        for bar in &mut self.bars {
            bar.met = None;
        }
        self.notes.push(why.into());
    }

    /// 0: all bars met; 1: one is missed; 3: none is missed, one could not be judged.
    pub fn exit_code(&self) -> i32 {
        if self.bars.iter().any(|bar| bar.met == Some(false)) {
            EXIT_MISSED
        } else if self.bars.iter().any(|bar| bar.met.is_none()) {
            EXIT_NOT_JUDGED
        } else {
            EXIT_MET
        }
    }

    /// Draws a plot into `dir` and lists it; a plot that cannot be drawn is a note, since the figures are what counts.
    pub fn plot(&mut self, dir: &Path, name: &str, draw: impl FnOnce(&Path) -> Result<()>) {
        match draw(&dir.join(name)) {
            Ok(()) => self.plots.push(name.into()),
            Err(e) => self.notes.push(format!("{name} could not be drawn: {e:#}")),
        }
    }

    /// Writes result.json and table.md into `dir`, which is made if missing.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (name, text) in [("result.json", json), ("table.md", table::markdown(self))] {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let summary = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((summary.median, summary.min, summary.max), (2.0, 1.0, 3.0));
        assert_eq!(summary.samples, [3.0, 1.0, 2.0]);
        assert_eq!(Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn ratios_are_paired_and_a_missing_figure_stays_missing() {
        let (mut ours, mut peer) = (Samples::default(), Samples::default());
        for (a, b) in [(10.0, 10.0), (100.0, 50.0), (3.0, 1.0)] {
            ours.round();
            peer.round();
            ours.add("ops_per_s", a);
            peer.add("ops_per_s", b);
            peer.add("sometimes", (b > 1.0).then_some(b));
        }
        assert_eq!(paired_ratio(&ours, &peer, "ops_per_s").unwrap().median, 2.0);
        assert_eq!(paired_ratio(&ours, &peer, "sometimes"), None);
        assert!(
            !Row::measured("c", "p", &peer)
                .figures
                .contains_key("sometimes")
        );
    }

    #[test]
    fn exit_codes() {
        let options = crate::Options::default();
        let mut report = Report::new("first", &options);
        report
            .bars
            .push(Bar::new("a", Side::AtLeast, 0.7, Some(0.7)));
        assert_eq!(report.exit_code(), EXIT_MET);
        report.bars.push(Bar::new("b", Side::AtMost, 1.0, None));
        assert_eq!(report.exit_code(), EXIT_NOT_JUDGED);
        report
            .bars
            .push(Bar::new("c", Side::AtMost, 1.0, Some(1.1)));
        assert_eq!(report.exit_code(), EXIT_MISSED);
        report.unjudge("scaled down");
        assert_eq!(report.exit_code(), EXIT_NOT_JUDGED);
    }
}
