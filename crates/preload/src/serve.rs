//! The process that has the pool serves the pages of its forks' children: a thread for each, as long as it lives.
//!
//! Promises: a child sees its own view of the pages, whatever others change; what it was promised and its part of the cap come back when it ends, runs
//! another program or is killed. Never: trusts a child with more than its own view.

use crate::given;
use crate::shares::{self, Asked};
use crate::wire::{self, Ask, Gone, Say};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use terrace_vm::heap::Ground;
use terrace_vm::opp::Heap;
use terrace_vm::store::{VIEWS_MAX, View};
use terrace_vm::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, StoreError};

/// DRAM of a page that lies apart from others, with its table.
pub const PAGE_AND_TABLE_BYTES: usize = 9 << 10;
/// Stack of a thread that serves.
const STACK_BYTES: usize = 256 << 10;

/// The ends of sockets at which children are served: they are not their siblings' business.
static ENDS: [AtomicI32; VIEWS_MAX] = [const { AtomicI32::new(-1) }; VIEWS_MAX];
/// Who is at the other end of each, as the kernel says; 0 as long as that is not known.
static PROCESSES: [AtomicI32; VIEWS_MAX] = [const { AtomicI32::new(0) }; VIEWS_MAX];
/// Children that are served.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How many children are served.
pub fn children() -> usize {
    LIVE.load(Ordering::Acquire)
}

/// Sends a signal to all of them.
pub fn pass_on(signal: i32) {
    for process in &PROCESSES {
        let process = process.load(Ordering::Acquire);
        if process > 0 {
            // SAFETY: a process that lives, since its end of the socket is open.
            unsafe { libc::kill(process, signal) };
        }
    }
}

/// In a child: what belongs to the parent is closed.
pub fn close_in_child() {
    for (end, process) in ENDS.iter().zip(&PROCESSES) {
        process.store(0, Ordering::Release);
        let fd = end.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: a copy of the parent's, which nobody here uses.
            unsafe { libc::close(fd) };
        }
    }
    LIVE.store(0, Ordering::Release);
    given::COPIES.set(0);
    given::CHILDREN.set(0);
    shares::ALL.set(0);
}

/// What a child sees of its parent's memory: allocations, and mappings.
const VIEWS: u64 = 2;

/// Whether one more child may have its share.
fn has_room(cap_bytes: u64) -> bool {
    let children = children();
    shares::has_room(cap_bytes, children as u64) && children + 1 < VIEWS_MAX
}

/// Whether one more child, of whose memory a second version comes to so many more pages, has room on the SSD, for its slots, and for its share.
pub fn may_fork(heap: &Heap, pages: u64) -> bool {
    let (cap_bytes, _) = heap.store().cap_and_used_bytes();
    if !has_room(cap_bytes) || heap.promise_versions(pages, VIEWS).is_err() {
        return false;
    }
    let is_spare = heap.spare_bytes() >= shares::least_bytes(cap_bytes);
    heap.unpromise_versions(pages, VIEWS);
    is_spare
}

/// Of what a child and its parent share until one of them writes to it, what is counted as if all were written to. Pages and entries keep half of what
/// they had before the first of the children, and before they gave way for the program's own: with too little they could not even leave.
fn copies_of(heap: &Heap, shared_bytes: u64) -> u64 {
    let counted = given::COPIES.bytes() + given::OWN.bytes();
    let most = (heap.between_them_bytes() + counted) / 2;
    shared_bytes.min(most.saturating_sub(counted))
}

/// One that serves, and what it gives back at its end.
struct Service {
    heap: Heap,
    views: [View; 2],
    end: OwnedFd,
    /// Of the room for pages.
    promised_pages: u64,
    /// Of the cap: its share, copies, and tables.
    counted_bytes: u64,
    /// Of that, its share.
    share_bytes: u64,
}

/// Why a child cannot be served: an error number.
type Refused = i32;

/// What a child gets: its end of the socket, and what its pages may take, bytes.
pub type ForChild = (OwnedFd, u64);

/// A view for a child, and a thread that serves it. `pages` is how many more a second version of everything would come to,
/// `shared_bytes` what the child has in DRAM together with its parent, until one of them writes to it.
pub fn start(
    heap: &Heap,
    views: [&View; 2],
    pages: u64,
    shared_bytes: u64,
) -> Result<ForChild, Refused> {
    let (cap_bytes, _) = heap.store().cap_and_used_bytes();
    if !has_room(cap_bytes) {
        return Err(libc::ENOMEM);
    }
    let copies_bytes = copies_of(heap, shared_bytes);
    LIVE.fetch_add(1, Ordering::AcqRel);
    given::COPIES.add(copies_bytes);
    let share_bytes = shares::least_bytes(cap_bytes);
    let begun = begin(heap, views, pages, share_bytes, copies_bytes);
    let counted_bytes = begun.as_ref().map_or(0, |(_, copies)| *copies);
    given::COPIES.take(copies_bytes - counted_bytes);
    if begun.is_err() {
        LIVE.fetch_sub(1, Ordering::AcqRel);
    }
    begun.map(|(end, _)| (end, share_bytes))
}

/// The child's end, and what is counted for copies: less than was asked where pages do not leave now.
fn begin(
    heap: &Heap,
    views: [&View; 2],
    pages: u64,
    share_bytes: u64,
    copies_bytes: u64,
) -> Result<(OwnedFd, u64), Refused> {
    let [end, childs] = wire::pair()?;
    let promised = heap.promise_versions(pages, VIEWS);
    promised.map_err(|_| libc::ENOMEM)?;
    let (Some(first), Some(second)) = (views[0].fork(), views[1].fork()) else {
        heap.unpromise_versions(pages, VIEWS);
        return Err(libc::ENOMEM);
    };
    // In an order in which a look of `own` in between sees too much rather than too little.
    given::CHILDREN.add(share_bytes + copies_bytes);
    shares::ALL.add(share_bytes);
    let way_bytes = (share_bytes + copies_bytes).min(heap.spare_bytes());
    let made_bytes = heap.make_way(way_bytes);
    // Its share it has in any case, as `may_fork` said: what is missing for that has left when more is stored.
    let counted_bytes = made_bytes.max(share_bytes);
    heap.count(made_bytes, counted_bytes);
    given::CHILDREN.take(share_bytes + copies_bytes - counted_bytes);
    let service = Service {
        heap: heap.clone(),
        views: [first, second],
        end,
        promised_pages: pages,
        counted_bytes,
        share_bytes,
    };
    let copies_bytes = counted_bytes - share_bytes;
    let slot = Slot::take(service.end.as_raw_fd());
    let thread = std::thread::Builder::new()
        .name("terrace-child".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let mut service = service;
            if let (Ok(process), Some(slot)) = (wire::receive_greeting(&service.end), &slot) {
                slot.is_of(process);
            }
            // It ends when the child does.
            while service.turn().is_ok() {}
            drop((slot, service));
            given::COPIES.take(copies_bytes);
            LIVE.fetch_sub(1, Ordering::AcqRel);
        });
    // A thread that did not start has dropped both.
    thread
        .map(|_| (childs, copies_bytes))
        .map_err(|_| libc::EAGAIN)
}

/// One of [`ENDS`] and [`PROCESSES`].
struct Slot(usize);

impl Slot {
    fn take(fd: i32) -> Option<Slot> {
        let (before, now) = (Ordering::AcqRel, Ordering::Acquire);
        let is_free = |end: &AtomicI32| end.compare_exchange(-1, fd, before, now).is_ok();
        ENDS.iter().position(is_free).map(Slot)
    }

    fn is_of(&self, process: i32) {
        PROCESSES[self.0].store(process, Ordering::Release);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        PROCESSES[self.0].store(0, Ordering::Release);
        ENDS[self.0].store(-1, Ordering::Release);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.heap.unpromise_versions(self.promised_pages, VIEWS);
        self.count(0);
        shares::ALL.take(self.share_bytes);
    }
}

impl Service {
    fn turn(&mut self) -> Result<(), Gone> {
        let mut ask = [Ask::default()];
        wire::receive(&self.end, &mut ask)?;
        let [ask] = ask;
        let view = &self.views[(ask.area & 1) as usize];
        match ask.what {
            wire::FETCH => self.fetch(view, ask.first),
            wire::FETCH_SEVERAL => self.fetch_several(view, ask.count),
            wire::STORE => self.store(view, ask.count),
            wire::DISCARD => {
                for page in ask.first..ask.first.saturating_add(ask.count).min(view.pages()) {
                    view.discard(page);
                }
                Ok(())
            }
            wire::PROMISE => {
                let errno = match self.heap.promise(ask.count) {
                    Ok(()) => {
                        self.promised_pages += ask.count;
                        0
                    }
                    Err(_) => libc::ENOMEM,
                };
                self.say(errno, 0)
            }
            wire::UNPROMISE => {
                let pages = ask.count.min(self.promised_pages);
                self.promised_pages -= pages;
                self.heap.unpromise(pages);
                Ok(())
            }
            wire::COUNT => {
                // Of tables that it has from its parent not all is counted, and more may go.
                let now = (self.counted_bytes + ask.count).saturating_sub(ask.first);
                self.count(now.max(self.share_bytes));
                if ask.count > ask.first {
                    self.heap.keep_terrace();
                }
                Ok(())
            }
            wire::SHARE => {
                let may = self.share(ask.count);
                self.say(0, may)
            }
            wire::GAVE_BACK => {
                self.take_back(ask.count);
                Ok(())
            }
            wire::MAY_FORK => {
                let may = may_fork(&self.heap, ask.count);
                self.say(if may { 0 } else { libc::ENOMEM }, 0)
            }
            wire::FORK => {
                let views = [&self.views[0], &self.views[1]];
                match start(&self.heap, views, ask.count, ask.first) {
                    Ok((childs, share_bytes)) => {
                        self.say(0, share_bytes)?;
                        wire::send_descriptor(&self.end, &childs)
                    }
                    Err(errno) => self.say(errno, 0),
                }
            }
            _ => Err(Gone),
        }
    }

    /// What the child's pages may have, which would have so many bytes.
    fn share(&mut self, wants: u64) -> u64 {
        let (cap_bytes, _) = self.heap.store().cap_and_used_bytes();
        let parents = self.heap.memory().stats();
        let may = shares::decide(Asked {
            cap_bytes,
            has: self.share_bytes,
            wants,
            children: children() as u64,
            between_bytes: self.heap.between_them_bytes(),
            near: parents.near,
            near_read: parents.near_read,
        });
        let more = may.saturating_sub(self.share_bytes);
        if more == 0 {
            return may;
        }
        given::CHILDREN.add(more);
        let counted = self.heap.make_way(more.min(self.heap.spare_bytes()));
        given::CHILDREN.take(more - counted);
        shares::ALL.take(more - counted);
        self.counted_bytes += counted;
        self.share_bytes += counted;
        self.share_bytes
    }

    /// The child's pages have so many bytes at most.
    fn take_back(&mut self, all_but: u64) {
        let (cap_bytes, _) = self.heap.store().cap_and_used_bytes();
        let now = all_but.clamp(shares::least_bytes(cap_bytes), self.share_bytes);
        let less = self.share_bytes - now;
        self.share_bytes = now;
        self.count(self.counted_bytes.saturating_sub(less));
        shares::ALL.take(less);
    }

    fn count(&mut self, now: u64) {
        let before = std::mem::replace(&mut self.counted_bytes, now);
        given::CHILDREN.add(now.saturating_sub(before));
        self.heap.count(before, now);
        given::CHILDREN.take(before.saturating_sub(now));
    }

    fn say(&self, errno: i32, count: u64) -> Result<(), Gone> {
        let say = Say {
            errno,
            count,
            ..Say::default()
        };
        wire::send(&self.end, &[say])
    }

    fn fetch(&self, view: &View, page: u64) -> Result<(), Gone> {
        if page >= view.pages() {
            return Err(Gone);
        }
        let mut contents = Page::ZERO;
        let fetched = view.fetch(page, &mut contents);
        self.answer(fetched, &contents)
    }

    /// What the device has of them is read together.
    fn fetch_several(&self, view: &View, count: u64) -> Result<(), Gone> {
        let mut numbers = [0u64; wire::PAGES_MAX];
        let numbers = usize::try_from(count)
            .ok()
            .and_then(|count| numbers.get_mut(..count));
        let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else {
            return Err(Gone);
        };
        wire::receive(&self.end, numbers)?;
        if numbers.iter().any(|page| *page >= view.pages()) {
            return Err(Gone);
        }
        let mut answered = Ok(());
        let mut answer = |_: usize, fetched: Result<Fetched, FetchError>, contents: &Page| {
            if answered.is_ok() {
                answered = self.answer(fetched, contents);
            }
        };
        let mut scratch = Page::ZERO;
        view.fetch_several(numbers, &mut scratch, &mut answer);
        answered
    }

    fn answer(&self, fetched: Result<Fetched, FetchError>, contents: &Page) -> Result<(), Gone> {
        let found = match fetched {
            Ok(Fetched::Absent) => wire::ABSENT,
            Ok(Fetched::Filled) => wire::FILLED,
            Ok(Fetched::Read) => wire::READ,
            Err(FetchError::Io { errno, .. }) => return self.say(errno, 0),
            Err(_) => return self.say(libc::EIO, 0),
        };
        let say = Say {
            found,
            ..Say::default()
        };
        match found {
            wire::ABSENT => wire::send(&self.end, &[say]),
            _ => wire::send_with_bytes(&self.end, &say, &contents.0),
        }
    }

    fn store(&self, view: &View, count: u64) -> Result<(), Gone> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count == 0 || count > wire::PAGES_MAX {
            return Err(Gone);
        }
        let mut numbers = [0u64; wire::PAGES_MAX];
        wire::receive(&self.end, &mut numbers[..count])?;
        let mut pages = vec![Page::ZERO; count];
        for page in &mut pages {
            wire::receive_bytes(&self.end, &mut page.0[..PAGE_BYTES])?;
        }
        let numbers = &numbers[..count];
        if numbers.iter().any(|n| n & !wire::SURELY >= view.pages()) {
            return Err(Gone);
        }
        let changed: Vec<Changed<'_>> = numbers
            .iter()
            .zip(&pages)
            .map(|(number, bytes)| Changed {
                page: number & !wire::SURELY,
                bytes,
                surely: number & wire::SURELY != 0,
            })
            .collect();
        // What is stored for a child makes tables of this process longer, which may have no faults of its own that would look.
        self.heap.keep_terrace();
        let say = match view.store(&changed) {
            Ok(taken) => Say {
                count: taken as u64,
                ..Say::default()
            },
            Err(StoreError::Full { .. }) => Say {
                errno: libc::ENOSPC,
                ..Say::default()
            },
            Err(StoreError::Io { errno }) => Say {
                errno,
                ..Say::default()
            },
            // What is synced is not served.
            Err(StoreError::Closed | StoreError::Syncing) => return Err(Gone),
        };
        wire::send(&self.end, &[say])
    }
}

/// The heap and the views of the process that has the pool.
pub struct Home {
    pub heap: Heap,
    pub views: [Arc<View>; 2],
}
