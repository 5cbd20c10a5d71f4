//! Threads that touch pages by Zipf's law or uniformly, in memory whose faults bare handler threads take, or they themselves, or in plain memory (on swap, in a cgroup): what a
//! program under `terrace run` could do at best, beside what it does on swap. `cargo run --release -p terrace-vm --example floor -- handlers|in-thread|plain FILE PAGES
//! RESIDENT SECONDS zipf|uniform THREADS`; it says operations a second, reads and processor time an operation, after a warming of as many seconds. By Zipf's
//! law pages are written to, as memcached's GETs do; uniformly they are only read.

use std::error::Error;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrace_vm::floor::{Bare, Floor, Sizes};

const PAGE_BYTES: usize = 4096;
const HANDLERS: usize = 4;
/// Values of a kilobyte and a bit.
const ITEMS_A_PAGE: u64 = 3;

/// YCSB's Zipf generator, exponent 0.99.
struct Zipf {
    items: f64,
    zeta: f64,
    eta: f64,
    alpha: f64,
}

impl Zipf {
    fn new(items: u64) -> Zipf {
        let theta: f64 = 0.99;
        let sum = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let (zeta, two) = (sum(items), sum(2));
        let items = items as f64;
        Zipf {
            items,
            zeta,
            eta: (1.0 - (2.0 / items).powf(1.0 - theta)) / (1.0 - two / zeta),
            alpha: 1.0 / (1.0 - theta),
        }
    }

    fn rank(&self, random: u64) -> u64 {
        let u = (random >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta;
        match uz {
            _ if uz < 1.0 => 0,
            _ if uz < 1.0 + 0.5f64.powf(0.99) => 1,
            _ => (self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64,
        }
    }
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn pages_from_swap() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("pswpin "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// A file of so many pages, for direct reads.
fn file_of(path: &str, pages: usize) -> std::io::Result<std::fs::File> {
    let file = (std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true))
    .truncate(false)
    .custom_flags(libc::O_DIRECT)
    .open(path)?;
    let chunk = terrace_media::Buf::zeroed(1 << 20);
    for at in (0..pages * PAGE_BYTES).step_by(chunk.len()) {
        file.write_all_at(&chunk, at as u64)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, way, file, pages, resident, seconds, drawn, threads] = &args[..] else {
        return Err(
            "floor handlers|in-thread|plain FILE PAGES RESIDENT SECONDS zipf|uniform THREADS"
                .into(),
        );
    };
    let (uniform, threads): (bool, u64) = (drawn == "uniform", threads.parse()?);
    let (pages, resident): (usize, usize) = (pages.parse()?, resident.parse()?);
    let time = Duration::from_secs(seconds.parse()?);
    let mut plain = Vec::new();
    let (mut floor, mut bare) = (None, None);
    let base = match way.as_str() {
        "handlers" => {
            let file = file_of(file, pages)?;
            floor
                .insert(Floor::new(file, pages, resident, HANDLERS)?)
                .base() as usize
        }
        "in-thread" => {
            let sizes = Sizes {
                objects: pages,
                object_bytes: PAGE_BYTES,
                kept_bytes: PAGE_BYTES,
                passing: resident,
            };
            let file = file_of(file, pages)?;
            let made = Bare::new(file, sizes, std::iter::empty(), 0, |_, _| 0)?;
            made.keeps_writes(!uniform);
            bare.insert(made).base() as usize
        }
        _ => {
            plain.resize(pages * PAGE_BYTES, 1u8);
            plain.as_mut_ptr() as usize
        }
    };
    let zipf = Zipf::new(pages as u64 * ITEMS_A_PAGE);
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let reads = || match (&floor, &bare) {
        (Some(floor), _) => floor.reads(),
        (_, Some(bare)) => bare.reads(),
        _ => pages_from_swap(),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (zipf, done, stop) = (&zipf, &done, &stop);
            scope.spawn(move || {
                let mut random = thread;
                while !stop.load(Ordering::Relaxed) {
                    random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let item = match uniform {
                        true => mixed(random),
                        false => zipf.rank(mixed(random)),
                    };
                    let place = mixed(item + 1);
                    let page = (place % pages as u64) as usize;
                    let byte = (base + page * PAGE_BYTES + (place >> 52) as usize) as *mut u8;
                    // SAFETY: within the memory; other threads write the same byte, of which nobody wants to know.
                    unsafe {
                        match uniform {
                            true => _ = byte.read_volatile(),
                            false => byte.write_volatile(2),
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(time);
        let (ops, read, used, began) = (
            done.load(Ordering::Relaxed),
            reads(),
            processor_seconds(),
            Instant::now(),
        );
        std::thread::sleep(time);
        let ops = (done.load(Ordering::Relaxed) - ops) as f64;
        println!(
            "{way}: {:.0} operations/s, {:.3} pages read each, {:.1} µs of processor each",
            ops / began.elapsed().as_secs_f64(),
            (reads() - read) as f64 / ops,
            (processor_seconds() - used) * 1e6 / ops
        );
        stop.store(true, Ordering::Relaxed);
    });
    drop(plain);
    Ok(())
}
