//! Named regions on the simulated device: whatever the moment of a crash, the region is as at a completed sync.

use super::driver::Work;
use super::error::ObjectError;
use super::named::{Named, SYNC_OUTSIDE_PAGES_MAX};
use super::open::Store;
use super::tests::{device, options, pool};
use crate::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use terrace_media::sim::{Crashed, Fault, Rng, SimDevice};

const PAGES: u64 = 24;
/// Pages it is made with; the rest come by growing.
const PAGES_FIRST: u64 = 16;
const SEGMENTS: u64 = 160;
const NUMBER: u16 = 5;

/// What the region holds: one number a page stands for its bytes, then its root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    pages: Vec<u64>,
    root: Option<u64>,
}

impl Content {
    fn new() -> Content {
        Content {
            pages: vec![0; PAGES_FIRST as usize],
            root: None,
        }
    }
}

fn page_of(number: u64) -> Page {
    let mut page = Page::ZERO;
    if number == 0 {
        return page;
    }
    let mut x = number;
    // Some pack, some do not.
    let noisy = if number.is_multiple_of(3) {
        PAGE_BYTES
    } else {
        600
    };
    for word in page.0[..noisy].chunks_exact_mut(8) {
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (x >> 29) ^ number;
        word.copy_from_slice(&x.to_le_bytes());
    }
    page
}

/// Makes the device's pool, and the region in it.
fn made(seed: u64, segments: u64) -> SimDevice {
    let device = device(&options(true), segments, seed);
    let store = Store::on_pool(pool(&device, options(true)), Work::Callers).expect("a store");
    Named::make(&store, NUMBER, PAGES_FIRST).expect("a region is made");
    store.make_durable().expect("durable");
    drop(store);
    device
}

fn open(device: &SimDevice) -> (Arc<Store>, Named) {
    let store = Store::on_pool(pool(device, options(true)), Work::Callers).expect("a store");
    let named = Named::open(store.clone(), NUMBER, PAGES).expect("a region");
    (store, named)
}

fn content(named: &Named, numbers: &[u64]) -> Content {
    let page = |p: u64| {
        let mut page = Page::ZERO;
        named.fetch(p, &mut page).expect("fetch");
        let found = numbers.iter().find(|&&n| page_of(n).0 == page.0);
        *found.unwrap_or_else(|| panic!("page {p} holds what nobody wrote"))
    };
    Content {
        pages: (0..named.pages()).map(page).collect(),
        root: named.root(),
    }
}

fn put(named: &Named, page: u64, number: u64) {
    let bytes = page_of(number);
    let changed = Changed {
        page,
        bytes: &bytes,
        surely: number.is_multiple_of(2),
    };
    assert_eq!(named.store(&[changed]).expect("store"), 1);
}

/// The states that syncs made, and how many are known to be complete.
struct Told {
    states: Mutex<Vec<Content>>,
    complete: AtomicU64,
}

/// A life of random write-backs and syncs.
struct Life<'a> {
    named: Named,
    told: &'a Told,
    now: Content,
    number: u64,
}

impl Life<'_> {
    fn step(&mut self, rng: &mut Rng) {
        let page = rng.below(self.now.pages.len()) as u64;
        match rng.below(20) {
            0 | 1 => self.sync(rng),
            2 => {
                self.named.discard(page);
                self.now.pages[page as usize] = 0;
            }
            3 => {
                self.now.root = (rng.below(4) > 0).then_some(page);
                self.named.set_root(self.now.root);
            }
            4 if (self.now.pages.len() as u64) < PAGES => {
                self.now.pages.push(0);
                let pages = self.now.pages.len() as u64;
                self.named.grow(pages).expect("grown");
            }
            5 => put(&self.named, page, self.now.pages[page as usize]),
            _ => {
                self.number += 1;
                put(&self.named, page, self.number);
                self.now.pages[page as usize] = self.number;
            }
        }
    }

    /// Everything, or a part of it.
    fn sync(&mut self, rng: &mut Rng) {
        let pages = self.now.pages.len();
        let cut = rng.below(pages + 1);
        let range = if rng.below(3) == 0 { 0..cut } else { 0..pages };
        let mut states = self.told.states.lock().expect("unharmed");
        let mut next = self.now.clone();
        let before = states.last().expect("one");
        for (page, number) in next.pages.iter_mut().enumerate() {
            if !range.contains(&page) {
                *number = before.pages.get(page).copied().unwrap_or(0);
            }
        }
        states.push(next);
        drop(states);
        let range = range.start as u64..range.end as u64;
        self.named.sync(std::slice::from_ref(&range)).expect("sync");
        self.told.complete.fetch_add(1, Ordering::SeqCst);
    }
}

type Image = (usize, usize, Crashed);

/// Lives on `device` and takes an image at every third event: how many syncs were complete then, and how many had begun.
fn live(device: &SimDevice, seed: u64) -> (Vec<Content>, Vec<u64>, Vec<Image>) {
    let mut rng = Rng::new(seed);
    let told = Arc::new(Told {
        states: Mutex::new(vec![Content::new()]),
        complete: AtomicU64::new(0),
    });
    let images = Arc::new(Mutex::new(Vec::new()));
    let (told_then, images_then) = (told.clone(), images.clone());
    device.set_hook(Some(Box::new(move |device, event| {
        if event.number % 3 == 0 {
            let complete = told_then.complete.load(Ordering::SeqCst) as usize;
            let begun = told_then.states.lock().expect("unharmed").len() - 1;
            let left = device.after_crash(event.number ^ seed);
            let mut images = images_then.lock().expect("unharmed");
            images.push((complete, begun, left));
        }
    })));
    let (mut now, mut number) = (Content::new(), 0);
    // Closed in between, with things that were not synced.
    for _ in 0..2 {
        let (store, named) = open(device);
        let told = &*told;
        let mut life = Life {
            named,
            told,
            now,
            number,
        };
        (0..70).for_each(|_| life.step(&mut rng));
        let numbers: Vec<u64> = (0..=life.number).collect();
        let seen = content(&life.named, &numbers);
        assert_eq!(seen, life.now, "what was written last is seen");
        number = life.number;
        now = told
            .states
            .lock()
            .expect("unharmed")
            .last()
            .expect("one")
            .clone();
        drop(life);
        drop(store);
    }
    device.set_hook(None);
    let states = told.states.lock().expect("unharmed").clone();
    let images = std::mem::take(&mut *images.lock().expect("unharmed"));
    (states, (0..=number).collect(), images)
}

#[test]
fn at_every_crash_point_a_region_is_as_at_a_completed_sync() {
    let mut judged = 0;
    for seed in 0..4 {
        let (states, numbers, images) = live(&made(seed, SEGMENTS), seed);
        for (complete, begun, left) in images {
            let after = SimDevice::after(&left, seed);
            let (store, named) = open(&after);
            let seen = content(&named, &numbers);
            assert!(
                states[complete..=begun].contains(&seen),
                "seed {seed}: after {complete} of {begun} syncs the region is {seen:?}, and was {:?}",
                &states[complete..=begun]
            );
            // The next life goes on from there: what was pending in the last one never comes back.
            put(&named, 0, 1);
            named.sync(std::slice::from_ref(&(0..PAGES))).expect("sync");
            drop(named);
            drop(store);
            let (_store, named) = open(&after);
            let mut expected = seen;
            expected.pages[0] = 1;
            let seen = content(&named, &numbers);
            assert_eq!(seen, expected, "seed {seed}: one life later");
            judged += 1;
        }
    }
    assert!(judged > 100, "{judged} crashes are too few");
}

#[test]
fn many_lives_that_end_in_a_crash_leave_what_was_synced() {
    let mut device = made(9, SEGMENTS);
    let mut expected = Content::new();
    // More than the control has room for dead generations.
    for life in 1..100u64 {
        let (_store, named) = open(&device);
        assert_eq!(content(&named, &[0, life - 1, 1000]), expected);
        (0..PAGES_FIRST).for_each(|page| put(&named, page, life));
        named.sync(std::slice::from_ref(&(0..PAGES))).expect("sync");
        (0..PAGES_FIRST).for_each(|page| put(&named, page, 1000));
        expected.pages.fill(life);
        named.store.make_durable().expect("what is pending too");
        device = SimDevice::after(&device.after_crash(life), 9);
    }
}

#[test]
fn a_sync_that_failed_never_comes_to_pass_in_part() {
    for seed in 0..20 {
        let device = made(seed, SEGMENTS);
        let mut states = vec![Content::new()];
        let (store, named) = open(&device);
        (0..PAGES_FIRST).for_each(|page| put(&named, page, 1));
        states.push(Content {
            pages: vec![1; PAGES_FIRST as usize],
            root: None,
        });
        device.faults().fail_flush(Fault::eio().after(seed % 3));
        let said = named.sync(std::slice::from_ref(&(0..PAGES)));
        if said.is_err() {
            assert_eq!(said, Err(ObjectError::ReadOnly));
            let bytes = page_of(2);
            let changed = Changed {
                page: 0,
                bytes: &bytes,
                surely: true,
            };
            assert!(named.store(&[changed]).is_err(), "it takes no more");
            let mut page = Page::ZERO;
            assert!(matches!(
                named.fetch(3, &mut page),
                Ok(Fetched::Filled | Fetched::Read)
            ));
            assert!(page.0 == page_of(1).0, "what was pending is there still");
        }
        let left = device.after_crash(seed);
        drop(named);
        drop(store);
        let (_store, named) = open(&SimDevice::after(&left, seed));
        let seen = content(&named, &[0, 1, 2]);
        match said {
            Ok(()) => assert_eq!(seen, states[1]),
            Err(_) => assert!(states.contains(&seen), "{seen:?}"),
        }
    }
}

#[test]
fn a_page_that_was_not_changed_is_not_written_again() {
    let device = made(4, SEGMENTS);
    let (_store, named) = open(&device);
    put(&named, 3, 7);
    named.sync(std::slice::from_ref(&(0..PAGES))).expect("sync");
    let updates = || named.store.stats().lanes.updates;
    let before = updates();
    put(&named, 3, 7);
    assert_eq!(updates(), before);
    put(&named, 3, 9);
    assert_eq!(updates(), before + 1);
}

#[test]
fn what_a_region_cannot_do_is_said() {
    let device = made(3, 1200);
    let (store, named) = open(&device);
    let mut page = Page::ZERO;
    let beyond = FetchError::Beyond { pages: PAGES_FIRST };
    assert_eq!(named.fetch(PAGES_FIRST, &mut page), Err(beyond));
    assert!(named.grow(PAGES + 1).is_err() && named.grow(1).is_err());
    drop(named);
    Named::erase(&store, NUMBER, PAGES).expect("erased");
    assert!(
        Named::open(store.clone(), NUMBER, PAGES).is_err(),
        "it is gone"
    );
    let many = SYNC_OUTSIDE_PAGES_MAX + 2;
    Named::make(&store, NUMBER, many).expect("made");
    let named = Named::open(store.clone(), NUMBER, many).expect("open");
    (0..many).for_each(|page| put(&named, page, 1));
    let outside = ObjectError::Outside {
        pages: many - 1,
        pages_max: SYNC_OUTSIDE_PAGES_MAX,
    };
    assert_eq!(named.sync(&[7..8, 7..7]), Err(outside));
    named.sync(&[0..many / 2, many / 2..many]).expect("sync");
    put(&named, 9, 2);
    named.sync(&[9..10, 3..4]).expect("sync");
    drop(named);
    let named = Named::open(store, NUMBER, many).expect("open");
    let seen = content(&named, &[0, 1, 2]);
    assert!((0..many).all(|page| seen.pages[page as usize] == if page == 9 { 2 } else { 1 }));
}
