//! Reads of one thread that are handed to the kernel together, and waited for together: the device has them at the same time, and one call of the system does for all.
//!
//! Promises: each read has ended when the call does, whatever became of it. Never: gives memory back that the device may still write to, or waits for a ring that another thread has.

use crate::ReadInto;
use crate::uring::build_spare_ring;
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

/// Reads of one call.
pub(crate) const SEVERAL_MAX: usize = 32;
/// Threads that read so at a time; others read one after the other.
const RINGS_MAX: usize = 4;
/// How often reads are handed in that are not taken.
const TRIES_MAX: u32 = 100;

/// A ring, made when it is first used. None: there is none to be had.
#[derive(Default)]
struct Ring {
    ring: OnceLock<Option<Mutex<IoUring>>>,
    /// It did not take a read: what was put into it stays there, so it is not used any more.
    is_broken: AtomicBool,
}

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Together([Ring; RINGS_MAX]);

impl Together {
    /// Reads the first [`SEVERAL_MAX`], if a ring is free. Which came whole: a bit for each, the first the lowest. All others are to be read in another way.
    pub fn read(&self, file: &File, reads: &mut [ReadInto<'_>]) -> u32 {
        let most = reads.len().min(SEVERAL_MAX);
        for ring in &self.0 {
            let made = &ring.ring;
            let made = made.get_or_init(|| build_spare_ring(SEVERAL_MAX as u32).map(Mutex::new));
            if let Some(Ok(mut free)) = made.as_ref().map(Mutex::try_lock) {
                // Asked by who has it: what another left in it is not to be handed in.
                if ring.is_broken.load(Ordering::Relaxed) {
                    continue;
                }
                let (came, all) = read_all(&mut free, file, &mut reads[..most]);
                ring.is_broken.fetch_or(!all, Ordering::Relaxed);
                return came;
            }
        }
        0
    }
}

/// Which came whole, and whether the ring took all.
fn read_all(ring: &mut IoUring, file: &File, reads: &mut [ReadInto<'_>]) -> (u32, bool) {
    for (at, read) in reads.iter_mut().enumerate() {
        let Ok(len) = u32::try_from(read.into.len()) else {
            break;
        };
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), read.into.as_mut_ptr(), len)
            .offset(read.offset)
            .build()
            .user_data(at as u64);
        // SAFETY: the memory is the call's until `end_all` has seen the end of all that the kernel took, and so is the ring.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            break;
        }
    }
    let pushed = ring.submission().len();
    end_all(ring, reads, pushed)
}

/// Hands in and waits until all have ended that the kernel took: also where waiting is interrupted or refused. Which came whole, and whether it took all that were `pushed`.
fn end_all(ring: &mut IoUring, reads: &[ReadInto<'_>], pushed: usize) -> (u32, bool) {
    let (mut taken, mut ended, mut came) = (0, 0, 0);
    let mut tries = TRIES_MAX;
    while ended < pushed {
        // The kernel waits only if it took all.
        match ring.submit_and_wait(pushed - ended) {
            Ok(more) => taken += more,
            Err(_) if ended == taken && tries == 0 => return (came, false),
            Err(_) => {
                tries = tries.saturating_sub(1);
                std::thread::yield_now();
            }
        }
        for entry in ring.completion() {
            ended += 1;
            let at = entry.user_data() as usize;
            let whole = usize::try_from(entry.result()) == Ok(reads[at].into.len());
            came |= u32::from(whole) << at;
        }
    }
    (came, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_read_together_is_right_from_several_threads() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let (together, file) = (Together::default(), &file);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (together, bytes) = (&together, &bytes);
                scope.spawn(move || {
                    for round in 0..50u64 {
                        let mut memory = [[0; 777]; 40];
                        // The last ones may go beyond the end.
                        let place =
                            |n: usize| (n as u64 * 7919 + round * 31 + thread * 13) % 99_900;
                        let mut reads: Vec<ReadInto<'_>> = (0..)
                            .zip(&mut memory)
                            .map(|(n, into)| ReadInto {
                                offset: place(n),
                                into,
                                result: Ok(()),
                            })
                            .collect();
                        let came = together.read(file, &mut reads);
                        for (n, read) in (0..SEVERAL_MAX).zip(&reads) {
                            let at = place(n) as usize;
                            let whole = at + 777 <= bytes.len();
                            assert!(came == 0 || (came >> n & 1 == 1) == whole);
                            assert!(came >> n & 1 == 0 || *read.into == bytes[at..at + 777]);
                        }
                    }
                });
            }
        });
        let unreadable = File::options().write(true).open("/dev/null").unwrap();
        let mut into = [0; 8];
        let read = ReadInto {
            offset: 0,
            into: &mut into,
            result: Ok(()),
        };
        assert_eq!(together.read(&unreadable, &mut [read]), 0);
    }
}
