//! Part `i`: DRAM that is taken to know where objects are.
//!
//! An array and a pool of many objects, each stored once; what their tables take is the store's own count, and what a materialised
//! page takes beside itself is the memory's. Promises: every object is stored, and pages are touched scattered. Never: counts entries in
//! DRAM, which are data.

use super::child::store_all;
use crate::Setting;
use crate::progress::Progress;
use crate::report::{Bar, Part, Report, Row, Samples, Side};
use anyhow::Result;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::opp::Heap;
use terrace_vm::store::{Store, StoreOptions};
use terrace_vm::{Backing, PAGE_BYTES, Page, Way};

const OBJECTS: u64 = 30_000_000;
const OBJECTS_MIN: u64 = 1 << 20;
const OBJECT_BYTES: u32 = 64;
const CAP_BYTES: u64 = 512 << 20;
/// What an object and its header come to on the SSD, and as much again for the cleaner.
const SSD_BYTES_AN_OBJECT: u64 = 192;
const STORED_TOGETHER: usize = 256;
/// Looks at page tables while pages are touched.
const LOOKS: u64 = 64;
const COLUMNS: &[&str] = &[
    "objects",
    "table_bytes_an_object",
    "table_bytes_a_page",
    "table_bytes_a_page_most",
];
const ARRAY_BAR: f64 = 5.0;
const POOL_BAR: f64 = 8.0;
const PAGE_BAR: f64 = 8192.0;

/// What tables took, bytes, while all objects were there.
struct Took {
    an_object: f64,
    /// Of all looks together, and the most of one: tables that the kernel has not freed yet count, so it goes with how many pages come a second.
    a_page: Option<(f64, f64)>,
}

fn index_bytes(heap: &Heap) -> f64 {
    heap.store().stats().lanes.index_bytes as f64
}

/// Runs the part.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let objects = (OBJECTS / setting.options.scale_divisor).max(OBJECTS_MIN);
    let title = format!("tables of {objects} objects of {OBJECT_BYTES} B");
    let mut part = Part::new("i", &title, COLUMNS);
    let progress = Progress::new(2);
    for (name, bar, measure) in [
        ("array", ARRAY_BAR, array as fn(&Heap, u64) -> Result<Took>),
        ("pool", POOL_BAR, pool),
    ] {
        progress.step(format!("storing objects of an {name}"));
        let dir = setting.work_dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let options = StoreOptions::scratch(&dir, CAP_BYTES, objects * SSD_BYTES_AN_OBJECT);
        let heap = Heap::open(Store::open(&options)?, Way::InThread)?;
        let Took { an_object, a_page } = measure(&heap, objects)?;
        let mut samples = Samples::default();
        samples.round();
        samples.add("objects", objects as f64);
        samples.add("table_bytes_an_object", an_object);
        samples.add("table_bytes_a_page", a_page.map(|page| page.0));
        samples.add("table_bytes_a_page_most", a_page.map(|page| page.1));
        part.rows.push(Row::measured(
            "stored once, touched scattered",
            name,
            &samples,
        ));
        let label = format!("i, {name}: bytes of table an object");
        report
            .bars
            .push(Bar::new(label, Side::AtMost, bar, Some(an_object)));
        if let Some((mean, _)) = a_page {
            let label = format!("i, {name}: bytes of page tables and records a materialised page");
            report
                .bars
                .push(Bar::new(label, Side::AtMost, PAGE_BAR, Some(mean)));
        }
    }
    drop(progress);
    report.parts.push(part);
    Ok(())
}

/// An array; what page tables come to for each page, while scattered objects are touched until the page buffer was full several times.
fn array(heap: &Heap, objects: u64) -> Result<Took> {
    let array = heap.array(objects, OBJECT_BYTES, objects)?;
    // By faults it would take minutes.
    store(&*array.backing(), &mut (0..objects))?;
    let touches = 8 * heap.memory().pages_max() as u64;
    let stride = (objects / touches).max(1) | 1;
    let (mut tables, mut pages, mut most) = (0.0, 0.0, 0.0f64);
    for n in 1..=touches {
        std::hint::black_box(array.word(n * stride % objects, 0).load(Relaxed));
        if n % (touches / LOOKS).max(1) == 0 {
            let stats = heap.memory().stats();
            let (took, there) = (stats.table_bytes as f64, stats.resident_pages.max(1) as f64);
            (tables, pages, most) = (tables + took, pages + there, most.max(took / there));
        }
    }
    Ok(Took {
        an_object: index_bytes(heap) / objects as f64,
        a_page: Some((tables / pages, most)),
    })
}

/// A pool, object by object.
fn pool(heap: &Heap, objects: u64) -> Result<Took> {
    let pool = heap.pool(OBJECT_BYTES, objects + objects / 8)?;
    let (base, _) = pool.addresses();
    let mut refused = None;
    let mut ids = (0..objects).map_while(|_| {
        let made = pool.alloc().map_err(|e| refused = Some(e)).ok()?;
        Some(((made as usize - base) / PAGE_BYTES) as u64)
    });
    store(&*pool.backing(), &mut ids)?;
    if let Some(e) = refused {
        return Err(e.into());
    }
    Ok(Took {
        an_object: index_bytes(heap) / objects as f64,
        a_page: None,
    })
}

/// Stores objects that nobody has touched yet.
fn store(backing: &dyn Backing, ids: &mut impl Iterator<Item = u64>) -> Result<()> {
    // Not one value again and again, which would be packed.
    let value = Page(std::array::from_fn(|at| at as u8));
    loop {
        let some: Vec<u64> = ids.by_ref().take(STORED_TOGETHER).collect();
        if some.is_empty() {
            return Ok(());
        }
        store_all(backing, some.into_iter().map(|id| (&value, id)))?;
    }
}
