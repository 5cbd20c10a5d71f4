//! The two segments with the lowest batch seqs, by a walk over all of a lane's, a few at a time.
//!
//! Promises: what it found stays a lower bound, since seqs only grow. Never: changes a segment.

use crate::ssd::{Segment, State};

/// Where the walk is, and what it and the one before found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Oldest {
    at: usize,
    lowest: [(u64, u32); 2],
    found: [(u64, u32); 2],
    /// The lowest of segments that are set aside, on this walk so far and on the last.
    aside: [u64; 2],
}

impl Oldest {
    /// Before the first walk, when nothing is known.
    pub(crate) fn new() -> Oldest {
        Oldest {
            at: 0,
            lowest: [(u64::MAX, u32::MAX); 2],
            found: [(0, u32::MAX); 2],
            aside: [u64::MAX; 2],
        }
    }

    /// A lower bound of the batch seqs in all segments but one.
    pub(crate) fn seq(&self, except: u32) -> u64 {
        let [lowest, next] = self.found;
        match lowest.1 == except {
            true => next.0,
            false => lowest.0,
        }
    }

    /// The lowest in segments that are set aside, as far as is known.
    pub(crate) fn aside_seq(&self) -> u64 {
        self.aside[1]
    }

    /// Walks on by some of `all`.
    pub(crate) fn walk(&mut self, all: &[Segment], segments: usize) {
        let end = (self.at + segments).min(all.len());
        for (id, s) in all.iter().enumerate().take(end).skip(self.at) {
            let this = (s.first_seq.min(s.stale_seq), id as u32);
            let [lowest, next] = &mut self.lowest;
            if this < *lowest {
                *next = std::mem::replace(lowest, this);
            } else if this < *next {
                *next = this;
            }
            if s.state == State::Bad {
                self.aside[0] = self.aside[0].min(this.0);
            }
        }
        self.at = end;
        if end == all.len() {
            self.found = self.lowest;
            self.lowest = [(u64::MAX, u32::MAX); 2];
            self.aside = [u64::MAX, self.aside[0]];
            self.at = 0;
        }
    }
}
