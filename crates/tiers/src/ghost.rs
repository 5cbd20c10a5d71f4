//! Which keys left DRAM unused a short while ago: two bytes each, in a table of fixed size.
//!
//! A key that comes back while it is remembered has shown that its reuse is longer than probation and shorter than the table. Promises: bounded
//! memory, one look a question. Never: remembers for sure (a newer key may take its place) or is always right (one in 2^16 is taken for another).

use terrace_log::Subject;

/// The table; 0 marks an empty place.
#[derive(Debug)]
pub struct Ghost {
    marks: Box<[u16]>,
}

impl Ghost {
    /// Remembers about `keys` keys.
    pub fn new(keys: usize) -> Ghost {
        Ghost {
            marks: vec![0; keys.max(1)].into_boxed_slice(),
        }
    }
    /// Keys it remembers, at most.
    pub fn keys(&self) -> u64 {
        self.marks.len() as u64
    }
    /// Memory taken, bytes.
    pub fn bytes(&self) -> usize {
        self.marks.len() * size_of::<u16>()
    }
    /// A key left.
    pub fn remember(&mut self, who: Subject) {
        let (at, mark) = self.place(who);
        self.marks[at] = mark;
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
        let at = (u128::from(hash) * self.marks.len() as u128) >> 64;
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
        (0..1 << 16).for_each(|n| ghost.remember(key(n)));
        assert!(ghost.recall(key((1 << 16) - 1)));
        assert!(!ghost.recall(key((1 << 16) - 1)), "recalled once");
        let old = (0..1 << 12).filter(|&n| ghost.recall(key(n))).count();
        assert!(old < 1 << 6, "{old} of long ago are remembered");
        assert_eq!(ghost.bytes(), 2 << 12);
    }
}
