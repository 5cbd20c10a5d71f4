//! Room on the SSD that is spoken for: promised to arrays, pools, mallocs and regions, or taken by objects of a table that nobody promised for.
//!
//! Promises: both together never exceed what the SSD takes with room to clean, so what was promised can be stored. Never: waits.

use super::error::ObjectError;
use super::table::State;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_log::addr;

/// See the head of the file.
pub(crate) struct Room {
    taken_bytes: AtomicU64,
    pub max_bytes: u64,
}

impl Room {
    /// Of a store whose SSD takes so many bytes of entries.
    pub fn new(usable_bytes: u64) -> Room {
        Room {
            taken_bytes: AtomicU64::new(0),
            max_bytes: usable_bytes / 10 * 9,
        }
    }

    /// Takes so many bytes, if they are there.
    pub fn take(&self, bytes: u64) -> Result<(), ObjectError> {
        let full = ObjectError::Full { asked_bytes: bytes };
        let taken = |taken: u64| {
            let after = taken.checked_add(bytes)?;
            (after <= self.max_bytes).then_some(after)
        };
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let done = self.taken_bytes.fetch_update(set, get, taken);
        done.map(drop).map_err(|_| full)
    }

    /// Gives bytes back that were taken.
    pub fn give(&self, bytes: u64) {
        let before = self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let room = Room::new(1000);
        assert_eq!(room.take(901), Err(ObjectError::Full { asked_bytes: 901 }));
        assert_eq!(
            room.take(u64::MAX),
            Err(ObjectError::Full {
                asked_bytes: u64::MAX
            })
        );
        assert_eq!((room.take(900), room.take(1).is_err()), (Ok(()), true));
        room.give(100);
        assert_eq!(room.take(100), Ok(()));
    }
}
