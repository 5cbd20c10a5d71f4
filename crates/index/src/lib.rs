//! The key map: 8 bytes a key, no key in DRAM, never a pause.
//!
//! What lives here: extendible hashing over small pages. A shard's directory maps the top bits of a 64-bit hash to a page; a page
//! is a header and up to 63 sorted slots in 1 to 8 cache lines; a slot is a tag of the hash bits that follow the page's prefix,
//! and the caller's payload. `docs/adr/0003-index-pages.md` says why and with what figures.
//!
//! Promises: a slot is found by its hash until it is removed, through every split, merge and move; growing and shrinking cost each
//! operation at most one page's split or merge, and now and then a copy of the small directory; `bytes` counts every allocation.
//!
//! Never: reads a key, hashes one, or decides what a payload means. A tag that matches is a hint; the caller compares keys.

#![forbid(unsafe_code)]

mod arena;
mod chunk;
mod directory;
mod keymap;
mod page;
mod restore;
mod slot;
mod tree;
mod view;

use std::fmt;

use arena::PageRef;
use page::Place;
use slot::Layout;
use tree::Tree;

pub use keymap::KeyMap;
pub use page::{DEPTH_MAX, SHARDS_MAX};
pub use restore::BadPage;
pub use view::PageView;

/// How an index is divided.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of shards, 1 to `SHARDS_MAX`; fixed when the pool is made.
    pub shards: u32,
    /// Bits of a slot that belong to the caller, 32 to 46; the rest is the tag.
    pub payload_bits: u32,
}

/// Refusal of an insert: the page is full of slots that no hash bit can tell apart any more, or the shard is being restored.
///
/// With an even hash it takes about 2^17 times as many keys as when the oldest tags were last refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the key map cannot take another key at this hash: its page holds {} keys, the most allowed, and their tags have too few \
             bits to split it; delete keys, or write the old ones again to refresh their tags",
            page::SLOTS_MAX
        )
    }
}

impl std::error::Error for Full {}

/// Position of a slot, valid until the next `&mut` call that is not `set`.
#[derive(Clone, Copy, Debug)]
pub struct At {
    page: PageRef,
    slot: u32,
}

/// The key map. A shard number that is not below `Config::shards` is a mistake of the program and panics, as does a payload
/// that is wider than `Config::payload_bits`.
pub struct Index {
    tree: Tree,
}

impl Index {
    /// An empty index.
    ///
    /// # Panics
    /// If `cfg` is outside its limits.
    pub fn new(cfg: Config) -> Index {
        assert!(
            (1..=SHARDS_MAX).contains(&cfg.shards),
            "{} shards were asked for; 1 to {SHARDS_MAX} are allowed",
            cfg.shards
        );
        Index {
            tree: Tree::new(Layout::new(cfg.payload_bits), cfg.shards),
        }
    }

    /// Calls `f` with each payload whose tag matches `hash`, until it says true; returns the one at which it did.
    ///
    /// Tags are short: now and then another key's payload is shown too (with payloads of 46 bits, in 20 M keys that were never
    /// refreshed since 1 k, at one find in 500).
    #[inline]
    pub fn find(
        &self,
        shard: u32,
        hash: u64,
        mut f: impl FnMut(At, u64) -> bool,
    ) -> Option<(At, u64)> {
        let directory = &self.tree.shards[shard as usize];
        let page = directory.page_of(hash)?;
        let layout = self.tree.layout;
        let at = |slot: usize| At {
            page,
            slot: slot as u32,
        };
        // Saturating: a hint may be too high after the directory has halved.
        let depth_hint = directory.depth().saturating_sub(page.hint());
        let words = self.tree.store.page(page);
        let found = page::find(words, layout, hash, depth_hint, |i, slot| {
            f(at(i), layout.payload(slot))
        })?;
        Some((at(found), layout.payload(words[1 + found])))
    }

    /// Asks for the memory that the next `find` of `hash` looks at.
    #[inline]
    pub fn prefetch(&self, shard: u32, hash: u64) {
        let directory = &self.tree.shards[shard as usize];
        if let Some(page) = directory.page_of(hash) {
            let depth_hint = directory.depth().saturating_sub(page.hint());
            page::prefetch(self.tree.store.page(page), hash, depth_hint);
        }
    }

    /// Overwrites the payload at `at`, keeping its tag. For heat, and for swinging a slot to a copy of the same entry.
    ///
    /// # Panics
    /// If `at` is no slot any more.
    pub fn set(&mut self, at: At, payload: u64) {
        let layout = self.tree.layout;
        let slot = self.slot_mut(at.page, at.slot as usize);
        *slot = layout.with_payload(*slot, payload);
    }

    /// The same, and gives the tag all bits of `hash` again, which must be the hash of the slot's key. May shift the page's slots.
    ///
    /// # Panics
    /// If `at` is no slot any more.
    pub fn set_refresh(&mut self, shard: u32, hash: u64, at: At, payload: u64) {
        debug_assert!({
            let words = self.tree.store.page(at.page);
            let (header, layout) = (page::Header(words[0]), self.tree.layout);
            let probe = layout.probe(hash, header.depth());
            header.place().shard == shard && layout.matches(words[1 + at.slot as usize], probe)
        });
        self.tree
            .refresh_at(at.page, at.slot as usize, hash, payload);
    }

    /// The payload at a place that was found, and whose page has not moved since.
    #[inline]
    fn payload(&self, at: At) -> u64 {
        let words = self.tree.store.page(at.page);
        self.tree.layout.payload(words[1 + at.slot as usize])
    }

    fn slot_mut(&mut self, page: PageRef, i: usize) -> &mut u64 {
        let words = self.tree.store.page_mut(page);
        let slots = page::Header(words[0]).count();
        assert!(i < slots, "slot {i} of a page of {slots}");
        &mut words[1 + i]
    }

    /// Adds a slot; others with an equal tag stay.
    ///
    /// # Errors
    /// `Full`, and then nothing has changed.
    pub fn insert(&mut self, shard: u32, hash: u64, payload: u64) -> Result<(), Full> {
        self.tree.insert(shard, hash, payload)
    }

    /// Removes the first slot that matches `hash` and for whose payload `f` says true; returns the payload.
    pub fn remove(&mut self, shard: u32, hash: u64, mut f: impl FnMut(u64) -> bool) -> Option<u64> {
        let (at, payload) = self.find(shard, hash, |_, payload| f(payload))?;
        self.tree.remove_at(at.page, at.slot as usize);
        Some(payload)
    }

    /// Slots of a shard.
    pub fn len(&self, shard: u32) -> u64 {
        u64::from(self.tree.shards[shard as usize].slots)
    }

    /// Whether no shard has a slot.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// Slots of all shards.
    pub fn total(&self) -> u64 {
        let slots = |directory: &directory::Directory| u64::from(directory.slots);
        self.tree.shards.iter().map(slots).sum()
    }

    /// DRAM that the index holds, in bytes: itself, all capacities, and an estimate of the allocator's overhead. Cheap enough to
    /// ask after every operation.
    pub fn bytes(&self) -> usize {
        size_of::<Index>() + self.tree.heap_bytes()
    }

    /// Upper bound by which `bytes` can grow in one `insert` into `shard` as it is now, copies that live only meanwhile included.
    pub fn max_insert_growth_bytes(&self, shard: u32) -> usize {
        let directory = &self.tree.shards[shard as usize];
        let entries_after = directory.entries_max().max(directory.len());
        // A doubled directory may be a copy.
        let directory_bytes = (directory.len() + entries_after) * size_of::<PageRef>();
        self.tree.store.growth_bytes_max() + directory_bytes
    }

    /// Removes all slots of a shard, page by page: about 4 ms for a million keys, so a caller that must not pause uses `clear`.
    pub fn clear_shard(&mut self, shard: u32) {
        self.tree.clear_shard(shard);
    }

    /// Removes all slots of all shards at once.
    pub fn clear(&mut self) {
        self.tree.clear();
    }

    /// The page that covers the hash `cursor`.
    ///
    /// A walk starts at 0 and goes on at `next_cursor`. A slot that is present during the whole walk is shown at least once,
    /// whatever else changes meanwhile; after a merge some are shown twice.
    pub fn page_from(&self, shard: u32, cursor: u64) -> PageView<'_> {
        let directory = &self.tree.shards[shard as usize];
        let layout = self.tree.layout;
        let Some(at) = directory.page_of(cursor) else {
            return PageView {
                layout,
                place: Place::root(shard),
                slots: &[],
                is_last: true,
            };
        };
        let words = self.tree.store.page(at);
        let place = page::Header(words[0]).place();
        PageView {
            layout,
            place,
            slots: page::slots(words),
            is_last: place.hash_next() == restore::covered_until(&self.tree, shard),
        }
    }

    /// While told so, pages split but neither merge nor vanish: pages read one after the other then cover a shard exactly, whatever
    /// changes in between.
    pub fn keep_pages(&mut self, stay: bool) {
        self.tree.keep_pages(stay);
    }

    /// Overwrites the payload of slot `i` of the page that covers `cursor`, keeping its tag.
    ///
    /// # Panics
    /// If that page has no slot `i`.
    pub fn set_in_page(&mut self, shard: u32, cursor: u64, i: usize, payload: u64) {
        let layout = self.tree.layout;
        let Some(at) = self.tree.page_of(shard, cursor) else {
            panic!("slot {i} of an empty shard");
        };
        let slot = self.slot_mut(at, i);
        *slot = layout.with_payload(*slot, payload);
    }

    /// Adds the next page of a checkpoint to a shard that was empty: pages come in hash order and cover the shard exactly. Until
    /// `is_restored`, inserts are refused with `Full`; finds see what is there.
    ///
    /// # Errors
    /// `BadPage`, and then nothing has changed. The caller clears the shard and rebuilds it otherwise.
    pub fn restore_page(
        &mut self,
        shard: u32,
        prefix_start: u64,
        depth: u32,
        raw: &[u64],
    ) -> Result<(), BadPage> {
        restore::restore_page(&mut self.tree, shard, prefix_start, depth, raw)
    }

    /// Whether a shard's pages cover all hashes: false only between the first and the last `restore_page`.
    pub fn is_restored(&self, shard: u32) -> bool {
        let directory = &self.tree.shards[shard as usize];
        directory.is_empty() || directory.is_whole()
    }
}
