//! Pages into which a device reads while they are to leave, are written back, or are taken away: what it brings is not lost.

use crate::common::Plain;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::{Memory, Options, PAGE_BYTES, Region, Way};

/// Pages of one read.
const PART_PAGES: u64 = 256;
const PART_BYTES: usize = PART_PAGES as usize * PAGE_BYTES;
const PART_WORDS: usize = PART_BYTES / 8;
/// Parts of the region; the file has one more, so that a part of memory is never read the same twice in a row.
const PARTS: usize = 4;
const FILE_PARTS: usize = PARTS + 1;
const ROUNDS: usize = 200;

fn word_of_file(word: usize) -> u64 {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// A file that is read by the device itself, if the file system can.
fn direct_file(dir: &std::path::Path) -> Option<File> {
    let path = dir.join("direct");
    let mut file = File::create(&path).unwrap();
    for part in 0..FILE_PARTS {
        let words = part * PART_WORDS..(part + 1) * PART_WORDS;
        let bytes: Vec<u8> = words
            .flat_map(|word| word_of_file(word).to_ne_bytes())
            .collect();
        file.write_all(&bytes).unwrap();
    }
    file.sync_all().unwrap();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    options.open(&path).ok()
}

/// Reads a part of the file into a part of the region, as a device does it, and answers how many pages are not as the file's.
fn read_part(region: &Region, file: &File, round: usize) -> usize {
    let (part, from) = (round % PARTS, round % FILE_PARTS);
    let first = part * PART_WORDS;
    // SAFETY: within the region, of which nobody else reads or writes these pages.
    let got = unsafe {
        libc::pread(
            file.as_raw_fd(),
            region.base().add(part * PART_BYTES).cast(),
            PART_BYTES,
            (from * PART_BYTES) as libc::off_t,
        )
    };
    assert_eq!(
        got,
        PART_BYTES as isize,
        "{}",
        std::io::Error::last_os_error()
    );
    let is_lost = |page: &usize| {
        (0..PAGE_BYTES / 8).any(|n| {
            let word = page * PAGE_BYTES / 8 + n;
            region.word(first + word).load(Relaxed) != word_of_file(from * PART_WORDS + word)
        })
    };
    (0..PART_PAGES as usize).filter(is_lost).count()
}

/// Reads while `other` does something to the region all the time: pages lost, and those that stayed since a device had them.
fn lost_while(devices_write: bool, other: fn(&Memory, &Region)) -> Option<(usize, u64)> {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = direct_file(dir.path())?;
    let memory = Memory::new(Options {
        way: Way::Handlers(2),
        pages_max: 2 * PARTS * PART_PAGES as usize,
        reserve_bytes: 1 << 30,
        ..Options::default()
    })
    .unwrap();
    if devices_write && !memory.devices_write() {
        return None;
    }
    let region = memory
        .region(PARTS as u64 * PART_PAGES, Arc::new(Plain::new()))
        .unwrap();
    let lost = std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..ROUNDS).map(|n| read_part(&region, &file, n)).sum());
        while !reader.is_finished() {
            other(&memory, &region);
        }
        reader.join().unwrap()
    });
    Some((lost, memory.stats().pinned))
}

fn nothing_is_lost_while(other: fn(&Memory, &Region)) {
    let without = lost_while(false, other);
    let (Some((before, _)), Some((lost, pinned))) = (without, lost_while(true, other)) else {
        return println!("not judged: no direct file, or Linux before 6.8");
    };
    let all = ROUNDS * PART_PAGES as usize;
    println!("lost of {all} pages: {before} without, {lost} with; {pinned} stayed");
    assert_eq!(lost, 0, "of {all} pages");
    // What is lost without depends on the machine: it shows that the test can tell.
    assert!(before == 0 || pinned > 0);
}

#[test]
fn what_a_device_reads_into_pages_that_are_to_leave() {
    nothing_is_lost_while(|memory, _| memory.evict_all().unwrap());
}

#[test]
fn what_a_device_reads_into_pages_that_are_written_back() {
    nothing_is_lost_while(|memory, region| {
        region.write_back(0..region.pages()).unwrap();
        memory.evict_all().unwrap();
    });
}

#[test]
fn what_a_device_reads_into_pages_that_are_taken_away() {
    nothing_is_lost_while(|_, region| region.take_away(0..region.pages()).unwrap());
}

/// What the backing does not take is put back, as it was.
#[test]
fn what_the_backing_does_not_take_is_put_back() {
    for way in [Way::InThread, Way::Handlers(2)] {
        let memory = Memory::new(Options {
            way,
            pages_max: 300,
            reserve_bytes: 1 << 30,
            ..Options::default()
        })
        .unwrap();
        if !memory.devices_write() {
            return println!("not judged: Linux before 6.8");
        }
        let plain = Arc::new(Plain::new());
        let region = memory.region(200, plain.clone()).unwrap();
        let word = |page: usize| region.word(page * 512 + page % 512);
        // In no order, or more would come than are written to.
        let all = || (0..200).map(|n| n * 37 % 200);
        all().for_each(|page| word(page).store(page as u64 + 7, Relaxed));
        plain.store_fails.store(true, Relaxed);
        assert!(memory.evict_all().is_err());
        assert!(region.write_back(0..200).is_err());
        assert_eq!(memory.stats().dirty_pages, 200, "{way:?}");
        assert!(all().all(|page| word(page).load(Relaxed) == page as u64 + 7));
        plain.store_fails.store(false, Relaxed);
        plain.taken_max.store(3, Relaxed);
        region.write_back(0..100).unwrap();
        assert_eq!(memory.stats().dirty_pages, 100, "{way:?}");
        // What was written back is protected.
        let few = all().filter(|page| *page < 50);
        few.for_each(|page| word(page).store(page as u64 + 8, Relaxed));
        assert_eq!(memory.stats().dirty_pages, 150, "{way:?}");
        memory.evict_all().unwrap();
        assert_eq!(memory.stats().resident_pages, 0);
        let changed = |page: usize| page as u64 + 7 + u64::from(page < 50);
        assert!(all().all(|page| word(page).load(Relaxed) == changed(page)));
    }
}
