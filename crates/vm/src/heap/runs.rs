//! Which pages of a region are free, as runs that grow together again.
//!
//! Promises: of the runs that are long enough the shortest is taken, of these the lowest; neighbours that are free are one run. Never: touches
//! the pages.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs of pages.
pub(super) struct Runs {
    /// Length and first page.
    by_len: BTreeSet<(u32, u32)>,
    /// First page to length.
    by_first: BTreeMap<u32, u32>,
}

impl Runs {
    /// All of `pages` pages are free.
    pub fn new(pages: u32) -> Runs {
        let mut runs = Runs {
            by_len: BTreeSet::new(),
            by_first: BTreeMap::new(),
        };
        runs.add(0, pages);
        runs
    }

    /// None are free.
    pub fn none() -> Runs {
        Runs::new(0)
    }

    /// First page and length of each.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_first.iter().map(|(first, len)| (*first, *len))
    }

    /// Whether any of the `len` pages from `first` on is free.
    pub fn meets(&self, first: u32, len: u32) -> bool {
        let last = self.by_first.range(..first.saturating_add(len)).next_back();
        last.is_some_and(|(start, have)| start + have > first)
    }

    fn add(&mut self, first: u32, len: u32) {
        if len > 0 {
            self.by_len.insert((len, first));
            self.by_first.insert(first, len);
        }
    }

    fn remove(&mut self, first: u32, len: u32) {
        self.by_len.remove(&(len, first));
        self.by_first.remove(&first);
    }

    /// Takes `len` pages, the first a multiple of `align`.
    pub fn take(&mut self, len: u32, align: u32) -> Option<u32> {
        let fits = |&&(have, first): &&(u32, u32)| {
            let start = first.next_multiple_of(align);
            u64::from(start) + u64::from(len) <= u64::from(first) + u64::from(have)
        };
        let (have, first) = *self.by_len.range((len, 0)..).find(fits)?;
        let start = first.next_multiple_of(align);
        self.remove(first, have);
        self.add(first, start - first);
        self.add(start + len, first + have - start - len);
        Some(start)
    }

    /// Takes the `len` pages from `first` on, if they are free: the start of a run, or what is within one.
    pub fn take_at(&mut self, first: u32, len: u32) -> bool {
        let Some((&start, &have)) = self.by_first.range(..=first).next_back() else {
            return false;
        };
        let (end, before) = (start + have, first - start);
        let fits = first < end && len <= end - first;
        if fits {
            self.remove(start, have);
            self.add(start, before);
            self.add(first + len, end - first - len);
        }
        fits
    }

    /// Pages are free again.
    pub fn give(&mut self, mut first: u32, mut len: u32) {
        let before = self.by_first.range(..first).next_back();
        if let Some((&start, &have)) = before {
            debug_assert!(start + have <= first, "pages given twice");
            if start + have == first {
                self.remove(start, have);
                (first, len) = (start, have + len);
            }
        }
        if let Some(&have) = self.by_first.get(&(first + len)) {
            self.remove(first + len, have);
            len += have;
        }
        self.add(first, len);
    }

    /// Runs there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.by_first.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_grow_together() {
        let mut runs = Runs::new(100);
        let taken: Vec<u32> = (0..10).map(|_| runs.take(10, 1).expect("free")).collect();
        assert_eq!(runs.take(1, 1), None);
        for first in taken
            .iter()
            .step_by(2)
            .chain(taken.iter().skip(1).step_by(2))
        {
            runs.give(*first, 10);
        }
        assert_eq!((runs.count(), runs.take(100, 1)), (1, Some(0)));
    }

    #[test]
    fn pages_are_taken_where_they_are_asked_for() {
        let mut runs = Runs::new(100);
        assert!(runs.take_at(40, 20), "within a run");
        for (first, len) in [(39, 2), (59, 2), (45, 5), (0, 41), (60, 41), (100, 1)] {
            assert!(!runs.take_at(first, len), "{first}, {len} pages");
        }
        assert!(runs.take_at(0, 10) && runs.take_at(90, 10) && runs.take_at(60, 30));
        assert_eq!((runs.count(), runs.take(30, 1)), (1, Some(10)));
        assert!(!runs.take_at(0, 1), "none is free");
    }

    proptest! {
        #[test]
        fn no_page_is_taken_twice_and_none_is_lost(steps in prop::collection::vec((1u32..40, 0u32..4, any::<bool>(), any::<usize>()), 1..200)) {
            const PAGES: u32 = 512;
            let mut runs = Runs::new(PAGES);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            let mut used = vec![false; PAGES as usize];
            for (len, align, give, which) in steps {
                if give && !taken.is_empty() {
                    let (first, len) = taken.swap_remove(which % taken.len());
                    used[first as usize..(first + len) as usize].fill(false);
                    runs.give(first, len);
                } else if let Some(first) = runs.take(len, 1 << align) {
                    prop_assert_eq!(first % (1 << align), 0);
                    for page in first..first + len {
                        prop_assert!(!std::mem::replace(&mut used[page as usize], true));
                    }
                    taken.push((first, len));
                } else {
                    // Refused: then there really is no such run.
                    let fits = (0..PAGES - len + 1).step_by(1 << align)
                        .any(|at| used[at as usize..(at + len) as usize].iter().all(|u| !u));
                    prop_assert!(!fits);
                }
            }
            for (first, len) in taken {
                runs.give(first, len);
            }
            prop_assert_eq!((runs.count(), runs.take_at(0, PAGES)), (1, true));
        }
    }
}
