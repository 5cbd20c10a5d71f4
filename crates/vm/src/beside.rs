//! Pages that a thread is about to touch. Its registers tell: code that has loaded two pointers and faults on what the first one points to mostly goes on to the second (an element that
//! leaves a list: its neighbours). So does where in its page the fault is: an object whose head lies near the end of one page goes on in the next. They are read at the same time then, where one
//! would be waited for after the other.
//!
//! Which registers of which instruction are worth it, and the page behind or before the one that faults in which eighth of it, is learnt: what may come is remembered until the thread's next
//! fault, and that tells. Once it is brought in, one of [`SAMPLE_EVERY`] faults is left to tell again.
//!
//! Promises: a page that cannot be had at once is left to the fault that will ask for it. Never: reads what a register points to, or waits for room or for another thread.

use crate::PAGE_BYTES;
use crate::fault::Touch;
use crate::memory::Core;
use crate::page::Phase;
use crate::policy::SAMPLE_EVERY;
use crate::space::place;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

/// Registers looked at: all but the stack's.
pub(crate) const REGISTERS: usize = 15;
/// Parts of a page that are told apart where its neighbours may be touched next.
const PARTS: usize = 8;
/// Ways from an instruction to a page, told apart by this many bits of their hash; others share.
const WAYS_BITS: u32 = 13;
/// What is remembered of one fault that may not be sure.
const MAYBE_MAX: usize = 8;
/// Pages that come with one that faults.
const COMES_MAX: usize = 2;
/// How sure it is that a way leads to what is touched next: one more each time that it did, one less each time that it did not.
const SURE_MAX: u8 = 15;
/// From here on it is brought in.
const SURE: u8 = 6;

/// What the processor had when a thread faulted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Registers {
    /// The instruction.
    pub instruction: usize,
    /// What the others hold.
    pub values: [usize; REGISTERS],
}

/// A page that may be touched next, and the way that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Maybe {
    page: u64,
    way: u16,
}

/// What leads from an instruction to another page.
#[derive(Debug, Clone, Copy)]
enum Way {
    Register(usize),
    /// The fault is in this part of its page; the page behind that.
    Behind(usize),
    Before(usize),
}

impl Way {
    /// Where it is remembered how sure that is.
    fn of(self, instruction: usize) -> u16 {
        let way = match self {
            Way::Register(nth) => nth,
            Way::Behind(part) => REGISTERS + part,
            Way::Before(part) => REGISTERS + PARTS + part,
        };
        const { assert!(REGISTERS + 2 * PARTS <= 1 << 5) };
        let hash = ((instruction as u64) << 5 | way as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> (u64::BITS - WAYS_BITS)) as u16
    }
}

/// What the last fault of a thread left open.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    count: u8,
    faults: u32,
    pages: [Maybe; MAYBE_MAX],
}

impl Open {
    /// A page comes: the next fault will not be on it.
    fn drop(&mut self, page: u64) {
        let count = usize::from(self.count);
        if let Some(at) = self.pages[..count].iter().position(|p| p.page == page) {
            self.pages[at] = self.pages[count - 1];
            self.count -= 1;
        }
    }
}

thread_local! {
    static OPEN: Cell<Open> = const { Cell::new(Open { count: 0, faults: 0, pages: [Maybe { page: 0, way: 0 }; MAYBE_MAX] }) };
}

/// Pages that come along.
type Comes = [Option<u64>; COMES_MAX];

/// See the head of the file.
pub(crate) struct Beside {
    sure: [AtomicU8; 1 << WAYS_BITS],
}

impl Beside {
    pub const fn new() -> Beside {
        Beside {
            sure: [const { AtomicU8::new(0) }; 1 << WAYS_BITS],
        }
    }

    fn told(&self, way: u16, touched: bool) {
        let sure = &self.sure[usize::from(way)];
        let now = sure.load(Ordering::Relaxed);
        // Threads that are told at the same time may lose one: it is a tendency.
        let now = match touched {
            true => (now + 1).min(SURE_MAX),
            false => now.saturating_sub(1),
        };
        sure.store(now, Ordering::Relaxed);
    }

    fn is_sure(&self, way: u16) -> bool {
        self.sure[usize::from(way)].load(Ordering::Relaxed) >= SURE
    }

    /// A thread faults on `page`, and ways lead from there to pages that are not there. Which are to come with it; `open` is what it left open before, and leaves now.
    fn beside(&self, open: &mut Open, page: u64, maybe: impl Iterator<Item = Maybe>) -> Comes {
        for before in &open.pages[..usize::from(open.count)] {
            self.told(before.way, before.page == page);
        }
        let faults = open.faults.wrapping_add(1);
        *open = Open {
            faults,
            ..Open::default()
        };
        let (mut comes, mut coming) = ([None; COMES_MAX], 0);
        for maybe in maybe.filter(|maybe| maybe.page != page) {
            let count = usize::from(open.count);
            if comes.contains(&Some(maybe.page)) {
                continue;
            }
            if self.is_sure(maybe.way) && !faults.is_multiple_of(SAMPLE_EVERY) {
                if let Some(place) = comes.get_mut(coming) {
                    *place = Some(maybe.page);
                    coming += 1;
                    open.drop(maybe.page);
                }
            } else if count < MAYBE_MAX && open.pages[..count].iter().all(|p| p.page != maybe.page)
            {
                open.pages[count] = maybe;
                open.count += 1;
            }
        }
        comes
    }
}

/// What the last fault of this thread left open is not to be told by its next: pages came meanwhile that it would have faulted on.
pub(crate) fn forget() {
    OPEN.set(Open {
        count: 0,
        ..OPEN.get()
    });
}

impl Core {
    /// Brings a page that faults in together with those that the thread will touch next, if that can be told. Whether it is there.
    pub fn bring_beside(&self, address: usize, touch: Touch, registers: &Registers) -> bool {
        let Some(page) = self.space.page_at(address) else {
            return false;
        };
        let part = address % PAGE_BYTES * PARTS / PAGE_BYTES;
        let neighbours = [
            (Way::Behind(part), address.wrapping_add(PAGE_BYTES)),
            (Way::Before(part), address.wrapping_sub(PAGE_BYTES)),
        ];
        let held = registers.values.into_iter().enumerate();
        let held = held.map(|(nth, value)| (Way::Register(nth), value));
        let maybe = neighbours
            .into_iter()
            .chain(held)
            .filter_map(|(way, value)| {
                let maybe = self.space.page_at(value)?;
                let is_away = maybe != page && self.is_away(maybe, page);
                is_away.then(|| Maybe {
                    page: maybe,
                    way: way.of(registers.instruction),
                })
            });
        let mut open = OPEN.get();
        let comes = self.beside.beside(&mut open, page, maybe);
        OPEN.set(open);
        if comes[0].is_none() || self.ahead.has_ended() {
            return false;
        }
        // Whether they will be written to is not known.
        let comes = comes.into_iter().flatten();
        self.bring_together(comes, Touch::Read, Some(page), touch)
            .asked
    }

    /// Whether a page seems to be absent, of the region that another one is in.
    fn is_away(&self, page: u64, other: u64) -> bool {
        let (block, at) = place(page);
        let Some(pinned) = self.space.pin_live(block) else {
            return false;
        };
        let phase = self.space.record(pinned).pages[at].look().phase();
        let region = self.space.region(page);
        let is_away = phase == Phase::Absent && region.is_some_and(|region| region.contains(other));
        self.unpin(pinned, 1);
        is_away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maybes(instruction: usize, pages: &[u64]) -> impl Iterator<Item = Maybe> {
        let maybe = move |(nth, page): (usize, &u64)| Maybe {
            page: *page,
            way: Way::Register(nth).of(instruction),
        };
        pages.iter().enumerate().map(maybe)
    }

    /// A thread that takes elements out of lists: it faults on one neighbour, and a register holds the other.
    fn runs(beside: &Beside, goes_on: impl Fn(u64) -> bool) -> usize {
        let (mut open, mut brought) = (Open::default(), 0);
        for n in 0..1000 {
            let (next, previous) = (1_000_000 + n * 7, 5_000_000 + n * 3);
            // Some registers always point to the same.
            let pages = [77, 78, 77, previous, previous, 79];
            let comes = beside.beside(&mut open, next, maybes(0x4042, &pages));
            assert!(
                comes == [None; 2] || comes == [Some(previous), None],
                "nobody ever touches it"
            );
            if comes[0].is_some() {
                brought += 1;
            } else if goes_on(n) {
                let none = beside.beside(&mut open, previous, std::iter::empty());
                assert_eq!(none, [None; 2]);
            }
        }
        brought
    }

    #[test]
    fn what_is_touched_next_comes_along_and_what_is_not_does_not() {
        let beside = Beside::new();
        let brought = runs(&beside, |_| true);
        assert!((900..960).contains(&brought), "{brought}");
        // The program does something else now.
        let brought = runs(&beside, |_| false);
        assert!((50..300).contains(&brought), "{brought}");
        assert_eq!(runs(&beside, |n| n % 3 == 0), 0);
    }

    #[test]
    fn the_page_itself_is_not_one_beside_it_and_few_come() {
        let beside = Beside::new();
        for nth in 0..REGISTERS {
            (0..SURE).for_each(|_| beside.told(Way::Register(nth).of(9), true));
        }
        let mut open = Open::default();
        let mut comes = |pages: &[u64]| beside.beside(&mut open, 5, maybes(9, pages));
        assert_eq!(comes(&[5, 6, 6, 7, 8]), [Some(6), Some(7)]);
        assert_eq!(comes(&[5, 5, 5]), [None; 2]);
    }

    #[test]
    fn ways_from_one_instruction_are_told_apart() {
        let parts = (0..PARTS).flat_map(|part| [Way::Behind(part), Way::Before(part)]);
        let ways = (0..REGISTERS).map(Way::Register).chain(parts);
        let places: std::collections::HashSet<u16> =
            ways.map(|way| way.of(0x55_1234_5678)).collect();
        assert_eq!(places.len(), REGISTERS + 2 * PARTS);
    }
}
