//! Which objects an operation touches: one, or those that an application of `examples/` touches for one key.
//!
//! Promises: each thread of an application has a shard of its own, of the same form, in which the same keys are asked for equally often; the object that is written to comes
//! last; numbers of objects stay below how many there are. Never: touches one.

use crate::load::keys::{Zipf, mix};
use anyhow::{Result, bail};

/// Threads of an application, and so its shards.
pub const SHARDS: u64 = 16;
/// Keys in a leaf of the B+tree once it was filled in order, and children of what is above: half of what fits.
const KEYS_A_LEAF: u64 = 15;
const CHILDREN: u64 = 16;
/// Keys and bins of HashCache, where each bin has eight places and a third of all are free.
const BINS_A_KEY: (u64, u64) = (3, 16);

/// What is done for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Its object is touched; there are no shards.
    One,
    /// From the root down to its leaf (`examples/btree`).
    Tree,
    /// Its packet; the index beside is not among the objects (`examples/packetcache`).
    Packets,
    /// The bin that it shares with others (`examples/hashcache`).
    Bins,
}

impl Pattern {
    const ALL: &[Pattern] = &[Pattern::One, Pattern::Tree, Pattern::Packets, Pattern::Bins];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::One => "one",
            Pattern::Tree => "tree",
            Pattern::Packets => "packets",
            Pattern::Bins => "bins",
        }
    }

    /// What lz4 leaves of an object of so many bytes, on average, as the application has them: counted by hand in the store while it loaded them (docs/adr/0058).
    pub fn packed_bytes(self, object_bytes: u64) -> u64 {
        let (packed, of) = match self {
            Pattern::One => (1, 1),
            Pattern::Tree => (160, 512),
            Pattern::Packets => (600, 1024),
            Pattern::Bins => (64, 128),
        };
        object_bytes * packed / of
    }

    /// The pattern of that name.
    pub fn parse(name: &str) -> Result<Pattern> {
        match Pattern::ALL.iter().find(|pattern| pattern.name() == name) {
            Some(pattern) => Ok(*pattern),
            None => bail!("there is no pattern called `{name}`"),
        }
    }
}

/// Objects that lie in the order of the keys.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// The first of them within a shard.
    first: u64,
    objects: u64,
}

/// Where the objects of each key are.
#[derive(Debug)]
pub struct Paths {
    pattern: Pattern,
    /// Keys and objects of a shard.
    keys: u64,
    objects: u64,
    /// Those of a shard, as an operation meets them.
    levels: Vec<Level>,
}

impl Paths {
    /// Over so many objects, or a few less where they do not divide.
    pub fn new(pattern: Pattern, objects: u64) -> Paths {
        let objects = match pattern {
            Pattern::One => objects,
            _ => objects / SHARDS,
        };
        let (keys, counts) = match pattern {
            Pattern::One | Pattern::Packets => (objects, vec![objects]),
            Pattern::Bins => (objects * BINS_A_KEY.1 / BINS_A_KEY.0, vec![objects]),
            Pattern::Tree => {
                // So many less as levels may come to by being rounded up.
                let leaves = objects.saturating_sub(u64::BITS.into()) * (CHILDREN - 1) / CHILDREN;
                let above = |below: &u64| (*below > 1).then(|| below.div_ceil(CHILDREN));
                let mut counts: Vec<u64> =
                    std::iter::successors(Some(leaves.max(1)), above).collect();
                counts.reverse();
                (leaves.max(1) * KEYS_A_LEAF, counts)
            }
        };
        let firsts = counts.iter().scan(0, |next, objects| {
            *next += objects;
            Some(*next - objects)
        });
        let levels = firsts.zip(&counts).map(|(first, objects)| Level {
            first,
            objects: *objects,
        });
        Paths {
            pattern,
            keys,
            objects,
            levels: levels.collect(),
        }
    }

    /// Keys that a thread draws from.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// The objects that are touched for what thread `thread` drew.
    pub fn objects(&self, thread: u64, drawn: u64) -> impl Iterator<Item = u64> + '_ {
        let (shard, key) = match self.pattern {
            Pattern::One => (0, drawn),
            // As the applications draw: several ranks may fall on one key, and none on another.
            _ => (thread % SHARDS, mix(drawn) % self.keys),
        };
        let first = shard * self.objects;
        (self.levels.iter()).map(move |level| first + level.of(key, self.keys))
    }

    /// What all objects are touched, in the parts that `by_popularity` counts in.
    pub fn weight(&self, theta: f64) -> f64 {
        let keys: f64 = (1..=self.keys).map(|rank| (rank as f64).powf(-theta)).sum();
        let shards = if self.pattern == Pattern::One {
            1
        } else {
            SHARDS
        };
        keys * (shards * self.levels.len() as u64) as f64
    }

    /// All objects from the one that is touched most often on, by Zipf's law with exponent `theta`, and how often each is, in parts of what is touched.
    pub fn by_popularity(&self, theta: f64) -> Box<dyn Iterator<Item = (u64, f64)> + '_> {
        let weight = move |rank: usize| ((rank + 1) as f64).powf(-theta);
        let ranked = move || Zipf::by_rank(self.keys).enumerate();
        if self.pattern == Pattern::One {
            return Box::new(ranked().map(move |(rank, key)| (key, weight(rank))));
        }
        // Of one shard, since all are alike.
        let mut weights = vec![0.0; self.objects as usize];
        for (rank, drawn) in ranked() {
            for object in self.objects(0, drawn) {
                weights[object as usize] += weight(rank);
            }
        }
        let mut order: Vec<u32> = (0..self.objects as u32).collect();
        order.sort_unstable_by(|a, b| weights[*b as usize].total_cmp(&weights[*a as usize]));
        Box::new(order.into_iter().flat_map(move |object| {
            let weight = weights[object as usize];
            (0..SHARDS).map(move |shard| (shard * self.objects + u64::from(object), weight))
        }))
    }
}

impl Level {
    /// The object that key `key` of so many has here.
    fn of(&self, key: u64, keys: u64) -> u64 {
        self.first + (u128::from(key) * u128::from(self.objects) / u128::from(keys)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const THETA: f64 = 0.99;

    #[test]
    fn an_operation_touches_a_node_of_each_level_and_parents_have_their_children() {
        let paths = Paths::new(Pattern::Tree, 16 * 5000);
        assert_eq!(paths.levels.len(), 5, "{paths:?}");
        assert_eq!(paths.levels[0].objects, 1);
        let mut leaves: HashSet<u64> = HashSet::new();
        for drawn in 0..paths.keys() {
            let path: Vec<u64> = paths.objects(3, drawn).collect();
            assert!(path.windows(2).all(|pair| pair[0] < pair[1]), "{path:?}");
            assert!(path.iter().all(|object| *object / 5000 == 3), "{path:?}");
            leaves.extend(path.last());
        }
        assert!(leaves.len() as u64 <= paths.levels[4].objects);
    }

    #[test]
    fn what_is_most_popular_comes_first_and_each_object_once() {
        for (pattern, objects) in [
            (Pattern::One, 1000),
            (Pattern::Tree, 16 * 300),
            (Pattern::Packets, 1600),
            (Pattern::Bins, 1600),
        ] {
            let paths = Paths::new(pattern, objects);
            let all: Vec<(u64, f64)> = paths.by_popularity(THETA).collect();
            let different: HashSet<u64> = all.iter().map(|(object, _)| *object).collect();
            assert_eq!(all.len(), different.len());
            assert!(all.iter().all(|(object, _)| *object < objects));
            assert!(all.windows(2).all(|pair| pair[0].1 >= pair[1].1));
            let sum: f64 = all.iter().map(|(_, weight)| weight).sum();
            assert!((sum / paths.weight(THETA) - 1.0).abs() < 1e-9);
            let touched: HashSet<u64> = (0..paths.keys())
                .flat_map(|drawn| paths.objects(0, drawn).collect::<Vec<_>>())
                .collect();
            let said: HashSet<u64> = (all.iter())
                .filter(|(object, weight)| *weight > 0.0 && *object < paths.objects)
                .map(|(object, _)| *object)
                .collect();
            assert_eq!(touched, said, "{pattern:?}");
        }
    }

    #[test]
    fn names_are_parsed() {
        for pattern in Pattern::ALL {
            assert_eq!(Pattern::parse(pattern.name()).ok(), Some(*pattern));
        }
        assert!(Pattern::parse("none").is_err());
    }
}
