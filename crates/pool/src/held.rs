//! Lanes locked together for one command.
//!
//! Promises: all of them are in the same epoch, so what is changed in them becomes durable
//! together. Never: outlives the command, or is held while something is waited for.

use crate::Lane;
use crate::clock::Now;
use crate::pool::Pool;
use smallvec::SmallVec;
use std::sync::MutexGuard;
use terrace_index::KeyMap;
use terrace_log::Snapshot;

/// Lanes held for one command.
pub struct Held<'a, D = KeyMap> {
    pub(crate) lanes: SmallVec<[(u16, MutexGuard<'a, Lane<D>>); 2]>,
}

impl<'a, D: Snapshot + Send> Held<'a, D> {
    /// Locks lanes in order, and brings all into the open epoch.
    pub(crate) fn of(
        pool: &'a Pool<D>,
        lanes: impl IntoIterator<Item = u16>,
        now: Now,
    ) -> Held<'a, D> {
        let mut held: SmallVec<[_; 2]> = SmallVec::new();
        let mut lanes = lanes.into_iter();
        let first = lanes.next();
        let second = lanes.find(|l| Some(*l) != first);
        if let (Some(only), None) = (first, second) {
            // Mostly a command has one key.
            held.push((only, pool.lanes[only as usize].lock()));
        } else {
            let mut wanted: SmallVec<[u16; 8]> = first.into_iter().chain(second).collect();
            wanted.extend(lanes);
            wanted.sort_unstable();
            wanted.dedup();
            held.extend(
                wanted
                    .into_iter()
                    .map(|l| (l, pool.lanes[l as usize].lock())),
            );
        }
        let open = pool.commit.open();
        for (_, lane) in &mut held {
            pool.catch_up(lane, open);
            lane.set_now(now.ms, now.passed_ms);
        }
        Held { lanes: held }
    }
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
