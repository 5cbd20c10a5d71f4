//! Segments ordered by how much of them is live: the cleaner's victim is found without looking at all of them.
//!
//! Promises: adding, removing and asking cost the logarithm of the number of segments, or the number of buckets. Never: looks at a
//! segment; whoever changes its live bytes says so.

use std::collections::BTreeSet;

/// Steps in which live shares are told apart.
pub const BUCKETS: usize = 64;

/// Numbers of segments by live share, and within one by age.
#[derive(Debug, Clone)]
pub struct Ranks {
    buckets: Vec<BTreeSet<(u64, u32)>>,
}

/// The bucket of a segment with `live` of `size` bytes live; `size` is a power of two.
#[inline]
pub fn bucket(live: u64, size: u64) -> u8 {
    debug_assert!(size.is_power_of_two());
    ((live * BUCKETS as u64) >> size.trailing_zeros()).min(BUCKETS as u64 - 1) as u8
}

impl Ranks {
    /// Without any segment.
    pub fn new() -> Ranks {
        Ranks {
            buckets: vec![BTreeSet::new(); BUCKETS],
        }
    }
    /// Adds a segment; `age` is lower for older ones.
    pub fn add(&mut self, bucket: u8, age: u64, id: u32) {
        self.buckets[bucket as usize].insert((age, id));
    }
    /// Removes a segment. False: it was not there.
    pub fn remove(&mut self, bucket: u8, age: u64, id: u32) -> bool {
        self.buckets[bucket as usize].remove(&(age, id))
    }
    /// The segments of a bucket, oldest first.
    pub fn of(&self, bucket: u8) -> impl Iterator<Item = u32> + Clone + '_ {
        self.buckets[bucket as usize].iter().map(|&(_, id)| id)
    }
    /// Removes all.
    pub fn clear(&mut self) {
        self.buckets.iter_mut().for_each(BTreeSet::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_bucket_comes_first() {
        let mut ranks = Ranks::new();
        for (live, age, id) in [(16, 7, 1), (17, 3, 2), (1024, 1, 3), (1023, 1, 4)] {
            ranks.add(bucket(live, 1024), age, id);
        }
        assert_eq!(ranks.of(bucket(16, 1024)).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(ranks.of(BUCKETS as u8 - 1).collect::<Vec<_>>(), [3, 4]);
        assert!(ranks.remove(bucket(17, 1024), 3, 2));
        assert!(!ranks.remove(bucket(17, 1024), 3, 2));
        assert_eq!(ranks.of(bucket(16, 1024)).collect::<Vec<_>>(), [1]);
    }
}
