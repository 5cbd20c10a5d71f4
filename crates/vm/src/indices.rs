//! Faults that go along an array of indices or addresses, taken in the thread that has them: what the array names next comes with what faulted.
//!
//! A loop over `a[index[i]]` (a gather of numpy's, a join, lines that are sorted by pointers) touches pages that lie anywhere, one fault after the other, each a read of its own that the thread waits for. But
//! where they will be stands in memory already, and one of the thread's registers points there. So for each instruction that faults, registers that went on a little since its last
//! fault are looked behind: if what lies there, times the same scale, is as far apart as the two faults are, the instruction's faults go along that array (S. Yu et al., "IMP: Indirect Memory Prefetcher",
//! MICRO 2015, does this in hardware, section 3). An address is an index with scale one. After a fault that bears it out, the pages of the next elements come along, twice as many each time.
//!
//! Promises: bounded by [`policy::ahead_pages`]; a page that cannot be had at once is left to the fault that will ask for it; an array is read as far as it is there, and no page comes in for that. Never: waits for
//! room or for another thread.

use crate::beside::{self, REGISTERS, Registers};
use crate::fault::Touch;
use crate::memory::Core;
use crate::policy;
use crate::sys::{Lock, peek};

/// Instructions of which something is known, of each thread.
const SITES: usize = 64;
/// Words of the stack that are looked at as registers are: there functions keep those of who called them.
const STACK_WORDS: usize = 48;
const VALUES: usize = REGISTERS + STACK_WORDS;
/// Faults of other instructions before one that goes along an array gives its place away.
const STAYS: u8 = 32;
/// Bytes around what a register points to that are looked at: half of them before (what was loaded already), half from there on.
const AROUND: usize = 64;
/// What a register may go on by from one fault to the next: between them are elements that did not fault. As much as is looked at for what comes next.
const STEP_BYTES_MAX: usize = LOOK_BYTES;
/// Registers and words of the stack that are looked behind.
const LOOKED_MAX: usize = 6;
/// Arrays that one instruction may go along in turn (the two sides of a comparison).
const RULES: usize = 2;
/// Bytes from one element of what is indexed to the next, at most.
const SCALE_MAX: i64 = 4096;
/// Bytes from where an address in an array points to what is touched, at most.
const FIELD_MAX: i64 = 4096;
/// How sure a rule is: one more for each fault further along the same array, half for one elsewhere (another array; or what lies around a register is only where the address was taken from),
/// one less for each that no rule explains. From [`SURE`] on pages come.
const SURE_MAX: u8 = 8;
const SURE: u8 = 3;
/// Faults in a row that are looked at for a rule, and after how many the next are: a look costs some microseconds, and most instructions go along nothing. The first are not looked at: where
/// many instructions fault, each is forgotten before.
const LOOKS: u32 = 4;
const LOOKS_ONE_IN: u32 = 16;
/// The same for an instruction that was looked at so often in vain.
const VAIN_MAX: u8 = 16;
const LOOKS_ONE_IN_VAIN: u32 = 256;
/// Bytes of an array that are looked at for what comes next: a page of it.
const LOOK_BYTES: usize = crate::PAGE_BYTES;
/// Pages brought in by one call.
const TOGETHER_MAX: usize = policy::AHEAD_PAGES_MAX as usize;

/// What lies around an address.
#[derive(Clone, Copy, Default)]
struct Around {
    register: u8,
    /// Where the register pointed to; 0: nothing is known.
    at: usize,
    words: [u64; AROUND / 8],
    /// What of it could be read, in bytes.
    from: u8,
    to: u8,
}

impl Around {
    fn of(register: usize, at: usize, peek: &mut Peek<'_>) -> Option<Around> {
        const HALF: usize = AROUND / 2;
        let mut bytes = [0; AROUND];
        let (behind, before) = match peek(at.wrapping_sub(HALF), &mut bytes) {
            AROUND => (HALF, HALF),
            // Where it begins, or ends.
            came if came >= HALF => (came - HALF, HALF),
            _ => (peek(at, &mut bytes[HALF..]), 0),
        };
        (behind + before > 0).then(|| Around {
            register: register as u8,
            at,
            words: std::array::from_fn(|nth| {
                let word = bytes.as_chunks::<8>().0[nth];
                u64::from_ne_bytes(word)
            }),
            from: (HALF - before) as u8,
            to: (HALF + behind) as u8,
        })
    }

    /// The element of `width` bytes at a place within, if it could be read.
    fn element(&self, place: usize, width: usize) -> Option<i64> {
        let is_known = place >= self.from.into() && place + width <= self.to.into();
        let word = self.words[place / 8];
        is_known.then(|| match width {
            8 => word as i64,
            _ => (word >> (place % 8 * 8)) as i32 as i64,
        })
    }

    /// Places of elements of `width` bytes within; none where it points between two.
    fn places(&self, width: usize) -> impl Iterator<Item = usize> + use<> {
        let is_whole = self.at.is_multiple_of(width);
        (0..AROUND).step_by(width).filter(move |_| is_whole)
    }

    fn address_of(&self, place: usize) -> usize {
        self.at.wrapping_sub(AROUND / 2).wrapping_add(place)
    }
}

/// Reads from an address: how many bytes came.
type Peek<'a> = dyn FnMut(usize, &mut [u8]) -> usize + 'a;

/// What an instruction touches: at `base`, `scale` times what is around what a register points to.
#[derive(Clone, Copy, Default)]
struct Rule {
    register: u8,
    /// Bytes of an element.
    width: u8,
    /// 0: this is no rule.
    sure: u8,
    /// Pages that came with the last fault.
    window: u8,
    scale: i64,
    base: usize,
    /// The element of the last fault.
    at: usize,
    /// Bytes from one element to the next, less than 0 where they go down.
    step: isize,
}

impl Rule {
    fn names(&self, element: i64) -> usize {
        self.base
            .wrapping_add(element.wrapping_mul(self.scale) as usize)
    }

    /// Where the element is that names `address`, if there is one: that nearest to where it should be.
    fn explains(&self, address: usize, around: &Around) -> Option<usize> {
        let width = usize::from(self.width);
        let expected = self.at.wrapping_add_signed(self.step);
        let places = around.places(width);
        let names = |place: &usize| {
            let element = around.element(*place, width);
            element.is_some_and(|element| self.names(element) == address)
        };
        let found = places.filter(names).map(|place| around.address_of(place));
        found.min_by_key(|at| at.abs_diff(expected))
    }

    /// The instruction is at this element now.
    fn goes_on(&mut self, at: usize) {
        let by = at.wrapping_sub(self.at) as isize;
        let is_near = by != 0 && by.unsigned_abs() <= STEP_BYTES_MAX;
        let is_along = is_near && self.step.signum() == by.signum();
        if is_near {
            let before = if is_along {
                self.step.unsigned_abs()
            } else {
                0
            };
            self.step = gcd(before, by.unsigned_abs()) as isize * by.signum();
        }
        self.sure = match is_along {
            true => (self.sure + 1).min(SURE_MAX),
            false => (self.sure / 2).max(1),
        };
        self.at = at;
    }
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

/// What is known of an instruction of a thread.
#[derive(Clone, Copy)]
struct Site {
    key: usize,
    /// How long it stays while others want its place.
    stays: u8,
    /// Faults in a row that nothing was found for.
    vain: u8,
    faults: u32,
    /// Of its last fault.
    address: usize,
    values: [usize; VALUES],
    around: [Around; LOOKED_MAX],
    rules: [Rule; RULES],
}

impl Default for Site {
    fn default() -> Site {
        Site {
            key: 0,
            stays: 0,
            vain: 0,
            faults: 0,
            address: 0,
            values: [0; VALUES],
            around: [Around::default(); LOOKED_MAX],
            rules: [Rule::default(); RULES],
        }
    }
}

impl Site {
    /// It faults. The number of the rule by which more is to come, if any.
    fn faulted(
        &mut self,
        address: usize,
        registers: &Registers,
        is_served: impl Fn(usize) -> bool,
        peek: &mut Peek<'_>,
    ) -> Option<usize> {
        self.faults = self.faults.wrapping_add(1);
        let one_in = match self.vain < VAIN_MAX {
            true => LOOKS_ONE_IN,
            false => LOOKS_ONE_IN_VAIN,
        };
        // Three faults make a rule: what went on, what lay there, and what lies there now.
        let looks = self.faults % one_in >= one_in - LOOKS;
        if !looks && self.rules.iter().all(|rule| rule.sure == 0) {
            return None;
        }
        let values = values(registers, peek);
        let found = self.explained(address, &values, peek);
        if found.is_some() {
            (self.vain, self.stays) = (0, STAYS);
        } else if looks {
            self.vain = (self.vain + 1).min(VAIN_MAX);
            self.learns(address, &values, is_served, peek);
        }
        (self.address, self.values) = (address, values);
        found.filter(|nth| self.rules[*nth].sure >= SURE)
    }

    fn explained(
        &mut self,
        address: usize,
        values: &[usize; VALUES],
        peek: &mut Peek<'_>,
    ) -> Option<usize> {
        let rules = (0..).zip(&mut self.rules);
        for (nth, rule) in rules.filter(|(_, rule)| rule.sure > 0) {
            let register = usize::from(rule.register);
            let around = Around::of(register, values[register], peek);
            let at = around.and_then(|around| rule.explains(address, &around));
            if let Some(at) = at {
                rule.goes_on(at);
                return Some(nth);
            }
        }
        for rule in &mut self.rules {
            (rule.sure, rule.window) = (rule.sure.saturating_sub(1), 0);
        }
        None
    }

    /// Looks behind registers that went on a little, and at what lay there the last time.
    fn learns(
        &mut self,
        address: usize,
        values: &[usize; VALUES],
        is_served: impl Fn(usize) -> bool,
        peek: &mut Peek<'_>,
    ) {
        let by = address.wrapping_sub(self.address) as i64;
        let before = std::mem::take(&mut self.around);
        let went_on = |register: &usize| {
            let by = values[*register].abs_diff(self.values[*register]);
            by != 0 && by <= STEP_BYTES_MAX && values[*register] > STEP_BYTES_MAX
        };
        let registers = (0..VALUES).filter(went_on).take(LOOKED_MAX);
        let mut found = None;
        for (register, kept) in registers.zip(&mut self.around) {
            let Some(around) = Around::of(register, values[register], peek) else {
                continue;
            };
            *kept = around;
            let last = before
                .iter()
                .find(|last| last.at != 0 && usize::from(last.register) == register);
            if let Some(last) = last.filter(|_| found.is_none()) {
                found = rule_of(address, by, last, &around, &is_served);
            }
        }
        if let Some(rule) = found
            && let Some(least) = self.rules.iter_mut().min_by_key(|rule| rule.sure)
        {
            *least = rule;
        }
    }
}

/// What registers and the end of the stack hold.
fn values(registers: &Registers, peek: &mut Peek<'_>) -> [usize; VALUES] {
    let mut stack = [0; STACK_WORDS * 8];
    peek(registers.stack, &mut stack);
    let stack = stack.as_chunks::<8>().0;
    std::array::from_fn(|nth| match nth.checked_sub(REGISTERS) {
        None => registers.values[nth],
        Some(nth) => usize::from_ne_bytes(stack[nth]),
    })
}

/// The rule that explains two faults which are `by` bytes apart, if there is one.
fn rule_of(
    address: usize,
    by: i64,
    last: &Around,
    now: &Around,
    is_served: impl Fn(usize) -> bool,
) -> Option<Rule> {
    for width in [8, 4] {
        // It points to whole elements each time, or never.
        let places = last.places(width).zip(now.places(width));
        for (_, place) in places {
            let (Some(then), Some(element)) =
                (last.element(place, width), now.element(place, width))
            else {
                continue;
            };
            let apart = element.wrapping_sub(then);
            let at = now.address_of(place);
            let step = at.wrapping_sub(last.address_of(place)) as isize;
            if apart == 0 || step == 0 || by.checked_rem(apart) != Some(0) {
                continue;
            }
            let scale = by / apart;
            let base = address.wrapping_sub(element.wrapping_mul(scale) as usize);
            let is_field = scale == 1 && (base as i64).unsigned_abs() <= FIELD_MAX as u64;
            if (1..=SCALE_MAX).contains(&scale) && (is_field || is_served(base)) {
                return Some(Rule {
                    register: now.register,
                    width: width as u8,
                    sure: 1,
                    window: 0,
                    scale,
                    base,
                    at,
                    step,
                });
            }
        }
    }
    None
}

/// See the head of the file.
pub(crate) struct Indices(Lock<Vec<Site>>);

impl Indices {
    /// DRAM it takes.
    pub const BYTES: usize = SITES * size_of::<Site>();

    pub fn new() -> Indices {
        Indices(Lock::new(vec![Site::default(); SITES]))
    }

    /// What is known of an instruction of this thread, for a look without the lock; none if its place is another's, or somebody is at it.
    fn site(&self, instruction: usize) -> Option<Site> {
        let key = instruction
            ^ THREAD
                .with(|thread| (&raw const *thread).addr())
                .rotate_left(20);
        let mut sites = self.0.try_lock()?;
        let site = &mut sites[place(key)];
        if site.key != key {
            if site.stays > 0 {
                site.stays -= 1;
                return None;
            }
            *site = Site {
                key,
                ..Site::default()
            };
        }
        Some(*site)
    }

    fn keep(&self, site: Site) {
        // What another thread learnt meanwhile in its place is lost: it is a hint.
        if let Some(mut sites) = self.0.try_lock() {
            sites[place(site.key)] = site;
        }
    }
}

thread_local! {
    /// Its address tells threads apart.
    static THREAD: u8 = const { 0 };
}

fn place(key: usize) -> usize {
    let hash = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    hash as usize % SITES
}

/// Pages that are to come.
struct Pages {
    all: [u64; TOGETHER_MAX],
    len: usize,
}

impl Core {
    /// Brings a page that faults in together with those that the thread will touch next, if it goes along an array that tells. Whether it is there.
    pub fn bring_indexed(&self, address: usize, touch: Touch, registers: &Registers) -> bool {
        let Some((indices, page)) = self.indices.as_ref().zip(self.space.page_at(address)) else {
            return false;
        };
        let Some(mut site) = indices.site(registers.instruction) else {
            return false;
        };
        let is_served = |base| self.space.page_at(base).is_some();
        let found = site.faulted(address, registers, is_served, &mut peek);
        let pages = found.map(|nth| {
            let most = policy::ahead_pages(self.pages_now()) as usize;
            let rule = &mut site.rules[nth];
            rule.window = (rule.window * 2).clamp(2, most.clamp(2, TOGETHER_MAX) as u8);
            self.named_by(rule, page)
        });
        indices.keep(site);
        let Some(pages) = pages.filter(|pages| pages.len > 0) else {
            return false;
        };
        if self.ahead.has_ended() {
            return false;
        }
        // The next fault is not one that the last told of.
        beside::forget();
        let pages = pages.all[..pages.len].iter().copied();
        self.bring_together(pages, touch, Some(page), touch).asked
    }

    /// Pages that the next elements name and that are not there, of the region of `page` and without it: as many as the rule's window.
    fn named_by(&self, rule: &Rule, page: u64) -> Pages {
        let mut pages = Pages {
            all: [0; TOGETHER_MAX],
            len: 0,
        };
        let mut bytes = [0; LOOK_BYTES];
        let (width, by) = (usize::from(rule.width), rule.step.unsigned_abs());
        let next = rule.at.wrapping_add_signed(rule.step);
        let is_down = rule.step < 0;
        let (from, len) = match is_down {
            false => (next, LOOK_BYTES),
            // What lies before, as far as the page that it begins in goes.
            true => {
                let end = next.wrapping_add(width);
                let len = end.wrapping_sub(1) % LOOK_BYTES + 1;
                (end.wrapping_sub(len), len)
            }
        };
        let came = peek(from, &mut bytes[..len]);
        let count = came.saturating_sub(width) / by.max(1) + usize::from(came >= width);
        let here = self.space.slot_of(page);
        for nth in 0..count {
            let at = match is_down {
                false => nth * by,
                true => came - width - nth * by,
            };
            let element = &bytes[at..at + width];
            let element = match element.as_array::<8>() {
                Some(element) => i64::from_ne_bytes(*element),
                None => element
                    .as_array::<4>()
                    .map_or(0, |element| i32::from_ne_bytes(*element).into()),
            };
            let Some(other) = self.space.page_at(rule.names(element)) else {
                continue;
            };
            let is_new = other != page && !pages.all[..pages.len].contains(&other);
            if is_new && self.space.slot_of(other) == here && self.is_away(other, page) {
                pages.all[pages.len] = other;
                pages.len += 1;
                if pages.len == usize::from(rule.window) {
                    break;
                }
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests;
