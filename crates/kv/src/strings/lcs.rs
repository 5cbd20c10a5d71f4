//! LCS: the longest common subsequence of two strings, with the order of choices that Redis has where there are several.

use crate::KvError;

/// Most pairs of bytes that are compared: a bit of memory each, and about a tenth of a second all together.
pub const LCS_CELLS_MAX: usize = 32 << 20;

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

/// Of each pair of prefixes whether dropping the first string's last byte keeps more than dropping the second's.
struct Table {
    width: usize,
    bits: Vec<u64>,
}

impl Table {
    fn up(&self, i: usize, j: usize) -> bool {
        let at = i * self.width + j;
        self.bits[at / 64] >> (at % 64) & 1 == 1
    }
}

fn table(a: &[u8], b: &[u8]) -> Table {
    let width = b.len() + 1;
    let mut bits = vec![0u64; ((a.len() + 1) * width).div_ceil(64)];
    let (mut before, mut now) = (vec![0u32; width], vec![0u32; width]);
    for (i, x) in a.iter().enumerate() {
        for (j, y) in b.iter().enumerate() {
            now[j + 1] = match x == y {
                true => before[j] + 1,
                false => {
                    if before[j + 1] > now[j] {
                        let at = (i + 1) * width + j + 1;
                        bits[at / 64] |= 1 << (at % 64);
                    }
                    before[j + 1].max(now[j])
                }
            };
        }
        std::mem::swap(&mut before, &mut now);
    }
    Table { width, bits }
}

/// The longest common subsequence.
///
/// # Errors
/// When the strings are so long that it would take too much memory and time.
pub fn lcs(a: &[u8], b: &[u8]) -> Result<Lcs, KvError> {
    if (a.len() + 1).saturating_mul(b.len() + 1) > LCS_CELLS_MAX {
        return Err(KvError::wrong(
            "Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let table = table(a, b);
    let (mut bytes, mut matches) = (Vec::new(), Vec::new());
    let (mut i, mut j) = (a.len(), b.len());
    let mut run: Option<Match> = None;
    while i > 0 && j > 0 {
        if a[i - 1] != b[j - 1] {
            match table.up(i, j) {
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
    Ok(Lcs { bytes, matches })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rediss_manual() {
        let found = lcs(b"ohmytext", b"mynewtext").unwrap();
        assert_eq!(found.bytes, b"mytext");
        let runs: Vec<_> = found.matches.iter().map(|m| (m.a, m.b)).collect();
        assert_eq!(runs, [((4, 7), (5, 8)), ((2, 3), (0, 1))]);
        assert_eq!(found.matches[0].len_bytes(), 4);
    }

    #[test]
    fn nothing_in_common_and_too_long() {
        assert!(lcs(b"", b"abc").unwrap().bytes.is_empty());
        assert!(lcs(b"xyz", b"abc").unwrap().matches.is_empty());
        assert!(lcs(&[0; 60_000], &[0; 60_000]).is_err());
    }
}
