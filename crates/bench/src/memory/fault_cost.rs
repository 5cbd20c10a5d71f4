//! Part `a`: what a fault from the DRAM terrace into the page buffer costs, and the way back, beside the kernel's part of it alone.
//!
//! Ours and the bare cycle in turns in one thread that is pinned, the same number of pages as far apart, evicted in batches of the
//! same size; with another thread busy on the other CPU, since then taking a page away costs a flush there. Parts of the whole are
//! timed around the calls to the backing, and the clock's own time is taken off. Never: touches the SSD; all objects fit in DRAM.

use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side, paired_ratio};
use crate::{Setting, machine, stop};
use anyhow::Result;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use terrace_vm::measure::{Cycle, bare};
use terrace_vm::store::{Objects, Store, StoreOptions};
use terrace_vm::{
    Backing, Changed, FetchError, Fetched, Memory, Options, PAGE_BYTES, Page, Region, StoreError,
};

/// The bar: the whole over the bare cycle.
const WHOLE_MAX: f64 = 1.35;
const BUFFER_PAGES: usize = 2048;
/// As the page buffer evicts.
const BATCH_PAGES: usize = 128;
/// Pages of a round; each is touched once.
const PAGES: usize = 32_768;
/// Apart enough that each has a page table of its own.
const SCATTER_PAGES: usize = 523;
const OBJECT_BYTES: usize = 128;
const ROUNDS_MIN: u32 = 5;
const COLUMNS: &[&str] = &[
    "whole_us",
    "fault_us",
    "evict_us",
    "materialise_us",
    "dematerialise_us",
];
const CAP_BYTES: u64 = 256 << 20;
const SSD_BYTES: u64 = 1 << 30;

struct Case {
    name: &'static str,
    stride_pages: usize,
    write: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "read, objects apart",
        stride_pages: SCATTER_PAGES,
        write: false,
    },
    Case {
        name: "written, objects apart",
        stride_pages: SCATTER_PAGES,
        write: true,
    },
    Case {
        name: "read, neighbours",
        stride_pages: 1,
        write: false,
    },
    Case {
        name: "written, neighbours",
        stride_pages: 1,
        write: true,
    },
];

/// Runs the part, in a thread of its own: one that is pinned starts all that come later where it is.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| run_pinned(setting, report)).join();
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run_pinned(setting: &Setting, report: &mut Report) -> Result<()> {
    let rounds = setting.options.repeats.max(ROUNDS_MIN);
    let title = format!(
        "a fault from DRAM into the page buffer and back: objects of {OBJECT_BYTES} B, buffer of {BUFFER_PAGES} pages, batches of {BATCH_PAGES}, another thread busy"
    );
    let mut part = Part::new("a", &title, COLUMNS);
    let progress = Progress::new(CASES.len() as u64);
    let busy = Busy::start()?;
    for case in CASES {
        progress.step(case.name);
        let (mut ours, mut kernel) = (Samples::default(), Samples::default());
        let bed = Bed::new(setting, case)?;
        for _ in 0..rounds {
            stop::check()?;
            measure_bare(setting, case, &mut kernel)?;
            bed.measure(&mut ours);
        }
        let ratio = paired_ratio(&ours, &kernel, "whole_us").map(|ratio| ratio.median);
        part.rows.push(Row::measured(case.name, "terrace", &ours));
        part.rows
            .push(Row::measured(case.name, "bare userfaultfd", &kernel));
        let name = format!(
            "a, {}: whole over bare copy and batched eviction",
            case.name
        );
        report
            .bars
            .push(Bar::new(name, Side::AtMost, WHOLE_MAX, ratio));
    }
    drop(busy);
    part.notes.push(
        "Bare: a signal handler that only puts a prepared page in place, and the same calls that take pages (and page tables) away, \
         after write-protecting those that were written to."
            .into(),
    );
    report.parts.push(part);
    Ok(())
}

/// A thread that keeps the other CPU in this process.
struct Busy(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Busy {
    fn start() -> Result<Busy> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let (tell, pinned) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().spawn(move || {
            // Told in any case; with a hung-up receiver nobody waits for it.
            let _ = tell.send(machine::pin_this_thread(machine::LOAD_CPU));
            while !seen.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
        let busy = Busy(stop, Some(thread));
        // First the other: a thread that is pinned starts others where it is.
        pinned.recv()??;
        machine::pin_this_thread(machine::SERVER_CPU)?;
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

fn pages(setting: &Setting) -> usize {
    (PAGES / setting.options.scale_divisor as usize).max(BUFFER_PAGES * 2)
}

fn measure_bare(setting: &Setting, case: &Case, samples: &mut Samples) -> Result<()> {
    let pages = pages(setting);
    let times = bare(&Cycle {
        pages,
        resident: BUFFER_PAGES,
        batch: BATCH_PAGES,
        stride_pages: case.stride_pages,
        write: case.write,
    })?;
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6 / times.pages as f64;
    samples.round();
    samples.add("fault_us", us(times.fault));
    samples.add("evict_us", us(times.evict));
    samples.add("whole_us", us(times.fault + times.evict));
    Ok(())
}

/// Objects of a store, with a clock around what is asked of them.
struct Timed {
    objects: Objects,
    on: AtomicBool,
    fetch_ns: AtomicU64,
    store_ns: AtomicU64,
}

impl Timed {
    fn time<R>(&self, total_ns: &AtomicU64, work: impl FnOnce() -> R) -> R {
        if !self.on.load(Ordering::Relaxed) {
            return work();
        }
        let began = Instant::now();
        let result = work();
        total_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}

impl Backing for Timed {
    fn span(&self, page: u64) -> Range<usize> {
        self.objects.span(page)
    }

    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        self.time(&self.fetch_ns, || self.objects.fetch(page, into))
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        self.time(&self.store_ns, || self.objects.store(pages))
    }

    fn discard(&self, page: u64) {
        self.objects.discard(page);
    }
}

/// A store whose objects are all in DRAM, and a region that shows them.
struct Bed<'a> {
    case: &'a Case,
    pages: usize,
    timed: Arc<Timed>,
    region: Region,
    memory: Memory,
    _dir: TempDir,
}

/// The store's directory; removed after it is closed.
struct TempDir(std::path::PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        // It lies in the bench's own directory, which is removed as a whole at the end.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'a> Bed<'a> {
    fn new(setting: &Setting, case: &'a Case) -> Result<Bed<'a>> {
        let dir = TempDir(setting.work_dir.join("fault-cost"));
        std::fs::create_dir_all(&dir.0)?;
        let store = Store::open(&StoreOptions::scratch(&dir.0, CAP_BYTES, SSD_BYTES))?;
        let timed = Arc::new(Timed {
            objects: Objects::new(store, 1, OBJECT_BYTES as u32)?,
            on: AtomicBool::new(false),
            fetch_ns: AtomicU64::new(0),
            store_ns: AtomicU64::new(0),
        });
        let pages = pages(setting);
        let memory = Memory::new(Options {
            pages_max: BUFFER_PAGES,
            ..Options::default()
        })?;
        let region = memory.region((pages * case.stride_pages) as u64, timed.clone())?;
        let bed = Bed {
            case,
            pages,
            timed,
            region,
            memory,
            _dir: dir,
        };
        bed.touch(true);
        bed.memory.evict_all()?;
        Ok(bed)
    }

    /// Touches each page once.
    fn touch(&self, write: bool) {
        for n in 0..self.pages {
            let page = (n * self.case.stride_pages) as u64;
            let byte = page as usize * PAGE_BYTES + self.timed.objects.span(page).start;
            let word = self.region.word(byte / 8);
            if write {
                word.store(page + 1, Ordering::Relaxed);
            } else {
                assert_eq!(word.load(Ordering::Relaxed), page + 1, "object {page}");
            }
        }
    }

    /// A round without the clock around the parts, then one with it.
    fn measure(&self, samples: &mut Samples) {
        samples.round();
        let us = |ns: u64| ns as f64 / 1e3 / self.pages as f64;
        // Each pass meets a buffer full of what the pass before left, and leaves it as full.
        self.touch(self.case.write);
        let began = Instant::now();
        self.touch(self.case.write);
        samples.add("whole_us", us(began.elapsed().as_nanos() as u64));
        self.timed.on.store(true, Ordering::Relaxed);
        self.timed.fetch_ns.store(0, Ordering::Relaxed);
        self.timed.store_ns.store(0, Ordering::Relaxed);
        self.touch(self.case.write);
        self.timed.on.store(false, Ordering::Relaxed);
        samples.add(
            "materialise_us",
            us(self.timed.fetch_ns.load(Ordering::Relaxed)),
        );
        samples.add(
            "dematerialise_us",
            us(self.timed.store_ns.load(Ordering::Relaxed)),
        );
    }
}
