//! LCS: the longest common subsequence of two strings, with the order of choices that Redis has where there are several. It is
//! found in steps, so that nobody is stopped by long strings. Promises: a bit of memory for each pair of bytes.

use crate::KvError;

/// Most pairs of bytes that are compared, as in Redis.
pub const LCS_CELLS_MAX: usize = 128 << 20;

/// A run that both strings have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// First and last byte in the first string.
    pub a: (u32, u32),
    /// First and last byte in the second string.
    pub b: (u32, u32),
}

impl Match {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> u32 {
        self.a.1 - self.a.0 + 1
    }
}

/// What LCS found.
#[derive(Debug, PartialEq, Eq)]
pub struct Lcs {
    /// The subsequence.
    pub bytes: Vec<u8>,
    /// Its runs, last one first.
    pub matches: Vec<Match>,
}

/// Memory that the search in strings of these lengths takes, theirs included, bytes.
///
/// # Errors
/// When there are more pairs than are compared.
pub fn memory_bytes(a_bytes: u64, b_bytes: u64) -> Result<u64, KvError> {
    let cells = (a_bytes + 1).saturating_mul(b_bytes + 1);
    if cells > LCS_CELLS_MAX as u64 {
        return Err(KvError::wrong(
            "Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    // A result, and at most a run for each of its bytes.
    let found = a_bytes.min(b_bytes) * (1 + size_of::<Match>() as u64);
    Ok(a_bytes + b_bytes + cells / 8 + 8 * (a_bytes.min(b_bytes) + 1) + found)
}

/// A search under way.
pub struct Search {
    a: Vec<u8>,
    b: Vec<u8>,
    /// Of each pair of prefixes whether dropping the first string's last byte keeps more than dropping the second's.
    up: Vec<u64>,
    before: Vec<u32>,
    now: Vec<u32>,
    /// The pair that is compared next: its byte of the longer string, and of the shorter.
    at: (usize, usize),
}

impl Search {
    /// In strings that [`memory_bytes`] allows.
    pub fn new(a: Vec<u8>, b: Vec<u8>) -> Search {
        let bits = (a.len() + 1) * (b.len() + 1);
        let row = a.len().min(b.len()) + 1;
        Search {
            up: vec![0; bits.div_ceil(64)],
            before: vec![0; row],
            now: vec![0; row],
            at: (0, 0),
            a,
            b,
        }
    }

    fn is_up(&self, i: usize, j: usize) -> bool {
        let at = i * (self.b.len() + 1) + j;
        self.up[at / 64] >> (at % 64) & 1 == 1
    }

    /// Compares so many pairs at most; answers whether all are.
    pub fn advance(&mut self, mut pairs: usize) -> bool {
        let (mut i, mut from) = self.at;
        let (rows, row) = match self.a.len() >= self.b.len() {
            true => (self.a.len(), self.b.len()),
            false => (self.b.len(), self.a.len()),
        };
        while i < rows && pairs > 0 {
            let to = row.min(from.saturating_add(pairs));
            self.compare(i, from..to);
            pairs -= to - from;
            from = to;
            if to == row {
                std::mem::swap(&mut self.before, &mut self.now);
                (i, from) = (i + 1, 0);
                pairs = pairs.saturating_sub(1);
            }
        }
        self.at = (i, from);
        i == rows
    }

    /// Compares a byte of the longer string with some of the shorter one.
    fn compare(&mut self, row: usize, columns: std::ops::Range<usize>) {
        let a_is_longer = self.a.len() >= self.b.len();
        let (longer, shorter) = match a_is_longer {
            true => (&self.a, &self.b),
            false => (&self.b, &self.a),
        };
        let (x, width) = (longer[row], self.b.len() + 1);
        let (before, now) = (&self.before, &mut self.now);
        for column in columns {
            if x == shorter[column] {
                now[column + 1] = before[column] + 1;
                continue;
            }
            let (less_of_longer, less_of_shorter) = (before[column + 1], now[column]);
            let (up, at) = match a_is_longer {
                true => (
                    less_of_longer > less_of_shorter,
                    (row + 1) * width + column + 1,
                ),
                false => (
                    less_of_shorter > less_of_longer,
                    (column + 1) * width + row + 1,
                ),
            };
            if up {
                self.up[at / 64] |= 1 << (at % 64);
            }
            now[column + 1] = less_of_longer.max(less_of_shorter);
        }
    }

    /// What was found, once all pairs are compared.
    pub fn found(&self) -> Lcs {
        trace(self)
    }
}

fn trace(search: &Search) -> Lcs {
    let (a, b) = (&search.a[..], &search.b[..]);
    let (mut bytes, mut matches) = (Vec::new(), Vec::new());
    let (mut i, mut j) = (a.len(), b.len());
    let mut run: Option<Match> = None;
    while i > 0 && j > 0 {
        if a[i - 1] != b[j - 1] {
            match search.is_up(i, j) {
                true => i -= 1,
                false => j -= 1,
            }
            matches.extend(run.take());
            continue;
        }
        bytes.push(a[i - 1]);
        let (x, y) = (i as u32 - 1, j as u32 - 1);
        run = Some(match run {
            Some(m) => Match {
                a: (x, m.a.1),
                b: (y, m.b.1),
            },
            None => Match {
                a: (x, x),
                b: (y, y),
            },
        });
        i -= 1;
        j -= 1;
    }
    matches.extend(run);
    bytes.reverse();
    Lcs { bytes, matches }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lcs(a: &[u8], b: &[u8], step: usize) -> Lcs {
        let mut search = Search::new(a.to_vec(), b.to_vec());
        while !search.advance(step) {}
        search.found()
    }

    proptest! {
        /// By the length of what is left, as the books have it.
        #[test]
        fn it_is_the_longest_in_steps_of_any_size(
            a in proptest::collection::vec(0u8..4, 0..40), b in proptest::collection::vec(0u8..4, 0..40), step in 1usize..90,
        ) {
            let mut longest = vec![vec![0; b.len() + 1]; a.len() + 1];
            for (i, x) in a.iter().enumerate() {
                for (j, y) in b.iter().enumerate() {
                    longest[i + 1][j + 1] = match x == y {
                        true => longest[i][j] + 1,
                        false => longest[i][j + 1].max(longest[i + 1][j]),
                    };
                }
            }
            let found = lcs(&a, &b, step);
            prop_assert_eq!(found.bytes.len(), longest[a.len()][b.len()]);
            let runs = found.matches.iter().map(|m| m.len_bytes() as usize);
            prop_assert_eq!(runs.sum::<usize>(), found.bytes.len());
            let of_a: Vec<u8> = found.matches.iter().rev().flat_map(|m| a[m.a.0 as usize..=m.a.1 as usize].to_vec()).collect();
            prop_assert_eq!(of_a, found.bytes);
        }
    }

    #[test]
    fn the_example_of_rediss_manual() {
        let found = lcs(b"ohmytext", b"mynewtext", 1000);
        assert_eq!(found.bytes, b"mytext");
        let runs: Vec<_> = found.matches.iter().map(|m| (m.a, m.b)).collect();
        assert_eq!(runs, [((4, 7), (5, 8)), ((2, 3), (0, 1))]);
        assert_eq!(found.matches[0].len_bytes(), 4);
    }

    #[test]
    fn nothing_in_common_and_too_long() {
        assert!(lcs(b"", b"abc", 1).bytes.is_empty());
        assert!(lcs(b"xyz", b"abc", 2).matches.is_empty());
        assert!(memory_bytes(60_000, 60_000).is_err() && memory_bytes(1 << 26, 0).is_ok());
    }
}
