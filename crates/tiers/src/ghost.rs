//! Which keys left DRAM a short while ago, those that were used there only where that is asked: two bytes each, in a table of fixed size.
//!
//! A key that comes back while it is remembered has shown that its reuse is longer than probation and shorter than the table. Too long a memory takes what comes
//! back by chance for hot, so of the table only as many places are used as entries that leave would fit into DRAM ([`policy::ghost_part`]). Promises: bounded
//! memory, one look a question. Never: remembers for sure (a newer key may take its place) or is always right (one in 2^16 is taken for another).

use crate::policy;
use terrace_log::Subject;

/// The table; 0 marks an empty place.
#[derive(Debug)]
pub struct Ghost {
    marks: Box<[u16]>,
    /// Places in use.
    used: usize,
    /// Keys remembered since the last look at their lengths, and the sum of those.
    seen: u64,
    seen_bytes: u64,
}

/// Keys between two looks at how long their entries are.
const LOOK_EVERY: u64 = 1024;

impl Ghost {
    /// Remembers about `keys` keys.
    pub fn new(keys: usize) -> Ghost {
        Ghost {
            marks: vec![0; keys.max(1)].into_boxed_slice(),
            used: keys.max(1),
            seen: 0,
            seen_bytes: 0,
        }
    }
    /// Keys it remembers, at most.
    pub fn keys(&self) -> u64 {
        self.used as u64
    }
    /// Memory taken, bytes.
    pub fn bytes(&self) -> usize {
        self.marks.len() * size_of::<u16>()
    }
    /// A key left, with an entry of `bytes`.
    pub fn remember(&mut self, who: Subject, bytes: usize) {
        let (at, mark) = self.place(who);
        self.marks[at] = mark;
        self.seen += 1;
        self.seen_bytes += bytes as u64;
        if self.seen == LOOK_EVERY {
            let part = self.marks.len() / self.used;
            let part = policy::ghost_part(self.seen_bytes / self.seen, part as u64);
            let used = (self.marks.len() / part as usize).max(1);
            if used != self.used {
                // Places are others then, and a table that grows again must not recall what left long ago. It seldom changes.
                self.marks.fill(0);
                self.used = used;
            }
            (self.seen, self.seen_bytes) = (0, 0);
        }
    }
    /// Whether the key left lately; it is forgotten then.
    pub fn recall(&mut self, who: Subject) -> bool {
        let (at, mark) = self.place(who);
        let there = self.marks[at] == mark;
        if there {
            self.marks[at] = 0;
        }
        there
    }
    fn place(&self, who: Subject) -> (usize, u16) {
        // Bits that neither lane nor shard use up alone; the hash is keyed, so nobody can aim.
        let hash = who.hash.index ^ who.hash.place.rotate_left(32);
        let at = (u128::from(hash) * self.used as u128) >> 64;
        (at as usize, hash as u16 | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_log::KeyHash;

    #[test]
    fn remembers_the_latest_and_forgets_what_was_recalled() {
        let mut ghost = Ghost::new(1 << 12);
        let key = |n: u64| Subject {
            space: 0,
            hash: KeyHash {
                index: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                place: 0,
            },
        };
        (0..1 << 16).for_each(|n| ghost.remember(key(n), 200));
        assert!(ghost.recall(key((1 << 16) - 1)));
        assert!(!ghost.recall(key((1 << 16) - 1)), "recalled once");
        let old = (0..1 << 12).filter(|&n| ghost.recall(key(n))).count();
        assert!(old < 1 << 6, "{old} of long ago are remembered");
        assert_eq!((ghost.bytes(), ghost.keys()), (2 << 12, 1 << 12));
        (0..1 << 12).for_each(|n| ghost.remember(key(n), 2200));
        assert_eq!((ghost.bytes(), ghost.keys()), (2 << 12, 1 << 10));
        assert!(ghost.recall(key((1 << 12) - 1)));
        // What was there before it shrank is not recalled when it has grown again.
        (1 << 20..(1 << 20) + 4096).for_each(|n| ghost.remember(key(n), 200));
        assert_eq!(ghost.keys(), 1 << 12);
        let old = (0..1 << 16).filter(|&n| ghost.recall(key(n))).count();
        assert!(old < 1 << 6, "{old} of long ago are remembered");
    }
}
