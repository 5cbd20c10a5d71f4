//! Where the yardstick keeps objects that were written to: one after the other behind those of its file, in segments of [`SEGMENT_BYTES`]. Nothing is cleaned, checked or
//! remembered: the log has an end. None spans two pages.
//!
//! Promises: an object is found where it was said to lie, in DRAM until its segment is written. Never: holds its lock while it writes.

use crate::backing::PAGE_BYTES;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrace_media::Buf;

const SEGMENT_BYTES: usize = 1 << 20;

/// Objects that are written together.
struct Segment {
    first_slot: u32,
    bytes: Buf,
}

/// The segment that is being filled, and those that are being written.
struct Open {
    filling: Segment,
    objects: u32,
    writing: VecDeque<Arc<Segment>>,
}

/// See the head of the file.
pub(super) struct Log {
    /// Where it begins in the file.
    start: u64,
    object_bytes: usize,
    slots_max: u32,
    open: Mutex<Open>,
}

impl Segment {
    fn at(first_slot: u32) -> Segment {
        Segment {
            first_slot,
            bytes: Buf::zeroed(SEGMENT_BYTES),
        }
    }

    /// Where an object begins in it.
    fn place(&self, slot: u32, object_bytes: usize) -> usize {
        place(u64::from(slot - self.first_slot), object_bytes) as usize
    }
}

/// Where object `n` of such a length begins.
fn place(n: u64, object_bytes: usize) -> u64 {
    let in_page = (PAGE_BYTES / object_bytes) as u64;
    n / in_page * PAGE_BYTES as u64 + n % in_page * object_bytes as u64
}

impl Log {
    /// A log behind the first `start` bytes of a file, for less than `slots_max` objects.
    pub fn new(start: u64, object_bytes: usize, slots_max: u32) -> Log {
        Log {
            start,
            object_bytes,
            slots_max,
            open: Mutex::new(Open {
                filling: Segment::at(0),
                objects: 0,
                writing: VecDeque::new(),
            }),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an object at the end: its slot. Who fills a segment writes it.
    pub fn append(&self, file: &File, object: &[u8]) -> std::io::Result<u32> {
        let in_segment = self.in_segment();
        let (slot, full) = {
            let mut open = self.open();
            let slot = open.filling.first_slot + open.objects;
            if slot >= self.slots_max {
                return Err(std::io::Error::other("the yardstick's log is full"));
            }
            let place = open.filling.place(slot, self.object_bytes);
            open.filling.bytes[place..][..object.len()].copy_from_slice(object);
            open.objects += 1;
            let full = open.objects == in_segment;
            (slot, full.then(|| next(&mut open, slot + 1)))
        };
        if let Some(segment) = full {
            file.write_all_at(&segment.bytes, self.offset(segment.first_slot))?;
            self.open().writing.retain(|s| !Arc::ptr_eq(s, &segment));
        }
        Ok(slot)
    }

    fn in_segment(&self) -> u32 {
        (SEGMENT_BYTES / PAGE_BYTES * (PAGE_BYTES / self.object_bytes)) as u32
    }

    /// The object of a slot if it is in DRAM.
    pub fn near(&self, slot: u32, out: &mut [u8]) -> bool {
        let open = self.open();
        let all = open.writing.iter().map(|s| &**s).chain([&open.filling]);
        let in_segment = self.in_segment();
        for segment in all {
            if (segment.first_slot..segment.first_slot + in_segment).contains(&slot) {
                let place = segment.place(slot, self.object_bytes);
                out.copy_from_slice(&segment.bytes[place..][..out.len()]);
                return true;
            }
        }
        false
    }

    /// Where in the file a slot's object is.
    pub fn offset(&self, slot: u32) -> u64 {
        self.start + place(slot.into(), self.object_bytes)
    }
}

fn next(open: &mut Open, first_slot: u32) -> Arc<Segment> {
    let full = std::mem::replace(&mut open.filling, Segment::at(first_slot));
    let full = Arc::new(full);
    open.objects = 0;
    open.writing.push_back(full.clone());
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_in_dram_and_on_the_file() {
        for bytes in [128, 600] {
            let file = tempfile::tempfile().expect("a file");
            let log = Log::new(8192, bytes, 20_000);
            let object = |n: u32| vec![n as u8 ^ (n >> 8) as u8; bytes];
            for n in 0..20_000 {
                assert_eq!(log.append(&file, &object(n)).expect("room"), n);
            }
            assert!(log.append(&file, &object(0)).is_err(), "it has an end");
            let (mut near, mut seen) = (0, vec![0; bytes]);
            for n in 0..20_000 {
                let (offset, page) = (log.offset(n), PAGE_BYTES as u64);
                assert!(offset / page == (offset + bytes as u64 - 1) / page);
                if log.near(n, &mut seen) {
                    near += 1;
                } else {
                    file.read_exact_at(&mut seen, offset).expect("there");
                }
                assert_eq!(seen, object(n), "slot {n}");
            }
            assert_eq!(near, 20_000 % (256 * (4096 / bytes as u32)));
        }
    }
}
