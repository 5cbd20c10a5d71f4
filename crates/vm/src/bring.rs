//! What is brought in with a page that faults, by what was learnt of earlier faults: what follows it (`ahead`), what registers point to (`beside`), what arrays name (`follow`, `indices`).
//!
//! Promises: a page that cannot be had so is left to the fault that will ask for it. Never: waits for room.

use crate::PAGE_BYTES;
use crate::ahead::Window;
use crate::beside::{self, Beside, Pointed, Registers};
use crate::follow::{self, Follow, Object, PAGES_OF_TURN};
use crate::indices::{LOOK_BYTES, Pages, Part, Rule, SURE_MAX, TOGETHER_MAX};
use crate::page::Phase;
use crate::parts::Core;
use crate::policy;
use crate::space::place;
use crate::sys::peek;
use crate::touch::Touch;

impl Core {
    /// Brings in what follows a page that faults, if faults come in sequence. Whether the page itself was filled with them.
    pub fn bring_ahead(&self, address: usize, touch: Touch) -> bool {
        let Some(page) = self.space.page_at(address) else {
            return false;
        };
        let pages_max = self.pages_now();
        let most = policy::ahead_pages(pages_max);
        let may = |window: Window| match window.pages > most {
            true => {
                let pages = window.pages.min(policy::ahead_absent_pages(pages_max));
                self.absent_of(page, Window { pages, ..window }).max(most)
            }
            false => window.pages,
        };
        let Some(window) = self.ahead.window(page, may) else {
            return false;
        };
        if window.pages == 0 || self.is_closed(page) {
            return false;
        }
        let (mut pages, mut left) = (window.of(page), window.pages);
        while left > most {
            let some = pages.by_ref().take(most as usize);
            if !self.bring_together(some, touch, None, touch).whole {
                return false;
            }
            left -= most;
        }
        // The one that faulted last, since the thread goes on as soon as it is there.
        self.bring_together(pages, touch, Some(page), touch).asked
    }

    /// Whether nothing comes ahead where a page lies.
    fn is_closed(&self, page: u64) -> bool {
        self.ahead.is_closed(std::iter::once(page))
    }

    /// How many of a window's first pages the backing does not have.
    fn absent_of(&self, page: u64, window: Window) -> u64 {
        let (block, _) = place(page);
        let Ok(pinned) = self.space.pin(block) else {
            return 0;
        };
        let region = self.space.region(page);
        let count = region.map_or(0, |region| region.absent(window.of(page)));
        self.unpin(pinned, 1);
        count
    }

    /// Brings a page that faults in together with those that the thread will touch next, if its registers or the place of the access tell. Whether it is there.
    pub fn bring_beside(&self, address: usize, touch: Touch, registers: &Registers) -> bool {
        let Some(page) = self.space.page_at(address) else {
            return false;
        };
        let instruction = registers.instruction;
        if instruction == 0 {
            return false;
        }
        let near = self.beside.near(address, instruction);
        let values = (0..).zip(registers.values.into_iter().chain([near]));
        let behind = (Beside::behind(address), address.saturating_add(PAGE_BYTES));
        let values = std::iter::once(behind).chain(values);
        let pointed = values.filter_map(|(register, value)| {
            let pointed = self.space.page_at(value)?;
            let is_away = pointed != page && self.is_away(pointed, page);
            is_away.then_some(Pointed {
                page: pointed,
                register,
            })
        });
        let comes = self.beside.comes((address, page), instruction, pointed);
        if comes[0].is_none() || self.is_closed(page) {
            return false;
        }
        // Held until they have come, and the region with it.
        let Ok(pinned) = self.space.pin(place(page).0) else {
            return false;
        };
        let region = self.space.region(page);
        let is_here = |page: &u64| region.is_some_and(|region| region.contains(*page));
        let pages = comes.into_iter().flatten().map(|other| other.page);
        // Whether they will be written to is not known.
        let brought = self.bring_together(pages.filter(is_here), Touch::Read, Some(page), touch);
        self.unpin(pinned, 1);
        brought.asked
    }

    /// Whether a page seems to be absent, of the region that another one is in.
    fn is_away(&self, page: u64, other: u64) -> bool {
        let (block, at) = place(page);
        let Some(pinned) = self.space.pin_live(block) else {
            return false;
        };
        let phase = self.space.record(pinned).pages[at].look().phase();
        self.unpin(pinned, 1);
        // Whether that one is the region's to its end is seen when it is brought in.
        let slot = self.space.slot_of(page);
        phase == Phase::Absent && slot.is_some() && slot == self.space.slot_of(other)
    }

    /// The same of a page of which the region is known already; a block without pages has none that is there.
    pub(crate) fn is_absent(&self, page: u64) -> bool {
        let (block, at) = place(page);
        let Some(pinned) = self.space.pin_live(block) else {
            return self.space.is_empty(block);
        };
        let phase = self.space.record(pinned).pages[at].look().phase();
        self.unpin(pinned, 1);
        phase == Phase::Absent
    }

    /// Brings in what an array names after what a page that faults has of it, if faults go along one. Whether the page itself was filled with them.
    pub fn bring_followed(&self, address: usize, touch: Touch) -> bool {
        let Some((follow, page)) = self.follow.as_ref().zip(self.space.page_at(address)) else {
            return false;
        };
        let most = policy::ahead_pages(self.pages_now()) as usize;
        let faulted = follow.faulted(address as u64, most);
        let Some(objects) = faulted else {
            return false;
        };
        let asked = match self.is_closed(page) {
            true => false,
            false => {
                let here = self.space.slot_of(page);
                let pages = objects
                    .each()
                    .iter()
                    .filter_map(|object| self.page_of(object));
                let pages = pages.filter(|other| *other != page);
                let pages = pages.filter(|other| self.space.slot_of(*other) == here);
                let brought = self.bring_together(pages, Touch::Read, Some(page), touch);
                brought.asked
            }
        };
        if asked {
            self.bring_rounds(follow, most);
        }
        follow.end_turn();
        asked
    }

    fn page_of(&self, object: &Object) -> Option<u64> {
        self.space.page_at(object.address as usize)
    }

    /// Brings in what the objects of the turn name, and so on; `most` pages at a time.
    fn bring_rounds(&self, follow: &Follow, most: usize) {
        let mut left = most * PAGES_OF_TURN;
        loop {
            let Some((objects, reach)) = follow.next_round() else {
                return;
            };
            let end = |object: &Object| {
                let reach = reach[usize::from(object.kind)].saturating_sub(1);
                let end = object.address + reach;
                let goes_on = follow::page_of(end) != follow::page_of(object.address);
                goes_on.then(|| self.space.page_at(end as usize))?
            };
            for some in objects.each().chunks((most / 2).max(1)) {
                // Those that go on in the next page with it.
                let pages = some.iter().filter_map(|object| self.page_of(object));
                let pages = pages.chain(some.iter().filter_map(end));
                match self.bring_by_region(pages.take(left)) {
                    Some(came) if came < left => left -= came,
                    // What has no room is left to faults.
                    _ => return,
                }
            }
        }
    }

    /// Brings in pages of any region, [`TOGETHER_MAX`] at most. How many; none if one had to be left.
    fn bring_by_region(&self, pages: impl Iterator<Item = u64>) -> Option<usize> {
        let (mut left, mut len) = ([0; TOGETHER_MAX], 0);
        let pages = pages.filter(|page| self.space.slot_of(*page).is_some());
        for (to, page) in left.iter_mut().zip(pages) {
            (*to, len) = (page, len + 1);
        }
        let all = len;
        while len > 0 {
            let region = self.space.slot_of(left[0]);
            let is_here = |page: &u64| self.space.slot_of(*page) == region;
            let here = left[..len].iter().copied().filter(is_here);
            let brought = self.bring_together(here, Touch::Read, None, Touch::Read);
            if !brought.whole {
                return None;
            }
            let (mut others, mut kept) = (left, 0);
            for page in left[..len].iter().filter(|page| !is_here(page)) {
                (others[kept], kept) = (*page, kept + 1);
            }
            (left, len) = (others, kept);
        }
        Some(all)
    }

    /// Brings a page that faults in together with those that the thread will touch next, if it goes along an array that tells. Whether it is there.
    pub fn bring_indexed(&self, address: usize, touch: Touch, registers: &Registers) -> bool {
        let Some((indices, page)) = self.indices.as_ref().zip(self.space.page_at(address)) else {
            return false;
        };
        if self.is_closed(page) {
            return false;
        }
        let Some(mut site) = indices.site(registers.instruction) else {
            return false;
        };
        let is_served = |address: usize| self.space.page_at(address).is_some();
        // What others have mapped is not looked at: it might have to be brought in.
        let mut look = |at: usize, into: &mut [u8]| match at == registers.stack || is_served(at) {
            true => peek(at, into),
            false => 0,
        };
        let found = site.faulted(address, registers, is_served, &mut look);
        let Some(rule) = found.map(|nth| &mut site.rules[nth]) else {
            indices.keep(site);
            return false;
        };
        // Held until they have come: who is the last to use a block gives its page table back.
        let Ok(pinned) = self.space.pin(place(page).0) else {
            return false;
        };
        let most = policy::ahead_pages(self.pages_now()) as usize;
        let window = (usize::from(rule.window) * 2).clamp(2, most.clamp(2, TOGETHER_MAX));
        let part = Part::of(rule, &mut look);
        let pages = self.named_by(rule, &part, page, window);
        (rule.window, rule.then) = (pages.len as u8, pages.then);
        // What is not sure to be written to would be written back for nothing.
        let touch_ahead = match rule.sure == SURE_MAX {
            true => touch,
            false => Touch::Read,
        };
        indices.keep(site);
        let mut is_there = false;
        if pages.len > 0 {
            // The next fault is not one that the last told of.
            beside::forget();
            let pages = pages.all[..pages.len].iter().copied();
            is_there = self
                .bring_together(pages, touch_ahead, Some(page), touch)
                .asked;
        }
        self.unpin(pinned, 1);
        is_there
    }

    /// Pages that the next elements name and that are not there, of the region of `page` and without it: at most `window`. The caller uses the block of `page`.
    fn named_by(&self, rule: &Rule, part: &Part, page: u64, window: usize) -> Pages {
        let mut pages = Pages::default();
        let Some(region) = self.space.region(page) else {
            return pages;
        };
        for nth in 0..LOOK_BYTES {
            let Some(element) = part.element(nth) else {
                break;
            };
            let Some(other) = self.space.page_at(rule.names(element)) else {
                continue;
            };
            let is_new = other != page && !pages.all[..pages.len].contains(&other);
            if is_new && region.contains(other) && self.is_absent(other) {
                if pages.len == window {
                    let by = rule.step.wrapping_mul(nth as isize + 1);
                    pages.then = rule.at.wrapping_add_signed(by);
                    break;
                }
                pages.all[pages.len] = other;
                pages.len += 1;
            }
        }
        pages
    }
}
