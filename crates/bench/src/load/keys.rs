//! Which key comes next: in order, uniform, or Zipf over scattered keys.
//!
//! Promises that the same seed gives the same keys, that every choice stays below the number of keys, and that Zipf's ranks are
//! scattered by a one-to-one map, so that hot keys are not neighbours. Never allocates after it was made.

/// Most keys: their numbers have 12 digits.
pub const KEYS_MAX: u64 = 1_000_000_000_000;

/// How keys are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyChoice {
    /// One after the other, and from 0 again after the last; loading uses it.
    InOrder {
        /// The first.
        from: u64,
    },
    /// Each key equally often.
    Uniform,
    /// The key of rank r with a weight of r to the power of minus theta; YCSB uses 0.99.
    Zipf {
        /// The exponent, between 0 and 1, neither included.
        theta: f64,
    },
}

/// The skew of YCSB.
pub const ZIPF: KeyChoice = KeyChoice::Zipf { theta: 0.99 };

/// A small fast generator (xorshift*, one word of state). Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same sequence.
    pub fn new(seed: u64) -> Rng {
        // Zero would stay zero for ever; the finaliser makes neighbouring seeds unlike.
        Rng(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Makes neighbouring numbers unlike: one-to-one on 64 bits.
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A source of key numbers.
#[derive(Debug, Clone)]
pub enum KeySource {
    InOrder { next: u64, keys: u64 },
    Uniform { keys: u64 },
    Zipf(Zipf),
}

impl KeySource {
    pub fn new(choice: KeyChoice, keys: u64) -> KeySource {
        assert!(
            keys > 0 && keys <= KEYS_MAX,
            "the caller checks the number of keys"
        );
        match choice {
            KeyChoice::InOrder { from } => KeySource::InOrder {
                next: from % keys,
                keys,
            },
            KeyChoice::Uniform => KeySource::Uniform { keys },
            KeyChoice::Zipf { theta } => KeySource::Zipf(Zipf::new(keys, theta)),
        }
    }

    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        match self {
            KeySource::InOrder { next, keys } => {
                let key = *next;
                *next = if key + 1 == *keys { 0 } else { key + 1 };
                key
            }
            KeySource::Uniform { keys } => rng.below(*keys),
            KeySource::Zipf(zipf) => zipf.next(rng),
        }
    }
}

/// Zipf after Gray et al., "Quickly generating billion-record synthetic databases" (as YCSB does it), then scattered.
#[derive(Debug, Clone)]
pub struct Zipf {
    keys: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
    scatter: Scatter,
}

impl Zipf {
    pub fn new(keys: u64, theta: f64) -> Zipf {
        assert!(
            theta > 0.0 && theta < 1.0,
            "the method holds for exponents between 0 and 1"
        );
        let zeta = zeta(keys, theta);
        let zeta2 = zeta_exact(2.min(keys), theta);
        Zipf {
            keys,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta: (1.0 - (2.0 / keys as f64).powf(1.0 - theta)) / (1.0 - zeta2 / zeta),
            scatter: Scatter::new(keys),
        }
    }

    /// A rank: 0 is the most frequent.
    fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 || self.keys == 1 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let rank = self.keys as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.keys - 1)
    }

    pub fn next(&self, rng: &mut Rng) -> u64 {
        self.scatter.key(self.rank(rng))
    }

    /// Keys from the most frequent on.
    pub fn by_rank(keys: u64) -> impl Iterator<Item = u64> {
        let scatter = Scatter::new(keys);
        (0..keys).map(move |rank| scatter.key(rank))
    }
}

/// Above this many terms the sum is closed with its integral, so that 10^12 keys start at once.
const ZETA_TERMS_MAX: u64 = 10_000_000;

fn zeta(keys: u64, theta: f64) -> f64 {
    let terms = keys.min(ZETA_TERMS_MAX);
    let tail = ((keys as f64).powf(1.0 - theta) - (terms as f64).powf(1.0 - theta)) / (1.0 - theta);
    zeta_exact(terms, theta) + tail
}

fn zeta_exact(terms: u64, theta: f64) -> f64 {
    (1..=terms).map(|i| (i as f64).powf(-theta)).sum()
}

/// A one-to-one map of 0..keys onto itself that looks random.
#[derive(Debug, Clone)]
struct Scatter {
    keys: u64,
    mask: u64,
    half: u32,
}

impl Scatter {
    fn new(keys: u64) -> Scatter {
        let bits = (64 - (keys - 1).leading_zeros()).max(2);
        Scatter {
            keys,
            mask: (1u64 << bits) - 1,
            half: bits / 2,
        }
    }

    fn key(&self, rank: u64) -> u64 {
        let mut x = rank;
        // Each step is invertible on `bits` bits; walking on until the result is a key keeps it one-to-one on the keys. Less
        // than half of all numbers are no keys, so two walks are the mean; the cycle through `rank` itself bounds it.
        loop {
            for odd in [
                0x9e37_79b9_7f4a_7c15u64,
                0xbf58_476d_1ce4_e5b9,
                0x94d0_49bb_1331_11eb,
            ] {
                x = x.wrapping_add(0x632b_e59b_d9b4_e019).wrapping_mul(odd) & self.mask;
                x ^= x >> self.half;
            }
            if x < self.keys {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn scatter_is_one_to_one() {
        for keys in [1u64, 2, 3, 5, 64, 1000, 4097] {
            let scatter = Scatter::new(keys);
            let mut seen: Vec<u64> = (0..keys).map(|rank| scatter.key(rank)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..keys).collect::<Vec<_>>(), "keys {keys}");
        }
    }

    #[test]
    fn zipf_has_the_skew_it_names() {
        let (keys, draws) = (100_000u64, 400_000u64);
        let zipf = Zipf::new(keys, 0.99);
        let mut rng = Rng::new(7);
        let mut counts: HashMap<u64, u64> = HashMap::new();
        for _ in 0..draws {
            let rank = zipf.rank(&mut rng);
            assert!(rank < keys);
            *counts.entry(rank).or_default() += 1;
        }
        let zeta = zeta_exact(keys, 0.99);
        // The first two ranks are drawn exactly by the method: compare with the law itself, at five standard deviations.
        for rank in [0u64, 1] {
            let p = ((rank + 1) as f64).powf(-0.99) / zeta;
            let expected = draws as f64 * p;
            let got = counts[&rank] as f64;
            assert!(
                (got - expected).abs() < 5.0 * (expected * (1.0 - p)).sqrt(),
                "rank {rank}: {got}, {expected}"
            );
        }
        // The hottest 1 % of keys against the law; the method approximates the middle ranks, so a band of 3 points.
        let top: u64 = (0..keys / 100).filter_map(|rank| counts.get(&rank)).sum();
        let law = zeta_exact(keys / 100, 0.99) / zeta;
        assert!(
            (top as f64 / draws as f64 - law).abs() < 0.03,
            "top 1 %: {top} of {draws}, law {law}"
        );
    }

    #[test]
    fn uniform_is_even_and_in_order_wraps() {
        let mut rng = Rng::new(3);
        let mut counts = [0u64; 16];
        let mut source = KeySource::new(KeyChoice::Uniform, 16);
        for _ in 0..160_000 {
            counts[source.next(&mut rng) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&c| (9_400..10_600).contains(&c)),
            "{counts:?}"
        );
        let mut source = KeySource::new(KeyChoice::InOrder { from: 1 }, 3);
        let keys: Vec<u64> = (0..7).map(|_| source.next(&mut rng)).collect();
        assert_eq!(keys, [1, 2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn zeta_of_many_keys_is_close_to_the_sum() {
        let exact = zeta_exact(ZETA_TERMS_MAX + 1_000_000, 0.99);
        assert!((zeta(ZETA_TERMS_MAX + 1_000_000, 0.99) / exact - 1.0).abs() < 1e-6);
    }
}
