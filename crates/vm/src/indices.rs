//! Faults that go along an array of indices or addresses, taken in the thread that has them: what the array names next comes with what faulted.
//!
//! A loop over `a[index[i]]` (a gather of numpy's, a join, lines that are sorted by pointers) touches pages that lie anywhere, one fault after the other, each a read of its own that the thread waits for. But
//! where they will be stands in memory already, and one of the thread's registers points there. So for each instruction that faults, registers that went on a little since its last
//! fault are looked behind: if what lies there, times the same scale, is as far apart as the two faults are, the instruction's faults go along that array (S. Yu et al., "IMP: Indirect Memory Prefetcher",
//! MICRO 2015, has hardware do this for loads like `A[B[i]]`). An address is an index with scale one. After a fault that bears it out, the pages of the next elements come along, twice as many each time.
//!
//! Promises: bounded by [`policy::ahead_pages`], but for two; a page that cannot be had at once is left to the fault that will ask for it; only the thread's stack and memory that is served are looked at, an array
//! as far as it is there, and no page comes in for that; where what came was not touched next, no more comes. Never: waits for room or for another thread.

use crate::beside::{REGISTERS, Registers};
use crate::policy;
use crate::sys::Lock;

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
/// one less for [`UNEXPLAINED`] that no rule explains, a quarter where the thread went past what it would have touched next. From [`SURE`] on pages come.
pub(crate) const SURE_MAX: u8 = 8;
const SURE: u8 = 3;
/// Two faults have told of it.
const SURE_AT_FIRST: u8 = 2;
const UNEXPLAINED: u32 = 4;
/// Faults in a row that are looked at for a rule, and after how many the next are: a look costs some microseconds, and most instructions go along nothing. The first are not looked at: where
/// many instructions fault, each is forgotten before.
const LOOKS: u32 = 4;
const LOOKS_ONE_IN: u32 = 16;
/// The same for an instruction that was looked at so often without any page that came for it being wanted.
const VAIN_MAX: u8 = 16;
const LOOKS_ONE_IN_VAIN: u32 = 256;
/// Bytes of an array that are looked at for what comes next: a page of it.
pub(crate) const LOOK_BYTES: usize = crate::PAGE_BYTES;
/// Pages brought in by one call.
pub(crate) const TOGETHER_MAX: usize = policy::AHEAD_PAGES_MAX as usize;

/// What lies around an address.
#[derive(Clone, Copy, Default)]
pub(crate) struct Around {
    register: u8,
    /// Where the register pointed to; 0: nothing is known.
    at: usize,
    /// What faulted then.
    address: usize,
    words: [u64; AROUND / 8],
    /// What of it could be read, in bytes.
    from: u8,
    to: u8,
}

impl Around {
    fn of(register: usize, at: usize, address: usize, peek: &mut Peek<'_>) -> Option<Around> {
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
            address,
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
pub(crate) struct Rule {
    pub register: u8,
    /// Bytes of an element.
    pub width: u8,
    /// 0: this is no rule.
    pub sure: u8,
    /// Pages that came with the last fault.
    pub window: u8,
    /// The element that is to fault next then: the first that was left out of them. 0: there was none in what was looked at.
    pub then: usize,
    pub scale: i64,
    pub base: usize,
    /// The element of the last fault.
    pub at: usize,
    /// Bytes from one element to the next, less than 0 where they go down.
    pub step: isize,
}

impl Rule {
    pub fn names(&self, element: i64) -> usize {
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

    /// The instruction is at this element now. Whether pages that came for it were wanted.
    fn goes_on(&mut self, at: usize) -> bool {
        let by = at.wrapping_sub(self.at) as isize;
        let is_near = by != 0 && by.unsigned_abs() <= STEP_BYTES_MAX;
        let is_along = is_near && self.step.signum() == by.signum();
        let past = at.wrapping_sub(self.then) as isize;
        let came = self.window > 0 && is_along;
        let is_past = came && self.then != 0 && past.signum() == by.signum();
        if is_near {
            let before = if is_along {
                self.step.unsigned_abs()
            } else {
                0
            };
            self.step = gcd(before, by.unsigned_abs()) as isize * by.signum();
        }
        self.sure = match (is_past, is_along) {
            (true, _) => self.sure / 4,
            (_, true) => (self.sure + 1).min(SURE_MAX),
            // The same once more: it came and went.
            _ if by == 0 => self.sure,
            _ => self.sure / 2,
        };
        if is_past || !is_along {
            self.window = 0;
        }
        self.at = at;
        came && !is_past
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
pub(crate) struct Site {
    pub key: usize,
    /// How long it stays while others want its place.
    pub stays: u8,
    /// Looks that led to nothing, more than pages that came were wanted.
    pub vain: u8,
    pub faults: u32,
    /// Of the last fault that was looked at.
    pub values: [usize; VALUES],
    pub around: [Around; LOOKED_MAX],
    pub rules: [Rule; RULES],
}

impl Default for Site {
    fn default() -> Site {
        Site {
            key: 0,
            stays: 0,
            vain: 0,
            faults: 0,
            values: [0; VALUES],
            around: [Around::default(); LOOKED_MAX],
            rules: [Rule::default(); RULES],
        }
    }
}

impl Site {
    /// It faults. The number of the rule by which more is to come, if any.
    pub fn faulted(
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
        let found = found.filter(|nth| self.rules[*nth].sure >= SURE);
        if found.is_none() && looks {
            self.vain = (self.vain + 1).min(VAIN_MAX);
            self.learns(address, &values, is_served, peek);
            self.values = values;
        }
        found
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
            let around = Around::of(register, values[register], address, peek);
            let at = around.and_then(|around| rule.explains(address, &around));
            if let Some(at) = at {
                if rule.goes_on(at) {
                    (self.vain, self.stays) = (self.vain.saturating_sub(1), STAYS);
                }
                return Some(nth);
            }
        }
        if self.faults.is_multiple_of(UNEXPLAINED) {
            for rule in &mut self.rules {
                (rule.sure, rule.window) = (rule.sure.saturating_sub(1), 0);
            }
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
        let before = std::mem::take(&mut self.around);
        let last_of = |register: usize| {
            let mut known = before.iter().filter(|last| last.at != 0);
            known.find(|last| usize::from(last.register) == register)
        };
        let went_on = |register: &usize| {
            let value = values[*register];
            let is_near = |before: usize| (1..=STEP_BYTES_MAX).contains(&value.abs_diff(before));
            value > STEP_BYTES_MAX
                && (is_near(self.values[*register])
                    || last_of(*register).is_some_and(|last| is_near(last.at)))
        };
        let mut rule = None;
        let (mut kept, mut len) = ([Around::default(); LOOKED_MAX], 0);
        for register in (0..VALUES).filter(went_on).take(LOOKED_MAX) {
            let Some(now) = Around::of(register, values[register], address, peek) else {
                continue;
            };
            let found = last_of(register).and_then(|last| rule_of(last, &now, &is_served));
            rule = rule.or(found);
            (kept[len], len) = (now, len + 1);
        }
        // Others' faults may lie between two of one array.
        for last in before.iter().filter(|last| last.at != 0) {
            let is_seen = kept[..len].iter().any(|now| now.register == last.register);
            if len < LOOKED_MAX && !is_seen {
                (kept[len], len) = (*last, len + 1);
            }
        }
        self.around = kept;
        if let Some(rule) = rule
            && let Some(least) = self.rules.iter_mut().min_by_key(|rule| rule.sure)
            && least.sure < SURE
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

/// The rule that explains two faults, if there is one.
fn rule_of(last: &Around, now: &Around, is_served: impl Fn(usize) -> bool) -> Option<Rule> {
    let by = now.address.wrapping_sub(last.address) as i64;
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
            let base = now
                .address
                .wrapping_sub(element.wrapping_mul(scale) as usize);
            let is_field = scale == 1 && (base as i64).unsigned_abs() <= FIELD_MAX as u64;
            if (1..=SCALE_MAX).contains(&scale) && (is_field || is_served(base)) {
                return Some(Rule {
                    register: now.register,
                    width: width as u8,
                    sure: SURE_AT_FIRST,
                    window: 0,
                    then: 0,
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
    /// Whether this processor's registers are.
    pub const ARE_SEEN: bool = cfg!(target_arch = "x86_64");

    pub fn new() -> Indices {
        Indices(Lock::new(vec![Site::default(); SITES]))
    }

    /// What is known of an instruction of this thread, for a look without the lock; none if its place is another's, or somebody is at it.
    pub fn site(&self, instruction: usize) -> Option<Site> {
        let key = instruction
            ^ THREAD
                .with(|thread| (&raw const *thread).addr())
                .rotate_left(20);
        let mut sites = self.0.try_lock()?;
        let site = &mut sites[place_of(key)];
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

    pub fn keep(&self, site: Site) {
        // If another thread's site has its place meanwhile, or somebody is at it, what was learnt is lost: it is a hint.
        if let Some(mut sites) = self.0.try_lock() {
            let here = &mut sites[place_of(site.key)];
            if here.key == site.key || here.stays == 0 {
                *here = site;
            }
        }
    }
}

thread_local! {
    /// Its address tells threads apart.
    static THREAD: u8 = const { 0 };
}

fn place_of(key: usize) -> usize {
    let hash = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    hash as usize % SITES
}

/// Pages that are to come.
#[derive(Default)]
pub(crate) struct Pages {
    pub all: [u64; TOGETHER_MAX],
    pub len: usize,
    /// The first element that is left out; 0: none.
    pub then: usize,
}

/// Part of an array from an element on, in the order in which it is gone along.
pub(crate) struct Part {
    pub bytes: [u8; LOOK_BYTES],
    /// Bytes that could be read, and where the first element is in them; the others are `step` bytes apart.
    pub came: usize,
    pub first: usize,
    pub step: isize,
    pub width: usize,
}

impl Part {
    pub fn of(rule: &Rule, peek: &mut Peek<'_>) -> Part {
        let (width, step) = (usize::from(rule.width), rule.step);
        let next = rule.at.wrapping_add_signed(step);
        let mut bytes = [0; LOOK_BYTES];
        let (came, first) = match step < 0 {
            false => (peek(next, &mut bytes), 0),
            true => {
                let end = next.wrapping_add(width);
                let mut read = |len: usize| {
                    let came = peek(end.wrapping_sub(len), &mut bytes[..len]);
                    // It is the end that is wanted.
                    if came == len { len } else { 0 }
                };
                // The page before the one where it ends need not be there.
                let came = match read(LOOK_BYTES) {
                    0 => read(end.wrapping_sub(1) % LOOK_BYTES + 1),
                    all => all,
                };
                (came, came.saturating_sub(width))
            }
        };
        Part {
            bytes,
            came,
            first,
            step,
            width,
        }
    }

    pub fn element(&self, nth: usize) -> Option<i64> {
        let by = self.step.checked_mul(isize::try_from(nth).ok()?)?;
        let at = self.first.checked_add_signed(by)?;
        let element = self.bytes[..self.came].get(at..at.checked_add(self.width)?)?;
        Some(match element.as_array::<8>() {
            Some(element) => i64::from_ne_bytes(*element),
            None => i32::from_ne_bytes(*element.as_array::<4>()?).into(),
        })
    }
}

#[cfg(test)]
mod tests;
