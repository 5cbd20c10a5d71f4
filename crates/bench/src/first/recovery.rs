//! Part `recovery`: how long until the first right answer, after a clean stop, after kill -9, and without any checkpoint.
//!
//! 2 M keys of 1 KiB; the page cache is dropped before each start, the server may use all CPUs, the clock runs from the start of
//! the process to the first GET that is answered with its value. After each start every key must be counted and a sample of
//! them read back. Never takes a wrong or an empty answer for one.

use crate::Setting;
use crate::client::Answer;
use crate::load::{Load, Until};
use crate::machine;
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side};
use crate::rounds::{CGROUP_SLACK_BYTES, cgroup_or_note, draw, drive, fill, spec};
use crate::serve::tiered::{self, VALUE_BYTES};
use crate::server::{Peer, Server, Spec, drop_checkpoints};
use anyhow::{Context, Result, bail};

/// Keys read back after each start.
const SAMPLE_KEYS: u64 = 5_000;
/// Writing before each kill, seconds: the log must hold what no checkpoint has.
const WRITE_S: f64 = 2.0;
const COLUMNS: &[&str] = &["first_reply_s", "ready_s", "sample_ops_per_s"];

/// How the server ended before the start that is timed.
#[derive(Clone, Copy, PartialEq)]
enum End {
    CleanStop,
    Kill,
    NoCheckpoint,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::CleanStop => "after a clean stop",
            End::Kill => "after kill -9",
            End::NoCheckpoint => "both checkpoints deleted",
        }
    }

    fn first_reply_max_s(self) -> f64 {
        if self == End::NoCheckpoint { 5.0 } else { 1.0 }
    }
}

struct Scene<'a> {
    spec: Spec,
    limit_bytes: u64,
    keys: u64,
    part: &'a mut Part,
}

pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let (keys, cap_bytes, ssd_bytes) = tiered::sizes(setting);
    let title = format!(
        "{keys} keys of {VALUE_BYTES} B, from the start of the process to the first right GET"
    );
    let mut part = Part::new("recovery", &title, COLUMNS);
    // The pool that part `cap` left is loaded already.
    let mut spec = spec(setting, tiered::STAGE, Peer::Terrace, cap_bytes, ssd_bytes);
    let loaded = spec.dir.exists();
    spec.cpu = None;
    let ends = [End::CleanStop, End::Kill, End::NoCheckpoint];
    let progress = Progress::new(1 + ends.len() as u64 * u64::from(setting.options.repeats));
    let mut scene = Scene {
        spec,
        limit_bytes: cap_bytes + CGROUP_SLACK_BYTES,
        keys,
        part: &mut part,
    };
    progress.step("a pool to recover");
    let mut server = scene.start()?;
    if !loaded {
        fill(&mut server, keys, VALUE_BYTES)?;
    }
    let mut rows = Vec::new();
    for end in ends {
        let mut samples = Samples::default();
        for _ in 0..setting.options.repeats {
            progress.step(end.name());
            server = scene.end_and_start(server, end, &mut samples)?;
        }
        rows.push(Row::measured(end.name(), Peer::Terrace.name(), &samples));
        // The slowest start counts, not the median: a user waits for each one.
        let slowest = samples.of("first_reply_s").iter().copied().reduce(f64::max);
        let name = format!("recovery, {}: first reply, slowest, s", end.name());
        report.bars.push(Bar::new(
            name,
            Side::AtMost,
            end.first_reply_max_s(),
            slowest,
        ));
    }
    server.shut_down()?;
    drop(progress);
    part.rows = rows;
    let title = format!("Time to the first right reply, {keys} keys of 1 KiB");
    draw(setting, report, &part, &title, "first_reply_s");
    report.parts.push(part);
    Ok(())
}

impl Scene<'_> {
    fn start(&mut self) -> Result<Server> {
        let group = cgroup_or_note(self.part, "recovery", self.limit_bytes, false);
        Server::start_ready(&self.spec, group)
    }

    fn end_and_start(
        &mut self,
        mut server: Server,
        end: End,
        samples: &mut Samples,
    ) -> Result<Server> {
        match end {
            End::CleanStop => server.shut_down()?,
            End::Kill => {
                drive(
                    &mut server,
                    &self.load(0, Until::Seconds(WRITE_S)),
                    "writing before the kill",
                )?;
                server.kill()?;
            }
            End::NoCheckpoint => {
                server.shut_down()?;
                drop_checkpoints(&self.spec.exe, &self.spec.dir)?;
            }
        }
        if !machine::drop_page_cache() {
            self.note(
                "the page cache could not be dropped (needs root), so reads may come from it",
            );
        }
        let group = cgroup_or_note(self.part, "recovery", self.limit_bytes, false);
        let mut server = Server::start(&self.spec, group)?;
        let key = format!("key:{:012}", self.keys / 2);
        let is_value =
            |value: &[u8]| value.len() == VALUE_BYTES && value.starts_with(key.as_bytes());
        let first_reply_s = server
            .wait_for(
                &["GET", &key],
                |answer| matches!(answer, Answer::Text(value) if is_value(value)),
            )
            .with_context(|| format!("the first reply {}", end.name()))?;
        let ready_s = server.wait_for(&["PING"], |answer| {
            *answer == Answer::Text(b"PONG".to_vec())
        })?;
        let outcome = self
            .check(&mut server)
            .with_context(|| format!("what was recovered {}", end.name()))?;
        samples.round();
        samples.add("first_reply_s", first_reply_s);
        samples.add("ready_s", ready_s);
        samples.add("sample_ops_per_s", outcome);
        Ok(server)
    }

    /// Every key is counted and a sample read back; returns the sample's throughput.
    fn check(&self, server: &mut Server) -> Result<f64> {
        let counted = server.dbsize()?;
        if counted != self.keys {
            bail!("{} keys were loaded, {counted} are counted", self.keys);
        }
        Ok(drive(
            server,
            &self.load(100, Until::Requests(SAMPLE_KEYS)),
            "reading a sample back",
        )?
        .ops_per_s())
    }

    fn load(&self, get_percent: u32, until: Until) -> Load {
        Load {
            connections: 8,
            in_flight: 4,
            get_percent,
            until,
            seed: 300,
            ..Load::of(self.keys, VALUE_BYTES)
        }
    }

    fn note(&mut self, note: &str) {
        if !self.part.notes.iter().any(|n| n == note) {
            self.part.notes.push(note.to_owned());
        }
    }
}
