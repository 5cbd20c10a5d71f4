//! Reads of a thread that nobody else reads beside: it looks at a ring for the end of its read instead of sleeping, as long as no other thread wants its processor.
//!
//! A thread that sleeps is woken by an interrupt, on a processor that sleeps too: on a virtual machine that is a quarter of the read. Where several read, there is work for the processors, and
//! looking takes from it: then each sleeps in the system call, as does who found others waiting for the processor a moment ago. Promises: a read has ended when the call does, whatever became
//! of it; looks for [`LOOK_MAX`] at most before it sleeps. Never: gives a buffer back that the device may still write to.

use crate::uring::build_spare_ring;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a read is looked for.
const LOOK_MAX: Duration = Duration::from_micros(150);
/// A processor that was given up for so long was wanted by others.
const WANTED: Duration = Duration::from_micros(12);
/// Then nobody looks for so long.
const SLEEPS_MICROS: u64 = 2_000;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Lookers {
    /// None: there is none to be had.
    ring: OnceLock<Option<Mutex<IoUring>>>,
    /// It did not take a read.
    is_broken: AtomicBool,
    /// Threads that read now.
    readers: AtomicUsize,
    /// Nobody looks before this moment, in microseconds since `began`.
    not_before_micros: AtomicU64,
    began: OnceLock<Instant>,
}

impl Lookers {
    fn micros(&self) -> u64 {
        let began = self.began.get_or_init(Instant::now);
        began.elapsed().as_micros() as u64
    }

    fn ring(&self) -> Option<&Mutex<IoUring>> {
        let made = self
            .ring
            .get_or_init(|| build_spare_ring(2).map(Mutex::new));
        made.as_ref()
    }

    /// Reads into memory from a place of the file: how many bytes came.
    pub fn read(&self, file: &File, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let is_alone = self.readers.fetch_add(1, Ordering::Relaxed) == 0;
        let looked = match is_alone {
            true => self.look(file, into, offset),
            false => None,
        };
        let read = looked.unwrap_or_else(|| rustix::io::pread(file, into, offset));
        self.readers.fetch_sub(1, Ordering::Relaxed);
        read
    }

    /// None: it is to be read in another way.
    fn look(&self, file: &File, into: &mut [u8], offset: u64) -> Option<Result<usize, Errno>> {
        if self.micros() < self.not_before_micros.load(Ordering::Relaxed) {
            return None;
        }
        let mut ring = self.ring()?.try_lock().ok()?;
        if self.is_broken.load(Ordering::Relaxed) {
            return None;
        }
        let len = u32::try_from(into.len()).ok()?;
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), into.as_mut_ptr(), len)
            .offset(offset)
            .build();
        // SAFETY: the memory is this call's until `end` has seen the read's end, and so is the ring.
        unsafe { ring.submission().push(&entry) }.ok()?;
        match self.end(&mut ring)? {
            said @ -4095..=-1 if matches!(-said, AGAIN | INTERRUPTED) => None,
            said @ -4095..=-1 => Some(Err(Errno::from_raw_os_error(-said))),
            bytes => Some(Ok(bytes as usize)),
        }
    }

    /// Hands the read in and comes back when it has ended, with its answer.
    fn end(&self, ring: &mut IoUring) -> Option<i32> {
        if !self.hand_in(ring) {
            return None;
        }
        let began = Instant::now();
        let mut last = began;
        while last.duration_since(began) < LOOK_MAX {
            if let Some(entry) = ring.completion().next() {
                return Some(entry.result());
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now.duration_since(last) > WANTED {
                if let Some(entry) = ring.completion().next() {
                    return Some(entry.result());
                }
                let until = self.micros() + SLEEPS_MICROS;
                self.not_before_micros.store(until, Ordering::Relaxed);
                break;
            }
            last = now;
        }
        loop {
            // What is handed in ends, and must be waited for, also where waiting is interrupted or refused.
            if ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            if let Some(entry) = ring.completion().next() {
                return Some(entry.result());
            }
        }
    }

    /// Whether the kernel has the read now. If it does not take it (a filter of system calls may refuse that from some moment on), the ring is not used any more: the read stays in it.
    fn hand_in(&self, ring: &mut IoUring) -> bool {
        for _ in 0..TRIES_MAX {
            match ring.submit() {
                Ok(1) => return true,
                Err(e) if !matches!(e.raw_os_error(), Some(AGAIN | INTERRUPTED | BUSY)) => break,
                _ => std::thread::yield_now(),
            }
        }
        self.is_broken.store(true, Ordering::Relaxed);
        false
    }
}

const AGAIN: i32 = Errno::AGAIN.raw_os_error();
const INTERRUPTED: i32 = Errno::INTR.raw_os_error();
const BUSY: i32 = Errno::BUSY.raw_os_error();
/// How often a read is handed in that is not taken for the moment.
const TRIES_MAX: u32 = 100;

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
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (lookers, bytes) = (&lookers, &bytes);
                scope.spawn(move || {
                    let mut into = [0; 777];
                    for n in 0..500 {
                        let offset = (n * 7919 + thread * 13) % 99_000;
                        assert_eq!(lookers.read(file, &mut into, offset), Ok(777));
                        assert_eq!(into, bytes[offset as usize..][..777]);
                    }
                });
            }
        });
        // At the end, and where it may not be read.
        lookers.not_before_micros.store(0, Ordering::Relaxed);
        let mut into = [0; 100];
        assert_eq!(lookers.read(file, &mut into, 99_950), Ok(50));
        lookers.not_before_micros.store(0, Ordering::Relaxed);
        let unreadable = File::options().write(true).open("/dev/null").unwrap();
        assert!(lookers.read(&unreadable, &mut into, 0).is_err());
    }
}
