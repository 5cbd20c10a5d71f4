//! Reads of a thread that waits for nothing else: it looks at a ring for the end of its read instead of sleeping, as long as no other thread wants its processor.
//!
//! A thread that sleeps is woken by an interrupt, on a processor that sleeps too: on a virtual machine that takes as long as half of the read. So there are as many rings as
//! processors, and who finds none free, or found others waiting a moment ago, sleeps in the system call instead. Promises: a read has ended when the call does, whatever became of it; looks for
//! [`LOOK_MAX`] at most before it sleeps. Never: gives a buffer back that the device may still write to.

use crate::uring::{TaskRun, build_ring};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a read is looked for.
const LOOK_MAX: Duration = Duration::from_micros(150);
/// A processor that was given up for so long was wanted by others.
const WANTED: Duration = Duration::from_micros(12);
/// Then nobody looks for so long.
const SLEEPS_MICROS: u64 = 2_000;
/// Rings at most.
const RINGS_MAX: usize = 8;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Lookers {
    rings: OnceLock<Vec<Mutex<IoUring>>>,
    /// Nobody looks before this moment, in microseconds since `began`.
    not_before_micros: AtomicU64,
    began: OnceLock<Instant>,
}

impl Lookers {
    fn micros(&self) -> u64 {
        let began = self.began.get_or_init(Instant::now);
        began.elapsed().as_micros() as u64
    }

    fn rings(&self) -> &[Mutex<IoUring>] {
        self.rings.get_or_init(|| {
            let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
            let made = (0..processors.min(RINGS_MAX)).map_while(|_| {
                let (ring, _) = build_ring(2, TaskRun::Coop).ok()?;
                Some(Mutex::new(ring))
            });
            made.collect()
        })
    }

    /// Reads into memory from a place of the file: how many bytes came. None: it is to be read in another way.
    pub fn read(&self, file: &File, into: &mut [u8], offset: u64) -> Option<Result<usize, Errno>> {
        if self.micros() < self.not_before_micros.load(Ordering::Relaxed) {
            return None;
        }
        let mut ring = self.rings().iter().find_map(|ring| ring.try_lock().ok())?;
        let len = u32::try_from(into.len()).ok()?;
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), into.as_mut_ptr(), len)
            .offset(offset)
            .build();
        // SAFETY: the memory is this call's until `end` has seen the read's end, and so is the ring.
        unsafe { ring.submission().push(&entry) }.ok()?;
        let said = self.end(&mut ring);
        match said {
            -4095..=-1 if matches!(-said, AGAIN | INTERRUPTED) => None,
            -4095..=-1 => Some(Err(Errno::from_raw_os_error(-said))),
            bytes => Some(Ok(bytes as usize)),
        }
    }

    /// Hands the read in and comes back when it has ended, with its answer.
    fn end(&self, ring: &mut IoUring) -> i32 {
        let mut handed_in = ring.submit().is_ok_and(|count| count == 1);
        let began = Instant::now();
        let mut last = began;
        while handed_in && last.duration_since(began) < LOOK_MAX {
            if let Some(entry) = ring.completion().next() {
                return entry.result();
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now.duration_since(last) > WANTED {
                if let Some(entry) = ring.completion().next() {
                    return entry.result();
                }
                let until = self.micros() + SLEEPS_MICROS;
                self.not_before_micros.store(until, Ordering::Relaxed);
                break;
            }
            last = now;
        }
        loop {
            // Interrupted, or refused for the moment: what is handed in ends, and must be waited for.
            match ring.submit_and_wait(1) {
                Ok(_) => handed_in = true,
                Err(_) if handed_in => {}
                Err(_) => std::thread::yield_now(),
            }
            if let Some(entry) = ring.completion().next() {
                return entry.result();
            }
        }
    }
}

const AGAIN: i32 = Errno::AGAIN.raw_os_error();
const INTERRUPTED: i32 = Errno::INTR.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_looked_for_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let (lookers, file) = (Lookers::default(), &file);
        if lookers.rings().is_empty() {
            println!("not judged: no io_uring here");
            return;
        }
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (lookers, bytes) = (&lookers, &bytes);
                scope.spawn(move || {
                    let mut into = [0; 777];
                    for n in 0..500 {
                        let offset = (n * 7919 + thread * 13) % 99_000;
                        // Others may want the processor: then it is none, and nothing was touched.
                        if let Some(said) = lookers.read(file, &mut into, offset) {
                            let expected = &bytes[offset as usize..][..777];
                            assert_eq!(said, Ok(777));
                            assert_eq!(into, expected);
                        }
                    }
                });
            }
        });
        // At the end, and where it may not be read.
        lookers.not_before_micros.store(0, Ordering::Relaxed);
        let mut into = [0; 100];
        assert_eq!(lookers.read(file, &mut into, 99_950), Some(Ok(50)));
        lookers.not_before_micros.store(0, Ordering::Relaxed);
        let unreadable = File::options().write(true).open("/dev/null").unwrap();
        assert!(matches!(lookers.read(&unreadable, &mut into, 0), Some(Err(_))));
    }
}
