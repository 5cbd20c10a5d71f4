//! Room that is spoken for: on the SSD, promised to arrays, pools, mallocs and regions, or taken by objects of a table that nobody promised for; and in DRAM for
//! the slots of what is promised.
//!
//! Promises: where anything is promised, both together do not exceed what the SSD takes with room to clean, and slots that are promised not what the cap has for them, so what was promised can be stored. Never: waits.

use super::error::ObjectError;
use super::table::State;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_log::addr;

/// Fewer DRAM segments than this in a lane, and updates are refused: the tables have taken the cap.
pub(super) const SEGMENTS_MIN: usize = 6;
/// More than any SSD has, and than is asked for at a time.
const BYTES_MAX: u64 = 1 << 60;

/// See the head of the file.
pub(crate) struct Room {
    promised_bytes: AtomicU64,
    unpromised_bytes: AtomicU64,
    pub max_bytes: u64,
    slots_bytes: AtomicU64,
}

impl Room {
    /// Of a store whose SSD takes so many bytes of entries.
    pub fn new(usable_bytes: u64) -> Room {
        Room {
            promised_bytes: AtomicU64::new(0),
            unpromised_bytes: AtomicU64::new(0),
            max_bytes: usable_bytes / 10 * 9,
            slots_bytes: AtomicU64::new(0),
        }
    }

    /// Promises DRAM for slots, of which the cap has `max_bytes` in all.
    pub fn promise_slots(&self, bytes: u64, max_bytes: u64) -> Result<(), ObjectError> {
        // Nothing can be promised however much others took since.
        let fits = |all: &u64| *all <= max_bytes || bytes == 0;
        let promise = |promised: u64| promised.checked_add(bytes).filter(fits);
        let promised = self
            .slots_bytes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, promise);
        let refused = |promised| ObjectError::Slots {
            asked_bytes: bytes,
            allowed_bytes: max_bytes.saturating_sub(promised),
        };
        promised.map(drop).map_err(refused)
    }

    /// The same for what is in the pool already, whether the cap has it or not.
    pub fn owe_slots(&self, bytes: u64) {
        self.slots_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// What is promised.
    pub fn slots_bytes(&self) -> u64 {
        self.slots_bytes.load(Ordering::SeqCst)
    }

    /// Ends such a promise.
    pub fn end_slots(&self, bytes: u64) {
        take_away(&self.slots_bytes, bytes);
    }

    /// Promises so many bytes, if they are there.
    pub fn promise(&self, bytes: u64) -> Result<(), ObjectError> {
        let most = |_| self.max_bytes;
        add(&self.promised_bytes, &self.unpromised_bytes, bytes, most)
    }

    /// Promises what is in the pool already, whether it fits or not.
    pub fn owe(&self, bytes: u64) {
        self.promised_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Ends a promise.
    pub fn end_promise(&self, bytes: u64) {
        take_away(&self.promised_bytes, bytes);
    }

    /// Takes so many bytes that nobody promised. Where nothing is promised, the SSD itself is the bound.
    pub fn take(&self, bytes: u64) -> Result<(), ObjectError> {
        let most = |promised| match promised {
            0 => BYTES_MAX,
            _ => self.max_bytes,
        };
        add(&self.unpromised_bytes, &self.promised_bytes, bytes, most)
    }

    /// Gives them back.
    pub fn give(&self, bytes: u64) {
        take_away(&self.unpromised_bytes, bytes);
    }
}

/// Added first and looked at then: of two that add to either at a time, one sees the other.
fn add(
    to: &AtomicU64,
    other: &AtomicU64,
    bytes: u64,
    most: impl Fn(u64) -> u64,
) -> Result<(), ObjectError> {
    // More may be owed than there is: what is there is changed all the same.
    if bytes == 0 {
        return Ok(());
    }
    let full = ObjectError::Full { asked_bytes: bytes };
    if bytes > BYTES_MAX {
        return Err(full);
    }
    let after = to.fetch_add(bytes, Ordering::SeqCst) + bytes;
    let other = other.load(Ordering::SeqCst);
    if after + other <= most(other) {
        return Ok(());
    }
    take_away(to, bytes);
    Err(full)
}

/// Not below nothing: a mistake there would refuse all that is asked for from then on.
fn take_away(from: &AtomicU64, bytes: u64) {
    let less = |before: u64| Some(before.saturating_sub(bytes));
    let (Ok(before) | Err(before)) = from.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
}

/// What an object takes of the SSD, as its slot has it.
pub(crate) fn bytes_of(state: State) -> u64 {
    match state {
        State::At(slot) => addr::class_bytes(slot.loc().class()) as u64,
        State::Free | State::Zeros | State::Fill(_) => 0,
    }
}

/// The same of one whose entry would have so many bytes.
pub(crate) fn bytes_for(entry_bytes: usize) -> u64 {
    addr::class_bytes(addr::class_of(entry_bytes)) as u64
}

/// What an entry takes of an SSD with segments of `segment_bytes`: of the end of one, too, into which no other such fits.
pub(crate) fn of_segments(entry_bytes: u64, segment_bytes: u64) -> u64 {
    // Without heads and the padding of writes, about.
    let filled = segment_bytes - segment_bytes / 32;
    match filled / entry_bytes.max(1) {
        0 => segment_bytes,
        few if few < FEW_IN_SEGMENT => segment_bytes / few,
        _ => entry_bytes,
    }
}
/// Of entries of which more are in a segment the end that stays empty is within what is kept free.
const FEW_IN_SEGMENT: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_segment_is_counted_where_it_is_much() {
        let segment = 256 << 10;
        for (entry, takes) in [
            (65_600, segment / 3),
            (60_000, segment / 4),
            (30_000, segment / 8),
            (4_160, 4_160),
            (200_000, segment),
            (300_000, segment),
        ] {
            assert_eq!(of_segments(entry, segment), takes);
        }
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let room = Room::new(1000);
        let full = |asked_bytes| Err(ObjectError::Full { asked_bytes });
        assert_eq!(room.promise(901), full(901));
        assert_eq!(room.promise(u64::MAX), full(u64::MAX));
        // Beyond what may be promised, as long as nothing is.
        assert_eq!((room.take(950), room.promise(1)), (Ok(()), full(1)));
        room.give(900);
        assert_eq!((room.promise(850), room.promise(1)), (Ok(()), full(1)));
        assert_eq!(room.take(1), full(1));
        room.end_promise(850);
        assert_eq!(room.take(1000), Ok(()));
        // What takes nothing is not refused, however much is owed.
        room.owe(2000);
        assert_eq!((room.take(0), room.take(1)), (Ok(()), full(1)));
        room.end_promise(2000);
        let refused = |asked_bytes, allowed_bytes| {
            Err(ObjectError::Slots {
                asked_bytes,
                allowed_bytes,
            })
        };
        assert_eq!(room.promise_slots(70, 100), Ok(()));
        assert_eq!(room.promise_slots(31, 100), refused(31, 30));
        // What others take of the cap may have grown since.
        assert_eq!(room.promise_slots(1, 50), refused(1, 0));
        assert_eq!(room.promise_slots(0, 50), Ok(()));
        assert_eq!(room.promise_slots(u64::MAX, 100), refused(u64::MAX, 30));
        room.end_slots(70);
        assert_eq!(room.promise_slots(100, 100), Ok(()));
    }
}
