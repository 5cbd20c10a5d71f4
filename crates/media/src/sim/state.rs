//! The state of a simulated device: what is durable, what reads see, and the writes between.
//!
//! Invariants: `durable` holds every write that a completed flush covered, or that was durable by itself; `volatile` is `durable`
//! plus the completed writes, in the order of their completion; `writes` lists, in the order of
//! submission, every write that `durable` does not hold yet in full.
//! Checked by the property test at the end of tests/sim.rs.

use super::event::{Event, EventKind};
use super::fault::Rules;
use super::paged::Paged;
use super::rng::Rng;
use crate::SECTOR_BYTES;
use rustix::io::Errno;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A write's number, in the order of submission.
pub(super) type WriteId = u64;

/// A write that a crash may lose, keep or tear.
pub(super) struct Write {
    id: WriteId,
    offset: usize,
    data: Vec<u8>,
    /// Its place in the order of completion; `None` while it is in flight.
    completed: Option<u64>,
    /// Which of its sectors count; `None` for all. Failed writes and lost caches thin it out.
    sectors: Option<Vec<bool>>,
    /// A flush that should have covered it failed: no later flush covers it.
    doubtful: bool,
}

pub(super) struct State {
    pub(super) durable: Paged,
    pub(super) volatile: Paged,
    pub(super) writes: Vec<Write>,
    /// Completions of writes so far; numbers the order of completion.
    pub(super) completed: u64,
    submitted: WriteId,
    pub(super) events: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) reorder: bool,
    /// Reads of at most so many bytes do not end.
    pub(super) held_read_bytes: usize,
    pub(super) rules: Rules,
    pub(super) rng: Rng,
}

/// Also after a failing test has panicked in its hook: the state itself is whole.
pub(super) fn lock_state(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Write {
    fn sector_count(&self) -> usize {
        self.data.len() / SECTOR_BYTES
    }

    fn counts(&self, sector: usize) -> bool {
        self.sectors.as_ref().is_none_or(|sectors| sectors[sector])
    }

    /// Puts the counting sectors for which `keep` is true into the image.
    fn apply(&self, image: &mut Paged, mut keep: impl FnMut(usize) -> bool) {
        for sector in 0..self.sector_count() {
            if keep(sector) && self.counts(sector) {
                let from = sector * SECTOR_BYTES;
                image.put(self.offset + from, &self.data[from..from + SECTOR_BYTES]);
            }
        }
    }

    /// Puts all counting sectors into the image.
    fn apply_all(&self, image: &mut Paged) {
        match self.sectors {
            None => image.put(self.offset, &self.data),
            Some(_) => self.apply(image, |_| true),
        }
    }

    /// Puts a random part of the counting sectors into the image.
    fn apply_torn(&self, image: &mut Paged, rng: &mut Rng) {
        self.apply(image, |_| rng.coin());
    }

    /// Stops counting the sectors that `newer` has made durable.
    fn yield_to(&mut self, newer: &Write) {
        let (start, end) = (newer.offset, newer.offset + newer.data.len());
        if start >= self.offset + self.data.len() || end <= self.offset {
            return;
        }
        let mut sectors = self
            .sectors
            .take()
            .unwrap_or_else(|| vec![true; self.sector_count()]);
        for (n, counts) in sectors.iter_mut().enumerate() {
            let byte = self.offset + n * SECTOR_BYTES;
            let covered =
                (start..end).contains(&byte) && newer.counts((byte - start) / SECTOR_BYTES);
            *counts &= !covered;
        }
        self.sectors = Some(sectors);
    }

    fn is_void(&self) -> bool {
        self.sectors
            .as_ref()
            .is_some_and(|sectors| sectors.iter().all(|&counts| !counts))
    }
}

impl State {
    pub(super) fn new(image: Paged, seed: u64) -> State {
        State {
            volatile: image.clone(),
            durable: image,
            writes: Vec::new(),
            completed: 0,
            submitted: 0,
            events: 0,
            crash_at: None,
            reorder: true,
            held_read_bytes: 0,
            rules: Rules::default(),
            rng: Rng::new(seed),
        }
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.crash_at.is_some_and(|event| self.events >= event)
    }

    pub(super) fn count_event(&mut self, kind: EventKind) -> Event {
        self.events += 1;
        Event {
            number: self.events,
            kind,
        }
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        self.volatile.read(offset as usize, into);
    }

    pub(super) fn begin_write(&mut self, offset: u64, data: &[u8]) -> WriteId {
        self.submitted += 1;
        self.writes.push(Write {
            id: self.submitted,
            offset: offset as usize,
            data: data.to_vec(),
            completed: None,
            sectors: None,
            doubtful: false,
        });
        self.submitted
    }

    /// Where a write in flight is listed. It is: only its completion lets a flush take it.
    fn position(&self, id: WriteId) -> usize {
        self.writes
            .iter()
            .rposition(|w| w.id == id)
            .expect("a write in flight is listed")
    }

    pub(super) fn complete_write(&mut self, id: WriteId) {
        self.completed += 1;
        let position = self.position(id);
        let write = &mut self.writes[position];
        write.completed = Some(self.completed);
        write.apply_all(&mut self.volatile);
    }

    /// A write that is durable by itself: no other becomes so with it, and those that ended before are below it for good.
    pub(super) fn complete_through(&mut self, id: WriteId) {
        self.complete_write(id);
        let through = self.writes.remove(self.position(id));
        through.apply_all(&mut self.durable);
        for older in self.writes.iter_mut().filter(|w| w.completed.is_some()) {
            older.yield_to(&through);
        }
        self.writes.retain(|w| !w.is_void());
    }

    pub(super) fn forget_write(&mut self, id: WriteId) {
        let position = self.position(id);
        self.writes.remove(position);
    }

    /// A failed write has put a random part of its sectors there; without space, none.
    pub(super) fn fail_write(&mut self, id: WriteId, errno: i32) {
        if errno == Errno::NOSPC.raw_os_error() {
            return self.forget_write(id);
        }
        let position = self.position(id);
        let write = &mut self.writes[position];
        let sectors = (0..write.sector_count()).map(|_| self.rng.coin()).collect();
        write.sectors = Some(sectors);
        self.complete_write(id);
    }

    /// Makes durable what had completed by `covers`, in the order of completion.
    pub(super) fn complete_flush(&mut self, covers: u64) {
        let covered = |w: &Write| !w.doubtful && w.completed.is_some_and(|n| n <= covers);
        let (mut flushed, mut left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.writes)
            .into_iter()
            .partition(covered);
        flushed.sort_unstable_by_key(|w| w.completed);
        for write in &flushed {
            write.apply_all(&mut self.durable);
            for doubtful in left.iter_mut().filter(|w| w.doubtful && w.id < write.id) {
                doubtful.yield_to(write);
            }
        }
        left.retain(|w| !w.is_void());
        self.writes = left;
    }

    /// The device dropped its cache, or may have: what the flush should have covered can survive,
    /// but no later flush vouches for it.
    pub(super) fn fail_flush(&mut self, covers: u64) {
        for write in &mut self.writes {
            write.doubtful |= write.completed.is_some_and(|n| n <= covers);
        }
    }

    pub(super) fn flip_bit(&mut self, offset: usize, mask: u8) {
        self.durable.flip(offset, mask);
        self.volatile.flip(offset, mask);
        for write in &mut self.writes {
            let (start, end) = (write.offset, write.offset + write.data.len());
            if (start..end).contains(&offset) {
                write.data[offset - start] ^= mask;
            }
        }
    }

    /// See [`super::SimDevice::after_crash`]. A quarter of the seeds give the extremes, which
    /// independent tosses would hardly ever meet when many writes are open.
    pub(super) fn after_crash(&self, seed: u64) -> Paged {
        let mut left = self.durable.clone();
        if self.writes.is_empty() {
            return left;
        }
        let image = &mut left;
        let mut rng = Rng::new(seed);
        match rng.below(16) {
            0 => {} // Everything open is lost.
            1 => self.writes.iter().for_each(|w| w.apply_all(image)),
            2 | 3 => self.apply_prefix(image, &mut rng),
            _ => self.apply_each(image, &mut rng),
        }
        left
    }

    /// The device wrote in the order it was asked, and stopped in the middle of a write.
    fn apply_prefix(&self, image: &mut Paged, rng: &mut Rng) {
        let torn = rng.below(self.writes.len());
        self.writes[..torn].iter().for_each(|w| w.apply_all(image));
        self.writes[torn].apply_torn(image, rng);
    }

    /// Each write for itself, in any order: lost, kept or torn.
    fn apply_each(&self, image: &mut Paged, rng: &mut Rng) {
        let mut order: Vec<&Write> = self.writes.iter().collect();
        rng.shuffle(&mut order);
        for write in order {
            match rng.below(3) {
                0 => {}
                1 => write.apply_all(image),
                _ => write.apply_torn(image, rng),
            }
        }
    }
}
