//! A small random generator (splitmix64) for simulations.
//!
//! Promises: the same numbers from the same seed, on every machine and in every version.
//! Never: good enough for secrets.

/// Random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator; equal seeds give equal numbers, and near seeds unrelated ones.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a random number below 0");
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_of_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_reaches_all_and_no_more() {
        let mut rng = Rng::new(7);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[rng.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
