//! Pages and objects as the faults above use them: against a plain copy, under a small cap.

use std::sync::Arc;
use terrace_vm::store::{ObjectError, Objects, Pages, Store, StoreOptions, Versions};
use terrace_vm::{Backing, Changed, Fetched, PAGE_BYTES, Page};

const PAGES: u64 = 20_000;

fn open(dir: &tempfile::TempDir) -> Arc<Store> {
    Store::open(&StoreOptions::scratch(dir.path(), 32 << 20, 160 << 20)).expect("a store")
}

/// A page that lz4 shortens, one that it does not, one of one byte, or zeros.
fn page_of(page: u64, version: u64) -> Page {
    let mut out = Page::ZERO;
    let mut x = page << 20 ^ version << 2 ^ 0x9e37_79b9_7f4a_7c15;
    let kind = (page + version) % 8;
    match kind {
        0 => return out,
        1 => {
            out.0.fill(page as u8 | 1);
            return out;
        }
        _ => {}
    }
    let random = if kind < 4 { PAGE_BYTES } else { PAGE_BYTES / 2 };
    for word in out.0[..random].chunks_exact_mut(8) {
        x = (x ^ (x >> 30))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .wrapping_add(1);
        word.copy_from_slice(&x.to_le_bytes());
    }
    out
}

fn changed(page: u64, bytes: &Page) -> Changed<'_> {
    Changed {
        page,
        bytes,
        surely: true,
    }
}

fn check(backing: &dyn Backing, page: u64, expected: &Page) {
    let mut seen = Page::ZERO;
    let found = backing.fetch(page, &mut seen).expect("fetch");
    let span = backing.span(page);
    assert!(seen.0[span.clone()] == expected.0[span], "page {page}");
    if found == Fetched::Absent {
        assert!(seen.0 == Page::ZERO.0);
    }
}

#[test]
fn pages_come_back_as_they_were_and_dull_ones_are_cheap() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let pages = Pages::new(store.clone(), 1).expect("pages");
    let mut versions = vec![0u64; PAGES as usize];
    for round in 0..3 {
        for page in (0..PAGES).step_by(8) {
            let batch: Vec<(u64, Page)> = (page..page + 8)
                .filter(|p| round == 0 || p % 3 == round)
                .map(|p| (p, page_of(p, round)))
                .collect();
            let lent: Vec<Changed> = batch.iter().map(|(p, bytes)| changed(*p, bytes)).collect();
            let mut taken = 0;
            while taken < lent.len() {
                taken += pages.store(&lent[taken..]).expect("store");
            }
            batch
                .iter()
                .for_each(|(p, _)| versions[*p as usize] = round);
        }
    }
    for page in (0..PAGES).step_by(3) {
        check(&pages, page, &page_of(page, versions[page as usize]));
    }
    pages.discard(5);
    check(&pages, 5, &Page::ZERO);
    let s = store.stats();
    // A quarter costs only a slot, half of them shrink by nearly a half.
    let plain = PAGES * PAGE_BYTES as u64;
    let kept = s.lanes.ssd_live_bytes + s.lanes.dirty_bytes;
    assert!(kept < plain * 6 / 10, "{kept} bytes for {plain}");
    let (cap, used) = store.cap_and_used_bytes();
    assert!(used <= cap, "{used} of {cap}");
}

#[test]
fn a_page_that_is_as_it_was_is_not_stored_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let view = Versions::of(store.clone(), 1, PAGES).expect("a view");
    let (first, second) = (page_of(6, 0), page_of(6, 1));
    let put = |page, bytes: &Page| assert_eq!(view.store(&[changed(page, bytes)]), Ok(1));
    put(9, &first);
    put(9, &first);
    check(&view, 9, &first);
    put(9, &first);
    assert_eq!(store.pages_same(), 2);
    put(9, &second);
    check(&view, 9, &second);
    put(9, &first);
    assert_eq!(store.pages_same(), 2);
    check(&view, 9, &first);
    // What is discarded, or zeros, is not there any more.
    for discard in [true, false] {
        match discard {
            true => view.discard(9),
            false => put(9, &Page::ZERO),
        }
        put(9, &first);
        check(&view, 9, &first);
    }
    // A fork has it where it was, and what one stores the other does not see.
    let child = view.fork().expect("a view");
    put(9, &second);
    check(&child, 9, &first);
    put(9, &first);
    check(&view, 9, &first);
    assert_eq!(child.store(&[changed(9, &second)]), Ok(1));
    check(&view, 9, &first);
    check(&child, 9, &second);
}

#[test]
fn what_has_a_table_is_alone_in_changing_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let pages = Pages::new(store.clone(), 1).expect("pages");
    let (first, second) = (page_of(6, 0), page_of(6, 1));
    type Change = fn(&Store, &Page) -> Result<(), ObjectError>;
    let changes: [Change; 6] = [
        |store, second| store.put(1, 9, &second.0),
        |store, second| store.put_many(1, &[(9, &second.0)]),
        |store, second| store.replace(1, 9, &second.0),
        |store, second| store.insert(1, &second.0).map(drop),
        |store, _| store.update(1, 9, |bytes| bytes[0] ^= 1),
        |store, _| store.free(1, 9).map(drop),
    ];
    assert_eq!(pages.store(&[changed(9, &first)]), Ok(1));
    for change in changes {
        let refused = change(&store, &second);
        assert_eq!(refused, Err(ObjectError::Taken { table: 1 }));
        check(&pages, 9, &first);
    }
}

/// Where many pages are written to, one that is read is writable at once and leaves as one that perhaps was changed; what it was has left DRAM by then.
#[test]
fn a_page_that_was_only_read_is_not_stored_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let pages = Pages::new(store.clone(), 1).expect("pages");
    // None of them packs, and all are many times the cap.
    let of = |page: u64, version: u64| page_of(page * 8 + 2, version * 8);
    for page in 0..PAGES {
        assert_eq!(pages.store(&[changed(page, &of(page, 0))]), Ok(1));
    }
    let updates = || store.stats().lanes.updates;
    let stored = updates();
    let mut seen = Page::ZERO;
    for page in (0..PAGES).step_by(500) {
        let found = pages.fetch(page, &mut seen).expect("fetch");
        let perhaps = Changed {
            surely: false,
            ..changed(page, &seen)
        };
        assert_eq!(pages.store(&[perhaps]), Ok(1));
        assert!(page > 0 || found == Fetched::Read);
    }
    assert_eq!(updates(), stored);
    // What is in DRAM and dirty is overwritten there.
    pages.fetch(500, &mut seen).expect("fetch");
    seen.0[77] ^= 1;
    let perhaps = Changed {
        surely: false,
        ..changed(500, &seen)
    };
    assert_eq!(pages.store(&[perhaps]), Ok(1));
    assert_eq!(updates(), stored + 1);
    check(&pages, 500, &seen);
}

#[test]
fn objects_lie_where_their_span_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let objects = Objects::new(store.clone(), 2, 100).expect("objects");
    let of = |n: u64| {
        let mut page = Page::ZERO;
        page.0[objects.span(n)].fill(n as u8 | 1);
        page
    };
    for n in 0..PAGES {
        // What is outside of the span does not count.
        let mut page = of(n);
        page.0[(objects.span(n).end) % PAGE_BYTES] = 99;
        page.0[objects.span(n)].fill(n as u8 | 1);
        assert_eq!(objects.store(&[changed(n, &page)]).expect("store"), 1);
    }
    (0..PAGES).for_each(|n| check(&objects, n, &of(n)));
    // Said to be perhaps changed, and is not: what is in DRAM is left as it is.
    let before = store.stats().lanes.updates;
    let same = of(PAGES - 1);
    let perhaps = Changed {
        page: PAGES - 1,
        bytes: &same,
        surely: false,
    };
    assert_eq!(objects.store(&[perhaps]).expect("store"), 1);
    assert_eq!(store.stats().lanes.updates, before);
    check(&objects, PAGES + 1, &Page::ZERO);
    assert!(Objects::new(store, 3, 4097).is_err());
}

#[test]
fn objects_that_pack_take_less_and_come_back_as_they_were() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let objects = Objects::new(store.clone(), 2, 512).expect("objects");
    // What is in the span of a page is an object; half of them begin in noise and end in zeros.
    let of = |n: u64, version: u64| {
        let (whole, mut page) = (page_of(n, version), Page::ZERO);
        let object = &whole.0[PAGE_BYTES / 2 - 256..][..512];
        page.0[objects.span(n)].copy_from_slice(object);
        page
    };
    // Each is stored as another kind in each round: packed where it was whole, and whole where it was packed.
    for round in 0..6 {
        for n in 0..PAGES {
            let page = of(n, round);
            assert_eq!(objects.store(&[changed(n, &page)]).expect("store"), 1);
        }
        (0..PAGES).for_each(|n| check(&objects, n, &of(n, round)));
    }
    // Said to be perhaps changed, and is not: packed again it is as the one that is there.
    let n = (0..8)
        .map(|back| PAGES - 1 - back)
        .find(|n| (n + 5) % 8 > 3)
        .expect("one that packs");
    let page = of(n, 5);
    let store_perhaps = |n: u64, page: &Page| {
        let perhaps = Changed {
            page: n,
            bytes: page,
            surely: false,
        };
        assert_eq!(objects.store(&[perhaps]).expect("store"), 1);
        store.stats().lanes.updates
    };
    let once = store_perhaps(n, &page);
    assert_eq!(store_perhaps(n, &page), once);
    // Whatever is worth trying by then: dozens of noise come before what packs.
    let last = PAGES - 200..PAGES;
    let noise = last.clone().filter(|n| [2, 3].contains(&((n + 5) % 8)));
    for n in noise.chain(last.filter(|n| (n + 5) % 8 > 3)) {
        assert_eq!(store_perhaps(n, &of(n, 5)), once, "object {n}");
    }
    let mut other = page.clone();
    other.0[objects.span(n).start] ^= 1;
    store_perhaps(n, &other);
    check(&objects, n, &other);
}

#[test]
fn what_packs_writes_less() {
    let written = |packs: bool| {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(&dir);
        let objects = Objects::new(store.clone(), 2, 1024).expect("objects");
        for n in 0..3 * PAGES {
            // Noise in all of it, or in the first half.
            let (noise, mut page) = (page_of(8 * n + 2, 0), Page::ZERO);
            let end = if packs { 512 } else { 1024 };
            let span = objects.span(n);
            page.0[span.start..span.start + end].copy_from_slice(&noise.0[..end]);
            assert_eq!(objects.store(&[changed(n, &page)]).expect("store"), 1);
        }
        store.stats().lanes.written_log_bytes as f64
    };
    let (whole, packed) = (written(false), written(true));
    assert!(
        packed < 0.6 * whole,
        "{packed} bytes, {whole} where nothing packs"
    );
}

#[test]
fn what_is_read_ahead_is_a_hit() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(&dir);
    let objects = Objects::new(store.clone(), 2, 128).expect("objects");
    let page = Page([7; PAGE_BYTES]);
    for n in 0..300_000 {
        objects.store(&[changed(n, &page)]).expect("store");
    }
    let mut out = [0; 128];
    let mut ahead_hits = 0;
    for n in (0..1000u64).step_by(10) {
        let ids: Vec<u64> = (n..n + 10).collect();
        store.prefetch(2, &ids).expect("prefetch");
        std::thread::sleep(std::time::Duration::from_millis(3));
        let before = store.stats().disk_reads;
        for id in ids {
            store.get(2, id, &mut out).expect("get");
        }
        ahead_hits += u64::from(store.stats().disk_reads == before);
    }
    assert!(ahead_hits > 50, "{ahead_hits} of 100 groups were there");
}
