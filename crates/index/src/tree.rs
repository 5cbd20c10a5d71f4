//! Pages, arenas and directories together: how pages change size, split, merge and move.
//!
//! Promises: after each function every directory entry refers to the page that covers it. A change that cannot be finished is
//! refused before anything is touched. Never reads a key and never loops over more than one page's slots, except where a
//! directory doubles or halves.

use crate::Full;
use crate::arena::{PageRef, Store};
use crate::directory::Directory;
use crate::page::{self, Header, PageBuf, Place, SLOTS_MAX, WORDS_PER_LINE};
use crate::slot::Layout;

/// Two halves that together hold at most this many slots become one page; a page splits at 64, so neither follows the other soon.
const MERGE_SLOTS_MAX: usize = 48;
/// Slots that must be spare in the smaller size before a page shrinks into it.
const SHRINK_SPARE_SLOTS: usize = 1;
/// Removals between two looks at the page's other half, which may be a cache miss.
const MERGE_LOOK_SLOTS: usize = 4;

/// Everything of an index; `Index` is its public face.
pub(crate) struct Tree {
    pub(crate) layout: Layout,
    pub(crate) shards: Box<[Directory]>,
    pub(crate) store: Store,
    directory_bytes: usize,
    /// Pages neither merge nor go while the index is being saved: the pieces saved so far must fit the next ones.
    pages_stay: bool,
}

impl Tree {
    pub(crate) fn new(layout: Layout, shards: u32) -> Tree {
        Tree {
            layout,
            shards: (0..shards).map(|_| Directory::new()).collect(),
            store: Store::new(),
            directory_bytes: 0,
            pages_stay: false,
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let shards = crate::chunk::allocation_bytes(size_of_val(&*self.shards));
        shards + self.directory_bytes + self.store.heap_bytes()
    }

    /// Runs a change of one directory and keeps the byte count true.
    fn directory<R>(&mut self, shard: u32, change: impl FnOnce(&mut Directory) -> R) -> R {
        let directory = &mut self.shards[shard as usize];
        self.directory_bytes -= directory.heap_bytes();
        let result = change(directory);
        self.directory_bytes += directory.heap_bytes();
        result
    }

    pub(crate) fn page_of(&self, shard: u32, hash: u64) -> Option<PageRef> {
        self.shards[shard as usize].page_of(hash)
    }

    /// Takes a page out of the arenas. Its directory entries dangle until pages that cover them are put back.
    fn take(&mut self, at: PageRef) -> PageBuf {
        let page = PageBuf::read(self.store.page(at));
        self.shards[page.place.shard as usize].forget(page.place);
        if self.store.free(at) {
            let moved = Header(self.store.page(at)[0]).place();
            self.shards[moved.shard as usize].repoint(moved, at);
        }
        page
    }

    /// Lays a page into the arena of its size and points its entries there.
    pub(crate) fn put(&mut self, page: &PageBuf) {
        let at = self.store.add(page.lines());
        page.write(self.store.page_mut(at), self.layout);
        self.directory(page.place.shard, |directory| directory.add(page.place, at));
    }

    pub(crate) fn deepen(&mut self, shard: u32) {
        self.directory(shard, Directory::double);
    }

    pub(crate) fn insert(&mut self, shard: u32, hash: u64, payload: u64) -> Result<(), Full> {
        let directory = &self.shards[shard as usize];
        if directory.is_empty() {
            self.put(&PageBuf::empty(Place::root(shard)));
        } else if !directory.is_whole() {
            return Err(Full);
        }
        let mut at = self.page_of(shard, hash).ok_or(Full)?;
        if Header(self.store.page(at)[0]).count() == SLOTS_MAX {
            self.split(at, hash)?;
            at = self.page_of(shard, hash).ok_or(Full)?;
        }
        self.insert_at(at, hash, payload);
        self.shards[shard as usize].slots += 1;
        Ok(())
    }

    /// Adds a slot to a page that has fewer than `SLOTS_MAX`.
    fn insert_at(&mut self, at: PageRef, hash: u64, payload: u64) {
        let words = self.store.page_mut(at);
        let header = Header(words[0]);
        let slot = self.layout.probe(hash, header.depth());
        let slot = self.layout.with_payload(slot, payload);
        if header.count() + 1 < words.len() {
            page::insert(words, slot, self.layout);
        } else {
            let mut page = self.take(at);
            page.insert(slot, self.layout);
            self.put(&page);
        }
    }

    /// Splits a full page until a slot for `hash` fits beside those that are there.
    fn split(&mut self, at: PageRef, hash: u64) -> Result<(), Full> {
        let page = PageBuf::read(self.store.page(at));
        let Place { shard, depth, .. } = page.place;
        let probe = self.layout.probe(hash, depth);
        let splits = page.splits_needed(probe, self.layout).ok_or(Full)?;
        let directory = &self.shards[shard as usize];
        if depth + splits > directory.depth() && !directory.may_deepen_to(depth + splits) {
            return Err(Full);
        }
        for _ in 0..splits {
            let at = self.page_of(shard, hash).ok_or(Full)?;
            if Header(self.store.page(at)[0]).depth() == self.shards[shard as usize].depth() {
                self.deepen(shard);
            }
            let (low, high) = self.take(at).split(self.layout);
            self.put(&low);
            self.put(&high);
        }
        Ok(())
    }

    /// Takes out slot `i` of a page and lets the page shrink, merge or go.
    pub(crate) fn remove_at(&mut self, at: PageRef, i: usize) -> u64 {
        let words = self.store.page_mut(at);
        let slot = page::remove(words, i, self.layout);
        let (lines, header) = (words.len() / WORDS_PER_LINE, Header(words[0]));
        let shard = header.place().shard;
        self.shards[shard as usize].slots -= 1;
        if !self.shards[shard as usize].is_whole() {
            return slot;
        }
        if !self.pages_stay
            && header.count().is_multiple_of(MERGE_LOOK_SLOTS)
            && self.merge(header.place())
        {
            return slot;
        }
        if header.count() == 0 && header.depth() == 0 && !self.pages_stay {
            self.take(at);
            self.directory(shard, Directory::reset);
        } else if page::lines_for(header.count() + SHRINK_SPARE_SLOTS) < lines {
            let page = self.take(at);
            self.put(&page);
        }
        slot
    }

    /// Says whether pages neither merge nor vanish from now on. What did not meanwhile does now, where so little is left that a directory is too large for it.
    pub(crate) fn keep_pages(&mut self, stay: bool) {
        let ends = self.pages_stay && !stay;
        self.pages_stay = stay;
        if !ends {
            return;
        }
        for shard in 0..self.shards.len() as u32 {
            if self.shards[shard as usize].is_whole() && self.shards[shard as usize].is_too_deep() {
                self.merge_all(shard);
            }
        }
    }

    /// Merges all pages of a shard that are small. In the order of hashes, so that of two halves the second finds the first as small as it becomes.
    pub(crate) fn merge_all(&mut self, shard: u32) {
        let mut cursor = Some(0);
        while let Some(at) = cursor.and_then(|hash| self.page_of(shard, hash)) {
            let place = Header(self.store.page(at)[0]).place();
            cursor = place.hash_next();
            self.merge(place);
        }
    }

    /// Merges the page of `place` with its other half, and the result with its own, as far as they are small. Says whether it did.
    fn merge(&mut self, mut place: Place) -> bool {
        let shard = place.shard;
        let mut merged = false;
        while let Some((low, high)) = self.mergeable(place) {
            let low = self.take_place(low);
            let high = self.take_place(high);
            let page = PageBuf::merge(&low, &high, self.layout);
            self.put(&page);
            place = page.place;
            merged = true;
        }
        if merged {
            self.directory(shard, Directory::halve_where_possible);
            if self.shards[shard as usize].slots == 0 && place.depth == 0 {
                self.take_place(place);
                self.directory(shard, Directory::reset);
            }
        }
        merged
    }

    fn take_place(&mut self, place: Place) -> PageBuf {
        // Looked up here and not earlier: taking one page may move the other.
        match self.page_of(place.shard, place.hash_first()) {
            Some(at) => self.take(at),
            None => PageBuf::empty(place),
        }
    }

    /// The two halves that should become one page, `place` being one of them.
    fn mergeable(&self, place: Place) -> Option<(Place, Place)> {
        if place.depth == 0 {
            return None;
        }
        let (low, high) = (place.parent().child(0), place.parent().child(1));
        let count = |half: Place| {
            let at = self.page_of(half.shard, half.hash_first())?;
            let header = Header(self.store.page(at)[0]);
            (header.depth() == half.depth).then_some(header.count())
        };
        (count(low)? + count(high)? <= MERGE_SLOTS_MAX).then_some((low, high))
    }

    /// Gives the slot at `i` all valid bits of its hash again, and a new payload.
    pub(crate) fn refresh_at(&mut self, at: PageRef, i: usize, hash: u64, payload: u64) {
        let words = self.store.page_mut(at);
        let slot = self.layout.probe(hash, Header(words[0]).depth());
        if self.layout.tag(words[1 + i]) == self.layout.tag(slot) {
            words[1 + i] = self.layout.with_payload(slot, payload);
            return;
        }
        page::remove(words, i, self.layout);
        page::insert(words, self.layout.with_payload(slot, payload), self.layout);
    }

    /// Frees every page of a shard.
    pub(crate) fn clear_shard(&mut self, shard: u32) {
        let mut cursor = Some(0);
        while let Some(at) = cursor.and_then(|hash| self.page_of(shard, hash)) {
            cursor = self.take(at).place.hash_next();
        }
        self.directory(shard, Directory::reset);
    }

    pub(crate) fn clear(&mut self) {
        self.store = Store::new();
        self.shards.iter_mut().for_each(Directory::reset);
        self.directory_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tree {
        /// Every directory entry leads to the page that covers it, every page is reached, and all counts are what a recount gives.
        fn check(&self) {
            let (mut pages, mut shard_pages, mut directory_bytes) = (0, 0, 0);
            for (shard, directory) in self.shards.iter().enumerate() {
                directory.check_deepest();
                directory_bytes += directory.heap_bytes();
                let (mut slots, mut cursor) = (0, 0);
                let step = 1u64.checked_shl(64 - directory.depth()).unwrap_or(0);
                for entry in 0..directory.len() as u64 {
                    let hash = entry.wrapping_mul(step);
                    let at = directory.page_of(hash).expect("an entry within the array");
                    let words = self.store.page(at);
                    let header = Header(words[0]);
                    let place = header.place();
                    assert_eq!(place.shard as usize, shard);
                    assert!(place.hash_first() <= hash);
                    assert!(place.hash_next().is_none_or(|next| hash < next));
                    if hash == cursor {
                        pages += 1;
                        slots += header.count();
                        cursor = place.hash_next().unwrap_or(0);
                        self.check_page(words);
                    }
                }
                assert_eq!(directory.slots as usize, slots);
                shard_pages += directory.pages as usize;
                assert!(directory.is_empty() || cursor == 0);
            }
            assert_eq!((pages, pages), (self.store.pages(), shard_pages));
            assert_eq!(directory_bytes, self.directory_bytes);
            assert_eq!(self.store.recount_bytes(), self.store.heap_bytes());
        }

        fn check_page(&self, words: &[u64]) {
            let header = Header(words[0]);
            let slots = page::slots(words);
            assert!(
                words[1 + slots.len()..]
                    .iter()
                    .all(|word| *word == u64::MAX)
            );
            assert!(slots.is_sorted_by_key(|slot| self.layout.tag(*slot)));
            let min = slots.iter().map(|slot| self.layout.valid_bits(*slot)).min();
            assert!(min.is_none_or(|min| header.valid_bits_min() == min));
        }
    }

    fn hash(i: u64) -> u64 {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn pages_and_counts_stay_sound_while_growing_and_shrinking() {
        let mut tree = Tree::new(Layout::new(46), 3);
        let keys = 60_000;
        for i in 0..keys {
            tree.insert((i % 3) as u32, hash(i), i)
                .expect("even hashes");
            if i % 5_000 == 17 {
                tree.check();
            }
        }
        tree.check();
        for i in 0..keys {
            let (shard, hash) = ((i % 3) as u32, hash(i));
            let at = tree.page_of(shard, hash).expect("a page");
            let slot = page::find(tree.store.page(at), tree.layout, hash, 0, |_, slot| {
                tree.layout.payload(slot) == i
            });
            tree.remove_at(at, slot.expect("a slot"));
            if i % 5_000 == 17 {
                tree.check();
            }
        }
        tree.check();
        assert_eq!(tree.store.pages(), 0);
    }

    #[test]
    fn an_insert_that_is_refused_changes_nothing() {
        let mut tree = Tree::new(Layout::new(46), 1);
        let full = (0..100).find(|i| tree.insert(0, 1 << 40, *i).is_err());
        assert_eq!(full, Some(SLOTS_MAX as u64));
        assert_eq!((tree.store.pages(), tree.shards[0].depth()), (1, 0));
        // One that differs in the last bit a tag holds would need 17 splits, more than so few slots may ask for.
        assert_eq!(tree.insert(0, 1 << 40 | 1 << 47, 0), Err(Full));
        assert_eq!(tree.insert(0, 1 << 63, 0), Ok(()));
        tree.check();
    }
}
