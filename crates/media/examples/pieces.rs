//! What a read costs by the number of pieces that its memory lies in (docs/adr/0053).
//!
//! `cargo run --release -p terrace-media --example pieces -- FILE`: FILE has some GiB and is only read, by direct I/O from random places, one read at a
//! time, all kinds in turns, so that what the disk does meanwhile meets all of them alike. Prints the median and the mean of each. *Scattered*: pages that
//! were touched in a random order, of which hardly two lie in a row; *huge*: on one huge page, where the system has one.

use std::fs::OpenOptions;
use std::io::Error;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;
use terrace_media::{BLOCK_BYTES, Buf};

/// Length and place of each kind of read, bytes; where it begins is beyond a multiple of a block.
const KINDS: [(usize, u64); 6] = [
    (512, 0),
    (4096, 0),
    (4096, 512),
    (4608, 0),
    (5120, 1536),
    (8192, 0),
];
const ROUNDS: usize = 4000;
const SCATTERED_BYTES: usize = 1 << 20;
/// No read goes beyond the last blocks of the file.
const LAST_BLOCKS: u64 = 4;

fn main() -> Result<(), Error> {
    let Some(path) = std::env::args_os().nth(1) else {
        return Err(Error::other("which file? pieces FILE"));
    };
    let direct = libc::O_DIRECT;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(path)?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
    if blocks <= LAST_BLOCKS {
        return Err(Error::other("the file is too short"));
    }
    let mut scattered = Buf::zeroed(SCATTERED_BYTES);
    let pages = SCATTERED_BYTES / BLOCK_BYTES;
    // 97 and a power of two have no common divisor: each page once.
    (0..pages).for_each(|n| scattered[n * 97 % pages * BLOCK_BYTES] = 1);
    let mut row = Buf::side_by_side(&[16 << 10]).ok_or(Error::other("no addresses"))?;
    let huge = &mut row[0];
    huge.fill(1);

    let mut took_us = vec![Vec::with_capacity(ROUNDS); 2 * KINDS.len()];
    let mut random = 1u64;
    for _ in 0..ROUNDS {
        for (n, (len, beyond)) in KINDS.into_iter().enumerate() {
            for (m, buf) in [&mut scattered, &mut *huge].into_iter().enumerate() {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                let block = (random >> 24) % (blocks - LAST_BLOCKS);
                let began = Instant::now();
                file.read_exact_at(&mut buf[..len], block * BLOCK_BYTES as u64 + beyond)?;
                took_us[2 * n + m].push(began.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
    }
    println!("bytes, at      scattered: median, mean    huge: median, mean, us");
    for ((len, beyond), pair) in KINDS.into_iter().zip(took_us.chunks_exact_mut(2)) {
        let said: Vec<String> = pair.iter_mut().map(|took| said(took)).collect();
        println!("{len:5} at {beyond:4}  {}  {}", said[0], said[1]);
    }
    Ok(())
}

fn said(took_us: &mut [f64]) -> String {
    took_us.sort_unstable_by(f64::total_cmp);
    let mean = took_us.iter().sum::<f64>() / took_us.len() as f64;
    format!("{:20.1} {mean:7.1}", took_us[took_us.len() / 2])
}
