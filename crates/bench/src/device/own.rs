//! The disk's limit without fio: our own media room as the yardstick.
//!
//! The same jobs as fio's, through the same io_uring or its fallback that a pool uses. Promises that a queue is kept at the
//! asked depth for the whole time. Never reads a block that was not written: the file is made with all of them written.

use super::Figures;
use crate::load::mix;
use crate::{machine, stop};
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use std::path::Path;
use std::time::{Duration, Instant};
use terrace_media::{
    BLOCK_BYTES, Buf, Device, Disk, Done, FileDevice, Op, Wait, flush_blocking, write_blocking,
};

/// Bound on one wait for the disk, so that a wish to stop is seen.
const WAIT_MAX_MS: u64 = 100;
/// A disk that answers nothing for this long has failed.
const STALL_MAX_S: u64 = 60;
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// Random 4 KiB reads with `depth` in flight.
pub fn random_reads(path: &Path, bytes: u64, depth: u32, seconds: f64) -> Result<Figures> {
    on_server_cpu(|| {
        let device = open(path, bytes)?;
        let mut queue = device.queue(depth)?;
        let blocks = device.len_bytes() / BLOCK_BYTES as u64;
        let mut sent_at = vec![Instant::now(); depth as usize];
        let mut number = 0u64;
        let mut submit = |queue: &mut dyn Disk, slot: usize, buf: Buf| {
            number += 1;
            let offset = mix(number) % blocks * BLOCK_BYTES as u64;
            queue.submit(slot as u64, Op::Read { offset, buf });
            Instant::now()
        };
        for (slot, sent_at) in sent_at.iter_mut().enumerate() {
            *sent_at = submit(&mut *queue, slot, Buf::zeroed(BLOCK_BYTES));
        }
        let (mut times, mut done) = (times(), Vec::<Done>::new());
        let started = Instant::now();
        let mut last_done = started;
        while queue.in_flight() > 0 {
            stop::check()?;
            queue.reap(Wait::For(Duration::from_millis(WAIT_MAX_MS)), &mut done);
            let now = Instant::now();
            if !done.is_empty() {
                last_done = now;
            } else if last_done.elapsed().as_secs() > STALL_MAX_S {
                bail!("the disk answered no read for {STALL_MAX_S} s");
            }
            for read in done.drain(..) {
                read.result.context("reading from the disk")?;
                let slot = read.token as usize;
                times.saturating_record(now.duration_since(sent_at[slot]).as_nanos() as u64);
                if let Some(buf) = read.buf
                    && started.elapsed().as_secs_f64() < seconds
                {
                    sent_at[slot] = submit(&mut *queue, slot, buf);
                }
            }
        }
        Ok(figures(&times, last_done.duration_since(started)))
    })
}

/// 4 KiB writes, one after the other, each made durable.
pub fn durable_writes(path: &Path, bytes: u64, seconds: f64) -> Result<Figures> {
    on_server_cpu(|| {
        let device = open(path, bytes)?;
        let mut queue = device.queue(1)?;
        let blocks = device.len_bytes() / BLOCK_BYTES as u64;
        let mut buf = Buf::zeroed(BLOCK_BYTES);
        let mut times = times();
        let started = Instant::now();
        for number in 0u64.. {
            stop::check()?;
            if started.elapsed().as_secs_f64() >= seconds {
                break;
            }
            buf[..8].copy_from_slice(&number.to_le_bytes());
            let sent_at = Instant::now();
            buf = write_blocking(&mut *queue, number % blocks * BLOCK_BYTES as u64, buf)?;
            flush_blocking(&mut *queue)?;
            times.saturating_record(sent_at.elapsed().as_nanos() as u64);
        }
        Ok(figures(&times, started.elapsed()))
    })
}

fn on_server_cpu(job: impl FnOnce() -> Result<Figures> + Send) -> Result<Figures> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            machine::pin_this_thread(machine::SERVER_CPU)?;
            job()
        });
        thread
            .join()
            .unwrap_or_else(|_| bail!("the disk's yardstick failed inside itself"))
    })
}

/// Opens the file, or makes it, with all its blocks written.
fn open(path: &Path, bytes: u64) -> Result<FileDevice> {
    if path.metadata().is_ok_and(|found| found.len() == bytes) {
        return Ok(FileDevice::open(path)?);
    }
    Ok(FileDevice::create(path, bytes, &mut |_| {})?)
}

fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds are valid")
}

fn figures(times: &Histogram<u64>, elapsed: Duration) -> Figures {
    Figures {
        ops_per_s: times.len() as f64 / elapsed.as_secs_f64(),
        latency_p50_us: times.value_at_quantile(0.5) as f64 / 1e3,
        latency_p99_us: times.value_at_quantile(0.99) as f64 / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_a_small_file() {
        let path = std::env::temp_dir().join(format!("terrace-bench-own-{}", std::process::id()));
        let bytes = 64 * BLOCK_BYTES as u64;
        let read = random_reads(&path, bytes, 4, 0.05).unwrap();
        assert!(read.ops_per_s > 0.0 && read.latency_p50_us <= read.latency_p99_us);
        let write = durable_writes(&path, bytes, 0.05).unwrap();
        assert!(write.ops_per_s > 0.0 && write.latency_p50_us <= write.latency_p99_us);
        assert_eq!(path.metadata().unwrap().len(), bytes);
        std::fs::remove_file(&path).unwrap();
    }
}
