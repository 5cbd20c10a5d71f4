//! Named regions on the simulated device: whatever the moment of a crash, the region is as at a completed sync.

use super::named::Named;
use super::open::Store;
use super::tests::{device, options, pool};
use crate::{Backing, Changed, PAGE_BYTES, Page};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use terrace_media::sim::{Rng, SimDevice};

const PAGES: u64 = 24;
const SEGMENTS: u64 = 160;

/// What the region holds: one number a page stands for its bytes.
type Content = Vec<u64>;

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

fn open(device: &SimDevice) -> (Arc<Store>, Named) {
    let store = Store::on_pool(pool(device, options(true)), false).expect("a store");
    let named = Named::open(store.clone(), 5, PAGES).expect("a region");
    (store, named)
}

fn content(named: &Named, numbers: &[u64]) -> Content {
    let page = |p: u64| {
        let mut page = Page::ZERO;
        named.fetch(p, &mut page).expect("fetch");
        let found = numbers.iter().find(|&&n| page_of(n).0 == page.0);
        *found.unwrap_or_else(|| panic!("page {p} holds what nobody wrote"))
    };
    (0..PAGES).map(page).collect()
}

fn put(named: &Named, page: u64, number: u64) {
    let bytes = page_of(number);
    let changed = Changed {
        page,
        bytes: &bytes,
        surely: true,
    };
    assert_eq!(named.store(&[changed]).expect("store"), 1);
}

/// The states that syncs made, and how many are known to be complete.
struct Told {
    states: Mutex<Vec<Content>>,
    complete: AtomicU64,
}

/// A life of random write-backs and syncs; crash images are taken on the way with `each` event.
fn live(
    device: &SimDevice,
    rng: &mut Rng,
    told: &Told,
    now: &mut Content,
    number: &mut u64,
    steps: u64,
) {
    let (_store, named) = open(device);
    for _ in 0..steps {
        match rng.below(10) {
            0 => {
                // Everything, or a part of it.
                let cut = rng.below(PAGES as usize + 1) as u64;
                let range = if rng.below(3) == 0 { 0..cut } else { 0..PAGES };
                let mut next = told
                    .states
                    .lock()
                    .expect("unharmed")
                    .last()
                    .expect("one")
                    .clone();
                range
                    .clone()
                    .for_each(|p| next[p as usize] = now[p as usize]);
                told.states.lock().expect("unharmed").push(next);
                named.sync(std::slice::from_ref(&range)).expect("sync");
                told.complete.fetch_add(1, Ordering::SeqCst);
            }
            1 => {
                let page = rng.below(PAGES as usize) as u64;
                named.discard(page);
                now[page as usize] = 0;
            }
            _ => {
                let page = rng.below(PAGES as usize) as u64;
                *number += 1;
                put(&named, page, *number);
                now[page as usize] = *number;
            }
        }
    }
    let numbers: Vec<u64> = (0..=*number).collect();
    assert_eq!(
        content(&named, &numbers),
        *now,
        "what was written last is seen"
    );
}

#[test]
fn at_every_crash_point_a_region_is_as_at_a_completed_sync() {
    let mut judged = 0;
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let device = device(&options(true), SEGMENTS, seed);
        let told = Arc::new(Told {
            states: Mutex::new(vec![vec![0; PAGES as usize]]),
            complete: AtomicU64::new(0),
        });
        let images = Arc::new(Mutex::new(Vec::new()));
        let (told_then, images_then) = (told.clone(), images.clone());
        device.set_hook(Some(Box::new(move |device, event| {
            if event.number % 3 == 0 {
                let complete = told_then.complete.load(Ordering::SeqCst) as usize;
                let begun = told_then.states.lock().expect("unharmed").len() - 1;
                let image = device.crash_image(event.number ^ seed);
                images_then
                    .lock()
                    .expect("unharmed")
                    .push((complete, begun, image));
            }
        })));
        let (mut now, mut number) = (vec![0; PAGES as usize], 0);
        live(&device, &mut rng, &told, &mut now, &mut number, 120);
        let numbers: Vec<u64> = (0..=number).collect();
        let states = told.states.lock().expect("unharmed").clone();
        let images = std::mem::take(&mut *images.lock().expect("unharmed"));
        for (complete, begun, image) in images {
            let after = SimDevice::with_image(image, seed);
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
            expected[0] = 1;
            assert_eq!(
                content(&named, &numbers),
                expected,
                "seed {seed}: one life later"
            );
            judged += 1;
        }
    }
    assert!(judged > 100, "{judged} crashes are too few");
}
