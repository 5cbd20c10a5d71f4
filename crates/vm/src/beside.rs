//! Pages that a thread is about to touch, as its registers tell: code that has loaded two pointers and faults on what the first one points to mostly goes on to the second (an element that
//! leaves a list: its neighbours). Both are read at the same time then, where one would be waited for after the other.
//!
//! As good as a register is how far from the one access the next is, where that is always the same (sqlite3 looks at the header of a page of its own, which lies behind it, and then at its beginning).
//! And so is the page behind, by which eighth of its own page the access is in: a value that begins in the last kilobyte, and is copied, goes on there (ADR 0080).
//!
//! Which registers of which instruction are worth it is learnt: what a register pointed to is remembered until the thread's next fault, and that tells. Once it is brought in, one of
//! [`SAMPLE_EVERY`] faults is left to tell again.
//!
//! Promises: a page that cannot be had at once is left to the fault that will ask for it. Never: reads what a register points to, or waits for room or for another thread.

use crate::PAGE_BYTES;
use crate::policy::SAMPLE_EVERY;
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicU8, Ordering};

/// Registers looked at: all but the stack's.
pub(crate) const REGISTERS: usize = 15;
/// What stands beside them as one: where the next access is, if it is as far away as the last time.
const NEAR: usize = REGISTERS;
/// And the page behind, from each eighth of a page on.
const BEHIND: usize = NEAR + 1;
const EIGHTHS: usize = 8;
/// All of these.
const TOLD_BY: usize = BEHIND + EIGHTHS;
/// What comes along with one fault.
pub(crate) const COMES_MAX: usize = 2;
/// How far that may be, in bytes.
const NEAR_MAX: isize = 64 << 10;
/// Instructions told apart; others share.
const SITES: usize = 512;
/// What is remembered of one fault that may not be sure.
const POINTED_MAX: usize = 8;
/// How sure it is that what a register points to is touched next: one more each time that it was, one less each time that it was not.
const SURE_MAX: u8 = 15;
/// From here on it is brought in.
const SURE: u8 = 6;

/// What the processor had when a thread faulted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Registers {
    /// The instruction.
    pub instruction: usize,
    /// Where its stack ends.
    pub stack: usize,
    /// What the others hold.
    pub values: [usize; REGISTERS],
}

/// A page that a register pointed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pointed {
    pub page: u64,
    pub register: u8,
}

impl Pointed {
    /// Whether both are to be told of: one register of those that name a page is enough.
    fn is_other(&self, than: &Pointed) -> bool {
        let is_behind = |of: &Pointed| usize::from(of.register) >= BEHIND;
        self.page != than.page || is_behind(self) != is_behind(than)
    }
}

/// What the last fault of a thread left open.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    site: u16,
    count: u8,
    faults: u32,
    /// Where it was; 0: not to be told of.
    address: usize,
    pages: [Pointed; POINTED_MAX],
}

thread_local! {
    static OPEN: Cell<Open> = const { Cell::new(Open { site: 0, count: 0, faults: 0, address: 0, pages: [Pointed { page: 0, register: 0 }; POINTED_MAX] }) };
}

/// See the head of the file.
pub(crate) struct Beside {
    sure: [[AtomicU8; TOLD_BY]; SITES],
    /// How far the next access was from the last one, bytes.
    near: [AtomicIsize; SITES],
}

impl Beside {
    pub const fn new() -> Beside {
        Beside {
            sure: [const { [const { AtomicU8::new(0) }; TOLD_BY] }; SITES],
            near: [const { AtomicIsize::new(0) }; SITES],
        }
    }

    fn site(instruction: usize) -> u16 {
        let hash = (instruction as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (hash as usize % SITES) as u16
    }

    fn told(&self, site: u16, register: u8, touched: bool) {
        let sure = &self.sure[usize::from(site)][usize::from(register)];
        let now = sure.load(Ordering::Relaxed);
        // Threads that are told at the same time may lose one: it is a tendency.
        let now = match touched {
            true => (now + 1).min(SURE_MAX),
            false => now.saturating_sub(1),
        };
        sure.store(now, Ordering::Relaxed);
    }

    fn is_sure(&self, site: u16, register: u8) -> bool {
        self.sure[usize::from(site)][usize::from(register)].load(Ordering::Relaxed) >= SURE
    }

    /// Takes note of how far two accesses in a row are from each other, where nothing is known of that.
    fn told_near(&self, site: u16, by: isize) {
        let site = usize::from(site);
        let is_free = self.sure[site][NEAR].load(Ordering::Relaxed) == 0;
        if is_free && by.abs() <= NEAR_MAX {
            self.near[site].store(by, Ordering::Relaxed);
        }
    }

    /// Where the next access would be then; where the processor's registers are not seen, nowhere.
    pub fn near(&self, address: usize, instruction: usize) -> usize {
        if instruction == 0 {
            return 0;
        }
        let site = usize::from(Beside::site(instruction));
        address.wrapping_add_signed(self.near[site].load(Ordering::Relaxed))
    }

    /// What stands for the page behind, for an access at an address.
    pub fn behind(address: usize) -> u8 {
        (BEHIND + address % PAGE_BYTES / (PAGE_BYTES / EIGHTHS)) as u8
    }

    /// The calling thread faults on `page` at an address, and its registers point to pages that are not there. Which are to come with it.
    pub fn comes(
        &self,
        at: (usize, u64),
        instruction: usize,
        pointed: impl Iterator<Item = Pointed>,
    ) -> [Option<Pointed>; COMES_MAX] {
        let mut open = OPEN.get();
        let comes = self.beside(&mut open, at, instruction, pointed);
        OPEN.set(open);
        comes
    }

    /// A thread faults on `page`, and its registers point to pages that are not there. Which are to come with it; `open` is what it left open before, and leaves now.
    fn beside(
        &self,
        open: &mut Open,
        (address, page): (usize, u64),
        instruction: usize,
        pointed: impl Iterator<Item = Pointed>,
    ) -> [Option<Pointed>; COMES_MAX] {
        for before in &open.pages[..usize::from(open.count)] {
            self.told(open.site, before.register, before.page == page);
        }
        if open.address != 0 {
            self.told_near(open.site, address.wrapping_sub(open.address) as isize);
        }
        let (site, mut comes) = (Beside::site(instruction), [None; COMES_MAX]);
        let faults = open.faults.wrapping_add(1);
        *open = Open {
            site,
            faults,
            address,
            ..Open::default()
        };
        for pointed in pointed.filter(|pointed| pointed.page != page) {
            let count = usize::from(open.count);
            if self.is_sure(site, pointed.register) && !faults.is_multiple_of(SAMPLE_EVERY) {
                let is_new =
                    |other: &&mut Option<Pointed>| other.is_none_or(|o| o.page == pointed.page);
                if let Some(free) = comes.iter_mut().find(is_new) {
                    *free = free.or(Some(pointed));
                }
            } else if count < POINTED_MAX
                && open.pages[..count].iter().all(|p| p.is_other(&pointed))
            {
                open.pages[count] = pointed;
                open.count += 1;
            }
        }
        // What comes is not faulted on, whoever else named it.
        let count = usize::from(open.count);
        let mut kept = 0;
        for at in 0..count {
            let left = open.pages[at];
            if comes.iter().flatten().all(|other| other.page != left.page) {
                (open.pages[kept], kept) = (left, kept + 1);
            }
        }
        open.count = kept as u8;
        comes
    }
}

/// What the last fault of this thread left open is not to be told by its next: pages came meanwhile that it would have faulted on.
pub(crate) fn forget() {
    OPEN.set(Open {
        count: 0,
        address: 0,
        ..OPEN.get()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(page: u64) -> (usize, u64) {
        (page as usize * PAGE_BYTES, page)
    }

    #[test]
    fn what_is_always_as_far_away_comes_along() {
        let beside = Beside::new();
        let (mut open, mut brought) = (Open::default(), 0);
        for n in 0..1000usize {
            // A header, then what lies 4,102 bytes before it; now and then something else first.
            let header = (1000 + n * 77) * PAGE_BYTES + n * 531 % PAGE_BYTES;
            let page = |address: usize| (address / PAGE_BYTES) as u64;
            let near = Pointed {
                page: page(beside.near(header, 0x33f9)),
                register: NEAR as u8,
            };
            let comes = beside.beside(
                &mut open,
                (header, page(header)),
                0x33f9,
                [near].into_iter(),
            );
            let then = header - 4102;
            match comes[0] {
                Some(comes) => {
                    assert_eq!(comes.page, page(then));
                    brought += 1;
                }
                None => {
                    let other = if n % 10 == 9 { header + 999_999 } else { then };
                    let at = (other, page(other));
                    let none = beside.beside(&mut open, at, 0x8984, std::iter::empty());
                    assert_eq!(none, [None; COMES_MAX]);
                }
            }
        }
        assert!((850..960).contains(&brought), "{brought}");
    }

    /// A thread that takes elements out of lists: it faults on one neighbour, and a register holds the other.
    fn runs(beside: &Beside, goes_on: impl Fn(u64) -> bool) -> usize {
        let (mut open, mut brought) = (Open::default(), 0);
        for n in 0..1000 {
            let (next, previous) = (1_000_000 + n * 7, 5_000_000 + n * 3);
            // Some registers always point to the same.
            let pages = [77, 78, 77, previous, previous, 79];
            let pointed = (0..).zip(pages);
            let pointed = pointed.map(|(register, page)| Pointed { page, register });
            let comes = beside.beside(&mut open, at(next), 0x4042, pointed);
            assert!(
                comes.iter().flatten().all(|other| other.page == previous),
                "nobody ever touches it"
            );
            if comes[0].is_some() {
                brought += 1;
            } else if goes_on(n) {
                let none = beside.beside(&mut open, at(previous), 0x404f, std::iter::empty());
                assert_eq!(none, [None; COMES_MAX]);
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
    fn the_page_itself_is_not_one_beside_it() {
        let beside = Beside::new();
        for register in 0..REGISTERS as u8 {
            (0..SURE).for_each(|_| beside.told(Beside::site(9), register, true));
        }
        let pages = |pages: [u64; 3]| {
            let pointed = (0..).zip(pages);
            pointed.map(|(register, page)| Pointed { page, register })
        };
        let mut open = Open::default();
        let mut comes = |others| {
            let comes = beside.beside(&mut open, at(5), 9, pages(others));
            comes.map(|other| other.map(|other| other.page))
        };
        assert_eq!(comes([5, 6, 7]), [Some(6), Some(7)]);
        assert_eq!(comes([6, 6, 5]), [Some(6), None]);
        assert_eq!(comes([5, 5, 5]), [None; COMES_MAX]);
        assert_eq!(open.count, 0);
    }

    #[test]
    fn a_register_that_names_the_page_behind_is_learnt_beside_it() {
        let beside = Beside::new();
        let mut open = Open::default();
        let page = |address: usize| (address / PAGE_BYTES) as u64;
        // A register always tells the next access; from the sixth eighth on it is behind in one of three cases.
        for n in 0..600usize {
            let header = (1000 + n * 77) * PAGE_BYTES + 2700;
            let next = if n % 3 == 0 {
                header + 1500
            } else {
                header + 1_000_000
            };
            let pages = [(page(header) + 1, Beside::behind(header)), (page(next), 3)];
            let pointed = pages.map(|(page, register)| Pointed { page, register });
            let comes = beside.beside(&mut open, (header, page(header)), 0x71, pointed.into_iter());
            if comes[0].is_none() {
                beside.beside(&mut open, (next, page(next)), 0x72, std::iter::empty());
            }
        }
        let site = Beside::site(0x71);
        assert!(beside.is_sure(site, 3) && !beside.is_sure(site, Beside::behind(2700)));
    }

    /// Values of 1,100 bytes at any place, copied whole, and such of which only the header is looked at.
    #[test]
    fn what_goes_on_in_the_page_behind_comes_along() {
        let beside = Beside::new();
        let (mut open, mut brought, mut crossing) = (Open::default(), 0, 0);
        for n in 0..4000usize {
            let header = (1000 + n * 77) * PAGE_BYTES + n * 3571 % PAGE_BYTES;
            let page = |address: usize| (address / PAGE_BYTES) as u64;
            let behind = Pointed {
                page: page(header) + 1,
                register: Beside::behind(header),
            };
            let is_copied = n % 2 == 0;
            let site = if is_copied { 0x5001 } else { 0x6002 };
            let at = (header, page(header));
            let comes = beside.beside(&mut open, at, site, [behind].into_iter());
            let goes_on = is_copied && page(header + 1100) != page(header);
            crossing += usize::from(goes_on);
            match comes[0] {
                Some(comes) => {
                    assert!(is_copied && comes == behind);
                    assert!(header % PAGE_BYTES >= PAGE_BYTES / 8 * 5);
                    brought += usize::from(goes_on);
                }
                None if goes_on => {
                    let at = ((page(header) as usize + 1) * PAGE_BYTES, page(header) + 1);
                    beside.beside(&mut open, at, 0x7003, std::iter::empty());
                }
                None => {}
            }
        }
        assert!(brought * 10 > crossing * 8, "{brought} of {crossing}");
    }
}
