//! A run of pages cut into allocations of one size, and which of them are taken: all of it outside of the pages.
//!
//! Promises: an address that is not the start of an allocation that is there is told from one that is. Never: touches the pages.

use super::class::{class_bytes, span_slots};

/// One span.
pub(super) struct Span {
    /// The first of its pages in the region.
    pub first_page: u32,
    /// A bit for each allocation: set, taken.
    taken: Box<[u64]>,
    pub used: u32,
    /// Allocations from here on were never taken, and their bytes are zeros.
    fresh: u32,
    slots: u32,
}

/// Why an allocation cannot be freed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Not where one starts.
    Inside,
    /// It is not taken.
    Free,
}

impl Span {
    /// Without allocations, on pages that are zeros or not.
    pub fn new(class: usize, first_page: u32, zeros: bool) -> Span {
        let slots = span_slots(class);
        Span {
            first_page,
            taken: vec![0; slots.div_ceil(64)].into(),
            used: 0,
            fresh: if zeros { 0 } else { slots as u32 },
            slots: slots as u32,
        }
    }

    /// DRAM that a span of a class takes, its places in the lists included.
    pub fn bytes(class: usize) -> usize {
        size_of::<Span>() + span_slots(class).div_ceil(64) * 8 + 16
    }

    pub fn is_full(&self) -> bool {
        self.used == self.slots
    }

    /// Takes the lowest that is free: which, and whether its bytes are zeros.
    pub fn take(&mut self) -> Option<(usize, bool)> {
        if self.is_full() {
            return None;
        }
        let word = self.taken.iter().position(|word| *word != u64::MAX)?;
        let slot = word as u32 * 64 + self.taken[word].trailing_ones();
        self.taken[word] |= 1 << (slot % 64);
        self.used += 1;
        let zeros = slot >= self.fresh;
        self.fresh = self.fresh.max(slot + 1);
        Some((slot as usize, zeros))
    }

    /// Which allocation starts `offset` bytes into the span.
    pub fn slot_at(&self, class: usize, offset: usize) -> Result<usize, Wrong> {
        let (slot, within) = (offset / class_bytes(class), offset % class_bytes(class));
        if within != 0 || slot >= self.slots as usize {
            return Err(Wrong::Inside);
        }
        match self.taken[slot / 64] >> (slot % 64) & 1 {
            1 => Ok(slot),
            _ => Err(Wrong::Free),
        }
    }

    /// Frees one that [`Span::slot_at`] found.
    pub fn give(&mut self, slot: usize) {
        debug_assert!(self.taken[slot / 64] >> (slot % 64) & 1 == 1);
        self.taken[slot / 64] &= !(1 << (slot % 64));
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::class_of;
    use super::*;

    #[test]
    fn a_span_hands_out_each_once_and_knows_what_is_free() {
        let class = class_of(100, 16).expect("small");
        let mut span = Span::new(class, 7, true);
        let slots = span_slots(class);
        for n in 0..slots {
            assert_eq!(span.take(), Some((n, true)));
        }
        assert_eq!(span.take(), None);
        let at = |n: usize| n * class_bytes(class);
        assert_eq!(span.slot_at(class, at(3) + 16), Err(Wrong::Inside));
        assert_eq!(span.slot_at(class, at(slots)), Err(Wrong::Inside));
        assert_eq!(span.slot_at(class, at(3)), Ok(3));
        span.give(3);
        assert_eq!(span.slot_at(class, at(3)), Err(Wrong::Free));
        assert_eq!(span.take(), Some((3, false)), "used before, so not zeros");
        assert!(span.is_full());
    }
}
