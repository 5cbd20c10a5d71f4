//! Reads that a thread waits for itself, one or several: handed to the kernel together, so that the device has them at the same time and one call of the system does for all.
//!
//! A thread that sleeps is woken by an interrupt, on a processor that sleeps too: on a virtual machine that is a quarter of the read. So who reads alone, and one thing, looks at the ring for the end of
//! it ([`Wait`]):
//!
//! | where | a read's thread |
//! |---|---|
//! | several threads read: there is work for the processors, and looking takes from it | sleeps in the system call |
//! | it lost the processor while it looked, or looked in vain, a moment ago | sleeps, too |
//! | others read beside it now and then, or there is one processor | looks, and gives the processor to who wants it after each look |
//! | one thread alone has read for a while, and there are others' processors | looks, and keeps its own: who is woken goes to another (ADR 0079) |
//!
//! Promises: each read has ended when the call does, whatever became of it; looks for [`LOOK_MAX`] at most before it sleeps. Never: gives memory back that the device may still write to, or waits
//! for a ring that another thread has.

use crate::ReadInto;
use crate::uring::build_spare_ring;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Reads of one call.
pub(crate) const SEVERAL_MAX: usize = 32;
/// Threads that read so at a time; others read one after the other.
const RINGS_MAX: usize = 4;
/// How often reads are handed in that are not taken.
const TRIES_MAX: u32 = 100;
/// How long a read is looked for.
const LOOK_MAX: Duration = Duration::from_micros(150);
/// So many reads in a row that found no other one under way: one thread reads.
const ALONE_MIN: u32 = 64;
/// A processor that was given up for so long was wanted by others.
const WANTED: Duration = Duration::from_micros(12);
/// Then nobody looks for so many times as long.
const SLEEPS_TIMES: u32 = 16;
/// And no longer than this, as after a process was stopped.
const SLEEPS_MAX: Duration = Duration::from_millis(100);

/// A ring, made when it is first used. None: there is none to be had.
#[derive(Default)]
struct Ring {
    ring: OnceLock<Option<Mutex<IoUring>>>,
    /// It did not take a read (a filter of system calls may refuse that from some moment on): what was put into it stays there, so it is not used any more.
    is_broken: AtomicBool,
}

/// See the head of the file.
pub(crate) struct Readers {
    rings: [Ring; RINGS_MAX],
    /// Threads that read now.
    reading: AtomicUsize,
    /// Reads in a row that began when no other was under way, up to [`ALONE_MIN`].
    alone: AtomicU32,
    /// Nobody looks before this moment, in microseconds since `began`.
    not_before_micros: AtomicU64,
    began: Instant,
    /// As the process was allowed to use when the file was opened: asked then, since a filter of system calls may come after.
    has_several_processors: bool,
}

/// How a thread waits for the end of what the device has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// In the kernel.
    Sleeps,
    /// It looks, and gives the processor to others in between.
    Yields,
    /// It looks, and keeps the processor.
    Stays,
}

/// What the kernel said of reads.
#[derive(Default)]
struct Answers {
    all: [Option<i32>; SEVERAL_MAX],
    ended: usize,
}

impl Answers {
    fn reap(&mut self, ring: &mut IoUring) {
        for entry in ring.completion() {
            self.all[entry.user_data() as usize] = Some(entry.result());
            self.ended += 1;
        }
    }
}

impl Readers {
    pub fn new() -> Readers {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        Readers {
            rings: Default::default(),
            reading: AtomicUsize::new(0),
            alone: AtomicU32::new(0),
            not_before_micros: AtomicU64::new(0),
            began: Instant::now(),
            has_several_processors: processors > 1,
        }
    }

    /// Reads into memory from a place of the file: how many bytes came.
    pub fn read_one(&self, file: &File, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
        const AGAIN: i32 = -Errno::AGAIN.raw_os_error();
        const INTERRUPTED: i32 = -Errno::INTR.raw_os_error();
        self.reading(|wait| {
            let mut one = [ReadInto {
                offset,
                into,
                result: Ok(()),
            }];
            let said = match wait {
                Wait::Sleeps => None,
                wait => self.by_ring(file, &mut one, wait).all[0],
            };
            match said {
                None | Some(AGAIN | INTERRUPTED) => {
                    rustix::io::pread(file, &mut *one[0].into, offset)
                }
                Some(errno @ ..0) => Err(Errno::from_raw_os_error(-errno)),
                Some(bytes) => Ok(bytes as usize),
            }
        })
    }

    /// Reads the first [`SEVERAL_MAX`], if a ring is free. Which came whole: a bit for each, the first the lowest. All others are to be read in another way.
    pub fn read(&self, file: &File, reads: &mut [ReadInto<'_>]) -> u32 {
        let most = reads.len().min(SEVERAL_MAX);
        let reads = &mut reads[..most];
        // Looking for these, too, was not shown to help (docs/adr/0051).
        let answers = self.reading(|_| self.by_ring(file, reads, Wait::Sleeps));
        let said = (0..).zip(reads.iter().zip(answers.all));
        said.fold(0, |came, (at, (read, answer))| {
            let bytes = answer.and_then(|answer| usize::try_from(answer).ok());
            came | u32::from(bytes == Some(read.into.len())) << at
        })
    }

    fn micros(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Counts the thread among those that read, and tells it how to wait.
    fn reading<R>(&self, read: impl FnOnce(Wait) -> R) -> R {
        let is_alone = self.reading.fetch_add(1, Ordering::Relaxed) == 0;
        let read = read(self.how(is_alone));
        self.reading.fetch_sub(1, Ordering::Relaxed);
        read
    }

    /// How a read waits that began when no other was under way, or not. What other threads write here meanwhile decides nothing but that.
    fn how(&self, is_alone: bool) -> Wait {
        if !is_alone {
            self.alone.store(0, Ordering::Relaxed);
            return Wait::Sleeps;
        }
        let alone = self.alone.load(Ordering::Relaxed);
        if alone < ALONE_MIN {
            self.alone.store(alone + 1, Ordering::Relaxed);
        }
        if self.micros() < self.not_before_micros.load(Ordering::Relaxed) {
            Wait::Sleeps
        } else if alone >= ALONE_MIN && self.has_several_processors {
            Wait::Stays
        } else {
            Wait::Yields
        }
    }

    /// What the kernel said of each; nothing of those that it did not get.
    fn by_ring(&self, file: &File, reads: &mut [ReadInto<'_>], wait: Wait) -> Answers {
        for ring in &self.rings {
            let made = &ring.ring;
            let made = made.get_or_init(|| build_spare_ring(SEVERAL_MAX as u32).map(Mutex::new));
            if let Some(Ok(mut free)) = made.as_ref().map(Mutex::try_lock) {
                // Asked by who has it: what another left in it is not to be handed in.
                if ring.is_broken.load(Ordering::Relaxed) {
                    continue;
                }
                let pushed = push(&mut free, file, reads);
                let (answers, all) = self.end_all(&mut free, pushed, wait);
                ring.is_broken.fetch_or(!all, Ordering::Relaxed);
                return answers;
            }
        }
        Answers::default()
    }

    /// Hands in and waits until all have ended that the kernel took: also where waiting is interrupted or refused. What it said, and whether it took all that were `pushed`.
    fn end_all(&self, ring: &mut IoUring, pushed: usize, mut wait: Wait) -> (Answers, bool) {
        let (mut answers, mut taken, mut tries) = (Answers::default(), 0, TRIES_MAX);
        while answers.ended < pushed {
            // The kernel waits only if it took all.
            let awaited = match wait {
                Wait::Sleeps => pushed - answers.ended,
                Wait::Yields | Wait::Stays => 0,
            };
            match ring.submit_and_wait(awaited) {
                Ok(more) => {
                    taken += more;
                    if wait != Wait::Sleeps {
                        self.look(ring, &mut answers, taken, wait == Wait::Stays);
                        wait = Wait::Sleeps;
                    }
                }
                Err(_) if answers.ended == taken && tries == 0 => return (answers, false),
                Err(_) => {
                    tries = tries.saturating_sub(1);
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "rare, and the kernel needs time"
                    )]
                    std::thread::yield_now();
                }
            }
            answers.reap(ring);
        }
        (answers, true)
    }

    /// Looks for the end of so many, until others want the processor.
    fn look(&self, ring: &mut IoUring, answers: &mut Answers, taken: usize, stays: bool) {
        let began = Instant::now();
        let mut last = began;
        while last.duration_since(began) < LOOK_MAX {
            answers.reap(ring);
            if answers.ended >= taken {
                return;
            }
            if stays {
                // What ended is told to who enters the kernel: the ring says when there is something, wherever the interrupt came to.
                let has_ended = ring.submission().taskrun();
                match has_ended {
                    true => drop(ring.submit_and_wait(0)),
                    false => std::hint::spin_loop(),
                }
            } else {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a look is there to find out whether others want the processor"
                )]
                std::thread::yield_now();
            }
            let now = Instant::now();
            let gone = now.duration_since(last);
            if gone > WANTED {
                answers.reap(ring);
                return self.looked(gone, answers.ended >= taken);
            }
            last = now;
        }
        answers.reap(ring);
        if stays {
            self.looked(LOOK_MAX, answers.ended >= taken);
        }
    }

    /// The processor was gone for so long, or nothing ended: what comes of that for those who read next.
    fn looked(&self, gone: Duration, ended: bool) {
        if let Some(sleeps) = sleeps_after(gone, ended) {
            let until = self.micros() + sleeps.as_micros() as u64;
            self.not_before_micros.store(until, Ordering::Relaxed);
        }
    }
}

/// For how long nobody looks after a processor was given up for so long, and the reads had `ended` when it was had again. Others run for milliseconds when it is
/// yielded to them, in which a read ends; a processor that was gone no longer than a read takes had an interrupt to serve, perhaps of this very read.
fn sleeps_after(gone: Duration, ended: bool) -> Option<Duration> {
    (!ended || gone > LOOK_MAX).then(|| gone.saturating_mul(SLEEPS_TIMES).min(SLEEPS_MAX))
}

/// Puts reads into a ring. How many.
fn push(ring: &mut IoUring, file: &File, reads: &mut [ReadInto<'_>]) -> usize {
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
    ring.submission().len()
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
        let (readers, file) = (Readers::new(), &file);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (readers, bytes) = (&readers, &bytes);
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
                        let came = readers.read(file, &mut reads);
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
        assert_eq!(readers.read(&unreadable, &mut [read]), 0);
    }

    #[test]
    fn who_gave_the_processor_away_for_long_does_not_look_soon() {
        let ms = Duration::from_millis;
        // The read ended meanwhile, and its thread had to wait for others all the same.
        assert_eq!(sleeps_after(ms(2), true), Some(ms(32)));
        assert_eq!(sleeps_after(ms(2), false), Some(ms(32)));
        assert_eq!(sleeps_after(ms(600_000), false), Some(SLEEPS_MAX));
        assert_eq!(sleeps_after(WANTED * 2, true), None);
        assert!(sleeps_after(WANTED * 2, false) < Some(ms(1)));
    }

    #[test]
    fn who_reads_alone_for_a_while_keeps_its_processor() {
        let mut readers = Readers::new();
        readers.has_several_processors = true;
        for _ in 0..ALONE_MIN {
            assert_eq!(readers.how(true), Wait::Yields);
        }
        assert_eq!(readers.how(true), Wait::Stays);
        // Another reads beside it.
        assert_eq!(readers.how(false), Wait::Sleeps);
        assert_eq!(readers.how(true), Wait::Yields);
        (1..ALONE_MIN).for_each(|_| assert_eq!(readers.how(true), Wait::Yields));
        assert_eq!(readers.how(true), Wait::Stays);
        // It looked in vain.
        readers.looked(SLEEPS_MAX, false);
        assert_eq!(readers.how(true), Wait::Sleeps);
        readers.not_before_micros.store(0, Ordering::Relaxed);
        assert_eq!(readers.how(true), Wait::Stays);
        readers.has_several_processors = false;
        assert_eq!(readers.how(true), Wait::Yields);
    }

    #[test]
    fn several_of_one_thread_are_read() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let readers = Readers::new();
        for round in 0..300u64 {
            let mut memory = [[0; 777]; 3];
            let mut offsets = [round * 31, 50_000 + round, 99_950].into_iter();
            let mut reads = memory.each_mut().map(|into| ReadInto {
                offset: offsets.next().unwrap(),
                into,
                result: Ok(()),
            });
            let came = readers.read(&file, &mut reads);
            let has_ring = matches!(readers.rings[0].ring.get(), Some(Some(_)));
            // The last one goes beyond the end.
            assert_eq!(came, if has_ring { 0b11 } else { 0 });
            for read in reads.iter().take(if has_ring { 2 } else { 0 }) {
                assert_eq!(*read.into, bytes[read.offset as usize..][..777]);
            }
        }
    }

    #[test]
    fn what_is_looked_for_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let (readers, file) = (Readers::new(), &file);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (readers, bytes) = (&readers, &bytes);
                scope.spawn(move || {
                    let mut into = [0; 777];
                    for n in 0..500 {
                        let offset = (n * 7919 + thread * 13) % 99_000;
                        assert_eq!(readers.read_one(file, &mut into, offset), Ok(777));
                        assert_eq!(into, bytes[offset as usize..][..777]);
                    }
                });
            }
        });
        // One alone, which keeps its processor in the end.
        for n in 0..300u64 {
            readers.not_before_micros.store(0, Ordering::Relaxed);
            let mut into = [0; 777];
            assert_eq!(readers.read_one(file, &mut into, n * 31), Ok(777));
            assert_eq!(into, bytes[n as usize * 31..][..777]);
        }
        // At the end, and where it may not be read.
        readers.not_before_micros.store(0, Ordering::Relaxed);
        let mut into = [0; 100];
        assert_eq!(readers.read_one(file, &mut into, 99_950), Ok(50));
        readers.not_before_micros.store(0, Ordering::Relaxed);
        let unreadable = File::options().write(true).open("/dev/null").unwrap();
        assert!(readers.read_one(&unreadable, &mut into, 0).is_err());
    }
}
