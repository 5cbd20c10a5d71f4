//! What is known of the program's mappings among the heap's pages, and of protections that differ from reading and writing. Pure: nothing here asks the
//! kernel.
//!
//! Promises: a page is mapped once; a range comes apart where a part of it goes or changes. Never: touches memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of pages that do not overlap, each with something that is true of all its pages.
pub struct Pieces<T> {
    /// First page to end and what is true.
    pieces: BTreeMap<u32, (u32, T)>,
}

impl<T> Default for Pieces<T> {
    fn default() -> Pieces<T> {
        Pieces {
            pieces: BTreeMap::new(),
        }
    }
}

impl<T: Copy + PartialEq> Pieces<T> {
    /// Adds a range of which nothing was there; it joins neighbours of which the same is true.
    pub fn add(&mut self, mut range: Range<u32>, what: T) {
        if range.is_empty() {
            return;
        }
        let before = self.pieces.range(..range.start).next_back();
        if let Some((&start, &(end, is))) = before
            && end == range.start
            && is == what
        {
            self.pieces.remove(&start);
            range.start = start;
        }
        if let Some(&(end, is)) = self.pieces.get(&range.end)
            && is == what
        {
            self.pieces.remove(&range.end);
            range.end = end;
        }
        self.pieces.insert(range.start, (range.end, what));
    }

    /// Takes what lies in a range out, and says what it was, in order.
    pub fn take(&mut self, range: Range<u32>) -> Vec<(Range<u32>, T)> {
        let mut taken = Vec::new();
        let first = match self.pieces.range(..=range.start).next_back() {
            Some((&start, &(end, _))) if end > range.start => start,
            _ => range.start,
        };
        let starts: Vec<u32> = self.pieces.range(first..range.end).map(|p| *p.0).collect();
        for start in starts {
            let Some((end, what)) = self.pieces.remove(&start) else {
                continue;
            };
            if start < range.start {
                self.pieces.insert(start, (range.start, what));
            }
            if end > range.end {
                self.pieces.insert(range.end, (end, what));
            }
            taken.push((start.max(range.start)..end.min(range.end), what));
        }
        taken
    }

    /// What lies in a range, in order.
    pub fn look(&self, range: Range<u32>) -> Vec<(Range<u32>, T)> {
        let first = match self.pieces.range(..=range.start).next_back() {
            Some((&start, &(end, _))) if end > range.start => start,
            _ => range.start,
        };
        let pieces = self.pieces.range(first..range.end);
        pieces
            .map(|(&start, &(end, what))| (start.max(range.start)..end.min(range.end), what))
            .collect()
    }

    /// What of a range is there, whatever is true of it, and what is not: each as long as can be, in order.
    pub fn parts(&self, range: Range<u32>) -> (Vec<Range<u32>>, Vec<Range<u32>>) {
        let (mut there, mut holes) = (Vec::<Range<u32>>::new(), Vec::new());
        let mut at = range.start;
        for (piece, _) in self.look(range.clone()) {
            match there.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => there.push(piece.clone()),
            }
            if at < piece.start {
                holes.push(at..piece.start);
            }
            at = piece.end;
        }
        if at < range.end {
            holes.push(at..range.end);
        }
        (there, holes)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (Range<u32>, T)> + '_ {
        self.pieces
            .iter()
            .map(|(&start, &(end, what))| (start..end, what))
    }
}

/// See the head of the file.
#[derive(Default)]
pub struct Mappings {
    /// What mmap handed out, and whether it has room on the SSD.
    pub mapped: Pieces<bool>,
    /// Protections of pages, of mappings or of allocations, that are not to be read and written.
    pub closed: Pieces<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_apart_and_grow_together() {
        let mut pieces = Pieces::default();
        pieces.add(10..20, true);
        pieces.add(20..30, true);
        pieces.add(30..40, false);
        assert_eq!(pieces.all().count(), 2);
        let parts = |pieces: &Pieces<bool>, range| {
            let (there, holes) = pieces.parts(range);
            [there, holes].map(|parts| parts.iter().map(|p| (p.start, p.end)).collect())
        };
        let same = |is: [Vec<(u32, u32)>; 2], there: &[_], holes: &[_]| {
            assert_eq!((is[0].as_slice(), is[1].as_slice()), (there, holes));
        };
        same(parts(&pieces, 12..38), &[(12, 38)], &[]);
        same(parts(&pieces, 5..45), &[(10, 40)], &[(5, 10), (40, 45)]);
        same(parts(&pieces, 50..55), &[], &[(50, 55)]);
        assert_eq!(pieces.look(15..16), [(15..16, true)]);
        let taken = pieces.take(15..35);
        assert_eq!(taken, [(15..30, true), (30..35, false)]);
        let (there, holes) = ([(10, 15), (35, 36)], [(5, 10), (15, 35)]);
        same(parts(&pieces, 5..36), &there, &holes);
        let left: Vec<_> = pieces.all().collect();
        assert_eq!(left, [(10..15, true), (35..40, false)]);
        assert_eq!(pieces.take(0..100).len(), 2);
        assert!(pieces.take(0..100).is_empty());
    }

    #[test]
    fn it_agrees_with_a_plain_array() {
        let mut pieces = Pieces::default();
        let mut plain = [None; 64];
        let mut seed = 7u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..5000 {
            let start = below(64) as u32;
            let end = start + below(65 - u64::from(start)) as u32;
            let what = match below(3) {
                0 => None,
                n => Some(n),
            };
            let taken = pieces.take(start..end);
            let was: Vec<_> = taken
                .into_iter()
                .flat_map(|(range, what)| range.map(move |page| (page, what)))
                .collect();
            let expected = (start..end).filter_map(|p| plain[p as usize].map(|what| (p, what)));
            assert_eq!(was, expected.collect::<Vec<_>>());
            plain[start as usize..end as usize].fill(what);
            if let Some(what) = what {
                pieces.add(start..end, what);
            }
        }
    }
}
