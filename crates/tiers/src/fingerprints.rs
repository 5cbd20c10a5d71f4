//! Whose the entries below are: 64 bits for each of those that left DRAM last, so that an update need not read what it replaces.
//!
//! A slot has no key, and to read an entry only to see its key costs as much as to read it for its value. A fingerprint is of the
//! key's hash, of the place of the entry, and of the life of that place's segment: it holds as long as the entry lies there, and
//! nobody need take it back (docs/adr/0047).
//!
//! | the table is | entered by | left by |
//! |---|---|---|
//! | not there | opening; DRAM for segments became short | an update that would have used it, where DRAM is not short |
//! | asked for, and counted | that | segments of DRAM have given way |
//! | there | that | DRAM for segments became short |
//!
//! Promises: bounded memory; one line of the cache a question; another key is taken for the entry's own once in 2^64, beside what the
//! slot's tag tells apart. Never: knows that an entry is another key's, remembers for sure, or knows what is not a value.

use terrace_log::{Loc, Subject};

/// Fewer segments of DRAM, and it is given up.
const SEGMENTS_KEPT_MIN: usize = 9;
/// Fingerprints in a line of the cache.
const LINE: usize = 8;

/// The table; see above for its states.
#[derive(Default)]
pub struct Fingerprints {
    /// Lines of fingerprints, in each the latest first; 0 marks an empty place.
    words: Box<[u64]>,
    /// Where the first line begins, so that each is one of the cache.
    skip: usize,
    lines: usize,
    /// Bytes that are asked for; 0: none.
    asked_bytes: usize,
    /// Whether the cap's ledger knows of these, so that DRAM's segments give way.
    is_counted: bool,
    /// Segments that DRAM was allowed when it was asked for.
    segments: usize,
}

impl Fingerprints {
    /// Memory taken or asked for, bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.words) + self.asked_bytes
    }
    /// So many bytes of memory are asked for, where DRAM has so many segments.
    pub(crate) fn asked(bytes: usize, segments: usize) -> Fingerprints {
        Fingerprints {
            asked_bytes: bytes,
            segments,
            ..Fingerprints::default()
        }
    }
    /// Whether memory is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked_bytes > 0
    }
    /// Makes the table that was asked for once DRAM's segments have given way, and gives it up where DRAM has become short.
    pub(crate) fn keep(&mut self, held_segments: usize, quota_segments: usize) {
        let is_short = quota_segments < SEGMENTS_KEPT_MIN.max(self.segments / 4);
        if is_short && self.bytes() > 0 {
            *self = Fingerprints::default();
        }
        if self.is_asked() {
            match self.is_counted && held_segments <= quota_segments {
                true => self.make(),
                false => self.is_counted = true,
            }
        }
    }
    fn make(&mut self) {
        let words = std::mem::take(&mut self.asked_bytes) / size_of::<u64>();
        // The kernel's zeroes, page by page as they are wanted: filling it would be a pause.
        self.words = vec![0; words].into_boxed_slice();
        self.skip = self.words.as_ptr().align_offset(LINE * size_of::<u64>());
        self.lines = words.saturating_sub(self.skip) / LINE;
    }
    pub(crate) fn is_made(&self) -> bool {
        self.lines > 0
    }
    fn line(&mut self, who: Subject) -> &mut [u64] {
        // Bits that neither lane nor shard use up alone.
        let hash = who.hash.index ^ who.hash.place.rotate_left(32);
        let at = ((u128::from(hash) * self.lines as u128) >> 64) as usize;
        &mut self.words[self.skip + at * LINE..][..LINE]
    }
    /// What was remembered longest ago gives way.
    pub(crate) fn remember(&mut self, who: Subject, print: u64) {
        let line = self.line(who);
        let at = line.iter().position(|&p| p == print).unwrap_or(LINE - 1);
        line.copy_within(..at, 1);
        line[0] = print;
    }
    /// Whether it is remembered; it is forgotten then.
    pub(crate) fn recall(&mut self, who: Subject, print: u64) -> bool {
        let line = self.line(who);
        let Some(at) = line.iter().position(|&p| p == print) else {
            return false;
        };
        line.copy_within(at + 1.., at);
        line[LINE - 1] = 0;
        true
    }
}

/// The fingerprint of `who`'s entry at `loc` in this life of its segment.
pub(crate) fn print(who: Subject, loc: Loc, generation: u32) -> u64 {
    let place = spread(loc.raw() ^ spread(u64::from(generation)));
    // Lane and shard are bits of `place`, and the tag is of the upper bits of `index`: others of it make up for those.
    (who.hash.place ^ who.hash.index.rotate_left(32) ^ place).max(1)
}

/// Spreads a number over all values (the finisher of SplitMix64).
fn spread(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_log::{KeyHash, Terrace};

    fn who(n: u64) -> Subject {
        let hash = KeyHash {
            index: spread(n),
            place: spread(n ^ 1 << 40),
        };
        Subject { space: 0, hash }
    }
    fn below(unit: u64) -> Loc {
        Loc::new(Terrace::Ssd, 3, unit)
    }
    fn table(bytes: usize) -> Fingerprints {
        let mut prints = Fingerprints {
            asked_bytes: bytes,
            ..Fingerprints::default()
        };
        prints.make();
        prints
    }

    #[test]
    fn the_latest_are_known_until_they_are_asked_for() {
        let mut prints = table(1 << 16);
        assert_eq!(prints.bytes(), 1 << 16);
        let fits = (1 << 16) / 8;
        let of = |n: u64| print(who(n), below(n), 1);
        (0..16 * fits).for_each(|n| prints.remember(who(n), of(n)));
        let latest = (16 * fits - fits / 4..16 * fits).filter(|&n| prints.recall(who(n), of(n)));
        let latest = latest.count() as u64;
        assert!(latest > fits / 4 * 95 / 100, "{latest} of {}", fits / 4);
        let again = (16 * fits - fits / 4..16 * fits).filter(|&n| prints.recall(who(n), of(n)));
        assert_eq!(again.count(), 0, "forgotten when asked for");
        let old = (0..8 * fits).filter(|&n| prints.recall(who(n), of(n)));
        assert_eq!(old.count(), 0, "of long ago");
    }

    /// Remembered twice it takes one place, so that it does not push out others.
    #[test]
    fn the_same_entry_takes_one_place() {
        let mut prints = table(2 * 64 + 64);
        let of = |n: u64| print(who(n), below(n), 1);
        prints.remember(who(1), of(1));
        (0..100).for_each(|_| prints.remember(who(2), of(2)));
        assert!(prints.recall(who(1), of(1)));
        assert!(prints.recall(who(2), of(2)));
        assert!(!prints.recall(who(2), of(2)));
    }

    /// Another key, another place, or another life of the segment is another fingerprint.
    #[test]
    fn a_fingerprint_is_of_key_place_and_life() {
        let mut prints = table(2 * 64 + 64);
        prints.remember(who(1), print(who(1), below(5), 7));
        for (n, unit, life) in [(2, 5, 7), (1, 6, 7), (1, 5, 8)] {
            let print = print(who(n), below(unit), life);
            assert!(!prints.recall(who(1), print), "{n} {unit} {life}");
        }
        assert!(prints.recall(who(1), print(who(1), below(5), 7)));
    }
}
