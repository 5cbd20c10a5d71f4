//! Which generations of a named region count, as it stands in the pool: one entry, replaced whole.
//!
//! Little-endian words: 1 if the region was closed (else 0), the generation that was synced last, the one written now, pages, the root (all ones: none), then pairs: first
//! and last generation of each dead range, and as many of none (1 and 0) as are missing to [`DEAD_MAX`] and one: its length stays the same, so that a full SSD takes it. Promises: what was decoded was encoded by this file. Never: reads or writes the pool.

/// Generations that a process may leave pending when it dies: more than it can write, since the control names only the first.
const LEFT_PENDING: u64 = 1 << 32;
/// Ranges of dead generations that there is room for; for a moment there is one more. When they are used up, every page is looked at once.
pub(super) const DEAD_MAX: usize = 64;
/// No root was set.
pub(crate) const NO_ROOT: u64 = u64::MAX;

/// See the head of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Control {
    /// The region was closed: nothing is pending above `synced`.
    pub closed: bool,
    pub synced: u64,
    /// What is written now; above `synced` and every dead range.
    pub working: u64,
    pub pages: u64,
    /// A byte of the region, or [`NO_ROOT`].
    pub root: u64,
    pub dead: Vec<(u64, u64)>,
}

impl Control {
    /// Of a region that is made.
    pub fn new(pages: u64) -> Control {
        Control {
            closed: true,
            synced: 0,
            working: 1,
            pages,
            root: NO_ROOT,
            dead: Vec::new(),
        }
    }

    /// Whether a version of this generation is part of the region.
    pub fn counts(&self, generation: u64) -> bool {
        let dead = |&(first, last): &(u64, u64)| (first..=last).contains(&generation);
        generation <= self.synced && !self.dead.iter().any(dead)
    }

    /// What a new process begins with: everything above the last sync is dead, if there can be any.
    pub fn take_over(&mut self) {
        if self.closed {
            self.closed = false;
            return;
        }
        let last = self.working + LEFT_PENDING;
        match self.dead.last_mut() {
            Some((first, end)) if *first == self.synced + 1 => *end = last,
            _ => self.dead.push((self.synced + 1, last)),
        }
        self.working = last + 1;
    }

    pub fn encode(&self) -> Vec<u8> {
        let words = [
            u64::from(self.closed),
            self.synced,
            self.working,
            self.pages,
            self.root,
        ];
        let none = std::iter::repeat_n(&(1, 0), (DEAD_MAX + 1).saturating_sub(self.dead.len()));
        let dead = self.dead.iter().chain(none).flat_map(|&(a, b)| [a, b]);
        (words.into_iter().chain(dead))
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    pub fn decode(bytes: &[u8]) -> Option<Control> {
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("eight bytes"));
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let [closed, synced, working, pages, root, ref dead @ ..] = words[..] else {
            return None;
        };
        let whole = bytes.len().is_multiple_of(8) && dead.len().is_multiple_of(2);
        (whole && closed <= 1 && working > synced).then(|| Control {
            closed: closed == 1,
            synced,
            working,
            pages,
            root,
            dead: (dead.chunks_exact(2).map(|two| (two[0], two[1])))
                .filter(|(first, last)| first <= last)
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_process_left_never_counts_and_what_it_synced_does() {
        let mut control = Control::new(7);
        control.take_over();
        // The first life syncs generations 1 and 2, and writes 3.
        (control.synced, control.working) = (2, 3);
        control.take_over();
        assert!(control.counts(1) && control.counts(2) && !control.counts(3));
        let second = control.working;
        // The second dies before it syncs: one dead range is enough.
        control.take_over();
        assert_eq!(control.dead.len(), 1);
        let third = control.working;
        (control.synced, control.working) = (third, third + 1);
        assert!(
            control.counts(third)
                && control.counts(2)
                && !control.counts(3)
                && !control.counts(second)
        );
        control.closed = true;
        control.take_over();
        assert_eq!((control.dead.len(), control.working), (1, third + 1));
        assert_eq!(Control::decode(&control.encode()), Some(control.clone()));
        let bytes = control.encode();
        assert_eq!(bytes.len(), Control::new(7).encode().len());
        assert_eq!(Control::decode(&bytes[..bytes.len() - 8]), None);
        assert_eq!(Control::decode(&bytes[..24]), None);
    }
}
