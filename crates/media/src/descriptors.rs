//! Numbers of the descriptors that stay open with a pool, for a library inside a program that is not its own.
//!
//! There the low numbers are the program's: a shell puts its files at 3 and up, a daemon closes all that it did not open. Who asks for it (`keep_from`) gets
//! every descriptor that stays moved up to where programs do not look, and a list of them, to hold them back from the program's own calls. Promises:
//! nothing is moved where nobody asked; where no high number can be had the low one is kept. Never: closes what it was not given.

use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::io::fcntl_dupfd_cloexec;
use std::fs::File;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Numbers below this are listed: those at which a process ends up that moves to the lowest one free from below 1024 on.
const LISTED: usize = 8192;
const BITS: usize = u64::BITS as usize;

/// 0: nothing is moved.
static FROM: AtomicI32 = AtomicI32::new(0);
static KEPT: [AtomicU64; LISTED / BITS] = [const { AtomicU64::new(0) }; LISTED / BITS];

/// From now on descriptors that stay get numbers from `number` on.
pub fn keep_from(number: RawFd) {
    FROM.store(number, Ordering::Relaxed);
}

/// Whether descriptors that stay are moved.
pub fn are_kept() -> bool {
    FROM.load(Ordering::Relaxed) != 0
}

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    KEPT.get(fd / BITS).map(|word| (word, 1 << (fd % BITS)))
}

/// Whether this number is one that stays, and not the program's to close.
pub fn is_kept(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The first number from `fd` on that stays.
pub fn next_kept(fd: RawFd) -> Option<RawFd> {
    let first = usize::try_from(fd).ok()?;
    let mut at = first / BITS;
    let mut mask = !0u64 << (first % BITS);
    while at < KEPT.len() {
        let word = KEPT[at].load(Ordering::Relaxed) & mask;
        if word != 0 {
            return RawFd::try_from(at * BITS + word.trailing_zeros() as usize).ok();
        }
        (at, mask) = (at + 1, !0);
    }
    None
}

/// Lists a number that is high already.
pub fn list(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The number is closed next, or was never ours.
pub fn unlist(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// In the child of a fork: none of them is its own.
pub fn unlist_all() {
    KEPT.iter()
        .for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Moves a descriptor that stays.
pub fn keep(fd: OwnedFd) -> OwnedFd {
    let from = FROM.load(Ordering::Relaxed);
    if from == 0 {
        return fd;
    }
    // Beyond the limit of numbers, it stays where it is.
    let kept = fcntl_dupfd_cloexec(&fd, from).unwrap_or(fd);
    list(kept.as_raw_fd());
    kept
}

/// Whether a descriptor that stays could be moved: else it has one of the program's numbers, which may be few.
pub fn is_moved(fd: RawFd) -> bool {
    fd >= FROM.load(Ordering::Relaxed)
}

/// The same for a file.
pub fn keep_file(file: File) -> File {
    keep(file.into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, since the list is the process's.
    #[test]
    fn what_stays_is_moved_and_listed() {
        let file = || File::open("/dev/null").expect("it opens");
        assert!(!is_kept(keep_file(file()).as_raw_fd()));
        keep_from(700);
        let (first, second) = (keep_file(file()), keep_file(file()));
        let (a, b) = (first.as_raw_fd(), second.as_raw_fd());
        assert!(a >= 700 && b > a && is_kept(a) && is_kept(b));
        assert_eq!(next_kept(0), Some(a));
        assert_eq!(next_kept(a + 1), Some(b));
        assert_eq!(next_kept(b + 1), None);
        unlist(a);
        assert!(!is_kept(a) && next_kept(0) == Some(b));
        keep_from(RawFd::MAX);
        let low = keep_file(file());
        assert!(low.as_raw_fd() < 700 && is_kept(low.as_raw_fd()));
        keep_from(0);
        unlist_all();
        assert!(next_kept(0).is_none() && !is_kept(-1) && next_kept(-1).is_none());
    }
}
