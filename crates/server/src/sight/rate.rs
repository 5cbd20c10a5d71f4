//! How fast commands and bytes come: the counters as they were at the last few tenths of a second, for the figures of INFO
//! that say "now". Never: runs by itself; a thread of the server feeds it.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::sync::lock;

/// What is kept, as in Redis: so many looks, so far apart.
const SAMPLES: usize = 16;
/// Time between two, ms.
pub const SAMPLE_MS: u64 = 100;

/// Counters at a time.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    ms: u64,
    counts: [u64; 3],
}

/// The last few samples.
#[derive(Default)]
pub struct Rate(Mutex<VecDeque<Sample>>);

impl Rate {
    /// Takes note of the commands, and the bytes in and out, until now.
    pub fn sample(&self, ms: u64, counts: [u64; 3]) {
        let mut samples = lock(&self.0);
        if samples.len() >= SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Sample { ms, counts });
    }

    /// What came in a second, lately: commands, bytes in, bytes out.
    pub fn per_second(&self, now_ms: u64, counts: [u64; 3]) -> [u64; 3] {
        let first = lock(&self.0).front().copied().unwrap_or_default();
        let ms = now_ms.saturating_sub(first.ms).max(1);
        // After CONFIG RESETSTAT, counters are lower than they were.
        std::array::from_fn(|i| counts[i].saturating_sub(first.counts[i]) * 1000 / ms)
    }

    /// Forgets all.
    pub fn reset(&self) {
        lock(&self.0).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_samples_count() {
        let rate = Rate::default();
        for at in 0..100u64 {
            rate.sample(at * SAMPLE_MS, [at * 10, 0, at * 1000]);
        }
        assert_eq!(
            rate.per_second(10_000, [1000, 0, 100_000]),
            [100, 0, 10_000]
        );
        assert_eq!(rate.per_second(10_000, [0, 0, 0]), [0, 0, 0]);
    }
}
