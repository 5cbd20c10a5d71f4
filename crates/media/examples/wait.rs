//! Measures how to wait for direct reads and durable writes: docs/adr/0002-completion-wait.md
//! holds its figures. `cargo run --release -p terrace-media --example wait [DIR] [ROUNDS]`.
//!
//! All ways take turns within a round, so that noise of the machine meets each alike; the table
//! shows medians over the rounds. It makes one file in DIR and removes it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_media::sim::Rng;
use terrace_media::*;

const FILE_BYTES: u64 = 1 << 30;
const READS_PER_TURN: usize = 2_000;
const WRITES_PER_TURN: usize = 200;
const ROUNDS: usize = 7;
const BLOCKS: usize = FILE_BYTES as usize / BLOCK_BYTES;
const SPIN_US: u32 = 100;

type Failure = Box<dyn std::error::Error>;

/// What one turn gave.
#[derive(Clone, Copy)]
struct Turn {
    ops_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us_per_op: f64,
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let rounds = arguments.next().map_or(Ok(ROUNDS), |text| text.parse())?;
    let path = dir.join(format!("terrace-wait-{}", std::process::id()));
    let measured = run(&path, rounds);
    std::fs::remove_file(&path)?;
    measured
}

fn run(path: &Path, rounds: usize) -> Result<(), Failure> {
    fill(&FileDevice::create(path, FILE_BYTES, &mut |_| {})?)?;
    let ways = ways(path)?;
    println!(
        "{}; {} way(s), {rounds} rounds",
        ways[0].1.describe(),
        ways.len()
    );
    println!(
        "{:<26}{:>6}{:>12}{:>10}{:>10}{:>12}",
        "way", "depth", "ops/s", "p50 us", "p99 us", "CPU us/op"
    );
    for depth in [1, 4, 32] {
        table(&ways, &format!("{depth}"), rounds, |device, seed| {
            reads(device, depth, seed)
        })?;
    }
    table(&ways, "sync", rounds, durable_writes)?;
    Ok(())
}

fn ways(path: &Path) -> Result<Vec<(String, FileDevice)>, Failure> {
    let mut ways = vec![(
        "system calls".to_owned(),
        FileDevice::open(path)?.without_ring(),
    )];
    for task_run in [TaskRun::Interrupt, TaskRun::Coop, TaskRun::Defer] {
        for spin_us in [0, SPIN_US] {
            let mut device = FileDevice::open(path)?;
            device.set_queue_options(QueueOptions { task_run, spin_us });
            let name = format!("{task_run:?}, spin {spin_us} us");
            ways.push((name, device));
        }
    }
    Ok(ways)
}

fn table(
    ways: &[(String, FileDevice)],
    label: &str,
    rounds: usize,
    mut turn: impl FnMut(&FileDevice, u64) -> Result<Turn, MediaError>,
) -> Result<(), Failure> {
    let mut turns = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        for (turns, (_, device)) in turns.iter_mut().zip(ways) {
            turns.push(turn(device, round as u64)?);
        }
    }
    for (turns, (name, _)) in turns.iter().zip(ways) {
        let ops_per_s = median(turns, |t| t.ops_per_s);
        let (p50, p99) = (median(turns, |t| t.p50_us), median(turns, |t| t.p99_us));
        let cpu = median(turns, |t| t.cpu_us_per_op);
        println!("{name:<26}{label:>6}{ops_per_s:>12.0}{p50:>10.1}{p99:>10.1}{cpu:>12.1}");
    }
    Ok(())
}

fn median(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    let mut figures: Vec<f64> = turns.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Random data, so that nothing below recognises empty blocks.
fn fill(device: &FileDevice) -> Result<(), MediaError> {
    let mut disk = device.queue(1)?;
    let mut rng = Rng::new(1);
    let mut buf = Buf::zeroed(4 << 20);
    for offset in (0..FILE_BYTES).step_by(4 << 20) {
        buf.chunks_exact_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&rng.bits().to_le_bytes()));
        buf = write_blocking(&mut *disk, offset, buf)?;
    }
    flush_blocking(&mut *disk)
}

fn random_read(rng: &mut Rng, buf: Buf) -> Op {
    Op::Read {
        offset: (rng.below(BLOCKS) * BLOCK_BYTES) as u64,
        buf,
    }
}

/// Random reads of one block, always `depth` in flight.
fn reads(device: &FileDevice, depth: usize, seed: u64) -> Result<Turn, MediaError> {
    let mut disk = device.queue(depth as u32)?;
    let mut rng = Rng::new(seed);
    let mut latencies = Vec::with_capacity(READS_PER_TURN + depth);
    let mut done = Vec::with_capacity(depth);
    let (start, cpu_start) = (Instant::now(), cpu_time());
    let mut submitted_at = vec![start; depth];
    for token in 0..depth {
        disk.submit(
            token as u64,
            random_read(&mut rng, Buf::zeroed(BLOCK_BYTES)),
        );
    }
    while latencies.len() < READS_PER_TURN {
        disk.reap(Wait::For(Duration::from_secs(1)), &mut done);
        let now = Instant::now();
        for ended in done.drain(..) {
            ended.result?;
            let token = ended.token as usize;
            latencies.push(now - submitted_at[token]);
            submitted_at[token] = now;
            let buf = ended
                .buf
                .expect("a read that succeeded gives its buffer back");
            disk.submit(ended.token, random_read(&mut rng, buf));
        }
    }
    Ok(summary(latencies, start.elapsed(), cpu_time() - cpu_start))
}

/// Writes of one block, each made durable before the next.
fn durable_writes(device: &FileDevice, seed: u64) -> Result<Turn, MediaError> {
    let mut disk = device.queue(1)?;
    let mut rng = Rng::new(seed);
    let mut latencies = Vec::with_capacity(WRITES_PER_TURN);
    let mut buf = Buf::zeroed(BLOCK_BYTES);
    let (start, cpu_start) = (Instant::now(), cpu_time());
    for _ in 0..WRITES_PER_TURN {
        let begun = Instant::now();
        let offset = (rng.below(BLOCKS) * BLOCK_BYTES) as u64;
        buf = write_blocking(&mut *disk, offset, buf)?;
        flush_blocking(&mut *disk)?;
        latencies.push(begun.elapsed());
    }
    Ok(summary(latencies, start.elapsed(), cpu_time() - cpu_start))
}

fn summary(mut latencies: Vec<Duration>, elapsed: Duration, cpu: Duration) -> Turn {
    latencies.sort_unstable();
    let at = |part: usize| latencies[latencies.len() * part / 100].as_secs_f64() * 1e6;
    Turn {
        ops_per_s: latencies.len() as f64 / elapsed.as_secs_f64(),
        p50_us: at(50),
        p99_us: at(99),
        cpu_us_per_op: cpu.as_secs_f64() * 1e6 / latencies.len() as f64,
    }
}

/// Processor time of this process, the kernel's part included.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
