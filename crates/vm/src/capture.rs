//! Changed pages that leave while a pipe holds them: taken away first, stored after that.
//!
//! What is to be stored must not change any more. To protect a page before it is copied costs 5 to 7 µs where it lies alone in its page table, as objects do: the kernel asks each of 512
//! places. A pipe holds a page for 0.2, what is in it when it has been unmapped is final, and reading that is 0.5 (docs/adr/0073).
//!
//! Promises: what the backing gets is what the page had when it was taken away; a page that it does not take comes back as it was, where the object lies. Never: used where devices write to memory
//! (`aside`): a device would go on writing to what was read already; or allocates once it is made.

use crate::backing::{Changed, Page};
use crate::parts::Core;
use crate::policy::{self, BATCH_PAGES_MAX};
use crate::say::die;
use crate::sys::Range;
use crate::victims::{CAPTURE_PAGES as TOGETHER, Workspace};
use rustix::io::Errno;

/// What the pipe has is not what was given to it.
fn lost(errno: Errno) -> ! {
    die(format_args!(
        "reading what leaves the page buffer back from a pipe failed: {errno}; was its descriptor closed?"
    ))
}

impl Core {
    /// Holds what is in the changed victims. False: nothing is held, and they are to be protected.
    pub fn capture(&self, work: &mut Workspace) -> bool {
        let changed = work.victims.iter().filter(|victim| victim.dirty).count();
        let Some(capture) = &work.capture else {
            return false;
        };
        if !policy::holds(changed, work.groups.len()) {
            return false;
        }
        let (mut spans, mut len) = ([Range::NONE; BATCH_PAGES_MAX], 0);
        for victim in work.victims.iter_mut().filter(|victim| victim.dirty) {
            // A region that is being dropped wants nothing kept.
            let Some(region) = self.space.region(victim.page) else {
                continue;
            };
            let span = region.backing.span_max(victim.page - region.first_page);
            victim.held = (span.start as u16, span.len() as u16);
            spans[len] = Range {
                start: self.space.address_of(victim.page) + span.start,
                len: span.len(),
            };
            len += 1;
        }
        // SAFETY: the pages are there, and leave by this thread only; what others write to them until they are unmapped is read after that.
        let held = unsafe { capture.pipe.hold(&spans[..len]) };
        let held = held.unwrap_or_else(|errno| lost(errno));
        if !held {
            for victim in &mut work.victims {
                victim.held = (0, 0);
            }
        }
        held
    }

    /// Gives what is held, of pages that are unmapped, to their backings; what these do not take comes back to its place, and stays.
    pub fn store_captured(&self, work: &mut Workspace) {
        let Some(mut capture) = work.capture.take() else {
            return;
        };
        let (mut at, mut takes) = (0, true);
        loop {
            let (mut places, mut spans, mut len) = ([0; TOGETHER], [Range::NONE; TOGETHER], 0);
            while at < work.victims.len() && len < TOGETHER {
                let (start, bytes) = work.victims[at].held;
                if bytes > 0 {
                    places[len] = at;
                    spans[len] = Range {
                        start: capture.pages[len].0.as_mut_ptr() as usize + usize::from(start),
                        len: usize::from(bytes),
                    };
                    len += 1;
                }
                at += 1;
            }
            if len == 0 {
                break;
            }
            // SAFETY: the spans lie in pages of the capture, which is this thread's.
            if let Err(errno) = unsafe { capture.pipe.read(&mut spans[..len]) } {
                lost(errno);
            }
            takes = self.store_pages(work, &mut capture.pages, &places[..len], takes);
        }
        work.capture = Some(capture);
    }

    /// Stores what was read of the victims at `places`, if the backing still `takes` some. Whether it does: one that did not once may have been asked for as long as anybody is to wait.
    fn store_pages(
        &self,
        work: &mut Workspace,
        pages: &mut [Page],
        places: &[usize],
        mut takes: bool,
    ) -> bool {
        let mut first = 0;
        while let Some(&place) = places.get(first) {
            let Some(region) = self.space.region(work.victims[place].page) else {
                first += 1;
                continue;
            };
            let mut changed = [Changed::NONE; TOGETHER];
            let is_here = |place: &&usize| region.contains(work.victims[**place].page);
            let mut len = 0;
            for (nth, place) in places[first..].iter().take_while(is_here).enumerate() {
                let victim = &work.victims[*place];
                changed[nth] = Changed {
                    page: victim.page - region.first_page,
                    bytes: &pages[first + nth],
                    surely: !victim.unsure,
                };
                len = nth + 1;
            }
            let stored = match takes {
                true => self.store_some(region, &changed[..len]),
                false => 0,
            };
            takes = stored == len;
            for nth in first + stored..first + len {
                self.bring_back(work, &mut pages[nth], places[nth]);
            }
            first += len;
        }
        takes
    }

    /// Puts a page that was not stored back in its place; what is not the object's is zeros, as after any eviction.
    fn bring_back(&self, work: &mut Workspace, page: &mut Page, place: usize) {
        let victim = &mut work.victims[place];
        let (start, len) = (usize::from(victim.held.0), usize::from(victim.held.1));
        page.0[..start].fill(0);
        page.0[start + len..].fill(0);
        let to = self.space.address_of(victim.page);
        if let Err(errno) = self.uffd.copy(to, page, false) {
            die(format_args!(
                "putting the page at {to:#x} back failed: {errno}; were its addresses unmapped?"
            ));
        }
        victim.stays = true;
        work.groups[usize::from(victim.group)].staying += 1;
    }
}
