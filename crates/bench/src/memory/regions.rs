//! Part `sync`: named regions made durable, beside a mapped file and fdatasync.
//!
//! In turns: so many pages chosen at random are changed, then synced. A region's sync is all or nothing; a file's pages may be on the disk or
//! not after a crash, so the peer does less. Promises: both change the same pages of the same amount of data, and every sync is waited for.
//! Never: judges; there was no bar to meet.

use crate::Setting;
use crate::load::keys::{Rng, mix};
use crate::machine::Disk;
use crate::progress::Progress;
use crate::report::{Part, Report, Row, Samples};
use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use terrace_vm::kept::{NamedRegion, Regions};
use terrace_vm::mapped::Mapped;
use terrace_vm::store::StoreOptions;
use terrace_vm::{PAGE_BYTES, Way};

const DATA_BYTES: u64 = 512 << 20;
const DATA_BYTES_MIN: u64 = 64 << 20;
/// The cap is a part of the data.
const DATA_OVER_CAP: u64 = 4;
const CAP_BYTES_MIN: u64 = 64 << 20;
/// Two versions of each page, and a tenth.
const SSD_OVER_DATA: u64 = 3;
/// Pages changed between two syncs.
const CHANGED: &[u64] = &[1, 64, 4096];
const COLUMNS: &[&str] = &[
    "syncs_per_s",
    "pages_per_s",
    "sync_p50_us",
    "sync_p99_us",
    "written_bytes_a_page",
];

/// One side.
enum Side {
    Region(NamedRegion),
    File(File, Mapped),
}

impl Side {
    fn name(&self) -> &'static str {
        match self {
            Side::Region(_) => "named region",
            Side::File(..) => "mapped file, fdatasync",
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        match self {
            Side::Region(region) => region.word(at),
            Side::File(_, mapped) => &mapped.words()[at],
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            Side::Region(region) => Ok(region.sync_all()?),
            Side::File(file, _) => file.sync_data().context("syncing the mapped file"),
        }
    }
}

/// Runs the part.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let data = (DATA_BYTES / setting.options.scale_divisor).max(DATA_BYTES_MIN);
    let pages = data / PAGE_BYTES as u64;
    let cap = (data / DATA_OVER_CAP).max(CAP_BYTES_MIN);
    let title = format!(
        "syncs of named regions: {} MiB, of which pages at random are changed; cap {} MiB, the mapped file has the page cache",
        data >> 20,
        cap >> 20
    );
    let mut part = Part::new("sync", &title, COLUMNS);
    let repeats = setting.options.repeats;
    let progress = Progress::new(2 + u64::from(repeats) * CHANGED.len() as u64 * 2);
    let dir = setting.work_dir.join("kept");
    std::fs::create_dir_all(&dir)?;
    let options = StoreOptions::kept(&dir, cap, data * SSD_OVER_DATA);
    let regions = Regions::open(&options, Way::InThread)?;
    let path = setting.work_dir.join("synced");
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create_new(true).open(path)?;
    file.set_len(data)?;
    let mapped = Mapped::new(&file)?;
    let sides = [
        Side::Region(regions.region("bench", data, data)?),
        Side::File(file, mapped),
    ];
    let mut rng = Rng::new(1);
    for side in &sides {
        progress.step(format!("loading {}", side.name()));
        for page in 0..pages {
            change(side, page, &mut rng);
        }
        side.sync()?;
    }
    for changed in CHANGED {
        let mut all = [Samples::default(), Samples::default()];
        for _ in 0..repeats {
            for (side, samples) in sides.iter().zip(&mut all) {
                progress.step(format!("{changed} pages, {}", side.name()));
                round(setting, side, pages, *changed, &mut rng, samples)?;
            }
        }
        let case = format!("{changed} pages a sync");
        for (side, samples) in sides.iter().zip(&all) {
            part.rows.push(Row::measured(&case, side.name(), samples));
        }
    }
    part.notes
        .push("After a crash a named region is as at a completed sync; the file's pages may be old or new, each by itself.".into());
    report.parts.push(part);
    Ok(())
}

/// Writes to some words of a page, to nothing that packs.
fn change(side: &Side, page: u64, rng: &mut Rng) {
    const WORDS: usize = PAGE_BYTES / 8;
    let seed = rng.next();
    for at in 0..WORDS {
        side.word(page as usize * WORDS + at)
            .store(mix(seed ^ at as u64), Relaxed);
    }
}

fn round(
    setting: &Setting,
    side: &Side,
    pages: u64,
    changed: u64,
    rng: &mut Rng,
    samples: &mut Samples,
) -> Result<()> {
    let before = Disk::under(&setting.work_dir);
    let (started, mut in_syncs) = (Instant::now(), Vec::new());
    while started.elapsed().as_secs_f64() < setting.options.seconds {
        for _ in 0..changed {
            change(side, rng.below(pages), rng);
        }
        let began = Instant::now();
        side.sync()?;
        in_syncs.push(began.elapsed());
    }
    let seconds = started.elapsed().as_secs_f64();
    let wrote = Disk::under(&setting.work_dir).zip(before);
    let wrote = wrote.map(|(after, before)| after.since(before).write_bytes as f64);
    let syncs = in_syncs.len() as f64;
    in_syncs.sort_unstable();
    let at = |part: f64| in_syncs[((in_syncs.len() - 1) as f64 * part) as usize];
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    samples.round();
    samples.add("syncs_per_s", syncs / seconds);
    samples.add("pages_per_s", syncs * changed as f64 / seconds);
    samples.add("sync_p50_us", micros(at(0.5)));
    samples.add("sync_p99_us", micros(at(0.99)));
    samples.add(
        "written_bytes_a_page",
        wrote.map(|bytes| bytes / (syncs * changed as f64)),
    );
    Ok(())
}
