//! Lanes locked together for one command.
//!
//! Promises: all of them are in the same epoch, so what is changed in them becomes durable
//! together. Never: outlives the command, or is held while something is waited for.

use crate::Lane;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use terrace_index::KeyMap;

/// Lanes held for one command.
pub struct Held<'a, D = KeyMap> {
    pub(crate) lanes: SmallVec<[(u16, MutexGuard<'a, Lane<D>>); 2]>,
}

impl<D> Held<'_, D> {
    /// A held lane. Panics if it is not held.
    pub fn lane(&mut self, lane: u16) -> &mut Lane<D> {
        let at = self.lanes.iter().position(|(l, _)| *l == lane);
        &mut self.lanes[at.expect("the lane is held")].1
    }
    /// Every held lane.
    pub fn each(&mut self) -> impl Iterator<Item = (u16, &mut Lane<D>)> {
        self.lanes.iter_mut().map(|(l, lane)| (*l, &mut **lane))
    }
}
